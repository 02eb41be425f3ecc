"""Shared memory of row groups: partial results of reductions, and parts of rows that are too long."""

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_stitching.analysis.plan import WARP, BlockProgram, RowPlace, Rows, power_of_two
from fusiond_stitching.frontend.graph import BYTES, HloInstruction, HloModule

ALIGNED_BYTES = 16  #: What each value's part begins at a multiple of


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where the parts of a reduction meet: the offset of each of its values in the block's shared memory."""

    offsets: tuple[int, ...]
    size_bytes: int


def workspaces(module: HloModule, program: BlockProgram, threads: int) -> Mapping[str, Workspace]:
    """Shared memory by reduce (of the results of a variadic one, by the first): a value per warp for rows of more than
    a warp, twice where a block has several rounds (one is read while the next is written); for columns, half of what
    the threads hold; for pieces, those of a row's warps, and behind them the totals."""
    rows = program.rows
    assert rows is not None
    at_once = threads // rows.lanes
    rounds = -(-rows.rows_per_block // at_once)
    found: dict[str, Workspace] = {}
    begun: list[object] = []
    offset = 0
    for each, stage in [(module[one.instruction], own) for own in program.stages for one in own.results]:
        reduction, key = stage.reduction, (each.operands, each.attributes.get("computation"))
        if reduction is None or each.opcode != "reduce" or key in begun:
            continue
        begun.append(key)
        if not reduction.inner:
            slots = rows.columns_per_block * (power_of_two(at_once) // 2)
        elif stage.place is RowPlace.PIECE:
            warps = rows.lanes // WARP
            slots = rows.rows_per_block * rows.run * (warps + 1 if warps > 1 else 1)
        elif folds_pieces(module, each, rows):
            continue
        else:
            slots = (threads // WARP) * (2 if rounds > 1 else 1) if rows.lanes > WARP else 0
        offsets, first = [], offset
        for value in each.values if slots else ():
            offsets.append(offset)
            offset += -(-slots * BYTES[module[value].dtype] // ALIGNED_BYTES) * ALIGNED_BYTES
        if offsets:
            found[each.name] = Workspace(tuple(offsets), offset - first)
    return found


def shared_bytes(module: HloModule, program: BlockProgram, threads: int) -> int:
    """Of a block: the workspaces, and behind them what is held of a row that is too long for registers."""
    rows = program.rows
    assert rows is not None
    size = sum(each.size_bytes for each in workspaces(module, program, threads).values())
    if not rows.streamed:
        return size
    return size + sum(held_bytes(module, rows, name) for name in rows.held)


def held_bytes(module: HloModule, rows: Rows, name: str) -> int:
    """Of one value that is held in shared memory."""
    return rows.shared_steps * rows.lanes * rows.pack * BYTES[module[name].dtype]


def folds_pieces(module: HloModule, reduce: HloInstruction, rows: Rows) -> bool:
    """Whether a reduction makes one number of a row's pieces."""
    return module[reduce.operands[0]].elements != rows.count * rows.columns
