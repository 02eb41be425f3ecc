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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The finalist that stands for all of them, and what is said of it."""

    key: str
    estimate: Estimate
    verdict: Verdict


def conclude(finals: Mapping[str, Sequence[float]], least_gain: float) -> Conclusion | None:
    """From the log ratios of each finalist, one for each process, to a verdict; None when none has enough of them.

    `fuse`: some finalist is surely faster (its interval lies above 1), by `least_gain` as far as one can tell; of
    several, the one with the best lower end. `keep`: no finalist's interval reaches `least_gain`. Else `undecided`.
    """
    usable = {key: each for key, each in finals.items() if len(each) >= LEAST_PROCESSES}
    estimates = {key: estimate(each, len(usable)) for key, each in usable.items()}
    if not estimates:
        return None
    surely = {key: each for key, each in estimates.items() if each.low > 1.0 and each.speedup >= least_gain}
    if surely:
        best = max(surely, key=lambda key: surely[key].low)
        return Conclusion(key=best, estimate=estimates[best], verdict=Verdict.FUSE)
    best = max(estimates, key=lambda key: estimates[key].speedup)
    kept = all(each.high < least_gain for each in estimates.values())
    return Conclusion(key=best, estimate=estimates[best], verdict=Verdict.KEEP if kept else Verdict.UNDECIDED)


def contested(
    finals: Mapping[str, Mapping[int, float]], contenders: Mapping[str, Mapping[int, float]]
) -> tuple[str | None, dict[str, dict[int, float]]]:
    """The finals against the unfused way that turned out to be the fastest.

    All log ratios (by finalist and process) are against one baseline, which was picked from noisy samples; `contenders`
    are other unfused programs that were measured against it in the same processes. When one of them is faster on the
    mean, it becomes the baseline: its ratio is taken off, process by process. Returns that contender, or None.
    """
    means = {
        key: math.fsum(each.values()) / len(each) for key, each in contenders.items() if len(each) >= LEAST_PROCESSES
    }
    best = max(means, key=lambda key: means[key], default=None)
    if best is None or means[best] <= 0.0:
        return None, {key: dict(each) for key, each in finals.items()}
    off = contenders[best]
    adjusted = {
        key: {process: value - off[process] for process, value in each.items() if process in off}
        for key, each in finals.items()
    }
    return best, adjusted


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
