"""The arguments of a launch: arrays by address, all else by its bytes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

HOST, GPU = "cpu", "cuda"


class Unseen(Exception):
    """An argument of which fusiond cannot tell what it is; the text says so in one line."""


@dataclass(frozen=True, slots=True)
class Array:
    """Memory. `dtype` is NumPy's name of its elements (`float32`); the span holds all of them, gaps included."""

    dtype: str
    address: int
    low: int
    high: int  #: Addresses: the first byte of the span, and the first behind it
    side: str  #: HOST or GPU

    @property
    def size_bytes(self) -> int:
        return self.high - self.low

    @property
    def data(self) -> bytes:
        return self.address.to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class TypedNumber:
    """A value of one of NumPy's types; a struct is `void`, no address is `null`, and memory of its own SCRATCH."""

    dtype: str
    data: bytes
    value: int | float | None = None  #: None of what is not a whole or real number


Argument: TypeAlias = Array | TypedNumber
NULL = TypedNumber("null", bytes(8))
SCRATCH = "scratch"  #: As a dtype: memory that a launch needs for itself, of `value` bytes; no bytes are handed over


def read(value: Any, *, widen: bool) -> Argument:
    """What an argument is. `widen`: Python's numbers have eight bytes, as CuPy passes them. Unseen."""
    if isinstance(value, np.generic):
        return number(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _array(interface, GPU)
    if isinstance(value, np.ndarray):
        # CuPy passes an array of one element by value.
        return number(value.ravel()[0]) if widen and value.size == 1 else _array(value.__array_interface__, HOST)
    if value is None:
        return NULL
    if isinstance(value, bool | int | float | complex):
        if not widen:
            raise Unseen(
                f"is a Python {type(value).__name__}, which has no width in CUDA: pass numpy.int32(...), "
                f"numpy.float32(...) or what the kernel takes"
            )
        return number(_widened(value))
    raise Unseen(f"is a {type(value).__name__}, whose memory cannot be located")


def _widened(value: bool | int | float | complex) -> np.generic:
    """As CuPy passes Python's numbers."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value) if value < 2**63 else np.uint64(value)
    return np.float64(value) if isinstance(value, float) else np.complex128(value)


def number(value: np.generic) -> TypedNumber:
    kind = value.dtype.kind
    plain = value.item() if kind in "iubf" else None
    return TypedNumber(value.dtype.name if kind != "V" else "void", value.tobytes(), plain)


def _array(interface: dict[str, Any], side: str) -> Array:
    dtype = np.dtype(interface["typestr"])
    address = int(interface["data"][0] or 0)
    shape, strides = interface["shape"], interface.get("strides")
    if strides is None or 0 in shape:
        return Array(dtype.name, address, address, address + math.prod(shape) * dtype.itemsize, side)
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    low = address + sum(step for step in steps if step < 0)
    high = address + sum(step for step in steps if step > 0) + dtype.itemsize
    return Array(dtype.name, address, low, high, side)


def overlap(spans: Iterable[tuple[Array, int, bool]]) -> tuple[int, int] | None:
    """Two launches, one of which writes what the other one touches; None where no two are so.

    spans: (array, number of its launch, whether that launch may write it)."""
    open_: list[tuple[Array, int, bool]] = []
    for array, launch, written in sorted(spans, key=lambda each: each[0].low):
        if array.size_bytes == 0:
            continue
        open_ = [each for each in open_ if each[0].high > array.low]
        for _, other, was_written in open_:
            if other != launch and (written or was_written):
                return (other, launch) if other < launch else (launch, other)
        open_.append((array, launch, written))
    return None
