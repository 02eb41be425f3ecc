"""The element types of buffers and scalars: name, size and range.

Only the standard library is imported here; `fusiond.model.language.narrow` has them as NumPy does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of elements."""

    name: str  #: NumPy's name, where it has the type, else that of ml_dtypes
    cuda: str  #: In CUDA C++
    bytes: int
    packed: str | None  #: The letter that the standard library's `struct` has for it
    tolerance: tuple[float, float] | None = None
    """(rtol, atol) of a few units in the last place of a short sum; None: results must be equal."""
    header: str | None = None  #: The CUDA header that declares it

    @property
    def floating(self) -> bool:
        return self.tolerance is not None


DTYPES: Mapping[str, ElementType] = {
    each.name: each
    for each in (
        ElementType("bool", "bool", 1, "?"),
        ElementType("int8", "signed char", 1, "b"),
        ElementType("uint8", "unsigned char", 1, "B"),
        ElementType("float8_e4m3fn", "__nv_fp8_e4m3", 1, None, (0.25, 0.05), "cuda_fp8.h"),
        ElementType("float8_e5m2", "__nv_fp8_e5m2", 1, None, (0.5, 0.1), "cuda_fp8.h"),
        ElementType("int16", "short", 2, "h"),
        ElementType("uint16", "unsigned short", 2, "H"),
        ElementType("float16", "__half", 2, "e", (1e-2, 1e-3), "cuda_fp16.h"),
        ElementType(BFLOAT16, "__nv_bfloat16", 2, None, (4e-2, 8e-3), "cuda_bf16.h"),
        ElementType("int32", "int", 4, "i"),
        ElementType("uint32", "unsigned int", 4, "I"),
        ElementType("float32", "float", 4, "f", (1e-4, 1e-6)),
        ElementType("int64", "long long", 8, "q"),
        ElementType("uint64", "unsigned long long", 8, "Q"),
        ElementType("float64", "double", 8, "d", (1e-10, 1e-12)),
    )
}


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].floating


def whole_numbers(dtype: str) -> tuple[int, int]:
    """The least and the largest value of a type of whole numbers, or of truth values."""
    if dtype == "bool":
        return 0, 1
    bits = 8 * DTYPES[dtype].bytes
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
