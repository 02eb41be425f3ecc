"""Checks of block programs whose rows are in registers, written a second time and in another way than `rows`.

No index algebra: what counts a value's elements (rows, columns, parts of them) is followed from what reads it to what
is read, dimension by dimension. Nothing is enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from fusiond_stitching.analysis.plan import WARP, BlockProgram, Registers, RowPlace, Rows, Stage, StageResult
from fusiond_stitching.analysis.row_workspaces import shared_bytes
from fusiond_stitching.frontend.graph import BYTES, SOURCES, HloInstruction, HloModule

_PACK_BYTES = 16


def problems(
    module: HloModule, program: BlockProgram, threads: int, outside: Callable[[StageResult, str], bool]
) -> Iterator[str]:
    """What is wrong, a line each. `outside(reader, name)`: whether a value is in a buffer when the program begins; it
    says itself what is wrong with that."""
    assert program.rows is not None
    wrong = [*_geometry(program, program.rows, threads), *_shapes(module, program, program.rows)]
    yield from wrong
    if not wrong:
        checking = _Reading(module, program, outside)
        for stage in program.stages:
            for result in stage.results:
                yield from checking.result(stage, result)
        needed = shared_bytes(module, program, threads)
        if needed > program.shared_bytes:
            yield f"it needs {needed} bytes of shared memory, and has {program.shared_bytes}"


def _geometry(program: BlockProgram, rows: Rows, threads: int) -> Iterator[str]:
    """Whether the numbers of `rows` go together. What only follows from a wrong one is not said, too."""
    wrong = [*_lanes(rows, threads)]
    if not wrong:
        yield from _packs(rows, threads)
        wrong = [*_interleaving(rows)]
    yield from wrong
    if not wrong:
        yield from _pieces(program, rows, threads)
        yield from _coverage(program, rows)
        yield from _reductions(program, rows, threads)


def _lanes(rows: Rows, threads: int) -> Iterator[str]:
    lanes = rows.lanes
    if lanes < 1 or not _is_power_of_two(lanes) or threads % lanes or (lanes > 1 and threads % WARP):
        yield f"{threads} threads cannot be groups of {lanes} lanes"


def _packs(rows: Rows, threads: int) -> Iterator[str]:
    if rows.threads not in (0, threads):
        yield f"it is for {rows.threads} threads, and has {threads}"
    if rows.streamed and (rows.shared_steps > rows.steps or rows.rows_per_block * rows.lanes > threads):
        yield "a streamed row holds more than it has, or a block several one after another"
    if (rows.run or rows.columns) % rows.pack or not _is_power_of_two(rows.pack):
        yield f"packs of {rows.pack} do not make up rows of {rows.columns}"


def _interleaving(rows: Rows) -> Iterator[str]:
    if rows.between > 1 and (rows.run < 1 or rows.columns % rows.run or rows.count % rows.between or rows.slabs > 1):
        yield f"{rows.count} rows of {rows.columns} columns do not lie {rows.between} by {rows.run} in each other"


def _pieces(program: BlockProgram, rows: Rows, threads: int) -> Iterator[str]:
    packs = rows.run // rows.pack
    if any(stage.place is RowPlace.PIECE for stage in program.stages) and (
        rows.between == 1
        or packs > min(WARP, rows.lanes)
        or rows.lanes % packs
        or threads // rows.lanes > rows.rows_per_block
    ):
        yield f"{rows.lanes} lanes do not have the same {rows.run} columns of all runs of a row"


def _is_flat(rows: Rows) -> bool:
    """The blocks share one row."""
    return rows.count == 1 and rows.rows_per_block == 1 and rows.slabs == 1


def _coverage(program: BlockProgram, rows: Rows) -> Iterator[str]:
    """Whether every row and column has a thread."""
    if program.blocks % rows.slabs:
        yield f"{program.blocks} blocks do not share out {rows.slabs} slabs"
    parts = program.blocks if _is_flat(rows) else rows.slabs
    if parts * rows.steps * rows.lanes * rows.pack < rows.columns:
        yield f"{parts} times {rows.steps} packs of {rows.lanes} lanes do not cover {rows.columns} columns"
    if not _is_flat(rows) and program.blocks // rows.slabs * rows.rows_per_block < rows.count:
        yield f"{program.blocks} blocks do not cover {rows.count} rows"


def _reductions(program: BlockProgram, rows: Rows, threads: int) -> Iterator[str]:
    """Whether all parts of what is reduced meet."""
    reduced = [stage.place for stage in program.stages if stage.reduction is not None]
    at_once = threads // rows.lanes
    if rows.slabs > 1 and RowPlace.ROW in reduced:
        yield "blocks that share the columns of a row cannot reduce it"
    if not _is_power_of_two(at_once) and any(stage.place is RowPlace.COLUMN for stage in program.stages):
        yield f"{at_once} groups of lanes do not halve down to one"
    if reduced and _is_flat(rows) and program.blocks > 1:
        yield "blocks that share a row cannot reduce it"
    if reduced and rows.lanes > rows.columns // rows.pack:
        yield "some lanes would have nothing to begin a reduction with"


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _shapes(module: HloModule, program: BlockProgram, rows: Rows) -> Iterator[str]:
    runs = program.blocks // rows.slabs
    elements = {
        RowPlace.WIDE: rows.count * rows.columns, RowPlace.ROW: rows.count, RowPlace.COLUMN: runs * rows.columns,
        RowPlace.PIECE: rows.count * rows.run,
    }  # fmt: skip
    for stage in program.stages:
        for result in stage.results:
            each = module[result.instruction]
            few = stage.place is RowPlace.FEW and each.elements % rows.count == 0
            right = few or (stage.place in elements and math.prod(stage.dims) == elements[stage.place])
            if not right or each.dims != stage.dims:
                yield f"{each.name} is not as large as its place"
            elif result.stored is not None and result.stored.buffer != module.buffer_of(each.name):
                yield f"{each.name} goes to {result.stored.buffer}, not to {module.buffer_of(each.name)}"
            elif (
                stage.place in (RowPlace.WIDE, RowPlace.COLUMN)
                and result.stored
                and rows.pack * BYTES[each.dtype] > _PACK_BYTES
            ):
                yield f"{rows.pack} elements of {each.name} do not fit into one store"
            if stage.place is RowPlace.COLUMN and runs * rows.rows_per_block != rows.count:
                yield f"{each.name}: the blocks do not all have the same number of rows"
            if (each.opcode == "reduce") != (stage.reduction is not None):
                yield f"{each.name} is {'not ' if stage.reduction is None else ''}said to be reduced"


Extent: TypeAlias = tuple[str, int, int]
"""(what is counted, in steps of, how often): rows, columns, or a part of them. Where one index out of so many is meant,
`FIXED`, that index, how many there are."""
FIXED = "fixed"
Where: TypeAlias = "tuple[Extent, ...] | None"
"""What counts a value's elements, from the slowest to the fastest; None for any other place."""


