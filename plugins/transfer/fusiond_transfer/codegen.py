"""A plan as code that a user can take along: CUDA C++, and the same as a Python module.

    NAME.h            a struct with a typed pointer for every array, and create, run, destroy
    NAME.cu           the arenas and their layout, the copies in order, the launches, what waits for what
    NAME_S.cu, .cpp   the kernels of each source S, as they were measured
    NAME.py           the same plan over NumPy and PyCUDA (`python_module`)

Kernels in a file of their own are launched through their declarations: no relocatable device code is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fusiond.program import (
    DTYPES,
    Alloc,
    Buffer,
    Copy,
    CopyBatch,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    SourceKind,
    Step,
)
from fusiond.words import counted
from fusiond_transfer import python_module

_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl "
    "concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default "
    "delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor "
    "xor_eq plan main linux unix"
)
RESERVED = frozenset(_WORDS.split())
"""No names for a struct or its members: the words of C++20, `plan` (the parameter of our functions), and what g++ and
the linker keep for themselves."""


def files(graph: str, program: Program) -> dict[str, str]:
    """Every file of the export, by name; `graph` is what the graph is called."""
    name = _identifier(graph)
    found = {f"{name}.h": header(program, name), f"{name}.cu": runner(program, name)}
    renamed = entries(program)
    for source in program.sources:
        ending = "cu" if source.kind is SourceKind.DEVICE else "cpp"
        defines = [
            f"#define {entry} {renamed[source.name, entry]}\n"
            for entry in source.entries
            if renamed[source.name, entry] != entry
        ]
        found[f"{name}_{source.name}.{ending}"] = "".join(defines) + source.text
    found[f"{name}.py"] = python_module.text(program, name, renamed)
    return found


def entries(program: Program) -> dict[tuple[str, str], str]:
    """(source, entry) -> its name in the export: two sources may use one name, and are linked together."""
    found: dict[tuple[str, str], str] = {}
    for source in program.sources:
        for entry in source.entries:
            taken = entry in found.values()
            found[source.name, entry] = f"{entry}_{source.name}" if taken else entry
    return found


class Names:
    """C++ identifiers of buffers and arenas: `A@device` is A_device, `x.store` is x_store; made unique."""

    def __init__(self, program: Program) -> None:
        self.of: dict[str, str] = {}
        taken = {"streams", "events"}  # the members of the struct that are not the user's
        for name in [each.name for each in program.buffers] + sorted(
            {each.arena or "" for each in program.buffers} - {""}
        ):
            identifier = _identifier(name)
            while identifier in taken:
                identifier += "_"
            taken.add(identifier)
            self.of[name] = identifier


def _identifier(name: str) -> str:
    """What a name is called in C++: other characters, and the language's own words, give way."""
    plain = re.sub(r"\W", "_", name)
    return f"{plain}_" if plain in RESERVED else plain


def header(program: Program, name: str) -> str:
    """The interface: the arrays and three functions."""
    names = Names(program)
    rows = []
    for buffer in program.buffers:
        note = {Role.INPUT: "input", Role.OUTPUT: "output"}.get(buffer.role, "")
        where = "device" if buffer.memory is Memory.DEVICE else buffer.memory.value
        note = f"{note}, {where}" if note else where
        rows.append(f"    {_ctype(buffer)}* {names.of[buffer.name]};  // {note}: {buffer.elements} elements")
    guard = f"{name.upper()}_H"
    return (
        f"// {program.name}: written by fusiond (strategy transfer). Fill the inputs, call run, read the outputs.\n"
        f"#ifndef {guard}\n#define {guard}\n#include <cuda_runtime.h>\n\n"
        f"struct {name} {{\n" + "\n".join(rows) + "\n"
        f"    cudaStream_t streams[{_streams(program)}];\n"
        f"    cudaEvent_t events[{max(1, len(_awaited(program)))}];\n"
        "};\n\n"
        f"cudaError_t {name}_create({name}* plan);\n"
        f"cudaError_t {name}_run({name}* plan);  // returns when all outputs are there\n"
        f"void {name}_destroy({name}* plan);\n\n"
        "#endif\n"
    )


def runner(program: Program, name: str) -> str:
    """The .cu file: create, run, destroy."""
    messages = sum(isinstance(each, Copy | CopyBatch) and each.counted for each in program.steps)
    return "\n".join(
        [
            f"// {program.name}: written by fusiond (strategy transfer).",
            f"// {counted(messages, 'message')}. Build: nvcc -O3 *.cu *.cpp",
            f'#include "{name}.h"',
            "",
            "#include <new>",
            "",
            "#define FUSIOND_TRY(call) do { cudaError_t e = (call); if (e != cudaSuccess) return e; } while (0)",
            "",
            *_declarations(program),
            *_create(program, name),
            *_run(program, name),
            *_destroy(program, name),
        ]
    )


# --- parts of the runner --------------------------------------------------------------------------------


