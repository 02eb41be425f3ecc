"""Losses, forward and backward. `reduction` is torch's number: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from fusiond.torch.instructions import HloValue
from fusiond.torch.operators.reductions import mean
from fusiond.torch.operators.table import OperatorCall, Unsupported, number, operator


@operator("mse_loss.default")
def _mse(call: OperatorCall) -> HloValue:
    w = call.writer
    a, b = call.floating(call.tensor(0)), call.floating(call.tensor(1))
    off = w.binary("subtract", a, call.shaped(b, a.dtype, a.dims))
    square = w.binary("multiply", off, off)
    reduction = call.argument(2, "reduction", 1)
    every = range(len(square.dims))
    if reduction == 1:
        return call.finished(mean(w, square, every))
    return call.finished(w.reduce("add", square, every) if reduction == 2 else square)


@operator("mse_loss_backward.default")
def _mse_backward(call: OperatorCall) -> HloValue:
    w, gradient, a, b = call.writer, call.wide(0), call.wide(1), call.wide(2)
    scale = 2 / call.result.elements if call.argument(3, "reduction", 1) == 1 else 2.0
    off = w.binary("multiply", w.binary("subtract", a, b), w.like(a, scale))
    return call.finished(w.binary("multiply", off, gradient))


def _counted(
    call: OperatorCall, x: HloValue, target: HloValue, weight: HloValue | None, ignored: int
) -> tuple[HloValue, HloValue]:
    """(one element of each row as an array of x's shape that is true there, the weight of each row)."""
    w = call.writer
    if len(x.dims) != 2 or len(target.dims) != 1:
        raise Unsupported("a loss over other tensors than rows of classes")
    place = w.broadcast(target, x.dims, (0,))
    here = w.compare("EQ", w.iota(target.dtype, x.dims, 1), place)
    valid = w.compare("NE", target, w.like(target, ignored))
    if weight is None:
        return here, w.convert(valid, x.dtype)
    wide = w.broadcast(w.convert(weight, x.dtype), x.dims, (1,))
    picked = w.reduce("add", w.select(here, wide, w.like(wide, 0)), (1,))
    return here, w.select(valid, picked, w.like(picked, 0))


@operator("nll_loss_forward.default")
def _nll(call: OperatorCall) -> tuple[HloValue, HloValue]:
    """(loss, the weight of all rows)."""
    w = call.writer
    x, target = call.floating(call.tensor(0)), call.tensor(1)
    reduction, ignored = call.argument(3, "reduction", 1), int(number(call.argument(4, "ignore_index", -100)))
    here, weights = _counted(call, x, target, call.optional(2, "weight"), ignored)
    picked = w.reduce("add", w.select(here, x, w.like(x, 0)), (1,))
    losses = w.unary("negate", w.binary("multiply", picked, weights))
    # An ignored row counts as nothing, whatever it holds.
    losses = w.select(w.compare("EQ", weights, w.like(weights, 0)), w.like(losses, 0), losses)
    if reduction == 0:
        return call.finished(losses), w.constant(0, call.result_of(1).dtype)
    total = w.reduce("add", weights, (0,))
    summed = w.reduce("add", losses, (0,))
    loss = w.binary("divide", summed, total) if reduction == 1 else summed
    return call.finished(loss), call.finished(total, 1)


@operator("nll_loss_backward.default")
def _nll_backward(call: OperatorCall) -> HloValue:
    w = call.writer
    gradient, x, target = call.floating(call.tensor(0)), call.floating(call.tensor(1)), call.tensor(2)
    reduction, ignored = call.argument(4, "reduction", 1), int(number(call.argument(5, "ignore_index", -100)))
    here, weights = _counted(call, x, target, call.optional(3, "weight"), ignored)
    rows = w.unary("negate", weights)
    scale = call.shaped(gradient, x.dtype, weights.dims)
    if reduction == 1:
        scale = w.binary("divide", scale, call.shaped(call.tensor(6, "total_weight"), x.dtype, weights.dims))
    each = w.broadcast(w.binary("multiply", rows, scale), x.dims, (0,))
    return call.finished(w.select(here, each, w.like(each, 0)))
