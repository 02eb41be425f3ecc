"""What a user needs to call a stitched module from their own program.

module.cu       the source, all kernels
module.h        for C++ under nvcc: one function that launches all of them in order
launch.py       the same for Python; needs libcuda and a current context (PyCUDA's, PyTorch's, CuPy's), nothing else
README.txt      what goes where

Intermediates that cross kernels lie in one scratch buffer of the caller's.
"""

from __future__ import annotations

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
    return buffer.role is Role.SCRATCH and not buffer.name.startswith("out_")


def _shapes(module: Module) -> dict[str, str]:
    """Buffer of the caller -> its instruction and shape, for people."""
    names = {module.buffer_of(name): name for name in module.parameters}
    names |= {f"out_{place}": name for place, name in enumerate(module.outputs)}
    return {
        buffer: f"{module[name].dtype}[{','.join(map(str, module[name].dims))}] {name}"
        for buffer, name in names.items()
    }


# --- C++ ------------------------------------------------------------------------------------------------


def _header(module: Module, program: Program, arguments: _Arguments) -> str:
    shapes = _shapes(module)
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
        *(f"//   {each.name:7} {shapes[each.name]}" for each in (*arguments.inputs, *arguments.outputs)),
        "inline cudaError_t launch(",
        ",\n".join(
            [
                *(f"    const {DTYPES[each.dtype][0]}* {each.name}" for each in arguments.inputs),
                *(f"    {DTYPES[each.dtype][0]}* {each.name}" for each in arguments.outputs),
                "    void* scratch",
                "    cudaStream_t stream)",
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
    for launch in launches(program):
        passed = ", ".join(f"(void*)&{each}" for each in _buffers(launch))
        flag = "true" if launch.cooperative else "false"
        lines += [
            "    {",
            f"        void* arguments[] = {{{passed}}};",
            f"        problem = step((const void*){launch.entry}, {launch.grid[0]}, {launch.block[0]},"
            f" {launch.shared_bytes}, {flag}, arguments, stream);",
            "        if (problem != cudaSuccess) return problem;",
            "    }",
        ]
    return "\n".join([*lines, "    return problem;", "}", "", "}  // namespace stitched", ""])


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

    def launch(self, pointers, stream=0) -> None:
        """Enqueue all steps. `pointers`: device addresses by name (INPUTS, OUTPUTS and "scratch"), as whole numbers."""
        known = {*INPUTS, *OUTPUTS} | ({"scratch"} if SCRATCH_BYTES else set())
        if set(pointers) != known:
            raise ValueError(f"pointers are wanted for {', '.join(sorted(known))}")
        places = {name: int(pointer) for name, pointer in pointers.items()}
        for name, offset in SCRATCH.items():
            places[name] = places["scratch"] + offset
        for entry, grid, block, shared, cooperative, names in STEPS:
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
    return "\n".join(
        [
            f'"""Launches {program.name}: {_kernels(program)}. Written by fusiond.',
            "",
            "    import launch",
            '    kernels = launch.Kernels("module.cubin")',
            '    kernels.launch({"in_0": address, ..., "out_0": address, "scratch": address}, stream=0)',
            "",
            "A CUDA context must be current, whoever made it. The scratch buffer has SCRATCH_BYTES (0: leave it out).",
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


def _readme(module: Module, program: Program, arguments: _Arguments) -> str:
    shapes = _shapes(module)
    lines = [f"{program.name}: {_kernels(program)}.", "", "Arguments, all row-major on the device:"]
    lines += [f"  {each.name:8} {shapes[each.name]}" for each in (*arguments.inputs, *arguments.outputs)]
    if arguments.scratch_bytes:
        lines.append(f"  scratch  {arguments.scratch_bytes} bytes, aligned to {ALIGNMENT}")
    lines += ["", "Launches, one after the other on one stream:"]
    for each in launches(program):
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
