"""The schedules that a root may have (section 4.1), and which of them are worth trying.

The whole space is every split_dim with every divisor of its dimension, Row and Column. `candidates` thins it: schedules
with the same chunk are one, and of each way to cut (which dimensions are cut) a few block counts near the wanted one
are kept, and always the single block that is valid for everything (section 4.3).
"""

import functools
import math
from collections.abc import Iterator

from fusiond_stitching.analysis.plan import BoxChunk, Chunk, ChunkSchedule, ScheduleKind, whole

STEPS = (0, 1, -1, 2, -2, 4, 6, 8, -4)
"""Block counts kept of each way to cut: those nearest to the wanted one times these powers of two. A small root may
carry large producers, so there must be some far above."""
MOST_BLOCKS = 2**20


@functools.lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from 1 up."""
    low = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    high = [number // each for each in reversed(low) if each * each != number]
    return (*low, *high)


def space(dims: tuple[int, ...], *, middle: bool = False) -> Iterator[ChunkSchedule]:
    """Every legal schedule of a tensor (section 4.1): split_dim, sword and sched_type; `middle` adds the fourth
    type."""
    for kind in (ScheduleKind.ROW, ScheduleKind.COLUMN, *([ScheduleKind.MIDDLE] if middle else [])):
        for split_dim, dim in enumerate(dims):
            for sword in divisors(dim) if dim else (1,):
                yield ChunkSchedule(split_dim, sword, kind)
    if not dims:
        yield ChunkSchedule(0, 1, ScheduleKind.ROW)


@functools.lru_cache(maxsize=4096)
def candidates(dims: tuple[int, ...], wanted: int, middle: bool) -> tuple[tuple[ChunkSchedule, Chunk, int], ...]:
    """(schedule, chunk, blocks) near `wanted` blocks first; equal chunks once, the single block last."""
    single = ChunkSchedule(0, 1, ScheduleKind.ROW)
    found: dict[Chunk, tuple[ChunkSchedule, int]] = {}
    for schedule in space(dims, middle=middle):
        blocks = schedule.blocks(dims)
        if 1 < blocks <= MOST_BLOCKS:
            found.setdefault(schedule.chunk(dims), (schedule, blocks))
    ways: dict[tuple[bool, ...], list[tuple[ChunkSchedule, Chunk, int]]] = {}
    for chunk, (schedule, blocks) in found.items():
        assert isinstance(chunk, BoxChunk)
        cut = tuple(each.parts > 1 for each in chunk.splits)
        ways.setdefault(cut, []).append((schedule, chunk, blocks))
    chosen: dict[Chunk, tuple[ChunkSchedule, Chunk, int]] = {}
    for step in STEPS:
        for each in ways.values():
            near = min(each, key=lambda one: (abs(math.log2(one[2] / (wanted * 2.0**step))), one[2]))
            chosen.setdefault(near[1], near)
    kept = list(chosen.values())
    return (*kept, (single, whole(dims), 1))


def flat(elements: int, size: int) -> ChunkSchedule:
    """Chunks of `size` elements of the row-major order: what an ordinary element-wise kernel does."""
    return ChunkSchedule(0, max(1, min(size, elements)), ScheduleKind.FLAT)
