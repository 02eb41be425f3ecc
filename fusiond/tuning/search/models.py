"""The model of a search: a Gaussian process over its asks, whose lengths are fitted again as their number grows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

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
PART = 30  #: Rows that are added to a new process at one ask, of those that it begins with
ADDED = 8  #: And of those that were asked for since its fit
LAG = 35  #: So many told trials after the last that it knows, or half of those until the next one, a fit is used

_Made: TypeAlias = "tuple[Process, list[int]]"  #: A process, and the asks that are its rows


class Model:
    """The Gaussian process over the asks, with lengths that are fitted again as their number grows.

    A fit to the first `at` that were told is used from `at + _lag(at)` on. In between it is worked at, a part at each
    ask, so that no ask pays for all of it. Which fit is used depends on the number of told alone."""

    def __init__(self, features: Sequence[Feature], pool: Levels, trends: Trends | None) -> None:
        self._features = features
        self._pool = pool
        self._trends = trends
        self._lengths: Lengths | None = None
        self._chained = 0
        self._used: _Fit | None = None
        self._next: _Fit | None = None

    def process(self, asks: Asks) -> tuple[Process, Reals]:
        """With all asks that belong to it, and what they are worth, standardised; NaN for those that are out."""
        told = asks.told
        at = _used_fit(len(told))
        if self._used is None or at != self._used.at:
            self._used, self._next = self._begun(asks, told, at), None
        while self._used.go_on(asks):
            pass
        return self._used.process, asks.standardised(self._used.kept)

    def work(self, asks: Asks) -> bool:
        """Do a part of the fit that is used next, where what it needs is told; whether there was one to do."""
        told = asks.told
        at = _last_fit(len(told))
        if len(told) < FIRST_FIT or (self._used is not None and at <= self._used.at):
            return False
        self._next = self._begun(asks, told, at)
        return self._next.behind(asks) >= ADDED and self._next.go_on(asks)

    def _begun(self, asks: Asks, told: Sequence[int], at: int) -> _Fit:
        if self._next is not None and self._next.at == at:
            return self._next
        return _Fit(at, told[at - 1], self._parts(asks, told[:at], at))

    def _parts(self, asks: Asks, told: Sequence[int], at: int) -> Iterator[_Made | None]:
        """Gives None at each pause, and at last the process after a fit to the first `at` that were told. Up to
        MODELLED each fit begins where the last one ended, also after an interruption; later ones all begin where that
        ended, so that few are repeated."""
        while self._chained < (following := _next_fit(self._chained)) <= min(at, MODELLED):
            self._lengths = yield from self._fit(asks, told[:following])
            self._chained = following
        if at <= MODELLED:
            assert self._lengths is not None
            lengths = self._lengths
            kept = list(range(told[at - 1] + 1))
        else:
            lengths = yield from self._fit(asks, told[:at])
            kept = [told[k] for k in chosen(asks.standardised(told[:at]), MODELLED)]
        rows, errors = np.stack([asks.rows[each] for each in kept]), asks.spreads(kept)
        usual = float(np.median(errors))
        room = len(rows) + _next_fit(at) - at + LAG
        process = Process(self._features, self._pool, lengths, rows[:0], self._trends, room=room, spread=usual)
        for begin in range(0, len(rows), PART):
            yield None
            process.extend(rows[begin : begin + PART], errors[begin : begin + PART])
        yield process, kept

    def _fit(self, asks: Asks, told: Sequence[int]) -> Generator[None, None, Lengths]:
        values = asks.standardised(told)
        fitted = chosen(values, FITTED)
        those = np.stack([asks.rows[told[k]] for k in fitted])
        shared = np.diag(asks.spreads(told)[fitted])
        if self._trends is not None:
            shared += self._trends.between(those, those)
        return gaussian.fit_in_parts(self._features, those, values[fitted], self._lengths, shared)


class _Fit:
    """A process with the lengths of one fit, as far as it is made."""

    def __init__(self, at: int, through: int, parts: Iterator[_Made | None]) -> None:
        """`parts` gives None until it is done. All asks behind the one numbered `through` are rows."""
        self.at = at
        self._through = through
        self._parts = parts
        self._made: _Made | None = None

    @property
    def process(self) -> Process:
        assert self._made is not None
        return self._made[0]

    @property
    def kept(self) -> list[int]:
        """The asks that are rows of the process, in its order."""
        assert self._made is not None
        return self._made[1]

    def go_on(self, asks: Asks) -> bool:
        """Do the next part; False where there is nothing to do. Rows that were asked for since enter one by one, so
        that its figures are the same to the last bit however its parts fell to the asks."""
        if self._made is None:
            self._made = next(self._parts)
            return True
        first = asks.seen - self.behind(asks)
        for index in range(first, min(first + ADDED, asks.seen)):
            self.process.extend(asks.rows[index][None, :])
            self.kept.append(index)
        return first < asks.seen

    def behind(self, asks: Asks) -> int:
        """How many asks are to be rows and are not."""
        return asks.seen if self._made is None else asks.seen - 1 - max(self.kept[-1], self._through)


def _last_fit(told: int) -> int:
    """The last number of told trials, up to this one, at which lengths are fitted."""
    at = FIRST_FIT
    while (following := _next_fit(at)) <= told:
        at = following
    return at


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
