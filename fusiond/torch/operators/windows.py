"""Small convolutions, pooling, and the borders of images: what reads some pixels round its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusiond.frameworks import is_stencil
from fusiond.torch.instructions import HloValue, HloWriter
from fusiond.torch.operators.table import OperatorCall, Unsupported, operator


@operator("convolution.default")
def _convolution(call: OperatorCall) -> HloValue:
    w, x, weight, bias = call.writer, call.floating(call.tensor(0)), call.floating(call.tensor(1)), call.optional(2)
    given = _Convolution(call, 3, len(x.dims) - 2)
    found = given.written(w, x, weight, transposed=bool(call.argument(6, "transposed")))
    if bias is not None:
        wide = w.broadcast(w.convert(bias, found.dtype), found.dims, (1,))
        found = w.binary("add", found, wide)
    return call.finished(found)


@operator("convolution_backward.default")
def _convolution_backward(call: OperatorCall) -> tuple[HloValue | None, ...]:
    """The input's gradient, where no other is asked for: the same filters the other way."""
    if call.argument(10, "output_mask") != (True, False, False):
        raise Unsupported("a library's")
    w, slope, weight = call.writer, call.floating(call.tensor(0)), call.floating(call.tensor(2))
    given = _Convolution(call, 4, len(slope.dims) - 2)
    backwards = not call.argument(7, "transposed")
    found = given.written(w, slope, weight, transposed=backwards, sizes=call.result.dims[2:])
    return call.finished(found), None, None


