"""Which elements of its operands an instruction reads to compute given elements, for all blocks at once.

This is what `propagate.required` says of chunks, found in another way, for `verify`: nothing is shared with it. The
answer is exact, or a larger set: steps of more than one element (strided slices, interior padding, windows) are filled
up, and where an index is data (gather, scatter, dynamic-slice, dynamic-update-slice) it covers every element that may
be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusiond_stitching.analysis import block_forms
from fusiond_stitching.analysis.block_forms import ZERO, Form
from fusiond_stitching.analysis.symbolic_sets import Elements, Interval, everything, region, reshaped, viewed, whole
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

Intervals: TypeAlias = Sequence[Interval]


def read(module: HloModule, user: HloInstruction, place: int, elements: Elements) -> Elements:
    """The elements of operand number `place` that `elements` of `user` need. ValueError for an opcode that is not
    known."""
    operand = module[user.operands[place]]
    if not elements or not operand.elements:
        return ()
    if not operand.dims:
        return (whole(()),)
    if user.elementwise or (user.opcode in _UPDATES and place == 0):
        return elements
    if user.opcode == "reshape":
        return tuple(reshaped(each, operand.dims) for each in elements)
    found: Elements = ()
    for each in elements:
        needed = _box(_OperandRead(module, user, place, viewed(each, user.dims).intervals))
        found += tuple(one for one in region(operand.dims, needed) if one not in found)
    return found


_UPDATES = ("scatter", "dynamic-update-slice")


@dataclass(frozen=True, slots=True)
class _OperandRead:
    """A box of a user's elements, and the operand of which it needs intervals, one per dimension."""

    module: HloModule
    user: HloInstruction
    place: int
    box: Intervals

    @property
    def operand(self) -> HloInstruction:
        return self.module[self.user.operands[self.place]]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.user.attributes


def _box(asked: _OperandRead) -> list[Interval]:
    """The operand's intervals."""
    if asked.user.opcode not in _BOXES:
        raise ValueError(f"{asked.user.name}: what {asked.user.opcode} reads is not known")
    return _BOXES[asked.user.opcode](asked)


def _broadcast(asked: _OperandRead) -> list[Interval]:
    return [asked.box[at] for at in asked.attributes["dimensions"]]


def _transpose(asked: _OperandRead) -> list[Interval]:
    order = asked.attributes["dimensions"]
    return [asked.box[order.index(at)] for at in range(len(order))]


def _reverse(asked: _OperandRead) -> list[Interval]:
    turned = asked.attributes["dimensions"]
    return [
        Interval(each.stop.times(-1).plus(dim), each.start.times(-1).plus(dim)) if at in turned else each
        for at, (each, dim) in enumerate(zip(asked.box, asked.operand.dims, strict=True))
    ]


def _slice(asked: _OperandRead) -> list[Interval]:
    steps = zip(asked.box, asked.attributes["starts"], asked.attributes["strides"], strict=True)
    return [_spread(each, start, step) for each, start, step in steps]


def _concatenate(asked: _OperandRead) -> list[Interval]:
    along = asked.attributes["dimension"]
    before = sum(asked.module[name].dims[along] for name in asked.user.operands[: asked.place])
    return [_spread(each, -before, 1) if at == along else each for at, each in enumerate(asked.box)]


def _pad(asked: _OperandRead) -> list[Interval]:
    edges = zip(asked.box, asked.attributes["low"], asked.attributes["interior"], strict=True)
    return [_gathered_up(_spread(each, -low, 1), interior + 1) for each, low, interior in edges]


def _reduce(asked: _OperandRead) -> list[Interval]:
    kept, over = iter(asked.box), asked.attributes["dimensions"]
    return [everything(dim) if at in over else next(kept) for at, dim in enumerate(asked.operand.dims)]


def _moving(asked: _OperandRead) -> list[Interval]:
    """Of a window whose place is data, a dimension passes that it takes whole."""
    pairs = zip(asked.operand.dims, asked.user.dims, asked.box, strict=True)
    return [each if dim == theirs else everything(dim) for dim, theirs, each in pairs]


