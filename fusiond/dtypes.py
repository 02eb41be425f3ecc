"""The element types of Programs as NumPy holds them. All are NumPy's own but bfloat16, which travels as its bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]

BFLOAT16 = "bfloat16"


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """What an array of these elements has as its dtype: uint16 for bfloat16."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def is_float(dtype: str) -> bool:
    return dtype == BFLOAT16 or np.issubdtype(np.dtype(dtype), np.floating)


def bfloat16_bits(values: NDArray[np.generic]) -> Bits:
    """The bits of each value as bfloat16, rounded to nearest even once; NaN becomes 0x7fff, as on a GPU."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wide = np.asarray(values, np.float64)
        near = wide.astype(np.float32)
    bits = near.view(np.uint32).copy()
    # Rounded to odd first, so that what float32 cut off still tells a tie from what is beyond it.
    back = near.astype(np.float64)
    inexact = (back != wide) & ~np.isnan(wide) & (bits & 1 == 0)
    short = inexact & (np.abs(back) < np.abs(wide))
    bits[short] += 1
    bits[inexact & ~short] -= 1
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    result: Bits = np.where(np.isnan(wide), 0x7FFF, rounded).astype(np.uint16)
    return result


def bfloat16_values(bits: NDArray[np.generic]) -> NDArray[np.float32]:
    """The values that bits stand for, exactly."""
    widened: NDArray[np.float32] = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened


def scalar(dtype: str, value: int | float) -> np.generic:
    """One value of this type. Raises OverflowError, TypeError or ValueError when it is none."""
    if dtype == BFLOAT16:
        bits: np.generic = bfloat16_bits(np.asarray([value], np.float64))[0]
        return bits
    made: np.generic = np.array(value, dtype=dtype).reshape(1)[0]
    return made
