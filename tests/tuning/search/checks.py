"""What must be true of the modules of the search, against oracles: run over them as they are, and over broken ones."""

import math
from types import ModuleType

import numpy as np
from scipy import optimize, special, stats

from fusiond.model.nouns import Config
from fusiond.model.outcomes import Measurement, Purpose
from fusiond.strategy.space import Parameter, Space
from fusiond.tuning.search import features as shipped
from fusiond.tuning.search.points import Points

SPACE = Space(
    parameters=(Parameter(name="kind", values=("tiled", "plain")),
                Parameter(name="tile", values=(8, 16, 32, 64, 128), when="kind == 'tiled'"),
                Parameter(name="threads", values=tuple(range(32, 513, 32))),
                Parameter(name="unroll", values=(1, 2, 3, 4)),
                Parameter(name="cap", values=("none", "paper", 32, 64, 96))),
    restrictions=("tile * unroll <= threads",),
)  # fmt: skip
POINTS = Points(SPACE)


def matern(distance: np.ndarray) -> np.ndarray:
    """Matern 5/2 by its general formula, with a Bessel function (Rasmussen and Williams, equation 4.14)."""
    root = np.sqrt(5 * np.maximum(distance, 1e-14))
    found = 2 ** (1 - 2.5) / math.gamma(2.5) * root**2.5 * special.kv(2.5, root)
    return np.where(distance < 1e-12, 1.0, found)


