"""A planned kernel as the text of a `__global__` function.

One block program alone stands in the kernel itself. Several each become a device function: those of one phase share the
blocks out among themselves by block number, two phases are separated by a barrier across the grid.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from fusiond_stitching.graph import Module
from fusiond_stitching.nests import Nests, index_type
from fusiond_stitching.plan import BlockProgram, Kernel, Phase
from fusiond_stitching.scope import Function, Scope, Unit, without_unused
from fusiond_stitching.semantics import TYPES

ENTRY = "ENTRY"
"""Stands for the kernel's name, in its own and its device functions' names."""
BUFFERS = ("in_", "boundary_", "t", "operand_", "out_")
"""What the names of buffers begin with, in the order of a kernel's arguments."""
_GRID_BARRIER = "cooperative_groups::this_grid().sync();"
_ARENA = "extern __shared__ __align__(16) unsigned char arena[];"


@dataclass(frozen=True, slots=True)
class Text:
    """`text` has ENTRY for the kernel's name. `buffers`: the kernel's arguments in order, all of them pointers."""

    text: str
    buffers: tuple[str, ...]


def kernel_text(module: Module, kernel: Kernel, unit: Unit, available: Collection[str]) -> Text:
    """A kernel's text; `available`: the instructions whose values are in their buffers when it begins. Raises
    Unsupported for what there is no code for."""
    known = set(available)
    several = sum(1 for _ in kernel.programs) > 1
    whole = index_type(unit.most_elements, kernel.programs)
    functions: list[str] = []
    pointers: dict[str, bool] = {}
    written: list[tuple[Phase, list[tuple[BlockProgram, list[str], dict[str, bool]]]]] = []
    for number, phase in enumerate(kernel.phases):
        bodies = []
        for program in phase.programs:
            used: dict[str, bool] = {}
            lines = _body(module, program, kernel.threads, Function(unit, index_type=whole), known, used)
            for name, writes in used.items():
                pointers[name] = pointers.get(name, False) or writes
            bodies.append((program, lines, used))
        known |= {result.instruction for each in phase.programs for result in each.results if result.stored}
        written.append((phase, bodies))
        if several:
            for place, (program, lines, used) in enumerate(bodies):
                functions.append(
                    _function(module, f"{ENTRY}_{number}_{place}", program, lines, used, pointers, kernel, whole)
                )
    names = sorted(pointers, key=argument_order)
    lines = _kernel(kernel, written, whole) if several else _alone(written[0][1][0], whole)
    head = [f"// {kernel.name}: {_shape(kernel)}"]
    arena = [_ARENA] if kernel.shared_bytes else []
    signature = ", ".join(_parameter(module, name, writes=pointers[name]) for name in names)
    text = [
        *head,
        f'extern "C" __global__ void __launch_bounds__({kernel.threads}) {ENTRY}({signature})',
        "{",
        *(f"    {line}".rstrip() for line in [*arena, *lines]),
        "}",
        "",
    ]
    return Text("\n".join([*functions, *text]), tuple(names))


def headers(text: str, unit: Unit) -> tuple[str, ...]:
    """The headers that a source needs."""
    needed = set(unit.functions.headers)
    needed |= {"cuda_fp16.h"} if re.search(r"\b__half", text) else set()
    needed |= {"cuda_bf16.h"} if re.search(r"\b__(nv_)?bfloat16", text) else set()
    needed |= {"cooperative_groups.h"} if "cooperative_groups::" in text else set()
    return tuple(sorted(needed))


def _body(
    module: Module,
    program: BlockProgram,
    threads: int,
    function: Function,
    available: Collection[str],
    used: dict[str, bool],
) -> list[str]:
    scope = Scope(function)
    Nests(module, program, threads, available, used).write(scope, "block")
    return without_unused(scope.lines)


