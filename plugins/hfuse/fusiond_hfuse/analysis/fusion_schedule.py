"""How kernels share one launch: the threads or blocks that each of them gets.

FusionSchedule  :=  kind, level, assign, map, FusedSide+ in the order of their threads, or of their blocks
FusedSide       :=  FusionSlot, block shape, first thread           a slot inside one fused launch
"""

from dataclasses import dataclass

from fusiond.model.program import Dim3
from fusiond_hfuse.frontend.fusion_group import FusionSlot, LaunchShape
from fusiond_hfuse.frontend.launch_shapes import shape_of
from fusiond_hfuse.frontend.source_kernel import volume


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSide:
    """A slot inside a fused launch: which threads run it, and as what block shape."""

    slot: FusionSlot
    shape: Dim3
    first: int  #: The lowest thread id of this side
    barrier: int
    """The id of its partial barrier, of several virtual blocks the first one's; 0: the hardware's own, where all
    threads of the block that have not left are this side's."""
    virtual: int = 1
    """At block level, how many of its blocks lie side by side in a fused one (POD-Attention's virtual blocks)."""

    registers: int = 0  #: That each of its threads has once the sides have traded them (`setmaxnreg`); 0: as launched

    @property
    def threads(self) -> int:
        """Of one of its blocks."""
        return volume(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSchedule:
    """How several kernels share a launch. `sides` are in the order of their threads; at block level in the order of
    their blocks, and when vertical in the order of their work."""

    kind: str
    """`horizontal` (each side has threads of its own) or `vertical` (all threads do one side after the other)."""
    level: str = "warp"
    """When horizontal: `warp` (the sides lie beside each other in every block) or `block` (each block is of one
    side)."""
    assign: str = ""  #: At block level, which block is whose: `sequential`, `interleaved`, `ticket` or `multiprocessor`
    map: str = "pad"
    """At warp level, what a side does that has another number of blocks than the launch: `pad` (the launch has as many
    as the longest side, shorter ones sit some out) or `stride` (each side loops over its blocks)."""
    blocks: int = 0  #: The launch's number of blocks when strided
    sides: tuple[FusedSide, ...]

    @property
    def threads(self) -> int:
        """Of the fused block."""
        counts = [side.threads * side.virtual for side in self.sides]
        return sum(counts) if self.kind == "horizontal" and self.level == "warp" else max(counts)

    @property
    def by_letter(self) -> tuple[FusedSide, ...]:
        return tuple(sorted(self.sides, key=lambda side: side.slot.letter))

    def side(self, letter: str) -> FusedSide:
        return next(side for side in self.sides if side.slot.letter == letter)


def shapes_of(schedule: FusionSchedule) -> dict[str, LaunchShape]:
    """Each side's own launch, by its letter."""
    return {side.slot.letter: shape_of(side.slot, side.shape) for side in schedule.sides}
