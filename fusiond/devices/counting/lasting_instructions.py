"""PTX instructions that no compiler removes, by SASS class: a bound from below where there is no SASS.

Moves, conversions of addresses, integer arithmetic and branches may vanish or be merged; so may a sum that becomes part
of a multiply-add.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusiond.model.ptx.flat import PtxInstruction

_SPECIAL = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt", "div")
_TOGETHER = ("shfl", "vote", "match", "redux")
_FLOATS = {"f32": "fp32", "f64": "fp64", "f16": "half", "bf16": "half", "f16x2": "half", "bf16x2": "half"}


def class_of(opcode: str) -> str | None:
    """None for what may vanish."""
    base, *rest = opcode.split(".")
    spaces = {each.partition("::")[0] for each in rest}
    if base in ("ld", "ldu", "st", "atom", "red"):
        if spaces & {"param", "const"}:
            return None
        return "shared" if "shared" in spaces else "local" if "local" in spaces else "global"
    if base in ("mma", "movmatrix") or (base in ("wmma", "wgmma") and {"mma", "mma_async"} & set(rest)):
        return "mma"
    if base in ("ldmatrix", "stmatrix"):
        return "shared"
    if base == "cp":
        return None if {"commit_group", "wait_group", "wait_all", "prefetch"} & set(rest) else "global"
    if base == "mbarrier":
        return "barrier"
    if base in _TOGETHER:
        return "shuffle"
    if base in ("bar", "barrier"):
        return None if "warp" in rest else "barrier"
    kind = _FLOATS.get(rest[-1]) if rest else None
    if base in _SPECIAL and kind == "fp32":
        return "sfu"
    if base in ("mul", "fma") or (base in ("add", "sub") and "rn" in rest):
        return kind
    return None


def warps(sources: Sequence[PtxInstruction], counts: NDArray[np.void]) -> dict[str, int]:
    """Instructions of warps by class."""
    found: dict[str, int] = {}
    seen: PtxInstruction | None = None
    for source, often in zip(sources, counts["warps"].tolist(), strict=True):
        kind = class_of(source.opcode)
        if kind is not None and source is not seen:
            found[kind] = found.get(kind, 0) + often
        seen = source
    return found
