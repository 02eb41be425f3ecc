"""What messages of a trace cost, and what is saved where a sequence of them is one.

A message takes startup + bytes / bandwidth (Kessler, section 2). Where fusiond has measured copies on the trace's
device, these say it, between sizes by interpolation. Else both are fitted to the trace's own copies of that direction
and memory where it has enough of different sizes: non-negative least squares, each copy weighted by one over its time,
so that the short ones count. Else what `cost` assumes stands in, and the report says which.

Of k messages that become one, k - 1 startups go (by measured copies: what they take less what the one takes), and the
time in which the link was idle between them.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.program import Memory
from fusiond.strategy import NO_ANSWERS, Answers
from fusiond_transfer.analysis import cost
from fusiond_transfer.frontend.importing.nsight import UP, Trace, TracedCopy, sequences

LEAST_COPIES = 8
LEAST_SPREAD = 4.0
"""Copies, and the largest over the smallest of their sizes, from which a line can be told."""


class Basis(enum.StrEnum):
    """How the cost of a message is known, as it is said."""

    PROBED = "measured on this device by fusiond"
    FITTED = "measured in this trace"
    ASSUMED = "assumed, not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """Of one direction and kind of memory."""

    startup_us: float
    bytes_per_us: float
    """Of the largest sizes."""
    basis: Basis
    points: tuple[tuple[int, float], ...] = ()
    """(bytes, us) of what was probed."""

    def saved_us(self, sizes: Sequence[int]) -> float:
        """What messages of these sizes take more than one that carries all."""
        if not self.points:
            return (len(sizes) - 1) * self.startup_us
        apart = sum(cost.interpolated_us(self.points, each) for each in sizes)
        return max(0.0, apart - cost.interpolated_us(self.points, sum(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Of one sequence that becomes one message; `idle_us` is the time between its copies."""

    copies: int
    bytes: int
    startups_us: float
    idle_us: float
    basis: Basis


def probe_keys() -> tuple[str, ...]:
    """The probes that say what messages cost."""
    return tuple(
        cost.copy_key(up, memory, size) for up, memory, size in itertools.product((True, False), cost.KINDS, cost.SIZES)
    )


def lines(copies: Sequence[TracedCopy], answers: Answers = NO_ANSWERS) -> Mapping[tuple[int, str], CostLine]:
    """(kind, memory) -> what its messages cost; `answers`: what the trace's device has answered for probes."""
    kinds: dict[tuple[int, str], list[TracedCopy]] = {}
    for each in copies:
        if each.crosses:
            kinds.setdefault((each.kind, each.memory), []).append(each)
    return {kind: _line(*kind, members, answers) for kind, members in sorted(kinds.items())}


def _line(kind: int, memory: str, members: Sequence[TracedCopy], answers: Answers) -> CostLine:
    host = Memory.PAGEABLE if memory == "pageable" else Memory.PINNED
    points = cost.measured_points(kind == UP, host, answers)
    if len(points) > 1 and memory in ("", "pageable", "pinned"):
        (size, time_us), (larger, longer) = points[-2:]
        speed = (larger - size) / (longer - time_us) if longer > time_us else math.inf
        return CostLine(
            startup_us=cost.interpolated_us(points, 0), bytes_per_us=speed, basis=Basis.PROBED, points=points
        )
    usable = [each for each in members if each.end > each.start and each.bytes > 0]
    sizes = np.array([each.bytes for each in usable], float)
    if len(usable) >= LEAST_COPIES and sizes.max() >= LEAST_SPREAD * sizes.min():
        us = np.array([each.end - each.start for each in usable], float) / 1000
        startup_us, us_per_byte = _fitted(1 / us, sizes / us)
        if us_per_byte > 0:
            return CostLine(startup_us=startup_us, bytes_per_us=1 / us_per_byte, basis=Basis.FITTED)
    return CostLine(
        startup_us=cost.ASSUMED_STARTUP_US[host], bytes_per_us=cost.ASSUMED_BYTES_PER_US[host], basis=Basis.ASSUMED
    )


def _fitted(ones: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """The least squares of startup * ones + slope * sizes = 1 with neither below 0: inside, or on the better edge."""
    (startup, slope), *_ = np.linalg.lstsq(np.stack([ones, sizes], axis=1), np.ones(len(ones)), rcond=None)
    if startup >= 0 and slope >= 0:
        return float(startup), float(slope)
    edges = [(float(ones.sum() / (ones @ ones)), 0.0), (0.0, float(sizes.sum() / (sizes @ sizes)))]
    return min(edges, key=lambda each: float(((each[0] * ones + each[1] * sizes - 1) ** 2).sum()))


def savings(trace: Trace, answers: Answers = NO_ANSWERS) -> tuple[tuple[Sequence[TracedCopy], Saving], ...]:
    """Every sequence with what it would save as one message, the most first."""
    known = lines(trace.copies, answers)
    found: list[tuple[Sequence[TracedCopy], Saving]] = []
    for run in sequences(trace):
        line = known[run[0].kind, run[0].memory]
        idle = sum(max(0, later.start - each.end) for each, later in itertools.pairwise(run))
        saving = Saving(
            copies=len(run),
            bytes=sum(each.bytes for each in run),
            startups_us=line.saved_us([each.bytes for each in run]),
            idle_us=idle / 1000,
            basis=line.basis,
        )
        found.append((run, saving))
    return tuple(sorted(found, key=lambda each: -(each[1].startups_us + each[1].idle_us)))
