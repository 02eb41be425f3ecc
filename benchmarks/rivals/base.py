"""What a rival is, and how far its outputs are from ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.base import Loaded
from fusiond.devices.compare import compare
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.model.language.narrow import readable
from fusiond.model.program import Buffer, Program

Array = NDArray[np.generic]
About = Mapping[str, Any]  #: What a rival has to know of the work beside our Program, as JSON


class Rival(Protocol):
    """One way of doing the work of a strategy's Programs."""

    @property
    def name(self) -> str: ...

    @property
    def what(self) -> str:
        """How it does the work, for a reader of the table."""
        ...

    @property
    def close(self) -> float:
        """How far an output may be from ours (`difference`), where it is not as near as its buffer demands."""
        ...

    def missing(self) -> str:
        """What lacks here, with the remedy; empty when it may run. Request in any process, so nothing is imported."""
        ...

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        """Ready to run, its inputs not yet written; buffers are named as those of `program`, which is ours. Whatever it
        raises is the reason of its row."""
        ...


def bundle(about: About, name: str) -> Path:
    """The folder of a bundle that a rival needs. LookupError when there is none."""
    found = about.get("bundles", {}).get(name)
    if found is None:
        raise LookupError(f"there is no bundle of {name!r} to run")
    return Path(found)


def difference(buffer: Buffer, ours: Array, theirs: Array) -> float:
    """The largest difference over the largest element (floats), or the share of unequal elements (all else). Infinite
    where the one is finite and the other is not, and for another number or type of elements."""
    ours, theirs = ours.reshape(-1), theirs.reshape(-1)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return math.inf
    ours, theirs = readable(ours, buffer.dtype), readable(theirs, buffer.dtype)
    if not np.issubdtype(ours.dtype, np.floating):
        return compare(buffer, ours, theirs).worst / max(1, ours.size)
    finite = np.isfinite(ours)
    if not np.array_equal(finite, np.isfinite(theirs)):
        return math.inf
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    mine, yours = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    largest = float(np.abs(mine).max())
    return float(np.abs(mine - yours).max()) / (largest or 1.0)
