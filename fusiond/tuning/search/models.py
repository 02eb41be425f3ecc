"""The model of a search: a Gaussian process over its asks, whose lengths are fitted again as their number grows."""

from collections.abc import Sequence

import numpy as np

from fusiond.tuning.search import gaussian
from fusiond.tuning.search.asks import Asks, chosen
from fusiond.tuning.search.donors import FITTED, MODELLED
from fusiond.tuning.search.features import Feature
from fusiond.tuning.search.gaussian import Lengths, Process, Reals, Trends
from fusiond.tuning.search.points import Levels

GROWTH, LATER = 1.2, 1.4
"""The lengths are fitted again when the number of told trials has grown by this factor (by the second one from LATE
trials on, when they change little and a fit costs much), or by REFIT."""
LATE, REFIT = 75, 75
FIRST_FIT = 3
PART = 30  #: Rows that are added to a new process at a time
LAG = 35
"""So many told trials after the last that it knows, or half of those until the next one, a fit is used: it is of trials
that are all told by then, in whatever order."""


class Model:
    """The Gaussian process over the asks, with lengths that are fitted again as their number grows. Which fit is used
    depends on the number of told alone."""

    def __init__(self, features: Sequence[Feature], pool: Levels, trends: Trends | None) -> None:
        self._features = features
        self._pool = pool
        self._trends = trends
        self._lengths: Lengths | None = None
        self._chained = 0
        self._at = 0
        self._made: tuple[Process, list[int]] | None = None  #: A process, and the asks that are its rows

    def process(self, asks: Asks) -> tuple[Process, Reals]:
        """With all asks that belong to it, and what they are worth, standardised; NaN for those that are out."""
        at = _used_fit(len(asks.told))
        if self._made is None or at != self._at:
            self._at, self._made = at, self._fitted(asks, asks.told[:at])
        process, rows = self._made
        # One by one, so that its figures are the same to the last bit however many there are at an ask.
        for index in range(max(rows[-1], asks.told[at - 1]) + 1, asks.seen):
            process.extend(asks.rows[index][None, :])
            rows.append(index)
        return process, asks.standardised(rows)

    def _fitted(self, asks: Asks, told: Sequence[int]) -> tuple[Process, list[int]]:
        """The process after a fit to all of `told`. Up to MODELLED each fit begins where the last one ended, also after
        an interruption; later ones all begin where that ended, so that few are repeated."""
        at = len(told)
        while self._chained < (following := _next_fit(self._chained)) <= min(at, MODELLED):
            self._lengths = self._fit(asks, told[:following])
            self._chained = following
        if at <= MODELLED:
            assert self._lengths is not None
            lengths, kept = self._lengths, list(range(told[-1] + 1))
        else:
            lengths = self._fit(asks, told)
            kept = [told[k] for k in chosen(asks.standardised(told), MODELLED)]
        rows, errors = np.stack([asks.rows[each] for each in kept]), asks.spreads(kept)
        usual = float(np.median(errors))
        room = len(rows) + _next_fit(at) - at + LAG
        process = Process(self._features, self._pool, lengths, rows[:0], self._trends, room=room, spread=usual)
        for begin in range(0, len(rows), PART):
            process.extend(rows[begin : begin + PART], errors[begin : begin + PART])
        return process, kept

    def _fit(self, asks: Asks, told: Sequence[int]) -> Lengths:
        values = asks.standardised(told)
        fitted = chosen(values, FITTED)
        those = np.stack([asks.rows[told[k]] for k in fitted])
        shared = np.diag(asks.spreads(told)[fitted])
        if self._trends is not None:
            shared += self._trends.between(those, those)
        return gaussian.fit(self._features, those, values[fitted], self._lengths, shared)


def _used_fit(told: int) -> int:
    """The last fit that is used when so many were told."""
    at = FIRST_FIT
    while (following := _next_fit(at)) + min(LAG, (_next_fit(following) - following) // 2) <= told:
        at = following
    return at


def _next_fit(at: int) -> int:
    if at < FIRST_FIT:
        return FIRST_FIT
    return max(at + 1, min(int(at * (GROWTH if at < LATE else LATER)), at + REFIT))
