"""Writes the fused kernel: Generate() of Li et al., CGO 2022, section III-A and Fig. 5, by shadow parameters.

    namespace fusiond_a {                          poison for the built-in names, then the user's text, word for word
        void histogram(SHADOWS, ...) { ... }       its parameters are called threadIdx, blockDim, __syncthreads ...
        void fusiond_side(thread, block, ...)      calls it with a side's own thread, block and partial barrier
    }
    __global__ void fused_hist_maxpool(...)        if (thread < 512) a's side else b's side

What the paper does by renaming variables, inlining calls, lifting declarations and jumping round each half falls
away: two namespaces keep all names apart, helpers and static shared arrays included (each slot has its own copy of
everything), and an early `return` leaves a side only. The text depends on block shapes and order, not on sizes: grids
and the place in the arena are arguments.
"""

import re
from collections.abc import Iterator

from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.analysis.registers import RegisterCap
from fusiond_hfuse.codegen import sides
from fusiond_hfuse.codegen.hidden_arguments import MULTIPROCESSORS, TICKETED, alignment
from fusiond_hfuse.codegen.sides import ARENA, blocks_of, declaration, hidden_words, signature, trade, units_of, work
from fusiond_hfuse.frontend import shadows
from fusiond_hfuse.frontend.includes import HOISTED
from fusiond_hfuse.frontend.shadows import PASSED, SHADOWS

VERSION = 1  #: Of the strategy
_PRELUDE = """\
// A barrier over `threads` threads of the block (a multiple of 32), under one of the hardware's sixteen ids.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" : : "n"(id), "n"(threads) : "memory")
#endif
"""

_UNUSED = """\
// What only other kernels of a file call is unused here: no warning.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif
"""


def entry_name(schedule: FusionSchedule) -> str:
    """What the fused kernel is called: both names, in slot order."""
    return "fused_" + "_".join(re.sub(r"\W", "_", side.slot.kernel.name) for side in schedule.by_letter)


def write(schedule: FusionSchedule, cap: RegisterCap) -> str:
    """The text of the fused kernel, the same for the same schedule and cap. Where no number caps its registers, launch
    bounds do: of its block, and of how many blocks are to be resident."""
    by_letter = list(schedule.by_letter)
    parts = ["\n".join(heading(schedule)) + "\n"]
    headers = [name for side in by_letter for name in side.slot.kernel.unit.system if name in HOISTED]
    if headers:
        parts.append("".join(f"#include <{name}>\n" for name in dict.fromkeys(headers)))
    hands_on = any(PASSED in edit.text for side in schedule.sides for edit in side.slot.kernel.parsed.edits)
    about = "// What the kernels see instead of the built-in variables and the block's barrier.\n"
    macros = shadows.MACROS if hands_on else shadows.MACROS.partition(f"#define {PASSED}")[0]
    parts += [_PRELUDE, about + macros, _UNUSED, *(sides.namespace(side) for side in by_letter)]
    parts.append(f"#undef {SHADOWS}\n" + (f"#undef {PASSED}\n" if hands_on else ""))
    parts.append(_kernel(schedule, cap))
    return "\n".join(parts)


# --- the heading ----------------------------------------------------------------------------------------

_ABOUT = {
    "pad": ("// Block i runs block i of both, each on threads of its own; a side with fewer sits the others out.",),
    "stride": ("// Each side has threads of its own, and loops over its blocks with a step of the launched ones.",),
    "vertical": ("// Every thread of block i does its part of block i of the first, and then of the second.",),
    "sequential": ("// Each block is of one side: the first one's blocks come first, then those of the next.",),
    "interleaved": ("// Each block is of one side: any run of blocks holds of each side in proportion.",),
    "multiprocessor": (
        "// Each block is of one side: whose is settled when it begins to run, by a ticket of its multiprocessor, so",
        "// that each multiprocessor has of each side in proportion, while there are any.",
    ),
    "ticket": (
        "// Each block is of one side: whose is settled when it begins to run, by a ticket, and the tickets of any run",
        "// hold of each side in proportion.",
    ),
}


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Names as a sentence has them: x and y; x, y and z."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def heading(schedule: FusionSchedule) -> Iterator[str]:
    names = listed([side.slot.kernel.name for side in schedule.by_letter])
    yield f"// {names}, fused {schedule.kind}ly by fusiond (hfuse {VERSION})."
    yield "//"
    width = max(len(side.slot.kernel.instance) for side in schedule.sides)
    for side in schedule.sides:
        shape = " x ".join(str(length) for length in side.shape)
        threads = f"threads {side.first}..{side.first + side.threads * side.virtual - 1}"
        threads += f", {side.virtual} blocks side by side" if side.virtual > 1 else ""
        yield f"//   {side.slot.letter}  {side.slot.kernel.instance:{width}}  {threads}, as a block of {shape}"
    yield "//"
    yield from _ABOUT[schedule.kind if schedule.kind == "vertical" else schedule.assign or schedule.map]
    if schedule.sides[0].slot.kernel.ptx is None:
        yield "// The kernels stand below word for word; what they take for built-in are parameters of the same names."
    else:
        yield "// The kernels stand below as they were compiled, but for what they read of the block, its barriers,"
        yield "// shared memory that lies in the arena, names of the module, and where a thread ends."


