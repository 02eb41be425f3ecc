"""Softmax and layer normalisation, forward and backward."""

from __future__ import annotations

import math

from fusiond.torch.instructions import HloValue
from fusiond.torch.operators.reductions import kept, over, variance
from fusiond.torch.operators.table import OperatorCall, number, operator, working


@operator("_softmax.default", "_log_softmax.default")
def _softmax(call: OperatorCall) -> HloValue:
    w = call.writer
    x = w.convert(call.tensor(0), working(call.result.dtype))
    if not x.dims:
        return call.finished(w.like(x, 1.0 if call.node.operator == "aten._softmax.default" else 0.0))
    rows = [call.dimension(x, 1)]
    off = w.binary("subtract", x, over(w, "maximum", x, rows))
    powers = w.unary("exponential", off)
    total = over(w, "add", powers, rows)
    if call.node.operator == "aten._softmax.default":
        return call.finished(w.binary("divide", powers, total))
    return call.finished(w.binary("subtract", off, w.unary("log", total)))


@operator("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def _softmax_backward(call: OperatorCall) -> HloValue:
    """y (g - sum(g y)), g - exp(y) sum(g)."""
    w = call.writer
    gradient, y = call.floating(call.tensor(0)), call.floating(call.tensor(1))
    rows = [call.dimension(y, 2)] if y.dims else []
    if call.node.operator == "aten._softmax_backward_data.default":
        total = over(w, "add", w.binary("multiply", gradient, y), rows)
        return call.finished(w.binary("multiply", y, w.binary("subtract", gradient, total)))
    scaled = w.binary("multiply", w.unary("exponential", y), over(w, "add", gradient, rows))
    return call.finished(w.binary("subtract", gradient, scaled))


@operator("native_layer_norm.default")
def _layer_norm(call: OperatorCall) -> tuple[HloValue, HloValue, HloValue]:
    """(normalised, mean, 1 / deviation)."""
    w = call.writer
    x = call.floating(call.tensor(0))
    rows = _rows(call, x, 1)
    spread, middle = variance(w, x, rows, 0.0)
    inverse = w.unary("rsqrt", w.binary("add", spread, w.like(spread, number(call.argument(4, "eps")))))
    wide_middle = w.expand(kept(w, middle, x, rows), x.dims)
    found = w.binary("multiply", w.binary("subtract", x, wide_middle), w.expand(kept(w, inverse, x, rows), x.dims))
    for opcode, place in (("multiply", 2), ("add", 3)):
        if (factor := call.optional(place)) is not None:
            found = w.binary(opcode, found, call.shaped(factor, x.dtype, x.dims))
    middle, inverse = (
        w.reshape(call.finished(each, at), call.result_of(at).dims) for at, each in ((1, middle), (2, inverse))
    )
    return call.finished(found), middle, inverse


def _rows(call: OperatorCall, x: HloValue, place: int) -> list[int]:
    count = len(call.integers(place, "normalized_shape") or ())
    return list(range(len(x.dims) - count, len(x.dims)))


@operator("native_layer_norm_backward.default")
def _layer_norm_backward(call: OperatorCall) -> tuple[HloValue | None, ...]:
    """(dx, dweight, dbias), as far as they are asked for."""
    w = call.writer
    gradient, x = call.floating(call.tensor(0)), call.floating(call.tensor(1))
    rows = _rows(call, x, 2)
    outer = [at for at in range(len(x.dims)) if at not in rows]
    middle, inverse = (call.shaped(call.tensor(at), x.dtype, x.dims) for at in (3, 4))
    weight = call.optional(5)
    mask = call.argument(7, "output_mask")
    normal = w.binary("multiply", w.binary("subtract", x, middle), inverse)
    results: list[HloValue | None] = [None, None, None]
    if mask[0]:
        scaled = gradient if weight is None else w.binary("multiply", gradient, call.shaped(weight, x.dtype, x.dims))
        share = 1 / math.prod(x.dims[each] for each in rows)
        first = over(w, "add", scaled, rows)
        second = w.binary("multiply", normal, over(w, "add", w.binary("multiply", scaled, normal), rows))
        both = w.binary("add", first, second)
        inner = w.binary("subtract", scaled, w.binary("multiply", both, w.like(both, share)))
        results[0] = call.finished(w.binary("multiply", inverse, inner))
    if mask[1]:
        results[1] = call.finished(w.reduce("add", w.binary("multiply", gradient, normal), outer), 1)
    if mask[2]:
        results[2] = call.finished(w.reduce("add", gradient, outer), 2)
    return tuple(results)
