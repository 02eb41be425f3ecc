"""Every primitive that regions are made of is one of JAX's, and one that stitching reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.ad_checkpoint import checkpoint_name  # noqa: E402

import fusiond.jax as fused  # noqa: E402
from fusiond.jax import regions  # noqa: E402

from .test_corpus import differs  # noqa: E402

X = jnp.linspace(-0.9, 0.95, 48).reshape(6, 8)
AT = jnp.array([1, 4, 1])
ONE = {name: getattr(lax, name) for name in (
    "abs", "acos", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "erf_inv", "erfc", "exp",
    "exp2", "expm1", "floor", "log1p", "logistic", "neg", "round", "sign", "sin", "sinh", "square", "tan", "tanh",
)}  # fmt: skip
TWO = {name: getattr(lax, name) for name in (
    "add", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "nextafter", "rem", "sub",
)}  # fmt: skip
BITS = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "shift_left": lax.shift_left,
        "shift_right_arithmetic": lax.shift_right_arithmetic,
        "shift_right_logical": lax.shift_right_logical}  # fmt: skip
REDUCED = {"reduce_max": jnp.max, "reduce_min": jnp.min, "reduce_prod": jnp.prod, "reduce_sum": jnp.sum,
           "argmax": jnp.argmax, "argmin": jnp.argmin, "cummax": lax.cummax, "cummin": lax.cummin,
           "cumprod": lax.cumprod, "cumsum": lax.cumsum}  # fmt: skip


def whole(x: Any) -> Any:
    return (x * 20).astype("int32")


def windowed(kind: Any, start: float) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, start, kind, (2, 2), (1, 2), "VALID")


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: (lambda x, f=f: f(x)) for name, f in ONE.items()},
    **{name: (lambda x, f=f: f(x, x.T.reshape(6, 8))) for name, f in TWO.items()},
    **{name: (lambda x, f=f: f(whole(x), jnp.abs(whole(x)) % 8)) for name, f in BITS.items()},
    **{name: (lambda x, f=f: f(x, axis=1)) for name, f in REDUCED.items()},
    "acosh": lambda x: lax.acosh(x + 2), "add_any": lambda x: jax.grad(lambda y: (jnp.sin(y) * jnp.cos(y)).sum())(x),
    "clamp": lambda x: lax.clamp(-0.5, x, 0.5), "clz": lambda x: lax.clz(whole(x)),
    "convert_element_type": lambda x: x.astype("float16"), "copy": lambda x: lax.copy_p.bind(x),
    "digamma": lambda x: lax.digamma(x + 2), "integer_pow": lambda x: x**3, "is_finite": lambda x: jnp.isfinite(1 / x),
    "lgamma": lambda x: lax.lgamma(x + 2), "log": lambda x: lax.log(x + 2), "not": lambda x: lax.bitwise_not(whole(x)),
    "population_count": lambda x: lax.population_count(whole(x)), "pow": lambda x: lax.pow(x + 2, x),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 4), "rsqrt": lambda x: lax.rsqrt(x + 2),
    "select_n": lambda x: lax.select_n(x > 0.2, x, -x), "sqrt": lambda x: lax.sqrt(x + 2),
    "stop_gradient": lambda x: jax.lax.stop_gradient(x),
    "reduce": lambda x: lax.reduce(x, 0.0, lambda a, b: a + b + a * b, (1,)),
    "reduce_and": lambda x: jnp.all(x > 0, 1), "reduce_or": lambda x: jnp.any(x > 0, 1),
    "reduce_xor": lambda x: lax.reduce_xor_p.bind(whole(x), axes=(1,)),
    "reduce_window": lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b + a * b, (2, 2), (1, 2), "VALID"),
    "reduce_window_max": windowed(lax.max, -np.inf), "reduce_window_min": windowed(lax.min, np.inf),
    "reduce_window_sum": windowed(lax.add, 0.0),
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x[0], (5, 8)), "iota": lambda x: x + lax.iota("float32", 8),
    "bitcast_convert_type": lambda x: lax.bitcast_convert_type(x, "int32"),
    "concatenate": lambda x: jnp.concatenate([x, x + 1]), "gather": lambda x: x[AT], "rev": lambda x: x[::-1],
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (AT[0], 2), (3, 4)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2, :2] + 1, (AT[0], 2)),
    "name": lambda x: checkpoint_name(x, "kept"), "pad": lambda x: jnp.pad(x, 1),
    "reshape": lambda x: x.reshape(4, 12), "scatter": lambda x: x.at[AT[:2]].set(1.0),
    "scatter-add": lambda x: x.at[AT].add(1.5), "scatter-max": lambda x: x.at[AT].max(0.1),
    "scatter-min": lambda x: x.at[AT].min(0.1), "scatter-mul": lambda x: x.at[AT].multiply(1.5),
    "scatter-sub": lambda x: x.at[AT].subtract(1.5), "slice": lambda x: x[1:4, ::2], "split": lambda x: jnp.split(x, 2),
    "squeeze": lambda x: x[:1].squeeze(0), "stack": lambda x: jnp.stack([x, x + 1], 1),
    "unstack": lambda x: jnp.unstack(x), "tile": lambda x: jnp.tile(x, (2, 1)), "transpose": lambda x: x.T,
}  # fmt: skip


def test_every_primitive_has_a_case_and_no_other() -> None:
    assert set(FUNCTIONS) == regions.FUSABLE


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_primitive_is_fused_with_what_is_around_it(name: str, answered: Callable[..., Any], db: Path) -> None:
    answered()

    def function(x: Any) -> Any:
        return jax.tree.map(lambda each: each * 2, FUNCTIONS[name](jnp.sin(x) * 0.99))

    whole_function = fused.fuse(function, always=True, db=db)
    got, wanted = whole_function(X), jax.jit(function)(X)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert not differs(one, other)
    report = fused.explain(whole_function, X)
    names = {each for region in report.regions if region.state == "fused" for each in region.primitives}
    assert name in names, str(report)
    assert [each.state for each in report.regions] == ["fused"], str(report)


def test_complex_numbers_join_a_region_where_they_are_pairs(answered: Callable[..., Any], db: Path) -> None:
    """Positions turned into a query, in one region; a hyperbolic tangent of complex numbers stays XLA's."""
    answered()

    def turned(q: Any, turn: Any) -> Any:
        z = lax.complex(q[..., ::2], q[..., 1::2]) * turn
        return jnp.stack([z.real, z.imag], -1).reshape(q.shape) * 2, jnp.abs(jnp.tanh(z) + z * jnp.conj(z))

    given = X[:, None] * jnp.ones((6, 3, 8)), jnp.exp(1j * X[:3, :4])
    function = fused.fuse(turned, always=True, db=db)
    for one, other in zip(function(*given), jax.jit(turned)(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    report = fused.explain(function, *given)
    left = {each for region in report.regions if region.state != "fused" for each in region.primitives}
    assert left == {"tanh"}, str(report)
