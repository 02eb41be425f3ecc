"""Follows indices through data movement, and recognises the border mode of an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fusiond_stitching.analysis.image_values import NoPipeline
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

OUTSIDE, ELSEWHERE = -1, -2  #: Instead of an index: behind the edge; in another operand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axis:
    """What runs along a dimension: `h` and `w` of an image, its channels `c`, planes `p`, or a window's taps `k...`; or
    nothing, beside others: `n`, one number."""

    role: str
    size: int  #: Of the dimension
    at: Any = None  #: Of h, w, k: the index at each place (and tap)
    stride: int = 1  #: Of p, in planes; the number of n
    taps: str = ""  #: Of h, w: the role that the second dimension of `at` is

    def same(self, other: Axis) -> bool:
        mine, others = ((each.role, each.size, each.stride, each.taps) for each in (self, other))
        return mine == others and np.array_equal(self.at, other.at)


Entry: TypeAlias = "int | tuple[Axis, ...]"
Index: TypeAlias = "tuple[Entry, ...]"
"""One entry for each dimension of a value: an element, or the axes along it, row by row."""


def axes(index: Index) -> list[Axis]:
    return [axis for entry in index if isinstance(entry, tuple) for axis in entry]


def mapped(index: Index, change: Callable[[Axis], Any]) -> tuple[Any, ...]:
    return tuple(each if isinstance(each, int) else tuple(map(change, each)) for each in index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A value that is no movement of another, by an index."""

    name: str
    index: Index
    outside: float | None = None  #: What lies behind its edges

    @property
    def taps(self) -> set[str]:
        return {axis.taps for axis in axes(self.index)} - {""}


def seen(module: HloModule, name: str, index: Index, stops: Callable[[str], bool]) -> Seen:
    """What a value is behind all that moves elements, but behind nothing where it stops."""
    outside: float | None = None
    while not stops(name):
        each = module[name]
        if each.opcode == "concatenate":
            found = _concatenated(module, each, index, stops)
            return replace(found, outside=_agreed([outside, found.outside]))
        if each.opcode not in ("copy", "reshape", "transpose", "broadcast", "slice", "reverse", "pad", "window"):
            break
        index, behind = _behind(module, each, index)
        outside, name = _agreed([outside, behind]), each.operands[0]
    return Seen(name=name, index=index, outside=outside)


def _agreed(values: Sequence[float | None]) -> float | None:
    found = {each for each in values if each is not None}
    if len(found) > 1:
        raise NoPipeline
    return found.pop() if found else None


def _behind(module: HloModule, each: HloInstruction, index: Index) -> tuple[Index, float | None]:
    given, dims = each.attributes, module[each.operands[0]].dims
    if each.opcode == "reshape":
        return reshaped(index, each.dims, dims), None
    if each.opcode == "transpose":
        turned = dict(zip(given["dimensions"], index, strict=True))
        return tuple(turned[at] for at in range(len(dims))), None
    if each.opcode == "broadcast":
        return tuple(index[at] for at in given["dimensions"]), None
    if each.opcode == "copy":
        return index, None
    taps = iter(index[len(dims) :])
    found = []
    for at, (entry, size) in enumerate(zip(index, dims, strict=False)):
        scale, shift, tap = 1, 0, None
        if each.opcode == "slice":
            scale, shift = given["strides"][at], given["starts"][at]
        elif each.opcode == "reverse" and at in given["dimensions"]:
            scale, shift = -1, size - 1
        elif each.opcode in ("pad", "window"):
            shift = -given["low"][at]
            if given["interior"][at]:
                raise NoPipeline
        if each.opcode == "window":
            scale = given["strides"][at]
            tap = (next(taps), given["dilation"][at]) if given["sizes"][at] != 1 else None
        found.append(_moved(entry, each.dims[at], size, scale, shift, tap))
    hidden = any(axis.at is not None and (axis.at == OUTSIDE).any() for axis in axes(tuple(found)))
    if not hidden or each.opcode not in ("pad", "window"):
        return tuple(found), None
    value = module[each.operands[1]]
    if value.opcode != "constant":
        raise NoPipeline
    return tuple(found), float(value.attributes["values"][0])


