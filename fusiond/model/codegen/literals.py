"""Numbers as C++ text, exact in the precision of their type."""

import math
import struct

from fusiond.model.codegen.code import Code
from fusiond.model.language.dtypes import DTYPES, whole_numbers


def literal(value: float | int | bool, dtype: str) -> Code:
    """A constant of an element type, as a kernel computes with it: floats of 16 bits are computed in `float`. Whole
    numbers wrap round into the type's range; a float beyond `float` is infinite."""
    of = DTYPES[dtype]
    if dtype == "bool":
        return Code("true" if value else "false")
    if of.floating:
        return Code(_floating(float(value), double=of.bytes == 8))
    return Code(_whole(int(value), dtype))


def _whole(value: int, dtype: str) -> str:
    least, most = whole_numbers(dtype)
    value = (value - least) % (most - least + 1) + least
    wide = DTYPES[dtype].bytes == 8
    if least == 0:
        return f"{value}{'ULL' if wide else 'u'}"
    suffix = "LL" if wide else ""
    if value == least and DTYPES[dtype].bytes >= 4:  # its digits alone would be too large a number
        return f"(-{most}{suffix} - 1)"
    return f"{value}{suffix}"


def _floating(number: float, *, double: bool) -> str:
    if math.isnan(number):
        return "(double)NAN" if double else "NAN"
    if not double:
        number = _single(number)
    if math.isinf(number):
        word = "(double)INFINITY" if double else "INFINITY"
        return f"-{word}" if number < 0 else word
    return _shortest(number, double=double) + ("" if double else "f")


def _single(number: float) -> float:
    try:
        held: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return held


def _shortest(number: float, *, double: bool) -> str:
    """The fewest digits that are exactly this number."""
    if number.is_integer() and abs(number) < 1e7:
        return f"{number:.1f}"
    text = repr(number)
    if not double:
        text = next(each for digits in range(1, 10) if _single(float(each := f"{number:.{digits}g}")) == number)
    return text if any(mark in text for mark in ".en") else f"{text}.0"
