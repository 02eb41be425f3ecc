"""PyTorch models whose element-wise work, reductions and normalisations run as kernels that fusiond has measured.

    model = torch.compile(model, backend="fusiond")     # as Inductor has it until there are answers, fused from then on
    print(fusiond.torch.explain(model))

The backend cuts AOTAutograd's graphs at library calls, asks the store for each region between them, and hands what is
unknown to the daemon. docs/frameworks.md has the whole of it.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.torch.backend import backend
    from fusiond.torch.explaining import Region, Report, explain

__all__ = ["Region", "Report", "backend", "explain"]

_HOMES = {"backend": "backend", "Region": "explaining", "Report": "explaining", "explain": "explaining"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fusiond.torch.{_HOMES[name]}"), name)