# --- the kernel -----------------------------------------------------------------------------------------


def parameters(schedule: FusionSchedule) -> list[str]:
    """The declarations of the fused kernel's parameters: the kernels' own, slot by slot, and what is added to them."""
    found = [
        declaration(argument, parameter, side.slot.letter)
        for side in schedule.by_letter
        for argument, parameter in signature(side.slot)
    ]
    found += [f"const unsigned int fusiond_{name}" for name in hidden_words(schedule)]
    if schedule.assign in TICKETED:
        found.append("unsigned int* const fusiond_tickets")
    return found


def _kernel(schedule: FusionSchedule, cap: RegisterCap) -> str:
    lines = []
    if any(side.slot.kernel.parsed.uses_dynamic_shared for side in schedule.sides):
        both = "both" if len(schedule.sides) == 2 else "all"
        lines += [
            f"// One arena for {both}, each part of it as aligned as any of them asks.",
            f"extern __shared__ __align__({alignment(schedule)}) unsigned char {ARENA}[];",
            "",
        ]
    bounds = f"__launch_bounds__({schedule.threads}{f', {cap.blocks}' if cap.blocks else ''}) "
    head = f'extern "C" __global__ void {bounds if cap.registers is None else ""}{entry_name(schedule)}('
    lines += [head, "    " + ",\n    ".join(parameters(schedule)) + ")", "{"]
    lines += ["    const unsigned int thread = threadIdx.x;"]
    if schedule.level == "block":
        return "\n".join([*lines, *_by_block(schedule), "}", ""])
    lines += ["    const unsigned int block = blockIdx.x;"]
    if schedule.kind == "horizontal":
        for number, side in enumerate(schedule.sides):
            head = "    " if number == 0 else "    } else "
            last = number == len(schedule.sides) - 1
            lines.append("    } else {" if last else f"{head}if (thread < {side.first + side.threads}) {{")
            thread = "thread" if number == 0 else f"thread - {side.first}"
            lines += [f'        asm volatile("{each}");' for each in trade(schedule, side)]
            lines += (_loop if schedule.map == "stride" else _call)(schedule, side, thread, "        ")
        lines.append("    }")
    else:
        for side in schedule.sides:
            lines += _call(schedule, side, "thread", "    ")
    return "\n".join([*lines, "}", ""])


def _call(schedule: FusionSchedule, side: FusedSide, thread: str, indent: str) -> list[str]:
    """One side's work, if it has a block of this number: all threads of the side agree on that."""
    return [f"{indent}if (block < {blocks_of(side)}) {{", *work(schedule, side, thread, "block", indent), f"{indent}}}"]


def _loop(schedule: FusionSchedule, side: FusedSide, thread: str, indent: str) -> list[str]:
    """One side's work on every one of its blocks that fall to this one.

    A block may write to shared memory that a slower thread of the block before still reads, hence the barrier; all
    threads of the side come to it equally often, those that left the body early too."""
    lines = [f"{indent}for (unsigned int at = block; at < {blocks_of(side)}; at += fusiond_blocks) {{"]
    if side.slot.kernel.parsed.uses_dynamic_shared or side.slot.kernel.parsed.static_shared_bytes != 0:
        lines.append(f"{indent}    if (at != block) FUSIOND_BARRIER({side.barrier}, {side.threads});")
    return [*lines, *work(schedule, side, thread, "at", indent), f"{indent}}}"]


# --- at block level -------------------------------------------------------------------------------------


