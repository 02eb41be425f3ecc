"""Divides the threads and blocks of the fused launch (Li et al., CGO 2022, section III-B)."""

import dataclasses
from collections.abc import Iterable, Mapping

from fusiond.model.gpu.limits import BARRIER_IDS, STATIC_SHARED_BYTES
from fusiond.model.language.extents import ceil_div
from fusiond.model.nouns import Config, DeviceLimits
from fusiond.model.program import Dim3
from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.frontend import shadows
from fusiond_hfuse.frontend.fusion_group import FusionSlot, KernelGroup
from fusiond_hfuse.frontend.launch_shapes import shares_a_block, thread_counts
from fusiond_hfuse.frontend.source_kernel import SourceKernel

VIRTUAL = (1, 2, 4, 8)  #: Blocks of one kernel side by side in a fused block

PAPER_THREADS = 1024  #: d0 of Fig. 6: the paper searches partitions of a block of this size.


def counts(group: KernelGroup, letter: str, limits: DeviceLimits, *, beside: bool = False) -> tuple[int, ...]:
    """How many threads a slot's block can have, the given count first; `beside` another kernel's in the same block."""
    slot = group.slot(letter)
    found = thread_counts(slot, group.granularity, limits.threads_per_block)
    return tuple(threads for threads in found if shares_a_block(slot.kernel, threads)) if beside else found


def virtual(kernel: SourceKernel, threads: int, limits: DeviceLimits) -> tuple[int, ...]:
    """How many blocks of a kernel, of so many threads each, may lie side by side in a fused block that is all its own:
    each needs a barrier and shared memory of its own, so that static arrays have to become dynamic ones."""
    movable = kernel.parsed.static_shared_bytes == 0 or kernel.moved is not None
    if not shares_a_block(kernel, threads) or not movable:
        return (1,)
    most = (BARRIER_IDS - 1) // kernel.parsed.barrier_ids
    return tuple(each for each in VIRTUAL if each * threads <= limits.threads_per_block and each <= most)


def choices(group: KernelGroup, letter: str, limits: DeviceLimits) -> tuple[int, ...]:
    """How many threads a slot may have in one block with all the others, the given count first."""
    others = [counts(group, slot.letter, limits, beside=True) for slot in group.slots if slot.letter != letter]
    if not all(others):
        return ()
    room = limits.threads_per_block - sum(min(each) for each in others)
    return tuple(threads for threads in counts(group, letter, limits, beside=True) if threads <= room)


def common(group: KernelGroup, limits: DeviceLimits) -> tuple[int, ...]:
    """The block sizes that all kernels can have: what a vertically fused block may have."""
    first, *others = (counts(group, slot.letter, limits, beside=True) for slot in group.slots)
    return tuple(threads for threads in first if all(threads in each for each in others))


def even(group: KernelGroup, limits: DeviceLimits) -> tuple[int, ...] | None:
    """The even split of the paper's block, slot by slot; when that is not a choice, the one nearest to even, then to
    its size. Of more than two kernels: the most that is no more than an equal share, or else the least. None when they
    do not fit one block."""
    if sum(slot.kernel.parsed.barrier_ids for slot in group.slots) >= BARRIER_IDS:
        return None
    whole = min(PAPER_THREADS, limits.threads_per_block)
    sides = [choices(group, slot.letter, limits) for slot in group.slots]
    if len(sides) == 2:
        half = whole // 2
        pairs = [(a, b) for a in sides[0] for b in sides[1] if a + b <= limits.threads_per_block]
        return min(
            pairs, key=lambda each: (abs(each[0] - each[1]), abs(each[0] - half) + abs(each[1] - half)), default=None
        )
    if not all(sides):
        return None
    share = whole // len(sides)
    split = [max((threads for threads in each if threads <= share), default=min(each)) for each in sides]
    if sum(split) > limits.threads_per_block:
        split = [min(each) for each in sides]
    return tuple(split) if sum(split) <= limits.threads_per_block else None


