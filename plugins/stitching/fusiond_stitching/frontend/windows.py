"""`reduce-window` and small convolutions as a `reduce` over their windows: pooling, filters, running sums.

    window(x, value) := f32[out..., window...]    element [o..., w...] is x[o * stride + w * dilation - low], or `value`
                                                  where that lies outside x or between its elements (interior padding)

A window moves elements as a pad or a slice does, so it is index algebra where it is read, and everything that is
known of reduces holds for what reduces it. XLA leaves elements outside out of the reduction; here they are the init,
which comes to the same where the init changes nothing (`neutral`). Elsewhere a reduce-window that has any stays a
boundary.

A convolution whose filters look at a few channels (depthwise ones, stencils on images) sums products over such a
window. It reads no more than an element-wise operation does, so it is worth no call of a library. Its sums are f32
where its tensors are narrower, as cuDNN's are.

A running sum over n elements (cumsum and its like: a window as long as the dimension) would read n * n. A long one is
done in runs of 32: the runs' totals, their own running sum, and what of the run came before.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusiond_stitching.frontend import graph
from fusiond_stitching.frontend.building import Add, Expansion, box
from fusiond_stitching.frontend.graph import Computation, HloInstruction
from fusiond_stitching.frontend.hlo import ArrayShape, Raw

TARGET = "fusiond.window"
"""How a window is called in a text of ours: HLO has no such operation, so it is a custom call."""
RUN = 32
LONG = 64  #: Running sums over more elements than LONG are done in runs
MOST_TAPS = 225
MOST_FILTERS = 16
"""Of a convolution: pixels of a window (15 x 15), and filters that read one channel, or channels that one filter reads.
With more, and with several of both, it is worth a product of matrices."""
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_TURNED = re.compile(r" ?rhs_reversal=([\dx]+)")
_SCALARS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "maximum": np.maximum, "minimum": np.minimum, "abs": np.abs,
    "negate": np.negative, "exponential": np.exp, "log-plus-one": np.log1p, "log": np.log, "select": np.where,
    "NE": np.not_equal, "EQ": np.equal,
}  # fmt: skip
_LISTS = {"size": "sizes", "stride": "strides", "rhs_dilate": "dilation"}


def attributes_of(raw: Raw) -> dict[str, Any]:
    """`window={size=1x3 stride=1x2 pad=0_0x0_1 lhs_dilate=... rhs_dilate=...}` by dimension. RequestError for what is
    no window."""
    fields = {}
    for each in raw.text("window").strip().strip("{}").split():
        name, _, text = each.partition("=")
        fields[name] = text.split("x")
    rank = len(fields.get("size", ()))
    if any(len(each) != rank for each in fields.values()) or {"rhs_reversal"} & set(fields):
        raise raw.fail(f"window={raw.text('window')[:60]}: each list has one entry per dimension, and none is reversed")
    try:
        ones, none = ["1"] * rank, ["0_0"] * rank
        found: dict[str, Any] = {new: tuple(map(int, fields.get(old, ones))) for old, new in _LISTS.items()}
        edges = [tuple(map(int, each.split("_"))) for each in fields.get("pad", none)]
        found["low"], found["high"] = tuple(low for low, _ in edges), tuple(high for _, high in edges)
        found["interior"] = tuple(int(each) - 1 for each in fields.get("lhs_dilate", ones))
    except ValueError:
        raise raw.fail(f"window={raw.text('window')[:60]}: expected whole numbers") from None
    return found


def written(attributes: Mapping[str, Any]) -> str:
    """The inverse of `attributes_of`."""
    edges = zip(attributes["low"], attributes["high"], strict=True)
    fields = {old: attributes[new] for old, new in _LISTS.items()}
    fields["pad"] = [f"{low}_{high}" for low, high in edges]
    fields["lhs_dilate"] = [each + 1 for each in attributes["interior"]]
    return "{" + " ".join(f"{name}={'x'.join(map(str, values))}" for name, values in fields.items()) + "}"


def windowed(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """The dimensions with more than one element in a window: each has one more dimension in the result."""
    return tuple(at for at, size in enumerate(attributes["sizes"]) if size != 1)


def dims_of(attributes: Mapping[str, Any], dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a window of a tensor with these. ValueError where they do not fit."""
    found = []
    sizes = attributes["sizes"]
    rows = (sizes, *(attributes[each] for each in ("strides", "dilation", "interior", "low", "high")), dims)
    for size, stride, dilation, interior, low, high, dim in zip(*rows, strict=True):
        if size < 1 or stride < 1 or dilation < 1 or interior < 0:
            raise ValueError
        whole = max(0, (dim - 1) * (interior + 1) + 1) + low + high
        found.append(max(0, (whole - (size - 1) * dilation - 1) // stride + 1))
    return (*found, *(sizes[at] for at in windowed(attributes)))


def passed(attributes: Mapping[str, Any]) -> list[bool]:
    """For each dimension of the operand, whether an element of the result reads the same index of it."""
    rows = (attributes[each] for each in ("sizes", "strides", "interior", "low", "high"))
    same = (1, 1, 0, 0, 0)
    return [each == same for each in zip(*rows, strict=True)]


def neutral(computation: Computation, init: HloInstruction) -> bool:
    """Whether combining with this constant changes nothing."""
    if init.opcode != "constant":
        return False
    (value,) = init.attributes["values"]
    floats = init.dtype.startswith(("f", "b"))
    if computation.simple is None:
        tried = (0.0, 1.5, -3.25, 1e30, -1e30, math.inf, -math.inf)
        pairs = [(each, order) for each in tried for order in ((value, each), (each, value))]
        return floats and all(_scalar(computation, order) == each for each, order in pairs)
    return bool(value == graph.neutral(computation.simple, init.dtype))


def _scalar(computation: Computation, given: Sequence[float]) -> float | None:
    """What it comes to for two numbers; None where it has more in it than logarithms of sums (cumlogsumexp) have."""
    values: dict[str, Any] = {each.name: given[each.attributes["number"]] for each in computation.parameters}
    with np.errstate(all="ignore"):
        for each in computation.instructions:
            operands = [values[name] for name in each.operands]
            apply = _SCALARS.get(each.attributes["direction"] if each.opcode == "compare" else each.opcode)
            if apply is None:
                return None
            values[each.name] = apply(*operands)
    return float(values[computation.results[0]]) if len(computation.results) == 1 and len(given) == 2 else None


def outside(attributes: Mapping[str, Any]) -> bool:
    """Whether a window may reach beyond its operand, or between its elements."""
    return any(each > 0 for name in ("low", "high", "interior") for each in attributes[name])


def reduced(
    raw: Raw,
    name: str,
    source: HloInstruction,
    init: HloInstruction,
    computation: Computation,
    shape: ArrayShape,
    put: Add,
) -> str:
    """The instructions of a reduce-window; the name of the last. RequestError where shapes do not fit."""
    attributes = attributes_of(raw)
    try:
        dims = dims_of(attributes, source.dims)[: len(source.dims)]
    except ValueError:
        raise raw.fail(f"its window does not fit {list(source.dims)}") from None
    if dims != shape.dims:
        raise raw.fail(f"gives {list(dims)}, but the text says {list(shape.dims)}")
    maker = _Maker(name, source.dtype, init.name, computation, put)
    along = _running(attributes, source.dims)
    if along is not None and source.dims[along[0]] > LONG and neutral(computation, init):
        return maker.running(source.name, source.dims, *along, last=name)
    return maker.reduce(source.name, source.dims, attributes, last=name)


def small(raw: Raw, filters: HloInstruction) -> bool:
    """Whether a convolution reads so little for an element of its result that it is no library's."""
    labels = _LABELS.fullmatch(raw.attributes.get("dim_labels", "").strip())
    if labels is None or raw.attributes.get("batch_group_count", "1") != "1" or len(labels[2]) != len(filters.dims):
        return False
    inputs, outputs = (filters.dims[labels[2].index(each)] for each in "io")
    groups = int(raw.attributes.get("feature_group_count", "1"))
    own, taps = outputs // groups, filters.elements // max(1, inputs * outputs)
    return min(inputs, own) == 1 and max(inputs, own) <= MOST_FILTERS and 0 < taps <= MOST_TAPS >= inputs * taps // 2


def convolved(raw: Raw, name: str, x: HloInstruction, filters: HloInstruction, shape: ArrayShape, put: Add) -> str:
    """The instructions of a `small` convolution; the name of the last. RequestError where shapes do not fit.

        x[batch, channel, place...]  -->  reduce(window[batch, group, place..., input, tap...] * filters, inputs, taps)

    with the result's order of dimensions, of which the channels are groups and the filters of each."""
    sums = "f32" if shape.dtype in ("f16", "bf16") else shape.dtype
    zero = put(f"{name}.zero", "constant", ArrayShape(sums, ()), (), {"values": (0,)})
    return _Convolution(raw, x, filters, _Maker(name, sums, zero, Computation.of_two("add", sums), put)).summed(shape)


class _Convolution:
    """`at`: where the result has its channels, and the window the groups; `spatial`: the labels of the others."""

    def __init__(self, raw: Raw, x: HloInstruction, filters: HloInstruction, make: _Maker) -> None:
        labels = _LABELS.fullmatch(raw.attributes["dim_labels"].strip())
        assert labels is not None
        self.of_x, self.of_filters, self.of_result = labels.groups()
        self.raw = raw
        self.x = x
        self.filters = filters
        self.make = make
        self.groups = int(raw.attributes.get("feature_group_count", "1"))
        self.inputs, self.outputs = (filters.dims[self.of_filters.index(each)] for each in "io")
        self.at = self.of_result.index("f")
        self.spatial = sorted(set(self.of_result) - {"b", "f"}, key=int)
        self.window = raw.attributes.get("window", "{}")

    def summed(self, shape: ArrayShape) -> str:
        make, at, own = self.make, self.at, self.outputs // self.groups
        view, seen = self._windows()
        rank = len(self.of_result) + 1  # of a window, without its taps
        wide = (*seen[: at + 1], own, *seen[at + 1 :])
        values = make.add_(
            "broadcast", wide, view, dimensions=tuple(each for each in range(len(wide)) if each != at + 1)
        )
        summed = tuple(range(rank, len(wide)))  # the inputs of a group, and the taps
        weights = make.add_("reshape", (self.groups, own, *(wide[each] for each in summed)), self._weights())
        weights = make.add_("broadcast", wide, weights, dimensions=(at, at + 1, *summed))
        total = make.fold(make.add_("multiply", wide, values, weights), wide, summed)
        result = (*seen[:at], self.outputs, *seen[at + 1 : rank - 1])
        if result != shape.dims:
            raise self.raw.fail(f"gives {list(result)}, but the text says {list(shape.dims)}")
        if make.dtype == shape.dtype:
            return make.add_("reshape", result, total, last=make.name)
        return make.put(make.name, "convert", shape, (make.add_("reshape", result, total),), {})

    def _windows(self) -> tuple[str, tuple[int, ...]]:
        """What the windows see of x, and its dims; the inputs of a group are the last one, in front of the taps."""
        make, x, at = self.make, self.x, self.at
        given = attributes_of(dataclasses.replace(self.raw, attributes={"window": _TURNED.sub("", self.window)}))
        sizes = tuple(self.filters.dims[self.of_filters.index(each)] for each in self.spatial)
        try:
            channels = x.dims[self.of_x.index("f")]
            if channels != self.groups * self.inputs or self.outputs % self.groups or given["sizes"] != sizes:
                raise ValueError
            named = [x.dims[self.of_x.index(each)] for each in self.of_x]
            ordered = make.transposed(make.converted(x), named, self.of_x, self.of_result)
            dims = [x.dims[self.of_x.index(each)] for each in self.of_result]
            parted = (*dims[:at], self.groups, self.inputs, *dims[at + 1 :])
            order = [each for each in range(len(parted)) if each != at + 1] + [at + 1]
            source = make.add_("reshape", parted, ordered)
            dims = [parted[each] for each in order]
            source = make.add_("transpose", dims, source, dimensions=tuple(order))
            spread = {each: [(0 if each in ("low", "high", "interior") else 1)] * len(dims) for each in given}
            for each, values in given.items():
                for label, value in zip(self.spatial, values, strict=True):
                    spread[each][self.of_result.index(label)] = value
            found: dict[str, Any] = {each: tuple(values) for each, values in spread.items()}
            seen = dims_of(found, dims)
        except ValueError:
            raise self.raw.fail(f"its window, channels and filters do not fit {list(x.dims)}") from None
        return make.add_("window", seen, source, make.init, **found), seen

    def _weights(self) -> str:
        """The filters as [outputs, inputs, taps in the result's order], those that are read backwards turned round."""
        filters, taps = self.filters, sorted(self.spatial, key=self.of_result.index)
        weights = self.make.transposed(
            self.make.converted(filters), filters.dims, self.of_filters, "oi" + "".join(taps)
        )
        flags = found[1].split("x") if (found := _TURNED.search(self.window)) else []  # who is read backwards
        turned = [2 + taps.index(each) for each, flag in zip(self.spatial, flags, strict=False) if flag == "1"]
        if not turned:
            return weights
        sides = (self.outputs, self.inputs, *(filters.dims[self.of_filters.index(each)] for each in taps))
        return self.make.add_("reverse", sides, weights, dimensions=tuple(turned))


def _running(attributes: Mapping[str, Any], dims: Sequence[int]) -> tuple[int, bool] | None:
    """(dimension, backwards) of a running sum; None for any other window."""
    long = windowed(attributes)
    if len(long) != 1 or any(attributes["interior"]) or {1} != {*attributes["strides"], *attributes["dilation"]}:
        return None
    (at,) = long
    edges = [(low, high) for low, high in zip(attributes["low"], attributes["high"], strict=True)]
    reach = attributes["sizes"][at] - 1
    if reach + 1 != dims[at] or any(each != (0, 0) for place, each in enumerate(edges) if place != at):
        return None
    return {(reach, 0): (at, False), (0, reach): (at, True)}.get(edges[at])


class _Maker(Expansion):
    def __init__(self, name: str, dtype: str, init: str, computation: Computation, put: Add) -> None:
        super().__init__(name, put)
        self.dtype = dtype
        self.init = init
        self.computation = computation

    def add_(self, opcode: str, dims: Sequence[int], *operands: str, last: str = "", **given: Any) -> str:
        """One more instruction of the window's type, or the `last`, which has this name."""
        if not last:
            return self.add(opcode, self.dtype, dims, *operands, **given)
        return self.put(last, opcode, ArrayShape(self.dtype, tuple(dims)), operands, given)

    def converted(self, source: HloInstruction) -> str:
        return source.name if source.dtype == self.dtype else self.add_("convert", source.dims, source.name)

    def transposed(self, source: str, dims: Sequence[int], given: str, wanted: str) -> str:
        """Dimensions that are named by letters, in another order."""
        order = tuple(given.index(each) for each in wanted)
        return self.add_("transpose", [dims[each] for each in order], source, dimensions=order)

    def fold(self, source: str, dims: Sequence[int], dimensions: tuple[int, ...], last: str = "") -> str:
        kept = [dim for at, dim in enumerate(dims) if at not in dimensions]
        return self.add_("reduce", kept, source, self.init, last=last, dimensions=dimensions, result=0,
                         computation=self.computation)  # fmt: skip

    def reduce(self, source: str, dims: Sequence[int], attributes: Mapping[str, Any], last: str = "") -> str:
        """The plain way: all that a window reads."""
        wide = dims_of(attributes, dims)
        view = self.add_("window", wide, source, self.init, **attributes)
        return self.fold(view, wide, tuple(range(len(dims), len(wide))), last)

    def running(self, source: str, dims: Sequence[int], at: int, backwards: bool, last: str = "") -> str:
        """Along dimension `at`; in runs where that is long."""
        size = dims[at]
        if size <= LONG:
            return self.reduce(source, dims, _along(len(dims), at, size, backwards), last)
        runs = -(-size // RUN)
        spare = runs * RUN - size
        if spare:
            source = self._pad(source, dims, at, 0, spare)
        wide = (*dims[:at], runs, RUN, *dims[at + 1 :])
        parted = self.add_("reshape", wide, source)
        inside = self.reduce(parted, wide, _along(len(wide), at + 1, RUN, backwards))
        kept = (*dims[:at], runs, *dims[at + 1 :])
        totals = self.running(self.fold(parted, wide, (at + 1,)), kept, at, backwards)
        before = self._pad(totals, kept, at, *((-1, 1) if backwards else (1, -1)))
        spread = self.add_("broadcast", wide, before, dimensions=(*range(at + 1), *range(at + 2, len(wide))))
        operands, simple = (inside, spread) if backwards else (spread, inside), self.computation.simple
        both = self.add_(simple, wide, *operands) if simple else self.applied(self.computation, wide, *operands)
        if not spare:
            return self.add_("reshape", dims, both, last=last)
        joined = self.add_("reshape", (*dims[:at], runs * RUN, *dims[at + 1 :]), both)
        return self.add_("slice", dims, joined, last=last, **box((0,) * len(dims), dims))

    def _pad(self, source: str, dims: Sequence[int], at: int, low: int, high: int) -> str:
        lows, highs = ((0,) * at + (each,) + (0,) * (len(dims) - at - 1) for each in (low, high))
        longer = (*dims[:at], dims[at] + low + high, *dims[at + 1 :])
        return self.add_("pad", longer, source, self.init, low=lows, high=highs, interior=(0,) * len(dims))


def _along(rank: int, at: int, size: int, backwards: bool) -> dict[str, Any]:
    """The window of a running sum."""
    ones, none = (1,) * rank, (0,) * rank
    reach = tuple(size - 1 if place == at else 0 for place in range(rank))
    sizes = tuple(size if place == at else 1 for place in range(rank))
    return {"sizes": sizes, "strides": ones, "dilation": ones, "low": none if backwards else reach,
            "high": reach if backwards else none, "interior": none}  # fmt: skip
