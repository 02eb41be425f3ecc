"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators.table import OperatorCall, Unsupported, number, operator, working


def kept(w: HloWriter, x: HloValue, of: HloValue, dimensions: Sequence[int]) -> HloValue:
    """A reduced value with the dimensions that are gone back as 1."""
    return w.reshape(x, [1 if at in dimensions else size for at, size in enumerate(of.dims)])


def over(w: HloWriter, operation: str, x: HloValue, dimensions: Sequence[int]) -> HloValue:
    """A reduce whose result has x's shape again."""
    return w.expand(kept(w, w.reduce(operation, x, dimensions), x, dimensions), x.dims)


def count(x: HloValue, dimensions: Sequence[int]) -> int:
    return math.prod(x.dims[each] for each in dimensions)


def mean(w: HloWriter, x: HloValue, dimensions: Sequence[int]) -> HloValue:
    total = w.reduce("add", x, dimensions)
    return w.binary("multiply", total, w.like(total, 1 / count(x, dimensions)))


def variance(w: HloWriter, x: HloValue, dimensions: Sequence[int], correction: float) -> tuple[HloValue, HloValue]:
    """(variance, mean), without the dimensions; in two passes."""
    middle = mean(w, x, dimensions)
    off = w.binary("subtract", x, w.expand(kept(w, middle, x, dimensions), x.dims))
    total = w.reduce("add", w.binary("multiply", off, off), dimensions)
    rest = max(0.0, count(x, dimensions) - correction)
    return w.binary("divide", total, w.like(total, rest)), middle


def _ended(call: OperatorCall, x: HloValue, place: int = 0) -> HloValue:
    return call.writer.reshape(call.finished(x, place), call.result_of(place).dims)


@operator("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "prod.default", "prod.dim_int")
def _sum(call: OperatorCall) -> HloValue:
    w = call.writer
    x = w.convert(call.tensor(0), working(call.result.dtype))
    dimensions = call.dimensions(x, 1) if call.node.operator.split(".")[2] != "default" else range(len(x.dims))
    name = call.node.operator.split(".")[1]
    if name == "mean":
        return _ended(call, mean(w, x, dimensions))
    return _ended(call, w.reduce("add" if name == "sum" else "multiply", x, dimensions))


@operator("amax.default", "amin.default", "max.default", "min.default", "any.default", "any.dim", "any.dims",
          "all.default", "all.dim", "all.dims")  # fmt: skip
def _extreme(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.tensor(0)
    name, overload = call.node.operator.split(".")[1:]
    logical = name in ("any", "all")
    x = w.convert(x, "pred") if logical else call.floating(x)
    whole = overload == "default" and name not in ("amax", "amin")
    dimensions = range(len(x.dims)) if whole else call.dimensions(x, 1)
    operation = {"any": "or", "all": "and"}.get(name) or ("maximum" if "max" in name else "minimum")
    return _ended(call, w.reduce(operation, x, dimensions))


@operator("var.correction", "var_mean.correction", "std.correction")
def _variance(call: OperatorCall) -> HloValue | tuple[HloValue, HloValue]:
    x = call.floating(call.tensor(0))
    correction = call.argument(2, "correction")
    found, middle = variance(call.writer, x, call.dimensions(x, 1), 1.0 if correction is None else correction)
    name = call.node.operator.split(".")[1]
    if name == "var_mean":
        return _ended(call, found), _ended(call, middle, 1)
    return _ended(call, call.writer.unary("sqrt", found) if name == "std" else found)


@operator("logsumexp.default")
def _logsumexp(call: OperatorCall) -> HloValue:
    w = call.writer
    x = call.floating(call.tensor(0))
    dimensions = call.dimensions(x, 1)
    largest = w.reduce("maximum", x, dimensions)
    infinite = w.compare("EQ", w.unary("abs", largest), w.like(largest, math.inf))
    largest = w.select(infinite, w.like(largest, 0), largest)
    off = w.binary("subtract", x, w.expand(kept(w, largest, x, dimensions), x.dims))
    total = w.reduce("add", w.unary("exponential", off), dimensions)
    return _ended(call, w.binary("add", w.unary("log", total), largest))


@operator("linalg_vector_norm.default")
def _norm(call: OperatorCall) -> HloValue:
    w = call.writer
    x = call.floating(call.tensor(0))
    order = number(call.argument(1, "ord", 2))
    dimensions = call.dimensions(x, 2)
    if order == 2:
        return _ended(call, w.unary("sqrt", w.reduce("add", w.binary("multiply", x, x), dimensions)))
    size = w.unary("abs", x)
    if order == 1:
        return _ended(call, w.reduce("add", size, dimensions))
    if order == math.inf:
        return _ended(call, w.reduce("maximum", size, dimensions))
    raise Unsupported(f"a norm of order {order}")
