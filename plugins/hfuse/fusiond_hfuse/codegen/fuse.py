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

Only the last part, the kernel itself, differs from one way of fusing to another:

    warp level, pad      if (thread < 512) { if (block < a's blocks) a } else { if (block < b's blocks) b }
    warp level, stride   ... for (at = block; at < a's blocks; at += launched blocks) a ...
    block level          if (this block is one of a's) { if (thread < 512) a; return; }  b
    vertical             a; b
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusiond.program import Dim3
from fusiond_hfuse.analysis.registers import Cap
from fusiond_hfuse.frontend import groups, overloads, shadows
from fusiond_hfuse.frontend.graph import Argument, Kernel, Parameter, Plan, Side, Slot
from fusiond_hfuse.frontend.includes import GROUPS, HOISTED
from fusiond_hfuse.frontend.kernel import define_values
from fusiond_hfuse.frontend.recheck import HERE
from fusiond_hfuse.frontend.shadows import PASSED, SHADOWS, SHARED

ARENA = "fusiond_arena"
TICKETED = ("ticket", "multiprocessor")
"""Ways to assign blocks that are settled when a block begins to run, by counters in global memory."""
MULTIPROCESSORS = 512
"""Counters of tickets by multiprocessor; two that share one share its tickets, too."""

_PRELUDE = """\
// A barrier over `threads` threads of the block (a multiple of 32), under one of the hardware's sixteen ids.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" : : "n"(id), "n"(threads) : "memory")
#endif
"""

_REDUCE = """\
// The same, and what all its threads say of `predicate`: how many say yes (COUNT), whether all do (AND), or any (OR).
// AND is not `.aligned`: threads of one warp may come to it at different places.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER_REDUCE)
#define FUSIOND_BARRIER_REDUCE(kind, id, threads, predicate) fusiond_reduce_##kind<id, threads>((predicate) != 0)
template <int Id, int Threads> __device__ __forceinline__ int fusiond_reduce_COUNT(int predicate) {
    int all;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p; }"
                 : "=r"(all) : "r"(predicate), "n"(Id), "n"(Threads) : "memory");
    return all;
}
template <int Id, int Threads> __device__ __forceinline__ int fusiond_reduce_AND(int predicate) {
    int all;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.red.and.pred q, %2, %3, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"(predicate), "n"(Id), "n"(Threads) : "memory");
    return all;
}
template <int Id, int Threads> __device__ __forceinline__ int fusiond_reduce_OR(int predicate) {
    int all;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.or.pred q, %2, %3, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"(predicate), "n"(Id), "n"(Threads) : "memory");
    return all;
}
#endif
"""

_UNUSED = """\
// What only other kernels of a file call is unused here: no warning.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif
"""


def entry_name(plan: Plan) -> str:
    """What the fused kernel is called: both names, in slot order."""
    return "fused_" + "_".join(re.sub(r"\W", "_", side.slot.kernel.name) for side in plan.by_letter)


def write(plan: Plan, version: int, cap: Cap) -> str:
    """The text of the fused kernel, the same for the same plan and cap. Where no number caps its registers, launch
    bounds do: of its block, and of how many blocks are to be resident."""
    by_letter = list(plan.by_letter)
    parts = ["\n".join(_heading(plan, version)) + "\n"]
    headers = [name for side in by_letter for name in side.slot.kernel.unit.system if name in HOISTED]
    if headers:
        parts.append("".join(f"#include <{name}>\n" for name in dict.fromkeys(headers)))
    hands_on = any(PASSED in edit.text for side in plan.sides for edit in side.slot.kernel.parsed.edits)
    counted = any(side.slot.kernel.parsed.counted for side in plan.sides)
    parts.append(_PRELUDE)
    if counted or any(side.slot.kernel.parsed.drains for side in plan.sides):
        parts.append(_REDUCE)
    shadowing, handing_on = shadows.macros(counted).split(f"#define {PASSED}")
    parts.append(
        "// What the kernels see instead of the built-in variables and the block's barrier.\n"
        + shadowing
        + (f"#define {PASSED}{handing_on}" if hands_on else "")
    )
    parts += [_UNUSED, *(_namespace(side, counted) for side in by_letter)]
    parts.append(f"#undef {SHADOWS}\n" + (f"#undef {PASSED}\n" if hands_on else ""))
    parts.append(_kernel(plan, cap))
    return "\n".join(parts)


def lowest_barrier(text: str) -> int:
    """The lowest id that barriers may have in a fused source: the hardware's own where blocks are one side's alone."""
    return 0 if "::__syncthreads" in text else 1


def alignment(plan: Plan) -> int:
    """Of the arena and of each side's part in it, in bytes."""
    return max(side.slot.kernel.parsed.alignment for side in plan.sides)


def offset_letters(plan: Plan) -> tuple[str, ...]:
    """The slots whose part of the arena begins behind another one's: their places are arguments. At block level none,
    since no two sides are in one block."""
    if plan.level == "block":
        return ()
    return tuple(side.slot.letter for side in plan.by_letter if side.slot.kernel.parsed.uses_dynamic_shared)[1:]


def ratio_letters(plan: Plan) -> tuple[str, ...]:
    """The sides whose share of the blocks, as a fraction of 2^32 of what is left, is an argument."""
    return () if plan.assign in ("", "sequential") else tuple(side.slot.letter for side in plan.sides[:-1])


def slice_letters(plan: Plan) -> tuple[str, ...]:
    """The slots of which a fused block has several blocks, each with a slice of the arena: its bytes are arguments."""
    return tuple(
        side.slot.letter for side in plan.by_letter if side.virtual > 1 and side.slot.kernel.parsed.uses_dynamic_shared
    )


def tickets(plan: Plan) -> int:
    """How many counters the launch is handed: one, or one for each side and each multiprocessor."""
    return 1 if plan.assign == "ticket" else len(plan.sides) + MULTIPROCESSORS


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


def _heading(plan: Plan, version: int) -> Iterator[str]:
    names = listed([side.slot.kernel.name for side in plan.by_letter])
    yield f"// {names}, fused {plan.kind}ly by fusiond (hfuse {version})."
    yield "//"
    width = max(len(side.slot.kernel.instance) for side in plan.sides)
    for side in plan.sides:
        shape = " x ".join(str(length) for length in side.shape)
        threads = f"threads {side.first}..{side.first + side.threads * side.virtual - 1}"
        threads += f", {side.virtual} blocks side by side" if side.virtual > 1 else ""
        yield f"//   {side.slot.letter}  {side.slot.kernel.instance:{width}}  {threads}, as a block of {shape}"
    yield "//"
    yield from _ABOUT[plan.kind if plan.kind == "vertical" else plan.assign or plan.map]
    yield "// The kernels stand below word for word; what they take for built-in are parameters of the same names."


# --- one slot -------------------------------------------------------------------------------------------


def _namespace(side: Side, counted: bool) -> str:
    kernel = side.slot.kernel
    defines = define_values(kernel.defines, side.slot.sizes, side.shape, where=kernel.lines.get("defines", kernel.path))
    macros = list(dict.fromkeys([*(name for name, _ in defines), *kernel.unit.macros]))
    lines = [
        f"// --- {side.slot.letter}: {kernel.name} " + "-" * (92 - len(kernel.name)),
        "",
        f"namespace fusiond_{side.slot.letter} {{",
        "",
        "// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.",
        shadows.poison(counted),
        *_barriers(side, counted),
        "",
    ]
    if kernel.parsed.overloads:
        lines += ["// The kernel's own versions of these stand beside CUDA's.", overloads.kept(kernel.parsed.overloads)]
    if any(name in GROUPS for name in kernel.unit.system):
        lines += ["// Cooperative groups, of this side's threads.", groups.text(kernel.unit.system)]
    if macros:
        lines += [*(f'#pragma push_macro("{name}")' for name in macros), ""]
    if defines:
        lines += [*(f"#define {name} {value}".rstrip() for name, value in defines), ""]
    text = edited(kernel).replace(HERE, f"fusiond_{side.slot.letter}")
    lines += [text.strip("\n"), "", *_side(side, counted), ""]
    if macros:
        lines += [*(f'#pragma pop_macro("{name}")' for name in macros), ""]
    lines += [f"}}  // namespace fusiond_{side.slot.letter}", ""]
    return "\n".join(lines)


def _barriers(side: Side, counted: bool) -> Iterator[str]:
    """What a side's body waits at. Where threads may leave before the others, those vote on at it until all have left
    (see `_side`), and the barrier is one that can be voted at. Where the block is this side's alone, the hardware's own
    barrier does not wait for those that have left."""
    kinds = [("", "void", ""), *((f"_{kind}", "int", "int predicate") for kind in ("count", "and", "or") if counted)]
    for name, result, parameter in kinds:
        yield f"struct fusiond_barrier{name} {{"
        if side.virtual > 1:
            yield "    unsigned int fusiond_number;  // of the virtual block"
        yield f"    __device__ __forceinline__ {result} operator()({parameter}) const {{"
        yield from (f"        {line}" for line in _waiting(side, name.removeprefix("_").upper()))
        yield "    }"
        yield "};"


def _waiting(side: Side, kind: str) -> Iterator[str]:
    """The body of one of a side's barriers; `kind` is empty, or what is counted."""
    returned = "return " if kind else ""
    if side.barrier == 0:
        yield f"{returned}::__syncthreads{f'_{kind.lower()}' if kind else ''}({'predicate' if kind else ''});"
        return
    calls = []
    for number in range(side.virtual):
        place = f"{side.barrier + number}, {side.threads}"
        if kind:
            calls.append(f"return FUSIOND_BARRIER_REDUCE({kind}, {place}, predicate);")
        elif side.slot.kernel.parsed.drains:
            calls.append(f"FUSIOND_BARRIER_REDUCE(AND, {place}, false);")
        else:
            calls.append(f"FUSIOND_BARRIER({place});")
    if side.virtual == 1:
        yield from calls
        return
    yield "switch (fusiond_number) {"
    for number, call in enumerate(calls):
        label = "default:" if number == side.virtual - 1 else f"case {number}:"
        yield f"    {label} {call}{'' if kind else ' break;'}"
    yield "}"


def edited(kernel: Kernel) -> str:
    """The kernel's text, which includes nothing, with the parser's edits done."""
    data = kernel.unit.text.encode()
    pieces = []
    position = 0
    for edit in kernel.parsed.edits:
        if edit.start < position:  # inside something that was removed whole
            continue
        pieces += [data[position : edit.start], edit.text.encode()]
        position = edit.end
    text = b"".join([*pieces, data[position:]]).decode()
    return "\n".join(line.rstrip(" \t") for line in text.split("\n"))


def _side(side: Side, counted: bool) -> Iterator[str]:
    """The function that runs one block of a side, given its thread and block counted from 0.

    It stands among the user's macros, hence the names: no `block`, no `n`.
    """
    kernel = side.slot.kernel
    letter = side.slot.letter
    grid = [f"fusiond_grid_{axis}" for axis in grid_axes(side.slot)]
    number = ["fusiond_virtual"] if side.virtual > 1 else []
    parameters = [
        "const unsigned int fusiond_thread",
        "const unsigned int fusiond_block",
        *(f"const unsigned int {each}" for each in number),
        *(f"const unsigned int {name}" for name in grid),
        f"void* const {SHARED}",
        *(_declaration(argument, parameter, letter) for argument, parameter in _signature(side.slot)),
    ]
    passed = [
        _index("fusiond_thread", side.shape),
        _block_index("fusiond_block", grid),
        f"dim3({', '.join(str(length) for length in side.shape)})",
        f"dim3({', '.join(grid)})",
        *(f"fusiond_barrier{name}{{{''.join(number)}}}" for name in ("", *(_COUNTING if counted else ()))),
        SHARED,
        *(_passed(parameter, f"{letter}_{argument.name}") for argument, parameter in _signature(side.slot)),
    ]
    for argument, parameter in _signature(side.slot):
        if parameter.bytes or parameter.records:
            yield f"using fusiond_type_{argument.name} = {_spelled(parameter)};"
    yield "__device__ __forceinline__ void fusiond_side("
    yield "    " + ",\n    ".join(parameters) + ")"
    yield "{"
    yield f"    {kernel.instance}("
    yield "        " + ",\n        ".join(passed) + ");"
    if kernel.parsed.drains and side.barrier != 0:
        yield "    // Whoever has left is still waited for at the barriers of the others: it votes until all have left."
        yield from _drain(side)
    yield "}"


def _drain(side: Side) -> Iterator[str]:
    for number in range(side.virtual):
        only = f"if (fusiond_virtual == {number}) " if side.virtual > 1 else ""
        yield f"    {only}while (!FUSIOND_BARRIER_REDUCE(AND, {side.barrier + number}, {side.threads}, true)) {{"
        yield "    }"


_COUNTING = tuple(name.removeprefix("__syncthreads") for name in shadows.COUNTED)


def _index(thread: str, shape: Dim3) -> str:
    """threadIdx from the thread's number within its side: x varies fastest."""
    x, y, z = shape
    if y == z == 1:
        return f"make_uint3({thread}, 0, 0)"
    if z == 1:
        return f"make_uint3({thread} % {x}, {thread} / {x}, 0)"
    return f"make_uint3({thread} % {x}, {thread} / {x} % {y}, {thread} / {x * y})"


def _block_index(block: str, grid: list[str]) -> str:
    """blockIdx from the block's number, over as many axes as the grid has."""
    if len(grid) == 1:
        return f"make_uint3({block}, 0, 0)"
    if len(grid) == 2:
        return f"make_uint3({block} % {grid[0]}, {block} / {grid[0]}, 0)"
    return f"make_uint3({block} % {grid[0]}, {block} / {grid[0]} % {grid[1]}, {block} / {grid[0]} / {grid[1]})"


def grid_axes(slot: Slot) -> str:
    """The axes of a slot's grid that are arguments of the fused kernel."""
    return "xyz"[: len(slot.kernel.grid)]


def _signature(slot: Slot) -> list[tuple[Argument, Parameter]]:
    return list(zip(slot.kernel.arguments, slot.kernel.parsed.parameters, strict=True))


def _spelled(parameter: Parameter) -> str:
    """A parameter's type inside its namespace."""
    return parameter.target.replace("(anonymous namespace)::", "")


def _declaration(argument: Argument, parameter: Parameter, letter: str) -> str:
    name = f"{letter}_{argument.name}"
    kind = parameter.target
    if parameter.bytes or parameter.records:
        kind = f"fusiond_{letter}::fusiond_type_{argument.name}"
    elif parameter.enumeration:
        kind = "int"
    if not parameter.pointer:
        return f"const {kind} {name}"
    const = ("const " if parameter.constant else "") + ("volatile " if parameter.volatile else "")
    restrict = "__restrict__ " if parameter.restrict else ""
    return f"{const}{kind}* {restrict}const {name}" if restrict == "" else f"{const}{kind}* {restrict}{name}"


def _passed(parameter: Parameter, name: str) -> str:
    return f"static_cast<{_spelled(parameter)}>({name})" if parameter.enumeration else name


# --- the kernel -----------------------------------------------------------------------------------------


def blocks_of(side: Side) -> str:
    """How many blocks a side has, in the words of the fused kernel."""
    return " * ".join(f"fusiond_{side.slot.letter}_grid_{axis}" for axis in grid_axes(side.slot))


def units_of(side: Side) -> str:
    """How many fused blocks those are."""
    blocks = blocks_of(side)
    return blocks if side.virtual == 1 else f"({blocks} + {side.virtual - 1}) / {side.virtual}"


def parameters(plan: Plan) -> list[str]:
    """The declarations of the fused kernel's parameters: the kernels' own, slot by slot, and what is added to them."""
    found = [
        _declaration(argument, parameter, side.slot.letter)
        for side in plan.by_letter
        for argument, parameter in _signature(side.slot)
    ]
    found += [
        f"const unsigned int fusiond_{side.slot.letter}_grid_{axis}"
        for side in plan.by_letter
        for axis in grid_axes(side.slot)
    ]
    found += [f"const unsigned int fusiond_{letter}_shared" for letter in offset_letters(plan)]
    found += [f"const unsigned int fusiond_{letter}_ratio" for letter in ratio_letters(plan)]
    found += [f"const unsigned int fusiond_{letter}_slice" for letter in slice_letters(plan)]
    if plan.map == "stride":
        found.append("const unsigned int fusiond_blocks")
    if plan.assign in TICKETED:
        found.append("unsigned int* const fusiond_tickets")
    return found


def _kernel(plan: Plan, cap: Cap) -> str:
    lines = []
    if any(side.slot.kernel.parsed.uses_dynamic_shared for side in plan.sides):
        both = "both" if len(plan.sides) == 2 else "all"
        lines += [
            f"// One arena for {both}, each part of it as aligned as any of them asks.",
            f"extern __shared__ __align__({alignment(plan)}) unsigned char {ARENA}[];",
            "",
        ]
    bounds = f"__launch_bounds__({plan.threads}{f', {cap.blocks}' if cap.blocks else ''}) "
    head = f'extern "C" __global__ void {bounds if cap.registers is None else ""}{entry_name(plan)}('
    lines += [head, "    " + ",\n    ".join(parameters(plan)) + ")", "{"]
    lines += ["    const unsigned int thread = threadIdx.x;"]
    if plan.level == "block":
        return "\n".join([*lines, *_by_block(plan), "}", ""])
    lines += ["    const unsigned int block = blockIdx.x;"]
    if plan.kind == "horizontal":
        for number, side in enumerate(plan.sides):
            head = "    " if number == 0 else "    } else "
            last = number == len(plan.sides) - 1
            lines.append("    } else {" if last else f"{head}if (thread < {side.first + side.threads}) {{")
            thread = "thread" if number == 0 else f"thread - {side.first}"
            lines += _trade(plan, side)
            lines += (_loop if plan.map == "stride" else _call)(plan, side, thread, "        ")
        lines.append("    }")
    else:
        for side in plan.sides:
            lines += _call(plan, side, "thread", "    ")
    return "\n".join([*lines, "}", ""])


def _trade(plan: Plan, side: Side) -> list[str]:
    """A side's warpgroups give registers to the block, or wait for such."""
    if not side.registers:
        return []
    way = "dec" if side.registers == min(each.registers for each in plan.sides) else "inc"
    return [f'        asm volatile("setmaxnreg.{way}.sync.aligned.u32 {side.registers};");']


def _call(plan: Plan, side: Side, thread: str, indent: str) -> list[str]:
    """One side's work, if it has a block of this number: all threads of the side agree on that."""
    return [f"{indent}if (block < {blocks_of(side)}) {{", *_work(plan, side, thread, "block", indent), f"{indent}}}"]


def _loop(plan: Plan, side: Side, thread: str, indent: str) -> list[str]:
    """One side's work on every one of its blocks that fall to this one.

    A block may write to shared memory that a slower thread of the block before still reads, hence the barrier; all
    threads of the side come to it equally often, those that left the body early too.
    """
    again = []
    if side.slot.kernel.parsed.uses_dynamic_shared or side.slot.kernel.parsed.static_shared_bytes != 0:
        again = [f"{indent}    if (at != block) FUSIOND_BARRIER({side.barrier}, {side.threads});"]
    return [
        f"{indent}for (unsigned int at = block; at < {blocks_of(side)}; at += fusiond_blocks) {{",
        *again,
        *_work(plan, side, thread, "at", indent),
        f"{indent}}}",
    ]


def _by_block(plan: Plan) -> list[str]:
    """Which side this block belongs to, and that side's work. Threads beyond a side's own leave at once."""
    if plan.assign == "multiprocessor":
        return _by_multiprocessor(plan)
    lines = []
    if plan.assign == "ticket":
        lines += [
            "    __shared__ unsigned int ticket;",
            "    if (thread == 0) ticket = atomicAdd(fusiond_tickets, 1u);",
            "    ::__syncthreads();",
        ]
    lines.append(f"    unsigned int block = {'ticket' if plan.assign == 'ticket' else 'blockIdx.x'};")
    for side in plan.sides[:-1]:
        letter, blocks = side.slot.letter, units_of(side)
        if plan.assign == "sequential":
            lines += [
                f"    if (block < {blocks}) {{",
                *_if_own(plan, side, "block", "        "),
                "        return;",
                "    }",
                f"    block -= {blocks};",
            ]
        else:
            before = f"before_{letter}"
            lines += [
                f"    const unsigned int {before} = __umulhi(block, fusiond_{letter}_ratio);",
                f"    if (__umulhi(block + 1, fusiond_{letter}_ratio) > {before}) {{",
                *_if_own(plan, side, before, "        "),
                "        return;",
                "    }",
                f"    block -= {before};",
            ]
    return lines + _if_own(plan, plan.sides[-1], "block", "    ")


def _by_multiprocessor(plan: Plan) -> list[str]:
    """A ticket of the multiprocessor says which side it would have next; the side's own counter, which of its blocks.
    Where that side has none left, the next one that has (POD-Attention, section 4)."""
    count = len(plan.sides)
    own = " : ".join([f"side == {at} ? {units_of(side)}" for at, side in enumerate(plan.sides[:-1])])
    lines = [
        "    __shared__ unsigned int whose, which;",
        "    if (thread == 0) {",
        "        unsigned int multiprocessor;",
        '        asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));',
        f"        multiprocessor = {count} + multiprocessor % {MULTIPROCESSORS};",
        "        unsigned int ticket = atomicAdd(fusiond_tickets + multiprocessor, 1u);",
        f"        unsigned int side = {count - 1};",
    ]
    for at, side in enumerate(plan.sides[:-1]):
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
        f"        while (block >= ({own} : {units_of(plan.sides[-1])})) {{",
        f"            side = side + 1 == {count} ? 0 : side + 1;",
        "            block = atomicAdd(fusiond_tickets + side, 1u);",
        "        }",
        "        whose = side;",
        "        which = block;",
        "    }",
        "    ::__syncthreads();",
        "    const unsigned int block = which;",
    ]
    for at, side in enumerate(plan.sides[:-1]):
        lines += [
            f"    if (whose == {at}) {{",
            *_if_own(plan, side, "block", "        "),
            "        return;",
            "    }",
        ]
    return lines + _if_own(plan, plan.sides[-1], "block", "    ")


def _if_own(plan: Plan, side: Side, block: str, indent: str) -> list[str]:
    """A side's work in a block that is its own, by as many threads as it has there."""
    lanes = side.threads * side.virtual
    if side.virtual == 1:
        if lanes == plan.threads:
            return _work(plan, side, "thread", block, indent.removeprefix("    "))
        return [f"{indent}if (thread < {lanes}) {{", *_work(plan, side, "thread", block, indent), f"{indent}}}"]
    letter = side.slot.letter
    inside = f"thread < {lanes} && " if lanes < plan.threads else ""
    return [
        f"{indent}const unsigned int virtual_{letter} = thread / {side.threads};",
        f"{indent}const unsigned int block_{letter} = {block} * {side.virtual} + virtual_{letter};",
        f"{indent}if ({inside}block_{letter} < {blocks_of(side)}) {{",
        *_work(plan, side, f"thread % {side.threads}", f"block_{letter}", indent),
        f"{indent}}}",
    ]


def _work(plan: Plan, side: Side, thread: str, block: str, indent: str) -> list[str]:
    """The call of one side's function, one step further in than `indent`."""
    letter = side.slot.letter
    grid = [f"fusiond_{letter}_grid_{axis}" for axis in grid_axes(side.slot)]
    passed = [
        thread,
        block,
        *([f"virtual_{letter}"] if side.virtual > 1 else []),
        *grid,
        _place(plan, side),
        *(f"{letter}_{argument.name}" for argument in side.slot.kernel.arguments),
    ]
    return [
        f"{indent}    fusiond_{letter}::fusiond_side(",
        f"{indent}        " + f",\n{indent}        ".join(passed) + ");",
    ]


def _place(plan: Plan, side: Side) -> str:
    """Where a side's dynamic shared memory begins."""
    if not side.slot.kernel.parsed.uses_dynamic_shared:
        return "nullptr"
    if side.slot.letter in slice_letters(plan):
        return f"{ARENA} + virtual_{side.slot.letter} * fusiond_{side.slot.letter}_slice"
    if side.slot.letter in offset_letters(plan):
        return f"{ARENA} + fusiond_{side.slot.letter}_shared"
    return ARENA
