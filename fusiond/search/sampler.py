"""The sampler: expected improvement over the valid points of a space. The second of two homes of Optuna.

What it asks for is a pure function of its seed, of what was told, and of what is out, in the order of asks:

    start      else the first START asks lie as far as can be from each other, among SPREAD points that are drawn
    donors     where something is known of the same points elsewhere (another device, other sizes), the best by it come
               first, and what it says of each point is a trend of the model, with a weight that is fitted
    model      a Gaussian process over the values of all asks; failures count as the slowest of what was measured, and
               asks that are out are believed to be what the model makes of them
    choice     the point of the pool whose expected improvement, times the chance that it does not fail, is largest

The pool is the space itself up to POOL points, else points drawn uniformly from it and the neighbours of the best. The
lengths of the model are fitted again each time that a fifth more was told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from fusiond.model import Config
from fusiond.search import gaussian
from fusiond.search.donors import FITTED, LEAST_DONATED, MODELLED, Donor, Told
from fusiond.search.features import Feature, features, rough, squared
from fusiond.search.gaussian import Lengths, Process, Reals, Trends
from fusiond.search.points import Levels, Points
from fusiond.search.space import Parameter
from fusiond.search.values import chosen, spreads, standardised
from fusiond.system import blas

SPREAD_OF = "spread"
"""The attribute of an Optuna trial that holds the standard error of its value."""
START = 10
"""Asks before the model is used."""
SPREAD = 1000
POOL = 50_000
"""A space of no more points is its own pool."""
DRAWN = 10_000
"""Points of the pool of a larger one."""
NEAR_BEST, NEIGHBOURS = 3, 400
"""Of so many of the best, up to so many neighbours are looked at beside a pool that was drawn."""
GROWTH = 1.2
"""The lengths are fitted again when the number of told trials has grown by this factor, or by REFIT."""
REFIT = 50
FIRST_FIT = 3
PART = 40
"""Rows that are added to a new process at one ask, of those that it begins with."""
ADDED = 8
"""And of those that were asked for since its fit."""
LAG = 25
"""So many told trials after the last that it knows, or half of those until the next one, a fit is used."""
FAILURE_SHARPNESS = 4.0
"""A failure says as much about its surroundings as a time does at half the prior's lengths."""


_Made: TypeAlias = "tuple[Process, list[int]]"
"""A process, and the asks that are its rows."""


