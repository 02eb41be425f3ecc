"""The table of operators, and the arguments that its functions get.

As torch does, arithmetic in float16 and bfloat16 is done in float32 and rounded once for each operator.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusiond.torch.graphs import FxNode, Ref, Tensor
from fusiond.torch.instructions import HloValue, HloWriter, Number


class Unsupported(Exception):
    """This call of an operator is left to torch; the text is why."""


Written: TypeAlias = "HloValue | tuple[HloValue | None, ...] | None"
Function: TypeAlias = "Callable[[OperatorCall], Written]"

TABLE: dict[str, Function] = {}
MOVEMENT: set[str] = {"getitem"}  #: Operators that compute nothing
PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.addmm.default"})
"""Those that are a library's outside loops."""
COMPLEX = {"getitem", *(f"aten.{each}" for each in (
    "add.Tensor", "alias.default", "cat.default", "clone.default", "detach.default", "div.Tensor", "exp.default",
    "expand.default", "mul.Tensor", "neg.default", "permute.default", "reshape.default", "select.int",
    "slice.Tensor", "squeeze.dim", "stack.default", "sub.Tensor", "sum.dim_IntList", "transpose.int",
    "unsqueeze.default", "view.default", "_unsafe_view.default", "abs.default", "complex.default",
    "polar.default", "view_as_complex.default", "view_as_real.default", "view.dtype", "real.default",
    "imag.default", "_conj.default", "_conj_physical.default", "conj_physical.default", "resolve_conj.default",
    "resolve_neg.default"))}  # fmt: skip
"""Operators whose tensors may be complex."""
VIEWS: set[str] = set()  #: Those of which torch makes no copy: where one leaves a region, torch does it

_WIDTHS = {"pred": 0, "u8": 1, "s8": 1, "s16": 2, "u16": 2, "s32": 3, "u32": 3, "s64": 4, "u64": 4, "f8e4m3fn": 9,
           "f8e5m2": 9, "f16": 10, "bf16": 10, "f32": 11, "f64": 12, "c64": 13}  # fmt: skip


def operator(*names: str, movement: bool = False, view: bool = False) -> Callable[[Function], Function]:
    """Enters a function for operators (`add.Tensor`; aten's unless a namespace is named)."""

    def entered(function: Function) -> Function:
        for name in names:
            whole = name if name.startswith("prims.") or "." not in name else f"aten.{name}"
            TABLE[whole] = function
            if movement or view:
                MOVEMENT.add(whole)
            if view:
                VIEWS.add(whole)
        return function

    return entered


def working(dtype: str) -> str:
    """The type in which a value of this type is computed with."""
    return "f32" if dtype in ("f16", "bf16") or dtype.startswith("f8") else dtype


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator with its arguments written."""

    writer: HloWriter
    node: FxNode
    values: Mapping[str, Written]  #: Name -> what the nodes before it gave

    # --- arguments ---

    def argument(self, place: int, name: str = "", default: Any = None) -> Any:
        """By place or by name; an HloValue, a number, a text, or a tuple of them."""
        if place < len(self.node.arguments):
            return self._value(self.node.arguments[place])
        return self._value(self.node.named[name]) if name in self.node.named else default

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self.values[argument.name]
        if isinstance(argument, tuple):
            return tuple(self._value(each) for each in argument)
        return argument

    def tensor(self, place: int, name: str = "") -> HloValue:
        found = self.argument(place, name)
        if not isinstance(found, HloValue):
            raise Unsupported(f"argument {place} is not a tensor")
        return found

    def integers(self, place: int, name: str = "", default: Sequence[int] | None = ()) -> tuple[int, ...] | None:
        found = self.argument(place, name, default)
        if found is None:
            return None
        found = (found,) if isinstance(found, int) else tuple(found)
        if not all(type(each) is int for each in found):
            raise Unsupported("a size is not fixed")
        return found

    def dimensions(self, x: HloValue, place: int, name: str = "dim") -> tuple[int, ...]:
        """Which are meant, from 0; none named: all."""
        rank = len(x.dims)
        return tuple(each % rank for each in self.integers(place, name) or range(rank)) if rank else ()

    def dimension(self, x: HloValue, place: int, name: str = "dim", default: int = 0) -> int:
        return int(self.argument(place, name, default)) % max(1, len(x.dims))

    # --- the result ---

    @property
    def result(self) -> Tensor:
        return self.result_of(0)

    def result_of(self, place: int) -> Tensor:
        found = self.node.results[place]
        if found is None:
            raise Unsupported("its result is not a tensor of a fixed shape and a known type")
        return found

    # --- values as they are computed with ---

    def wide(self, place: int, name: str = "", dtype: str | None = None) -> HloValue:
        """A tensor or a number in the type in which the result is computed, and in its shape."""
        return self.shaped(self.argument(place, name), dtype or working(self.result.dtype), self.result.dims)

    def shaped(self, value: Any, dtype: str, dims: Sequence[int]) -> HloValue:
        if isinstance(value, HloValue):
            return self.writer.expand(self.writer.convert(value, dtype), dims)
        if isinstance(value, bool | int | float):
            return self.writer.constant(value, dtype, dims)
        raise Unsupported("an argument is missing" if value is None else f"{value!r} is neither a tensor nor a number")

    def floating(self, x: HloValue) -> HloValue:
        """A tensor as it is computed with, in its own shape."""
        return self.writer.convert(x, working(x.dtype))

    def finished(self, x: HloValue, place: int = 0) -> HloValue:
        """In the type of the result."""
        return self.writer.convert(x, self.result_of(place).dtype)


def common(values: Iterable[Any]) -> str:
    """The type to which torch brings operands (`torch.result_type`): tensors with dimensions decide, then those
    without, then numbers; a later kind counts only where it is of a higher category (bool, whole, float)."""
    ranked: list[list[str]] = [[], [], []]
    for each in values:
        if isinstance(each, HloValue):
            ranked[0 if each.dims else 1].append(each.dtype)
        elif isinstance(each, bool):
            ranked[2].append("pred")
        elif isinstance(each, int | float):
            ranked[2].append("s64" if isinstance(each, int) else "f32")
    found = ""
    for dtype in (functools.reduce(_wider, dtypes) for dtypes in ranked if dtypes):
        if not found or category(dtype) > category(found):
            found = dtype
    return found


def category(dtype: str) -> int:
    return {"p": 0, "f": 2, "b": 2, "c": 3}.get(dtype[0], 1)


def _wider(a: str, b: str) -> str:
    if a == b:
        return a
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    if {a, b} == {"u8", "s8"}:
        return "s16"
    return a if _WIDTHS[a] > _WIDTHS[b] else b


def number(value: Any) -> Number:
    if isinstance(value, bool | int | float):
        return value
    raise Unsupported(f"{value!r} is not a number")
