"""Paired sampling: candidate and baseline take turns in being first (A B B A A B ...), so that drift affects both
alike. Both are warmed up until the clock is steady. Pairs come in twos, one of either order, until the median of their
log ratios is known well enough, or the time is up (docs/measuring.md has the numbers behind the defaults).
"""

import dataclasses
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.devices.base import ExecutionError, Executor, Loaded
from fusiond.model.outcomes import DeviceState, Effort, Measurement, Outcome, Purpose, median

SHORT_US = 50.0
"""A sample holds as many runs as take five times as long: times of events come in steps of 0.5 us (or so the driver
says), and one of them should be no more than 0.2 % of a sample."""
_MOST_RUNS = 1000
_LEAST_BATCHES = 5  #: From which on it is known what the clock usually is
_ATTEMPTS = 3
_DROP_RULES = ((2, 1.10), (5, 1.03))
_STEADY = {"power_cap", "sync_boost"}  #: At its power limit a board may run for hours, at a clock that is steady
DRIFT = 0.05  #: How much the clock of a device may change before what was measured on it is thrown away
READINGS = 3  #: So many readings of the clock must agree
STEADY = 0.01  #: As far as this: the largest is at most 1 % above the least
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one pair of Programs."""

    purpose: Purpose
    warmups: int = 3  #: Runs of each before the samples, at least
    warm_up_secs: float = 0.5  #: How long to wait for a clock that is not steady
    least_pairs: int = 6
    pairs: int = 30  #: At most
    precision: float = 0.005
    """Enough is known when the 95 % interval of the median log ratio reaches no further than this to either side."""
    budget_secs: float = 1.0  #: After `least_pairs`, stop when this much time has gone into samples
    short_us: float = SHORT_US
    cold: bool = False  #: Flush the cache before each run
    incumbent: float | None = None
    """The best ratio (baseline / candidate) so far; a candidate clearly behind it is dropped early."""
    noise_limit: float = 0.35  #: Robust standard deviation of the log ratios above which the pair says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What came of warming up."""

    secs: float
    steady: bool | None  #: Whether the clock stood still at the end; None where the device cannot say


def warm_up(run: Callable[[], None], clock_mhz: Callable[[], float | None], least: int, most_secs: float) -> WarmUp:
    """Run until the device's clock is steady, at least `least` times, and for `most_secs` if it never is."""
    readings: deque[float] = deque(maxlen=READINGS)
    begun = time.monotonic()
    done = 0
    while True:
        run()
        done += 1
        clock = clock_mhz()
        if clock is not None:
            readings.append(clock)
        spent = time.monotonic() - begun
        steady = None if clock is None else is_steady(readings)
        if done >= least and (steady is not False or spent > most_secs):
            return WarmUp(secs=spent, steady=steady)


def is_steady(readings: Sequence[float]) -> bool:
    return len(readings) == READINGS and max(readings) <= (1 + STEADY) * min(readings)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the median, by order statistics: it holds whatever the values' distribution.

    Infinite for fewer than six values, of which not even the extremes make such an interval."""
    rank = _rank(len(values))
    if rank == 0:
        return math.inf
    ordered = sorted(values)
    return (ordered[len(values) - rank] - ordered[rank - 1]) / 2


@functools.cache
def _rank(count: int) -> int:
    """The k for which the k-th least and the k-th largest of so many values hold the median between them; 0 for
    none."""
    outside, rank = 0.0, 0
    while rank < count:
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        rank += 1
    return rank


Take: TypeAlias = Callable[[Loaded, int, bool], float]
"""(program, runs, whether the cache is flushed before each): one sample, from buffers as they are at first; in us."""


def _take(loaded: Loaded, repeats: int, cold: bool) -> float:
    loaded.restore()
    return loaded.sample_us(repeats, cold=cold)


def sample_pair(
    executor: Executor, candidate: Loaded, baseline: Loaded | None, plan: Sampling, take: Take = _take
) -> Measurement:
    """Sample a candidate against a baseline (or alone, where `baseline` is None).

    Raises ExecutionError; `too_noisy` when the samples scatter beyond `plan.noise_limit`."""
    programs = [candidate] if baseline is None else [candidate, baseline]
    clocks = [each.clock for each in programs]
    try:
        return _sampled(executor, programs, plan, take)
    finally:  # the baseline is loaded once for many candidates, and the next one may need no wall clock
        for each, clock in zip(programs, clocks, strict=True):
            each.clock = clock


def _sampled(executor: Executor, programs: Sequence[Loaded], plan: Sampling, take: Take) -> Measurement:
    paired = len(programs) == 2
    clock = _common_clock(programs)
    failures = sum(each.gate_failures for each in programs)
    runs, warmed = _warmed_up(executor, programs, plan, take)
    before = executor.state()
    samples: list[list[float]] = [[] for _ in programs]
    retries = 0
    deadline = time.monotonic() + plan.budget_secs
    dropped = False
    for done in range(1, plan.pairs + 1):
        for index in range(len(programs)) if done % 2 else reversed(range(len(programs))):
            span_us, again = _sample(programs[index], runs, plan, take)
            samples[index].append(span_us)
            retries += again
        if paired and _behind(samples[0], samples[1], plan.incumbent):
            dropped = True
            break
        if done % 2 or done < plan.least_pairs:  # pairs of one order more than of the other would be partial to drift
            continue
        if time.monotonic() > deadline or half_width(_logs(samples)) <= plan.precision:
            break
    after = executor.state()
    if paired and not dropped and (reason := too_noisy(samples[0], samples[1], plan.noise_limit)):
        raise ExecutionError(Outcome.TOO_NOISY, reason)
    width = half_width(_logs(samples))
    effort = Effort(
        runs=runs,
        warm_up_secs=warmed.secs,
        steady=warmed.steady,
        half_width=width if math.isfinite(width) else None,
        gate_failures=sum(each.gate_failures for each in programs) - failures,
        retries=retries,
    )
    return Measurement(
        span_us=tuple(samples[0]),
        baseline_us=tuple(samples[1]) if paired else (),
        clock=clock,
        cache="cold" if plan.cold else "warm",
        purpose=plan.purpose,
        before=before,
        after=_with_drift(before, after),
        dropped=dropped,
        effort=effort,
    )


def _logs(samples: Sequence[Sequence[float]]) -> list[float]:
    """Log ratios of the pairs; log spans of a program alone."""
    if len(samples) == 1:
        return [math.log(each) for each in samples[0]]
    return [math.log(b / a) for a, b in zip(*samples, strict=True)]


def _common_clock(programs: Sequence[Loaded]) -> str:
    """One clock for both of a pair: the wall's, as soon as one of them has host work in its span."""
    if any(each.clock == "wall" for each in programs):
        for each in programs:
            each.clock = "wall"
    return programs[0].clock


