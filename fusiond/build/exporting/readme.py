"""README.txt of an export: how to build and call it, and its limits."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fusiond.build.exporting import adapters, cxx, layout
from fusiond.build.exporting.header import caller_arenas
from fusiond.build.exporting.layout import Giver
from fusiond.model.language.extents import Extent, text_of
from fusiond.model.program import Memory, Program, Source, SourceKind, pitches

_WIDTH = 100
_HOST_COMPILER = "g++ -std=c++17 -O2 -fno-strict-aliasing -ffp-contract=off"  #: As host sources are measured
_ALLOCATIONS = {
    Giver.WORKSPACE: "cudaMalloc", Giver.HOST_WORKSPACE: "cudaMallocHost", Giver.MANAGED_WORKSPACE: "cudaMallocManaged",
}  # fmt: skip
_PLACES = {
    Memory.DEVICE: "device memory", Memory.PINNED: "pinned host memory", Memory.PAGEABLE: "host memory",
    Memory.MANAGED: "managed memory (cudaMallocManaged)",
}  # fmt: skip
_NOTES = {
    "keep": "The verdict is `keep`: fusing does not pay here. This is the tuned unfused program.",
    "promising": "The verdict is `promising`: lower bounds in time were counted for a GPU; nothing was measured.",
    "unpromising": (
        "The verdict is `unpromising`, by bounds that were counted for a GPU; nothing was measured. This is the tuned "
        "unfused program."
    ),
    "undecided": "The verdict is `undecided`: no difference was measured. This is the tuned unfused program.",
}


def compile_options(source: Source) -> tuple[str, ...]:
    """What the compiler must be told about a source; its defines are in its adapter."""
    cap = (f"-maxrregcount={source.register_cap}",) if source.register_cap is not None else ()
    return (*source.flags, *(f"-I{each}" for each in source.include_dirs), *cap)


def readme(program: Program, about: Mapping[str, Any], files: Sequence[str], *, arch: str | None) -> str:
    """The text of README.txt; `files` are the others."""
    sections = [
        _head(program, about),
        _files(program, files),
        _arguments(program),
        _python(program),
        _cxx(program, arch),
        _notes(program),
        _sizes(program),
        _seams(program),
    ]
    return "\n\n".join("\n".join(each) for each in sections if each) + "\n"


def _head(program: Program, about: Mapping[str, Any]) -> list[str]:
    lines = [f"{program.name} (exported by fusiond)", ""]
    facts = {**about, "program key": program.key}
    width = max(map(len, facts))
    lines += [f"{name:{width}}  {value}" for name, value in facts.items()]
    note = _NOTES.get(str(about.get("verdict")))
    return [*lines, *(["", *_wrapped(note)] if note else [])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _files(program: Program, files: Sequence[str]) -> list[str]:
    said = {
        "plan.json": "the program: buffers, steps and sources, with its numbers as formulas of the sizes",
        "launch.py": "launches it from Python; needs Python 3.10 and the NVIDIA driver",
        f"launch_{program.key[:8]}.h": "launches it from C++",
        f"launch_{program.key[:8]}.cpp": "goes with the header; CUDA runtime API, no kernels",
    }
    for source in program.sources:
        said[adapters.file_name(source)] = "the source, word for word as it was measured"
        does = "holds" if adapters.is_ptx(source) else "includes"
        said[adapters.adapter_name(source)] = f"compile this: it {does} {adapters.file_name(source)}"
    width = max(map(len, files))
    lines = ["FILES", ""]
    for file in sorted(files):
        default = "the compiled kernels; launch.py loads them" if file.endswith(".cubin") else "compiled, for launch.py"
        lines.append(f"{file:{width}}  {said.get(file, default)}")
    return lines


def _arguments(program: Program) -> list[str]:
    free = layout.optional(program)
    given = [each for each in program.buffers if layout.is_argument(each)]
    names = cxx.CxxNames(program)
    width = max((len(each.name) for each in given), default=0)
    lines = ["ARGUMENTS", ""]
    for each in given:
        more = f", {names.buffers[each.name]} in C++" if names.buffers[each.name] != each.name else ""
        more += ", may be left out" if each.name in free else ""
        more += f", the variable {each.symbol.partition(':')[2]}" if each.symbol is not None else ""
        formula = f" ({each.elements.text})" if isinstance(each.elements, Extent) else ""
        amount = f"{int(each.elements)}{formula} elements of {each.dtype}"
        lines.append(f"{each.name:{width}}  {each.role}, {amount} in {_PLACES[each.memory]}{more}")
    lines += ["", *_wrapped(
        "Arrays must be contiguous and have exactly these elements. Arrays on the device must begin at a multiple of "
        "16 bytes, as all do that cudaMalloc gives. An inout array is read and written: fill it before each launch."
    )]  # fmt: skip
    rows = pitches(program.steps)
    if rows:
        said = ", ".join(f"{name} ({text_of(row)} elements a row)" for name, row in rows.items())
        lines += _wrapped(
            f"Rows may lie apart in {said}: pass a slice of a larger array, or OpenCV's GpuMat, to launch.py as it is; "
            f"in C++ set {', '.join(names.pitches.values())}, in elements."
        )
    return lines


def _python(program: Program) -> list[str]:
    names = ", ".join(
        f'"{each.name}": ...'
        for each in program.buffers
        if layout.is_argument(each) and each.name not in layout.optional(program)
    )
    seams = ", seams={" + ", ".join(f'"{each.name}": ...' for each in program.seams) + "}" if program.seams else ""
    changeable = [name for name, _ in program.sizes if name not in program.fixed]
    sizes = ", sizes={" + f'"{changeable[0]}": ...' + "}" if changeable else ""
    lines = ["PYTHON", "", "    from launch import launch, close", "    launch({" + names + "}" + sizes + seams + ")",
             "    close()", ""]  # fmt: skip
    lines += _wrapped(
        "Arguments are arrays with __cuda_array_interface__ or DLPack (PyCUDA, CuPy, PyTorch, Numba, JAX for inputs "
        "only), and NumPy arrays where they lie in host memory. `stream` takes a stream of these libraries, or a "
        "handle. It runs in the CUDA context that is current and never makes one. For another GPU export "
        "again, with `--arch`."
    )
    if any(each.memory is not Memory.DEVICE and layout.is_argument(each) for each in program.buffers):
        lines += ["", *_wrapped(
            "allocate(sizes) returns NumPy arrays for the arguments in host and managed memory, laid out as they were "
            "measured. Other arrays are accepted; where several must be one piece of memory they are copied in and "
            "out, and the launch waits for that, which costs."
        )]  # fmt: skip
    return lines


def _cxx(program: Program, arch: str | None) -> list[str]:
    name = f"launch_{program.key[:8]}"
    lines = ["C++", ""]
    for source in program.sources:
        if adapters.is_ptx(source):
            lines.append(f"    nvcc -std=c++17 -O3 -c {adapters.adapter_name(source)}")
            continue
        options = " ".join([*(f'"{each}"' if " " in each else each for each in compile_options(source))])
        target = source.target(arch) if arch else "native"
        tool = f"nvcc -arch={target} -std=c++17 -O3" if source.kind is SourceKind.DEVICE else _HOST_COMPILER
        lines.append(f"    {tool} {options} -c {adapters.adapter_name(source)}".replace("  -c", " -c"))
    lines += [f"    nvcc -std=c++17 -O3 -c {name}.cpp", ""]
    seams = ", seams" if program.seams else ""
    space = adapters.space(program)
    lines += [
        f'    #include "{name}.h"',
        f"    {space}::Sizes sizes;",
        f"    {space}::Buffers buffers;",
        *(
            f"    buffers.{cxx.CxxNames(program).buffers[each.name]} = ...;"
            for each in program.buffers
            if layout.is_argument(each) and each.symbol is None and each.name not in layout.optional(program)
        ),
        *(
            f"    {_ALLOCATIONS[giver]}(&buffers.{kind}, {space}::{kind}_bytes(sizes));"
            for kind, giver in layout.workspaces(program).items()
        ),
        *([f"    {space}::Seams seams;"] if program.seams else []),
        f"    {space}::Launcher launcher;",
        f"    if (launcher.launch(buffers, sizes, stream{seams}) != cudaSuccess) puts(launcher.problem().c_str());",
        "",
    ]  # fmt: skip
    lines += _wrapped(
        f"All names are in the namespace {space}, and the kernels' are made unique by the adapters, so several exports "
        "can be linked into one program."
    )
    return lines


def _notes(program: Program) -> list[str]:
    """What the user has to do or to know, where this program gives a reason."""
    notes = []
    ptx = [each for each in program.sources if adapters.is_ptx(each)]
    if ptx:
        notes.append(
            f"{', '.join(map(adapters.file_name, ptx))}: the cubins that are here are what was measured, and what both "
            "launchers load. On a GPU of another architecture, and where there is none, the driver assembles the PTX. "
            "C++ needs CUDA 12.8 (cudaLibraryLoadData)."
        )
    for source in program.sources:
        if source.register_cap is not None and "__launch_bounds__" in source.text:
            notes.append(
                f"{adapters.file_name(source)} was measured with at most {source.register_cap} registers a thread. "
                "nvcc ignores -maxrregcount for kernels with __launch_bounds__, so a program built as above may use "
                "more. launch.py and the cubin keep the cap. In C++ replace __launch_bounds__ with "
                f"__maxnreg__({source.register_cap}) (CUDA 12.4), or load the cubin with the driver API."
            )
        if source.include_dirs:
            notes.append(
                f"{adapters.file_name(source)} includes headers from {', '.join(source.include_dirs)}: give the "
                "folders that hold them on your machine."
            )
    if any(each.symbol is not None for each in program.buffers):
        names = [cxx.CxxNames(program).buffers[each.name] for each in program.buffers if each.symbol is not None]
        notes.append(
            "Some arguments are variables in a source. launch.py copies them at every launch; in C++ call "
            f"{', '.join(f'set_{name}' for name in names)} before the first launch, and again when they change."
        )
    if program.copies_in_batches:
        notes.append(
            "Batches of copies are one call of cudaMemcpyBatchAsync (C++: CUDA 12.8; Python: a driver of CUDA 13). "
            "Older ones, and graphs, get the copies one by one."
        )
    if program.issue == "graph" and layout.in_graph(program):
        notes.append(
            "The steps are captured into a CUDA graph when pointers and sizes come for the first time, and launched as "
            "one. Keep the arrays where they are: new pointers mean a new capture. Functions for seams are called "
            "while the graph is captured only; they may do nothing but enqueue."
        )
    elif program.issue == "graph":
        notes.append("This was planned as a CUDA graph, but the host takes part in it: it is issued step by step.")
    for home in caller_arenas(program):
        notes.append(
            f"The arguments in {home!r} are one piece of memory: in C++ allocate "
            f"{cxx.CxxNames(program).arenas[home]}_bytes(sizes) and call place_{cxx.CxxNames(program).arenas[home]}."
        )
    if not notes:
        return []
    lines = ["NOTES", ""]
    for note in notes:
        lines += textwrap.wrap(note, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _sizes(program: Program) -> list[str]:
    if not program.sizes:
        return ["SIZES", "", "This program has no sizes that could be changed."]
    width = max(len(name) for name, _ in program.sizes)
    lines = ["SIZES", ""]
    for name, value in program.sizes:
        lines.append(f"{name:{width}}  {value}{'  fixed: the source depends on it' if name in program.fixed else ''}")
    return [*lines, "", *_wrapped("Other sizes are computed right, but only these were measured.")]


def _seams(program: Program) -> list[str]:
    if not program.seams:
        return []
    lines = ["SEAMS", ""]
    lines += _wrapped(
        "These are done by a library in your program. Give a function for each: in Python seams={name: function}, "
        "called as function(reads, writes, stream) with lists of arrays and a handle; in C++ the members of Seams."
    )
    for seam in program.seams:
        when = f"before {seam.before}" if seam.before else "after the last step"
        plain = f"in the place of {seam.stand_in}, a plain kernel (naive runs that)" if seam.stand_in else when
        lines += ["", f"{seam.name}: {seam.operation}", f"    reads {', '.join(seam.reads) or 'nothing'}",
                  f"    writes {', '.join(seam.writes) or 'nothing'}", f"    {plain}"]  # fmt: skip
    return lines
