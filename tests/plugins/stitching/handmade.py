"""Plans made by hand: every instruction a kernel of its own, or many of them in one block program under a drawn
schedule."""

from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Chunk,
    ChunkSchedule,
    FlatChunk,
    Global,
    LibraryCall,
    Phase,
    Reduction,
    ScheduleKind,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.frontend.graph import HloInstruction, HloModule


def alone(
    module: HloModule, each: HloInstruction, threads: int, chunk: Chunk | None = None, **stage: object
) -> StitchedKernel:
    """One instruction as a kernel that reads and writes global memory."""
    blocks = max(1, -(-each.elements // threads)) if chunk is None else chunk.parts
    only = Stage(
        chunk=chunk or FlatChunk(threads, blocks), dims=each.dims,
        results=(StageResult(each.name, (Global(module.buffer_of(each.name)),)),),
        reduction=Reduction(lanes=1) if each.opcode == "reduce" else None, **stage,
    )  # fmt: skip
    program = BlockProgram(
        name=each.name, blocks=blocks, stages=(only,), root=each.name,
        schedule=ChunkSchedule(0, threads, ScheduleKind.FLAT),
    )  # fmt: skip
    return StitchedKernel(name=each.name, phases=(Phase(programs=(program,)),), threads=threads, grid=blocks)


def unfused(module: HloModule, *, threads: int = 64) -> StitchingPlan:
    """A kernel for every instruction; reshapes cost nothing, dots are library calls."""
    steps: list[StitchedKernel | LibraryCall] = []
    for each in module.instructions:
        free = each.opcode == "reshape" and each.name not in module.is_output
        if each.opcode in ("parameter", "constant") or free or each.elements == 0:
            continue
        library = module.library(each)
        steps.append(LibraryCall(instruction=each.name) if library else alone(module, each, threads))
    return StitchingPlan(steps=tuple(steps))


def inlined(module: HloModule) -> StitchingPlan:
    """A kernel for every output, with all that leads to it computed on the spot (thread composition alone). Scatters,
    library calls and what a library call reads keep kernels of their own."""
    kept = set(module.outputs)
    for each in module.instructions:
        if each.opcode == "scatter" or module.library(each):
            kept |= {each.name}
        if module.library(each):
            kept |= {module.base(operand).name for operand in each.operands}
    steps: list[StitchedKernel | LibraryCall] = []
    for each in module.instructions:
        if each.name not in kept or each.opcode in ("parameter", "constant") or each.elements == 0:
            continue
        steps.append(LibraryCall(instruction=each.name) if module.library(each) else alone(module, each, 32))
    return StitchingPlan(steps=tuple(steps))