def _declarations(program: Program) -> list[str]:
    found: dict[str, str] = {}
    renamed = entries(program)
    for step in program.steps:
        if isinstance(step, Launch | HostCall):
            entry = renamed[step.source, step.entry]
            device = isinstance(step, Launch)
            parameters = ", ".join(
                f"{_ctype(program.buffer(each.buffer))}*" if isinstance(each, Pointer) else _scalar(each)[0]
                for each in step.arguments
                if isinstance(each, Pointer | Scalar)
            )
            found.setdefault(entry, f'extern "C" {"__global__ " if device else ""}void {entry}({parameters});')
    return [*found.values(), ""]


def _create(program: Program, name: str) -> list[str]:
    lines = [f"cudaError_t {name}_create({name}* plan) {{"]
    planned = {step.arena for step in program.steps if isinstance(step, Alloc)}
    for home, members in _homes(program).items():
        if home not in planned:
            lines += _allocation(program, home, members, None)
    lines += [
        "    for (cudaStream_t& each : plan->streams) FUSIOND_TRY(cudaStreamCreate(&each));",
        "    for (cudaEvent_t& each : plan->events)",
        "        FUSIOND_TRY(cudaEventCreateWithFlags(&each, cudaEventDisableTiming));",
        "    return cudaSuccess;",
        "}",
        "",
    ]
    return lines


def _allocation(program: Program, home: str, members: Sequence[Buffer], step: Alloc | None) -> list[str]:
    """Lines that allocate an arena and point its buffers into it."""
    names = Names(program)
    size = max(each.offset_bytes + each.size_bytes for each in members)
    first = members[0]
    call = {Memory.DEVICE: "cudaMalloc(&{0}, {1})", Memory.PINNED: "cudaMallocHost(&{0}, {1})"}.get(first.memory)
    if step is not None and step.pooled:
        call = f"cudaMallocAsync(&{{0}}, {{1}}, plan->streams[{_lane(program, step)}])"
    lines = [f"    {{  // {home}: {size} bytes", "        void* base = nullptr;"]
    if call is None:
        lines.append(f"        base = ::operator new({size});")
    else:
        lines.append(f"        FUSIOND_TRY({call.format('base', size)});")
    lines += [
        f"        plan->{names.of[each.name]} = ({_ctype(each)}*)((char*)base + {each.offset_bytes});"
        for each in members
    ]
    return [*lines, "    }"]


def _run(program: Program, name: str) -> list[str]:
    lines = [f"cudaError_t {name}_run({name}* plan) {{"]
    awaited = _awaited(program)
    lanes = {step.name: step.stream for step in program.steps}
    for step in program.steps:
        stream = f"plan->streams[{_lane(program, step)}]"
        lines.append(f"    // {step.name}")
        on_host = _on_host(program, step)
        for each in step.after:
            if lanes[each] != step.stream:
                event = f"plan->events[{awaited.index(each)}]"
                wait = f"cudaEventSynchronize({event})" if on_host else f"cudaStreamWaitEvent({stream}, {event}, 0)"
                lines.append(f"    FUSIOND_TRY({wait});")
        if on_host:
            lines.append(f"    FUSIOND_TRY(cudaStreamSynchronize({stream}));")
        lines += _step(program, step, stream)
        if step.name in awaited:
            lines.append(f"    FUSIOND_TRY(cudaEventRecord(plan->events[{awaited.index(step.name)}], {stream}));")
    lines += [
        "    for (cudaStream_t each : plan->streams) FUSIOND_TRY(cudaStreamSynchronize(each));",
        "    return cudaGetLastError();",
        "}",
        "",
    ]
    return lines


def _step(program: Program, step: Step, stream: str) -> list[str]:
    names = Names(program)
    if isinstance(step, Launch | HostCall):
        arguments = ", ".join(
            f"plan->{names.of[each.buffer]}" if isinstance(each, Pointer) else _scalar(each)[1]
            for each in step.arguments
            if isinstance(each, Pointer | Scalar)
        )
        entry = entries(program)[step.source, step.entry]
        if isinstance(step, HostCall):
            return [f"    {entry}({arguments});"]
        grid, block = (f"dim3({', '.join(map(str, each))})" for each in (step.grid, step.block))
        return [f"    {entry}<<<{grid}, {block}, {step.shared_bytes}, {stream}>>>({arguments});"]
    if isinstance(step, Copy):
        size = _run_bytes(program, step.source)
        target, source = names.of[step.target[0]], names.of[step.source[0]]
        kind = _kind(program, step.source[0], step.target[0])
        said = f"  // {', '.join(step.source)}" if len(step.source) > 1 else ""
        return [f"    FUSIOND_TRY(cudaMemcpyAsync(plan->{target}, plan->{source}, {size}, {kind}, {stream}));{said}"]
    if isinstance(step, CopyBatch):
        return _batch(program, step, stream, names)
    if isinstance(step, Alloc):
        return _allocation(program, step.arena, _homes(program)[step.arena], step)
    if isinstance(step, Free):
        first = names.of[_homes(program)[step.arena][0].name]
        pooled = any(isinstance(each, Alloc) and each.arena == step.arena and each.pooled for each in program.steps)
        call = f"cudaFreeAsync(plan->{first}, {stream})" if pooled else f"cudaFree(plan->{first})"
        return [f"    FUSIOND_TRY({call});"]
    raise ValueError(f"{step.name} is a step that no transfer plan has")


