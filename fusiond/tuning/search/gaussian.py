"""A Gaussian process over a fixed pool of points, to which rows are added one by one.

Its correlation is Matern 5/2 with a length of its own for each feature (automatic relevance), its lengths and its noise
are the maximum of the posterior under log-normal priors (Rasmussen and Williams, *Gaussian Processes for Machine
Learning*, sections 2.3 and 5.4), and the signal's variance is that maximum's in closed form. What adding a row costs is
one product over the pool: the factor of the rows and its product with the pool are kept, and neither depends on what
the rows are worth, so that a row is added when its point is chosen and gets its value later.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, special

from fusiond.tuning.search.features import Feature, squared
from fusiond.tuning.search.points import Levels

Reals = NDArray[np.float64]

LENGTH = 0.7  #: The median of a length, in units of sqrt(features): the distance of two corners of the space is 1 then
LENGTH_SPREAD = 1.5
NOISE, NOISE_SPREAD = 1e-3, 1.5
"""Medians and standard deviations of logarithms. The noise is a share of the signal's variance."""
SIGNAL_WEIGHT = 2.0
"""As how many observations the prior of the signal's variance counts, which is that of the standardised values."""
ITERATIONS, RESTART = 30, 15
"""Of a fit from one start, and after how many of them it begins again with no curvature known."""
JITTER = 1e-8
TRUST = 1.0  #: The variance of the weight of what is known of another problem, in units of the signal's
_REACH = 6.0  #: How far from its median the logarithm of a weight may go
_STEP = 64
_GROUP = 2048  #: Combinations of levels of a few columns, whose distances fit into the first cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """What is fitted."""

    weights: Reals  #: 1 / length^2 of each feature
    noise: float


def prior_lengths(features: Sequence[Feature]) -> Lengths:
    """The medians of the priors."""
    several = max(1, len(features))
    return Lengths(weights=np.full(len(features), 1 / (LENGTH**2 * several)), noise=NOISE)


