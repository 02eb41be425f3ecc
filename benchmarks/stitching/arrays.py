"""An HLO module over whole arrays of any array module: NumPy (the oracle), PyTorch.

Each instruction is a function of its operands' arrays, made once, so that a call is a straight line of the array
module's own operations. What NumPy and PyTorch have no common name for is in an adapter (`array_names`). An operation
without a counterpart is said when the function is made, not when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.stitching.array_names import Names, NoCounterpart
from benchmarks.stitching.array_places import gathered_places, scattered_places, started_places
from fusiond_stitching.codegen.semantics import TYPES
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

Step = Callable[..., Any]
"""From the arrays of the operands to the result."""

SAME_NAME = {
    "abs": "abs", "exponential": "exp", "exponential-minus-one": "expm1", "log": "log", "log-plus-one": "log1p",
    "sqrt": "sqrt", "tanh": "tanh", "sine": "sin", "cosine": "cos", "tan": "tan", "floor": "floor", "ceil": "ceil",
    "round-nearest-even": "round", "is-finite": "isfinite", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin",
    "asinh": "arcsinh", "atanh": "arctanh", "cosh": "cosh", "sinh": "sinh", "negate": "negative",
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "true_divide", "remainder": "fmod",
    "atan2": "arctan2", "maximum": "maximum", "minimum": "minimum", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "not": "bitwise_not", "select": "where",
}  # fmt: skip
"""Opcode -> function that NumPy and PyTorch know by the same name, and that means the same in both."""
OF_FLOATS = frozenset(SAME_NAME) - {"abs", "negate", "add", "subtract", "multiply", "maximum", "minimum", "and", "or",
                                    "xor", "not", "select"} | {"rsqrt", "logistic", "cbrt", "erf", "power"}  # fmt: skip
OF_PREDICATES = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
NEUTRAL = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf, "and": 1.0, "or": 0.0}
COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


class Arrays:
    """A module as a function: flat arrays by the names of buffers (`in_0`, `out_0`), as they are in a Program."""

    def __init__(self, module: HloModule, names: Names) -> None:
        """NoCounterpart for the first instruction that the array module cannot compute."""
        self.module, self.names = module, names
        self._steps: list[tuple[str, tuple[str, ...], Step]] = []
        for each in module.instructions:
            if each.opcode == "parameter" and not module.users[each.name]:
                continue  # nobody reads it, so it may have no buffer
            try:
                self._steps.append((each.name, each.operands, self._step(each)))
            except NoCounterpart as problem:
                raise NoCounterpart(f"{problem} ({each.where or each.name})") from None

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, operands, step in self._steps:
            instruction = self.module[name]
            if instruction.opcode == "parameter":
                values[name] = step(given[self.module.buffer_of(name)])
            else:
                values[name] = step(*(values[each] for each in operands))
        return {self.module.buffer_of(name): self.names.left(values[name]) for name in self.module.outputs}

    def _step(self, of: HloInstruction) -> Step:
        if of.name in self.module.foreign:
            raise NoCounterpart(self.module.foreign[of.name])
        self.names.type(of.dtype)
        special = _SPECIAL.get(of.opcode)
        if special is not None:
            return special(self, of)
        if of.opcode in SAME_NAME or self.names.has(of.opcode):
            return self._plain(of)
        raise NoCounterpart(f"{of.opcode} of {of.dtype} has no counterpart in {self.names.title}")

    def _operands(self, of: HloInstruction) -> tuple[HloInstruction, ...]:
        return self.module.operands(of)

    # --- element by element -----------------------------------------------------------------------------

    def _plain(self, of: HloInstruction) -> Step:
        dtype = self._operands(of)[0].dtype
        kind = TYPES[dtype].kind
        opcode = OF_PREDICATES.get(of.opcode, of.opcode) if kind == "pred" else of.opcode
        if opcode in OF_FLOATS and kind != "float":
            raise NoCounterpart(f"{opcode} of {dtype} has no counterpart in {self.names.title}")
        return self.names.function(opcode, SAME_NAME.get(opcode, ""))

    def _divided(self, of: HloInstruction) -> Step:
        """Integers: towards zero, with what HLO says of a division by zero (all ones; the dividend as the remainder)
        and of the least value by -1, which processors refuse."""
        kind, names = TYPES[of.dtype], self.names
        if not kind.integral:
            return self._plain(of)
        signed = kind.kind == "signed"
        ones = -1 if signed else 2**kind.bits - 1
        where, divide = names.module.where, of.opcode == "divide"

        def step(a: Any, b: Any) -> Any:
            odd = (b == 0) | (b == -1) if signed else b == 0
            safe = where(odd, names.full((), 1, of.dtype), b)
            if not divide:
                return where(b == 0, a, names.remainder(a, safe))
            quotient = names.divided(a, safe)
            quotient = where(b == -1, -a, quotient) if signed else quotient
            return where(b == 0, names.full((), ones, of.dtype), quotient)

        return step

    def _compare(self, of: HloInstruction) -> Step:
        if of.attributes["total"] and TYPES[self._operands(of)[0].dtype].kind == "float":
            raise NoCounterpart(f"compare in total order has no counterpart in {self.names.title}")
        return COMPARED[of.attributes["direction"]]

    def _clamp(self, of: HloInstruction) -> Step:
        module = self.names.module
        return lambda low, x, high: module.minimum(module.maximum(x, low), high)

    def _convert(self, of: HloInstruction) -> Step:
        """Floats to integers saturate, and NaN is 0."""
        source, target = TYPES[self._operands(of)[0].dtype], TYPES[of.dtype]
        names = self.names
        if target.kind == "pred":
            return lambda x: x != 0
        if source.kind != "float" or not target.integral:
            return lambda x: names.converted(x, of.dtype)
        signed = target.kind == "signed"
        low, high = (-(2.0 ** (target.bits - 1)), 2.0 ** (target.bits - 1)) if signed else (0.0, 2.0**target.bits)
        wide = "f64" if source.bits == 64 else "f32"

        def step(x: Any) -> Any:
            where, x = names.module.where, names.converted(x, wide)
            inside = (x > low) & (x < high)
            whole = names.converted(where(inside, x, names.full((), 0, wide)), of.dtype)
            whole = where(x >= high, names.full((), int(high) - 1, of.dtype), whole)
            return where(x <= low, names.full((), int(low), of.dtype), whole)

        return step

    def _bitcast(self, of: HloInstruction) -> Step:
        (operand,) = self._operands(of)
        if TYPES[operand.dtype].bits != TYPES[of.dtype].bits:
            raise NoCounterpart(f"bitcast-convert of {operand.dtype} to {of.dtype} changes dimensions")
        return lambda x: x.view(self.names.type(of.dtype))

    def _same(self, of: HloInstruction) -> Step:
        return lambda x: x

    # --- where elements are -----------------------------------------------------------------------------

    def _parameter(self, of: HloInstruction) -> Step:
        return lambda array: self.names.entered(array, of.dtype).reshape(of.dims)

    def _constant(self, of: HloInstruction) -> Step:
        values = of.attributes["values"]
        first = values[0] if values else 0
        if all(each == first for each in values):
            return lambda: self.names.full(of.dims, first, of.dtype)
        made = self.names.array(values, of.dtype).reshape(of.dims)  # no part of what is compiled
        return lambda: made

    def _reshape(self, of: HloInstruction) -> Step:
        return lambda x: x.reshape(of.dims)

    def _broadcast(self, of: HloInstruction) -> Step:
        dimensions = of.attributes["dimensions"]
        dims = tuple(size if at in dimensions else 1 for at, size in enumerate(of.dims))
        order = tuple(sorted(range(len(dimensions)), key=dimensions.__getitem__))
        names = self.names
        return lambda x: names.module.broadcast_to(names.permuted(x, order).reshape(dims), of.dims)

    def _transpose(self, of: HloInstruction) -> Step:
        return lambda x: self.names.permuted(x, of.attributes["dimensions"])

    def _slice(self, of: HloInstruction) -> Step:
        given = (of.attributes[each] for each in ("starts", "limits", "strides"))
        places = tuple(slice(*each) for each in zip(*given, strict=True))
        return lambda x: x[places]

    def _reverse(self, of: HloInstruction) -> Step:
        return lambda x: self.names.module.flip(x, of.attributes["dimensions"])

    def _iota(self, of: HloInstruction) -> Step:
        at, names = of.attributes["dimension"], self.names
        dims = tuple(size if each == at else 1 for each, size in enumerate(of.dims))
        return lambda: names.module.broadcast_to(names.counted(of.dims[at], of.dtype).reshape(dims), of.dims)

    def _concatenate(self, of: HloInstruction) -> Step:
        return lambda *parts: self.names.module.concatenate(parts, of.attributes["dimension"])

    def _pad(self, of: HloInstruction) -> Step:
        """Negative edges cut off, and elements may be apart."""
        operand = self._operands(of)[0]
        into, taken = [], []
        numbers = (of.attributes[each] for each in ("low", "high", "interior"))
        for size, dim, low, _, interior in zip(of.dims, operand.dims, *numbers, strict=True):
            step = interior + 1
            first = -(min(0, low) // step)
            end = max(first, min(dim, (size - 1 - low) // step + 1))
            taken.append(slice(first, end))
            into.append(slice(low + first * step, low + first * step + (end - first) * step, step))

        def step_(x: Any, value: Any) -> Any:
            padded = self.names.copied(self.names.module.broadcast_to(value, of.dims))
            padded[tuple(into)] = x[tuple(taken)]
            return padded

        return step_

    # --- through indices --------------------------------------------------------------------------------

    def _gather(self, of: HloInstruction) -> Step:
        operand, starts = self._operands(of)
        return lambda x, where: x[gathered_places(self.names, of, operand.dims, starts.dims, where)]

    def _dynamic_slice(self, of: HloInstruction) -> Step:
        dims = self._operands(of)[0].dims
        return lambda x, *starts: x[started_places(self.names, dims, of.dims, starts)]

    def _dynamic_update_slice(self, of: HloInstruction) -> Step:
        operand, update, *_ = self._operands(of)

        def step(x: Any, new: Any, *starts: Any) -> Any:
            updated = self.names.copied(x)
            updated[started_places(self.names, operand.dims, update.dims, starts)] = new
            return updated

        return step

    def _scatter(self, of: HloInstruction) -> Step:
        operand, starts, updates = self._operands(of)
        if of.attributes["computation"].simple != "add":
            raise NoCounterpart("scatter by another computation than add: the order of its updates is not given")
        names = self.names

        def step(x: Any, where: Any, new: Any) -> Any:
            places, fits = scattered_places(names, of, operand.dims, starts.dims, updates.dims, where)
            new = names.module.where(fits, new, names.full((), 0, of.dtype))
            return names.added(names.copied(x), places, new)

        return step

    # --- reductions -------------------------------------------------------------------------------------

    def _reduce(self, of: HloInstruction) -> Step:
        operand, init = self._operands(of)[0], self._operands(of)[-1]
        opcode, kind = of.attributes["computation"].simple, TYPES[of.dtype].kind
        if opcode is None or len(of.operands) != 2:
            raise NoCounterpart("reduce by a computation of its own has no counterpart in whole arrays")
        opcode = OF_PREDICATES.get(opcode, opcode) if kind == "pred" else opcode
        if opcode == "xor" or (opcode in ("and", "or") and kind != "pred"):
            raise NoCounterpart(f"reduce by {opcode} of {of.dtype} has no counterpart in {self.names.title}")
        combined = self.names.function(opcode, SAME_NAME[opcode])
        source = self.module.base(init.name)
        neutral = source.opcode == "constant" and float(source.attributes["values"][0]) == NEUTRAL[opcode]
        dimensions = of.attributes["dimensions"]
        if not operand.elements:
            return lambda x, start: self.names.module.broadcast_to(start, of.dims)

        def step(x: Any, start: Any) -> Any:
            found = self.names.reduced(opcode, x, dimensions) if dimensions else x
            return found if neutral else combined(found, start)

        return step

    def _dot(self, of: HloInstruction) -> Step:
        """As one product of matrices, or of batches of them."""
        left, right = self._operands(of)
        if TYPES[of.dtype].kind != "float" and not self.names.integer_dots:
            raise NoCounterpart(f"dot of {of.dtype}: {self.names.title} multiplies matrices of integers on no GPU")
        batch, other_batch = of.attributes["lhs_batch"], of.attributes["rhs_batch"]
        inner, other_inner = of.attributes["lhs_contracting"], of.attributes["rhs_contracting"]
        rows = tuple(at for at in range(len(left.dims)) if at not in (*batch, *inner))
        columns = tuple(at for at in range(len(right.dims)) if at not in (*other_batch, *other_inner))
        lengths = [_product(left.dims, each) for each in (batch, rows, inner)]
        width = _product(right.dims, columns)
        head = lengths[:1] if batch else []

        def step(x: Any, y: Any) -> Any:
            x, y = (self.names.converted(each, of.dtype) for each in (x, y))
            a = self.names.permuted(x, (*batch, *rows, *inner)).reshape((*head, *lengths[1:]))
            b = self.names.permuted(y, (*other_batch, *other_inner, *columns)).reshape((*head, lengths[2], width))
            return self.names.module.matmul(a, b).reshape(of.dims)

        return step


def _product(dims: Sequence[int], places: Sequence[int]) -> int:
    return math.prod(dims[at] for at in places)


_SPECIAL: Mapping[str, Callable[[Arrays, HloInstruction], Step]] = {
    "parameter": Arrays._parameter,
    "constant": Arrays._constant,
    "copy": Arrays._same,
    "divide": Arrays._divided,
    "remainder": Arrays._divided,
    "compare": Arrays._compare,
    "clamp": Arrays._clamp,
    "convert": Arrays._convert,
    "bitcast-convert": Arrays._bitcast,
    "reshape": Arrays._reshape,
    "broadcast": Arrays._broadcast,
    "transpose": Arrays._transpose,
    "slice": Arrays._slice,
    "reverse": Arrays._reverse,
    "iota": Arrays._iota,
    "concatenate": Arrays._concatenate,
    "pad": Arrays._pad,
    "gather": Arrays._gather,
    "scatter": Arrays._scatter,
    "dynamic-slice": Arrays._dynamic_slice,
    "dynamic-update-slice": Arrays._dynamic_update_slice,
    "reduce": Arrays._reduce,
    "dot": Arrays._dot,
}