def covariance(gaussian: ModuleType, lengths: object, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    distance = np.zeros((len(left), len(right)))
    for each, weight in zip(shipped.features(SPACE.parameters), lengths.weights, strict=True):  # type: ignore[attr-defined]
        for i, one in enumerate(left):
            for j, other in enumerate(right):
                distance[i, j] += weight * each.squared[one[each.column], other[each.column]]
    return matern(distance)


def given(several: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pool, rows, values."""
    generator = np.random.default_rng(3)
    pool = POINTS.draw(60, generator)
    rows = POINTS.draw(several, generator)
    values = np.sin(rows[:, 2]) + 0.3 * rows[:, 3] + generator.normal(size=several) * 0.01
    return pool, rows, (values - values.mean()) / values.std()


def posterior(gaussian: ModuleType) -> None:
    """Mean and deviation are the textbook's (equations 2.23 and 2.24), however the rows were added, with what is out
    believed to be its own expectation; in the pool and beside it, with trends and without."""
    found = shipped.features(SPACE.parameters)
    pool, rows, values = given()
    lengths = gaussian.Lengths(weights=np.linspace(0.3, 2.0, len(found)), noise=1e-3)
    trend = np.random.default_rng(1).normal(size=(len(pool) + len(rows), 2))
    known = {each.tobytes(): trend[k] for k, each in enumerate(np.concatenate([pool, rows]))}

    def of(points: np.ndarray) -> np.ndarray:
        return np.array([known[each.tobytes()] for each in points]).reshape(len(points), 2)

    for trends in (None, gaussian.Trends(of, pool)):

        def between(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            plain = covariance(gaussian, lengths, left, right)
            return plain if trends is None else plain + gaussian.TRUST * of(left) @ of(right).T  # noqa: B023

        whole = between(rows, rows) + (lengths.noise + gaussian.JITTER) * np.eye(len(rows))
        told = np.arange(len(rows)) % 5 != 4
        guessed = values.copy()
        half = np.linalg.solve(whole[np.ix_(told, told)], values[told])
        guessed[~told] = whole[np.ix_(~told, told)] @ half
        where = np.concatenate([pool, rows[:3]])
        cross = between(where, rows)
        mean = cross @ np.linalg.solve(whole, guessed)
        own = np.array([between(each[None], each[None])[0, 0] for each in where])
        left = own - np.einsum("ij,ji->i", cross, np.linalg.solve(whole, cross.T))
        weight = gaussian.SIGNAL_WEIGHT
        variance = (guessed @ np.linalg.solve(whole, guessed) + weight) / (len(rows) + weight)
        for first in (len(rows), 10, 0):
            process = gaussian.Process(found, pool, lengths, rows[:first], trends)
            process.extend(rows[first : first + 7])
            for row in rows[first + 7 :]:
                process.extend(row[None, :])
            believed = process.believed(np.where(told, values, np.nan))
            assert np.allclose(believed, guessed, atol=2e-3)
            got, deviation = process.expected(believed, rows[:3])
            assert np.allclose(got, mean, atol=5e-3)
            assert np.allclose(deviation, np.sqrt(np.maximum(left, 1e-9) * variance), atol=5e-3)
    own = np.linspace(0.0, 0.8, len(rows))
    own[12:] = 0.3  # of which none is known
    plain = covariance(gaussian, lengths, rows, rows) + (lengths.noise + gaussian.JITTER) * np.eye(len(rows))
    process = gaussian.Process(found, pool, lengths, rows[:0], spread=0.3)
    process.extend(rows[:12], own[:12])
    process.extend(rows[12:15])
    for row in rows[15:]:
        process.extend(row[None, :])
    wanted = covariance(gaussian, lengths, pool, rows) @ np.linalg.solve(plain + np.diag(own), values)
    assert np.allclose(process.expected(values)[0], wanted, atol=5e-3)


def likelihood(gaussian: ModuleType) -> None:
    """The value is SciPy's, with the priors; the gradient is that of finite differences; the fit is a minimum."""
    found = shipped.features(SPACE.parameters)
    _, rows, values = given()
    prior = gaussian.prior_lengths(found)
    centre = np.append(np.log(prior.weights), math.log(prior.noise))
    distances = np.stack([shipped.squared(each, rows, rows)[gaussian._pairs(len(rows))] for each in found])
    theta = centre + np.random.default_rng(5).normal(size=len(centre)) * 0.7
    value, gradient = gaussian._surprise(theta, distances, values, centre)
    wanted = optimize.approx_fprime(theta, lambda at: gaussian._surprise(at, distances, values, centre)[0], 1e-6)
    assert np.allclose(gradient, wanted, rtol=1e-3, atol=1e-3)

    lengths = gaussian.Lengths(weights=np.exp(theta[:-1]), noise=math.exp(theta[-1]))
    whole = covariance(gaussian, lengths, rows, rows) + (lengths.noise + gaussian.JITTER) * np.eye(len(rows))
    weight = gaussian.SIGNAL_WEIGHT
    variance = (values @ np.linalg.solve(whole, values) + weight) / (len(rows) + weight)
    spread = np.append(np.full(len(found), gaussian.LENGTH_SPREAD), gaussian.NOISE_SPREAD)
    by_scipy = -stats.multivariate_normal(cov=variance * whole).logpdf(values) - len(rows) / 2 * math.log(2 * math.pi)
    by_scipy += 0.5 * weight * (math.log(variance) + 1 / variance)
    by_scipy += 0.5 * float((((theta - centre) / spread) ** 2).sum())
    assert math.isclose(value, by_scipy, rel_tol=1e-6)

    best = gaussian.fit(found, rows, values)
    at = np.append(np.log(best.weights), math.log(best.noise))
    least = gaussian._surprise(at, distances, values, centre)[0]
    for _ in range(20):
        near = at + np.random.default_rng(_).normal(size=len(at)) * 0.05
        assert gaussian._surprise(near, distances, values, centre)[0] > least - 1e-3


def improvement(gaussian: ModuleType) -> None:
    """The integral of what is above the best; far below, where that underflows, it still falls."""
    for mean, deviation, best in ((0.0, 1.0, 0.5), (1.0, 0.2, 0.5), (-2.0, 0.5, 0.0), (0.3, 2.0, 0.3)):
        normal = stats.norm(mean, deviation)
        wanted = normal.expect(lambda y, best=best: max(0.0, y - best), lb=best, ub=mean + 12 * deviation)
        found = gaussian.log_improvement(np.array([mean]), np.array([deviation]), best)[0]
        assert math.isclose(found, math.log(wanted), rel_tol=1e-4, abs_tol=1e-5)
    tail = gaussian.log_improvement(np.linspace(-60, -3, 400), np.ones(400), 0.0)
    assert np.isfinite(tail).all()
    assert (np.diff(tail) > 0).all()


def distances(features: ModuleType) -> None:
    """Powers lie evenly, so do numbers; labels are all equally far; what does not apply is far from all but itself."""
    found = features.features(SPACE.parameters)
    by_column = [[each for each in found if each.column == column] for column in range(len(SPACE.parameters))]
    assert [len(each) for each in by_column] == [1, 1, 2, 1, 1]
    tile = np.sqrt(by_column[1][0].squared)
    assert np.allclose(np.diag(tile, 1)[:4], 0.25)
    assert tile[0, 4] == 1.0
    assert np.allclose(tile[-1, :-1] ** 2, [0.75, 0.5 + 1 / 16, 0.5, 0.5 + 1 / 16, 0.75])
    assert tile[-1, -1] == 0.0
    threads, twos = (np.sqrt(each.squared) for each in by_column[2])
    assert np.allclose(np.diag(threads, 1)[:15], 1 / 15)
    assert twos[0, 2] == 0.0  # 32 and 96: both are divided by 32 and no more
    assert twos[0, 1] == 1.0  # 64, and from there all alike
    assert twos[1, 3] == 0.0
    cap = np.sqrt(by_column[4][0].squared)
    assert cap[0, 1] == 1.0
    assert np.allclose(cap[2, 3:5], [0.5, 1.0]) or np.allclose(cap[2, 3:5], [math.log(2) / math.log(3), 1.0])
    for each in (*found, *features.rough(found)):
        assert np.linalg.eigvalsh(np.exp(-3 * each.squared)).min() > -1e-9  # a correlation
        assert np.allclose(each.squared, each.squared.T)
        assert (np.diag(each.squared) == 0).all()
        assert each.squared.min() >= 0
        assert each.squared.max() <= 1
    for plain, rough in zip(found, features.rough(found), strict=True):
        assert np.allclose(rough.squared**2, plain.squared)


def targets(values: ModuleType) -> None:
    """The slowest count alike, failures with them, and what is out is left out."""
    given = np.array([3.0, 1.0, 2.0, np.nan, 10.0, np.nan, 5.0])
    failed = np.array([False, False, False, True, False, False, False])
    found = values.standardised(given, failed)
    assert np.isnan(found[5])
    told = found[~np.isnan(found)]
    assert math.isclose(told.mean(), 0, abs_tol=1e-9)
    assert math.isclose(told.std(), 1, rel_tol=1e-6)
    assert found[1] == found[3] == found.min(initial=np.inf, where=~np.isnan(found))
    assert list(np.argsort(found[[4, 6, 0]])) == [2, 1, 0]
    assert np.isnan(values.standardised(np.array([np.nan]), np.array([False]))).all()
    assert values.standardised(np.array([np.nan, np.nan]), np.array([True, True])).tolist() == [0.0, 0.0]
    generator = np.random.default_rng(0)
    for pairs in (9, 50, 401):
        a, b = np.exp(generator.normal(3, 0.1, pairs)), np.exp(generator.normal(2, 0.2, pairs))
        measured = Measurement(span_us=tuple(a), baseline_us=tuple(b), clock="device", purpose=Purpose.SEARCH)
        wanted = stats.median_abs_deviation(np.log(a / b), scale="normal") * math.sqrt(math.pi / 2 / pairs)
        assert math.isclose(values.spread(measured), wanted, rel_tol=1e-3)
    medians = [np.median(generator.normal(size=401)) for _ in range(4000)]
    many = Measurement(span_us=tuple(np.exp(generator.normal(size=401))), clock="device", purpose=Purpose.SEARCH)
    assert math.isclose(values.spread(many), float(np.std(medians)), rel_tol=0.15)
    assert values.spread(None) == 0.0
    assert values.spread(Measurement(span_us=(1.0, 2.0), clock="device", purpose=Purpose.SEARCH)) == 0.0
    shares = values.spreads(given, failed, np.array([0.1, 0.5, 0.2, 9.0, 0.0, 9.0, 0.3]))
    unit = (given[4] - given[0]) / (found[4] - found[0])  # of one standardised value
    assert np.allclose(shares[[0, 4, 6]], np.array([0.1, 0.0, 0.3]) ** 2 / unit**2)
    assert shares[3] == shares[5] == 0.0
    several = np.random.default_rng(0).normal(size=1000)
    kept = values.chosen(several, 100)
    assert kept == sorted(set(kept))
    assert 90 <= len(kept) <= 100
    assert set(np.argsort(-several)[:50].tolist()) <= set(kept)
    assert np.argmin(several) in kept
    assert values.chosen(several[:7], 100) == list(range(7))


def searched(sampler: ModuleType) -> None:
    """A bowl with a ring of failures round its lowest point is found; the space is walked without asking twice, what
    is out is not asked again, and failures become rare."""
    own = sampler.PointSampler(POINTS, 7)
    asked, failures, best = [], [], -math.inf
    out: list[tuple[int, float | None]] = []
    for _ in range(60):
        config = own.choose()
        assert config is not None
        assert SPACE.problems(config) == ()
        asked.append(config)
        threads = config.integer("threads")
        cost = abs(threads - 256) / 100 + (config["kind"] == "plain") + config.integer("unroll")
        out.append((own.add(config), None if threads > 256 else -cost))
        if len(out) == 4:
            ask, value = out.pop(0)
            failures.append(value is None)
            best = max(best, -math.inf if value is None else value)
            own.tell(ask, value, 0.0)
    assert len(set(asked)) == len(asked)
    assert best == -1
    assert sum(failures[20:]) <= 10


def safety(safety: ModuleType) -> None:
    """Where much failed, little is expected to go well; where nothing is known, one sound trial stands for it."""
    found = shipped.features(SPACE.parameters)
    pool = POINTS.draw(200, np.random.default_rng(1))
    own = safety.Safety(found, pool)
    assert np.allclose(own.chance(None), 1.0)
    for row in POINTS.draw(60, np.random.default_rng(2)):
        own.tell(row, bool(row[0] == 0))
    chance = own.chance(pool[:5])
    plain = pool[:, 0] == 1
    assert own.failures > 10
    assert np.median(chance[:200][plain]) < 0.8 * np.median(chance[:200][~plain])
    assert np.allclose(chance[200:], chance[:5])
    assert chance.min() > 0
    assert chance.max() <= 1
    row = POINTS.draw(1, np.random.default_rng(3))[0]
    alone = safety.Safety(found, row[None, :])
    alone.tell(row, False)
    assert math.isclose(alone.chance(None)[0], 0.5, rel_tol=1e-6)


def moves(sampler: ModuleType) -> None:
    """Where times have nothing to do with one another, a search stalls: then every fifth ask differs in one parameter
    that both have from one of the three best (from the best itself, as long as that has such neighbours)."""
    own = sampler.PointSampler(POINTS, 3)
    generator = np.random.default_rng(8)
    told: list[tuple[float, Config]] = []
    moved, elsewhere = 0, 0
    for number in range(75):
        config = own.choose()
        assert config is not None
        values = [value for value, _ in told]
        near = [
            sum(config[name] != each[name] for name in config if name in each) == 1
            for _, each in sorted(told, key=lambda pair: -pair[0])[:3]
        ]
        if told and number - 1 - int(np.argmax(values)) >= 30:
            moved += number % 5 == 0
            elsewhere += not near[0]
            assert number % 5 or near[0]
        value = 5.0 if number == 20 else float(generator.normal())
        told.append((value, config))
        own.tell(own.add(config), value, 0.0)
    assert moved >= 4
    assert elsewhere >= 10  # what the model makes of it is not a neighbour


def told(asks: ModuleType) -> None:
    """What is told out of order is there in the order of asks, and what failed has no value."""
    own = asks.Asks()
    for number in range(5):
        own.add(np.array([number], np.int16))
    assert own.told == []
    own.tell(3, 2.0, 0.1)
    own.tell(0, None)
    own.tell(1, -1.0, 0.2)
    assert own.told == [0, 1, 3]
    assert np.isnan(own.values[0])
    assert own.standardised([0, 1, 3]).tolist()[:2] == [own.standardised([0, 1, 3]).min()] * 2
    assert np.argmax(own.standardised([0, 1, 3])) == 2
    assert np.isnan(own.standardised([2, 3])[0])
    assert own.spreads([0, 1, 3])[0] == 0.0
    assert own.spreads([0, 1, 3])[1] == own.spreads([0, 1, 3])[2] * 4
