"""How kernels share one launch: the threads or blocks that each of them gets.

FusionSchedule  :=  kind, level, assign, map, FusedSide+ in the order of their threads, or of their blocks
FusedSide       :=  FusionSlot, block shape, first thread           a slot inside one fused launch
"""

from dataclasses import dataclass

from fusiond.model.drawing import Drawing, LaneDrawing, TimelineLane, TimelineSpan
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


# --- for people -----------------------------------------------------------------------------------------


def drawn(schedule: FusionSchedule) -> tuple[Drawing, ...]:
    """Which kernel has which threads of a block, with its barrier and registers, and which of the launch's blocks."""
    return _threads(schedule), _blocks(schedule)


def _threads(schedule: FusionSchedule) -> LaneDrawing:
    lanes = []
    for number, side in enumerate(schedule.sides):
        first = side.first if schedule.kind == "horizontal" and schedule.level == "warp" else 0
        spans = [
            TimelineSpan(start=begin, end=begin + side.threads, text=_said(side, each), kind=number)
            for each, begin in enumerate(range(first, first + side.threads * side.virtual, side.threads))
        ]
        lanes.append(TimelineLane(name=f"{side.slot.letter}: {side.slot.kernel.name}", spans=tuple(spans)))
    if schedule.kind == "vertical":
        title = f"Threads of a block of {schedule.threads}: all run one kernel after the other"
    elif schedule.level == "block":
        title = f"Threads of a block of {schedule.threads}: each block is of one kernel"
    else:
        title = f"Threads of a block of {schedule.threads}: the kernels lie side by side"
    return LaneDrawing(title=title, unit="thread", lanes=tuple(lanes))


def _said(side: FusedSide, number: int) -> str:
    barrier = f"barrier {side.barrier + number}" if side.barrier else "the block's own barrier"
    registers = f", {side.registers} registers" if side.registers else ""
    virtual = f", virtual block {number}" if side.virtual > 1 else ""
    return f"{side.threads} threads, {barrier}{registers}{virtual}"


def _blocks(schedule: FusionSchedule) -> LaneDrawing:
    shapes = shapes_of(schedule)
    counts = [-(-int(shapes[side.slot.letter].blocks) // side.virtual) for side in schedule.sides]
    apart = schedule.level == "block" and schedule.assign == "sequential"
    total, first, lanes = sum(counts), 0, []
    for number, (side, count) in enumerate(zip(schedule.sides, counts, strict=True)):
        if schedule.level == "block" and not apart:
            span = TimelineSpan(start=0, end=total, text=f"{count} of {total} blocks, in proportion", kind=number)
        elif schedule.map == "stride":
            span = TimelineSpan(start=0, end=schedule.blocks, text=f"{count} blocks, in turns", kind=number)
        else:
            span = TimelineSpan(start=first, end=first + count, text=f"{count} blocks", kind=number)
        first += count if apart else 0
        lanes.append(TimelineLane(name=f"{side.slot.letter}: {side.slot.kernel.name}", spans=(span,)))
    how = f", assigned: {schedule.assign}" if schedule.level == "block" else ""
    return LaneDrawing(title=f"Blocks of the launch{how}", unit="block", lanes=tuple(lanes))
