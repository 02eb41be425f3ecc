"""The shape of a group's rows: how many there are, of how many columns, and how they lie in each other.

The reductions of a group say what its rows are. Where all of them agree, the group's widest tensors are `count` rows of
`columns` numbers, whatever dims they have.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fusiond_stitching.analysis.fusion import FusionGroup
from fusiond_stitching.analysis.indexing import Index, symbol
from fusiond_stitching.analysis.plan import RowPlace, Rows
from fusiond_stitching.frontend.graph import BYTES, HloInstruction, HloModule

LEAST_RUN_BYTES = 32  #: Of a row that lies in pieces: a sector of memory
MOST_PIECES = 128  #: Columns of a run that have sums of their own: as many as a warp has packs
SECTORS = 4  #: Packs that a block reads side by side, at least: two sectors of 32 bytes


@dataclass(frozen=True, slots=True)
class RowShape:
    """`runs`: of how many rows a column reduction makes one; 0 where there is none. `between` and `run`: see
    `plan.Rows`. `pieces`: some reductions make a number for each column of a run."""

    count: int
    columns: int
    runs: int = 0
    between: int = 1
    run: int = 0
    pieces: bool = False

    def at(self, place: RowPlace) -> Index:
        """The canonical place, of variables that are named as here."""
        if place is RowPlace.ROW:
            return symbol("row", self.count)
        column = symbol("column", self.columns)
        if place is RowPlace.PIECE:
            return symbol("row", self.count) * self.run + column % self.run
        if place is RowPlace.WIDE and self.between > 1:
            return interleaved(symbol("row", self.count), column // self.run, column % self.run, self)
        outer = (
            symbol("row", self.count) if place is RowPlace.WIDE else symbol("block", self.count // max(1, self.runs))
        )
        return outer * self.columns + column

    def reduces_to(self, place: RowPlace, dims: tuple[int, ...], reduced: Iterable[int]) -> bool:
        """Whether a reduction of wide values makes numbers that lie at this place."""
        outer = self.count // self.between
        if place is RowPlace.PIECE:
            return cut(dims, reduced) == (outer, self.columns // self.run, self.between * self.run)
        if place is RowPlace.COLUMN:
            return cut(dims, reduced) == (self.count // self.runs, self.runs, self.columns)
        if self.between > 1:
            return interleaving(dims, reduced) == (outer, self.columns // self.run, self.between, self.run)
        return cut(dims, reduced) == (self.count, self.columns, 1)

    def elements(self, place: RowPlace) -> int:
        if place is RowPlace.ROW:
            return self.count
        if place is RowPlace.PIECE:
            return self.count * self.run if self.pieces else 0
        return self.columns * (self.count if place is RowPlace.WIDE else self.count // max(1, self.runs))


def interleaved(row: Index, run: Index, inside: Index, rows: RowShape | Rows) -> Index:
    """The place, in row-major order, of an element of a row: of its run with this number, the element `inside`."""
    width = rows.between * rows.run
    whole = row // rows.between * (rows.between * rows.columns)
    return whole + run * width + row % rows.between * rows.run + inside


def row_shapes(module: HloModule, group: FusionGroup, nodes: Sequence[HloInstruction]) -> Iterator[RowShape]:
    """What the group's reductions agree upon; where they reduce columns alone, first blocks of rows, which know their
    sums in the end, then neighbouring columns of an image as a row, which know them on the way."""
    shape = _agreed(module, group, nodes)
    if shape is None:
        return
    yield shape
    if not shape.runs or shape.runs == shape.count:
        return
    wide = shape.count * shape.columns
    read = (module[name] for each in nodes for name in each.operands)
    narrowest = min(BYTES[each.dtype] for each in read if each.elements == wide)
    outer, run = shape.count // shape.runs, LEAST_RUN_BYTES // narrowest
    if shape.columns % run == 0 and shape.columns > run:
        between = shape.columns // run
        yield RowShape(outer * between, shape.runs * run, between=between, run=run, pieces=True)


@dataclass(slots=True)
class _Reduced:
    """What a group's reductions go over, each of its kind once."""

    rows: set[tuple[int, int]]  #: (rows, columns of each)
    columns: set[tuple[int, int, int]]  #: (runs of rows, rows of each, columns)
    interleaved: set[tuple[int, int, int, int]]  #: As `interleaving` has them


