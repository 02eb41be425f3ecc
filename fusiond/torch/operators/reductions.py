"""Reductions."""

import math
from collections.abc import Sequence

from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators.table import OperatorCall, Unsupported, category, operator, working


def kept(w: HloWriter, x: HloValue, of: HloValue, dimensions: Sequence[int]) -> HloValue:
    """A reduced value with the dimensions that are gone back as 1."""
    return w.reshape(x, [1 if at in dimensions else size for at, size in enumerate(of.dims)])


def mean(w: HloWriter, x: HloValue, dimensions: Sequence[int]) -> HloValue:
    total = w.reduce("add", x, dimensions)
    return w.binary("multiply", total, w.like(total, 1 / math.prod(x.dims[each] for each in dimensions)))


def _ended(call: OperatorCall, x: HloValue, place: int = 0) -> HloValue:
    return call.writer.reshape(call.finished(x, place), call.result_of(place).dims)


@operator("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "prod.default", "prod.dim_int")
@operator("amax.default", "amin.default", "max.default", "min.default", "any.default", "any.dim", "any.dims")
def _reduced(call: OperatorCall) -> HloValue:
    w, (name, overload) = call.writer, call.node.operator.split(".")[1:]
    x = w.convert(call.tensor(0), "pred" if name == "any" else working(call.result.dtype))
    whole = overload == "default" and name not in ("amax", "amin")
    dimensions = range(len(x.dims)) if whole else call.dimensions(x, 1)
    operation = {"sum": "add", "prod": "multiply", "any": "or"}.get(name) or f"{name.removeprefix('a')}imum"
    return _ended(call, mean(w, x, dimensions) if name == "mean" else w.reduce(operation, x, dimensions))


@operator("var.correction", "var_mean.correction")
def _variance(call: OperatorCall) -> HloValue | tuple[HloValue, HloValue]:
    """In two passes."""
    w, x, correction = call.writer, call.floating(call.tensor(0)), call.argument(2, "correction")
    dimensions = call.dimensions(x, 1)
    middle = mean(w, x, dimensions)
    off = w.binary("subtract", x, w.expand(kept(w, middle, x, dimensions), x.dims))
    total = w.reduce("add", w.binary("multiply", off, off), dimensions)
    rest = max(0.0, math.prod(x.dims[each] for each in dimensions) - (1.0 if correction is None else correction))
    found = _ended(call, w.binary("divide", total, w.like(total, rest)))
    return (found, _ended(call, middle, 1)) if "var_mean" in call.node.operator else found


@operator("mm.default", "bmm.default", "addmm.default")
def _product(call: OperatorCall) -> HloValue:
    w, adds = call.writer, "addmm" in call.node.operator
    if {call.argument(3, "beta", 1), call.argument(4, "alpha", 1)} != {1}:
        raise Unsupported("a product with factors")
    a, b = (call.floating(call.tensor(at + adds)) for at in (0, 1))
    if a.dims[-1] == 1 or b.dims[-1] == 1 or ("bmm" in call.node.operator and a.dims[1] == 1):
        every = (*a.dims, b.dims[-1])  # of a matrix and a vector, or two vectors
        wide = (w.reshape(a, (*a.dims, 1)), w.reshape(b, (*b.dims[:-2], 1, *b.dims[-2:])))
        terms = w.binary("multiply", *(w.expand(each, every) for each in wide))
        dims = (*a.dims[:-1], b.dims[-1])
        found = w.reshape(terms, dims) if a.dims[-1] == 1 else w.reduce("add", terms, [len(a.dims) - 1])
    else:
        found = w.dot(a, b)
    return call.finished(w.binary("add", found, call.wide(0, dtype=found.dtype)) if adds else found)


@operator("argmax.default", "argmin.default", "max.dim", "min.dim")
def _place(call: OperatorCall) -> HloValue | tuple[HloValue, HloValue]:
    """The first place of the extreme, or of what is not a number; with a dimension's extreme where it is asked for."""
    w, x, whole = call.writer, call.floating(call.tensor(0)), call.argument(1, "dim") is None
    if whole:
        x = w.reshape(x, (math.prod(x.dims),))
    rows = () if not x.dims else (0,) if whole else (call.dimension(x, 1),)
    found = w.reduce("maximum" if "max" in call.node.operator else "minimum", x, rows)
    here = w.compare("EQ", x, w.expand(kept(w, found, x, rows), x.dims))
    if category(x.dtype) == 2:
        here = w.binary("or", here, w.compare("NE", x, x))
    places = w.iota("s32", x.dims, rows[0]) if rows else w.constant(0, "s32")
    first = w.reduce("minimum", w.select(here, places, w.like(places, 2**31 - 1)), rows)
    if "arg" in call.node.operator:
        return _ended(call, first)
    return _ended(call, found), _ended(call, first, 1)


LONGEST = 128  #: Elements of a row that is sorted: those of longer rows are left to torch


@operator("sort.default", "sort.stable", "topk.default")
def _sort(call: OperatorCall) -> tuple[HloValue, HloValue]:
    w, x, name = call.writer, call.tensor(0), call.node.operator.split(".")[1]
    if not x.dims:
        return x, w.constant(0, "s64")
    at = 2 if "stable" in call.node.operator or name == "topk" else 1
    dimension = call.dimension(x, at, default=-1)
    if x.dims[dimension] > LONGEST:
        raise Unsupported(f"a sort of more than {LONGEST} elements a row")
    order = call.argument(3, "largest", True) if name == "topk" else call.argument(at + 1, "descending", False)
    if x.dtype == "pred":
        raise Unsupported("a sort of truth values")
    both = w.sort(x, w.iota("s32", x.dims, dimension), dimension, descending=bool(order))
    first, second = (w.slice(each, [0] * len(x.dims), call.result.dims, [1] * len(x.dims)) for each in both)
    return first, w.convert(second, "s64")


@operator("cumsum.default", "cumprod.default")
def _running(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.wide(0)
    if not x.dims:
        return call.finished(x)
    at, rank = call.dimension(x, 1), range(len(x.dims))
    sizes = "x".join(str(x.dims[at] if each == at else 1) for each in rank)
    sides = "x".join(f"{x.dims[at] - 1 if each == at else 0}_0" for each in rank)
    window = f"window={{size={sizes} pad={sides}}}"
    operation = "add" if "sum" in call.node.operator else "multiply"
    return call.finished(w.reduced(operation, x, x.dims, window, "reduce-window"))
