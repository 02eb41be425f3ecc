"""Triton's autotuning, with answers that are kept: measured once for a device and a key, and shared.

    @fusiond.triton.autotune(configs=[...], key=["n"])     # in the place of `triton.autotune`, with the same arguments
    @triton.jit
    def softmax(x, y, n, BLOCK: tl.constexpr): ...

    print(fusiond.triton.explain())

Nothing in the program waits: the daemon measures what is not known. docs/frameworks.md has the whole of it.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.triton.autotuning import ExplainedKey, KeysExplanation, autotune, explain

__all__ = ["ExplainedKey", "KeysExplanation", "autotune", "explain"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fusiond.triton.autotuning"), name)
