"""Paired sampling: candidate and baseline take turns in being first (A B B A A B ...), so that drift, and whatever the
first of two leaves behind, hits both alike.

Numbers behind the defaults, from public raw samples of real GPUs: the first samples after a pause are 2 to 14 % off,
so at least three warm-ups; dropping a candidate after 2 pairs when it is 10 % behind the best so far, after 5 when
it is 3 % behind, saves over a third of the launches and loses next to nothing (docs/measuring.md).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fusiond.devices.base import ExecutionError, Executor, Loaded
from fusiond.model import DeviceState, Measurement, Outcome, Purpose, median

SHORT_US = 20.0
"""Spans below this hold several runs: one event pair is not finer than about a microsecond."""
_DROP_RULES = ((2, 1.10), (5, 1.03))
DRIFT = 0.05
"""How much slower a device may become before what was measured on it is thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one pair of Programs."""

    purpose: Purpose
    warmups: int = 3
    pairs: int = 10
    least_pairs: int = 5
    budget_secs: float = 5.0
    """After `least_pairs`, stop when this much time has gone into samples."""
    cold: bool = False
    """Flush the cache before each sample."""
    incumbent: float | None = None
    """The best ratio (baseline / candidate) so far; a candidate clearly behind it is dropped early."""
    noise_limit: float = 0.35
    """Robust standard deviation of the log ratios above which the pair says nothing."""


def sample_pair(executor: Executor, candidate: Loaded, baseline: Loaded | None, plan: Sampling) -> Measurement:
    """Sample a candidate against a baseline (or alone, where `baseline` is None).

    Raises ExecutionError; `too_noisy` when the samples scatter beyond `plan.noise_limit`.
    """
    programs = [candidate] if baseline is None else [candidate, baseline]
    clocks = [each.clock for each in programs]
    try:
        return _sampled(executor, programs, plan)
    finally:  # the baseline is loaded once for many candidates, and the next one may need no wall clock
        for each, clock in zip(programs, clocks, strict=True):
            each.clock = clock


def _sampled(executor: Executor, programs: Sequence[Loaded], plan: Sampling) -> Measurement:
    paired = len(programs) == 2
    clock = _common_clock(programs)
    repeats = _repeats(programs, plan)
    before = executor.state()  # the warm-ups have brought the clock up
    samples: list[list[float]] = [[] for _ in programs]
    deadline = time.monotonic() + plan.budget_secs
    dropped = False
    for done in range(1, plan.pairs + 1):
        for index in range(len(programs)) if done % 2 else reversed(range(len(programs))):
            samples[index].append(_sample(executor, programs[index], repeats, plan))
        if paired and _behind(samples[0], samples[1], plan.incumbent):
            dropped = True
            break
        if done >= plan.least_pairs and time.monotonic() > deadline:
            break
    after = executor.state()
    if paired and not dropped:
        _refuse_noise(samples[0], samples[1], plan.noise_limit)
    return Measurement(
        span_us=tuple(samples[0]),
        baseline_us=tuple(samples[1]) if paired else (),
        clock=clock,
        cache="cold" if plan.cold else "warm",
        purpose=plan.purpose,
        before=before,
        after=_with_drift(before, after),
        dropped=dropped,
    )


def _common_clock(programs: Sequence[Loaded]) -> str:
    """One clock for both of a pair: the wall's, as soon as one of them has host work in its span."""
    if any(each.clock == "wall" for each in programs):
        for each in programs:
            each.clock = "wall"
    return programs[0].clock


def _repeats(programs: Sequence[Loaded], plan: Sampling) -> int:
    """Warm the programs up; how many runs a sample should hold. The same for both of a pair: what a sample costs beside
    its runs would else be shared out among more runs on one side, and look like a gain."""
    wanted = [_warm_up(each, plan) for each in programs]
    return 1 if any(_needs_restoring(each) for each in programs) or plan.cold else max(wanted)


def _warm_up(loaded: Loaded, plan: Sampling) -> int:
    """Run a program until it is warm; how many of its runs make a sample that the clock can tell."""
    spans = []
    for _ in range(plan.warmups):
        loaded.restore()
        spans.append(loaded.sample_us(1))
    if min(spans) >= SHORT_US:
        return 1
    return min(1000, math.ceil(SHORT_US * 5 / max(min(spans), 0.01)))


def _needs_restoring(loaded: Loaded) -> bool:
    """Whether every run must begin from the pristine copy, so that a sample can hold one run only."""
    return any(each.role.value == "inout" and each.reset == "each_run" for each in loaded.program.buffers)


def _sample(executor: Executor, loaded: Loaded, repeats: int, plan: Sampling) -> float:
    loaded.restore()
    if plan.cold:
        executor.flush_cache()
    span_us = loaded.sample_us(repeats)
    if span_us <= 0:
        raise ExecutionError(
            Outcome.TOO_NOISY, f"a sample of {loaded.program.name} took no time that the clock can tell"
        )
    return span_us


def _behind(candidate: Sequence[float], baseline: Sequence[float], incumbent: float | None) -> bool:
    """Whether the pairs so far place the candidate clearly behind the best so far."""
    if incumbent is None:
        return False
    ratio = median(tuple(b / a for a, b in zip(candidate, baseline, strict=True)))
    return any(len(candidate) == pairs and ratio * factor < incumbent for pairs, factor in _DROP_RULES)


def _refuse_noise(candidate: Sequence[float], baseline: Sequence[float], limit: float) -> None:
    reason = too_noisy(candidate, baseline, limit)
    if reason:
        raise ExecutionError(Outcome.TOO_NOISY, reason)


def too_noisy(candidate: Sequence[float], baseline: Sequence[float], limit: float) -> str:
    """Why pairs that scatter beyond a robust standard deviation of their log ratios say nothing; empty when they do."""
    logs = [math.log(b / a) for a, b in zip(candidate, baseline, strict=True)]
    middle = median(tuple(logs))
    scatter = 1.4826 * median(tuple(abs(each - middle) for each in logs))
    return f"the pairs scatter by {100 * scatter:.0f} % (at most {100 * limit:.0f} %)" if scatter > limit else ""


def _with_drift(before: DeviceState, after: DeviceState) -> DeviceState:
    """A clock that fell by over 5 % between two readings counts as throttled, whatever the driver says."""
    if not after.throttle and before.sm_mhz and after.sm_mhz and after.sm_mhz < (1 - DRIFT) * before.sm_mhz:
        return dataclasses.replace(after, throttle="clock_fell")
    return after


class Session:
    """The session's own clock: what it was at, in the median of the batches so far.

    A batch that was slower by over 5 % is off. It counts for the median all the same: a device that stays slower (a
    warmer room, another power limit) is this session's normal soon.
    """

    def __init__(self, kept: int = 31, least: int = 5) -> None:
        self._clocks: deque[float] = deque(maxlen=kept)
        self._least = least

    def off(self, state: DeviceState) -> str:
        """Why a batch that ended in this state is not like the others; empty when it is."""
        clock = state.sm_mhz
        if clock is None:
            return ""
        usual = median(tuple(self._clocks)) if len(self._clocks) >= self._least else None
        self._clocks.append(clock)
        return f"clock {clock:.0f} MHz, usually {usual:.0f}" if usual and clock < (1 - DRIFT) * usual else ""
