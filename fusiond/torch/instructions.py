"""Writes HLO text, one instruction a line, as XLA prints it: `v3 = f32[2,64] add(v1, v2)`.

All tensors are row-major. Equal computations give equal text: names are numbers in the order of writing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class HloValue:
    """What an instruction gives."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    numbers: tuple[Number, ...] = ()  #: A constant's elements


Number = bool | int | float

_REDUCTIONS: Mapping[str, Number | None] = {
    "add": 0,
    "multiply": 1,
    "maximum": None,
    "minimum": None,
    "and": True,
    "or": False,
}
"""Operation of a reduce -> its neutral value; None: the least or the greatest of the type."""


class HloWriter:
    """A module in the making."""

    def __init__(self, computations: dict[str, str] | None = None, prefix: str = "") -> None:
        self._lines: list[str] = []
        self._parameters = 0
        self._computations = {} if computations is None else computations
        self._prefix = prefix
        self._constants: dict[tuple[str, str], HloValue] = {}

    def module(self, name: str, results: Sequence[HloValue]) -> str:
        """The text, with these results in a tuple."""
        names = ", ".join(each.name for each in results)
        lines = [f"HloModule {name}", "", *self._computations.values(), "ENTRY main {"]
        live = {each.name for each in results}
        kept = []
        for line in reversed(self._lines):
            made, _, text = line.partition(" = ")
            if made in live or " parameter(" in text:
                live |= {*re.findall(r"\bv\d+\b", text)}
                kept.append(f"  {line}")
        lines += kept[::-1]
        return "\n".join([*lines, f"  ROOT result = {_shapes(results)} tuple({names})", "}", ""])

    def add(
        self, opcode: str, dtype: str, dims: Sequence[int], operands: Sequence[HloValue], attributes: str = ""
    ) -> HloValue:
        return self._add(dtype, dims, f"{opcode}({', '.join(each.name for each in operands)})", attributes)

    def _add(self, dtype: str, dims: Sequence[int], call: str, attributes: str = "") -> HloValue:
        return self._line(_shape(dtype, dims), f"{call}{', ' if attributes else ''}{attributes}", dtype, dims)

    def _line(self, shape: str, call: str, dtype: str = "", dims: Sequence[int] = ()) -> HloValue:
        made = HloValue(f"{self._prefix}v{len(self._lines)}", dtype, tuple(dims))
        self._lines.append(f"{made.name} = {shape} {call}")
        return made

    def _compute(self, name: str, lines: Sequence[str]) -> None:
        """A computation, whose last line is its result."""
        self._computations[name] = "\n  ".join([f"{name} {{", *lines[:-1], f"ROOT {lines[-1]}"]) + "\n}\n"

    # --- sources ---

    def parameter(self, dtype: str, dims: Sequence[int]) -> HloValue:
        self._parameters += 1
        return self._add(dtype, dims, f"parameter({self._parameters - 1})")

    def constant(self, value: Number, dtype: str, dims: Sequence[int] = ()) -> HloValue:
        """A number, in all elements."""
        text = _literal(value, dtype)
        key = (dtype, text)
        if key not in self._constants:
            if dtype in ("f16", "bf16"):
                self._constants[key] = self.convert(self.constant(value, "f32"), dtype)
            else:
                self._constants[key] = self._add(dtype, (), f"constant({text})")
        return self.broadcast(self._constants[key], dims, ())

    def literal(self, values: Sequence[Number], dtype: str, dims: Sequence[int]) -> HloValue:
        """A constant of several numbers, row by row."""
        if len({*map(repr, values)}) == 1:
            return self.constant(values[0], dtype, dims)
        if dtype in ("f16", "bf16") or dtype.startswith("f8"):
            return self.convert(self.literal(values, "f32", dims), dtype)
        parts = [_literal(each, dtype) for each in values]
        for size in reversed(dims):
            parts = [f"{{{', '.join(parts[at : at + size])}}}" for at in range(0, len(parts), size)]
        return replace(self._add(dtype, dims, f"constant({parts[0]})"), numbers=tuple(values))

    def iota(self, dtype: str, dims: Sequence[int], dimension: int) -> HloValue:
        return self._add(dtype, dims, "iota()", f"iota_dimension={dimension}")

    # --- element by element ---

    def unary(self, opcode: str, x: HloValue) -> HloValue:
        return self.add(opcode, x.dtype, x.dims, [x])

    def binary(self, opcode: str, a: HloValue, b: HloValue) -> HloValue:
        return self.add(opcode, a.dtype, a.dims, [a, b])

    def compare(self, direction: str, a: HloValue, b: HloValue) -> HloValue:
        return self.add("compare", "pred", a.dims, [a, b], f"direction={direction}")

    def select(self, condition: HloValue, then: HloValue, otherwise: HloValue) -> HloValue:
        return self.add("select", then.dtype, then.dims, [condition, then, otherwise])

    def convert(self, x: HloValue, dtype: str) -> HloValue:
        """To another element type, as torch does it: what is not zero is true."""
        if x.dtype == dtype:
            return x
        if dtype == "pred":
            return self.compare("NE", x, self.constant(0, x.dtype, x.dims))
        return self.add("convert", dtype, x.dims, [x])

    def like(self, x: HloValue, value: Number) -> HloValue:
        """A number in the shape and type of a value."""
        return self.constant(value, x.dtype, x.dims)

    # --- movement ---

    def broadcast(self, x: HloValue, dims: Sequence[int], mapping: Sequence[int]) -> HloValue:
        """`mapping`: dimension of x -> dimension of the result."""
        if tuple(dims) == x.dims and tuple(mapping) == tuple(range(len(dims))):
            return x
        return self.add("broadcast", x.dtype, dims, [x], f"dimensions={_list(mapping)}")

    def expand(self, x: HloValue, dims: Sequence[int]) -> HloValue:
        """NumPy's broadcasting: trailing dimensions meet, and those of size 1 are repeated."""
        if x.dims == tuple(dims):
            return x
        front = len(dims) - len(x.dims)
        kept = [at for at, size in enumerate(x.dims) if size != 1 or dims[front + at] == 1]
        narrow = self.reshape(x, [x.dims[at] for at in kept])
        return self.broadcast(narrow, dims, [front + at for at in kept])

    def reshape(self, x: HloValue, dims: Sequence[int]) -> HloValue:
        if math.prod(dims) != math.prod(x.dims):
            raise ValueError(f"{list(x.dims)} cannot be {list(dims)}")
        return x if x.dims == tuple(dims) else self.add("reshape", x.dtype, dims, [x])

    def transpose(self, x: HloValue, order: Sequence[int]) -> HloValue:
        """`order`: dimension of the result -> dimension of x."""
        if tuple(order) == tuple(range(len(x.dims))):
            return x
        return self.add("transpose", x.dtype, [x.dims[each] for each in order], [x], f"dimensions={_list(order)}")

    def slice(self, x: HloValue, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> HloValue:
        dims = [max(0, -(-(b - a) // s)) for a, b, s in zip(starts, limits, strides, strict=True)]
        if tuple(dims) == x.dims:
            return x
        ranges = ", ".join(f"[{a}:{b}:{s}]" for a, b, s in zip(starts, limits, strides, strict=True))
        return self.add("slice", x.dtype, dims, [x], f"slice={{{ranges}}}")

    def part(self, x: HloValue, dimension: int, start: int, end: int, step: int = 1) -> HloValue:
        """A slice of one dimension."""
        rows = [(start, end, step) if at == dimension else (0, size, 1) for at, size in enumerate(x.dims)]
        return self.slice(x, *([row[each] for row in rows] for each in range(3)))

    def pad(self, x: HloValue, value: Number, sides: Sequence[tuple[int, int, int]]) -> HloValue:
        """(low, high, interior) for each dimension."""
        dims = [size + low + high + max(0, size - 1) * inner
                for size, (low, high, inner) in zip(x.dims, sides, strict=True)]  # fmt: skip
        text = "x".join("_".join(map(str, each)) for each in sides)
        return self.add("pad", x.dtype, dims, [x, self.constant(value, x.dtype)], f"padding={text}")

    def concatenate(self, values: Sequence[HloValue], dimension: int) -> HloValue:
        if len(values) == 1:
            return values[0]
        dims = list(values[0].dims)
        dims[dimension] = sum(each.dims[dimension] for each in values)
        return self.add("concatenate", values[0].dtype, dims, values, f"dimensions={{{dimension}}}")

    def reverse(self, x: HloValue, dimensions: Sequence[int]) -> HloValue:
        return self.add("reverse", x.dtype, x.dims, [x], f"dimensions={_list(dimensions)}")

    def gather(self, x: HloValue, indices: HloValue, dimensions: Sequence[int], at: int) -> HloValue:
        """What lies at points: the last dimension of the indices holds one number for each of these dimensions of x.
        The others are whole; in the result those of the points stand in front of the one with the number `at`."""
        points = indices.dims[:-1]
        rest = [size for each, size in enumerate(x.dims) if each not in dimensions]
        dims = [*rest[:at], *points, *rest[at:]]
        sizes = [1 if each in dimensions else size for each, size in enumerate(x.dims)]
        attributes = (
            f"offset_dims={_whole(dims, points, at)}, collapsed_slice_dims={_list(dimensions)}, "
            f"start_index_map={_list(dimensions)}, index_vector_dim={len(points)}, slice_sizes={_list(sizes)}"
        )
        return self.add("gather", x.dtype, dims, [x, indices], attributes)

    def scatter(
        self, x: HloValue, indices: HloValue, updates: HloValue, dimensions: Sequence[int], at: int, operation: str
    ) -> HloValue:
        """x with updates at points, which are as `gather` has them; an operation as of `reduce`, or `replace`."""
        points = indices.dims[:-1]
        attributes = (
            f"update_window_dims={_whole(updates.dims, points, at)}, inserted_window_dims={_list(dimensions)}, "
            f"scatter_dims_to_operand_dims={_list(dimensions)}, index_vector_dim={len(points)}, "
            f"to_apply={self._computation(operation, x.dtype)}"
        )
        return self.add("scatter", x.dtype, x.dims, [x, indices, updates], attributes)

    def sort(self, keys: HloValue, places: HloValue, dimension: int, *, descending: bool) -> tuple[HloValue, HloValue]:
        """(keys in order, the places they had), stable; what is not a number is the largest."""
        name, before = f"before_{keys.dtype}_{int(descending)}", "GT" if descending else "LT"
        of, number, other = (f"{name}_{each}" for each in ("a", "b", "c"))
        lines = [f"{of} = {keys.dtype}[] parameter(0)", f"{number} = {keys.dtype}[] parameter(1)",
                 *(f"{name}_i{at} = {places.dtype}[] parameter({at})" for at in (2, 3)),
                 f"{other} = pred[] compare({of}, {number}), direction={before}"]  # fmt: skip
        if keys.dtype[0] in "fb":
            first, last = (of, number) if descending else (number, of)
            lines += [f"{name}_x = pred[] compare({first}, {first}), direction=NE",
                      f"{name}_y = pred[] compare({last}, {last}), direction=EQ",
                      f"{name}_z = pred[] and({name}_x, {name}_y)",
                      f"{name}_r = pred[] or({other}, {name}_z)"]  # fmt: skip
        self._compute(name, lines)
        attributes = f"dimensions={{{dimension}}}, is_stable=true, to_apply={name}"
        found = self._several((keys, places), f"sort({keys.name}, {places.name}), {attributes}")
        return found[0], found[1]

    def _several(self, like: Sequence[HloValue], call: str) -> list[HloValue]:
        """What a call gives in a tuple, of such types and shapes."""
        made = self._line(_shapes(like), call)
        return [
            self.add("get-tuple-element", each.dtype, each.dims, [made], f"index={at}") for at, each in enumerate(like)
        ]

    # --- loops ---

    def loop(
        self,
        state: Sequence[HloValue],
        condition: Callable[[HloWriter, list[HloValue]], HloValue],
        body: Callable[[HloWriter, list[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]:
        """The last state of a `while`. Both functions write what they make of a state by the writer that they get."""
        name, called = f"{self._prefix}loop{len(self._lines)}", []
        for kind, function in (("condition", condition), ("body", body)):
            inner = HloWriter(self._computations, f"{name}_{kind}_")
            made = function(inner, inner._several(state, "parameter(0)"))
            if isinstance(made, HloValue):
                inner.add("copy", made.dtype, made.dims, [made])
            else:
                inner._tuple(made)
            self._compute(f"{name}_{kind}", inner._lines)
            called.append(f"{kind}={name}_{kind}")
        return self._several(state, f"while({self._tuple(state).name}), {', '.join(called)}")

    def _tuple(self, values: Sequence[HloValue]) -> HloValue:
        return self._line(_shapes(values), f"tuple({', '.join(each.name for each in values)})")

    def row(self, x: HloValue, at: HloValue) -> HloValue:
        """x[at], where `at` is a value."""
        start = [x, at, *[self.constant(0, at.dtype)] * (len(x.dims) - 1)]
        dims = (1, *x.dims[1:])
        found = self.add("dynamic-slice", x.dtype, dims, start, f"dynamic_slice_sizes={_list(dims)}")
        return self.reshape(found, x.dims[1:])

    def with_row(self, x: HloValue, row: HloValue, at: HloValue) -> HloValue:
        """x, with a row of it replaced."""
        start = [at, *[self.constant(0, at.dtype)] * (len(x.dims) - 1)]
        return self.add("dynamic-update-slice", x.dtype, x.dims, [x, self.reshape(row, (1, *x.dims[1:])), *start])

    def dot(self, a: HloValue, b: HloValue) -> HloValue:
        """A product of matrices, or one of each pair of matrices."""
        batch = list(range(len(a.dims) - 2))
        rank = len(batch)
        text = f"lhs_contracting_dims={{{rank + 1}}}, rhs_contracting_dims={{{rank}}}"
        if batch:
            text = f"lhs_batch_dims={_list(batch)}, rhs_batch_dims={_list(batch)}, {text}"
        return self.add("dot", a.dtype, (*a.dims[:-1], b.dims[-1]), [a, b], text)

    # --- reductions ---

    def reduce(self, operation: str, x: HloValue, dimensions: Sequence[int]) -> HloValue:
        """add, multiply, maximum, minimum, and, or over dimensions, which are gone."""
        if not dimensions:
            return x
        dims = [size for at, size in enumerate(x.dims) if at not in dimensions]
        return self.reduced(operation, x, dims, f"dimensions={_list(sorted(dimensions))}")

    def reduced(
        self, operation: str, x: HloValue, dims: Sequence[int], attributes: str, opcode: str = "reduce"
    ) -> HloValue:
        """What `reduce` writes, or a `reduce-window` over the window of the attributes."""
        neutral = _REDUCTIONS[operation]
        if neutral is None:
            neutral = edge(x.dtype, least=operation == "maximum")
        first = self.constant(neutral, x.dtype)
        called = self._computation(operation, x.dtype)
        return self.add(opcode, x.dtype, dims, [x, first], f"{attributes}, to_apply={called}")

    def _computation(self, operation: str, dtype: str) -> str:
        name = f"{operation}_{dtype}"
        shape = f"{dtype}[]"
        lines = [f"{name}_a = {shape} parameter(0)", f"{name}_b = {shape} parameter(1)"]
        if operation != "replace":
            lines.append(f"{name}_c = {shape} {operation}({name}_a, {name}_b)")
        self._compute(name, lines)
        return name


def _shape(dtype: str, dims: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, dims))}]"


def _shapes(values: Sequence[HloValue]) -> str:
    return f"({', '.join(_shape(each.dtype, each.dims) for each in values)})"


def _whole(dims: Sequence[int], points: Sequence[int], at: int) -> str:
    """The dimensions that are not those of the points, which begin here."""
    return _list([each for each in range(len(dims)) if not at <= each < at + len(points)])


def _list(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def edge(dtype: str, *, least: bool) -> Number:
    """The least number of a type, or the greatest."""
    if dtype == "pred":
        return not least
    if dtype[0] in "fb":
        return -math.inf if least else math.inf
    bits = int(dtype[1:]) - (dtype[0] == "s")
    return (-(2**bits) if dtype[0] == "s" else 0) if least else 2**bits - 1


def _literal(value: Number, dtype: str) -> str:
    if dtype == "pred":
        return "true" if value else "false"
    if dtype[0] in "su":
        return str(int(value))
    if dtype == "c64":
        return f"({_literal(value, 'f32')}, 0)"
    number = float(value)
    if dtype == "f32" and abs(number) > 3.4028235677973366e38:  # rounds to what float32 does not have
        number = math.copysign(math.inf, number)
    return "nan" if math.isnan(number) else repr(number)
