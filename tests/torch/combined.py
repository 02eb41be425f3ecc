"""Functions whose launches by Inductor can come together."""

from __future__ import annotations

from typing import Any

import torch


def norms(a: Any, b: Any, c: Any) -> Any:
    """Of different inputs, and what stands beside them."""
    found = [torch.nn.functional.layer_norm(each, each.shape[-1:]) for each in (a, b)]
    return [*found, torch.softmax(c, -1), (c * 2).relu().sum(0)]


SHAPES = [(5, 7), (40,), (3, 100), (1,), (16, 16), (9, 2, 4)]


def adam(*tensors: Any) -> Any:
    """A step over parameters, their gradients and both of their moments."""
    for at in range(0, len(tensors), 4):
        p, g, m, v = tensors[at : at + 4]
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v.sqrt() + 1e-8, value=-0.01)
    return []


def adams(count: int = len(SHAPES)) -> list[Any]:
    return [torch.rand(shape) for shape in SHAPES[:count] for _ in range(4)]
