"""Whether two outputs are the same, and if not, where they differ first and by how much."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.dtypes import is_float
from fusiond.model.language.narrow import readable
from fusiond.model.program import Buffer

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`worst` is the largest |a - b| / (atol + rtol * |b|) for floats (above 1 is wrong), the number of unequal
    elements for everything compared as equal."""

    equal: bool
    worst: float
    detail: str = ""


def compare(buffer: Buffer, reference: Array, actual: Array) -> Comparison:
    """Compare one output as its buffer says; both of shape (elements,). NaN equals NaN, an infinity only itself."""
    if reference.shape != actual.shape or reference.dtype != actual.dtype:
        detail = f"{buffer.name}: {actual.size} x {actual.dtype} for {reference.size} x {reference.dtype}"
        return Comparison(equal=False, worst=float("inf"), detail=detail)
    reference_bits, actual_bits = reference, actual
    reference, actual = readable(reference, buffer.dtype), readable(actual, buffer.dtype)
    if by_tolerance(buffer):
        error = _relative_error(reference, actual, buffer.compare.rtol, buffer.compare.atol)
        wrong = error > 1.0
        worst = float(error.max(initial=0.0))
    else:
        wrong = np.asarray(reference != actual)
        if np.issubdtype(reference.dtype, np.inexact):
            wrong &= ~(np.isnan(reference) & np.isnan(actual))
        worst = float(np.count_nonzero(wrong))
    if not wrong.any():
        return Comparison(equal=True, worst=worst)
    first = int(np.argmax(wrong))
    place = slice(first, first + 1)
    count = int(np.count_nonzero(wrong))
    wrong_ones = {"reference": reference_bits[place], "actual": actual_bits[place]}
    return difference(buffer, reference.size, count, worst, first, **wrong_ones)


def constant(buffer: Buffer, found: Array) -> str:
    """`0`, where every element of an output (more than one) holds that: equal to it proves little. Else an empty text.

    Elements are compared bit by bit, so NaN of one kind is constant, too."""
    words = found.view(f"u{found.dtype.itemsize}")
    if found.size < 2 or not np.array_equal(words[1:], words[:-1]):
        return ""
    return str(readable(found[:1], buffer.dtype)[0])


def by_tolerance(buffer: Buffer) -> bool:
    """Whether `worst` is an error, and not a count."""
    return buffer.compare.kind != "equal" and is_float(buffer.dtype)


def difference(
    buffer: Buffer, elements: int, count: int, worst: float, first: int, *, reference: Array, actual: Array
) -> Comparison:
    """What is said of an output of which `count` elements are wrong; `reference` and `actual` are arrays of one
    element, the first wrong one."""
    reference, actual = readable(reference, buffer.dtype), readable(actual, buffer.dtype)
    found = f"first at [{first}]: {actual[0]} instead of {reference[0]}"
    return Comparison(equal=False, worst=worst, detail=f"{buffer.name}: {count} of {elements} differ, {found}")


def _relative_error(reference: Array, actual: Array, rtol: float, atol: float) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # a signalling NaN is one, too
        expected = reference.astype(np.float64)
        found = actual.astype(np.float64)
        allowed = atol + rtol * np.abs(expected)
        error = np.abs(found - expected) / allowed
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    # What is left of NaN: inf - inf, a NaN on one side only, 0 / 0 allowed. All of them are wrong unless the same.
    error = np.where(np.isfinite(error) & np.isfinite(expected), error, np.inf)
    result: NDArray[np.float64] = np.where(same, 0.0, error)
    return result