class PointSampler(optuna.samplers.BaseSampler):
    """See the module. One for each study: it keeps what it has calculated, which changes nothing of what it asks."""

    def __init__(
        self,
        points: Points,
        distributions: Mapping[str, BaseDistribution],
        seed: int,
        donors: Sequence[Donor] = (),
    ) -> None:
        self.chosen: Config | None = None
        """What the last ask was for; None when no point is left."""
        self._points = points
        self._distributions = dict(distributions)
        self._seed = seed
        self._features = features(points.parameters)
        self._levels = [_positions(each) for each in points.parameters]
        generator = np.random.default_rng((seed, 0))
        self._whole = points.count is not None and points.count <= POOL
        self._pool = points.all() if self._whole else np.unique(_drawn(points, DRAWN, generator), axis=0)
        self._donors = [Told(each, self._features, points) for each in donors if len(each) >= LEAST_DONATED]
        self._trends = Trends(self._donated, self._pool) if self._donors else None
        self._columns = [np.ascontiguousarray(each) for each in self._pool.T]
        self._taken = np.zeros(len(self._pool), np.bool_)
        self._asks = _Asks()
        self._safety = _Safety(self._features, self._pool)
        self._models = [_Model(each, self._pool, self._trends) for each in (self._features, rough(self._features))]

    # --- Optuna's interface ---

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if "fixed_params" in trial.system_attrs:  # somebody else chose
            return {}
        self._look(study.get_trials(deepcopy=False)[: trial.number])
        with blas.one_thread():
            point = self._choose()
        self.chosen = None if point is None else self._points.config(point)
        return {name: value for name, value in (self.chosen or {}).items() if name in search_space}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name} is part of what is chosen")

    # --- what is known ---

    def _look(self, trials: Sequence[FrozenTrial]) -> None:
        """Take in what was asked and told since the last time."""
        for trial in trials[self._asks.seen :]:
            row = self._row(trial.params)
            self._taken[self._found(row)] = True
            self._asks.add(trial.number, row)
        for index in list(self._asks.out):
            trial = trials[self._asks.numbers[index]]
            if trial.state is not TrialState.RUNNING:
                value = trial.value if trial.state is TrialState.COMPLETE else None
                self._asks.tell(index, value, trial.user_attrs.get(SPREAD_OF, 0.0))
                self._safety.tell(self._asks.rows[index], value is not None)

    def _row(self, params: Mapping[str, Any]) -> Levels:
        levels = [
            where[type(params[name]), params[name]] if name in params else -1
            for name, where in zip((each.name for each in self._points.parameters), self._levels, strict=True)
        ]
        return np.array(levels, np.int16)

    def _found(self, row: Levels) -> NDArray[np.intp]:
        """Where a row is in the pool: one place, or none."""
        left = np.flatnonzero(self._columns[0] == row[0]) if self._columns else np.arange(len(self._pool))
        for column, level in zip(self._columns[1:], row[1:], strict=True):
            left = left[column[left] == level]
        return left

    # --- choosing ---

    def _choose(self) -> Levels | None:
        asks = self._asks
        generator = np.random.default_rng((self._seed, 1 + asks.seen))
        measured = int(np.isfinite(asks.values).sum())
        if not len(self._pool):
            return self._untried(generator)
        if measured < 3 and self._trends is not None and asks.seen < START:
            return self._best_elsewhere()
        if measured < 3 or (asks.seen < START and self._trends is None):
            for each in (*self._models, *self._models):
                each.work(asks)
            return self._spread()
        model = self._models[asks.seen % len(self._models)]
        process, values = model.process(asks)
        extra = None if self._whole else self._near(generator)
        mean, deviation = process.expected(process.believed(values), extra)
        self._safety.look()
        any(each.work(asks) for each in self._models)
        best = self._best(mean, deviation, float(np.nanmax(values)), extra)
        if best is None:
            return self._untried(generator)
        own: Levels = self._pool[best] if extra is None or best < len(self._pool) else extra[best - len(self._pool)]
        return own

    def _best(self, mean: Reals, deviation: Reals, so_far: float, extra: Levels | None) -> int | None:
        """Where the expected improvement times the chance not to fail is largest, of what was not asked for."""
        above = (mean - so_far) / deviation
        above[: len(self._taken)][self._taken] = -np.inf
        likely = int(np.argmax(above))
        if above[likely] == -np.inf:
            return None
        log_chance = np.log(self._safety.chance(extra)) if self._safety.failures else np.zeros(len(above))
        least = gaussian.log_improvement(mean[likely, None], deviation[likely, None], so_far)[0] + log_chance[likely]
        some = gaussian.promising(above, float(least), float(deviation.max()))
        score = gaussian.log_improvement(mean[some], deviation[some], so_far) + log_chance[some]
        return int(some[np.argmax(score)])

    def _donated(self, points: Levels) -> Reals:
        return np.stack([each.at(points) for each in self._donors], axis=1)

    def _best_elsewhere(self) -> Levels | None:
        """The untried point of the pool that is best on the average of what is known elsewhere."""
        assert self._trends is not None
        mean = self._trends.pool.mean(axis=1)
        mean[self._taken] = -np.inf
        best: Levels = self._pool[int(np.argmax(mean))]
        return best

    def _spread(self) -> Levels | None:
        """Of points that are drawn once for all, the one that is farthest from its nearest ask."""
        generator = np.random.default_rng((self._seed, 1))
        some = self._pool[generator.permutation(len(self._pool))[:SPREAD]]
        if not self._asks.rows:
            found: Levels = some[0]
            return found
        rows = np.stack(self._asks.rows)
        apart = sum((squared(each, some, rows) for each in self._features), start=np.zeros((len(some), len(rows))))
        nearest = apart.min(axis=1)
        farthest: Levels = some[int(np.argmax(nearest))]
        return farthest if nearest.max() > 0 else self._untried(generator)

    def _untried(self, generator: np.random.Generator) -> Levels | None:
        """A point that was not asked for; None where none is found."""
        left = np.flatnonzero(~self._taken)
        if len(left):
            found: Levels = self._pool[generator.choice(left)]
            return found
        if self._whole:
            return None
        known = {each.tobytes() for each in self._asks.rows}
        drawn = _drawn(self._points, SPREAD, generator)
        return next((each for each in drawn if each.tobytes() not in known), None)

    def _near(self, generator: np.random.Generator) -> Levels:
        """Neighbours of the best that were not asked for."""
        values = np.array(self._asks.values)
        order = np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")[:NEAR_BEST]
        rows = [self._points.neighbours(self._asks.rows[each], generator, NEIGHBOURS) for each in order]
        known = {each.tobytes() for each in self._asks.rows}
        found = [each for each in np.unique(np.concatenate(rows), axis=0) if each.tobytes() not in known]
        return np.array(found, np.int16).reshape(len(found), len(self._points.parameters))


