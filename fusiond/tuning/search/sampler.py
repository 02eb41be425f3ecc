"""The sampler: expected improvement over the valid points of a space.

What it asks for is a pure function of its seed, of what was told, and of what is out, in the order of asks:

    start      else the first START asks lie as far as can be from each other, among SPREAD points that are drawn
    donors     where something is known of the same points elsewhere (another device, other sizes), the best by it come
               first, and what it says of each point is a trend of the model, with a weight that is fitted
    columns    facts of points (registers, occupancy, spills) are trends, too, and say nothing of what is fast
    model      a Gaussian process over the values of all asks; failures count as the slowest of what was measured, and
               asks that are out are believed to be what the model makes of them
    choice     the point of the pool whose expected improvement, times the chance that it does not fail, is largest
    move       where the last STALL trials brought nothing better, one ask in MOVES is the best neighbour of the best

The pool is the space itself up to POOL points, else points drawn uniformly from it and the neighbours of the best. The
lengths of the model are fitted again each time that a fifth more was told.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fusiond.model.nouns import Config
from fusiond.tuning.search import gaussian
from fusiond.tuning.search.asks import Asks
from fusiond.tuning.search.donors import LEAST_DONATED, Donor, DonorTrials
from fusiond.tuning.search.features import Feature, features, rough, squared
from fusiond.tuning.search.gaussian import Reals, Trends
from fusiond.tuning.search.models import Model
from fusiond.tuning.search.points import Levels, Points, one_apart

START = 10  #: Asks before the model is used
SPREAD = 1000
ABOUT = 0.2  #: What is about as good elsewhere, in standard deviations of what was found there
POOL = 50_000  #: A space of no more points is its own pool
DRAWN = 10_000  #: Points of the pool of a larger one
NEAR_BEST, NEIGHBOURS = 3, 400
"""Of so many of the best, up to so many neighbours are looked at beside a pool that was drawn."""
STALL, MOVES = 30, 5
"""Where so many trials that were told brought nothing better, one ask in MOVES is the best neighbour of the best."""
FAILURE_SHARPNESS = 4.0  #: A failure says as much about its surroundings as a time does at half the prior's lengths


class Safety:
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

    def chance(self, extra: Levels | None) -> Reals:
        """At each point of the pool, then of `extra`. One sound trial is taken for granted everywhere."""
        for row, sound in self._told[self._summed :]:  # one after the other: the same sums after an interruption
            near = self._near.to_pool(row[None, :])[0]
            self._sums[0] += near
            if sound:
                self._sums[1] += near
        self._summed = len(self._told)
        sums = self._sums
        if extra is not None and len(extra):
            nearby = self._near.between(np.stack([row for row, _ in self._told]), extra)
            sounds = np.array([each for _, each in self._told], float)
            sums = np.concatenate([sums, [nearby.sum(axis=0), sounds @ nearby]], axis=1)
        found: Reals = (sums[1] + 1) / (sums[0] + 1)
        return found


@functools.cache
def _products() -> ThreadpoolController:
    """OpenBLAS splits even products of a hundred rows over all cores, which on busy cores costs ten times what it
    saves, and takes those cores from whatever compiles or is measured."""
    return ThreadpoolController()


class PointSampler:
    """See the module. One for each study: it keeps what it has calculated, which changes nothing of what it asks."""

    def __init__(self, points: Points, seed: int, donors: Sequence[Donor] = (), columns: Sequence[Donor] = ()) -> None:
        """`donors` and `columns`: as `fusiond.tuning.search.study.Study` has them."""
        self._points = points
        self._seed = seed
        self._features = features(points.parameters)
        generator = np.random.default_rng((seed, 0))
        self._whole = points.count is not None and points.count <= POOL
        self._pool = points.all() if self._whole else np.unique(_drawn(points, DRAWN, generator), axis=0)
        guesses, facts = (
            [DonorTrials(each, self._features, points, clip=clip) for each in known if len(each) >= LEAST_DONATED]
            for known, clip in ((donors, True), (columns, False))
        )
        self._guesses = len(guesses)  #: So many of what is known, the first ones, say what is fast
        self._known = [*guesses, *facts]
        self._trends = Trends(self._at, self._pool) if self._known else None
        self._taken = np.zeros(len(self._pool), np.bool_)
        self._asks = Asks()
        self._news: dict[int, tuple[float | None, float]] = {}
        """Ask -> its value (None: it failed) and that one's error, since the last choice."""
        self._safety = Safety(self._features, self._pool)
        self._models = [Model(each, self._pool, self._trends) for each in (self._features, rough(self._features))]

    def add(self, config: Config) -> int:
        """A config is asked for, whoever chose it; gives the number of that ask."""
        row = self._points.levels(config)
        self._taken |= (self._pool == row).all(axis=1)
        self._asks.add(row)
        return self._asks.seen - 1

    def tell(self, ask: int, value: float | None, error: float) -> None:
        """What became of an ask: the logarithm of how fast it is, with its standard error; None where it failed."""
        self._news[ask] = value, error

    def choose(self) -> Config | None:
        """The next one to ask for; None when no point is left."""
        for index, (value, error) in sorted(self._news.items()):
            self._asks.tell(index, value, error)
            self._safety.tell(self._asks.rows[index], value is not None)
        self._news.clear()
        with _products().limit(limits=1, user_api="blas"):
            point = self._choose()
        return None if point is None else self._points.config(point)

    def _choose(self) -> Levels | None:
        asks = self._asks
        generator = np.random.default_rng((self._seed, 1 + asks.seen))
        measured = int(np.isfinite(asks.values).sum())
        if not len(self._pool):
            return self._untried(generator)
        if measured < 3 and self._guesses and asks.seen < START:
            return self._best_elsewhere()
        if measured < 3 or (asks.seen < START and not self._guesses):
            return self._spread()
        model = self._models[asks.seen % len(self._models)]
        process, values = model.process(asks)
        extra = None if self._whole else self._near(generator)
        mean, deviation = process.expected(process.believed(values), extra)
        score = self._score(mean, deviation, float(np.nanmax(values)), extra)
        best = int(np.argmax(score))
        if self._stalled() and (beside := self._beside(extra)).any():
            best = int(np.argmax(np.where(beside, score, -np.inf)))
        if score[best] == -np.inf:
            return self._untried(generator)
        own: Levels = self._pool[best] if extra is None or best < len(self._pool) else extra[best - len(self._pool)]
        return own

    def _stalled(self) -> bool:
        """Whether this ask is a move: one in MOVES, where the last STALL that were told brought nothing better."""
        told = self._asks.told
        values = np.array(self._asks.values)[told]
        return len(told) - 1 - int(np.nanargmax(values)) >= STALL and self._asks.seen % MOVES == 0

    def _best_rows(self) -> list[Levels]:
        values = np.array(self._asks.values)
        order = np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")[:NEAR_BEST]
        return [self._asks.rows[each] for each in order]

    def _beside(self, extra: Levels | None) -> NDArray[np.bool_]:
        """Which points of the pool, then of `extra`, are one parameter away from the best that still has such ones that
        were not asked for; none of them where the best few have none."""
        found = np.zeros(len(self._pool) + (0 if extra is None else len(extra)), np.bool_)
        for row in self._best_rows():
            found = one_apart(self._pool, row) & ~self._taken
            if extra is not None:
                found = np.append(found, one_apart(extra, row))
            if found.any():
                break
        return found

    def _score(self, mean: Reals, deviation: Reals, so_far: float, extra: Levels | None) -> Reals:
        """The logarithm of the expected improvement times the chance not to fail; -inf for what was asked for."""
        score = gaussian.log_improvement(mean, deviation, so_far)
        if self._safety.failures:
            score += np.log(self._safety.chance(extra))
        score[: len(self._taken)][self._taken] = -np.inf
        return score

    def _at(self, points: Levels) -> Reals:
        return np.stack([each.at(points) for each in self._known], axis=1)

    def _best_elsewhere(self) -> Levels | None:
        """The point of the pool that is best on the average of what is known elsewhere; then, of the untried ones that
        are about as good as the best of them, the one that is farthest from its nearest ask."""
        assert self._trends is not None
        mean = self._trends.pool[:, : self._guesses].mean(axis=1)
        likely = int(np.argmax(mean))
        if not self._taken[likely]:
            best: Levels = self._pool[likely]
            return best
        mean[self._taken] = -np.inf
        order = np.argsort(-mean, kind="stable")[:SPREAD]
        some = self._pool[order[mean[order] >= mean[order[0]] - ABOUT]]
        farthest: Levels = some[int(np.argmax(self._apart(some)))]
        return farthest

    def _apart(self, some: Levels) -> Reals:
        """How far points are from the nearest of what was asked for, squared."""
        rows = np.stack(self._asks.rows)
        apart = sum((squared(each, some, rows) for each in self._features), start=np.zeros((len(some), len(rows))))
        nearest: Reals = apart.min(axis=1)
        return nearest

    def _spread(self) -> Levels | None:
        """Of points that are drawn once for all, the one that is farthest from its nearest ask."""
        generator = np.random.default_rng((self._seed, 1))
        some = self._pool[generator.permutation(len(self._pool))[:SPREAD]]
        if not self._asks.rows:
            found: Levels = some[0]
            return found
        nearest = self._apart(some)
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
        rows = [self._points.neighbours(each, generator, NEIGHBOURS) for each in self._best_rows()]
        known = {each.tobytes() for each in self._asks.rows}
        found = [each for each in np.unique(np.concatenate(rows), axis=0) if each.tobytes() not in known]
        return np.array(found, np.int16).reshape(len(found), len(self._points.parameters))


def _drawn(points: Points, many: int, generator: np.random.Generator) -> Levels:
    """So many points, or fewer where next to nothing that is drawn is one."""
    while many:
        try:
            return points.draw(many, generator)
        except ValueError:
            many //= 10
    return np.empty((0, len(points.parameters)), np.int16)
