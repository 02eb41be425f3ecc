"""What a user takes along: the Python module carries out the plan, the CUDA C++ compiles and says the same."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu import native
from fusiond.fills import initial
from fusiond.model import Analysis, BuildFailed, Config
from fusiond.program import Copy, Program, Role, SourceKind
from fusiond_transfer.strategy import Transfer

WAYS = {
    "serial": {"grouping": "fewest", "send": "message", "memory": "pageable", "issue": "one_stream"},
    "overlapped": {"grouping": "fewest_tight", "send": "message", "memory": "pinned", "issue": "overlapped"},
    "batch": {"grouping": "fewest", "send": "batch", "memory": "pinned", "issue": "overlapped"},
}


def exported(analysis: Analysis, strategy: Transfer, **config: str) -> tuple[Program, dict[str, str]]:
    chosen = Config.of(config)
    made = strategy.emit(analysis, chosen, {})
    assert isinstance(made, Program), made
    return made, dict(strategy.export(analysis, chosen, made))


class Stand:
    """Drives an exported module on the processor: device memory is memory, streams are done at once, kernels run on the
    cpu device's runtime. Waiting for what was not recorded is an error."""

    def __init__(self, program: Program, cache: BuildCache, library: Path) -> None:
        self._runtime = native.Runtime(library)
        self._program = program
        self._recorded: set[str] = set()
        self._memory: dict[int, Any] = {}
        self.copies = 0
        self._built = {}
        for source in program.sources:
            built = gxx.build(source, cache=cache)
            assert not isinstance(built, BuildFailed), built.reason
            self._built[source.name] = built

    def host(self, size: int, pinned: bool) -> Any:
        return np.full(size, 0xA5, np.uint8)

    def allocate(self, size: int) -> Any:
        block = np.full(size, 0xA5, np.uint8)
        self._memory[block.ctypes.data] = block
        return block

    def free(self, block: Any) -> None:
        block[:] = 0xDD

    def address(self, block: Any) -> int:
        return int(block.ctypes.data)

    def _bytes(self, address: int, size: int) -> Any:
        for begin, block in self._memory.items():
            if begin <= address and address + size <= begin + block.size:
                return block[address - begin : address - begin + size]
        raise AssertionError("an address outside all blocks")

    def up(self, target: int, source: Any, size: int, stream: int) -> None:
        self._bytes(target, size)[:] = source
        self.copies += 1

    def down(self, target: Any, source: int, size: int, stream: int) -> None:
        target[:] = self._bytes(source, size)
        self.copies += 1

    def launch(
        self, source: str, entry: str, grid: Any, block: Any, shared: int, arguments: list[Any], stream: int
    ) -> None:
        text = self._program.source(source)
        module = self._runtime.load(self._built[source])
        shape = native.Launch(grid=grid, block=block, shared_bytes=shared, seed=0, checked=False)
        done = self._runtime.launch(module.entry(gxx.exported(text, entry)), shape, arguments)
        assert not isinstance(done, native.Fault), done

    def call(self, source: str, entry: str, arguments: list[Any]) -> None:
        function = ctypes.CDLL(str(self._built[source]))[entry]
        function.restype = None
        function(*[
            each if isinstance(each, ctypes.c_void_p) else np.ctypeslib.as_ctypes_type(each.dtype)(each.item())
            for each in arguments
        ])  # fmt: skip

    def record(self, name: str, stream: int) -> None:
        self._recorded.add(name)

    def wait(self, stream: int, names: list[str]) -> None:
        assert set(names) <= self._recorded

    wait_on_host = wait

    def finish(self) -> None:
        pass


def module_of(files: dict[str, str], folder: Path) -> Any:
    (name,) = (each for each in files if each.endswith(".py"))
    (folder / name).write_text(files[name])
    spec = importlib.util.spec_from_file_location(f"exported_{name[:-3]}", folder / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["fig2", "cholesky", "cg"])
def test_the_python_module_carries_out_the_plan(
    name: str, way: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, tmp_path: Path,
    shared_cache: Path, scheduler_library: Path,
) -> None:  # fmt: skip
    sizes = {"fig2": "{elements: 301}", "cholesky": "{n: 7}", "cg": "{side: 6}"}[name]
    program, files = exported(analyse(name, f"sizes: {sizes}"), strategy, **WAYS[way])
    wanted = device.run(program)
    stand = Stand(program, BuildCache(shared_cache), scheduler_library)
    module = module_of(files, tmp_path)
    plan = getattr(module, name.capitalize())(stand)
    for buffer in program.buffers:
        if buffer.role is Role.INPUT:
            plan.arrays[buffer.name][:] = initial(buffer, 0)
    for _ in range(2):  # a plan can be run again
        plan.run()
        for output, values in wanted.items():
            np.testing.assert_array_equal(plan.arrays[output], values, err_msg=output)
    assert stand.copies > 0


def test_with_allocations_of_its_own(
    analyse: Callable[..., Analysis], strategy: Transfer, device: Any, tmp_path: Path, shared_cache: Path,
    scheduler_library: Path,
) -> None:  # fmt: skip
    analysis = analyse("fig2", "sizes: {elements: 301}", "allocations: counted")
    for allocation in ("group", "pooled"):
        program, files = exported(analysis, strategy, **WAYS["overlapped"], allocation=allocation)
        plan = module_of(files, tmp_path).Fig2(Stand(program, BuildCache(shared_cache), scheduler_library))
        for buffer in program.buffers:
            if buffer.role is Role.INPUT:
                plan.arrays[buffer.name][:] = initial(buffer, 0)
        plan.run()
        for output, values in device.run(program).items():
            np.testing.assert_array_equal(plan.arrays[output], values)
        assert "cudaFree" in files["fig2.cu"]
        assert ("cudaMallocAsync" in files["fig2.cu"]) == (allocation == "pooled")


