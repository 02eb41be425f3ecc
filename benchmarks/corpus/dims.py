"""What the corpus' functions are made of: sizes, shapes of arguments, and gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32
Traced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and the shapes of its arguments (trees of jax.ShapeDtypeStruct)."""


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes that the entries are made of."""

    batch: int
    length: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    tokens: int
    images: int
    side: int
    channels: int
    nodes: int
    edges: int
    features: int
    experts: int

    @property
    def rows(self) -> int:
        return self.batch * self.length


REAL = Dims(
    batch=8, length=2048, width=4096, heads=32, hidden=14336, vocabulary=128256, tokens=512, images=64, side=56,
    channels=256, nodes=100_000, edges=1_000_000, features=128, experts=8,
)  # fmt: skip
"""A llama-3-8B layer over 16,384 tokens, 128k logits, a ResNet stage, a graph of a million edges."""
SMALL = Dims(
    batch=2, length=12, width=32, heads=4, hidden=48, vocabulary=130, tokens=6, images=2, side=6, channels=16, nodes=20,
    edges=50, features=8, experts=4,
)  # fmt: skip


def of(*dims: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def library(name: str) -> Any:
    """flax.linen, optax or equinox. ModuleNotFoundError where it is not installed."""
    return importlib.import_module(name)


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of all floats among the arguments; the last argument is what comes from behind."""

    def pulled(*arguments: Any) -> Any:
        *given, behind = arguments
        return jax.vjp(function, *given)[1](behind)

    return pulled


def applied(module: Any, *inputs: Any, **options: Any) -> Traced:
    """A flax module as a function of its variables and inputs."""
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *(jnp.zeros(x.shape, x.dtype) for x in inputs)))
    return lambda variables, *given: module.apply(variables, *given, **options), (variables, *inputs)


def backward(traced: Traced) -> Traced:
    """The gradients of a function by its arguments."""
    function, shapes = traced
    return gradient(function), (*shapes, jax.eval_shape(function, *shapes))


def logits(d: Dims) -> Any:
    return of(d.tokens, d.vocabulary)


def labels(d: Dims) -> Any:
    return of(d.tokens, dtype=S32)


def values(d: Dims) -> Any:
    return of(d.rows, d.width)
