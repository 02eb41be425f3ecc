"""The C++ header of an export: sizes, buffers, seams, and `launch`."""

from collections.abc import Mapping

from fusiond.build.exporting import cxx, layout
from fusiond.build.exporting.adapters import space
from fusiond.build.exporting.layout import Giver
from fusiond.model.codegen.statements import Statements
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.extents import text_of
from fusiond.model.program import Memory, Program, Role, homes, pitches

_PLACES = {
    Memory.DEVICE: "device", Memory.PINNED: "pinned host memory", Memory.PAGEABLE: "host memory",
    Memory.MANAGED: "managed memory",
}  # fmt: skip
_OF_WORKSPACE: Mapping[Giver, tuple[str, str]] = {
    Giver.WORKSPACE: ("device", "on the device"),
    Giver.HOST_WORKSPACE: ("pinned host memory", "on the host"),
    Giver.MANAGED_WORKSPACE: ("managed memory", "in managed memory"),
}
"""What each is, and where."""


_LAUNCHER = """\
/// Holds streams, events and graphs. Its launches share the workspace, so they follow each other. One thread
/// at a time may use it, in one CUDA context.
class Launcher {{
public:
    Launcher();
    ~Launcher();
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;
    /// Enqueues everything on `stream`. What the host does itself is done when this returns.
    cudaError_t launch({signature});
    /// What was wrong in the last launch that failed, in one line.
    const std::string& problem() const;

private:
    struct State;
    std::unique_ptr<State> state_;
}};

/// The same with a launcher that is kept for the calling thread; `problem`, where given, takes the line.
cudaError_t launch({signature}, std::string* problem = nullptr);
"""


def header(program: Program) -> str:
    """The text of the header."""
    names = cxx.CxxNames(program)
    held = {each.dtype for each in program.buffers}
    of_types = [each.header for each in DTYPES.values() if each.name in held and each.header is not None]
    text = Statements()
    text.line(f"// {one_line(program.name)}: launches the kernels that fusiond tuned. README.txt says how.")
    text.line("#pragma once")
    text.lines(*(f"#include <{each}>" for each in ("cuda_runtime.h", *of_types)), "")
    standard = ("cstddef", *(["functional"] if program.seams else []), "memory", "string")
    text.lines(*(f"#include <{each}>" for each in standard), "", f"namespace {space(program)} {{", "")
    for write in (_sizes, _buffers, _seams, _functions):
        write(text, program, names)
    text.lines(_LAUNCHER.format(signature=signature(program)), f"}}  // namespace {space(program)}")
    return text.text()


def one_line(text: str) -> str:
    return " ".join(text.split())


def _sizes(text: Statements, program: Program, names: cxx.CxxNames) -> None:
    text.line("/// What the numbers of the plan follow from; as it was measured where you change nothing.")
    struct = text.block("struct Sizes", end="};")
    for name, value in program.sizes:
        member = f"long long {names.sizes[name]} = {value};"
        fixed = name in program.fixed
        struct.line(f"static constexpr {member}  ///< the source depends on it" if fixed else member)
    text.line("")


def _buffers(text: Statements, program: Program, names: cxx.CxxNames) -> None:
    text.line("/// The arrays of a call, and memory that it may use until it has ended.")
    struct = text.block("struct Buffers", end="};")
    free, rows = layout.optional(program), pitches(program.steps)
    for each in program.buffers:
        if layout.is_argument(each) and each.symbol is None:
            note = f"{each.role}, {_PLACES[each.memory]}: {text_of(each.elements)} elements"
            if each.arena is not None and len(layout.wholes(homes(program)[each.arena])) > 1:
                note += f", at byte {text_of(each.offset_bytes)} of {each.arena}"
            note += "; null: in the workspace" if each.name in free else ""
            constant = "const " if each.role is Role.INPUT and each.name not in free else ""  # nothing writes to it
            struct.line(f"{constant}{cxx.element(each.dtype)}* {names.buffers[each.name]} = nullptr;  ///< {note}")
            if each.name in rows:
                said = f"elements from row to row; 0: {text_of(rows[each.name])}, as many as a row has"
                struct.line(f"std::size_t {names.pitches[each.name]} = 0;  ///< {said}")
    for kind, workspace in layout.workspaces(program).items():
        aligned = ", at a multiple of 256" if workspace is Giver.WORKSPACE else ""
        struct.line(f"void* {kind} = nullptr;  ///< {_OF_WORKSPACE[workspace][0]}: {kind}_bytes(sizes){aligned}")
    text.line("")


def _seams(text: Statements, program: Program, names: cxx.CxxNames) -> None:
    if not program.seams:
        return
    text.lines(
        "/// A library call of yours. It enqueues on `stream`; `reads` and `writes` are device pointers in this order:",
        "using Seam = std::function<cudaError_t(const void* const* reads, void* const* writes, const Sizes& sizes,",
        "                                       cudaStream_t stream)>;",
    )
    struct = text.block("struct Seams", end="};")
    for seam in program.seams:
        struct.line(f"Seam {names.seams[seam.name]};  ///< {one_line(seam.operation)}:")
        struct.line(f"            ///< reads {', '.join(seam.reads) or 'nothing'}; writes {', '.join(seam.writes)}")
    struct.line("bool naive = false;  ///< run plain, slow kernels in the place of functions that are not given")
    text.line("")


def _functions(text: Statements, program: Program, names: cxx.CxxNames) -> None:
    for kind, where in layout.workspaces(program).items():
        text.line(f"/// Bytes of scratch memory {_OF_WORKSPACE[where][1]}.")
        text.line(f"std::size_t {kind}_bytes(const Sizes& sizes = Sizes());")
    for home in caller_arenas(program):
        text.line(f"/// {home} is one piece of memory: its bytes, and the pointers of the buffers in it.")
        text.line(f"std::size_t {names.arenas[home]}_bytes(const Sizes& sizes);")
        text.line(f"void place_{names.arenas[home]}(Buffers& buffers, void* base, const Sizes& sizes);")
    for each in program.buffers:
        if each.symbol is not None:
            name, kind = names.buffers[each.name], cxx.element(each.dtype)
            variable, count = each.symbol.partition(":")[2], text_of(each.elements)
            text.line(f"/// The variable {variable}: copies {count} elements, from host or device.")
            text.line(f"cudaError_t set_{name}(const {kind}* values, const Sizes& sizes, cudaStream_t stream);")
            if each.role.compared:
                text.line(f"cudaError_t get_{name}({kind}* values, const Sizes& sizes, cudaStream_t stream);")
    text.line("")


def caller_arenas(program: Program) -> tuple[str, ...]:
    """The arenas of several buffers that the caller gives."""
    return tuple(
        home
        for home, members in homes(program).items()
        if len(layout.wholes(members)) > 1 and layout.giver(program, home) is Giver.CALLER
    )


def signature(program: Program) -> str:
    """The parameters of `launch`."""
    seams = ", const Seams& seams" if program.seams else ""
    return f"const Buffers& buffers, const Sizes& sizes, cudaStream_t stream{seams}"
