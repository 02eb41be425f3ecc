"""Which elements of its operands an instruction reads to compute given elements, for all blocks at once.

This is what `propagate.required` says of chunks, found in another way, for `verify`: nothing is shared with it. The
answer is exact, or a larger set: steps of more than one element (strided slices, interior padding, windows) are filled
up, and where an index is data (gather, scatter, dynamic-slice, dynamic-update-slice) it covers every element that may
be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fusiond_stitching.analysis import block_forms
from fusiond_stitching.analysis.block_forms import ZERO, Form
from fusiond_stitching.analysis.symbolic_sets import Elements, Interval, everything, region, reshaped, viewed, whole
from fusiond_stitching.frontend.graph import Instruction, Module

Intervals: TypeAlias = Sequence[Interval]


def read(module: Module, user: Instruction, place: int, elements: Elements) -> Elements:
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
        needed = _box(module, user, place, operand, viewed(each, user.dims).intervals)
        found += tuple(one for one in region(operand.dims, needed) if one not in found)
    return found


_UPDATES = ("scatter", "dynamic-update-slice")


def _box(module: Module, user: Instruction, place: int, operand: Instruction, box: Intervals) -> list[Interval]:
    """The operand's intervals, one per dimension, that a box of the user's elements needs."""
    attributes = user.attributes
    match user.opcode:
        case "broadcast":
            return [box[at] for at in attributes["dimensions"]]
        case "transpose":
            order = attributes["dimensions"]
            return [box[order.index(at)] for at in range(len(operand.dims))]
        case "reverse":
            turned = attributes["dimensions"]
            return [
                Interval(each.stop.times(-1).plus(dim), each.start.times(-1).plus(dim)) if at in turned else each
                for at, (each, dim) in enumerate(zip(box, operand.dims, strict=True))
            ]
        case "slice":
            steps = zip(box, attributes["starts"], attributes["strides"], strict=True)
            return [_spread(each, start, step) for each, start, step in steps]
        case "concatenate":
            along = attributes["dimension"]
            before = sum(module[name].dims[along] for name in user.operands[:place])
            return [_spread(each, -before, 1) if at == along else each for at, each in enumerate(box)]
        case "pad":
            edges = zip(box, attributes["low"], attributes["interior"], strict=True)
            return [_gathered_up(_spread(each, -low, 1), interior + 1) for each, low, interior in edges]
        case "window":
            return _windows(attributes, operand.dims, box)
        case "reduce":
            kept = iter(box)
            over = attributes["dimensions"]
            return [everything(dim) if at in over else next(kept) for at, dim in enumerate(operand.dims)]
        case "dot":
            return _multiplied(attributes, place, operand.dims, box)
        case "gather":
            return _gathered(attributes, place, operand.dims, box)
        case "scatter":
            return _scattered(user, place, operand.dims, box)
        case "dynamic-slice" | "dynamic-update-slice":
            pairs = zip(operand.dims, user.dims, box, strict=True)
            return [each if dim == theirs else everything(dim) for dim, theirs, each in pairs]
    raise ValueError(f"{user.name}: what {user.opcode} reads is not known")


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


def _windows(attributes: Mapping[str, Any], dims: Sequence[int], box: Intervals) -> list[Interval]:
    """From the first element of the first window to the last element of the last."""
    inside = iter(box[len(dims) :])
    found = []
    for at in range(len(dims)):
        offset = Interval(ZERO, Form(1)) if attributes["sizes"][at] == 1 else next(inside)
        windows = _spread(box[at], -attributes["low"][at], attributes["strides"][at])
        offsets = _spread(offset, 0, attributes["dilation"][at])
        covered = Interval(windows.start.plus(offsets.start), windows.stop.plus(offsets.stop).plus(-1))
        found.append(_gathered_up(covered, attributes["interior"][at] + 1))
    return found


def _multiplied(attributes: Mapping[str, Any], place: int, dims: Sequence[int], box: Intervals) -> list[Interval]:
    """The result's dims are batch, lhs rest, rhs rest."""
    side = ("lhs", "rhs")[place]
    batch, sums = attributes[f"{side}_batch"], attributes[f"{side}_contracting"]
    free = [at for at in range(len(dims)) if at not in batch and at not in sums]
    first = len(batch) if side == "lhs" else len(box) - len(free)
    found = [everything(dim) for dim in dims]
    for at, own in enumerate(batch):
        found[own] = box[at]
    for at, own in enumerate(free, start=first):
        found[own] = box[at]
    return found


def _gathered(attributes: Mapping[str, Any], place: int, dims: Sequence[int], box: Intervals) -> list[Interval]:
    """A window as long as the dimension starts at 0, so that it passes; everything else may be anywhere."""
    offsets = attributes["offset_dims"]
    if place == 1:
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


def _scattered(user: Instruction, place: int, dims: Sequence[int], box: Intervals) -> list[Interval]:
    """Every index may matter; of the updates those whose window covers a dimension whole pass it."""
    found = [everything(dim) for dim in dims]
    if place == 2:
        attributes = user.attributes
        gone = (*attributes["inserted_window_dims"], *attributes["input_batching_dims"])
        targets = [at for at in range(len(user.dims)) if at not in gone]
        for own, target in zip(attributes["update_window_dims"], targets, strict=True):
            if dims[own] == user.dims[target]:
                found[own] = box[target]
    return found