class _Convolution:
    """The arguments from `stride` on."""

    def __init__(self, call: OperatorCall, first: int, rank: int) -> None:
        def numbers(place: int, name: str) -> tuple[int, ...]:
            found = call.integers(place, name) or ()
            return found * rank if len(found) == 1 else found

        self.stride, self.padding = numbers(first, "stride"), numbers(first + 1, "padding")
        self.dilation, self.more = numbers(first + 2, "dilation"), numbers(first + 4, "output_padding")
        self.groups = int(call.argument(first + 5, "groups"))

    def written(
        self, w: HloWriter, x: HloValue, weight: HloValue, *, transposed: bool, sizes: Sequence[int] | None = None
    ) -> HloValue:
        """Of images [batch, channel, ...] and filters [output, input, ...] ([input, output, ...] of a transposed one).
        `sizes`: of the result, where the output padding does not say them. Unsupported where it is a library's."""
        inputs, taps = weight.dims[1], weight.dims[2:]
        outputs, groups = weight.dims[0], self.groups
        if not is_stencil(outputs, inputs, groups, math.prod(taps)) or not taps or x.dtype[0] not in "fb":
            raise Unsupported("a library's")
        reach = [step * (tap - 1) for step, tap in zip(self.dilation, taps, strict=True)]
        if transposed:
            parted = w.reshape(weight, (groups, outputs // groups, inputs, *taps))
            turned = w.transpose(parted, (0, 2, 1, *range(3, len(parted.dims))))
            weight = w.reverse(
                w.reshape(turned, (groups * inputs, outputs // groups, *taps)), range(2, len(weight.dims))
            )
            low = [each - pad for each, pad in zip(reach, self.padding, strict=True)]
            spread = [(size - 1) * step + 1 for size, step in zip(x.dims[2:], self.stride, strict=True)]
            wanted = sizes or [
                size + 2 * before - each + more
                for size, before, each, more in zip(spread, low, reach, self.more, strict=True)
            ]
            high = [
                size + each - before - length
                for size, each, before, length in zip(wanted, reach, low, spread, strict=True)
            ]
            return self._add(w, x, weight, wanted, [1] * len(taps), list(zip(low, high, strict=True)), self.stride)
        edges = [(each, each) for each in self.padding]
        rows = zip(x.dims[2:], self.padding, reach, self.stride, strict=True)
        wanted = [(size + 2 * pad - each - 1) // step + 1 for size, pad, each, step in rows]
        return self._add(w, x, weight, wanted, self.stride, edges, [1] * len(taps))

    def _add(
        self, w: HloWriter, x: HloValue, weight: HloValue, sizes: Sequence[int], stride: Sequence[int],
        edges: Sequence[tuple[int, int]], spread: Sequence[int],
    ) -> HloValue:  # fmt: skip
        places = "".join(map(str, range(len(sizes))))
        attributes = (
            f"{_window(weight.dims[2:], stride, edges, dilation=self.dilation, spread=spread)}, "
            f"dim_labels=bf{places}_oi{places}->bf{places}, feature_group_count={self.groups}"
        )
        return w.add("convolution", x.dtype, (x.dims[0], weight.dims[0], *sizes), [x, weight], attributes)


def _window(
    sizes: Sequence[int], stride: Sequence[int], edges: Sequence[tuple[int, int]], *,
    dilation: Sequence[int] = (), spread: Sequence[int] = (),
) -> str:  # fmt: skip
    ones = [1] * len(sizes)
    fields = {"size": sizes, "stride": stride, "pad": [f"{low}_{high}" for low, high in edges],
              "lhs_dilate": spread or ones, "rhs_dilate": dilation or ones}  # fmt: skip
    return "window={" + " ".join(f"{name}={'x'.join(map(str, each))}" for name, each in fields.items()) + "}"


# --- pooling ---


@operator("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _mean(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.floating(call.tensor(0))
    pool = _Pool(call, x, dilation=False)
    total = pool.of(w, "add", x)
    divisor = call.argument(6, "divisor_override")
    if call.argument(5, "count_include_pad", True) or divisor or not any(pool.padding):
        return call.finished(w.binary("divide", total, w.like(total, divisor or math.prod(pool.sizes))))
    ones = w.broadcast(w.constant(1, x.dtype), x.dims, ())
    return call.finished(w.binary("divide", total, pool.of(w, "add", ones)))


@operator("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _most(call: OperatorCall) -> tuple[HloValue | None, ...]:
    """Without the places, which a gradient asks for."""
    x = call.tensor(0)
    return _Pool(call, x, dilation=True).of(call.writer, "maximum", x), None


class _Pool:
    def __init__(self, call: OperatorCall, x: HloValue, *, dilation: bool) -> None:
        rank = int(call.node.operator.split("pool")[1][0])

        def numbers(place: int, name: str, default: Sequence[int]) -> tuple[int, ...]:
            found = call.integers(place, name) or tuple(default)
            return found * rank if len(found) == 1 else found

        self.sizes = numbers(1, "kernel_size", ())
        self.stride, self.padding = numbers(2, "stride", self.sizes), numbers(3, "padding", (0,))
        self.dilation = numbers(4, "dilation", (1,)) if dilation else (1,) * rank
        if call.argument(5 if dilation else 4, "ceil_mode", False):
            raise Unsupported("windows reach beyond the padding")
        self.dims = (*x.dims[: len(x.dims) - rank], *call.result.dims[-rank:])
        self.before = len(x.dims) - rank

    def of(self, w: HloWriter, operation: str, x: HloValue) -> HloValue:
        ones, none = [1] * self.before, [(0, 0)] * self.before
        edges = [*none, *((each, each) for each in self.padding)]
        window = _window([*ones, *self.sizes], [*ones, *self.stride], edges, dilation=[*ones, *self.dilation])
        return w.reduced(operation, x, self.dims, window, "reduce-window")


# --- borders ---


@operator("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default",
          "replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default",
          movement=True)  # fmt: skip
def _border(call: OperatorCall) -> HloValue:
    w, x = call.writer, call.tensor(0)
    sides = call.integers(1, "padding") or ()
    for place in range(len(sides) // 2):
        at = len(x.dims) - 1 - place
        size, (low, high) = x.dims[at], sides[2 * place : 2 * place + 2]
        if min(low, high) < 0:
            raise Unsupported("a border is cut off")

        def cut(first: int, last: int, at: int = at, x: HloValue = x) -> HloValue:
            starts = [first if each == at else 0 for each in range(len(x.dims))]
            limits = [last if each == at else dim for each, dim in enumerate(x.dims)]
            return w.slice(x, starts, limits, [1] * len(x.dims))

        if call.node.operator.startswith("aten.reflection"):
            before, behind = w.reverse(cut(1, 1 + low), [at]), w.reverse(cut(size - 1 - high, size - 1), [at])
        else:
            before, behind = (
                w.expand(cut(edge, edge + 1), [count if each == at else dim for each, dim in enumerate(x.dims)])
                for edge, count in ((0, low), (size - 1, high))
            )
        parts = [each for each, count in ((before, low), (x, 1), (behind, high)) if count]
        x = w.concatenate(parts, at)
    return x
