"""Operators that only say where elements are, and those that make tensors of nothing."""

from __future__ import annotations

from typing import Any

from fusiond.torch.instructions import HloValue
from fusiond.torch.operators.table import OperatorCall, Unsupported, hlo_type, number, operator


@operator("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.default",
          "squeeze.dim", "squeeze.dims", view=True)  # fmt: skip
def _reshape(call: OperatorCall) -> HloValue:
    return call.writer.reshape(call.tensor(0), call.result.dims)


@operator("permute.default", view=True)
def _permute(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    return call.writer.transpose(x, call.dimensions(x, 1, "dims"))


@operator("transpose.int", "t.default", view=True)
def _transpose(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    order = list(range(len(x.dims)))
    if call.node.operator == "aten.t.default":
        return call.writer.transpose(x, order[::-1])
    a, b = call.dimension(x, 1, "dim0"), call.dimension(x, 2, "dim1")
    if order:
        order[a], order[b] = order[b], order[a]
    return call.writer.transpose(x, order)


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
    x = call.tensor(0)
    dimension, start, end, step = _bounds(call, x, 1)
    return _part(call, x, dimension, start, end, step)


def _part(call: OperatorCall, x: HloValue, dimension: int, start: int, end: int, step: int = 1) -> HloValue:
    def put(value: int, others: list[int]) -> list[int]:
        others[dimension] = value
        return others

    rank = len(x.dims)
    return call.writer.slice(x, put(start, [0] * rank), put(end, list(x.dims)), put(step, [1] * rank))


@operator("select.int", view=True)
def _select(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    dimension = call.dimension(x, 1)
    index = int(number(call.argument(2, "index"))) % x.dims[dimension]
    return call.writer.reshape(_part(call, x, dimension, index, index + 1), call.result.dims)


@operator("split.Tensor", "split_with_sizes.default", "unbind.int", view=True)
def _split(call: OperatorCall) -> tuple[HloValue, ...]:
    x = call.tensor(0)
    dimension = call.dimension(x, 1 if "unbind" in call.node.operator else 2)
    found, at = [], 0
    for place in range(len(call.node.results)):
        dims = call.result_of(place).dims
        size = 1 if "unbind" in call.node.operator else dims[dimension]
        found.append(call.writer.reshape(_part(call, x, dimension, at, at + size), dims))
        at += size
    return tuple(found)


@operator("slice_scatter.default", "select_scatter.default", movement=True)
def _slice_scatter(call: OperatorCall) -> HloValue:
    w, x, source = call.writer, call.tensor(0), call.tensor(1)
    if "select" in call.node.operator:
        dimension = call.dimension(x, 2)
        start = int(number(call.argument(3, "index"))) % x.dims[dimension]
        end, step = start + 1, 1
        source = w.reshape(source, [1 if at == dimension else size for at, size in enumerate(x.dims)])
    else:
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
    value = number(call.argument(2, "value", 0))
    found = [(0, 0, 0)] * len(x.dims)
    for place in range(len(sides) // 2):
        found[len(x.dims) - 1 - place] = (sides[2 * place], sides[2 * place + 1], 0)
    return call.writer.pad(x, value, found)


@operator("cat.default", movement=True)
def _cat(call: OperatorCall) -> HloValue:
    values = [each for each in call.argument(0, "tensors") if each.dims != (0,)]
    dimension = int(call.argument(1, "dim", 0)) % len(call.result.dims)
    return call.writer.concatenate([call.finished(each) for each in values], dimension)


@operator("stack.default", movement=True)
def _stack(call: OperatorCall) -> HloValue:
    dimension = int(call.argument(1, "dim", 0)) % len(call.result.dims)
    values: Any = call.argument(0, "tensors")
    parts = [
        call.writer.reshape(call.finished(each), (*each.dims[:dimension], 1, *each.dims[dimension:])) for each in values
    ]
    return call.writer.concatenate(parts, dimension)


@operator("repeat.default", movement=True)
def _repeat(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.tensor(0)
    times = call.integers(1, "repeats") or ()
    dims = (*(1,) * (len(times) - len(x.dims)), *x.dims)
    both = [each for pair in zip(times, dims, strict=True) for each in pair]
    wide = w.broadcast(w.reshape(x, dims), both, range(1, len(both), 2))
    return w.reshape(wide, call.result.dims)


@operator("flip.default", movement=True)
def _flip(call: OperatorCall) -> HloValue:
    x = call.tensor(0)
    return call.writer.reverse(x, sorted(call.dimensions(x, 1, "dims")))


@operator("tril.default", "triu.default", movement=True)
def _triangle(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.tensor(0)
    rank = len(x.dims)
    rows, columns = w.iota("s32", x.dims, rank - 2), w.iota("s32", x.dims, rank - 1)
    limit = w.binary("add", rows, w.like(rows, int(number(call.argument(1, "diagonal", 0)))))
    direction = "LE" if "tril" in call.node.operator else "GE"
    return w.select(w.compare(direction, columns, limit), x, w.like(x, 0))


@operator("gather.default", movement=True)
def _gather(call: OperatorCall) -> HloValue:
    w, x, index = call.writer, call.tensor(0), call.tensor(2)
    if not x.dims or len(index.dims) != len(x.dims):
        raise Unsupported("a gather of a number")
    dimension = call.dimension(x, 1)
    dims = (*index.dims, 1)
    parts = [
        w.reshape(index if at == dimension else w.iota(index.dtype, index.dims, at), dims) for at in range(len(x.dims))
    ]
    return w.point_gather(x, w.concatenate(parts, len(index.dims)))


@operator("scatter.src", "scatter.value", movement=True)
def _scatter(call: OperatorCall) -> HloValue:
    """One element of each row is another: where the place is the one that is asked for."""
    w, x, index = call.writer, call.tensor(0), call.tensor(2)
    dimension = call.dimension(x, 1)
    expected = tuple(1 if at == dimension else size for at, size in enumerate(x.dims))
    if index.dims != expected or not x.dims:
        raise Unsupported("a scatter of more than one element in each row")
    value = call.shaped(call.argument(3, "src"), x.dtype, expected)
    here = w.compare("EQ", w.iota(index.dtype, x.dims, dimension), w.expand(index, x.dims))
    return w.select(here, w.expand(value, x.dims), x)


# --- of nothing ---


@operator("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default",
          "ones_like.default", "new_zeros.default", "new_ones.default", "new_full.default",
          "scalar_tensor.default", movement=True)  # fmt: skip
def _full(call: OperatorCall) -> HloValue:
    name = call.node.operator.split(".")[1]
    at = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}.get(name)
    value = number(call.argument(at, "fill_value")) if at is not None else int("ones" in name)
    return call.writer.constant(value, call.result.dtype, call.result.dims)


@operator("arange.default", "arange.start", "arange.start_step", "prims.iota.default", movement=True)
def _arange(call: OperatorCall) -> HloValue:
    w, (size,) = call.writer, call.result.dims
    overload = call.node.operator
    if overload == "prims.iota.default":
        start, step = call.argument(1, "start", 0), call.argument(2, "step", 1)
    else:
        start = 0 if overload == "aten.arange.default" else call.argument(0, "start")
        step = call.argument(2, "step", 1) if overload == "aten.arange.start_step" else 1
    dtype = call.result.dtype
    hlo_type(call.node.named.get("dtype"))
    work = "f32" if dtype in ("f16", "bf16") else dtype
    found = w.iota(work, (size,), 0)
    if step != 1:
        found = w.binary("multiply", found, w.like(found, number(step)))
    if start != 0:
        found = w.binary("add", found, w.like(found, number(start)))
    return call.finished(found)
