"""From final measurements to a verdict. Pure functions; nothing here measures.

Samples of one process share placement, clock and context, so a process counts as *one* observation: the median log
ratio of its pairs. The interval is Student's over processes, widened for having chosen the best among the finalists
(Bonferroni: valid however the choice was made). Search samples never enter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusiond.model import Measurement, Verdict, median

LEAST_PROCESSES = 5
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A finalist's speed-up over the baseline, with its simultaneous 95 % interval."""

    speedup: float
    low: float
    high: float
    processes: int


def process_ratio(measurement: Measurement) -> float:
    """The one observation of a process: log of baseline / candidate, median over its pairs. ValueError without
    pairs."""
    pairs = zip(measurement.span_us, measurement.baseline_us, strict=False)
    return median(tuple(math.log(baseline / candidate) for candidate, baseline in pairs))


def estimate(log_ratios: Sequence[float], finalists: int) -> Estimate:
    """Interval over processes; `finalists` candidates were measured, of which one will be chosen.

    ValueError for fewer than two processes: one observation has no interval.
    """
    count = len(log_ratios)
    if count < 2:
        raise ValueError("an interval needs at least two processes")
    mean = math.fsum(log_ratios) / count
    variance = math.fsum((each - mean) ** 2 for each in log_ratios) / (count - 1)
    tail = (1 - CONFIDENCE) / 2 / max(1, finalists)
    half = student_quantile(1 - tail, count - 1) * math.sqrt(variance / count)
    return Estimate(speedup=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), processes=count)


def choose(finals: Mapping[str, Sequence[Measurement]]) -> tuple[str, Estimate] | None:
    """The finalist with the largest estimate, and that estimate; None when none has two processes.

    Ties go to the one that comes first, which is the better one of the search.
    """
    usable = {key: each for key, each in finals.items() if len(each) >= 2}
    estimates = {
        key: estimate([process_ratio(each) for each in measurements], len(usable))
        for key, measurements in usable.items()
    }
    if not estimates:
        return None
    best = max(estimates, key=lambda key: estimates[key].speedup)
    return best, estimates[best]


def decide(found: Estimate | None, least_gain: float) -> Verdict:
    """`fuse`: surely faster, and by enough. `keep`: surely not faster by enough (or nothing to fuse). Else
    `undecided`."""
    if found is None or found.high < least_gain:
        return Verdict.KEEP
    if found.low > 1.0 and found.speedup >= least_gain:
        return Verdict.FUSE
    return Verdict.UNDECIDED


@functools.cache
def student_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution, by bisection on its distribution function; error below 1e-9."""
    if not 0.5 <= probability < 1.0:
        raise ValueError("the probability must be from 0.5 to below 1")
    low, high = 0.0, 1.0
    while _student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_cdf(t: float, degrees: int) -> float:
    """For t >= 0. The finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4, exact for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    if degrees % 2:
        term, total = cosine, 0.0
        for step in range(1, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        between = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        term, total = 1.0, 0.0
        for step in range(0, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        between = math.sin(angle) * total
    return 0.5 + between / 2
