"""When samples may begin, and when there are enough of them."""

import functools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

READINGS = 3  #: So many readings of the clock must agree
STEADY = 0.01  #: As far as this: the largest is at most 1 % above the least
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What came of warming up."""

    secs: float
    steady: bool | None  #: Whether the clock stood still at the end; None where the device cannot say


def warm_up(run: Callable[[], None], clock_mhz: Callable[[], float | None], least: int, most_secs: float) -> WarmUp:
    """Run until the device's clock is steady, at least `least` times, and for `most_secs` if it never is."""
    readings: deque[float] = deque(maxlen=READINGS)
    begun = time.monotonic()
    for done in range(1, 1 << 30):
        run()
        clock = clock_mhz()
        if clock is not None:
            readings.append(clock)
        spent = time.monotonic() - begun
        steady = None if clock is None else is_steady(readings)
        if done >= least and (steady is not False or spent > most_secs):
            return WarmUp(secs=spent, steady=steady)
    raise AssertionError


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