def _moved(entry: Entry, shown: int, size: int, scale: int, shift: int, tap: tuple[Entry, int] | None) -> Entry:
    if tap is None and (scale, shift, shown) == (1, 0, size):
        return entry
    more, name = 0, ""
    if tap is not None:
        inner, dilation = tap
        if isinstance(inner, int):
            more = inner * dilation
        else:
            more, name = inner[0].at[None] * dilation, inner[0].role
    if isinstance(entry, int):
        found = entry * scale + shift + more
        if isinstance(more, int) and 0 <= found < size:
            return int(found)
        raise NoPipeline
    (axis,) = entry if len(entry) == 1 else (None,)
    if axis is None or axis.at is None or (name and axis.at.ndim == 2):
        raise NoPipeline
    at = axis.at[:, None] if name else axis.at
    moved = at * scale + shift + more
    moved = np.where((moved >= 0) & (moved < size), moved, OUTSIDE)
    return (replace(axis, at=np.where(at < 0, at, moved), size=size, taps=name or axis.taps),)


def reshaped(index: Index, shown: Sequence[int], dims: Sequence[int]) -> Index:
    """The index in a value of which the one that is seen is a reshape."""
    items: list[tuple[int | Axis, int]] = []
    for entry, size in zip(index, shown, strict=True):
        if isinstance(entry, tuple):
            items += [(axis.stride if axis.role == "n" else axis, axis.size) for axis in entry]
        elif size > 1:
            items.append((entry, size))
    found: list[Entry] = []
    for dim in dims:
        taken: list[tuple[int | Axis, int]] = []
        while math.prod(size for _, size in taken) < dim:
            one, size = items.pop(0)
            wanted = dim // math.prod(size for _, size in taken)
            if size > wanted:  # the rest is for the next dimension
                inner = size // wanted
                if size % wanted or (isinstance(one, Axis) and one.role != "p"):
                    raise NoPipeline
                if isinstance(one, Axis):
                    items.insert(0, (replace(one, size=inner), inner))
                    one = replace(one, size=wanted, stride=one.stride * inner)
                else:
                    items.insert(0, (one % inner, inner))
                    one //= inner
                size = wanted
            taken.append((one, size))
        whole, along = 0, []
        for one, size in taken:
            along.append(one if isinstance(one, Axis) else Axis(role="n", size=size, stride=one))
            whole = whole * size + (one if isinstance(one, int) else 0)
        found.append(tuple(along) if any(axis.role != "n" for axis in along) else whole)
    return tuple(found)


def _concatenated(module: HloModule, each: HloInstruction, index: Index, stops: Callable[[str], bool]) -> Seen:
    place, first = each.attributes["dimension"], 0
    entry = index[place]
    parts: list[tuple[Any, Seen]] = []
    for operand in each.operands:
        size = module[operand].dims[place]
        inside: Any = True
        if isinstance(entry, int):
            own: Entry = entry - first
            inside = 0 <= entry - first < size
        else:
            (axis,) = entry if len(entry) == 1 else (None,)
            if axis is None or axis.at is None:
                raise NoPipeline
            inside = (axis.at >= first) & (axis.at < first + size)
            at = np.where(inside, axis.at - first, np.where(axis.at < 0, axis.at, ELSEWHERE))
            own = (replace(axis, at=at, size=size),)
        if np.any(inside):
            parts.append((inside, seen(module, operand, (*index[:place], own, *index[place + 1 :]), stops)))
        first += size
    if isinstance(entry, int):
        return parts[0][1]
    found = parts[0][1]
    if any(each.name != found.name for _, each in parts):
        raise NoPipeline
    joined = [_joined(module[found.name].dims[at], entry[0], [(inside, each.index[at]) for inside, each in parts])
              for at in range(len(found.index))]  # fmt: skip
    return Seen(name=found.name, index=tuple(joined), outside=_agreed([each.outside for _, each in parts]))


