"""A plan as a Program: one launch per kernel, library calls as plain kernels that are not counted.

Every kernel's text is written once: kernels that differ only in the buffers they work on (the steps of an unrolled
loop, say) share one entry.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from fusiond.model.nouns import Rejection
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source
from fusiond_stitching.analysis import structural_hash
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    ChunkSchedule,
    Global,
    LibraryCall,
    ScheduleKind,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
    alone,
)
from fusiond_stitching.codegen import seams, tolerances
from fusiond_stitching.codegen.kernel import KernelText, kernel_text
from fusiond_stitching.codegen.scope import SourceUnit
from fusiond_stitching.codegen.semantics import TYPES, NoCode
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

SOURCE = "module"
_LIBRARY_THREADS = 128
LIBRARY = "library_"  #: What the names of kernels in place of a library's begin with


def program(
    module: HloModule, plan: StitchingPlan, *, fills: Mapping[str, Fill] | None = None, name: str | None = None
) -> Program | Rejection:
    """The Program of a plan. `fills`: what the inputs hold, by buffer (`in_0`); without one, floats are uniform in
    -1 .. 1 and whole numbers in 0 .. 9. A Rejection where there is no code for something."""
    try:
        return _program(module, plan, fills or {}, name or module.name)
    except NoCode as problem:
        return Rejection(rule="no_code", nodes=(module.name,), detail=str(problem))


def timed_whole(program: Program) -> Program:
    """The same work with everything in the span, library calls too (the paper's end-to-end time, section 6.4)."""
    steps = tuple(dataclasses.replace(each, counted=True) for each in program.launches)
    return dataclasses.replace(program, steps=steps)


def is_library(launch: Launch) -> bool:
    """A plain kernel in place of a library's."""
    return launch.entry.startswith(LIBRARY)


def _program(module: HloModule, plan: StitchingPlan, fills: Mapping[str, Fill], name: str) -> Program:
    unit = SourceUnit(max((each.elements for each in module.instructions), default=0))
    available = set(module.parameters)
    texts: dict[str, tuple[str, KernelText]] = {}  # what it does, whatever the buffers are called -> (entry, text)
    written: dict[object, tuple[structural_hash.Outline, str, tuple[str, ...]]] = {}  # key -> (.., entry, arguments)
    steps: list[Launch] = []
    calls: dict[str, str] = {}  # launch -> the dot that it stands in for: not counted
    used: list[str] = []
    names: set[str] = set()
    for step in plan.steps:
        if isinstance(step, LibraryCall) and step.instruction in module.foreign:
            available.add(step.instruction)  # its stand-in is an input
            continue
        kernel = step if isinstance(step, StitchedKernel) else library_kernel(module, step)
        step_name = _unique(_word(kernel.name), names)
        outline = structural_hash.outline(module, kernel, available)
        if outline.key in written:
            first, entry, arguments = written[outline.key]
            buffers = structural_hash.corresponding(first, outline, arguments)
        else:
            text = kernel_text(module, kernel, unit, available)
            entry, _ = texts.setdefault(text.key, (step_name, text))
            buffers = text.buffers
            written[outline.key] = (outline, entry, buffers)
        if isinstance(step, LibraryCall):
            calls[step_name] = step.instruction
        used += buffers
        steps.append(
            Launch(
                name=step_name,
                source=SOURCE,
                entry=entry,
                grid=(kernel.grid, 1, 1),
                block=(kernel.threads, 1, 1),
                shared_bytes=kernel.shared_bytes,
                cooperative=kernel.cooperative,
                arguments=tuple(Pointer(buffer=each) for each in buffers),
                counted=step_name not in calls,
            )
        )
        available |= {result.instruction for each in kernel.programs for result in each.results if result.stored}
    needed = frozenset[str]().union(*(text.headers for _, text in texts.values()))
    whole = _source(unit, [text.named(entry) for entry, text in texts.values()], needed)
    source = Source(name=SOURCE, text=whole, entries=tuple(entry for entry, _ in texts.values()))
    return Program(
        name=name,
        buffers=_buffers(module, used, fills),
        sources=(source,),
        steps=tuple(steps),
        seams=seams.seams(module, steps, calls),
    )


def library_kernel(module: HloModule, call: LibraryCall) -> StitchedKernel:
    """The plain kernel that stands in for a library's: a thread per element of the result."""
    name, dims = call.instruction, module[call.instruction].dims
    schedule = ChunkSchedule(0, _LIBRARY_THREADS, ScheduleKind.FLAT)
    stage = Stage(
        chunk=schedule.chunk(dims), dims=dims, results=(StageResult(name, (Global(module.buffer_of(name)),)),)
    )
    program = BlockProgram(name=name, blocks=schedule.blocks(dims), stages=(stage,), root=name, schedule=schedule)
    return alone(program, f"{LIBRARY}{name}", _LIBRARY_THREADS)


def _source(unit: SourceUnit, texts: list[str], needed: frozenset[str]) -> str:
    parts = [f"#include <{each}>\n" for each in sorted(needed | unit.functions.headers)]
    parts += ["\n"] if parts else []
    parts += [each + "\n" for each in (*unit.declarations, *unit.functions.texts)]
    return "".join(parts) + "\n".join(texts)


def _buffers(module: HloModule, used: list[str], fills: Mapping[str, Fill]) -> tuple[Buffer, ...]:
    """All parameters and outputs, what foreign instructions give and read, and the scratch buffers that somebody
    uses."""
    compared = tolerances.compares(module)
    found = []
    for name in (*module.parameters, *module.stand_ins):
        each = module[name]
        buffer = module.buffer_of(name)
        found.append(_buffer(buffer, each, Role.INPUT, fill=fills.get(buffer, default_fill(each))))
    for name, buffer in module.computed.items():
        each = module[name]
        # Nobody writes to what has no elements, so there is nothing to compare.
        role = Role.OUTPUT if each.elements else Role.SCRATCH
        found.append(_buffer(buffer, each, role, compare=compared[buffer]))
    scratch = set(used).difference(each.name for each in found)
    for buffer in sorted(scratch, key=module.argument_order.__getitem__):
        found.append(_buffer(buffer, module[module.buffers[buffer]], Role.SCRATCH))
    return tuple(found)


def _buffer(name: str, instruction: HloInstruction, role: Role, **given: Any) -> Buffer:
    dtype, elements = TYPES[instruction.dtype].program, max(1, instruction.elements)
    return Buffer(name=name, dtype=dtype, elements=elements, role=role, **given)


def default_fill(instruction: HloInstruction) -> Fill:
    """What an input holds when the job does not say."""
    kind = TYPES[instruction.dtype].kind
    if kind == "float":
        return Fill(kind="uniform", low=-1.0, high=1.0)
    return Fill(kind="integers", low=0, high=1 if kind == "pred" else 9)


_PLAIN = re.compile(r"k\d+|library_\w+")


def _word(name: str) -> str:
    """A kernel's name: never a word of C's, such as `exp` or `y0`."""
    word = re.sub(r"\W+", "_", name).strip("_")
    return word if _PLAIN.fullmatch(word) else f"k_{word}"


def _unique(name: str, names: set[str]) -> str:
    chosen, number = name, 1
    while chosen in names:
        number += 1
        chosen = f"{name}_{number}"
    names.add(chosen)
    return chosen
