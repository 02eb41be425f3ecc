"""Exports of programs that are PTX: both launchers, with the cubin that was measured and without it."""

import ctypes
import dataclasses
import functools
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx, nvcc, ptxas
from fusiond.build.exporting import adapters
from fusiond.build.exporting.adapters import getter
from fusiond.build.exporting.files import export, file_stem
from fusiond.devices.counting import layout
from fusiond.devices.cpu import native
from fusiond.devices.cpu.interpreted import InterpretedEntry, InterpretedModule
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Buffer, Program, Role, Source, SourceLanguage, problems
from tests.build.exporting import programs
from tests.build.exporting.driver import Driver, OnDevice, Op

pytestmark = [pytest.mark.needs_nvcc, pytest.mark.slow]
CAP = 24
TEXT = (
    programs.BASIC.replace("ns::", "")
    + """
__constant__ float table[4];
extern "C" __global__ void lookup(float* y, int n) { y[threadIdx.x] = table[threadIdx.x % 4]; }
"""
)


@functools.cache
def written() -> str:
    """The kernels as nvcc writes them, the template's under a plain name."""
    made = nvcc.named_ptx(Source(name="basic", text=TEXT, entries=(programs.SCALE, "add"), symbols=("table",)), "sm_75")
    assert not isinstance(made, BuildFailed), made.reason
    return made.text.replace(made.names[programs.SCALE], "scale").replace(made.symbols["table"], "table")


def of_ptx(**changes: Any) -> Program:
    """`programs.several` over the same kernels as PTX."""
    source = Source(
        name="basic", text=written(), entries=("scale", "add", "reverse", "lookup"), symbols=("table",),
        language=SourceLanguage.PTX, register_cap=CAP,
    )  # fmt: skip
    made = programs.several().program
    steps = [
        dataclasses.replace(each, entry="scale" if each.entry == programs.SCALE else each.entry)
        for each in made.launches
    ]
    made = dataclasses.replace(made, steps=tuple(steps), sources=(dataclasses.replace(source, **changes),))
    table = Buffer(name="table", dtype="float32", elements=4, role=Role.INOUT, symbol="basic:table")
    made = dataclasses.replace(made, buffers=(*made.buffers, table))
    assert problems(made) == ()
    return made


def folder_of(program: Program, folder: Path, *, with_cubin: bool) -> Path:
    folder.mkdir()
    binaries = {}
    if with_cubin:
        built = nvcc.build(program.sources[0], "sm_90")
        assert isinstance(built, ptxas.Cubin), built
        binaries["basic"] = built.path
    for name, data in export(program, about={}, binaries=binaries, arch="sm_90").items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("with_cubin", [True, False])
