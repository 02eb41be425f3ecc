"""Checks row groups: geometry, sizes and order, sharing no code with `rows`.

That each value is read where it lies is shown by running a plan, and not here.
"""

import math
from collections.abc import Callable, Iterator

from fusiond_stitching.analysis.plan import WARP, BlockProgram, Registers, RowPlace, Rows, Stage, StageResult
from fusiond_stitching.analysis.row_workspaces import shared_bytes
from fusiond_stitching.frontend.graph import BYTES, SOURCES, HloModule

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
    lanes = rows.lanes
    if lanes < 1 or not _is_power_of_two(lanes) or threads % lanes or (lanes > 1 and threads % WARP):
        yield f"{threads} threads cannot be groups of {lanes} lanes"
        return
    yield from _packs(rows, threads)
    if rows.between > 1 and (rows.run < 1 or rows.columns % rows.run or rows.count % rows.between or rows.slabs > 1):
        yield f"{rows.count} rows of {rows.columns} columns do not lie {rows.between} by {rows.run} in each other"
        return
    yield from _pieces(program, rows, threads)
    yield from _coverage(program, rows)
    yield from _reductions(program, rows, threads)


def _packs(rows: Rows, threads: int) -> Iterator[str]:
    if rows.threads not in (0, threads):
        yield f"it is for {rows.threads} threads, and has {threads}"
    if rows.streamed and (rows.shared_steps > rows.steps or rows.rows_per_block * rows.lanes > threads):
        yield "a streamed row holds more than it has, or a block several one after another"
    if (rows.run or rows.columns) % rows.pack or not _is_power_of_two(rows.pack):
        yield f"packs of {rows.pack} do not make up rows of {rows.columns}"


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


class _Reading:
    """Whether what a result reads is there by then: kept by this thread, reduced earlier, or in a buffer."""

    def __init__(self, module: HloModule, program: BlockProgram, outside: Callable[[StageResult, str], bool]) -> None:
        self.module = module
        self.outside = outside
        self.own = {result.instruction: (stage, result) for stage in program.stages for result in stage.results}
        self.seen: set[tuple[str, int, bool]] = set()

    def result(self, stage: Stage, result: StageResult) -> Iterator[str]:
        """What a result reads that is not there, in the loop of its sweep or behind it."""
        behind = stage.place is not RowPlace.WIDE and stage.reduction is None
        stack = [(operand, behind) for operand in self.module[result.instruction].operands]
        while stack:
            name, behind = stack.pop()
            if (name, stage.sweep, behind) in self.seen:
                continue
            self.seen.add((name, stage.sweep, behind))
            instruction = self.module[name]
            if name in self.own:
                theirs, home = self.own[name]
                if instruction.opcode == "reduce":
                    folds = stage.reduction is not None and theirs.place is RowPlace.PIECE
                    if theirs.sweep > stage.sweep or (theirs.sweep == stage.sweep and not (behind or folds)):
                        yield f"{result.instruction} reads {name} before it is reduced"
                    continue
                if Registers() in home.homes:
                    if theirs.sweep > stage.sweep or behind:
                        yield f"{result.instruction} reads {name} where another thread has it, or too early"
                    continue
            elif instruction.opcode in SOURCES or self.outside(result, name):
                continue
            if instruction.opcode in ("reduce", "scatter", "dot") or name in self.module.foreign:
                yield f"{result.instruction} reads {name}, which nothing computes"
                continue
            stack += [(operand, behind) for operand in instruction.operands]
