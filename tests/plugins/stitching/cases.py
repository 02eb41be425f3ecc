"""Small jax functions over all the operations, with awkward sizes and values, and inputs that are worth trying."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Case:
    """`function(*inputs)` gives one array or a tuple of them."""

    name: str
    group: str
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


def cases() -> Mapping[str, Case]:
    """All of them, by name."""
    return {each.name: each for each in _CASES}


_CASES: list[Case] = []
NAN, INF = np.float32(np.nan), np.float32(np.inf)


def rand(*dims: int, seed: int = 0, dtype: str = "float32", low: float = -1.0, high: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(seed + 17 * len(dims) + sum(dims))
    if dtype == "bool":
        return random.random(dims) < 0.5
    if np.issubdtype(np.dtype(dtype), np.floating):
        return random.uniform(low, high, dims).astype(dtype)
    return random.integers(int(low), int(high), dims, endpoint=True).astype(dtype)


def special(*dims: int) -> np.ndarray:
    """NaN, both infinities, both zeros and some numbers, over and over."""
    few = np.array([NAN, 1.5, -0.0, INF, 0.0, -2.0, -INF, 3.0, 0.25], np.float32)
    return np.resize(few, dims)


def case(group: str, *inputs: np.ndarray, name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _CASES.append(Case(name or function.__name__, group, function, inputs))
        return function

    return add


# --- movement -------------------------------------------------------------------------------------------


@case("movement", rand(9, 33), rand(1023, seed=1))
def slices(x, y):
    return x[2:8:3, 5:30:7] * 2.0, y[::2] + y[1023 % 2 :: 2].sum() * 0.0, lax.slice(x, (0, 32), (9, 33)) - 1.0


@case("movement", rand(3, 5), rand(7))
def pads(x, y):
    return (
        lax.pad(x, np.float32(2.5), ((1, 2, 0), (0, 3, 2))),
        lax.pad(x, np.float32(0), ((-1, 2, 1), (3, -2, 0))) + 1.0,
        lax.pad(y, y[0], ((-2, -2, 0),)),
        lax.pad(y, np.float32(-INF), ((4, 0, 3),)),
    )


@case("movement", np.arange(12, dtype=np.float32).reshape(3, 4))
def constants(x):
    table = np.array([[0.1, -2.0, 3e7, 1e-30], [NAN, INF, -INF, -0.0], [1, 2, 3, 4]], np.float32)
    whole = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
    return (
        x + table, whole * x.astype(np.int32), jnp.where(np.array([True, False, True])[:, None], x, 9.0), table.T * 1.0,
    )  # fmt: skip


# --- element-wise ---------------------------------------------------------------------------------------


@case("elementwise", special(7, 33), special(33)[::-1].copy())
def special_values(x, y):
    return (
        jnp.maximum(x, y), jnp.minimum(x, y), jnp.where(x < y, x, y), x / y, jnp.sqrt(x), jnp.log(x), jnp.exp(x),
        x == y, jnp.isfinite(x), jnp.sign(x), jnp.clip(x, -1.0, 2.0), jnp.maximum(x, 0.0), x - x,
    )  # fmt: skip


@case("elementwise", rand(33, dtype="int32", low=-50, high=50), rand(33, seed=4, dtype="int32", low=-5, high=5))
def whole_numbers(a, b):
    return (
        a // jnp.where(b == 0, 1, b), lax.rem(a, b), lax.div(a, b), a << (b & 7), a >> 2, a ^ b, ~a & b, jnp.abs(a) | b,
    )  # fmt: skip


@case("elementwise", rand(1, 7, dtype="bool"), rand(33, 7, seed=5, dtype="bool"), rand(33, 7))
def truth(p, q, x):
    return p & q, p | ~q, p ^ q, jnp.where(p & q, x, -x), (p | q).astype(np.float32) * x, q.sum(axis=0)


@case("elementwise", rand(33), rand(33, seed=1), rand())
def scalars(x, y, s):
    return lax.select(s > 0, x, y), jnp.clip(x, s, 0.5), jnp.clip(x, -0.5, jnp.abs(s)), s * 3.0, jnp.arctan2(x, y) + s


@case("elementwise", rand(40, low=-500, high=500))
def conversions(x):
    return (
        x.astype(np.int8), x.astype(np.uint8), x.astype(np.int32), x.astype(np.int16).astype(np.float32),
        x.astype(bool),
        lax.bitcast_convert_type(x, np.int32), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), x.astype(np.uint16),
        lax.reduce_precision(x, 5, 10), lax.reduce_precision(x, 8, 7), lax.reduce_precision(x * 1e-7, 4, 3),
    )  # fmt: skip


# --- reductions -----------------------------------------------------------------------------------------


@case("reductions", rand(7, 33, 5), rand(1023), rand(1, 1))
def sums(x, y, one):
    return x.sum(axis=1), x.sum(axis=(0, 2)), x.sum(), y.sum(), y.mean(), one.sum(axis=0), x.sum(axis=2), x.sum(axis=0)


@case("reductions", rand(33, 7), special(9, 5))
def extremes(x, s):
    return x.max(axis=0), x.min(axis=1), s.max(axis=1), s.min(axis=0), jnp.prod(x, axis=1), x.max(), (x > 0).all(axis=0)


@case("reductions", rand(7, 33), rand(33, dtype="int32", low=-9, high=9), special(5, 9))
def arguments(x, n, s):
    return x.argmax(axis=1), x.argmin(axis=0), n.argmax(), s.argmax(axis=1), s.argmin(axis=1), jnp.argmax(x)


@case("reductions", rand(5, 0), rand(0, 7), rand(0))
def empty(x, y, z):
    return x.sum(axis=1), x.max(axis=1, initial=-3.0), y.sum(axis=1), jnp.prod(y, axis=0), z.sum(), x + 1.0


@case("reductions", rand(7, 33), rand(33, dtype="int32", low=-9, high=9))
def own_computations(x, n):
    """Starts that change nothing: XLA takes them in as often as it likes."""
    zero = np.float32(0)
    return (
        lax.reduce(x, np.float32(0.5), lax.max, (0,)),
        lax.reduce((x, x * x), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,)),
        lax.reduce(n, np.int32(0), lambda a, b: lax.max(a, b) + lax.min(a, b), (0,)),
        lax.reduce((x, -x), (-INF, INF), lambda a, b: (lax.max(a[0], b[0]), lax.min(a[1], b[1])), (0, 1)),
    )


@case("reductions", rand(33, 7), rand(4, 3, 9))
def softmaxes(x, y):
    return jax.nn.softmax(x, axis=1), jax.nn.log_softmax(x, axis=0), jax.nn.logsumexp(y, axis=(1, 2)), jax.nn.softmax(y)


@case("reductions", rand(6, 33), rand(33, seed=1), rand(33, seed=2))
def layer_norm(x, scale, shift):
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift, x.std(axis=0), x.var()


# --- dots -----------------------------------------------------------------------------------------------


@case("dots", rand(7, 33), rand(33, 5), rand(33), rand(4, 7, 9), rand(4, 9, 3))
def dots(a, b, v, x, y):
    return (
        a @ b, a @ v, v @ v, jnp.einsum("bij,bjk->bik", x, y), jnp.einsum("ij,kj->ik", a, a),
        jnp.einsum("bij,bjk->ki", x, y), jnp.tanh(a @ b) @ jnp.ones((5, 2), np.float32),
    )  # fmt: skip


@case("dots", rand(5, 8, dtype="int32", low=-9, high=9), rand(8, 3, seed=1, dtype="int32", low=-9, high=9))
def whole_dots(a, b):
    return a @ b, lax.dot(a.astype(np.int8), b.astype(np.int8), preferred_element_type=np.int32)


# --- indices that are data ------------------------------------------------------------------------------


@case(
    "indexing", rand(50, 7), rand(9, dtype="int32", low=0, high=49), rand(4, 3, seed=1, dtype="int32", low=-60, high=60)
)
def rows(table, index, wild):
    return table[index], jnp.take(table, wild, axis=0, mode="clip"), jnp.take(table, wild, axis=0), table[:, index % 7]


@case("indexing", rand(9, 33), rand(9, dtype="int32", low=0, high=32), rand(5, 2, dtype="int32", low=0, high=8))
def picks(x, column, pairs):
    along = jnp.take_along_axis(x, column[:, None], axis=1)
    return along, x[pairs[:, 0], pairs[:, 1]], x[jnp.arange(9), column], x.at[3].get() * 2.0


@case(
    "indexing", rand(20, 7), rand(9, dtype="int32", low=0, high=19), rand(9, 7, seed=1),
    rand(9, seed=3, dtype="int32", low=-30, high=30),
)  # fmt: skip
def scatters(table, index, update, wild):
    return (
        table.at[index].add(update), table.at[wild].add(update), table.at[index[:1]].set(update[:1]),
        table.at[wild].max(update), jnp.zeros(20).at[index].add(update[:, 0]), table.at[index, 3].add(update[:, 2]),
        table.at[index % 5, wild % 7].min(0.0),
    )  # fmt: skip


@case("indexing", rand(9, 33), np.array([3, -4, 40], np.int32), rand(2, 5, seed=7))
def windows(x, at, update):
    return (
        lax.dynamic_slice(x, (at[0], at[2]), (2, 5)), lax.dynamic_slice(x, (at[1], at[0]), (9, 4)),
        lax.dynamic_update_slice(x, update, (at[0], at[0])), lax.dynamic_update_slice(x, update, (at[1], at[2])),
        lax.dynamic_update_slice(x, x, (at[0], at[1])) + 1.0, x.at[at[0], 2:7].set(0.0),
        lax.dynamic_index_in_dim(x, at[2]),
    )  # fmt: skip


# --- types ----------------------------------------------------------------------------------------------


@case(
    "wide", rand(7, 33, dtype="float64"), rand(33, dtype="int64", low=-(10**12), high=10**12),
    rand(33, dtype="uint64", high=9),
)  # fmt: skip
def sixty_four(x, n, u):
    return (
        jax.nn.softmax(x), x.sum(axis=0), x @ x.T, n.sum(), n * n, n // 7, u - 5, (n >> 3) ^ 1, x.astype(np.float32),
        n.astype(np.float64) * 0.5, (x * 1e10).astype(np.int64), x[:, u.astype(np.int64) % 33], n.max(),
        x.argmax(axis=1),
    )  # fmt: skip


@case(
    "wide", rand(33, dtype="int8", low=-128, high=127), rand(33, dtype="uint8", high=255),
    rand(33, dtype="int16", low=-32768, high=32767), rand(33, dtype="uint16", high=65535),
    rand(33, dtype="uint32", high=2**32 - 1),
)  # fmt: skip
def narrow_integers(a, b, c, d, e):
    return (
        a + a, a * a, b * b, b - 7, c * c, d * d, e * e, b.sum(), c.max(), e.sum(), lax.population_count(e), lax.clz(d),
        b >> 1, lax.shift_right_arithmetic(a, np.int8(1)), b.astype(np.float32) / 3, (e % 7).astype(np.uint8), a.min(),
    )  # fmt: skip


@case("half", rand(7, 33, dtype="float16"), rand(33, seed=1, dtype="float16"))
def float16(x, y):
    return (
        x * y + x, jnp.exp(x) / (y * y + 1), x.sum(axis=1), x.max(axis=0), jax.nn.softmax(x), x @ y,
        x.astype(np.float32),
    )  # fmt: skip


@case("half", rand(7, 33), rand(33, seed=1))
def bfloat16(x, y):
    a, b = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return (
        (a * b + a).astype(np.float32), jnp.tanh(a).astype(np.float32), a.sum(axis=0).astype(np.float32), a * 2,
        (a @ b) * 1,
    )  # fmt: skip


@case("half", rand(6, 40), rand(6, 40, seed=1).astype(jnp.float8_e5m2))
def float8(x, y):
    """Rows scaled and quantised, and back; a value beyond the largest is not a number, or infinite."""
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 448
    small = jnp.clip(x / scale, -448, 448).astype(jnp.float8_e4m3fn)
    large = (x * 1e9).astype(jnp.float8_e5m2)
    return (
        small, small.astype(jnp.float32) * scale, (x * 1e6).astype(jnp.float8_e4m3fn), large, jnp.isfinite(large),
        (y.astype(jnp.float32) * 2 + jnp.float8_e4m3fn(0.3).astype(jnp.float32)).astype(jnp.float8_e5m2), y + y,
        y.max(axis=0), y.T, lax.dot_general(small, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32),
        lax.bitcast_convert_type(small, np.uint8),
    )  # fmt: skip
