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

from __future__ import annotations

import re
from collections.abc import Iterator

from fusiond.program import DTYPES, Dim3
from fusiond_hfuse.graph import Argument, Kernel, Parameter, Plan, Side, Slot
from fusiond_hfuse.includes import HOISTED, without_comments
from fusiond_hfuse.kernel import define_values
from fusiond_hfuse.shadows import PASSED, SHADOWED, SHADOWS, SHARED

ARENA = "fusiond_arena"
ARENA_ALIGNMENT = 16

_PRELUDE = f"""\
// A barrier over `threads` threads of the block (a multiple of 32), under one of the hardware's sixteen ids.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" : : "n"(id), "n"(threads) : "memory")
#endif

// What the two kernels see instead of the built-in variables and the block's barrier.
#define {SHADOWS} \\
    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \\
    const fusiond_barrier __syncthreads, void* const {SHARED}
"""

_HAND_ON = f"""\
#define {PASSED} {", ".join(SHADOWED)}, {SHARED}
"""

_UNUSED = """\
// What only the other kernels of a file called stands unused here.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif
"""

_POISON = """\
// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;
"""

_CAST = """\
// `long` and `long long` are two types of one size: a pointer that becomes what the kernel asks for.
struct fusiond_pointer {
    const void* address;
    template <class T> __device__ __forceinline__ operator T*() const {
        return static_cast<T*>(const_cast<void*>(address));
    }
};
"""


def entry_name(plan: Plan) -> str:
    """What the fused kernel is called: both names, in slot order."""
    names = sorted(plan.sides, key=lambda side: side.slot.letter)
    return "fused_" + "_".join(re.sub(r"\W", "_", side.slot.kernel.name) for side in names)


def write(plan: Plan, version: int) -> str:
    """The text of the fused kernel, the same for the same plan."""
    by_letter = sorted(plan.sides, key=lambda side: side.slot.letter)
    parts = ["\n".join(_heading(plan, version)) + "\n"]
    headers = [name for side in by_letter for name in side.slot.kernel.unit.system if name in HOISTED]
    if headers:
        parts.append("".join(f"#include <{name}>\n" for name in dict.fromkeys(headers)))
    hands_on = any(PASSED in edit.text for side in plan.sides for edit in side.slot.kernel.parsed.edits)
    parts.append(_PRELUDE + _HAND_ON if hands_on else _PRELUDE)
    if any(re.search(r"\bstatic\b", without_comments(side.slot.kernel.unit.text)) for side in plan.sides):
        parts.append(_UNUSED)
    if any(_needs_cast(argument, parameter) for side in plan.sides for argument, parameter in _signature(side.slot)):
        parts.append(_CAST)
    parts += [_namespace(side) for side in by_letter]
    parts.append(f"#undef {SHADOWS}\n" + (f"#undef {PASSED}\n" if hands_on else ""))
    parts.append(_kernel(plan, by_letter))
    return "\n".join(parts)


def uses_offset(plan: Plan) -> bool:
    """Whether both sides have a part of the arena, so that slot b's begins behind slot a's."""
    return all(side.slot.kernel.parsed.uses_dynamic_shared for side in plan.sides)


# --- the heading ----------------------------------------------------------------------------------------


def _heading(plan: Plan, version: int) -> Iterator[str]:
    names = " and ".join(side.slot.kernel.name for side in sorted(plan.sides, key=lambda side: side.slot.letter))
    yield f"// {names}, fused {plan.kind}ly by fusiond (hfuse {version})."
    yield "//"
    width = max(len(side.slot.kernel.instance) for side in plan.sides)
    for side in plan.sides:
        shape = " x ".join(str(length) for length in side.shape)
        threads = f"threads {side.first}..{side.first + side.threads - 1}"
        yield f"//   {side.slot.letter}  {side.slot.kernel.instance:{width}}  {threads}, as a block of {shape}"
    yield "//"
    if plan.kind == "horizontal":
        yield "// Block i runs block i of both, each on threads of its own; a side with fewer sits the others out."
    else:
        yield "// Every thread of block i does its part of block i of the first, and then of the second."
    yield "// The kernels stand below word for word; what they take for built-in are parameters of the same names."


# --- one slot -------------------------------------------------------------------------------------------


def _namespace(side: Side) -> str:
    kernel = side.slot.kernel
    defines = define_values(kernel.defines, side.slot.sizes, side.shape, where=kernel.lines.get("defines", kernel.path))
    macros = list(dict.fromkeys([*(name for name, _ in defines), *kernel.unit.macros]))
    lines = [
        f"// --- {side.slot.letter}: {kernel.name} " + "-" * (92 - len(kernel.name)),
        "",
        f"namespace fusiond_{side.slot.letter} {{",
        "",
        _POISON,
        "struct fusiond_barrier {",
        "    __device__ __forceinline__ void operator()() const {",
        f"        FUSIOND_BARRIER({side.barrier}, {side.threads});",
        "    }",
        "};",
        "",
    ]
    if defines:
        lines += [*(f"#define {name} {value}".rstrip() for name, value in defines), ""]
    lines += [edited(kernel).strip("\n"), "", *_side(side), ""]
    if macros:
        lines += [*(f"#undef {name}" for name in macros), ""]
    lines += [f"}}  // namespace fusiond_{side.slot.letter}", ""]
    return "\n".join(lines)


