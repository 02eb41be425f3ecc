"""Who gets which threads of the fused block (Li et al., CGO 2022, section III-B)."""

from __future__ import annotations

from fusiond.model import Config, DeviceLimits
from fusiond_hfuse import barriers
from fusiond_hfuse.graph import SLOTS, Pair, Plan, Side
from fusiond_hfuse.kernel import thread_counts

PAPER_THREADS = 1024
"""d0 of Fig. 6: the paper searches partitions of a block of this size."""


def choices(pair: Pair, letter: str, limits: DeviceLimits) -> tuple[int, ...]:
    """How many threads a slot may have beside another one, the given count first."""
    most = limits.threads_per_block
    other = thread_counts(pair.slot(_other(letter)), pair.granularity, most)
    mine = thread_counts(pair.slot(letter), pair.granularity, most)
    return tuple(threads for threads in mine if other and threads + min(other) <= most)


def common(pair: Pair, limits: DeviceLimits) -> tuple[int, ...]:
    """The block sizes that both kernels can have: what a vertically fused block may have."""
    first, second = (thread_counts(slot, pair.granularity, limits.threads_per_block) for slot in pair.slots)
    return tuple(threads for threads in first if threads in second)


def even(pair: Pair, limits: DeviceLimits) -> tuple[int, int] | None:
    """The even split of the paper's block; when that is no choice, the pair nearest to even, then to its size."""
    half = min(PAPER_THREADS, limits.threads_per_block) // 2
    pairs = [
        (a, b)
        for a in choices(pair, "a", limits)
        for b in choices(pair, "b", limits)
        if a + b <= limits.threads_per_block
    ]
    return min(
        pairs, key=lambda each: (abs(each[0] - each[1]), abs(each[0] - half) + abs(each[1] - half)), default=None
    )


def plan(pair: Pair, config: Config) -> Plan:
    """The plan of a config. KeyError or TypeError when it is no point of the pair's space, ValueError for a shape
    that a kernel does not have."""
    kind = config.text("kind")
    letters = config.text("order")
    threads = {letter: config.integer("threads" if kind == "vertical" else f"threads.{letter}") for letter in SLOTS}
    sides = []
    first = 0
    for letter in letters:
        slot = pair.slot(letter)
        shape = slot.kernel.block.shape(threads[letter])
        if shape is None:
            raise ValueError(f"{slot.kernel.name} has no block of {threads[letter]} threads")
        sides.append(Side(slot=slot, shape=shape, first=first, barrier=barriers.FIRST_ID + SLOTS.index(letter)))
        if kind == "horizontal":
            first += threads[letter]
    return Plan(kind=kind, sides=(sides[0], sides[1]))


def _other(letter: str) -> str:
    return "b" if letter == "a" else "a"
