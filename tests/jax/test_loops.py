"""Loops of JAX's users through `fuse`, against `jax.jit`: on JAX's cpu platform, at odd sizes, with their gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.extend import core  # noqa: E402

import fusiond.jax as fused  # noqa: E402
from fusiond.jax import regions  # noqa: E402
from fusiond.service import best  # noqa: E402
from fusiond.service.frameworks import boundaries  # noqa: E402

NUMBERS = np.random.default_rng(5)


def floats(*dims: int) -> Any:
    return (NUMBERS.normal(size=dims) / 2).astype(np.float32)


def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), jax.nn.sigmoid(o) * jnp.tanh(c)

    zero = jnp.zeros((x.shape[1], u.shape[0]))
    return lax.scan(step, (zero, zero), x)[1]


def both_ways(x: Any, w: Any, u: Any, b: Any) -> Any:
    return jnp.concatenate([lstm(x, w, u, b), lstm(x[::-1], w, u, b)[::-1]], -1)


def recurrence(a: Any, b: Any) -> Any:
    return lax.associative_scan(lambda one, other: (one[0] * other[0], other[0] * one[1] + other[1]), (a, b))[1]


def kalman(z: Any, q: Any, r: Any) -> Any:
    def step(state: Any, z: Any) -> Any:
        mean, variance = state[0], state[1] + q
        gain = variance / (variance + r)
        state = (mean + gain * (z - mean), (1 - gain) * variance)
        return state, state

    return lax.scan(step, (jnp.zeros_like(z[0]), jnp.ones_like(z[0])), z)[1]


def masked(x: Any, key: Any) -> Any:
    """Dropout of the state, by a key for each trip."""

    def step(h: Any, each: Any) -> Any:
        x, i = each
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, h.shape)
        h = jnp.where(keep, 0.5 * h + x, h)
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), (x, jnp.arange(len(x))))[1]


def walk(x: Any, keys: Any) -> Any:
    return lax.scan(lambda x, key: (x * jnp.exp(0.02 * jax.random.normal(key, x.shape)), None), x, keys)[0].mean()


def substeps(x: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = lax.fori_loop(0, 4, lambda i, h: h + 0.1 * (x - jnp.tanh(h)), h)
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def heat(u: Any) -> Any:
    step = lambda _, u: u.at[:, 1:-1].add(0.1 * (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2]))  # noqa: E731
    return lax.fori_loop(0, 9, step, u)


def escape(re: Any, im: Any) -> Any:
    def step(state: Any) -> Any:
        i, a, b, n = state
        return i + 1, a * a - b * b + re, 2 * a * b + im, n + (a * a + b * b < 4)

    zero = jnp.zeros_like(re)
    return lax.while_loop(lambda state: state[0] < 20, step, (0, zero, zero, zero.astype(jnp.int32)))[3]


def averages(x: Any, rates: Any) -> Any:
    def one(x: Any, rate: Any) -> Any:
        return lax.scan(lambda h, x: ((1 - rate) * h + rate * x,) * 2, x[0], x)[1]

    return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(x, rates)


def normalised(x: Any, scale: Any) -> Any:
    """With what stands before and behind it."""
    x = jax.nn.silu(x) * scale
    y = lax.scan(lambda h, x: (0.9 * h + x,) * 2, jnp.zeros_like(x[0]), x)[1]
    return (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5) * scale


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: jax.grad(lambda given: (function(*given) ** 2).sum())(given)


CELL = (floats(7, 3, 10), floats(10, 44), floats(11, 44), floats(44))
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    # Function, arguments, what of it may be a library's.
    "lstm": (lstm, CELL, {"dot_general"}),
    "lstm's gradient": (gradient(lstm), CELL, {"dot_general"}),
    "both ways": (both_ways, CELL, {"dot_general", "rev"}),
    "associative scan": (recurrence, (floats(13, 37), floats(13, 37)), set()),
    "kalman": (kalman, (floats(13, 37), abs(floats(37)), abs(floats(37))), set()),
    "masked": (masked, (floats(9, 37), jax.random.key(3)), set()),
    "walk": (walk, (abs(floats(37)), jax.random.split(jax.random.key(2), 5)), set()),
    "walk by raw keys": (walk, (abs(floats(37)), jax.random.split(jax.random.PRNGKey(2), 5)), set()),
    "substeps": (substeps, (floats(9, 37),), set()),
    "substeps' gradient": (gradient(substeps), (floats(9, 37),), set()),
    "heat": (heat, (floats(37, 21),), set()),
    "escape": (escape, (floats(37), floats(37)), set()),
    "averages": (averages, (floats(37, 13), abs(floats(3))), set()),
    "normalised": (normalised, (floats(13, 37), floats(37)), set()),
    "sums": (lambda x: jnp.cumsum(x, 0) / lax.cummax(abs(x), axis=0), (floats(13, 37),), set()),
    "logarithms of sums": (lambda x: lax.cumlogsumexp(2 * x, axis=0) - x, (floats(101, 5),), set()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
@pytest.mark.slow
def test_a_loop_is_a_region_s(name: str, answered: Callable[..., Any], db: Path) -> None:
    function, arguments, library = CASES[name]
    answered()
    fuse = fused.fuse(function, always=True, db=db)
    got, wanted = fuse(*arguments), jax.jit(function)(*arguments)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5), got, wanted)
    report = fused.explain(fuse, *arguments)
    left = {each for region in report.regions if region.state != "fused" for each in region.primitives}
    assert left <= library | {"broadcast_in_dim"}, str(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("gxx_here", "short_measuring")
def test_a_loop_that_gains_nothing_by_fusing_runs_its_unfused_kernels(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel either way, so the answer is to keep the unfused one: for all trips, where XLA launches several for
    each."""
    found = best.by_job

    def kept(*asked: Any, **named: Any) -> Any:
        return tuple(
            each | {"verdict": "keep", "program_key": None} if isinstance(each, dict) else each
            for each in found(*asked, **named)
        )

    monkeypatch.setattr(best, "by_job", kept)
    function, arguments, _ = CASES["heat"]
    fuse = fused.fuse(function, always=True, block=True, db=db, search={"trials": 1})
    np.testing.assert_allclose(fuse(*arguments), jax.jit(function)(*arguments), rtol=1e-5, atol=1e-6)
    (region,) = fused.explain(fuse, *arguments).regions
    assert (region.state, region.speedup) == ("fused", None)
    assert "a launch each" in region.reason
    straight = fused.fuse(lambda x: jnp.exp(x) * 2 + x, always=True, block=True, db=db, search={"trials": 1})
    straight(arguments[0])
    assert [each.state for each in fused.explain(straight, arguments[0]).regions] == ["kept"]