def _places(rows: Rows) -> dict[RowPlace | None, Where]:
    """Where the results of a stage lie. A row in pieces is `long` times `run` columns."""
    if rows.between == 1:
        row: tuple[Extent, ...] = (("row", 1, rows.count),)
        wide = (*row, ("column", 1, rows.columns))
    else:
        row = (("outer", 1, rows.count // rows.between), ("between", 1, rows.between))
        wide = (row[0], ("long", 1, rows.columns // rows.run), row[1], ("run", 1, rows.run))
    sums = (("sum", 1, rows.count // rows.rows_per_block * rows.columns),)
    pieces = _joined((*row, ("run", 1, rows.run)))
    return {
        None: None,
        RowPlace.WIDE: _joined(wide),
        RowPlace.ROW: _joined(row),
        RowPlace.COLUMN: _joined(sums),
        RowPlace.PIECE: pieces,
    }


def _joined(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """With neighbours that count on from each other made one, and without those of one element."""
    found: list[Extent] = []
    for what, step, count in extents:
        if count == 1:
            continue
        if found and what != FIXED and found[-1][0] == what and found[-1][1] == step * count:
            found[-1] = (what, step, found[-1][2] * count)
        else:
            found.append((what, step, count))
    return tuple(found)


def _by_dimension(dims: tuple[int, ...], where: tuple[Extent, ...]) -> list[list[Extent]] | None:
    """What counts along each dimension; None where dimensions and extents do not part alike."""
    rest = list(where)
    found: list[list[Extent]] = []
    for dim in dims:
        own: list[Extent] = []
        while dim > 1:
            if not rest:
                return None
            what, step, count = rest.pop(0)
            if what == FIXED and count != dim:
                return None
            if dim % count == 0:
                own.append((what, step, count))
                dim //= count
            elif count % dim == 0:
                own.append((what, step * (count // dim), dim))
                rest.insert(0, (what, step, count // dim))
                dim = 1
            else:
                return None
        found.append(own)
    return None if rest else found


class _Reading:
    def __init__(self, module: HloModule, program: BlockProgram, outside: Callable[[StageResult, str], bool]) -> None:
        assert program.rows is not None
        self.module = module
        self.rows = program.rows
        self.outside = outside
        self.places = _places(program.rows)
        self.own = {result.instruction: (stage, result) for stage in program.stages for result in stage.results}
        self.seen: set[tuple[str, Where, int, bool]] = set()

    def result(self, stage: Stage, result: StageResult) -> Iterator[str]:
        """What a result reads that is not there."""
        each = self.module[result.instruction]
        if each.opcode == "reduce":
            fold = self._folds(each)
            source = self.places[RowPlace.PIECE if fold else RowPlace.WIDE]
            if not self._reduces(each, stage, source):
                yield f"{each.name} does not reduce {'columns' if stage.place is RowPlace.COLUMN else 'rows'}"
            values = len(each.operands) // 2
            for place, operand in enumerate(each.operands):
                where = source if place < values else None
                yield from self._value(result, operand, where, stage.sweep, fold)
            return
        places = [self.places.get(stage.place)]
        if stage.place is RowPlace.FEW:
            few = each.elements // self.rows.count
            places = [_joined((*(self.places[RowPlace.ROW] or ()), (FIXED, number, few))) for number in range(few)]
        for own in places:
            for operand, where in self._read_by(each, own):
                yield from self._value(result, operand, where, stage.sweep, stage.place is not RowPlace.WIDE)

    def _read_by(self, node: HloInstruction, where: Where) -> Iterator[tuple[str, Where]]:
        """The operands that are read for an element at a place, and where."""
        if node.opcode != "concatenate" or where is None:
            yield from ((operand, self._moved(node, operand, where)) for operand in node.operands)
            return
        parts, at, begin = _by_dimension(node.dims, where), node.attributes["dimension"], 0
        one = parts is not None and [each[:1] for each in parts[at]] == [(FIXED,)]
        if parts is None or (node.dims[at] != 1 and not one):
            yield from ((operand, None) for operand in node.operands)
            return
        index = parts[at][0][1] if one else 0
        for operand in node.operands:
            size = self.module[operand].dims[at]
            if begin <= index < begin + size:
                parts[at] = [(FIXED, index - begin, size)] if size > 1 else []
                yield operand, _joined(extent for part in parts for extent in part)
            begin += size

    def _value(self, reader: StageResult, name: str, where: Where, sweep: int, behind: bool) -> Iterator[str]:
        """A value that is asked for at a place, in the loop of a sweep or `behind` it."""
        stack = [(name, where)]
        while stack:
            name, where = stack.pop()
            if (name, where, sweep, behind) in self.seen:
                continue
            self.seen.add((name, where, sweep, behind))
            instruction = self.module[name]
            if (
                name in self.own and self.own[name][0].place is not RowPlace.FEW
            ):  # these are computed where they are read
                stage, result = self.own[name]
                here = where is not None and where == self.places[stage.place]
                if instruction.opcode == "reduce":
                    ready = stage.sweep < sweep or (behind and stage.sweep == sweep)
                    if not here or not ready:
                        yield f"{reader.instruction} reads {name} elsewhere, or before it is reduced"
                    continue
                if Registers() in result.homes:
                    if not here or stage.sweep > sweep or behind:
                        yield f"{reader.instruction} reads {name} where another thread has it, or too early"
                    continue
            elif instruction.opcode in SOURCES or self.outside(reader, name):
                continue
            if instruction.opcode in ("reduce", "scatter", "dot") or name in self.module.foreign:
                yield f"{reader.instruction} reads {name}, which nobody computes"
                continue
            stack += self._read_by(instruction, where)

    def _folds(self, each: HloInstruction) -> bool:
        """Whether it reduces not rows, but what runs have been reduced to."""
        return self.module[each.operands[0]].elements != self.rows.count * self.rows.columns

    def _reduces(self, each: HloInstruction, stage: Stage, source: Where) -> bool:
        """Whether a reduction makes what lies at the place of its stage."""
        if stage.place is RowPlace.COLUMN:
            return self._reduces_columns(each)
        dims, reduced = self.module[each.operands[0]].dims, each.attributes["dimensions"]
        parts = _by_dimension(dims, source) if source is not None else None
        if parts is None:
            return False
        left = _joined(extent for at, part in enumerate(parts) if at not in reduced for extent in part)
        return left == self.places.get(stage.place)

    def _reduces_columns(self, each: HloInstruction) -> bool:
        """Whether it makes one row of the rows of each block."""
        dims, reduced = self.module[each.operands[0]].dims, each.attributes["dimensions"]
        kept = [at for at, dim in enumerate(dims) if dim != 1 and at not in reduced]
        gone = [at for at, dim in enumerate(dims) if dim != 1 and at in reduced]
        inner = [at for at in kept if not gone or at > max(gone)]
        between = [at for at in kept if gone and min(gone) < at < max(gone)]
        wide_columns = math.prod(dims[at] for at in inner) == self.rows.columns
        return wide_columns and not between and math.prod(dims[at] for at in gone) == self.rows.rows_per_block

    def _moved(self, node: HloInstruction, operand: str, where: Where) -> Where:
        """Where an operand is read for an element at a place; None where that is at none of these places."""
        source = self.module[operand]
        if source.elements == 1:
            return ()
        if where is None:
            return None
        if node.elementwise:
            return where if source.dims == node.dims else () if not source.dims else None
        if node.opcode == "reshape":
            return where
        if node.opcode not in ("broadcast", "transpose", "slice"):
            return None
        parts = _by_dimension(node.dims, where)
        if parts is None:
            return None
        if node.opcode == "slice":
            return self._sliced(node, source, parts)
        order = node.attributes["dimensions"]
        if node.opcode == "transpose":
            order = [order.index(at) for at in range(len(order))]
        return _joined(extent for at in order for extent in parts[at])

    def _sliced(self, node: HloInstruction, source: HloInstruction, parts: list[list[Extent]]) -> Where:
        """Where an operand is read of which some dimensions are cut to one index, the others not at all."""
        found: list[Extent] = []
        for at, (dim, size) in enumerate(zip(node.dims, source.dims, strict=True)):
            if dim == size:
                found += parts[at]
            elif dim == 1:
                found.append((FIXED, node.attributes["starts"][at], size))
            else:
                return None
        return _joined(found)