def test_nvcc_compiles_and_links_it(with_cubin: bool, tmp_path: Path) -> None:
    program = of_ptx()
    folder = folder_of(program, tmp_path / "out", with_cubin=with_cubin)
    toolkit = nvcc.find()
    assert toolkit is not None
    (folder / "main.cpp").write_text(
        f'#include "{file_stem(program)}.h"\nint main() {{ {adapters.space(program)}::Launcher launcher; return 0; }}\n'
    )
    strict = ["-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    files = ["basic.entries.cpp", f"{file_stem(program)}.cpp", "main.cpp"]
    done = subprocess.run(
        [toolkit.nvcc, *strict, *files, "-o", "run"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr + done.stdout) == (0, "")


STUB = """\
#pragma once
#include <cstring>
// A runtime that takes cubins only where TAKES_CUBINS, and says what it was asked.
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidKernelImage = 200, cudaErrorNotFound = 500 };
struct cudaFuncAttributes { int registers; };
typedef struct library_ { const char* image; }* cudaLibrary_t;
typedef struct kernel_ { char name[64]; }* cudaKernel_t;
inline int unloaded = 0;
inline cudaError_t cudaLibraryLoadData(cudaLibrary_t* made, const void* image, void*, void**, unsigned, void*, void**,
                                       unsigned) {
    *made = new library_{static_cast<const char*>(image)};
    return cudaSuccess;
}
inline cudaError_t cudaLibraryUnload(cudaLibrary_t) { ++unloaded; return cudaSuccess; }
inline cudaError_t cudaLibraryGetKernel(cudaKernel_t* found, cudaLibrary_t of, const char* name) {
    if (!of) return cudaErrorNotFound;
    *found = new kernel_;
    std::strcpy((*found)->name, name);
    (*found)->name[63] = std::memcmp(of->image, "\\x7f" "ELF", 4) == 0;
    return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* of) {
    return !TAKES_CUBINS && static_cast<const kernel_*>(of)->name[63] ? cudaErrorInvalidKernelImage : cudaSuccess;
}
inline cudaError_t cudaLibraryGetGlobal(void** found, std::size_t*, cudaLibrary_t of, const char* name) {
    *found = std::strcmp(name, "table") ? nullptr : const_cast<char*>(of->image);
    return *found ? cudaSuccess : cudaErrorNotFound;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
"""


@pytest.mark.parametrize("takes_cubins", [True, False])
def test_the_cubin_is_taken_where_it_loads_else_the_text(takes_cubins: bool, tmp_path: Path, gxx_here: None) -> None:
    program = of_ptx()
    folder = folder_of(program, tmp_path / "out", with_cubin=True)
    (folder / "cuda_runtime.h").write_text(STUB.replace("#pragma once", f"#define TAKES_CUBINS {int(takes_cubins)}", 1))
    entry, symbol = (getter(program, "basic", what) for what in ("entry", "symbol"))
    (folder / "main.cpp").write_text(
        '#include <cstdio>\n#include "basic.entries.cpp"\n'
        "int main() {\n"
        f"    for (int i = 0; i < 4; ++i) {{\n"
        f"        const auto* found = static_cast<const kernel_*>({entry}(i));\n"
        '        std::printf("%s %d\\n", found->name, found->name[63]);\n    }\n'
        f'    std::printf("%.8s %d\\n", static_cast<const char*>({symbol}(0)) + 1, unloaded);\n}}\n'
    )
    compiler = gxx.find()
    assert compiler is not None
    subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I.", "main.cpp", "-o", "run"], cwd=folder,
                   check=True)  # fmt: skip
    said = subprocess.run([folder / "run"], capture_output=True, check=True).stdout.decode(errors="replace").split("\n")
    assert said[:4] == [f"{name} {int(takes_cubins)}" for name in program.sources[0].entries]
    assert said[4].startswith("ELF" if takes_cubins else "version ")
    assert said[4].endswith("0" if takes_cubins else "1")


class PtxDriver(Driver):
    """The stand-in, whose modules are texts that the interpreter runs."""

    folder: Path
    loaded: bytes = b""
    reachable: dict[str, Any]

    def cuModuleLoadData(self, into: Any, image: Any) -> int:  # noqa: N802
        self.loaded = image.value
        (self.folder / "loaded.ptx").write_bytes(image.value)
        self._make(into)
        self.modules[into._obj.value] = InterpretedModule(self.folder / "loaded.ptx")  # type: ignore[assignment]
        return 0

    def _launch(self, function: int, shape: list[int], stream: int, places: Any, *, cooperative: bool) -> int:
        entry: Any = self.functions[function]
        assert isinstance(entry, InterpretedEntry)
        arguments = [ctypes.string_at(places[i], size) for i, size in enumerate(entry.argument_bytes)]
        grid, block = (shape[0], shape[1], shape[2]), (shape[3], shape[4], shape[5])
        launch = native.NativeLaunch(grid=grid, block=block, shared_bytes=shape[6])

        def work() -> None:
            memory = {str(k): np.frombuffer(each, np.uint8) for k, each in self.memory.items()}
            done = entry.launch(launch, arguments, {**self.reachable, **memory})
            assert isinstance(done, native.Finished), done

        self.enqueue(Op(stream, work))
        return 0


def on_a_boundary(array: Any) -> Any:
    """A copy that begins where the driver's allocations may; NumPy's own begin at any multiple of 16."""
    room = layout.aligned(array.nbytes).view(array.dtype)
    room[:] = array.ravel()
    return room


def test_python_hands_the_text_to_the_driver_where_no_cubin_is(tmp_path: Path, scheduler_library: Path) -> None:
    program = of_ptx()
    folder = folder_of(program, tmp_path / "out", with_cubin=False)
    spec = importlib.util.spec_from_file_location("launch_ptx", folder / "launch.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    driver = PtxDriver(scheduler_library)
    driver.folder = tmp_path
    launcher = module.Launcher(driver=driver, cache=tmp_path / "cache")
    given = {name: on_a_boundary(each) for name, each in programs.inputs(program).items()}
    y = on_a_boundary(np.zeros(300, np.float32))
    driver.reachable = {"x": given["x"].view(np.uint8), "y": y.view(np.uint8)}
    launcher.launch({"x": OnDevice(given["x"]), "y": OnDevice(y), "table": given["table"]})
    driver.drain()
    t = 2 * given["x"] + 5
    np.testing.assert_array_equal(y, t[::-1] + t)
    assert driver.loaded.count(b".maxnreg 24") == 4
    launcher.close()
