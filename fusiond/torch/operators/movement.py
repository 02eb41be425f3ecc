"""Operators that only say where elements are, and those that make tensors of nothing."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators.table import OperatorCall, Unsupported, number, operator


@operator("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
          "squeeze.dim", "squeeze.dims", view=True)  # fmt: skip
def _reshape(call: OperatorCall) -> HloValue:
    return call.writer.reshape(call.tensor(0), call.result.dims)


@operator("permute.default", "transpose.int", "t.default", view=True)
def _transpose(call: OperatorCall) -> HloValue:
    x, order = call.tensor(0), list(range(len(call.tensor(0).dims)))
    if call.node.operator == "aten.permute.default":
        order = list(call.dimensions(x, 1, "dims"))
    elif call.node.operator == "aten.t.default":
        order.reverse()
    elif order:
        a, b = call.dimension(x, 1, "dim0"), call.dimension(x, 2, "dim1")
        order[a], order[b] = order[b], order[a]
    return call.writer.transpose(x, order)


@operator("as_strided.default", view=True)
def _as_strided(call: OperatorCall) -> HloValue:
    x, dims, strides = call.tensor(0), call.integers(1, "size") or (), call.integers(2, "stride") or ()
    rows = tuple(math.prod(dims[at + 1 :]) for at in range(len(dims)))
    if math.prod(dims) != math.prod(x.dims) or strides != rows or call.argument(3, "storage_offset"):
        raise Unsupported("memory read otherwise than row by row")
    return call.writer.reshape(x, dims)


@operator("expand.default", view=True)
def _expand(call: OperatorCall) -> HloValue:
    return call.writer.expand(call.tensor(0), call.result.dims)


def _bounds(call: OperatorCall, x: HloValue, first: int) -> tuple[int, int, int, int]:
    """(dimension, start, end, step) of a slice whose arguments begin here."""
    dimension = call.dimension(x, first)
    size = x.dims[dimension]
    start, end = call.argument(first + 1, "start", 0), call.argument(first + 2, "end", None)
    step = call.argument(first + 3, "step", 1)
    if not all(each is None or type(each) is int for each in (start, end, step)):
        raise Unsupported("the bounds of a slice are not fixed")
    start, end, step = slice(start, end, step).indices(size)
    return dimension, start, max(start, end), step


@operator("slice.Tensor", view=True)
def _slice(call: OperatorCall) -> HloValue:
    return call.writer.part(call.tensor(0), *_bounds(call, call.tensor(0), 1))


@operator("select.int", view=True)
def _select(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    dimension = call.dimension(x, 1)
    index = int(number(call.argument(2, "index"))) % x.dims[dimension]
    return call.writer.reshape(call.writer.part(x, dimension, index, index + 1), call.result.dims)


@operator("split.Tensor", "split_with_sizes.default", "unbind.int", view=True)
def _split(call: OperatorCall) -> tuple[HloValue, ...]:
    x = call.tensor(0)
    dimension = call.dimension(x, 1 if "unbind" in call.node.operator else 2)
    found, at = [], 0
    for place in range(len(call.node.results)):
        dims = call.result_of(place).dims
        size = 1 if "unbind" in call.node.operator else dims[dimension]
        found.append(call.writer.reshape(call.writer.part(x, dimension, at, at + size), dims))
        at += size
    return tuple(found)


@operator("slice_scatter.default", movement=True)
def _slice_scatter(call: OperatorCall) -> HloValue:
    w, x, source = call.writer, call.tensor(0), call.tensor(1)
    dimension, start, end, step = _bounds(call, x, 2)
    part = -(-(end - start) // step)
    if part == 0:
        return x
    last = start + (part - 1) * step
    sides = [(start, x.dims[at] - 1 - last, step - 1) if at == dimension else (0, 0, 0) for at in range(len(x.dims))]
    moved = w.pad(w.convert(source, x.dtype), 0, sides)
    mask = w.pad(w.constant(True, "pred", source.dims), False, sides)
    return w.select(mask, moved, x)


@operator("constant_pad_nd.default", movement=True)
def _pad(call: OperatorCall) -> HloValue:
    x, sides = call.tensor(0), call.integers(1, "pad") or ()
    pairs = [
        (low, high, 0) for low, high in zip(sides[-2::-2], sides[::-2], strict=True)
    ]  # the last dimension is first
    return call.writer.pad(x, number(call.argument(2, "value", 0)), [(0, 0, 0)] * (len(x.dims) - len(pairs)) + pairs)


@operator("cat.default", movement=True)
def _cat(call: OperatorCall) -> HloValue:
    values = [each for each in call.argument(0, "tensors") if each.dims != (0,)]
    dimension = int(call.argument(1, "dim", 0)) % len(call.result.dims)
    return call.writer.concatenate([call.finished(each) for each in values], dimension)


@operator("flip.default", "prims.rev.default", movement=True)
def _flip(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    return call.writer.reverse(x, sorted(call.dimensions(x, 1, "dims")))


@operator("copy.default", movement=True)
def _copy(call: OperatorCall) -> HloValue:
    return call.wide(1, dtype=call.result.dtype)


def runs(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, step, count) of a sequence's parts; a step is -1, 0 or 1."""
    found: list[tuple[int, int, int]] = []
    for each in numbers:
        first, step, count = found[-1] if found else (0, 0, 0)
        if found and count == 1 and abs(each - first) <= 1:
            found[-1] = first, each - first, 2
        elif found and count > 1 and each == first + step * count:
            found[-1] = first, step, count + 1
        else:
            found.append((each, 0, 1))
    return found


