"""Sets of elements as functions of the block number: for all blocks at once, whatever the size of the tensor.

    Interval        elements start..stop-1 of a dimension (forms of the block number), as far as they lie inside of it
    SymbolicRegion  a product of intervals over `view`: dims with as many elements as the tensor has. Its own dims give
                    a box; [elements] gives a run of the row-major order. Behind a reshape it is the same region, in
                    another view where that one can say it
    Elements        a union of regions; () is the empty set

Every operation gives the set that is asked for or a larger one. Larger ones come about where a region is looked at
through other dims and is not a run of those that are merged (`viewed`), where a bound is not linear in the block's
digits, and where a union gets too many members (`union`). Nothing is ever left out, so what is shown to be contained
is contained.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from fusiond_stitching.analysis import block_forms
from fusiond_stitching.analysis.block_forms import ZERO, Form
from fusiond_stitching.analysis.plan import Chunk, FlatChunk

MOST = 16
"""Regions of a union; more become the smallest one that covers them."""


class Interval(NamedTuple):
    """See the module's docstring."""

    start: Form
    stop: Form


class SymbolicRegion(NamedTuple):
    """See the module's docstring. One interval per dimension of `view`; none for a scalar."""

    view: tuple[int, ...]
    intervals: tuple[Interval, ...]


Elements: TypeAlias = tuple[SymbolicRegion, ...]


def everything(dim: int) -> Interval:
    """A dimension whole, in every block."""
    return Interval(ZERO, Form(dim))


def whole(dims: tuple[int, ...]) -> SymbolicRegion:
    """A tensor whole, in every block."""
    return SymbolicRegion(dims, tuple(everything(dim) for dim in dims))


@functools.lru_cache(maxsize=4096)
def of_chunk(chunk: Chunk, dims: tuple[int, ...], blocks: int) -> SymbolicRegion:
    """The elements of a tensor that each of `blocks` blocks computes."""
    if isinstance(chunk, FlatChunk):
        start = block_forms.number(blocks).times(chunk.size)
        return SymbolicRegion((math.prod(dims),), (Interval(start, start.plus(chunk.size)),))
    starts = [block_forms.coordinate(each.stride, each.parts, blocks).times(each.size) for each in chunk.splits]
    sizes = [each.size for each in chunk.splits]
    return SymbolicRegion(
        dims, tuple(Interval(start, start.plus(size)) for start, size in zip(starts, sizes, strict=True))
    )


def region(view: tuple[int, ...], intervals: Sequence[Interval]) -> Elements:
    """The product of intervals: bounds that always lie outside of a dimension are moved to its ends, and the set is
    empty where an interval is empty in every block."""
    kept = []
    for (start, stop), dim in zip(intervals, view, strict=True):
        if stop.high <= 0 or start.low >= dim or stop.plus(start, -1).high <= 0:
            return ()
        kept.append(Interval(ZERO if start.high <= 0 else start, Form(dim) if stop.low >= dim else stop))
    return (SymbolicRegion(view, tuple(kept)),)


# --- comparison and union -------------------------------------------------------------------------------


def contained(elements: Elements, outer: SymbolicRegion) -> bool:
    """Whether it can be shown that, for every block, its elements are among its elements of `outer`."""
    return all(_inside(viewed(each, outer.view), outer) for each in elements)


def _inside(inner: SymbolicRegion, outer: SymbolicRegion) -> bool:
    """The same of two regions with one view."""
    for mine, yours, dim in zip(inner.intervals, outer.intervals, outer.view, strict=True):
        if mine == yours:
            continue
        # Nothing begins before 0 or ends behind the dimension.
        if yours.start.high > 0 and mine.start.plus(yours.start, -1).low < 0:
            return False
        if yours.stop.low < dim and mine.stop.plus(yours.stop, -1).high > 0:
            return False
    return True


def union(first: Elements, second: Elements, dims: tuple[int, ...]) -> Elements:
    """Both sets of elements of a tensor."""
    kept = list(first)
    for each in second:
        if not any(each.view == other.view and _inside(each, other) for other in kept):
            kept = [other for other in kept if each.view != other.view or not _inside(other, each)]
            kept.append(each)
    if len(kept) <= MOST:
        return tuple(kept)
    views = {each.view for each in kept}
    view = views.pop() if len(views) == 1 else dims
    return (functools.reduce(_hull, (viewed(each, view) for each in kept)),)


