"""The checks of `containment` done element by element and block by block: their oracle, for small tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

import numpy as np

from fusiond_stitching.analysis import containment, verify
from fusiond_stitching.analysis.containment import StageReads
from fusiond_stitching.analysis.plan import BlockProgram, BoxChunk, Chunk, Stage, StitchingPlan
from fusiond_stitching.frontend.graph import HloModule

from . import index_sets


def problems(module: HloModule, plan: StitchingPlan, *, shared_limit: int | None = None) -> tuple[str, ...]:
    """`verify.problems`, its sets of elements enumerated."""
    with mock.patch.multiple(containment, unproven=unproven, coverage=coverage):
        return verify.problems(module, plan, shared_limit=shared_limit)


def coverage(chunk: Chunk, dims: tuple[int, ...], blocks: int) -> str:
    """`containment.coverage`."""
    if containment.shape(chunk, dims):
        return ""
    times = np.zeros(dims, dtype=int)
    for block in range(blocks):
        if writes(chunk, block):
            times += index_sets.of_chunk(chunk, dims, block)
    return "" if (times == 1).all() else f"elements are written {times.min()} to {times.max()} times"


def unproven(module: HloModule, program: BlockProgram, reads: Sequence[StageReads]) -> Iterator[str]:
    """`containment.unproven`."""
    homes = {each.instruction: stage for stage in program.stages for each in stage.results}
    shared = {each.instruction for each in program.results if each.shared is not None}
    for stage, read in zip(program.stages, reads, strict=True):
        if not read.own:
            continue
        for block in range(program.blocks):
            for name, mask in needed(module, stage, read, block).items():
                own = index_sets.of_chunk(homes[name].chunk, homes[name].dims, block)
                missing = int(np.count_nonzero(mask & ~own))
                if missing:
                    yield f"block {block}: {missing} elements of {name} are not its own"
                elif mask.any() and name not in shared and not writes(homes[name].chunk, block):
                    yield f"block {block} reads {name} from global memory, where another block writes it"


def writes(chunk: Chunk, block: int) -> bool:
    return chunk.writes(block) if isinstance(chunk, BoxChunk) else True


def needed(module: HloModule, stage: Stage, read: StageReads, block: int) -> Mapping[str, index_sets.Mask]:
    """What one block reads of each value that its program has computed."""
    found: dict[str, index_sets.Mask] = {}
    follow = {*read.inlined, *read.own}
    start = index_sets.of_chunk(stage.chunk, stage.dims, block)
    results = ((each.instruction, start) for each in stage.results)
    for name, mask in itertools.chain(results, ((name, None) for name in read.inlined)):
        own = found.get(name) if mask is None else mask
        if own is None:
            continue
        for place, operand in enumerate(module[name].operands):
            if operand in follow:
                more = index_sets.read(module, module[name], place, own)
                found[operand] = found[operand] | more if operand in found else more
    return {name: found[name] for name in read.own if name in found}
