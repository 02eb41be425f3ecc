"""A layer norm, a GELU and a cross entropy in PyTorch, forward and backward, with their regions fused.

    fusiond serve &
    python configs/torch/normalisation_loss.py

Without a GPU: `python configs/torch/normalisation_loss.py --here` tunes on the processor, in this process and emulated,
to try it out; such answers say nothing of how fast a GPU is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn import functional

import fusiond.torch


class Head(torch.nn.Module):  # type: ignore[misc] # without torch it is anything
    """(rows, width), whole numbers below `classes` -> the mean loss."""

    def __init__(self, width: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, classes)

    def forward(self, x: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.out(functional.gelu(self.norm(x))), labels)


def main(here: bool) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() and not here else "cpu"
    head = Head().to(device)
    x, labels = torch.randn(32, 64, device=device), torch.randint(0, 40, (32,), device=device)
    options: dict[str, Any] = {"block": True, "always": True, "search": {"trials": 1}, "fallback": "eager"}
    fused = torch.compile(head, backend="fusiond", options=options if here else {})

    def step(model: Any) -> tuple[float, list[Any]]:
        head.zero_grad()
        loss = model(x, labels)
        loss.backward()
        return loss.item(), [each.grad.clone() for each in head.parameters()]

    (loss, gradients), (plain, others) = step(fused), step(head)
    apart = max(float((a - b).abs().max()) for a, b in zip(gradients, others, strict=True))
    print(f"loss {loss:.5f}, by eager PyTorch {plain:.5f}; gradients at most {apart:.0e} apart")
    print(fusiond.torch.explain(fused))


if __name__ == "__main__":
    main("--here" in sys.argv[1:])