def _hull(first: SymbolicRegion, second: SymbolicRegion) -> SymbolicRegion:
    """A region that covers two with its view."""
    pairs = zip(first.intervals, second.intervals, strict=True)
    return SymbolicRegion(
        first.view,
        tuple(
            Interval(block_forms.lower(mine.start, yours.start), block_forms.upper(mine.stop, yours.stop))
            for mine, yours in pairs
        ),
    )


# --- views ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 14)
def viewed(given: SymbolicRegion, view: tuple[int, ...]) -> SymbolicRegion:
    """The same elements (or more) over dims with as many elements, none of them 0.

    Where products of leading dims agree, both fall into groups of dims that are looked at one by one (`_regrouped`)."""
    if given.view == view:
        return given
    found = [everything(dim) for dim in view]
    for ours, theirs in _groups(given.view, view):
        for at, each in zip(theirs, _regrouped(given, ours, [view[at] for at in theirs]), strict=True):
            found[at] = each
    return SymbolicRegion(view, tuple(found))


@functools.lru_cache(maxsize=1 << 14)
def reshaped(given: SymbolicRegion, dims: tuple[int, ...]) -> SymbolicRegion:
    """The same elements, and no more, of a reshape to dims, none of them 0: with dims for its view, as far as they can
    say it. A group of dims that cannot keeps its form in the view."""
    found = viewed(given, dims)
    groups = _groups(given.view, dims)
    counts = [(_count(given, ours), _count(found, theirs)) for ours, theirs in groups]
    exact = [mine is not None and mine == yours for mine, yours in counts]
    if all(exact):
        return found
    view: list[int] = []
    intervals: list[Interval] = []
    for (ours, theirs), same in zip(groups, exact, strict=True):
        source, places = (found, theirs) if same else (given, ours)
        view += [source.view[at] for at in places]
        intervals += [source.intervals[at] for at in places]
    return SymbolicRegion(tuple(view), tuple(intervals))


def _count(given: SymbolicRegion, places: Sequence[int]) -> int | None:
    """Elements of the product of some of its intervals; None where they are not as many in each block."""
    product = 1
    for at in places:
        start, stop = given.intervals[at]
        length = stop.plus(start, -1)
        if length.terms or start.low < 0 or stop.high > given.view[at]:
            return None
        product *= length.constant
    return product


def _regrouped(given: SymbolicRegion, places: Sequence[int], dims: Sequence[int]) -> list[Interval]:
    """Some of its dims as others with the same product. Their intervals are taken for a run of the row-major order,
    from their first element to their last, which they are where they are single elements, then one interval, then
    whole dimensions; the run is then cut into the new dims."""
    if len(places) == len(dims) == 1:
        return [given.intervals[places[0]]]
    start, last = ZERO, ZERO
    for at in places:
        start = start.times(given.view[at]).plus(given.intervals[at].start)
        last = last.times(given.view[at]).plus(given.intervals[at].stop.plus(-1))
    return _cut(start, last, dims)


def _groups(left: tuple[int, ...], right: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Places of the dims that are not 1, in the smallest groups with equal products."""
    mine, yours = _products(left), _products(right)
    ends = sorted({*mine.values()} & {*yours.values()})
    found: list[tuple[list[int], list[int]]] = [([], []) for _ in ends]
    for at, product in mine.items():
        found[bisect.bisect_left(ends, product)][0].append(at)
    for at, product in yours.items():
        found[bisect.bisect_left(ends, product)][1].append(at)
    return found


def _products(dims: tuple[int, ...]) -> dict[int, int]:
    """Place of a dim that is not 1 -> the product of the dims up to it."""
    return {at: math.prod(dims[: at + 1]) for at, dim in enumerate(dims) if dim != 1}


def _cut(start: Form, last: Form, dims: Sequence[int]) -> list[Interval]:
    """The run from `start` to `last` of the row-major order of dims, as a box: exact where the run stays in one row of
    the inner dims in every block, or is made of whole rows; otherwise all rows that it touches, whole."""
    if len(dims) == 1:
        return [Interval(start, last.plus(1))]
    inner = math.prod(dims[1:])
    first_row, from_ = block_forms.divided(start, inner)
    last_row, to = block_forms.divided(last, inner)
    if first_row == last_row and from_.high < inner and to.high < inner:
        return [Interval(first_row, first_row.plus(1)), *_cut(from_, to, dims[1:])]
    rows = Interval(first_row, last_row.plus(to.high // inner + 1))
    return [rows, *(everything(dim) for dim in dims[1:])]
