"""Transposes through tiles of shared memory: read along one dimension, written along another, both of them coalesced.

    block   32 x 32 elements of the result, along its last dimension and the one along which an operand lies
            read[j][i] = x[.., i, .., j, ..]      neighbouring threads have neighbouring i
            __syncthreads
            y[.., j, .., i, ..] = f(read[j][i])   neighbouring threads have neighbouring j

For groups without reductions whose results have equal dims. What is transposed is told by the index algebra: an operand
whose neighbours in memory are neighbours along another dimension than the result's last. Everything else is read where
it is used, as ever. Dimensions that a transpose leaves side by side are one (images: channels against all pixels).
"""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise

from fusiond_stitching.analysis.fusion import GroupContext
from fusiond_stitching.analysis.indexing import Index, Symbol, delinear, linear, operand_index, symbol
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    ChunkSchedule,
    Global,
    ScheduleKind,
    Stage,
    StageResult,
    TransposeTile,
    tiled,
)
from fusiond_stitching.frontend.graph import BYTES, SOURCES, HloInstruction, HloModule

SIDE = 32  #: Of a tile, in elements: a warp's threads
PITCH = SIDE + 1  #: Elements from one line of a tile to the next: a column of it lies in different banks
LEAST = 16  #: Of a dimension for which a tile is worth its barrier
MOST_READS = 4


def block_program(context: GroupContext, name: str) -> BlockProgram | None:
    """The group's block program by tiles; None where nothing in it is transposed, or there is more to it."""
    policy, nodes = context.policy, context.nodes
    results = [each for each in nodes if each.name in context.stored]
    if not policy.registers or policy.threads % SIDE or policy.threads > SIDE * SIDE or not results:
        return None
    if any(each.elements == 0 or each.opcode in ("reduce", "dot", "scatter") for each in nodes):
        return None
    if len({each.dims for each in results}) > 1:
        return None
    for each in nodes:
        if each.opcode == "transpose" and each.elements == results[0].elements:
            dims, dim = merged(each)
            tile = TransposeTile(dims=dims, dim=dim, reads=())
            if dim == len(dims) - 1 or min(dims[dim], dims[-1]) < LEAST:
                continue
            found = transposed(context.module, results, tile, context.elsewhere)
            if found and len(found) <= MOST_READS:
                reads = tuple(read for read, _ in found)
                return _program(context, results, TransposeTile(dims=dims, dim=dim, reads=reads), name)
    return None


def _program(context: GroupContext, results: Sequence[HloInstruction], tile: TransposeTile, name: str) -> BlockProgram:
    module = context.module
    along = (tile.dim, len(tile.dims) - 1)
    splits = tiled(tile.dims, [min(SIDE, dim) if at in along else 1 for at, dim in enumerate(tile.dims)])
    chunk = BoxChunk(tuple(splits))
    stage = Stage(
        chunk=chunk,
        dims=results[0].dims,
        results=tuple(StageResult(each.name, (Global(module.buffer_of(each.name)),)) for each in results),
    )
    size = sum(tile_bytes(module, each) for each in tile.reads)
    return BlockProgram(
        name=name,
        blocks=chunk.parts,
        stages=(stage,),
        root=context.group.root,
        tile=tile,
        schedule=ChunkSchedule(0, SIDE * SIDE, ScheduleKind.FLAT),
        shared_bytes=size,
    )


def tile_bytes(module: HloModule, read: str) -> int:
    """Shared memory for a tile of a buffer's elements."""
    return -(-SIDE * PITCH * BYTES[module[read].dtype] // 16) * 16


def merged(transpose: HloInstruction) -> tuple[tuple[int, ...], int]:
    """(the result's dims, those that are side by side in the operand, too, as one; which of them is the operand's
    last)."""
    order = transpose.attributes["dimensions"]  # output dimension -> operand dimension
    groups = [[0]] if order else []
    for before, at in pairwise(range(len(order))):
        if order[at] == order[before] + 1:
            groups[-1].append(at)
        else:
            groups.append([at])
    dims = tuple(math.prod(transpose.dims[at] for at in group) for group in groups)
    last = next((place for place, group in enumerate(groups) if order[group[-1]] == len(order) - 1), 0)
    return dims, last


def variables(tile: TransposeTile) -> tuple[Index, ...]:
    """An index of the tile's dims, of variables that are named after them."""
    return tuple(symbol(f"d{at}", dim) for at, dim in enumerate(tile.dims))


def transposed(
    module: HloModule,
    results: Iterable[HloInstruction],
    tile: TransposeTile,
    elsewhere: Container[str],
    indices: tuple[Index, ...] = (),
) -> list[tuple[str, Index]]:
    """(buffer's value, place in it) of what is read for the results' element at `indices` (of the tile's dims), in
    order, where neighbours along the tile's dimension are neighbours in memory and those along the last are not."""
    indices = indices or variables(tile)
    along, across = (indices[at].symbols for at in (tile.dim, -1))
    found: dict[tuple[str, Index], None] = {}
    for result in results:
        stack = [(result, delinear(linear(indices, tile.dims), result.dims))]
        seen: set[tuple[str, tuple[Index, ...]]] = set()
        while stack:
            node, place = stack.pop()
            for operand in module.operands(node):
                moved = operand_index(node, operand, place)
                if moved is None or (operand.name, moved) in seen:
                    continue
                seen.add((operand.name, moved))
                if operand.opcode == "parameter" or operand.name in elsewhere:
                    offset = linear(moved, operand.dims)
                    if operand.elements >= math.prod(tile.dims) and _turned(offset, along, across):
                        found[operand.name, offset] = None
                elif operand.opcode not in SOURCES:
                    stack.append((operand, moved))
    return list(found)


def _turned(offset: Index, along: frozenset[str], across: frozenset[str]) -> bool:
    plain = {atom.name: abs(step) for atom, step in offset.terms if isinstance(atom, Symbol)}
    inside = {
        name for atom, _ in offset.terms if not isinstance(atom, Symbol) for name in atom.of.symbols
    }  # a quotient of a variable is not a stride
    if inside & (along | across):
        return False
    return all(plain.get(name) == 1 for name in along) and all(plain.get(name, 0) > 1 for name in across)