def _joined(size: int, along: Axis, entries: Sequence[tuple[Any, Entry]]) -> Entry:
    first = entries[0][1]
    if isinstance(first, int) and all(each == first for _, each in entries):
        return first
    if isinstance(first, tuple) and all(axis.role != along.role for axis in first):
        for _, each in entries:
            same = isinstance(each, tuple) and len(each) == len(first)
            if not same or not all(a.same(b) for a, b in zip(first, each, strict=True)):  # type: ignore[arg-type]
                raise NoPipeline
        return first
    at = along.at
    for inside, each in entries:
        if isinstance(each, tuple) and (len(each) > 1 or each[0].role != along.role):
            raise NoPipeline
        at = np.where(inside, each if isinstance(each, int) else each[0].at, at)
    return (replace(along, at=at, size=size),)


# --- borders ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """How an image shows what axes see."""

    border: str | dict[str, float] | None  #: None: nothing beyond its edges is seen
    steps: Mapping[str, int]  #: Of h and w: from one place to the next
    offsets: Mapping[str, list[int]]  #: Of each tap from the first place
    flipped: str  #: The axes along which the image is turned round


def placed(index: Index, outside: float | None, kind: str = "") -> Placed:
    """`kind`: of the fold over a window: the neutral number of an extreme is no pixel."""
    seen_along = [axis for axis in axes(index) if axis.role in ("h", "w")]
    along = {axis.role: axis for axis in seen_along}
    if not len(along) == len(seen_along) == 2:
        raise NoPipeline
    hidden = any((axis.at < 0).any() for axis in along.values())
    for mode in ("constant", "clamp", "mirror", "reflect", "repeat"):
        found = {role: fits for role, axis in along.items() if (fits := _fits_turned(axis, mode)) is not None}
        if len(found) < 2:
            continue
        offsets = {role: each[1] for role, each in found.items()}
        border: str | dict[str, float] | None = mode
        if mode == "constant":
            border = _constant(outside, kind, offsets) if hidden else None
        return Placed(border=border, steps={role: each[0] for role, each in found.items()}, offsets=offsets,
                      flipped="".join(each[2] for each in found.values()))  # fmt: skip
    raise NoPipeline


def _constant(outside: float | None, kind: str, offsets: Mapping[str, list[int]]) -> str | dict[str, float]:
    if kind not in ("maximum", "minimum"):
        return {"constant": outside or 0.0}
    near = all({*np.diff(sorted(each))} <= {1} for each in offsets.values())
    if not near or outside is None or abs(outside) != math.inf:
        raise NoPipeline
    return "clamp"  # the edge is in each window that reaches beyond it


def _fits_turned(axis: Axis, mode: str) -> tuple[int, list[int], str] | None:
    """(step, offset of each tap, its role where it is turned round)."""
    at = axis.at.reshape(len(axis.at), -1)
    for places, flipped in ((at, ""), (np.where(at >= 0, axis.size - 1 - at, at), axis.role)):
        fits = _fits(places, axis.size, mode)
        if fits is not None:
            return (*fits, flipped)
    return None


def _fits(at: Any, size: int, mode: str) -> tuple[int, list[int]] | None:
    """(step, offset of each tap) by which place i sees i * step + offset, by a mode of border; None where it does not.
    Both are what most places that see no edge agree on."""
    inner = np.flatnonzero((at >= 0).all(1))
    if len(inner) == 0:
        return None
    patterns, which = np.unique(at[inner] - at[inner][:, :1], axis=0, return_inverse=True)
    most = np.bincount(which.ravel()).argmax()
    usual = inner[which.ravel() == most]
    steps, counts = np.unique(np.diff(at[usual, 0])[np.diff(usual) == 1], return_counts=True)
    step = int(steps[counts.argmax()]) if len(steps) else 1
    if step < 1:
        return None
    starts, counts = np.unique(at[usual, 0] - usual * step, return_counts=True)
    offsets = int(starts[counts.argmax()]) + patterns[most]
    wanted = np.arange(len(at))[:, None] * step + offsets
    if mode == "constant":
        expected = np.where((wanted >= 0) & (wanted < size), wanted, OUTSIDE)
    elif mode == "clamp":
        expected = np.clip(wanted, 0, size - 1)
    elif mode == "mirror":
        expected = size - 1 - np.abs(wanted % max(1, 2 * size - 2) - (size - 1))
    elif mode == "reflect":
        folded = wanted % (2 * size)
        expected = np.minimum(folded, 2 * size - 1 - folded)
    else:
        expected = wanted % size
    return (step, [int(each) for each in offsets]) if np.array_equal(expected, at) else None