def fit(
    features: Sequence[Feature], rows: Levels, values: Reals, before: Lengths | None = None, shared: Reals | None = None
) -> Lengths:
    """The lengths that explain standardised `values` at `rows` best: always the same for the same arguments. There are
    often two such maxima, one of which takes all for noise: the better one that is found from the medians, and from
    what was fitted to fewer values `before`. `shared`: a covariance of the rows that is known besides."""
    begin = prior_lengths(features)
    if not features:
        return begin
    distances = np.stack([squared(each, rows, rows)[_pairs(len(rows))] for each in features])
    centre = np.log(begin.weights)
    medians = np.append(centre, math.log(begin.noise))
    bounds = [(each - _REACH, each + _REACH) for each in centre] + [(math.log(1e-6), 0.0)]
    starts = [medians] if before is None else [medians, np.append(np.log(before.weights), math.log(before.noise))]
    maxima: list[optimize.OptimizeResult] = []
    for start in starts:
        for _ in range(ITERATIONS // RESTART):
            found = optimize.minimize(
                _surprise,
                start,
                args=(distances, values, medians, shared),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": RESTART},
            )
            start = found.x
            if found.nit < RESTART:
                break
        maxima.append(found)
    found = min(maxima, key=lambda each: float(each.fun))
    return Lengths(weights=np.exp(found.x[:-1]), noise=float(np.exp(found.x[-1])))


def _surprise(
    theta: Reals, distances: Reals, values: Reals, centre: Reals, shared: Reals | None = None
) -> tuple[float, Reals]:
    """The negative log posterior of the logarithms of weights and noise, and its gradient (equation 5.9 there).
    `distances`: (features, pairs of rows), the pairs as `_pairs` has them."""
    several = len(values)
    rows, columns = _pairs(several)
    weights, noise = np.exp(theta[:-1]), float(np.exp(theta[-1]))
    correlated, slope = _matern(weights @ distances, slope=True)
    covariance = np.zeros((several, several))
    covariance[rows, columns] = correlated
    covariance[np.diag_indices(several)] = 1 + noise + JITTER
    if shared is not None:
        covariance += shared
    # Only its lower triangle is looked at, which is the upper one for LAPACK.
    factor, failed = linalg.lapack.dpotrf(covariance.T, lower=0, clean=0, overwrite_a=1)
    if failed:
        raise linalg.LinAlgError("a covariance is not positive definite")
    logs = float(np.log(np.diag(factor)).sum())
    inverse = linalg.lapack.dpotri(factor, lower=0, overwrite_c=1)[0].T
    alpha = linalg.blas.dsymv(1.0, inverse.T, values, lower=0)
    fitted = float(values @ alpha)
    variance = (fitted + SIGNAL_WEIGHT) / (several + SIGNAL_WEIGHT)
    inner = inverse[rows, columns] - alpha[rows] * alpha[columns] / variance  # of both halves of the pairs
    by_weight = (distances @ (inner * slope)) * weights
    by_noise = 0.5 * (float(np.trace(inverse)) - float(alpha @ alpha) / variance) * noise
    spread = np.append(np.full(len(weights), LENGTH_SPREAD), NOISE_SPREAD)
    off = (theta - centre) / spread
    total = (
        0.5 * (several + SIGNAL_WEIGHT) * math.log(variance)
        + 0.5 * (fitted + SIGNAL_WEIGHT) / variance
        + logs
        + 0.5 * float(off @ off)
    )
    return total, np.append(by_weight, by_noise) + off / spread


@functools.lru_cache(maxsize=256)
def _pairs(several: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each pair of different rows, once."""
    return np.tril_indices(several, -1)


def _matern(distance: Reals, *, slope: bool = False) -> tuple[Reals, Reals]:
    """Matern 5/2 of the squared, weighted distance, and its derivative by that."""
    root = np.sqrt(5 * distance)
    decay = np.exp(-root)
    found = (1 + root + root * root / 3) * decay
    return found, -(5 / 6) * (1 + root) * decay if slope else found


class Trends:
    """What is known of other problems over the same points: a column for each, standardised. The values of this one are
    a sum of them, with weights of which nothing is known but their size (independent, normal, with variance TRUST), and
    of what the correlation explains. So a weight is what the values make of it, and 0 where a column has nothing to do
    with them (Rasmussen and Williams, section 2.7)."""

    def __init__(self, of: Callable[[Levels], Reals], pool: Levels) -> None:
        """`of` gives (points, columns)."""
        self.of = of
        self.pool = of(pool) * math.sqrt(TRUST)

    def between(self, left: Levels, right: Levels) -> Reals:
        """What they add to the covariance."""
        found: Reals = TRUST * self.of(left) @ self.of(right).T
        return found

    def to_pool(self, rows: Levels) -> Reals:
        found: Reals = math.sqrt(TRUST) * self.of(rows) @ self.pool.T
        return found


class Correlations:
    """Between rows and a fixed pool of points."""

    def __init__(self, features: Sequence[Feature], weights: Reals, pool: Levels) -> None:
        """`weights`: 1 / length^2 of each feature."""
        tables: dict[int, Reals] = {}
        for each, weight in zip(features, weights, strict=True):
            tables[each.column] = tables.get(each.column, 0.0) + each.squared * weight
        self._tables = tables
        self._several = len(pool)
        self._groups = [
            ([(column, tables[column].astype(np.float32)) for column in group], _codes(group, tables, pool))
            for group in _grouped(tables)
        ]

    def to_pool(self, rows: Levels) -> NDArray[np.float32]:
        """(rows, pool). A row's distance over a few columns is a short table, so that a look-up or two for each point
        of the pool are enough; the same to the last bit for one row as for many."""
        found = np.zeros((len(rows), self._several), np.float32)
        part = np.empty(self._several, np.float32)
        for row, distance in zip(rows, found, strict=True):
            for k, (group, codes) in enumerate(self._groups):
                short = np.zeros(1, np.float32)
                for column, table in group:
                    short = (short[:, None] + table[row[column]]).ravel()
                np.take(short, codes, out=distance if k == 0 else part, mode="clip")  # quicker than to raise
                if k:
                    distance += part
            _correlate(distance, part)
        return found

    def between(self, left: Levels, right: Levels) -> Reals:
        """(left, right), of any points."""
        distance = np.zeros((len(left), len(right)))
        for column, table in self._tables.items():
            distance += table[left[:, column]][:, right[:, column]]
        return _matern(distance)[0]


class Process:
    """Rows that were chosen, and what is expected of the pool given what they turned out to be worth."""

    def __init__(
        self,
        features: Sequence[Feature],
        pool: Levels,
        lengths: Lengths,
        rows: Levels,
        trends: Trends | None = None,
        *,
        room: int = 0,
        spread: float = 0.0,
    ) -> None:
        """`rows` are the first ones, added all at once; there is room for `room`, and for more on demand. `spread`: the
        variance of their measurement, in units of the signal's, of rows of which no other is known."""
        self._lengths = lengths
        self._spread = spread
        self._trends = trends
        self._correlations = Correlations(features, lengths.weights, pool)
        room = max(room, len(rows)) + _STEP
        self.rows = np.empty((room, pool.shape[1]), np.int16)
        self._factor = np.zeros((room, room))
        self._solved = np.empty((room, len(pool)), np.float32)
        self._explained = np.zeros(len(pool), np.float32)
        self.count = 0
        self.extend(rows)

    def extend(self, rows: Levels, spreads: Reals | None = None) -> None:
        """Several more rows, whatever they will be worth; `spreads` as `spread`, of each."""
        n, several = self.count, len(rows)
        if not several:
            return
        while n + several > len(self.rows):
            self._grow()
        among, solved = self._between(rows, rows), self._to_pool(rows)
        among[np.diag_indices(several)] += self._lengths.noise + JITTER + (self._spread if spreads is None else spreads)
        if n:
            known = linalg.solve_triangular(
                self._factor[:n, :n], self._between(self.rows[:n], rows), lower=True, check_finite=False
            )
            among -= known.T @ known
            solved -= known.T.astype(np.float32) @ self._solved[:n]
            self._factor[n : n + several, :n] = known.T
        among[np.diag_indices(several)] = np.maximum(np.diag(among), 1e-10)
        own = np.linalg.cholesky(among)
        self._factor[n : n + several, n : n + several] = own
        self.rows[n : n + several] = rows
        mine = self._solved[n : n + several]
        # A product with the inverse of a few rows is several times quicker than solving for the whole pool.
        inverse = linalg.solve_triangular(own, np.eye(several), lower=True, check_finite=False)
        np.matmul(inverse.astype(np.float32), solved, out=mine)
        self._explained += np.einsum("ij,ij->j", mine, mine)
        self.count = n + several

    def believed(self, values: Reals) -> Reals:
        """Values for all rows: those that are NaN get what the others make of them."""
        unknown = np.isnan(values)
        if not unknown.any() or unknown.all():
            return np.where(unknown, 0.0, values)
        factor = self._factor[: self.count, : self.count]
        known = np.flatnonzero(~unknown)
        covariance = factor[known] @ factor.T
        solved = linalg.solve(covariance[:, known], values[known], assume_a="pos", check_finite=False)
        found = values.copy()
        found[unknown] = covariance[:, unknown].T @ solved
        return found

    def expected(self, values: Reals, extra: Levels | None = None) -> tuple[Reals, Reals]:
        """Mean and standard deviation at each point of the pool (then of `extra`), for these values of the rows."""
        n = self.count
        weights = linalg.solve_triangular(self._factor[:n, :n], values, lower=True, check_finite=False)
        variance = (float(weights @ weights) + SIGNAL_WEIGHT) / (n + SIGNAL_WEIGHT)
        mean = (weights.astype(np.float32) @ self._solved[:n]).astype(np.float64)
        explained = self._explained.astype(np.float64)
        whole = np.ones(len(explained)) if self._trends is None else 1 + np.einsum("ij,ij->i", *[self._trends.pool] * 2)
        if extra is not None and len(extra):
            solved = linalg.solve_triangular(
                self._factor[:n, :n], self._between(self.rows[:n], extra), lower=True, check_finite=False
            )
            mean = np.append(mean, weights @ solved)
            explained = np.append(explained, np.einsum("ij,ij->j", solved, solved))
            trends = 0.0 if self._trends is None else TRUST * np.square(self._trends.of(extra)).sum(axis=1)
            whole = np.append(whole, np.ones(len(extra)) + trends)
        return mean, np.sqrt(np.maximum(whole - explained, 1e-9) * variance)

    def _to_pool(self, rows: Levels) -> NDArray[np.float32]:
        found = self._correlations.to_pool(rows)
        return found if self._trends is None else found + self._trends.to_pool(rows).astype(np.float32)

    def _between(self, left: Levels, right: Levels) -> Reals:
        found = self._correlations.between(left, right)
        return found if self._trends is None else found + self._trends.between(left, right)

    def _grow(self) -> None:
        n, room = self.count, self.count + _STEP
        rows, factor, solved = self.rows, self._factor, self._solved
        self.rows = np.empty((room, rows.shape[1]), np.int16)
        self.rows[:n] = rows
        self._factor = np.zeros((room, room))
        self._factor[:n, :n] = factor
        self._solved = np.empty((room, solved.shape[1]), np.float32)
        self._solved[:n] = solved


def _grouped(tables: Mapping[int, Reals]) -> list[list[int]]:
    """Columns side by side, as many as have a table of up to _GROUP combinations."""
    found: list[list[int]] = []
    size = _GROUP + 1
    for column, table in tables.items():
        size *= len(table)
        if size > _GROUP:
            found.append([])
            size = len(table)
        found[-1].append(column)
    return found


def _codes(group: Sequence[int], tables: Mapping[int, Reals], pool: Levels) -> NDArray[np.intp]:
    """Where each point of the pool is in such a table; INACTIVE is a table's last place."""
    found = np.zeros(len(pool), np.intp)
    for column in group:
        several = len(tables[column])
        found = found * several + pool[:, column] % several
    return found


def _correlate(distance: NDArray[np.float32], room: NDArray[np.float32]) -> None:
    """Matern 5/2 of the squared, weighted distance, in place."""
    distance *= 5
    np.sqrt(distance, out=room)
    distance /= 3
    distance += room
    distance += 1
    np.negative(room, out=room)
    np.exp(room, out=room)
    distance *= room


def log_improvement(mean: Reals, deviation: Reals, best: float) -> Reals:
    """The logarithm of the expected improvement over `best` (Jones, Schonlau and Welch 1998), without underflow."""
    above = (mean - best) / deviation
    density = np.exp(-0.5 * above * above) / math.sqrt(2 * math.pi)
    plain = above * special.ndtr(above) + density
    far = np.minimum(above, -1.0)
    tail = -0.5 * far * far - 2 * np.log(-far) - 0.5 * math.log(2 * math.pi)
    found: Reals = np.where(above > -5, np.log(np.maximum(plain, 1e-300)), tail) + np.log(deviation)
    return found