def schedule(group: KernelGroup, config: Config, multiprocessors: int = 0) -> FusionSchedule:
    """The schedule of a config. KeyError or TypeError when it is not a point of the group's space, ValueError for a
    shape that a kernel does not have."""
    kind = config.text("kind")
    level = str(config.get("level", "warp")) if kind == "horizontal" else "warp"
    beside = kind == "horizontal" and level == "warp"
    mapped = str(config.get("map", "pad")) if beside else "pad"
    threads = {
        letter: config.integer("threads" if kind == "vertical" else f"threads.{letter}") for letter in group.letters
    }
    order = _ordered(config.text("order"), threads)
    named = {letter: f"virtual.{letter}" for letter in group.letters}
    virtual = {
        letter: config.integer(name) if level == "block" and name in config else 1 for letter, name in named.items()
    }
    slots = {slot.letter: slot for slot in (overlaid(group, virtual) if level == "block" else placed(group))}
    sides, first = [], 0
    for letter in order:
        # Sides that never share a block share barriers: what a block reserves of them is taken from its neighbours.
        barrier = shadows.FIRST_ID if virtual[letter] > 1 else 0
        if level == "warp":
            barrier = shadows.FIRST_ID + sum(s.kernel.parsed.barrier_ids for s in group.slots if s.letter < letter)
        shape = block_shape(slots[letter], threads[letter])
        side = FusedSide(slot=slots[letter], shape=shape, first=first, barrier=barrier, virtual=virtual[letter])
        sides.append(side)
        first += threads[letter] if beside else 0
    return FusionSchedule(
        kind=kind, level=level, assign=config.text("assign") if level == "block" else "", map=mapped,
        blocks=config.integer("blocks") * multiprocessors if mapped == "stride" else 0, sides=tuple(sides),
    )  # fmt: skip


def block_shape(slot: FusionSlot, threads: int) -> Dim3:
    """The shape of a slot's block of so many threads. ValueError where there is none."""
    shape = slot.kernel.block.shape(threads)
    if shape is None:
        raise ValueError(f"{slot.kernel.name} has no block of {threads} threads")
    return shape


def static_bytes(slots: Iterable[FusionSlot]) -> int:
    """Static shared arrays of kernels that become one, as far as their texts tell."""
    return sum(slot.kernel.parsed.static_shared_bytes or 0 for slot in slots)


def placed(group: KernelGroup) -> tuple[FusionSlot, ...]:
    """The slots, with their static shared arrays in the dynamic one where they are too large together to be static."""
    if static_bytes(group.slots) <= STATIC_SHARED_BYTES:
        return group.slots
    return tuple(_moved(slot) for slot in group.slots)


def overlaid(group: KernelGroup, virtual_blocks: Mapping[str, int]) -> tuple[FusionSlot, ...]:
    """The slots for blocks that are one side's each. Of static shared arrays such a block would have all sides'; in the
    dynamic array they lie over each other. Virtual blocks need one each."""
    several = sum(slot.kernel.parsed.static_shared_bytes != 0 for slot in group.slots) > 1
    return tuple(_moved(slot) if several or virtual_blocks[slot.letter] > 1 else slot for slot in group.slots)


def _moved(slot: FusionSlot) -> FusionSlot:
    moved = slot.kernel.moved
    if moved is None:
        return slot
    return dataclasses.replace(slot, kernel=dataclasses.replace(slot.kernel, parsed=moved))


def _ordered(order: str, threads: dict[str, int]) -> str:
    """The letters in the order that a config names: as they are, the most threads first, or letter by letter."""
    letters = "".join(sorted(threads))
    if order == "given":
        return letters
    if order == "threads":
        return "".join(sorted(letters, key=lambda letter: (-threads[letter], letter)))
    if sorted(order) != sorted(letters):
        raise ValueError(f"the order {order} is not one of {letters}")
    return order


def ratio(part: int, whole: int) -> int:
    """A side's share of all blocks as a fraction of 2^32, rounded up: of the first i blocks, i * ratio >> 32 are its
    own, of all of them `part`, and one more block is at most one more of its own. No division is left for the device.
    For less than `whole` <= 2^31."""
    return ceil_div(part * 2**32, whole)