def _function(
    module: Module,
    name: str,
    program: BlockProgram,
    lines: list[str],
    used: dict[str, bool],
    pointers: dict[str, bool],
    kernel: Kernel,
    whole: str,
) -> str:
    parameters = [f"const {whole} block", *(["unsigned char* arena"] if kernel.shared_bytes else [])]
    parameters += [_parameter(module, each, writes=pointers[each]) for each in sorted(used, key=argument_order)]
    return "\n".join(
        [
            f"// {program.name}: {program.blocks} blocks, root {program.root}, {program.schedule}",
            f"__device__ __forceinline__ void {name}({', '.join(parameters)})",
            "{",
            *(f"    {line}".rstrip() for line in lines),
            "}",
            "",
            "",
        ]
    )


def _alone(body: tuple[BlockProgram, list[str], dict[str, bool]], whole: str) -> list[str]:
    program, lines, _ = body
    block = f"const {whole} block = {'blockIdx.x' if program.blocks > 1 else '0'};"
    return without_unused([block, *lines])


def _kernel(
    kernel: Kernel, written: list[tuple[Phase, list[tuple[BlockProgram, list[str], dict[str, bool]]]]], whole: str
) -> list[str]:
    """The blocks of each phase go to its programs by their numbers."""
    lines: list[str] = []
    for number, (phase, bodies) in enumerate(written):
        if number:
            lines += ["", _GRID_BARRIER, ""]
        lines.append(f"// phase {number}: {phase.blocks} blocks")
        calls: list[str] = []
        first = 0
        for place, (program, _, used) in enumerate(bodies):
            block = f"block - {first}" if first else "block"
            arguments = [block, *(["arena"] if kernel.shared_bytes else []), *sorted(used, key=argument_order)]
            call = f"{ENTRY}_{number}_{place}({', '.join(arguments)});"
            last = place == len(bodies) - 1
            condition = "" if last else f"if (block < {first + program.blocks}) "
            calls.append(f"{'else ' if place else ''}{condition}{call}")
            first += program.blocks
        if phase.blocks <= kernel.grid:
            guard = f"if (blockIdx.x < {phase.blocks}) " if phase.blocks < kernel.grid else ""
            header = f"{guard}{{"
            start = [f"const {whole} block = blockIdx.x;"]
            end: list[str] = []
        else:
            header = f"for ({whole} block = blockIdx.x; block < {phase.blocks}; block += {kernel.grid}) {{"
            start = []
            shared = any(program.shared_bytes for program, _, _ in bodies)
            end = ["__syncthreads();  // before the next round uses the arena again"] if shared else []
        lines += [header, *(f"    {line}" for line in [*start, *calls, *end]), "}"]
    return lines


def _parameter(module: Module, buffer: str, *, writes: bool) -> str:
    kind = TYPES[_dtype(module, buffer)]
    return f"{kind.memory}* {buffer}" if writes else f"const {kind.memory}* __restrict__ {buffer}"


def _dtype(module: Module, buffer: str) -> str:
    """The element type of what a buffer holds."""
    return module[buffer_instruction(module, buffer)].dtype


def buffer_instruction(module: Module, buffer: str) -> str:
    """The instruction whose value a buffer holds: the inverse of `Module.buffer_of`."""
    kind, number = re.fullmatch(rf"({'|'.join(BUFFERS)})(\d+)", buffer).groups()  # type: ignore[union-attr]
    at = int(number)
    if kind == "in_":
        return next(each for each in module.parameters if module[each].attributes["number"] == at)
    if kind in ("boundary_", "operand_"):
        named = module.stand_ins if kind == "boundary_" else module.handed
        return next(name for name, each in named.items() if each == buffer)
    return module.outputs[at] if kind == "out_" else module.instructions[at].name


def argument_order(buffer: str) -> tuple[int, int]:
    """By which a kernel's arguments are sorted."""
    word = buffer.rstrip("0123456789")
    return BUFFERS.index(word), int(buffer[len(word) :])


def _shape(kernel: Kernel) -> str:
    programs = sum(1 for _ in kernel.programs)
    parts = [f"{kernel.grid} blocks of {kernel.threads} threads"]
    if kernel.shared_bytes:
        parts.append(f"{kernel.shared_bytes} bytes of shared memory")
    if programs > 1:
        parts.append(f"{programs} block programs in {len(kernel.phases)} phase{'s' if kernel.cooperative else ''}")
    return ", ".join(parts)
