"""A llama layer's forward and backward in JAX, with its element-wise work and reductions fused.

    fusiond serve &
    python configs/jax/llama_layer.py

Without a GPU: `python configs/jax/llama_layer.py --here` tunes on the processor, in this process and emulated, to try
it out; such answers say nothing of how fast a GPU is.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

import fusiond.jax

WIDTH, HEADS, HIDDEN, LENGTH = 64, 4, 160, 16


def rms(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def rope(x: Any) -> Any:
    length, width = x.shape[-3], x.shape[-1]
    angles = jnp.outer(jnp.arange(length), 1e4 ** (-jnp.arange(0, width, 2) / width))[:, None]
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [low * jnp.cos(angles) - high * jnp.sin(angles), high * jnp.cos(angles) + low * jnp.sin(angles)], -1
    )


def layer(p: dict[str, Any], x: Any) -> Any:
    """(batch, length, WIDTH) -> the same."""
    batch, length, _ = x.shape
    normed = rms(x, p["attention_norm"])
    query, key, value = ((normed @ p[name]).reshape(batch, length, HEADS, -1) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", rope(query), rope(key)) / jnp.sqrt(query.shape[-1])
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, WIDTH) @ p["out"]
    normed = rms(x, p["mlp_norm"])
    return x + (jax.nn.silu(normed @ p["gate"]) * (normed @ p["up"])) @ p["down"]


def loss(p: dict[str, Any], x: Any) -> Any:
    return (layer(p, x) ** 2).mean()


def parameters(key: Any) -> dict[str, Any]:
    shapes = {
        **dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH)),
        **dict.fromkeys(("gate", "up"), (WIDTH, HIDDEN)), "down": (HIDDEN, WIDTH),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    found = {name: jax.random.normal(k, s) * s[0] ** -0.5 for k, (name, s) in zip(keys, shapes.items(), strict=True)}
    return {**found, "attention_norm": jnp.ones(WIDTH), "mlp_norm": jnp.ones(WIDTH)}


def example() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(the step, its arguments, what `jax.jit` is told)"""
    x = jax.random.normal(jax.random.key(1), (2, LENGTH, WIDTH))
    return jax.value_and_grad(loss), (parameters(jax.random.key(0)), x), {}


def main(here: bool) -> None:
    options: dict[str, Any] = {"block": True, "always": True, "search": {"trials": 1}} if here else {}
    function, (p, x), _ = example()
    step = fusiond.jax.fuse(function, **options)
    found, gradients = step(p, x)
    wanted, others = jax.jit(jax.value_and_grad(loss))(p, x)
    apart = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (gradients, others)), strict=True))
    print(f"loss {found:.5f}, by jax.jit {wanted:.5f}; gradients at most {apart:.0e} apart")
    print(fusiond.jax.explain(step, p, x))


if __name__ == "__main__":
    main("--here" in sys.argv[1:])