def test_the_text_has_the_layout_and_the_copies_in_order(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    program, files = exported(analyse("fig2"), strategy, **WAYS["serial"])
    assert set(files) == {"fig2.h", "fig2.cu", "fig2_device_kernels.cu", "fig2_host_kernels.cpp", "fig2.py"}
    text = files["fig2.cu"]
    copies = [line.strip() for line in text.splitlines() if "cudaMemcpyAsync" in line]
    assert len(copies) == sum(isinstance(step, Copy) for step in program.steps) == 4
    first = "FUSIOND_TRY(cudaMemcpyAsync(plan->A_device, plan->A, 49152, cudaMemcpyHostToDevice, plan->streams[0]));"
    assert copies[0] == f"{first}  // A, B, C"
    assert "plan->B_device = (unsigned int*)((char*)base + 16384);" in text
    order = [text.index(f"// {step.name}\n") for step in program.steps]
    assert order == sorted(order)


def test_two_sources_may_use_one_name(analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path) -> None:
    (tmp_path / "one.cpp").write_text('extern "C" void f(const unsigned* a, unsigned* b) { b[0] = a[0] + 1; }\n')
    (tmp_path / "two.cpp").write_text('extern "C" void f(const unsigned* a, unsigned* b) { b[0] = a[0] * 2; }\n')
    text = (
        "graph: twins\nsizes: {elements: 1}\ninputs: [a]\noutputs: [c, d]\nkernels:\n"
        "  - {name: k0, on: host, reads: [a], writes: [b], source: one.cpp, entry: f}\n"
        "  - {name: k1, on: host, reads: [b], writes: [c], source: two.cpp, entry: f}\n"
        "  - {name: k2, on: device, reads: [c], writes: [d]}\n"
    )
    _, files = exported(analyse(text), strategy, **WAYS["serial"])
    assert files["twins_host_1.cpp"].startswith("#define f f_host_1\n")
    assert "    f_host_1(plan->b, plan->c);" in files["twins.cu"]


@pytest.mark.slow
@pytest.mark.needs_nvcc
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_nvcc_compiles_and_links_the_export(
    way: str, arch: str, analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path
) -> None:
    name = {"serial": "cholesky_host_syrk", "overlapped": "fig2", "batch": "cg"}[way]
    _, files = exported(analyse(name), strategy, **WAYS[way])
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    sources = sorted(file for file in files if file.endswith((".cu", ".cpp")))
    done = subprocess.run(
        ["nvcc", f"-arch={arch}", "-std=c++17", "-Werror", "all-warnings", "-shared", "-Xcompiler", "-fPIC", "-o", "x",
         *sources], cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


WORDS = """graph: NAME
inputs: [int, for, streams, plan, a, a_device]
outputs: [double, while]
kernels:
  - {name: return, on: device, reads: [int, for, streams, a, a_device], writes: [double]}
  - {name: class, on: host, reads: [double, plan], writes: [while]}
"""


@pytest.mark.parametrize(
    ("name", "called"), [("int", "Int"), ("none", "PlanNone"), ("path", "PlanPath"), ("_1", "Plan1")]
)
def test_the_python_module_has_a_name_of_its_own(
    name: str, called: str, analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    _, files = exported(analyse(WORDS.replace("NAME", name)), strategy, **WAYS["serial"])
    (text,) = (text for file, text in files.items() if file.endswith(".py"))
    compile(text, "plan.py", "exec")
    assert f"class {called}:" in text


@pytest.mark.needs_nvcc
def test_names_that_are_words_of_the_language_compile(
    analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path
) -> None:
    _, files = exported(analyse(WORDS.replace("NAME", "int")), strategy, **WAYS["serial"])
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    done = subprocess.run(
        ["nvcc", "-arch=sm_75", "-std=c++17", "-Werror", "all-warnings", "-c", "-o", "x", "int_.cu"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.needs_nvcc
def test_nvcc_takes_the_default_bodies_of_every_type(
    analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path
) -> None:
    kernels = "\n".join(
        f"  - {{name: k{number}, on: device, reads: [a{number}], writes: [b{number}]}}" for number in range(6)
    )
    types = ("int32", "uint32", "int64", "uint64", "float32", "float64")
    vectors = "\n".join(f"  {letter}{n}: {{dtype: {dtype}}}" for letter in "ab" for n, dtype in enumerate(types))
    text = (
        f"graph: types\nsizes: {{elements: 8}}\ninputs: [{', '.join(f'a{n}' for n in range(6))}]\n"
        f"outputs: [{', '.join(f'b{n}' for n in range(6))}]\nvectors:\n{vectors}\nkernels:\n{kernels}\n"
    )
    program, _ = exported(analyse(text), strategy, **WAYS["serial"])
    (source,) = (each for each in program.sources if each.kind is SourceKind.DEVICE)
    (tmp_path / "k.cu").write_text(source.text)
    done = subprocess.run(
        ["nvcc", "-arch=sm_75", "-Werror", "all-warnings", "-cubin", "-o", "k.cubin", "k.cu"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_module_without_a_gpu_says_what_is_missing(
    analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, files = exported(analyse("fig2"), strategy, **WAYS["serial"])
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(ImportError):
        module_of(files, tmp_path).Fig2()
