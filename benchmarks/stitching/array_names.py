"""What NumPy and PyTorch have no common name for, as the interpreter of HLO modules needs it (`arrays`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fusiond.language.narrow import NARROW
from fusiond_stitching.frontend.graph import DTYPES

NO_ARITHMETIC = ("u16", "u32", "u64")


class NoCounterpart(Exception):
    """The array module cannot compute an instruction; which, and why, in one line."""


class Names(Protocol):
    """An array module. Element types are HLO's; arrays are Any: each module has a type of its own."""

    title: str
    module: Any
    integer_dots: bool
    """Whether it multiplies matrices of integers wherever it runs."""

    def type(self, dtype: str) -> Any:
        """NoCounterpart where there are no arrays of it."""
        ...

    def has(self, opcode: str) -> bool:
        """Whether it knows an operation by a name of its own."""
        ...

    def function(self, opcode: str, same: str) -> Callable[..., Any]:
        """The function for an opcode; `same` is the name of it that both modules know. NoCounterpart without one."""
        ...

    def entered(self, array: Any, dtype: str) -> Any:
        """The elements of a Program's buffer."""
        ...

    def left(self, array: Any) -> Any:
        """Elements for a Program's buffer, flat."""
        ...

    def full(self, dims: Sequence[int], value: float, dtype: str) -> Any: ...

    def array(self, values: Sequence[float], dtype: str) -> Any:
        """A constant, flat."""
        ...

    def counted(self, size: int, dtype: str) -> Any:
        """0 .. size-1."""
        ...

    def converted(self, array: Any, dtype: str) -> Any: ...

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        """Dimension i is dimension order[i] of the operand."""
        ...

    def clipped(self, array: Any, low: int, high: int) -> Any: ...

    def copied(self, array: Any) -> Any:
        """Whose elements may be written."""
        ...

    def added(self, array: Any, places: tuple[Any, ...], values: Any) -> Any:
        """The array with values added at places, which may be the same twice."""
        ...

    def reduced(self, opcode: str, array: Any, dimensions: Sequence[int]) -> Any:
        """add, multiply, maximum, minimum; and, or of predicates. In the array's own type."""
        ...

    def divided(self, left: Any, right: Any) -> Any:
        """Integers, towards zero; `right` is neither 0 nor -1."""
        ...

    def remainder(self, left: Any, right: Any) -> Any:
        """Integers, with the sign of `left`."""
        ...


class NumPyNames:
    title = "NumPy"
    module = np
    integer_dots = True
    own: Mapping[str, Callable[..., Any]] = {
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "logistic": lambda x: 1 / (1 + np.exp(-x)),
        "cbrt": np.cbrt,
        "sign": np.sign,
        "power": np.power,
    }

    def type(self, dtype: str) -> Any:
        if DTYPES[dtype] in NARROW:
            raise NoCounterpart(f"NumPy has no arithmetic of {dtype}")
        return np.dtype(DTYPES[dtype])

    def has(self, opcode: str) -> bool:
        return opcode in self.own

    def function(self, opcode: str, same: str) -> Callable[..., Any]:
        found: Callable[..., Any] = self.own[opcode] if opcode in self.own else getattr(np, same)
        return found

    def entered(self, array: Any, dtype: str) -> Any:
        return array

    def left(self, array: Any) -> Any:
        return np.asarray(array).reshape(-1)

    def full(self, dims: Sequence[int], value: float, dtype: str) -> Any:
        return np.full(tuple(dims), value, self.type(dtype))

    def array(self, values: Sequence[float], dtype: str) -> Any:
        return np.array(values, self.type(dtype))

    def counted(self, size: int, dtype: str) -> Any:
        return np.arange(size).astype(self.type(dtype))

    def converted(self, array: Any, dtype: str) -> Any:
        return np.asarray(array).astype(self.type(dtype))

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        return np.transpose(array, tuple(order))

    def clipped(self, array: Any, low: int, high: int) -> Any:
        return np.clip(array, low, high)

    def copied(self, array: Any) -> Any:
        return np.array(array)

    def added(self, array: Any, places: tuple[Any, ...], values: Any) -> Any:
        np.add.at(array, places, values)
        return array

    def reduced(self, opcode: str, array: Any, dimensions: Sequence[int]) -> Any:
        names = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "and": "all", "or": "any"}
        more = {"dtype": array.dtype} if opcode in ("add", "multiply") else {}
        return getattr(np, names[opcode])(array, axis=tuple(dimensions), **more)

    def divided(self, left: Any, right: Any) -> Any:
        return (left - np.fmod(left, right)) // right

    def remainder(self, left: Any, right: Any) -> Any:
        return np.fmod(left, right)


