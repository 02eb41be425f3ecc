"""What the models are made of in JAX, and a training step: a function of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import models

clip, sqrt, rsqrt, silu, gelu = jnp.clip, jnp.sqrt, jax.lax.rsqrt, jax.nn.silu, jax.nn.gelu


def cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def split(x: Any, parts: int) -> Any:
    return jnp.split(x, parts, axis=-1)


def embedding(table: Any, tokens: Any) -> Any:
    return table[tokens]


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x.astype(jnp.float32) - x.astype(jnp.float32).mean(-1, keepdims=True)
    normed = centred * rsqrt((centred * centred).mean(-1, keepdims=True) + models.EPSILON)
    return (normed * scale + shift).astype(x.dtype)


def rope(x: Any) -> Any:
    """(batch, length, heads, width of a head), its two halves turned by the place in the sequence."""
    length, width = x.shape[1], x.shape[-1]
    angles = (jnp.arange(length)[:, None] * 1e4 ** (-jnp.arange(0, width, 2) / width))[:, None]
    cos, sin, (low, high) = jnp.cos(angles), jnp.sin(angles), split(x.astype(jnp.float32), 2)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1).astype(x.dtype)


def attention(query: Any, key: Any, value: Any, scale: float) -> Any:
    """Causal, with the scores in memory; each (batch, length, heads, width of a head)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) * scale
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(value.dtype), value)


def cross_entropy(logits: Any, targets: Any) -> Any:
    taken = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - taken).mean()


def step(s: models.Sizes, dtype: str) -> Callable[..., Any]:
    """The training step, as it is handed to `jax.jit` or `fuse`."""
    ops = sys.modules[__name__]
    differentiated = jax.value_and_grad(models.loss(ops, s, dtype))

    def gpt2(p: Any, state: Any, tokens: Any, targets: Any) -> Any:
        value, gradients = differentiated(p, tokens, targets)
        return value, *models.adamw(ops, p, gradients, state)

    return gpt2 if s.layers else differentiated