class _Model:
    """The Gaussian process over the asks, with lengths that are fitted again as their number grows.

    A fit to the first `at` that were told is used from `at + _lag(at)` on. In between it is worked at, a part at each
    ask, so that no ask pays for all of it. Which fit is used depends on the number of told alone.
    """

    def __init__(self, features: Sequence[Feature], pool: Levels, trends: Trends | None) -> None:
        self._features = features
        self._pool = pool
        self._trends = trends
        self._lengths: Lengths | None = None
        self._chained = 0
        self._used: _Fit | None = None
        self._next: _Fit | None = None

    def process(self, asks: _Asks) -> tuple[Process, Reals]:
        """With all asks that belong to it, and what they are worth, standardised; NaN for those that are out."""
        told = asks.told
        at = _used_fit(len(told))
        if self._used is None or at != self._used.at:
            self._used, self._next = self._begun(asks, told, at), None
        while self._used.go_on(asks):
            pass
        return self._used.process, asks.standardised(self._used.kept)

    def work(self, asks: _Asks) -> bool:
        """Do a part of the fit that is used next, where what it needs is told; whether there was one to do."""
        told = asks.told
        at = _last_fit(len(told))
        if len(told) < FIRST_FIT or (self._used is not None and at <= self._used.at):
            return False
        self._next = self._begun(asks, told, at)
        return self._next.behind(asks) >= ADDED and self._next.go_on(asks)

    def _begun(self, asks: _Asks, told: Sequence[int], at: int) -> _Fit:
        if self._next is not None and self._next.at == at:
            return self._next
        return _Fit(at, told[at - 1], self._parts(asks, told, at))

    def _parts(self, asks: _Asks, told: Sequence[int], at: int) -> Iterator[_Made | None]:
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
        process = Process(self._features, self._pool, lengths, rows[:0], self._trends, room=len(rows), spread=usual)
        for begin in range(0, len(rows), PART):
            yield None
            process.extend(rows[begin : begin + PART], errors[begin : begin + PART])
        yield process, kept

    def _fit(self, asks: _Asks, told: Sequence[int]) -> Generator[None, None, Lengths]:
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

    def go_on(self, asks: _Asks) -> bool:
        """Do the next part; False where there is nothing to do. Rows that were asked for since enter one by one, so
        that its figures are the same to the last bit however its parts fell to the asks."""
        if self._made is None:
            self._made = next(self._parts)
            return True
        first = asks.seen - self.behind(asks)
        for index in range(first, min(first + ADDED, asks.seen)):
            self.process.add(asks.rows[index])
            self.kept.append(index)
        return first < asks.seen

    def behind(self, asks: _Asks) -> int:
        """How many asks are to be rows and are not."""
        return asks.seen if self._made is None else asks.seen - 1 - max(self.kept[-1], self._through)