def _batch(program: Program, step: CopyBatch, stream: str, names: Names) -> list[str]:
    count = len(step.copies)
    targets = ", ".join(f"plan->{names.of[target]}" for _, target in step.copies)
    sources = ", ".join(f"plan->{names.of[source]}" for source, _ in step.copies)
    sizes = ", ".join(str(program.buffer(source).size_bytes) for source, _ in step.copies)
    kind = _kind(program, *step.copies[0])
    return [
        "    {",
        f"        void* targets[] = {{{targets}}};",
        f"        void* sources[] = {{{sources}}};",
        f"        size_t sizes[] = {{{sizes}}};",
        "#if CUDART_VERSION >= 12080",
        "        cudaMemcpyAttributes attributes = {};",
        "        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;",
        "        size_t first = 0;",
        "#if CUDART_VERSION >= 13000",
        f"        FUSIOND_TRY(cudaMemcpyBatchAsync((const void**)targets, (const void**)sources, sizes, {count},",
        f"                                         &attributes, &first, 1, {stream}));",
        "#else",
        "        size_t failed = 0;",
        f"        FUSIOND_TRY(cudaMemcpyBatchAsync(targets, sources, sizes, {count},",
        f"                                         &attributes, &first, 1, &failed, {stream}));",
        "#endif",
        "#else",
        f"        for (int i = 0; i < {count}; ++i)",
        f"            FUSIOND_TRY(cudaMemcpyAsync(targets[i], sources[i], sizes[i], {kind}, {stream}));",
        "#endif",
        "    }",
    ]


def _destroy(program: Program, name: str) -> list[str]:
    names = Names(program)
    planned = {step.arena for step in program.steps if isinstance(step, Alloc)}
    lines = [f"void {name}_destroy({name}* plan) {{"]
    for home, members in _homes(program).items():
        if home in planned:
            continue
        first = names.of[members[0].name]
        call = {Memory.DEVICE: "cudaFree({})", Memory.PINNED: "cudaFreeHost({})"}.get(
            members[0].memory, "::operator delete({})"
        )
        lines.append(f"    {call.format(f'plan->{first}')};")
    return [
        *lines,
        "    for (cudaEvent_t each : plan->events) cudaEventDestroy(each);",
        "    for (cudaStream_t each : plan->streams) cudaStreamDestroy(each);",
        "}",
        "",
    ]


# --- what a Program says --------------------------------------------------------------------------------


def _homes(program: Program) -> Mapping[str, list[Buffer]]:
    """Allocation -> its buffers by offset; a buffer without an arena is one of its own."""
    found: dict[str, list[Buffer]] = {}
    for each in program.buffers:
        found.setdefault(each.arena or each.name, []).append(each)
    return {home: sorted(members, key=lambda each: each.offset_bytes) for home, members in found.items()}


def _streams(program: Program) -> int:
    return len({step.stream for step in program.steps})


def _lane(program: Program, step: Step) -> int:
    return sorted({each.stream for each in program.steps}).index(step.stream)


def _awaited(program: Program) -> list[str]:
    """Steps that a step of another stream waits for."""
    lanes = {step.name: step.stream for step in program.steps}
    return list(dict.fromkeys(name for step in program.steps for name in step.after if lanes[name] != step.stream))


def _on_host(program: Program, step: Step) -> bool:
    """Whether the calling thread does the step itself."""
    if isinstance(step, Alloc):
        return not step.pooled
    if isinstance(step, Free):
        return not any(isinstance(each, Alloc) and each.arena == step.arena and each.pooled for each in program.steps)
    return isinstance(step, HostCall)


def _run_bytes(program: Program, names: Sequence[str]) -> int:
    first, last = program.buffer(names[0]), program.buffer(names[-1])
    return last.offset_bytes + last.size_bytes - first.offset_bytes if len(names) > 1 else first.size_bytes


def _kind(program: Program, source: str, target: str) -> str:
    sides = [program.buffer(each).memory is Memory.DEVICE for each in (source, target)]
    return {
        (False, True): "cudaMemcpyHostToDevice",
        (True, False): "cudaMemcpyDeviceToHost",
        (False, False): "cudaMemcpyHostToHost",
    }[sides[0], sides[1]]


def _ctype(buffer: Buffer) -> str:
    return DTYPES[buffer.dtype][0]


def _scalar(scalar: Scalar) -> tuple[str, str]:
    """Type and literal."""
    endings = {"uint32": "u", "uint64": "ull", "int64": "ll"}
    return DTYPES[scalar.dtype][0], f"{scalar.value}{endings.get(scalar.dtype, '')}"