def edited(kernel: Kernel) -> str:
    """The kernel's text with the parser's edits done and the system headers taken out."""
    data = kernel.unit.text.encode()
    pieces = []
    position = 0
    for edit in kernel.parsed.edits:
        if edit.start < position:  # inside something that was removed whole
            continue
        pieces += [data[position : edit.start], edit.text.encode()]
        position = edit.end
    text = b"".join([*pieces, data[position:]]).decode()
    text = re.sub(r"(?m)^[ \t]*#[ \t]*include\b[^\n]*\n", "", text)
    return re.sub(r"(?m)[ \t]+$", "", text)


def _side(side: Side) -> Iterator[str]:
    """The function that runs one block of a side, given its thread and block counted from 0.

    It stands among the user's macros, hence the names: no `block`, no `n`.
    """
    kernel = side.slot.kernel
    letter = side.slot.letter
    grid = [f"fusiond_grid_{axis}" for axis in grid_axes(side.slot)]
    parameters = [
        "const unsigned int fusiond_thread",
        "const unsigned int fusiond_block",
        *(f"const unsigned int {name}" for name in grid),
        f"void* const {SHARED}",
        *(
            _declaration(argument, parameter, f"{letter}_{argument.name}")
            for argument, parameter in _signature(side.slot)
        ),
    ]
    passed = [
        _index("fusiond_thread", side.shape),
        _block_index("fusiond_block", grid),
        f"dim3({', '.join(str(length) for length in side.shape)})",
        f"dim3({', '.join(grid)})",
        "fusiond_barrier()",
        SHARED,
        *(_passed(argument, parameter, f"{letter}_{argument.name}") for argument, parameter in _signature(side.slot)),
    ]
    yield "__device__ __forceinline__ void fusiond_side("
    yield "    " + ",\n    ".join(parameters) + ")"
    yield "{"
    yield f"    {kernel.instance}("
    yield "        " + ",\n        ".join(passed) + ");"
    yield "}"


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


def _declaration(argument: Argument, parameter: Parameter, name: str) -> str:
    kind = DTYPES[argument.dtype][0] if parameter.dependent else parameter.target
    if argument.buffer is None:
        return f"const {kind} {name}"
    const = "const " if parameter.constant else ""
    restrict = "__restrict__ " if parameter.restrict else ""
    return f"{const}{kind}* {restrict}const {name}" if restrict == "" else f"{const}{kind}* {restrict}{name}"


def _needs_cast(argument: Argument, parameter: Parameter) -> bool:
    return parameter.dependent and argument.buffer is not None and argument.dtype in ("int64", "uint64")


def _passed(argument: Argument, parameter: Parameter, name: str) -> str:
    return f"fusiond_pointer{{{name}}}" if _needs_cast(argument, parameter) else name


# --- the kernel -----------------------------------------------------------------------------------------


def _kernel(plan: Plan, by_letter: list[Side]) -> str:
    parameters = [
        _declaration(argument, parameter, f"{side.slot.letter}_{argument.name}")
        for side in by_letter
        for argument, parameter in _signature(side.slot)
    ]
    parameters += [
        f"const unsigned int fusiond_{side.slot.letter}_grid_{axis}"
        for side in by_letter
        for axis in grid_axes(side.slot)
    ]
    if uses_offset(plan):
        parameters.append("const unsigned int fusiond_b_shared")
    lines = []
    if any(side.slot.kernel.parsed.uses_dynamic_shared for side in plan.sides):
        lines += [
            "// One arena for both; its element type aligns it to 16 bytes.",
            f"extern __shared__ uint4 {ARENA}[];",
            "",
        ]
    lines += [f'extern "C" __global__ void {entry_name(plan)}(', "    " + ",\n    ".join(parameters) + ")", "{"]
    lines += ["    const unsigned int thread = threadIdx.x;", "    const unsigned int block = blockIdx.x;"]
    first, second = plan.sides
    if plan.kind == "horizontal":
        lines.append(f"    if (thread < {first.threads}) {{")
        lines += _call(plan, first, "thread", "        ")
        lines.append("    } else {")
        lines += _call(plan, second, f"thread - {first.threads}", "        ")
        lines.append("    }")
    else:
        for side in plan.sides:
            lines += _call(plan, side, "thread", "    ")
    return "\n".join([*lines, "}", ""])


def _call(plan: Plan, side: Side, thread: str, indent: str) -> list[str]:
    """One side's work, if it has a block of this number: all threads of the side agree on that."""
    letter = side.slot.letter
    grid = [f"fusiond_{letter}_grid_{axis}" for axis in grid_axes(side.slot)]
    passed = [
        thread,
        "block",
        *grid,
        _place(plan, side),
        *(f"{letter}_{argument.name}" for argument in side.slot.kernel.arguments),
    ]
    return [
        f"{indent}if (block < {' * '.join(grid)}) {{",
        f"{indent}    fusiond_{letter}::fusiond_side(",
        f"{indent}        " + f",\n{indent}        ".join(passed) + ");",
        f"{indent}}}",
    ]


def _place(plan: Plan, side: Side) -> str:
    """Where a side's dynamic shared memory begins."""
    if not side.slot.kernel.parsed.uses_dynamic_shared:
        return "nullptr"
    if side.slot.letter == "b" and uses_offset(plan):
        return f"reinterpret_cast<unsigned char*>({ARENA}) + fusiond_b_shared"
    return ARENA
