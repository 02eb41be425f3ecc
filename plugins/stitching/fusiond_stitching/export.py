"""What a user needs to call a stitched module from their own program.

module.cu       the source, all kernels
module.h        for C++ under nvcc: one function that launches all of them in order
launch.py       the same for Python; needs libcuda and a current context (PyCUDA's, PyTorch's, CuPy's), nothing else
README.txt      what goes where

Intermediates that cross kernels lie in one scratch buffer of the caller's. Where a library has to compute something in
between that a Program only has a stand-in for (a sort, a convolution), the launches come in parts: the caller computes
what stands between two parts, from `operand_i` into `boundary_i`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.program import DTYPES, Buffer, Launch, Pointer, Program, Role
from fusiond.words import counted
from fusiond_stitching.emit import is_library, launches
from fusiond_stitching.graph import Module

ALIGNMENT = 256
_STATIC_LIMIT = 48 * 1024
"""A kernel with more dynamic shared memory must be told so first."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The buffers that the caller gives, and where the others lie in the scratch buffer."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scratch: Mapping[str, int]
    scratch_bytes: int


def files(module: Module, program: Program) -> Mapping[str, str]:
    """Name -> text of every file."""
    arguments = _arguments(program)
    return {
        "module.cu": program.sources[0].text,
        "module.h": _header(module, program, arguments),
        "launch.py": _python(module, program, arguments),
        "README.txt": _readme(module, program, arguments),
    }


def _buffers(launch: Launch) -> list[str]:
    return [each.buffer for each in launch.arguments if isinstance(each, Pointer)]


