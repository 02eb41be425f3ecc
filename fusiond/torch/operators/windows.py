"""Small convolutions and pooling."""

import itertools
import math
from collections.abc import Sequence

from fusiond.service.frameworks import is_stencil
from fusiond.torch.instructions import HloValue, HloWriter, edge
from fusiond.torch.operators.table import OperatorCall, Unsupported, operator


@operator("convolution.default")
def _convolution(call: OperatorCall) -> HloValue:
    w, x, weight, bias = call.writer, call.floating(call.tensor(0)), call.floating(call.tensor(1)), call.argument(2)
    found = _convolved(call, 3, x, weight, transposed=bool(call.argument(6, "transposed")))
    if isinstance(bias, HloValue):
        wide = w.broadcast(w.convert(bias, found.dtype), found.dims, (1,))
        found = w.binary("add", found, wide)
    return call.finished(found)


@operator("convolution_backward.default")
def _convolution_backward(call: OperatorCall) -> tuple[HloValue | None, ...]:
    """The input's gradient, where no other is asked for: the same filters the other way."""
    if call.argument(10, "output_mask") != (True, False, False):
        raise Unsupported("a library's")
    slope, weight = call.floating(call.tensor(0)), call.floating(call.tensor(2))
    found = _convolved(call, 4, slope, weight, transposed=not call.argument(7, "transposed"))
    return call.finished(found), None, None