def _warmed_up(executor: Executor, programs: Sequence[Loaded], plan: Sampling, take: Take) -> tuple[int, WarmUp]:
    """Warm the programs up; how many runs a sample should hold. The same for both of a pair: what a sample costs beside
    its runs would else be shared out among more runs on one side, and look like a gain."""
    least_us = [math.inf for _ in programs]

    def run() -> None:
        for index, loaded in enumerate(programs):
            least_us[index] = min(least_us[index], take(loaded, 1, plan.cold))

    warmed = warm_up(run, executor.clock_mhz, plan.warmups, plan.warm_up_secs)
    return min(_MOST_RUNS, max(math.ceil(5 * plan.short_us / max(each, 0.01)) for each in least_us)), warmed


def _sample(loaded: Loaded, runs: int, plan: Sampling, take: Take) -> tuple[float, int]:
    """Microseconds, and how often the sample had to be taken again."""
    for again in range(_ATTEMPTS):
        span_us = take(loaded, runs, plan.cold)
        if span_us > 0:
            return span_us, again
    raise ExecutionError(Outcome.TOO_NOISY, f"a sample of {loaded.program.name} took no time that the clock can tell")


def _behind(candidate: Sequence[float], baseline: Sequence[float], incumbent: float | None) -> bool:
    """Whether the pairs so far place the candidate clearly behind the best so far."""
    if incumbent is None:
        return False
    ratio = median(tuple(b / a for a, b in zip(candidate, baseline, strict=True)))
    return any(len(candidate) == pairs and ratio * factor < incumbent for pairs, factor in _DROP_RULES)


def too_noisy(candidate: Sequence[float], baseline: Sequence[float], limit: float) -> str:
    """Why pairs that scatter beyond a robust standard deviation of their log ratios say nothing; empty when they do."""
    logs = [math.log(b / a) for a, b in zip(candidate, baseline, strict=True)]
    middle = median(tuple(logs))
    scatter = 1.4826 * median(tuple(abs(each - middle) for each in logs))
    return f"the pairs scatter by {100 * scatter:.0f} % (at most {100 * limit:.0f} %)" if scatter > limit else ""


def _with_drift(before: DeviceState, after: DeviceState) -> DeviceState:
    """A clock that changed by over 5 % between two readings counts as throttled, unless the driver names the power
    limit alone."""
    if not before.sm_mhz or not after.sm_mhz or (_words(after) and _words(after) <= _STEADY):
        return after
    least, most = sorted((before.sm_mhz, after.sm_mhz))
    changed = "clock_fell" if after.sm_mhz == least else "clock_rose"
    words = ",".join(filter(None, (after.throttle, changed)))
    return dataclasses.replace(after, throttle=words) if least < (1 - DRIFT) * most else after


def throttled(state: DeviceState, before: DeviceState | None = None) -> str:
    """Why a batch that ended in this state says nothing; empty when it is good. What the driver said `before` the
    batch, too, is how this device is: whether its clock stands still, and is the usual one, is looked at besides."""
    reasons = _words(state) - _STEADY - (_words(before) if before and before.canary_mhz else set())
    return f"the device throttled ({state.throttle})" if reasons else ""


def _words(state: DeviceState) -> set[str]:
    return set(filter(None, state.throttle.split(",")))


class Session:
    """The session's own clock: what it was at, in the median of the batches so far.

    A batch that was slower by over 5 % is off. It counts for the median all the same: a device that stays slower (a
    warmer room, another power limit) is this session's normal soon."""

    def __init__(self) -> None:
        self._clocks: deque[float] = deque(maxlen=31)

    def off(self, state: DeviceState) -> str:
        """Why a batch that ended in this state is not like the others; empty when it is, or when the driver says why:
        at its power limit a board is slower with some programs than with others."""
        clock = state.sm_mhz
        if clock is None:
            return ""
        usual = median(tuple(self._clocks)) if len(self._clocks) >= _LEAST_BATCHES else None
        self._clocks.append(clock)
        slower = usual is not None and clock < (1 - DRIFT) * usual and not _words(state) & _STEADY
        return f"clock {clock:.0f} MHz, usually {usual:.0f}" if slower else ""