def _spread(each: Interval, start: int, step: int) -> Interval:
    """Where start + step * i lies, for i in an interval."""
    return Interval(each.start.times(step).plus(start), each.stop.plus(-1).times(step).plus(start + 1))


def _gathered_up(each: Interval, step: int) -> Interval:
    """The numbers whose multiples by `step` lie in an interval."""
    if step == 1:
        return each
    first, rest = block_forms.divided(each.start.plus(step - 1), step)
    last, over = block_forms.divided(each.stop.plus(-1), step)
    return Interval(first.plus(rest.low // step), last.plus(over.high // step + 1))


def _windows(asked: _OperandRead) -> list[Interval]:
    """From the first element of the first window to the last element of the last."""
    attributes, dims, box = asked.attributes, asked.operand.dims, asked.box
    inside = iter(box[len(dims) :])
    found = []
    for at in range(len(dims)):
        offset = Interval(ZERO, Form(1)) if attributes["sizes"][at] == 1 else next(inside)
        windows = _spread(box[at], -attributes["low"][at], attributes["strides"][at])
        offsets = _spread(offset, 0, attributes["dilation"][at])
        covered = Interval(windows.start.plus(offsets.start), windows.stop.plus(offsets.stop).plus(-1))
        found.append(_gathered_up(covered, attributes["interior"][at] + 1))
    return found


def _multiplied(asked: _OperandRead) -> list[Interval]:
    """The result's dims are batch, lhs rest, rhs rest."""
    attributes, dims, box = asked.attributes, asked.operand.dims, asked.box
    side = ("lhs", "rhs")[asked.place]
    batch, sums = attributes[f"{side}_batch"], attributes[f"{side}_contracting"]
    free = [at for at in range(len(dims)) if at not in batch and at not in sums]
    first = len(batch) if side == "lhs" else len(box) - len(free)
    found = [everything(dim) for dim in dims]
    for at, own in enumerate(batch):
        found[own] = box[at]
    for at, own in enumerate(free, start=first):
        found[own] = box[at]
    return found


def _gathered(asked: _OperandRead) -> list[Interval]:
    """A window as long as the dimension starts at 0, so that it passes; everything else may be anywhere."""
    attributes, dims, box = asked.attributes, asked.operand.dims, asked.box
    offsets = attributes["offset_dims"]
    if asked.place == 1:
        batch = (each for at, each in enumerate(box) if at not in offsets)
        vector = attributes["index_vector_dim"]
        return [everything(dim) if at == vector else next(batch) for at, dim in enumerate(dims)]
    gone = (*attributes["collapsed_slice_dims"], *attributes["operand_batching_dims"])
    window = iter(sorted(offsets))
    found = [everything(dim) for dim in dims]
    for at, dim in enumerate(dims):
        if at not in gone:
            result = next(window)
            if attributes["slice_sizes"][at] == dim:
                found[at] = box[result]
    return found


def _scattered(asked: _OperandRead) -> list[Interval]:
    """Every index may matter; of the updates those whose window covers a dimension whole pass it."""
    user, dims, box = asked.user, asked.operand.dims, asked.box
    found = [everything(dim) for dim in dims]
    if asked.place == 2:
        attributes = user.attributes
        gone = (*attributes["inserted_window_dims"], *attributes["input_batching_dims"])
        targets = [at for at in range(len(user.dims)) if at not in gone]
        for own, target in zip(attributes["update_window_dims"], targets, strict=True):
            if dims[own] == user.dims[target]:
                found[own] = box[target]
    return found


_BOXES: Mapping[str, Callable[[_OperandRead], list[Interval]]] = {
    "broadcast": _broadcast,
    "transpose": _transpose,
    "reverse": _reverse,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "window": _windows,
    "reduce": _reduce,
    "dot": _multiplied,
    "gather": _gathered,
    "scatter": _scattered,
    "dynamic-slice": _moving,
    "dynamic-update-slice": _moving,
}