def primitives(closed: Any) -> list[str]:
    return [each.primitive.name for each in regions._flat(closed).jaxpr.eqns]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_with_its_products_apart_is_the_same_loop(reverse: bool) -> None:
    """Sums of products through a transpose, products that several trips' values need, a matrix that no trip changes on
    the left, state that is handed on, results that are constants."""

    def function(x: Any, w: Any, total: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, total, kept = state
            y = w @ x
            h = jnp.tanh(h + y @ w)
            return (h, total + (x.T @ h).T, kept), (w @ h, x @ x, 1.0)

        return lax.scan(step, (x[0], total, w), x, reverse=reverse)

    given = (floats(5, 6, 6), floats(6, 6), floats(6, 6))
    flat = regions._flat(jax.make_jaxpr(function)(*given))
    (loop,) = (each for each in flat.jaxpr.eqns if each.primitive.name == "scan")
    assert "dot_general" not in [each.primitive.name for each in loop.params["jaxpr"].jaxpr.eqns]
    wanted = jax.tree.leaves(function(*given))
    for one, other in zip(core.jaxpr_as_fun(flat)(*given), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_fault_of_the_strategy_leaves_a_loop_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def boundaries(self, text: str) -> tuple[str, ...]:
            raise AssertionError("after simplify: the output is gone")

    monkeypatch.setattr(boundaries, "_strategy", lambda: Broken())
    boundaries.boundaries.cache_clear()
    try:
        report = fused.explain(fused.fuse(heat), floats(37, 21))
    finally:
        boundaries.boundaries.cache_clear()
    (region,) = report.regions
    assert (region.state, region.reason) == ("library", "scan: AssertionError while it was read")