class TorchNames:
    """PyTorch on a device (`cuda`, `cpu`). It has no arithmetic of unsigned integers of more than 8 bits."""

    title = "PyTorch"
    integer_dots = False

    def __init__(self, torch: Any, device: str) -> None:
        self.module, self.device = torch, device
        self.own: Mapping[str, Callable[..., Any]] = {
            "rsqrt": torch.rsqrt,
            "logistic": torch.sigmoid,
            "erf": torch.erf,
            "sign": lambda x: torch.where(x != x, x, torch.sign(x)),
            "power": torch.pow,
        }

    def type(self, dtype: str) -> Any:
        if dtype in NO_ARITHMETIC:
            raise NoCounterpart(f"PyTorch has no arithmetic of {DTYPES[dtype]}")
        return getattr(self.module, DTYPES[dtype])

    def has(self, opcode: str) -> bool:
        return opcode in self.own

    def function(self, opcode: str, same: str) -> Callable[..., Any]:
        found: Callable[..., Any] = self.own[opcode] if opcode in self.own else getattr(self.module, same)
        return found

    def entered(self, array: Any, dtype: str) -> Any:
        return array.view(self.module.bfloat16) if dtype == "bf16" else array

    def left(self, array: Any) -> Any:
        flat = array.reshape(-1)
        return flat.view(self.module.uint16) if flat.dtype == self.module.bfloat16 else flat

    def full(self, dims: Sequence[int], value: float, dtype: str) -> Any:
        return self.module.full(tuple(dims), value, dtype=self.type(dtype), device=self.device)

    def array(self, values: Sequence[float], dtype: str) -> Any:
        return self.module.tensor(list(values), dtype=self.type(dtype), device=self.device)

    def counted(self, size: int, dtype: str) -> Any:
        return self.module.arange(size, dtype=self.type(dtype), device=self.device)

    def converted(self, array: Any, dtype: str) -> Any:
        return array.to(self.type(dtype))

    def permuted(self, array: Any, order: Sequence[int]) -> Any:
        return array.permute(tuple(order))

    def clipped(self, array: Any, low: int, high: int) -> Any:
        return array.clamp(low, high)

    def copied(self, array: Any) -> Any:
        return array.clone(memory_format=self.module.contiguous_format)

    def added(self, array: Any, places: tuple[Any, ...], values: Any) -> Any:
        return array.index_put(places, values, accumulate=True)

    def reduced(self, opcode: str, array: Any, dimensions: Sequence[int]) -> Any:
        match opcode:
            case "add":
                return array.sum(tuple(dimensions), dtype=array.dtype)
            case "maximum":
                return array.amax(tuple(dimensions))
            case "minimum":
                return array.amin(tuple(dimensions))
        for at in sorted(dimensions, reverse=True):  # one by one: they take no list of dimensions
            if opcode == "multiply":
                array = array.prod(at, dtype=array.dtype)
            else:
                array = array.all(at) if opcode == "and" else array.any(at)
        return array

    def divided(self, left: Any, right: Any) -> Any:
        return self.module.div(left, right, rounding_mode="trunc")

    def remainder(self, left: Any, right: Any) -> Any:
        return self.module.fmod(left, right)
