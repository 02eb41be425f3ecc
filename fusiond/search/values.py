"""What the model is told of values: standardised, and of many the ones that matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusiond.search.gaussian import Reals

CLIPPED = 0.3
"""This share of the values, the slowest, count as the fastest of them."""


def standardised(values: Reals, failed: NDArray[np.bool_]) -> Reals:
    """Values with mean 0 and variance 1, NaN where they are out. The lowest are clipped: how slow the slow ones are
    says nothing about the fast ones, and takes lengths for it. What failed is as slow as the slowest then."""
    known = np.isfinite(values) | failed
    found = np.full(len(values), np.nan)
    measured = values[np.isfinite(values)]
    if known.any():
        lowest = float(np.quantile(measured, CLIPPED)) if len(measured) else 0.0
        told = np.maximum(np.where(failed, lowest, values)[known], lowest)
        found[known] = (told - told.mean()) / (told.std() + 1e-9)
    return found


def chosen(values: Reals, many: int) -> list[int]:
    """Up to so many of them, in order: the best half, and of the others every so many."""
    if len(values) <= many:
        return list(range(len(values)))
    order = np.argsort(-values, kind="stable")
    rest = order[many // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, many - many // 2).round().astype(int)]
    return sorted({*order[: many // 2].tolist(), *spread.tolist()})
