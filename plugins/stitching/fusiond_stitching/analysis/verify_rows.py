"""Checks of block programs whose rows are in registers, written a second time and in another way than `rows`.

No index algebra: an instruction keeps the place of an element, takes a row's number to all of its columns, or does
neither, which its dims say once those of size 1 are dropped. Nothing is enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fusiond_stitching.analysis.plan import BlockProgram, Place, Registers, Result, Rows, Stage
from fusiond_stitching.analysis.rows import WARP, shared_bytes
from fusiond_stitching.frontend.graph import BYTES, SOURCES, Instruction, Module

_PACK_BYTES = 16


def problems(
    module: Module, program: BlockProgram, threads: int, outside: Callable[[Result, str], bool]
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
    if rows.lanes < 1 or rows.lanes & (rows.lanes - 1) or threads % rows.lanes or (rows.lanes > 1 and threads % WARP):
        yield f"{threads} threads cannot be groups of {rows.lanes} lanes"
        return
    if rows.threads not in (0, threads):
        yield f"it is for {rows.threads} threads, and has {threads}"
    if rows.streamed and (rows.shared_steps > rows.steps or rows.rows_per_block * rows.lanes > threads):
        yield "a streamed row holds more than it has, or a block several one after another"
    if (rows.run or rows.columns) % rows.pack or rows.pack & (rows.pack - 1):
        yield f"packs of {rows.pack} do not make up rows of {rows.columns}"
    if rows.between > 1 and (rows.run < 1 or rows.columns % rows.run or rows.count % rows.between or rows.slabs > 1):
        yield f"{rows.count} rows of {rows.columns} columns do not lie {rows.between} by {rows.run} in each other"
        return
    if program.blocks % rows.slabs:
        yield f"{program.blocks} blocks do not share out {rows.slabs} slabs"
    at_once = threads // rows.lanes
    flat = rows.count == 1 and rows.rows_per_block == 1 and rows.slabs == 1
    parts = program.blocks if flat else rows.slabs
    if parts * rows.steps * rows.lanes * rows.pack < rows.columns:
        yield f"{parts} times {rows.steps} packs of {rows.lanes} lanes do not cover {rows.columns} columns"
    if not flat and program.blocks // rows.slabs * rows.rows_per_block < rows.count:
        yield f"{program.blocks} blocks do not cover {rows.count} rows"
    if rows.slabs > 1 and any(stage.reduction and stage.place is Place.ROW for stage in program.stages):
        yield "blocks that share the columns of a row cannot reduce it"
    if at_once & (at_once - 1) and any(stage.place is Place.COLUMN for stage in program.stages):
        yield f"{at_once} groups of lanes do not halve down to one"
    if flat and program.blocks > 1 and any(stage.reduction is not None for stage in program.stages):
        yield "blocks that share a row cannot reduce it"
    if rows.lanes > rows.columns // rows.pack and any(stage.reduction is not None for stage in program.stages):
        yield "some lanes would have nothing to begin a reduction with"


def _shapes(module: Module, program: BlockProgram, rows: Rows) -> Iterator[str]:
    runs = program.blocks // rows.slabs
    elements = {Place.WIDE: rows.count * rows.columns, Place.ROW: rows.count, Place.COLUMN: runs * rows.columns}
    for stage in program.stages:
        for result in stage.results:
            each = module[result.instruction]
            if stage.place is None or math.prod(stage.dims) != elements[stage.place] or each.dims != stage.dims:
                yield f"{each.name} is not as large as its place"
            elif result.stored is not None and result.stored.buffer != module.buffer_of(each.name):
                yield f"{each.name} goes to {result.stored.buffer}, not to {module.buffer_of(each.name)}"
            elif stage.place is not Place.ROW and result.stored and rows.pack * BYTES[each.dtype] > _PACK_BYTES:
                yield f"{rows.pack} elements of {each.name} are no one store"
            if stage.place is Place.COLUMN and runs * rows.rows_per_block != rows.count:
                yield f"{each.name}: the blocks have not all as many rows"
            if (each.opcode == "reduce") != (stage.reduction is not None):
                yield f"{each.name} is {'not ' if stage.reduction is None else ''}said to be reduced"


class _Reading:
    def __init__(self, module: Module, program: BlockProgram, outside: Callable[[Result, str], bool]) -> None:
        assert program.rows is not None
        self.module = module
        self.rows = program.rows
        self.outside = outside
        self.own = {result.instruction: (stage, result) for stage in program.stages for result in stage.results}
        self.seen: set[tuple[str, Place | None, int, bool]] = set()

    def result(self, stage: Stage, result: Result) -> Iterator[str]:
        """What a result reads that is not there."""
        each = self.module[result.instruction]
        if each.opcode == "reduce":
            if not self._reduces(each, stage):
                yield f"{each.name} does not reduce {'rows' if stage.place is Place.ROW else 'columns'}"
            values = len(each.operands) // 2
            for place, operand in enumerate(each.operands):
                yield from self._value(result, operand, Place.WIDE if place < values else None, stage.sweep, False)
            return
        for operand in each.operands:
            behind = stage.place is not Place.WIDE
            yield from self._value(result, operand, self._moved(each, operand, stage.place), stage.sweep, behind)

    def _value(self, reader: Result, name: str, place: Place | None, sweep: int, behind: bool) -> Iterator[str]:
        """A value that is asked for at a place, in the loop of a sweep or `behind` it."""
        stack = [(name, place)]
        while stack:
            name, place = stack.pop()
            if (name, place, sweep, behind) in self.seen:
                continue
            self.seen.add((name, place, sweep, behind))
            instruction = self.module[name]
            if name in self.own:
                stage, result = self.own[name]
                if instruction.opcode == "reduce":
                    ready = stage.sweep < sweep or (behind and stage.sweep == sweep)
                    if stage.place is not place or not ready:
                        yield f"{reader.instruction} reads {name} elsewhere, or before it is reduced"
                    continue
                if Registers() in result.homes:
                    if stage.place is not place or stage.sweep > sweep or behind:
                        yield f"{reader.instruction} reads {name} where another thread has it, or too early"
                    continue
            elif instruction.opcode in SOURCES or self.outside(reader, name):
                continue
            if instruction.opcode in ("reduce", "scatter", "dot") or name in self.module.foreign:
                yield f"{reader.instruction} reads {name}, which nobody computes"
                continue
            stack += [(operand, self._moved(instruction, operand, place)) for operand in instruction.operands]

    def _reduces(self, each: Instruction, stage: Stage) -> bool:
        dims = self.module[each.operands[0]].dims
        kept = [at for at, dim in enumerate(dims) if dim != 1 and at not in each.attributes["dimensions"]]
        gone = [at for at, dim in enumerate(dims) if dim != 1 and at in each.attributes["dimensions"]]
        if stage.place is Place.ROW and self.rows.between > 1:
            return self._in_each_other(dims, kept)
        if stage.place is Place.ROW:
            return not gone or not kept or max(kept) < min(gone)
        inner = [at for at in kept if not gone or at > max(gone)]
        between = [at for at in kept if gone and min(gone) < at < max(gone)]
        wide = math.prod(dims[at] for at in inner) == self.rows.columns
        return wide and not between and math.prod(dims[at] for at in gone) == self.rows.rows_per_block

    def _moved(self, node: Instruction, operand: str, place: Place | None) -> Place | None:
        """Where an operand is read for an element at a place; None where that is none of them."""
        source = self.module[operand]
        if place is None:
            return None
        if node.elementwise:
            only = Place.ROW if self.rows.count == 1 and not source.dims else None  # a number, read by all of a row
            return place if source.dims == node.dims else only
        if node.opcode == "reshape":
            return place
        if node.opcode == "broadcast":
            return self._spread(node, source, place)
        if node.opcode == "transpose":
            order = [at for at in node.attributes["dimensions"] if source.dims[at] != 1]
            return place if order == sorted(order) else None
        return None

    def _in_each_other(self, dims: tuple[int, ...], kept: list[int]) -> bool:
        """Whether the dims at `kept` count the rows, and the others their columns, as the rows lie."""
        large = [at for at, dim in enumerate(dims) if dim != 1]
        last = [at for at in large if not kept or at > max(kept)]
        gone = [at for at in large if at not in kept and at not in last]
        if kept != sorted(kept) or not gone:
            return False
        between = [at for at in kept if at > min(gone)]
        wanted = (self.rows.run, self.rows.between, self.rows.columns // self.rows.run)
        one_piece = max(gone) < min(between, default=0)
        return one_piece and wanted == tuple(math.prod(dims[at] for at in those) for those in (last, between, gone))

    def _spread(self, node: Instruction, source: Instruction, place: Place) -> Place | None:
        pairs = [
            at for at, dim in zip(node.attributes["dimensions"], source.dims, strict=True) if dim != 1
        ]  # fmt: skip
        large = [at for at, dim in enumerate(node.dims) if dim != 1]
        if pairs == large:
            return place
        if self.rows.between > 1:
            return Place.ROW if place is Place.WIDE and self._in_each_other(node.dims, pairs) else None
        behind = math.prod(node.dims[at] for at in large[len(pairs) :])
        return (
            Place.ROW if place is Place.WIDE and pairs == large[: len(pairs)] and behind == self.rows.columns else None
        )
