"""What messages of a trace cost, and what is saved where a sequence of them is one.

A message takes startup + bytes / bandwidth (Kessler, section 2). Both are fitted to the trace's own copies of that
direction and memory where it has enough of different sizes: non-negative least squares, each copy weighted by one over
its time, so that the short ones count. Else what `cost` assumes stands in, and the report says which.

Of k messages that become one, k - 1 startups go, and the time in which the link was idle between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.program import Memory
from fusiond_transfer.analysis import cost
from fusiond_transfer.frontend.importing.nsight import Trace, TracedCopy, sequences

LEAST_COPIES = 8
LEAST_SPREAD = 4.0
"""Copies, and the largest over the smallest of their sizes, from which a line can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """Of one direction and kind of memory."""

    startup_us: float
    bytes_per_us: float
    measured: bool
    """Fitted to the trace; else assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Of one sequence that becomes one message; `idle_us` is the time between its copies."""

    copies: int
    bytes: int
    startups_us: float
    idle_us: float
    measured: bool


def lines(copies: Sequence[TracedCopy]) -> Mapping[tuple[int, str], CostLine]:
    """(kind, memory) -> what its messages cost."""
    kinds: dict[tuple[int, str], list[TracedCopy]] = {}
    for each in copies:
        if each.crosses:
            kinds.setdefault((each.kind, each.memory), []).append(each)
    return {kind: _line(kind[1], members) for kind, members in sorted(kinds.items())}


def _line(memory: str, members: Sequence[TracedCopy]) -> CostLine:
    usable = [each for each in members if each.end > each.start and each.bytes > 0]
    sizes = np.array([each.bytes for each in usable], float)
    if len(usable) >= LEAST_COPIES and sizes.max() >= LEAST_SPREAD * sizes.min():
        us = np.array([each.end - each.start for each in usable], float) / 1000
        startup_us, us_per_byte = _fitted(1 / us, sizes / us)
        if us_per_byte > 0:
            return CostLine(startup_us=startup_us, bytes_per_us=1 / us_per_byte, measured=True)
    assumed = Memory.PAGEABLE if memory == "pageable" else Memory.PINNED
    return CostLine(
        startup_us=cost.ASSUMED_STARTUP_US[assumed], bytes_per_us=cost.ASSUMED_BYTES_PER_US[assumed], measured=False
    )


def _fitted(ones: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """The least squares of startup * ones + slope * sizes = 1 with neither below 0: inside, or on the better edge."""
    (startup, slope), *_ = np.linalg.lstsq(np.stack([ones, sizes], axis=1), np.ones(len(ones)), rcond=None)
    if startup >= 0 and slope >= 0:
        return float(startup), float(slope)
    edges = [(float(ones.sum() / (ones @ ones)), 0.0), (0.0, float(sizes.sum() / (sizes @ sizes)))]
    return min(edges, key=lambda each: float(((each[0] * ones + each[1] * sizes - 1) ** 2).sum()))


def savings(trace: Trace) -> tuple[tuple[Sequence[TracedCopy], Saving], ...]:
    """Every sequence with what it would save as one message, the most first."""
    known = lines(trace.copies)
    found: list[tuple[Sequence[TracedCopy], Saving]] = []
    for run in sequences(trace):
        line = known[run[0].kind, run[0].memory]
        idle = sum(max(0, later.start - each.end) for each, later in itertools.pairwise(run))
        saving = Saving(
            copies=len(run),
            bytes=sum(each.bytes for each in run),
            startups_us=(len(run) - 1) * line.startup_us,
            idle_us=idle / 1000,
            measured=line.measured,
        )
        found.append((run, saving))
    return tuple(sorted(found, key=lambda each: -(each[1].startups_us + each[1].idle_us)))
