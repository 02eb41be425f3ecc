"""Cases for the contract of a strategy: two targets, and what is known there of a job."""

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from fusiond.model.gpu.limits import MOST_SHARED_BYTES
from fusiond.model.nouns import Analysis, Config, DeviceLimits, Job, Workload
from fusiond.model.program import Program
from fusiond.strategy import Target
from fusiond.strategy.space import Space

PROCESSOR = DeviceLimits(
    multiprocessors=1,
    registers_per_sm=0,
    registers_per_block=0,
    shared_bytes_per_sm=MOST_SHARED_BYTES,
    shared_bytes_per_block=MOST_SHARED_BYTES,
    threads_per_sm=2048,
    blocks_per_sm=32,
)
GPU = DeviceLimits(
    multiprocessors=132,
    shared_bytes_per_sm=MOST_SHARED_BYTES + 1024,
    shared_bytes_per_block=MOST_SHARED_BYTES,
    threads_per_sm=2048,
    blocks_per_sm=32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job on one target, as far as it can be known without running."""

    job: Job
    target: Target
    workload: Workload
    analysis: Analysis
    space: Space
    seeds: tuple[tuple[str, Config], ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A Program of a case; `again` makes it anew from another case, None where there is no such Program."""

    where: str
    program: Program
    again: Callable[[Case], Program | None]
    chosen_by_size: bool


@functools.cache
def some_points(space: Space, count: int) -> tuple[Config, ...]:
    """At most `count` of the first 20,000 points, the same in every run. They are listed once for all tests."""
    points = list(itertools.islice(space.points(), 20_000))
    return tuple(random.Random(0).sample(points, min(count, len(points))))
