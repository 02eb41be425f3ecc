"""Plans made by hand: every instruction a kernel of its own, or many of them in one block program under a drawn
schedule."""

from __future__ import annotations

from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Chunk,
    Flat,
    Global,
    Kernel,
    Kind,
    LibraryCall,
    Phase,
    Plan,
    Reduction,
    Result,
    Schedule,
    Stage,
    base_of,
)
from fusiond_stitching.frontend.graph import Instruction, Module


def alone(module: Module, each: Instruction, threads: int, chunk: Chunk | None = None, **stage: object) -> Kernel:
    """One instruction as a kernel that reads and writes global memory."""
    blocks = max(1, -(-each.elements // threads)) if chunk is None else chunk.parts
    only = Stage(
        chunk=chunk or Flat(threads, blocks),
        dims=each.dims,
        results=(Result(each.name, (Global(module.buffer_of(each.name)),)),),
        reduction=Reduction(lanes=1) if each.opcode == "reduce" else None,
        **stage,
    )
    program = BlockProgram(
        name=each.name, blocks=blocks, stages=(only,), root=each.name, schedule=Schedule(0, threads, Kind.FLAT)
    )
    return Kernel(name=each.name, phases=(Phase(programs=(program,)),), threads=threads, grid=blocks)


def unfused(module: Module, *, threads: int = 64) -> Plan:
    """A kernel for every instruction; reshapes cost nothing, dots are library calls."""
    steps: list[Kernel | LibraryCall] = []
    for each in module.instructions:
        free = each.opcode == "reshape" and each.name not in module.is_output
        if each.opcode in ("parameter", "constant") or free or each.elements == 0:
            continue
        library = module.library(each)
        steps.append(LibraryCall(instruction=each.name) if library else alone(module, each, threads))
    return Plan(steps=tuple(steps))


def inlined(module: Module) -> Plan:
    """A kernel for every output, with all that leads to it computed on the spot (thread composition alone). Scatters,
    library calls and what a library call reads keep kernels of their own."""
    kept = set(module.outputs)
    for each in module.instructions:
        if each.opcode == "scatter" or module.library(each):
            kept |= {each.name}
        if module.library(each):
            kept |= {base_of(module, operand).name for operand in each.operands}
    steps: list[Kernel | LibraryCall] = []
    for each in module.instructions:
        if each.name not in kept or each.opcode in ("parameter", "constant") or each.elements == 0:
            continue
        steps.append(LibraryCall(instruction=each.name) if module.library(each) else alone(module, each, 32))
    return Plan(steps=tuple(steps))
