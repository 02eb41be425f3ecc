"""What the models are made of in PyTorch, and a training step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.models import models

clip, sqrt, rsqrt, silu = torch.clip, torch.sqrt, torch.rsqrt, functional.silu


def cast(x: Any, dtype: str) -> Any:
    return x.to(getattr(torch, dtype))


def split(x: Any, parts: int) -> Any:
    return x.chunk(parts, -1)


def embedding(table: Any, tokens: Any) -> Any:
    return functional.embedding(tokens, table)


def gelu(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return functional.layer_norm(x.float(), scale.shape, scale, shift, models.EPSILON).to(x.dtype)


def rope(x: Any) -> Any:
    """(batch, length, heads, width of a head), its two halves turned by the place in the sequence."""
    length, width = x.shape[1], x.shape[-1]
    turns = 1e4 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angles = (torch.arange(length, device=x.device)[:, None] * turns)[:, None]
    cos, sin, (low, high) = angles.cos(), angles.sin(), split(x.float(), 2)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def attention(query: Any, key: Any, value: Any, scale: float) -> Any:
    """Causal, with the scores in memory; each (batch, length, heads, width of a head)."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    scores = (query @ key.transpose(2, 3)).float() * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril().logical_not()
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return (weights.to(value.dtype) @ value).transpose(1, 2)


def cross_entropy(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


def step(s: models.Sizes, dtype: str, **compiling: Any) -> Callable[..., Any]:
    """The training step; the loss and the optimizer are two graphs, each by `torch.compile` with these options, if
    there are any."""
    ops = sys.modules[__name__]
    loss: Any = models.loss(ops, s, dtype)

    def update(*given: Any) -> Any:
        return models.adamw(ops, *given)

    if compiling:
        loss, update = (torch.compile(each, dynamic=False, fullgraph=True, **compiling) for each in (loss, update))

    def stepped(p: Any, *rest: Any) -> Any:
        own = {name: each.detach().requires_grad_() for name, each in p.items()}
        value = loss(own, *rest[1 if s.layers else 0 :])
        gradients = dict(zip(own, torch.autograd.grad(value, tuple(own.values())), strict=True))
        return (value, *update(p, gradients, rest[0])) if s.layers else (value, gradients)

    return stepped