def _picked(w: HloWriter, x: HloValue, at: int, numbers: Sequence[Any]) -> HloValue:
    """The elements at fixed places of a dimension: slices, turned and repeated."""
    parts = []
    for first, step, count in runs([each % x.dims[at] for each in numbers]):
        low, high = sorted((first, first + step * (count - 1)))
        part = w.part(x, at, low, high + 1)
        if step == 0:
            part = w.expand(part, [count if each == at else dim for each, dim in enumerate(x.dims)])
        parts.append(w.reverse(part, [at]) if step < 0 else part)
    return w.concatenate(parts, at)


def _points(call: OperatorCall, given: Sequence[Any], x: HloValue, dims: Sequence[int]) -> tuple[HloValue, list[int]]:
    """(indices in x, of these dimensions with the numbers in the last; the dimensions of x that they are for)."""
    w, parts, places = call.writer, [], []
    for at, index in enumerate(given):
        if index is None:
            continue
        if index.dtype in ("pred", "u8"):
            raise Unsupported("a mask as an index")
        index = w.expand(w.convert(index, "s64"), dims)
        below = w.compare("LT", index, w.like(index, 0))
        wrapped = w.select(below, w.binary("add", index, w.like(index, x.dims[at])), index)
        parts.append(w.reshape(wrapped, (*dims, 1)))
        places.append(at)
    return w.concatenate(parts, len(dims)), places


@operator("index.Tensor", "_unsafe_index.Tensor", movement=True)
@operator("index_put.default", "_unsafe_index_put.default")
def _index(call: OperatorCall) -> HloValue:
    """Dimensions of the indices stand where the first of theirs was if theirs are neighbours, else in front."""
    w, x, given = call.writer, call.tensor(0), call.argument(1, "indices")
    fixed = [(at, each.numbers) for at, each in enumerate(given) if each is not None]
    if len(fixed) == 1 and fixed[0][1] and "put" not in call.node.operator:
        return _picked(w, x, *fixed[0])
    dims = np.broadcast_shapes(*(each.dims for each in given if each is not None))
    indices, places = _points(call, given, x, dims)
    at = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    if "put" not in call.node.operator:
        return w.gather(x, indices, places, at)
    sums = bool(call.argument(3, "accumulate", False))
    x = call.floating(x) if sums else x
    rest = [size for each, size in enumerate(x.dims) if each not in places]
    updates = call.shaped(call.argument(2, "values"), x.dtype, (*rest[:at], *dims, *rest[at:]))
    return call.finished(w.scatter(x, indices, updates, places, at, "add" if sums else "replace"))


@operator("gather.default", movement=True)
@operator("scatter_add.default")
@operator("scatter.src", "scatter.value", movement=True)
def _gather(call: OperatorCall) -> HloValue:
    """Element by element: along one dimension as the index says, along the others where it is said."""
    w, x, index = call.writer, call.tensor(0), call.tensor(2)
    if not x.dims or len(index.dims) != len(x.dims):
        raise Unsupported("a gather of a number")
    dimension = call.dimension(x, 1)
    sums = "scatter_add" in call.node.operator
    if "scatter" in call.node.operator:
        x = call.floating(x) if sums else x
        source = call.argument(3, "value" if "value" in call.node.operator else "src")
        if isinstance(source, HloValue) and len(source.dims) == len(index.dims):
            source = w.slice(source, [0] * len(index.dims), index.dims, [1] * len(index.dims))
        value = call.shaped(source, x.dtype, index.dims)
        if not sums and index.dims == tuple(1 if at == dimension else size for at, size in enumerate(x.dims)):
            here = w.compare("EQ", w.iota(index.dtype, x.dims, dimension), w.expand(index, x.dims))
            return w.select(here, w.expand(value, x.dims), x)  # one element of each row is another
    given = [index if at == dimension else w.iota("s64", index.dims, at) for at in range(len(x.dims))]
    indices, places = _points(call, given, x, index.dims)
    if call.node.operator == "aten.gather.default":
        return w.gather(x, indices, places, 0)
    return call.finished(w.scatter(x, indices, value, places, 0, "add" if sums else "replace"))


# --- of nothing ---


@operator("constant", view=True)
def _constant(call: OperatorCall) -> HloValue:
    return call.writer.literal(call.node.arguments[0], call.result.dtype, call.result.dims)


@operator("full.default", "scalar_tensor.default", movement=True)
def _full(call: OperatorCall) -> HloValue:
    value = number(call.argument(int("full" in call.node.operator), "fill_value"))
    return call.writer.constant(value, call.result.dtype, call.result.dims)


@operator("prims.iota.default", movement=True)
def _iota(call: OperatorCall) -> HloValue:
    w, (size,) = call.writer, call.result.dims
    start, step = call.argument(1, "start", 0), call.argument(2, "step", 1)
    found = w.iota(call.result.dtype, (size,), 0)
    if step != 1:
        found = w.binary("multiply", found, w.like(found, number(step)))
    return w.binary("add", found, w.like(found, number(start))) if start else found
