"""What blocks compute, against what they read and what must be written: for all blocks of a block program at once.

    shape         a chunk fits the dims it is a chunk of
    coverage      the blocks' chunks together are the tensor, and each element is written by one block
    unproven      what a block reads of its own block program it has computed itself

Nothing takes time per element or per block. A sound plan may be refused where the sets are larger than what is read
(`symbolic_sets`, `symbolic_reads`); none that the planner makes is.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis import block_forms, symbolic_reads, symbolic_sets
from fusiond_stitching.analysis.plan import BlockProgram, Chunk, FlatChunk, Stage
from fusiond_stitching.analysis.symbolic_sets import Elements
from fusiond_stitching.frontend.graph import HloModule


@dataclass(slots=True)
class StageReads:
    """What a stage reads. `own`: results of earlier stages of the same program -> whether all reads are at the
    reader's own index; `by`: which of its results, by their places, read it; `inlined`: what is computed on the spot,
    users first."""

    own: dict[str, bool] = field(default_factory=dict)
    by: dict[str, set[int]] = field(default_factory=dict)
    inlined: list[str] = field(default_factory=list)


# --- chunks ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def shape(chunk: Chunk, dims: tuple[int, ...]) -> str:
    """What is wrong with a chunk over dims; empty when nothing is."""
    if isinstance(chunk, FlatChunk):
        return "" if chunk.size >= 1 and chunk.parts >= 1 else "a chunk has no elements"
    if len(chunk.splits) != len(dims):
        return f"a chunk of {len(chunk.splits)} dimensions for {len(dims)}"
    for each, dim in zip(chunk.splits, dims, strict=True):
        if each.parts < 1 or each.stride < 1 or (dim and (each.size < 1 or (each.parts - 1) * each.size >= dim)):
            return f"{each.parts} parts of {each.size} for a dimension of {dim}"
    return ""


@functools.lru_cache(maxsize=4096)
def coverage(chunk: Chunk, dims: tuple[int, ...], blocks: int) -> str:
    """What is not written, or by nobody, when `blocks` blocks write their chunks; empty when all is well.

    The first of a chunk's replicas writes it: block sum(coordinate * stride), if those are its own coordinates. Where
    each stride is a multiple of the end (stride * parts) of the next smaller one, they are, for all coordinates: each
    chunk has one writer, and the last one's number is the largest. Chunks that are numbered otherwise are refused."""
    elements = math.prod(dims)
    if isinstance(chunk, FlatChunk):
        written = min(chunk.size * blocks, elements)
        return "" if written == elements else f"{elements - written} of {elements} elements are not written"
    if shape(chunk, dims):
        return ""  # said elsewhere
    if any(each.size * each.parts < dim for each, dim in zip(chunk.splits, dims, strict=True)):
        return "the chunks are too small for the dims"
    ascending = sorted((each.stride, each.parts) for each in chunk.splits if each.parts > 1)
    for (stride, parts), (above, _) in itertools.pairwise(ascending):
        if above % (stride * parts):
            return f"parts of stride {above} are not numbered in multiples of {stride * parts}"
    last = sum((parts - 1) * stride for stride, parts in ascending)
    return "" if last < blocks else f"{blocks} blocks write {chunk.parts} chunks, the last of them block {last}"


@functools.lru_cache(maxsize=4096)
def unique(chunk: Chunk, blocks: int) -> bool:
    """Whether every block writes its chunk: no two compute the same one. (Blocks behind the end of a FlatChunk have
    none.)"""
    if isinstance(chunk, FlatChunk):
        return True
    first = block_forms.ZERO
    for each in chunk.splits:
        first = first.plus(block_forms.coordinate(each.stride, each.parts, blocks), each.stride)
    return first == block_forms.number(blocks)


# --- containment ----------------------------------------------------------------------------------------


def unproven(module: HloModule, program: BlockProgram, reads: Sequence[StageReads]) -> Iterator[str]:
    """One line for each value of which it cannot be shown that every block finds what it reads. `reads` are those of
    the program's stages, whose chunks fit their dims."""
    homes = {each.instruction: stage for stage in program.stages for each in stage.results}
    shared = {each.instruction for each in program.results if each.shared is not None}
    for stage, read in zip(program.stages, reads, strict=True):
        wanted = [name for name, same in read.own.items() if not _trivial(stage, homes[name], same, name in shared)]
        if not wanted:
            continue
        for name, elements in _needed(module, program, stage, path(module, read, wanted), wanted).items():
            home = homes[name]
            computed = symbolic_sets.of_chunk(home.chunk, home.dims, program.blocks)
            reader = stage.results[0].instruction
            if not symbolic_sets.contained(elements, computed):
                yield f"{reader} may read elements of {name} that its block has not computed"
            elif elements and name not in shared and not unique(home.chunk, program.blocks):
                yield f"{reader} reads {name} from global memory, where another block writes it"


def _trivial(reader: Stage, home: Stage, same: bool, shared: bool) -> bool:
    """Read at the reader's own index, of an equal chunk, in shared memory: nothing is left to be shown."""
    return same and shared and (home.chunk, home.dims) == (reader.chunk, reader.dims)


def path(module: HloModule, read: StageReads, wanted: Sequence[str]) -> list[str]:
    """The inlined instructions through which the wanted ones are read, users first."""
    leading = set(wanted)
    for name in reversed(read.inlined):
        if any(each in leading for each in module[name].operands):
            leading.add(name)
    return [name for name in read.inlined if name in leading]


def _needed(
    module: HloModule, program: BlockProgram, stage: Stage, inlined: Sequence[str], wanted: Sequence[str]
) -> Mapping[str, Elements]:
    """What the blocks read of each of the wanted values."""
    needed: dict[str, Elements] = {}
    follow = {*inlined, *wanted}
    start = (symbolic_sets.of_chunk(stage.chunk, stage.dims, program.blocks),) if math.prod(stage.dims) else ()
    users = [(each.instruction, start) for each in stage.results]
    for name, given in itertools.chain(users, ((name, None) for name in inlined)):
        own = needed.get(name) if given is None else given
        if own is None:
            continue
        user = module[name]
        for place, operand in enumerate(user.operands):
            if operand in follow:
                more = symbolic_reads.read(module, user, place, own)
                dims = module[operand].dims
                needed[operand] = symbolic_sets.union(needed[operand], more, dims) if operand in needed else more
    return {name: needed[name] for name in wanted if name in needed}
