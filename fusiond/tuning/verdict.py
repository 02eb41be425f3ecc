"""From final measurements to a verdict. Pure functions; nothing here measures.

Every process of the finals measures every program in pairs with one baseline; what is compared comes from the
processes that all of them share. Samples of one process share placement, clock and context, so a process counts as
*one* observation: the median log ratio of its pairs. The interval is Student's over processes, widened for having
chosen the best among the finalists (Bonferroni: valid however the choice was made). Search samples never enter.
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.outcomes import Measurement, Verdict, median

LEAST_PROCESSES = 5
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate:
    """A finalist's speed-up over its opponent, with its simultaneous 95 % interval."""

    speedup: float
    low: float
    high: float


def process_ratio(measurement: Measurement) -> float:
    """The one observation of a process: log of baseline / candidate, median over its pairs. ValueError for none."""
    pairs = zip(measurement.span_us, measurement.baseline_us, strict=False)  # alone it has no second one
    return median(tuple(math.log(baseline / candidate) for candidate, baseline in pairs))


def estimate(log_ratios: Sequence[float], finalists: int) -> RatioEstimate:
    """Interval over processes; `finalists` candidates were measured, of which one will be chosen.

    ValueError for fewer than two processes: one observation has no interval."""
    count = len(log_ratios)
    if count < 2:
        raise ValueError("an interval needs at least two processes")
    mean = math.fsum(log_ratios) / count
    variance = math.fsum((each - mean) ** 2 for each in log_ratios) / (count - 1)
    tail = (1 - CONFIDENCE) / 2 / max(1, finalists)
    half = _student_quantile(1 - tail, count - 1) * math.sqrt(variance / count)
    return RatioEstimate(speedup=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The finalist that stands for all of them, and what is said of it."""

    key: str
    estimate: RatioEstimate
    verdict: Verdict


def shared(finals: Mapping[str, Collection[int]], programs: Collection[str]) -> tuple[int, ...]:
    """The processes that measured all of these programs, from the processes of each; none without programs."""
    measured = [set(finals.get(key, {})) for key in programs]
    return tuple(sorted(set.intersection(*measured))) if measured else ()


def opponent(unfused: Mapping[str, Sequence[float]], incumbent: str | None) -> str:
    """The unfused way that a candidate must beat: the fastest on the mean, unless the one that is known from before
    is as fast as far as one can tell. All of the same processes. ValueError for none."""
    if not unfused:
        raise ValueError("no unfused way was measured")
    fastest = max(unfused, key=lambda key: math.fsum(unfused[key]))
    if incumbent is None or incumbent not in unfused or fastest == incumbent:
        return fastest
    return fastest if beats(unfused[fastest], unfused[incumbent], len(unfused)) else incumbent


def beats(one: Sequence[float], other: Sequence[float], chosen_among: int) -> bool:
    """Whether one program is surely faster than another, by their log ratios in the same processes."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return estimate(differences, chosen_among).low > 1.0


def conclude(finals: Mapping[str, Sequence[float]], least_gain: float) -> Conclusion | None:
    """From the log ratios of each finalist, one for each process, to a verdict; None when none has enough of them.

    `fuse`: some finalist is surely faster (its interval lies above 1), by `least_gain` as far as one can tell; of
    several, the one with the best lower end. `keep`: no finalist's interval reaches `least_gain`. Else `undecided`."""
    usable = {key: each for key, each in finals.items() if len(each) >= LEAST_PROCESSES}
    conclusions = {key: judge(each, len(usable), least_gain, key) for key, each in usable.items()}
    if not conclusions:
        return None
    surely = [each for each in conclusions.values() if each.verdict is Verdict.FUSE]
    if surely:
        return max(surely, key=lambda each: each.estimate.low)
    # The one that may yet be faster stands for them, not one of which it is known that it is not.
    open_ = [each for each in conclusions.values() if each.verdict is Verdict.UNDECIDED]
    return max(open_ or conclusions.values(), key=lambda each: each.estimate.speedup)


def judge(log_ratios: Sequence[float], finalists: int, least_gain: float, key: str) -> Conclusion:
    """What is said of one finalist, corrected for choosing among `finalists`."""
    found = estimate(log_ratios, finalists)
    if found.low > 1.0 and found.speedup >= least_gain:
        return Conclusion(key=key, estimate=found, verdict=Verdict.FUSE)
    return Conclusion(key=key, estimate=found, verdict=Verdict.KEEP if found.high < least_gain else Verdict.UNDECIDED)


@functools.cache
def _student_quantile(probability: float, degrees: int) -> float:
    from scipy import special  # whoever only reads verdicts goes without

    return float(special.stdtrit(degrees, probability))