def _arguments(program: Program) -> _Arguments:
    offset = 0
    scratch = {}
    given = [each for each in program.buffers if not _inner(each)]
    for each in program.buffers:
        if _inner(each):
            scratch[each.name] = offset
            offset += -(-each.size_bytes // ALIGNMENT) * ALIGNMENT
    return _Arguments(
        tuple(each for each in given if each.role is Role.INPUT),
        tuple(each for each in given if each.role is not Role.INPUT),
        scratch,
        offset,
    )


def _inner(buffer: Buffer) -> bool:
    """Not the caller's. (An output without elements is scratch too, and still an output.)"""
    return buffer.role is Role.SCRATCH and not buffer.name.startswith(("out_", "operand_"))


@dataclass(frozen=True, slots=True)
class _Part:
    """Launches that follow each other, and what the caller computes before them: names of foreign instructions."""

    calls: tuple[str, ...]
    launches: tuple[Launch, ...]


def _parts(module: Module, program: Program) -> tuple[_Part, ...]:
    """The launches, cut where a foreign call has to be done: before the first launch that reads its result, or before
    the call that does. Calls that nobody here waits for are done last."""
    steps = launches(program)
    first: dict[str, int] = {}
    for at, each in reversed(list(enumerate(steps))):
        first.update(dict.fromkeys(_buffers(each), at))
    done: dict[str, int] = {}
    leaves = [name for name in module.number if name in module.foreign and module[name].opcode != "input"]
    for name in reversed(leaves):
        call = module[name].attributes["call"]
        waiting = [module[user].attributes["call"] for user in _users(module, name)]
        at = min([first.get(module.stand_ins.get(name, ""), len(steps)), *(done[each] for each in waiting)])
        done[call] = min(done.get(call, at), at)
    found = []
    cuts = sorted({0, *done.values()} - {len(steps)})
    order = dict.fromkeys(module[name].attributes["call"] for name in leaves)
    for begin, end in zip(cuts, [*cuts[1:], len(steps)], strict=True):
        found.append(_Part(tuple(each for each in order if done[each] == begin), steps[begin:end]))
    last = tuple(each for each in order if done[each] == len(steps))
    return (*found, _Part(last, ())) if last else tuple(found)


def _users(module: Module, name: str) -> list[str]:
    """The foreign instructions that read a value, perhaps through reshapes."""
    found, stack = [], [name]
    while stack:
        for user in module.users[stack.pop()]:
            if user in module.foreign:
                found.append(user)
            elif module[user].opcode == "reshape" and user not in module.is_output:
                stack.append(user)
    return found


def _shapes(module: Module) -> dict[str, str]:
    """Buffer of the caller -> its instruction and shape, for people."""
    names = (*module.parameters, *module.stand_ins, *module.computed)
    return {module.buffer_of(name): f"{_shape(module, name)} {name}" for name in names}


def _shape(module: Module, name: str) -> str:
    return f"{module[name].dtype}[{','.join(map(str, module[name].dims))}]"


# --- C++ ------------------------------------------------------------------------------------------------


def _header(module: Module, program: Program, arguments: _Arguments) -> str:
    shapes = _shapes(module)
    parts = _runs(module, program)
    lines = [
        f"// Launches {program.name}: {_kernels(program)}. Written by fusiond; for nvcc, beside module.cu.",
        "#pragma once",
        "",
        "#include <cuda_runtime.h>",
        *(f"#include <{each}>" for each in ("cuda_fp16.h", "cuda_bf16.h") if each in program.sources[0].text),
        "",
        *(f'extern "C" __global__ void {_signature(program, entry)};' for entry in program.sources[0].entries),
        "",
        "namespace stitched {",
        "",
        "// Bytes of the scratch buffer: what one kernel hands to another.",
        f"constexpr size_t scratch_bytes = {arguments.scratch_bytes};",
        "",
        "inline cudaError_t step(const void* kernel, unsigned grid, unsigned block, size_t shared, bool cooperative,",
        "                        void** arguments, cudaStream_t stream)",
        "{",
        f"    if (shared > {_STATIC_LIMIT}) {{",
        "        const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;",
        "        const cudaError_t problem = cudaFuncSetAttribute(kernel, most, (int)shared);",
        "        if (problem != cudaSuccess) return problem;",
        "    }",
        "    if (cooperative)",
        "        return cudaLaunchCooperativeKernel(kernel, dim3(grid), dim3(block), arguments, shared, stream);",
        "    return cudaLaunchKernel(kernel, dim3(grid), dim3(block), arguments, shared, stream);",
        "}",
        "",
        "// All tensors are row-major, on the device.",
        *(["// In parts, 0 first; README.txt says what you compute in between."] if len(parts) > 1 else []),
        *(f"//   {each.name:7} {shapes[each.name]}" for each in (*arguments.inputs, *arguments.outputs)),
        "inline cudaError_t launch(",
        ",\n".join(
            [
                *(f"    const {DTYPES[each.dtype][0]}* {each.name}" for each in arguments.inputs),
                *(f"    {DTYPES[each.dtype][0]}* {each.name}" for each in arguments.outputs),
                "    void* scratch",
                *(["    cudaStream_t stream", "    int part)"] if len(parts) > 1 else ["    cudaStream_t stream)"]),
            ]
        ),
        "{",
        "    (void)scratch;",
        *(f"    (void){each.name};" for each in (*arguments.inputs, *arguments.outputs)),
    ]
    types = {each.name: DTYPES[each.dtype][0] for each in program.buffers}
    for name, offset in arguments.scratch.items():
        lines.append(f"    {types[name]}* {name} = ({types[name]}*)((unsigned char*)scratch + {offset});")
    lines.append("    cudaError_t problem = cudaSuccess;")
    for number, launch in ((number, each) for number, part in enumerate(parts) for each in part.launches):
        passed = ", ".join(f"(void*)&{each}" for each in _buffers(launch))
        flag = "true" if launch.cooperative else "false"
        lines += [
            f"    if (part == {number}) {{" if len(parts) > 1 else "    {",
            f"        void* arguments[] = {{{passed}}};",
            f"        problem = step((const void*){launch.entry}, {launch.grid[0]}, {launch.block[0]},"
            f" {launch.shared_bytes}, {flag}, arguments, stream);",
            "        if (problem != cudaSuccess) return problem;",
            "    }",
        ]
    return "\n".join([*lines, "    return problem;", "}", "", "}  // namespace stitched", ""])


def _runs(module: Module, program: Program) -> tuple[_Part, ...]:
    """The parts that launch something."""
    return tuple(each for each in _parts(module, program) if each.launches)


def _signature(program: Program, entry: str) -> str:
    found = re.search(
        rf"__global__ void __launch_bounds__\(\d+\) ({re.escape(entry)}\([^)]*\))", program.sources[0].text
    )
    assert found is not None
    return found[1]


# --- Python ---------------------------------------------------------------------------------------------

_LAUNCHER = '''\
class Kernels:
    """The kernels of a built module.cu. `path`: a .cubin, .fatbin or .ptx; `driver`: libcuda, unless it is another."""

    def __init__(self, path: str, driver=None) -> None:
        self._driver = driver or ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoad", ctypes.byref(self._module), str(path).encode())
        self._functions = {entry: self._function(entry) for entry in sorted({step[0] for step in STEPS})}

    def launch(self, pointers, stream=0, part=0) -> None:
        """Enqueue the steps of a part. `pointers`: device addresses by name (INPUTS, OUTPUTS and "scratch"), as whole
        numbers."""
        known = {*INPUTS, *OUTPUTS} | ({"scratch"} if SCRATCH_BYTES else set())
        if set(pointers) != known:
            raise ValueError(f"pointers are wanted for {', '.join(sorted(known))}")
        places = {name: int(pointer) for name, pointer in pointers.items()}
        for name, offset in SCRATCH.items():
            places[name] = places["scratch"] + offset
        first, last = PARTS[part]
        for entry, grid, block, shared, cooperative, names in STEPS[first:last]:
            values = [ctypes.c_void_p(places[name]) for name in names]
            arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            shape = (grid, 1, 1, block, 1, 1, shared, ctypes.c_void_p(int(stream)), arguments)
            if cooperative:
                self._call("cuLaunchCooperativeKernel", self._functions[entry], *shape)
            else:
                self._call("cuLaunchKernel", self._functions[entry], *shape, None)

    def _function(self, entry):
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, entry.encode())
        most = max(step[3] for step in STEPS if step[0] == entry)
        if most > 48 * 1024:
            self._call("cuFuncSetAttribute", function, 8, most)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        return function

    def _call(self, name, *arguments) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")
'''


def _python(module: Module, program: Program, arguments: _Arguments) -> str:
    shapes = _shapes(module)

    def table(name: str, buffers: tuple[Buffer, ...]) -> list[str]:
        rows = [f"    {each.name!r}: ({each.dtype!r}, {each.elements}),  # {shapes[each.name]}" for each in buffers]
        return [f"{name} = {{", *rows, "}"]

    steps = [
        f"    ({each.entry!r}, {each.grid[0]}, {each.block[0]}, {each.shared_bytes}, {each.cooperative},"
        f" {_buffers(each)!r}),"
        for each in launches(program)
    ]
    ends = list(itertools.accumulate(len(each.launches) for each in _runs(module, program)))
    parts = list(zip([0, *ends], ends, strict=False))
    several = ["In parts, 0 first: launch(..., part=0). README.txt says what you compute in between."]
    return "\n".join(
        [
            f'"""Launches {program.name}: {_kernels(program)}. Written by fusiond.',
            "",
            "    import launch",
            '    kernels = launch.Kernels("module.cubin")',
            '    kernels.launch({"in_0": address, ..., "out_0": address, "scratch": address}, stream=0)',
            "",
            "A CUDA context must be current, whoever made it. The scratch buffer has SCRATCH_BYTES (0: leave it out).",
            *(several if len(parts) > 1 else []),
            '"""',
            "",
            "from __future__ import annotations",
            "",
            "import ctypes",
            "",
            "# Buffer -> (dtype, elements); row-major.",
            *table("INPUTS", arguments.inputs),
            *table("OUTPUTS", arguments.outputs),
            f"SCRATCH_BYTES = {arguments.scratch_bytes}",
            f"SCRATCH = {dict(arguments.scratch)!r}",
            "# (kernel, blocks, threads, dynamic shared bytes, cooperative, buffers)",
            "STEPS = [",
            *steps,
            "]",
            "# What belongs together: (first step, one behind the last)",
            f"PARTS = {parts!r}",
            "",
            "",
            _LAUNCHER,
        ]
    )


# --- README.txt -----------------------------------------------------------------------------------------


def _kernels(program: Program) -> str:
    own = [each for each in launches(program) if not is_library(each)]
    library = len(launches(program)) - len(own)
    text = counted(len(own), "kernel")
    return text + (f" and {library} for dots" if library else "")


def _call(module: Module, call: str) -> str:
    """What the caller computes: from which buffers, into which."""
    leaves = [name for name in module.foreign if module[name].attributes.get("call") == call]
    read = dict.fromkeys(module.base(each).name for each in module[leaves[0]].operands)
    given = [f"{_where(module, name)} {_shape(module, name)}" for name in leaves]
    taken = [_where(module, name) for name in read if module[name].opcode != "constant"]
    return f"{module[leaves[0]].opcode} {call}, from {', '.join(taken) or 'nothing'} to {', '.join(given)}"


def _where(module: Module, name: str) -> str:
    """The buffer of a value that a foreign instruction reads or gives, or its place in the module's results."""
    if name not in module.foreign or name in module.stand_ins:
        return module.buffer_of(name)
    return f"result {module.outputs.index(name)}" if name in module.is_output else name


def _readme(module: Module, program: Program, arguments: _Arguments) -> str:
    shapes = _shapes(module)
    lines = [f"{program.name}: {_kernels(program)}.", "", "Arguments, all row-major on the device:"]
    lines += [f"  {each.name:8} {shapes[each.name]}" for each in (*arguments.inputs, *arguments.outputs)]
    if arguments.scratch_bytes:
        lines.append(f"  scratch  {arguments.scratch_bytes} bytes, aligned to {ALIGNMENT}")
    lines += ["", "Launches, one after the other on one stream:"]
    parts = _parts(module, program)
    number = 0
    for part in parts:
        lines += [f"  yours: {_call(module, each)}" for each in part.calls]
        if part.launches and len(_runs(module, program)) > 1:
            lines.append(f"  part {number}:")
            number += 1
        for each in part.launches:
            kind = " (cooperative)" if each.cooperative else ""
            note = "" if not is_library(each) else "   a plain kernel in place of a library's dot"
            lines.append(f"  {each.name}: {each.grid[0]} x {each.block[0]}, {each.shared_bytes} bytes{kind}{note}")
    lines += [
        "",
        "Python:  launch.py, with module.cubin (nvcc -arch=... -cubin module.cu)",
        "C++:     module.h, with module.cu compiled beside your own sources; stitched::launch(...)",
        "A dot may be replaced by a library's: same operands, same result, row-major. No two buffers may overlap.",
    ]
    return "\n".join([*lines, ""])