def _agreed(module: HloModule, group: FusionGroup, nodes: Iterable[HloInstruction]) -> RowShape | None:
    """The one shape that suits all reductions; one long row where there are none."""
    found = _reduced(module, nodes)
    if found is None or len(found.interleaved) > 1 or len(found.columns) > 1:
        return None
    lying = found.interleaved or set(_folded(found))
    if lying:
        return _of_interleaved(*lying.pop(), found)
    if len(found.rows) > 1:
        return None
    if found.columns:
        before, reduced, after = found.columns.pop()
        alike = not found.rows or found.rows == {(before * reduced, after)}
        return RowShape(before * reduced, after, reduced) if alike and reduced > 1 else None
    if found.rows:
        count, long = found.rows.pop()
        return RowShape(count, long) if long > 1 else None
    sizes = {module[name].elements for name in group.members}
    return RowShape(1, sizes.pop()) if len(sizes) == 1 else None


def _reduced(module: HloModule, nodes: Iterable[HloInstruction]) -> _Reduced | None:
    """None where a reduction goes over neither rows nor columns."""
    found = _Reduced(set(), set(), set())
    for each in nodes:
        if each.opcode != "reduce":
            continue
        source, reduced = module[each.operands[0]], each.attributes["dimensions"]
        three = cut(source.dims, reduced)
        if three is None:
            four = interleaving(source.dims, reduced)
            if four is None or four[3] * BYTES[source.dtype] < LEAST_RUN_BYTES:
                return None
            found.interleaved.add(four)
        elif three[2] == 1:
            found.rows.add(three[:2])
        else:
            found.columns.add(three)
    return found


def _of_interleaved(outer: int, long: int, between: int, run: int, found: _Reduced) -> RowShape | None:
    """Rows that lie in each other; whatever else is reduced are their pieces, and what these are reduced to."""
    pieces = found.columns == {(outer, long, between * run)} and run <= MOST_PIECES
    if (found.columns and not pieces) or not found.rows <= ({(outer * between, run)} if pieces else set()):
        return None
    return RowShape(outer * between, long * run, between=between, run=run, pieces=pieces)


def _folded(found: _Reduced) -> Iterator[tuple[int, int, int, int]]:
    """How rows lie in each other whose columns are reduced to numbers that are reduced in turn, if they do."""
    if len(found.columns) != 1 or len(found.rows) != 1:
        return
    ((before, long, after),) = found.columns
    ((count, run),) = found.rows
    several = before * long != count and after % run == 0 and after > run
    if several and before * after == count * run and run >= SECTORS:
        yield before, long, after // run, run


def cut(dims: tuple[int, ...], reduced: Iterable[int]) -> tuple[int, int, int] | None:
    """Elements before, inside and behind the reduced dimensions; None where others lie between them."""
    inside = sorted(at for at in reduced if dims[at] > 1)
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    if any(dims[at] > 1 for at in range(first, last) if at not in inside):
        return None
    return math.prod(dims[:first]), math.prod(dims[first : last + 1]), math.prod(dims[last + 1 :])


def interleaving(dims: tuple[int, ...], reduced: Iterable[int]) -> tuple[int, int, int, int] | None:
    """(outer, long, between, run) of a reduction over `long` and `run` in [outer, long, between, run], as groups of
    channels are; None for any other."""
    inside = set(reduced)
    found = [1]
    gone = False
    for at, dim in enumerate(dims):
        if dim != 1 and (at in inside) != gone:
            gone = not gone
            found.append(1)
        found[-1] *= dim
    if len(found) != 4:
        return None
    outer, long, between, run = found
    return outer, long, between, run


def sums_runs(module: HloModule, reduce: HloInstruction) -> bool:
    """Whether it makes one row of each of several runs of rows."""
    three = cut(module[reduce.operands[0]].dims, reduce.attributes["dimensions"])
    return three is not None and three[0] > 1 and three[2] > 1
