"""The element types of Programs as NumPy holds them. All are NumPy's own but bfloat16 and the floats of 8 bits, which
travel as their bits."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.dtypes import BFLOAT16

Numbers = NDArray[np.generic]


def _bfloat16_bits(values: Numbers) -> Numbers:
    """Rounded to nearest even once; NaN becomes 0x7fff, as on a GPU."""
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
    result: NDArray[np.uint16] = np.where(np.isnan(wide), 0x7FFF, rounded).astype(np.uint16)
    return result


def _bfloat16_values(bits: Numbers) -> Numbers:
    widened: NDArray[np.float32] = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened


@dataclass(frozen=True, slots=True)
class _Eight:
    """A float of 8 bits. `largest`: the code of the largest finite number, which is where larger ones and infinity end,
    as in CUDA's constructors; what is above it are NaNs, but for `infinity`."""

    fraction: int
    bias: int
    largest: int
    infinity: int | None

    @property
    def values(self) -> NDArray[np.float32]:
        """Of the codes 0 .. 127, in ascending order as far as they are finite."""
        codes = np.arange(128)
        exponent, rest = codes >> self.fraction, codes & ((1 << self.fraction) - 1)
        unit = 2.0 ** (np.maximum(exponent, 1) - self.bias - self.fraction)
        found = (((exponent > 0) << self.fraction) + rest) * unit
        found[self.largest + 1 :] = np.nan
        if self.infinity is not None:
            found[self.infinity] = np.inf
        result: NDArray[np.float32] = found.astype(np.float32)
        return result

    def bits_of(self, values: Numbers) -> Numbers:
        """Rounded to nearest even once; NaN becomes 0x7f."""
        wide = np.asarray(values, np.float64)
        size = np.abs(wide)
        finite = self.values[: self.largest + 1].astype(np.float64)
        halfway = (finite[1:] + finite[:-1]) / 2
        code = np.searchsorted(halfway, size)
        tie = size == halfway[np.minimum(code, len(halfway) - 1)]
        code += tie & (code % 2 == 1) & (code < len(halfway))
        signed = code | np.where(np.signbit(wide), 0x80, 0)
        result: NDArray[np.uint8] = np.where(np.isnan(wide), 0x7F, signed).astype(np.uint8)
        return result

    def values_of(self, bits: Numbers) -> Numbers:
        values = self.values
        found: NDArray[np.float32] = np.concatenate([values, -values])[bits.astype(np.intp)]
        return found


@dataclass(frozen=True, slots=True)
class Narrow:
    """A type that NumPy does not have. `bits` gives the bits of values, rounded once to nearest even; `values` what
    bits stand for, exactly, as float32."""

    held: np.dtype[np.generic]
    bits: Callable[[Numbers], Numbers]
    values: Callable[[Numbers], Numbers]


_E4M3 = _Eight(fraction=3, bias=7, largest=0x7E, infinity=None)
_E5M2 = _Eight(fraction=2, bias=15, largest=0x7B, infinity=0x7C)
NARROW: Mapping[str, Narrow] = {
    BFLOAT16: Narrow(np.dtype(np.uint16), _bfloat16_bits, _bfloat16_values),
    "float8_e4m3fn": Narrow(np.dtype(np.uint8), _E4M3.bits_of, _E4M3.values_of),
    "float8_e5m2": Narrow(np.dtype(np.uint8), _E5M2.bits_of, _E5M2.values_of),
}


@functools.cache
def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """What an array of these elements has as its dtype: unsigned integers for those of NARROW."""
    return NARROW[dtype].held if dtype in NARROW else np.dtype(dtype)


def readable(values: Numbers, dtype: str) -> Numbers:
    """What an array of these elements stands for: itself, but for those of NARROW."""
    return NARROW[dtype].values(values) if dtype in NARROW else values


def scalar(dtype: str, value: int | float) -> np.generic:
    """One value of this type. Raises OverflowError, TypeError or ValueError when it is none."""
    if dtype in NARROW:
        bits: np.generic = NARROW[dtype].bits(np.asarray([value], np.float64))[0]
        return bits
    made: np.generic = np.array(value, dtype=dtype).reshape(1)[0]
    return made
