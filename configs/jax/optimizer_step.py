"""A step of AdamW over a tree of parameters, with its gradients' norm clipped: nothing but work that can be fused.

    fusiond serve &
    python configs/jax/optimizer_step.py

Without a GPU: `python configs/jax/optimizer_step.py --here` (see llama_layer.py).
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import fusiond.jax

SHAPES = {"query": (64, 64), "up": (64, 160), "down": (160, 64), "scale": (64,), "shift": (64,)}


def step(p: Any, gradients: Any, state: dict[str, Any], *, rate: float = 1e-3) -> tuple[Any, dict[str, Any]]:
    """(parameters, gradients, state) -> the next parameters and state."""
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradients)

    def moved(p: Any, m: Any, v: Any) -> Any:
        return p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8) + 0.01 * p)

    return jax.tree.map(moved, p, first, second), {"count": count, "first": first, "second": second}


def example() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(the step, its arguments, what `jax.jit` is told)"""
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    p = {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)}
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return step, (p, p, {"count": jnp.float32(0), "first": zeros(p), "second": zeros(p)}), {"static_argnames": "rate"}


def main(here: bool) -> None:
    options: dict[str, Any] = {"block": True, "always": True, "search": {"trials": 1}} if here else {}
    function, (p, _, state), told = example()
    fused, plain = fusiond.jax.fuse(function, **told, **options), jax.jit(function, **told)
    ours, others = (p, state), (p, state)
    for _ in range(3):
        ours, others = fused(ours[0], ours[0], ours[1], rate=1e-2), plain(others[0], others[0], others[1], rate=1e-2)
    apart = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (ours, others)), strict=True))
    print(f"after 3 steps at most {apart:.0e} apart from jax.jit's")
    print(fusiond.jax.explain(fused, p, p, ours[1], rate=1e-2))


if __name__ == "__main__":
    main("--here" in sys.argv[1:])