def _by_block(schedule: FusionSchedule) -> list[str]:
    """Which side this block belongs to, and that side's work. Threads beyond a side's own leave at once."""
    if schedule.assign == "multiprocessor":
        return _by_multiprocessor(schedule)
    lines = []
    if schedule.assign == "ticket":
        lines += [
            "    __shared__ unsigned int ticket;",
            "    if (thread == 0) ticket = atomicAdd(fusiond_tickets, 1u);",
            "    ::__syncthreads();",
        ]
    lines.append(f"    unsigned int block = {'ticket' if schedule.assign == 'ticket' else 'blockIdx.x'};")
    for side in schedule.sides[:-1]:
        letter, blocks = side.slot.letter, units_of(side)
        if schedule.assign == "sequential":
            lines += [*_where(f"block < {blocks}", schedule, side, "block"), f"    block -= {blocks};"]
        else:
            before = f"before_{letter}"
            lines += [
                f"    const unsigned int {before} = __umulhi(block, fusiond_{letter}_ratio);",
                *_where(f"__umulhi(block + 1, fusiond_{letter}_ratio) > {before}", schedule, side, before),
                f"    block -= {before};",
            ]
    return lines + _if_own(schedule, schedule.sides[-1], "block", "    ")


def _by_multiprocessor(schedule: FusionSchedule) -> list[str]:
    """A ticket of the multiprocessor says which side it would have next; the side's own counter, which of its blocks.
    Where that side has none left, the next one that has (POD-Attention, section 4)."""
    count = len(schedule.sides)
    own = " : ".join([f"side == {at} ? {units_of(side)}" for at, side in enumerate(schedule.sides[:-1])])
    lines = [
        "    __shared__ unsigned int whose, which;",
        "    if (thread == 0) {",
        "        unsigned int multiprocessor;",
        '        asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));',
        f"        multiprocessor = {count} + multiprocessor % {MULTIPROCESSORS};",
        "        unsigned int ticket = atomicAdd(fusiond_tickets + multiprocessor, 1u);",
        f"        unsigned int side = {count - 1};",
    ]
    for at, side in enumerate(schedule.sides[:-1]):
        ratio = f"fusiond_{side.slot.letter}_ratio"
        lines += [
            f"        if (side == {count - 1}) {{" if at else "        {",
            f"            const unsigned int before = __umulhi(ticket, {ratio});",
            f"            if (__umulhi(ticket + 1, {ratio}) > before) side = {at};",
            "            ticket -= before;",
            "        }",
        ]
    lines += [
        "        unsigned int block = atomicAdd(fusiond_tickets + side, 1u);",
        f"        while (block >= ({own} : {units_of(schedule.sides[-1])})) {{",
        f"            side = side + 1 == {count} ? 0 : side + 1;",
        "            block = atomicAdd(fusiond_tickets + side, 1u);",
        "        }",
        "        whose = side;",
        "        which = block;",
        "    }",
        "    ::__syncthreads();",
        "    const unsigned int block = which;",
    ]
    for at, side in enumerate(schedule.sides[:-1]):
        lines += _where(f"whose == {at}", schedule, side, "block")
    return lines + _if_own(schedule, schedule.sides[-1], "block", "    ")


def _where(condition: str, schedule: FusionSchedule, side: FusedSide, block: str) -> list[str]:
    """A side's work in blocks of which a condition holds, and nothing else in them."""
    return [f"    if ({condition}) {{", *_if_own(schedule, side, block, "        "), "        return;", "    }"]


def _if_own(schedule: FusionSchedule, side: FusedSide, block: str, indent: str) -> list[str]:
    """A side's work in a block that is its own, by as many threads as it has there."""
    lanes = side.threads * side.virtual
    if side.virtual == 1:
        if lanes == schedule.threads:
            return work(schedule, side, "thread", block, indent.removeprefix("    "))
        return [f"{indent}if (thread < {lanes}) {{", *work(schedule, side, "thread", block, indent), f"{indent}}}"]
    letter = side.slot.letter
    inside = f"thread < {lanes} && " if lanes < schedule.threads else ""
    return [
        f"{indent}const unsigned int virtual_{letter} = thread / {side.threads};",
        f"{indent}const unsigned int block_{letter} = {block} * {side.virtual} + virtual_{letter};",
        f"{indent}if ({inside}block_{letter} < {blocks_of(side)}) {{",
        *work(schedule, side, f"thread % {side.threads}", f"block_{letter}", indent),
        f"{indent}}}",
    ]
