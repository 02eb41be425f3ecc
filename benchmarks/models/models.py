"""The models, for whatever has arrays with operators: `ops` is `in_jax` or `in_torch`, which have what differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Tree: TypeAlias = Mapping[str, Any]
DTYPES = ("float32", "bfloat16")  #: Of activations; parameters, statistics and the optimizer's state are float32
EPSILON = 1e-5
RATE, BETAS, DECAY, TINIEST, CLIP = 6e-4, (0.9, 0.95), 0.1, 1e-8, 1.0
"""AdamW's, and the largest norm of all gradients; matrices decay, vectors do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a model, and of the batch that it is trained with. No layers: one of llama's; else GPT-2's."""

    layers: int
    width: int
    heads: int
    hidden: int
    length: int
    batch: int
    vocabulary: int = 0


REAL: Mapping[str, Sizes] = {
    "gpt2": Sizes(layers=12, width=768, heads=12, hidden=3072, length=1024, batch=8, vocabulary=50257),
    "llama": Sizes(layers=0, width=4096, heads=32, hidden=11008, length=2048, batch=1),
}
TINY: Mapping[str, Sizes] = {
    "gpt2": Sizes(layers=2, width=32, heads=4, hidden=64, length=12, batch=2, vocabulary=50),
    "llama": Sizes(layers=0, width=32, heads=4, hidden=48, length=12, batch=2),
}
STEPS = tuple(f"{model}/{dtype}/{each}" for model in REAL for dtype in DTYPES for each in ("jax", "torch"))


def shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    """Parameter -> its shape."""
    w, h = s.width, s.hidden
    if not s.layers:
        found = {"norm_1": (w,), "norm_2": (w,), "gate": (w, h), "up": (w, h), "down": (h, w)}
        return {**found, **dict.fromkeys(("query", "key", "value", "out"), (w, w))}
    norms = dict.fromkeys(("norm_1", "shift_1", "norm_2", "shift_2"), (w,))
    matrices = {"mixed": (w, 3 * w), "out": (w, w), "up": (w, h), "down": (h, w)}
    layer = {**norms, **matrices, **{f"{name}_bias": (wide,) for name, (_, wide) in matrices.items()}}
    found = {f"{number}.{name}": shape for number in range(s.layers) for name, shape in layer.items()}
    return {"tokens": (s.vocabulary, w), "places": (s.length, w), **found, "norm": (w,), "shift": (w,)}


def arrays(s: Sizes, seed: int | None = None) -> tuple[Any, ...]:
    """The arguments of a step: parameters, AdamW's state, tokens and those that follow them; or parameters and
    activations. Without a seed they have shapes and no memory; with one they are in the middle of a training, since
    AdamW's first update is a sign, which no two ways of computing need to agree on."""
    random = np.random.default_rng(seed)

    def made(name: str, shape: tuple[int, ...], dtype: type = np.float32) -> Any:
        if seed is None:
            return np.broadcast_to(dtype(0), shape)
        if dtype is np.int32:
            return np.asarray(10 if name == "count" else random.integers(0, s.vocabulary, shape), np.int32)
        values = random.standard_normal(shape, np.float32)
        if name.startswith("second"):
            return np.float32(1e-4) * (1 + np.abs(values))
        if name == "x":
            return values
        wide = len(shape) > 1 and name not in ("tokens", "places")
        return np.float32("norm" in name) + values * np.float32(shape[0] ** -0.5 if wide else 0.02)

    def tree(of: str = "") -> Tree:
        return {name: made(of + name, shape) for name, shape in shapes(s).items()}

    if not s.layers:
        return tree(), made("x", (s.batch, s.length, s.width))
    tokens = [made("", (s.batch, s.length), np.int32) for _ in range(2)]
    return tree(), {"count": made("count", (), np.int32), "first": tree("first "), "second": tree("second ")}, *tokens


def loss(ops: Any, s: Sizes, dtype: str) -> Callable[..., Any]:
    """Of parameters, tokens and those that follow them; or of parameters and activations."""

    def times(x: Any, p: Tree, name: str) -> Any:
        found, bias = x @ ops.cast(p[name], dtype), p.get(f"{name}_bias")
        return found if bias is None else found + ops.cast(bias, dtype)

    def attention(*parts: Any, turn: Callable[[Any], Any] = lambda x: x) -> Any:
        query, key, value = (each.reshape(s.batch, s.length, s.heads, -1) for each in parts)
        mixed = ops.attention(turn(query), turn(key), value, 1 / math.sqrt(s.width // s.heads))
        return mixed.reshape(s.batch, s.length, s.width)

    def rms_norm(x: Any, scale: Any) -> Any:
        wide = ops.cast(x, "float32")
        return ops.cast(wide * ops.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON) * scale, dtype)

    def gpt2(p: Tree, tokens: Any, targets: Any) -> Any:
        x = ops.cast(ops.embedding(p["tokens"], tokens) + p["places"], dtype)
        for number in range(s.layers):
            q = {name.partition(".")[2]: each for name, each in p.items() if name.startswith(f"{number}.")}
            mixed = times(ops.layer_norm(x, q["norm_1"], q["shift_1"]), q, "mixed")
            x = x + times(attention(*ops.split(mixed, 3)), q, "out")
            x = x + times(ops.gelu(times(ops.layer_norm(x, q["norm_2"], q["shift_2"]), q, "up")), q, "down")
        logits = ops.layer_norm(x, p["norm"], p["shift"]) @ ops.cast(p["tokens"].T, dtype)
        return ops.cross_entropy(ops.cast(logits, "float32"), targets)

    def llama(p: Tree, x: Any) -> Any:
        """The mean square of what the layer gives."""
        x = ops.cast(x, dtype)
        normed = rms_norm(x, p["norm_1"])
        parts = (times(normed, p, each) for each in ("query", "key", "value"))
        x = x + times(attention(*parts, turn=ops.rope), p, "out")
        normed = rms_norm(x, p["norm_2"])
        x = ops.cast(x + times(ops.silu(times(normed, p, "gate")) * times(normed, p, "up"), p, "down"), "float32")
        return (x * x).mean()

    return gpt2 if s.layers else llama


def adamw(ops: Any, p: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
    """AdamW over the tree, behind a clip of the norm of all gradients."""
    norm = ops.sqrt(sum((each * each).sum() for each in gradients.values()))
    share = ops.clip(CLIP / (norm + 1e-6), max=1.0)
    count = state["count"] + 1
    corrected = [1 - beta**count for beta in BETAS]
    parameters, first, second = {}, {}, {}
    for name, old in p.items():
        g = gradients[name] * share
        first[name] = BETAS[0] * state["first"][name] + (1 - BETAS[0]) * g
        second[name] = BETAS[1] * state["second"][name] + (1 - BETAS[1]) * g * g
        by = first[name] / corrected[0] / (ops.sqrt(second[name] / corrected[1]) + TINIEST)
        parameters[name] = old - RATE * (by + (DECAY * old if old.ndim > 1 else 0.0))
    return parameters, {"count": count, "first": first, "second": second}
