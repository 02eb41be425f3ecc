"""The C++ header of an export: sizes, buffers, seams, and `launch`."""

from __future__ import annotations

from fusiond.exporting import cxx, layout
from fusiond.exporting.adapters import space
from fusiond.exporting.layout import Giver
from fusiond.extents import text_of
from fusiond.program import Buffer, Memory, Program, Role

_PLACES = {Memory.DEVICE: "device", Memory.PINNED: "pinned host memory", Memory.PAGEABLE: "host memory"}


def header(program: Program) -> str:
    """The text of the header."""
    names = cxx.Names(program)
    lines = [
        f"// {_one_line(program.name)}: launches the kernels that fusiond tuned. README.txt says how.",
        "#pragma once",
    ]
    lines += ["#include <cuda_runtime.h>"]
    dtypes = {each.dtype for each in program.buffers}
    lines += ["#include <cuda_fp16.h>"] if "float16" in dtypes else []
    lines += ["#include <cuda_bf16.h>"] if "bfloat16" in dtypes else []
    lines += ["", "#include <cstddef>", *(["#include <functional>"] if program.seams else []), "#include <memory>"]
    lines += ["#include <string>", "", f"namespace {space(program)} {{", ""]
    lines += [*_sizes(program, names), *_buffers(program, names), *_seams(program, names), *_functions(program, names)]
    lines += [*_launcher(program), f"}}  // namespace {space(program)}"]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sizes(program: Program, names: cxx.Names) -> list[str]:
    lines = [
        "/// What the numbers of the plan follow from; as it was measured where you change nothing.",
        "struct Sizes {",
    ]
    for name, value in program.sizes:
        if name in program.fixed:
            lines.append(
                f"    static constexpr long long {names.sizes[name]} = {value};  ///< the source depends on it"
            )
        else:
            lines.append(f"    long long {names.sizes[name]} = {value};")
    return [*lines, "};", ""]


def _buffers(program: Program, names: cxx.Names) -> list[str]:
    lines = ["/// The arrays of a call, and memory that it may use until it has ended.", "struct Buffers {"]
    free = layout.optional(program)
    for each in program.buffers:
        if layout.is_argument(each) and each.symbol is None:
            note = f"{each.role}, {_PLACES[each.memory]}: {text_of(each.elements)} elements"
            if each.arena is not None and len(layout.homes(program)[each.arena]) > 1:
                note += f", at byte {text_of(each.offset_bytes)} of {each.arena}"
            note += "; null: in the workspace" if each.name in free else ""
            lines.append(f"    {pointer(each, free)} {names.buffers[each.name]} = nullptr;  ///< {note}")
    lines.append("    void* workspace = nullptr;  ///< device: workspace_bytes(sizes), at a multiple of 256")
    if has_host_workspace(program):
        lines.append("    void* host_workspace = nullptr;  ///< pinned host memory: host_workspace_bytes(sizes)")
    return [*lines, "};", ""]


def pointer(buffer: Buffer, written: frozenset[str] = frozenset()) -> str:
    """The type of a pointer to a buffer's elements, constant where nothing writes to them."""
    constant = "const " if buffer.role is Role.INPUT and buffer.name not in written else ""
    return f"{constant}{cxx.element(buffer.dtype)}*"


def has_host_workspace(program: Program) -> bool:
    return any(layout.giver(program, home) is Giver.HOST_WORKSPACE for home in layout.homes(program))


def _seams(program: Program, names: cxx.Names) -> list[str]:
    if not program.seams:
        return []
    lines = [
        "/// A library call of yours. It enqueues on `stream`; `reads` and `writes` are device pointers in this order:",
        "using Seam = std::function<cudaError_t(const void* const* reads, void* const* writes, const Sizes& sizes,",
        "                                       cudaStream_t stream)>;",
        "struct Seams {",
    ]
    for seam in program.seams:
        lines.append(f"    Seam {names.seams[seam.name]};  ///< {_one_line(seam.operation)}:")
        lines.append(
            f"                ///< reads {', '.join(seam.reads) or 'nothing'}; writes {', '.join(seam.writes)}"
        )
    lines.append("    bool naive = false;  ///< run plain, slow kernels in the place of functions that are not given")
    return [*lines, "};", ""]


def _functions(program: Program, names: cxx.Names) -> list[str]:
    default = " = Sizes()"
    lines = ["/// Bytes of scratch memory on the device.", f"std::size_t workspace_bytes(const Sizes& sizes{default});"]
    if has_host_workspace(program):
        lines += ["/// Bytes of scratch memory on the host.",
                  f"std::size_t host_workspace_bytes(const Sizes& sizes{default});"]  # fmt: skip
    for home in caller_arenas(program):
        lines += [
            f"/// {home} is one piece of memory: its bytes, and the pointers of the buffers in it.",
            f"std::size_t {names.arenas[home]}_bytes(const Sizes& sizes);",
            f"void place_{names.arenas[home]}(Buffers& buffers, void* base, const Sizes& sizes);",
        ]
    for each in program.buffers:
        if each.symbol is not None:
            name, kind = names.buffers[each.name], cxx.element(each.dtype)
            count = text_of(each.elements)
            lines += [
                f"/// The variable {each.symbol.partition(':')[2]}: copies {count} elements, from host or device."
            ]
            lines += [f"cudaError_t set_{name}(const {kind}* values, const Sizes& sizes, cudaStream_t stream);"]
            if each.role.compared:
                lines += [f"cudaError_t get_{name}({kind}* values, const Sizes& sizes, cudaStream_t stream);"]
    return [*lines, ""]


def caller_arenas(program: Program) -> tuple[str, ...]:
    """The arenas of several buffers that the caller gives."""
    return tuple(
        home
        for home, members in layout.homes(program).items()
        if len(members) > 1 and layout.giver(program, home) is Giver.CALLER
    )


def _launcher(program: Program) -> list[str]:
    return [
        "/// Holds streams, events and graphs. Its launches share the workspace, so they follow each other. One thread",
        "/// at a time may use it, in one CUDA context.",
        "class Launcher {",
        "public:",
        "    Launcher();",
        "    ~Launcher();",
        "    Launcher(const Launcher&) = delete;",
        "    Launcher& operator=(const Launcher&) = delete;",
        "    /// Enqueues everything on `stream`. What the host does itself is done when this returns.",
        f"    cudaError_t launch({signature(program)});",
        "    /// What was wrong in the last launch that failed, in one line.",
        "    const std::string& problem() const;",
        "",
        "private:",
        "    struct State;",
        "    std::unique_ptr<State> state_;",
        "};",
        "",
        "/// The same with a launcher that is kept for the calling thread; `problem`, where given, takes the line.",
        f"cudaError_t launch({signature(program)}, std::string* problem = nullptr);",
        "",
    ]


def signature(program: Program) -> str:
    """The parameters of `launch`."""
    seams = ", const Seams& seams" if program.seams else ""
    return f"const Buffers& buffers, const Sizes& sizes, cudaStream_t stream{seams}"
