"""Functions at the sizes that people train and serve with, 10^9 elements most of them, and at sizes at which every
element can be looked at. jax lowers them; nothing here is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True, eq=False)
class Sized:
    """A function of arrays, and their shapes at both sizes."""

    function: Callable[..., Any]
    real: tuple[jax.ShapeDtypeStruct, ...]
    small: tuple[jax.ShapeDtypeStruct, ...]

    def text(self, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> str:
        """HLO as jax lowers it for these shapes, before XLA."""
        return str(jax.jit(self.function).lower(*shapes).as_text(dialect="hlo"))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1).mean()


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def group_norm(x: jax.Array) -> jax.Array:
    y = x.reshape(*x.shape[:3], 4, -1)
    y = (y - y.mean((1, 2, 4), keepdims=True)) * jax.lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def stencil(x: jax.Array) -> jax.Array:
    return x + 0.1 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) - 4 * x)


def odd_rows(x: jax.Array) -> jax.Array:
    """Rows of 30011 (a prime), or of 31 where there are few."""
    return jax.nn.softmax(x.reshape(-1, 30011 if x.size > 30011 else 31)).sum(0)


def backward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of all arguments; the last one given is that of the result."""
    return lambda *given: jax.vjp(function, *given[:-1])[1](given[-1])


def _of(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


FUNCTIONS: Mapping[str, Sized] = {
    "softmax": Sized(function=jax.nn.softmax, real=(_of(16384, 4096),), small=(_of(64, 128),)),
    "softmax of 10^9": Sized(function=jax.nn.softmax, real=(_of(262144, 4096),), small=(_of(128, 64),)),
    "softmax of one row": Sized(function=jax.nn.softmax, real=(_of(1, 1 << 30),), small=(_of(1, 1 << 12),)),
    "softmax of odd rows": Sized(function=odd_rows, real=(_of(33331 * 30011),), small=(_of(37 * 31),)),
    "cross-entropy, gradient": Sized(
        function=jax.grad(cross_entropy),
        real=(_of(8192, 128256), _of(8192, dtype=jnp.int32)),
        small=(_of(32, 256), _of(32, dtype=jnp.int32)),
    ),
    "layer norm, backward": Sized(
        function=backward(layer_norm),
        real=(_of(262144, 4096), _of(4096), _of(262144, 4096)),
        small=(_of(64, 96), _of(96), _of(64, 96)),
    ),
    "group norm, backward": Sized(
        function=backward(group_norm), real=(_of(256, 128, 128, 256),) * 2, small=(_of(4, 8, 8, 32),) * 2
    ),
    "attention, backward": Sized(
        function=backward(attention), real=(_of(4, 4096, 16, 64),) * 4, small=(_of(2, 16, 4, 8),) * 4
    ),
    "stencil": Sized(function=stencil, real=(_of(32768, 32768),), small=(_of(64, 128),)),
    "running sums": Sized(function=lambda x: jnp.cumsum(x, 1), real=(_of(16384, 65536),), small=(_of(16, 256),)),
}
"""`real`: 1.0e9 elements in the largest tensor or more, but for the first."""
