"""Tensor maps of the emulation: the 128 bytes of a CUtensorMap in a layout of its own, since NVIDIA's is not public.

    0 address  8 dimensions - 1  9 type  10 interleave  11 swizzle  12 fill  13 atomicity
    16 box[5]  36 element strides[5]  56 extents[5]  80 strides in bytes[4]                the innermost dimension first

`tensormap.replace` writes the same fields with the same codes, which are PTX's.
"""

import itertools
import operator
import struct
from collections.abc import Sequence

BYTES = 128
TYPES = (
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32.ftz", "float64", "bfloat16",
    "tfloat32", "tfloat32.ftz",
)  # fmt: skip
"""By their codes."""
_SIZES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
SWIZZLES = (0, 32, 64, 128)
FIELDS = {
    "global_address": (0, 8, 0), "rank": (8, 1, 0), "elemtype": (9, 1, 0), "interleave_layout": (10, 1, 0),
    "swizzle_mode": (11, 1, 0), "fill_mode": (12, 1, 0), "swizzle_atomicity": (13, 1, 0), "box_dim": (16, 4, 4),
    "element_stride": (36, 4, 4), "global_dim": (56, 4, 4), "global_stride": (80, 8, 8),
}  # fmt: skip
"""Field of tensormap.replace -> its offset, its bytes, and what lies between two of its elements."""


def tensor_map(
    address: int,
    dtype: str,
    shape: Sequence[int],
    box: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    element_strides: Sequence[int] | None = None,
    swizzle: int = 0,
    nan: bool = False,
) -> bytes:
    """The map of an array in global memory, for a parameter of type CUtensorMap.

    `shape` and `box` (elements in shared memory) go from the outermost dimension, as NumPy's do; `strides` in bytes,
    those of a C array where not given; `swizzle` in bytes: 0, 32, 64 or 128; `nan`: what fills elements outside of the
    array, else zeros. ValueError where cuTensorMapEncodeTiled would refuse it."""
    size = _SIZES[TYPES.index(dtype)]
    extents, boxes = list(reversed(shape)), list(reversed(box))
    steps = list(reversed(element_strides or [1] * len(shape)))
    if not 1 <= len(extents) <= 5 or not len(extents) == len(boxes) == len(steps):
        raise ValueError(f"a tensor map has one to five dimensions and a box of as many, not {shape} and {box}")
    whole = itertools.accumulate(extents[:-1], operator.mul, initial=size)  # of a C array
    held = list(whole if strides is None else reversed(strides))[1:]
    if address % 16 or any(each % 16 for each in held):
        raise ValueError("a tensor map's address and strides must be multiples of 16 bytes")
    if any(not 1 <= each <= 256 for each in boxes) or boxes[0] * size % 16:
        raise ValueError(f"a tensor map's box has 1 to 256 elements each way and rows of 16 bytes, not {tuple(box)}")
    if swizzle and boxes[0] * size > swizzle:
        raise ValueError(f"rows of {boxes[0] * size} bytes do not fit a swizzle of {swizzle}")
    fields = (len(extents) - 1, TYPES.index(dtype), 0, SWIZZLES.index(swizzle), int(nan), 0)
    lists = [*_five(boxes), *_five(steps), *_five(extents)]
    return struct.pack("<Q6B2x15I4x4Q16x", address, *fields, *lists, *(held + [0] * 4)[:4])


def _five(values: Sequence[int]) -> list[int]:
    return (list(values) + [1] * 5)[:5]