class _Asks:
    """All that was asked, in order; what came of it, as far as it is told."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.rows: list[Levels] = []
        self.values: list[float] = []
        """NaN for what failed and what is out."""
        self.failed: list[bool] = []
        self.errors: list[float] = []
        """Standard errors of the values."""
        self.out: dict[int, None] = {}

    @property
    def seen(self) -> int:
        return len(self.rows)

    @property
    def told(self) -> list[int]:
        """Those that are not out, in order."""
        return [each for each in range(self.seen) if each not in self.out]

    def standardised(self, indices: Sequence[int]) -> Reals:
        """Of these, see `fusiond.search.values`."""
        return standardised(np.array(self.values)[indices], np.array(self.failed)[indices])

    def add(self, number: int, row: Levels) -> None:
        self.numbers.append(number)
        self.rows.append(row)
        self.values.append(np.nan)
        self.failed.append(False)
        self.errors.append(0.0)
        self.out[self.seen - 1] = None

    def spreads(self, indices: Sequence[int]) -> Reals:
        """Of what is measured of these, see `fusiond.search.values`."""
        these = (np.array(each)[indices] for each in (self.values, self.failed, self.errors))
        return spreads(*these)

    def tell(self, index: int, value: float | None, error: float = 0.0) -> None:
        del self.out[index]
        self.errors[index] = error
        self.failed[index] = value is None
        self.values[index] = np.nan if value is None else value


class _Safety:
    """How likely a point is not to fail: what became of those around it, weighted by their correlation with it."""

    def __init__(self, features: Sequence[Feature], pool: Levels) -> None:
        weights = gaussian.prior_lengths(features).weights * FAILURE_SHARPNESS
        self._near = gaussian.Correlations(features, weights, pool)
        self.failures = 0
        self._told: list[tuple[Levels, bool]] = []
        self._summed = 0
        self._sums = np.zeros((2, len(pool)))

    def tell(self, row: Levels, sound: bool) -> None:
        self._told.append((row, sound))
        self.failures += not sound

    def look(self) -> None:
        """Take in what was told, one after the other, so that the sums are the same after an interruption. At each ask,
        failures or none: the first of them must not pay for all that was told before."""
        for row, sound in self._told[self._summed :]:
            near = self._near.to_pool(row[None, :])[0]
            self._sums[0] += near
            if sound:
                self._sums[1] += near
        self._summed = len(self._told)

    def chance(self, extra: Levels | None) -> Reals:
        """At each point of the pool, then of `extra`. One sound trial is taken for granted everywhere."""
        self.look()
        sums = self._sums
        if extra is not None and len(extra):
            near = self._near.between(np.stack([row for row, _ in self._told]), extra)
            sound = np.array([each for _, each in self._told], float)
            sums = np.concatenate([sums, [near.sum(axis=0), sound @ near]], axis=1)
        found: Reals = (sums[1] + 1) / (sums[0] + 1)
        return found


def _drawn(points: Points, many: int, generator: np.random.Generator) -> Levels:
    """So many points, or fewer where next to nothing that is drawn is one."""
    while many:
        try:
            return points.draw(many, generator)
        except ValueError:
            many //= 10
    return np.empty((0, len(points.parameters)), np.int16)


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
    return FIRST_FIT if at < FIRST_FIT else max(at + 1, min(int(at * GROWTH), at + REFIT))


def _positions(parameter: Parameter) -> dict[tuple[type, Any], int]:
    return {(type(value), value): k for k, value in enumerate(parameter.values)}