def _convolved(call: OperatorCall, first: int, x: HloValue, weight: HloValue, *, transposed: bool) -> HloValue:
    """Of images [batch, channel, ...] and filters [output, input, ...] ([input, output, ...] of a transposed one). The
    arguments from `stride` on begin at `first`. Unsupported where it is a library's."""
    w, (outputs, inputs, *taps), sizes = call.writer, weight.dims, call.result.dims[2:]
    stride, padding, dilation = (_numbers(call, first + at, len(taps)) for at in range(3))
    groups = int(call.argument(first + 5))
    if not is_stencil(outputs, inputs, groups, math.prod(taps)) or not taps or x.dtype[0] not in "fb":
        raise Unsupported("a library's")
    edges, steps, spread = [(each, each) for each in padding], stride, (1,) * len(taps)
    if transposed:
        parted = w.reshape(weight, (groups, outputs // groups, inputs, *taps))
        turned = w.transpose(parted, (0, 2, 1, *range(3, len(parted.dims))))
        weight = w.reverse(w.reshape(turned, (groups * inputs, outputs // groups, *taps)), range(2, len(weight.dims)))
        steps, spread, edges = spread, stride, []
        for size, length, tap, step, pad, wide in zip(sizes, x.dims[2:], taps, stride, padding, dilation, strict=True):
            reach = wide * (tap - 1)
            edges.append((reach - pad, size + pad - (length - 1) * step - 1))
    places = "".join(map(str, range(len(taps))))
    attributes = (
        f"{_window(taps, steps, edges, dilation=dilation, spread=spread)}, "
        f"dim_labels=bf{places}_oi{places}->bf{places}, feature_group_count={groups}"
    )
    return w.add("convolution", x.dtype, (x.dims[0], weight.dims[0], *sizes), [x, weight], attributes)


def _numbers(call: OperatorCall, place: int, rank: int, name: str = "", default: Sequence[int] = ()) -> tuple[int, ...]:
    """One for each dimension of a window."""
    found = call.integers(place, name) or tuple(default)
    return found * rank if len(found) == 1 else found


def _window(
    sizes: Sequence[int], stride: Sequence[int], edges: Sequence[tuple[int, int]], *,
    dilation: Sequence[int] = (), spread: Sequence[int] = (),
) -> str:  # fmt: skip
    ones = [1] * len(sizes)
    fields = {"size": sizes, "stride": stride, "pad": [f"{low}_{high}" for low, high in edges],
              "lhs_dilate": spread or ones, "rhs_dilate": dilation or ones}  # fmt: skip
    return "window={" + " ".join(f"{name}={'x'.join(map(str, each))}" for name, each in fields.items()) + "}"


# --- pooling ---

MOST_PLACES = 64  #: Elements of a window whose largest is to be said by its place


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


@operator("max_pool2d_with_indices.default", "max_pool3d_with_indices.default",
          "prims._low_memory_max_pool_with_offsets.default")  # fmt: skip
def _most(call: OperatorCall) -> tuple[HloValue | None, ...]:
    """(the largest of each window, where: in the plane, or as a number of the window)."""
    w, x = call.writer, call.floating(call.tensor(0))
    pool = _Pool(call, x, dilation=True)
    if not 0 < math.prod(pool.sizes) <= MOST_PLACES:
        raise Unsupported(f"a maximum over windows of more than {MOST_PLACES} elements")
    wide = w.pad(x, edge(x.dtype, least=True), [(low, high, 0) for low, high in pool.edges])
    which, steps = w.constant(0, "s32", pool.dims), [1] * pool.before + list(pool.stride)

    def value(offset: Sequence[int]) -> HloValue:
        starts = [0] * pool.before + [each * step for each, step in zip(offset, pool.dilation, strict=True)]
        ends = [at + (size - 1) * step + 1 for at, size, step in zip(starts, pool.dims, steps, strict=True)]
        return w.slice(wide, starts, ends, steps)

    values = map(value, itertools.product(*map(range, pool.sizes)))
    best = next(values)
    for place, each in enumerate(values, 1):
        better = w.compare("GT", each, best)
        if x.dtype[0] in "fb":
            better = w.binary("or", better, w.compare("NE", each, each))
        best, which = w.select(better, each, best), w.select(better, w.like(which, place), which)
    if "offsets" not in call.node.operator:
        which = _plane(w, which, x.dims[pool.before :], pool.sizes, pool.stride, pool.padding, pool.dilation)
    places = None if call.node.results[1] is None else call.finished(which, 1)
    return call.finished(pool.of(w, "maximum", x)), places


@operator("prims._low_memory_max_pool_offsets_to_indices.default")
def _offsets(call: OperatorCall) -> HloValue:
    w = call.writer
    offsets = w.convert(call.tensor(0), "s32")
    return call.finished(_plane(w, offsets, *(call.integers(at) or () for at in (2, 1, 3, 4, 5))))


def _plane(w: HloWriter, which: HloValue, dims: Sequence[int], *window: Sequence[int]) -> HloValue:
    """Numbers of windows' elements as places in a plane. Of a window of nothing but -inf torch says the first place
    that is inside: so does this."""
    found, scale, front = w.like(which, 0), 1, len(which.dims) - len(dims)
    for at, (size, taps, *steps) in reversed([*enumerate(zip(dims, *window, strict=True))]):
        stride, padding, dilation = (w.like(which, each) for each in steps)
        inner = w.binary("multiply", w.binary("remainder", which, w.like(which, taps)), dilation)
        which = w.binary("divide", which, w.like(which, taps))
        begin = w.binary("multiply", w.iota("s32", which.dims, front + at), stride)
        place = w.binary("maximum", w.binary("subtract", w.binary("add", begin, inner), padding), w.like(which, 0))
        found = w.binary("add", found, w.binary("multiply", place, w.like(which, scale)))
        scale *= size
    return found


@operator("avg_pool2d_backward.default")
def _mean_backward(call: OperatorCall) -> HloValue:
    """Each window's share of the slope, to all of its elements: windows over the slopes, spread by the stride."""
    w, slope = call.writer, call.floating(call.tensor(0))
    sizes, stride, padding = (call.integers(at) or () for at in (2, 3, 4))
    if call.argument(5) or call.argument(7) or (any(padding) and not call.argument(6)):
        raise Unsupported("windows of several sizes")
    stride, before = stride or sizes, len(slope.dims) - 2
    share = w.binary("divide", slope, w.like(slope, math.prod(sizes)))
    wide = w.pad(share, 0, [(0, 0, 0)] * before + [(0, 0, step - 1) for step in stride])
    edges = [(0, 0)] * before + [
        (tap - 1 - low, size + low - length)
        for tap, low, size, length in zip(sizes, padding, call.result.dims[-2:], wide.dims[-2:], strict=True)
    ]
    window = _window([*[1] * before, *sizes], [1] * len(wide.dims), edges)
    return call.finished(w.reduced("add", wide, call.result.dims, window, "reduce-window"))


class _Pool:
    def __init__(self, call: OperatorCall, x: HloValue, *, dilation: bool) -> None:
        name = call.node.operator.split("pool")[1]
        rank = len(call.integers(1) or ()) if name.startswith("_") else int(name[0])
        self.sizes = _numbers(call, 1, rank, "kernel_size")
        self.stride = _numbers(call, 2, rank, "stride", self.sizes)
        self.padding = _numbers(call, 3, rank, "padding", (0,))
        self.dilation = _numbers(call, 4, rank, "dilation", (1,)) if dilation else (1,) * rank
        self.dims = (*x.dims[: len(x.dims) - rank], *call.result.dims[-rank:])
        self.before = len(x.dims) - rank
        self.edges, inner = [(0, 0)] * self.before, (self.dims[self.before :], x.dims[self.before :])
        ceil = call.argument(5 if dilation else 4, "ceil_mode", False)
        if ceil and not dilation:
            raise Unsupported("windows reach beyond the padding")
        for low, step, taps, wide, made, size in zip(
            self.padding, self.stride, self.sizes, self.dilation, *inner, strict=True
        ):
            self.edges.append((low, (made - 1) * step + (taps - 1) * wide + 1 - size - low if ceil else low))

    def of(self, w: HloWriter, operation: str, x: HloValue) -> HloValue:
        ones = [1] * self.before
        window = _window([*ones, *self.sizes], [*ones, *self.stride], self.edges, dilation=[*ones, *self.dilation])
        return w.reduced(operation, x, self.dims, window, "reduce-window")
