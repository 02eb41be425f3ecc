"""Functions of JAX whose element-wise work and reductions run as kernels that fusiond has measured.

    import fusiond.jax

    step = fusiond.jax.fuse(train_step)          # or @fusiond.jax.fuse; in the place of jax.jit
    state = step(state, batch)                   # jitted as it is until there are answers, fused from then on
    print(fusiond.jax.explain(step, state, batch))

`fuse` cuts the function at its library calls (dots, convolutions, sorts, loops, collectives: they stay XLA's), asks the
store for each region between them, and hands what is unknown to the daemon. docs/frameworks.md has the whole of it.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.jax.ffi import deserialize, export
    from fusiond.jax.fusing import Fused, explain, fuse
    from fusiond.service.frameworks.regions import Region, Report

_EXPORTING = ("deserialize", "export")
__all__ = ["Fused", "Region", "Report", "deserialize", "explain", "export", "fuse"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "fusiond.jax.ffi" if name in _EXPORTING else "fusiond.jax.fusing"
    return getattr(importlib.import_module(home), name)
