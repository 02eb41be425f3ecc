"""What the tests of horizontal fusion share: jobs from texts, and a runner of Programs on the processor."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build import nvcc
from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.devices.counting import run as counting
from fusiond.devices.cpu import native
from fusiond.model.gpu.limits import limits
from fusiond.model.inputs.fills import initial
from fusiond.model.language import narrow
from fusiond.model.nouns import Analysis, CompileFacts, DeviceLimits, Workload
from fusiond.model.program import Bytes, Copy, FillStep, Launch, Pointer, Program, Source, SourceLanguage
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse import plugin
from fusiond_hfuse.strategy import Hfuse

Arrays = dict[str, NDArray[Any]]
OPTIMISE = "-O0"  #: What a test compiles runs for milliseconds; the results are those of -O2, bit for bit

CPU = DeviceLimits(
    multiprocessors=1, registers_per_sm=0, shared_bytes_per_sm=227 * 1024, shared_bytes_per_block=227 * 1024,
    threads_per_sm=1024, blocks_per_sm=1,
)  # fmt: skip
"""As the cpu device says of itself: registers mean nothing there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = [tool for tool in ("nvcc", "ptxas") if shutil.which(tool) is None]
    if lacking:
        skip = pytest.mark.skip(reason=f"needs {' and '.join(lacking)} on PATH")
        for item in items:
            if "needs_nvcc" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def registry() -> Registry:
    registry = Registry()
    registry.add(plugin, "hfuse")
    return registry


@pytest.fixture(scope="session")
def strategy() -> Hfuse:
    return Hfuse()


@pytest.fixture
def parse(registry: Registry, strategy: Hfuse, tmp_path: Path) -> Callable[..., Workload]:
    """A workload from a job's text, or from a pair of names and sizes; paths are relative to `tmp_path`.

    `compiled`: with a compiler for what the front end for C++ does not take."""

    def parse(
        *pair: str,
        text: str = "",
        sizes: Mapping[str, int] | None = None,
        granularity: int = 128,
        compiled: bool = False,
    ) -> Workload:
        if not text:
            key = "pair" if len(pair) == 2 else "kernels"
            lines = ["strategy: hfuse", f"{key}: [{', '.join(pair)}]", f"granularity: {granularity}"]
            if sizes:
                lines.append("sizes: {" + ", ".join(f"{name}: {value}" for name, value in sizes.items()) + "}")
            text = "\n".join(lines)
        (job,) = jobs.read(tmp_path / "job.yaml", text)
        jobs.check_keys(job, strategy.job_keys)
        compiler = nvcc.compiled if compiled else None
        return strategy.parse(job, jobs.JobInputs(registry, job, compiler=compiler))

    return parse


@pytest.fixture(scope="session")
def cpu_target() -> Target:
    return Target(arch="cpu", limits=CPU, facts=lambda source: None)


def facts_of(registers: int = 32, shared_bytes: int = 0, **used: int) -> Callable[[Source], dict[str, CompileFacts]]:
    """What ptxas would say: registers of the kernels that are named by the beginning of their entries, and of the
    others."""

    def facts(source: Source) -> dict[str, CompileFacts]:
        own = {entry: next((n for name, n in used.items() if entry.startswith(name)), registers)
               for entry in source.entries}  # fmt: skip
        return {
            entry: CompileFacts(arch="sm_90", entry=entry, registers=number, shared_bytes=shared_bytes, barriers=1,
                                stack_bytes=0, spill_store_bytes=0, spill_load_bytes=0)
            for entry, number in own.items()
        }  # fmt: skip

    return facts


def gpu(facts: Callable[[Source], Any]) -> Target:
    return Target(arch="sm_90", limits=limits("sm_90"), facts=facts)


@pytest.fixture
def h100() -> Target:
    """A GPU's limits, with facts that need no compiler."""
    return gpu(facts_of(histogram=13))


def assembled(source: Source, folder: Path, arch: str = "sm_90", *flags: str) -> tuple[str, str]:
    """PTX, and what ptxas says of it; both compilers without a warning. `flags` of nvcc."""
    (folder / "source.cu").write_text(source.text)
    ptx = folder / "source.ptx"
    for command in (
        ["nvcc", f"-arch={arch}", "-ptx", *flags, *(f"-D{name}={value}" for name, value in source.defines),
         str(folder / "source.cu"), "-o", str(ptx)],
        ["ptxas", f"-arch={arch}", "-v", "--warning-as-error", str(ptx), "-o", str(folder / "source.cubin")],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return ptx.read_text(), done.stderr


STRICT = ("--Werror", "all-warnings", "-Xcompiler", "-Wall")  #: Flags of nvcc for what it has to take without a word


@pytest.fixture
def analyse(parse: Callable[..., Workload], strategy: Hfuse, cpu_target: Target) -> Callable[..., Analysis]:
    """The analysis of a pair on the processor."""

    def analyse(*pair: str, target: Target = cpu_target, **job: Any) -> Analysis:
        return strategy.analyse(parse(*pair, **job), target)

    return analyse


@pytest.fixture
def kernel_file(tmp_path: Path) -> Callable[..., str]:
    """Writes NAME.cu and NAME.yaml, and gives what a job calls them."""

    def write(name: str, source: str, yaml: str) -> str:
        (tmp_path / f"{name}.cu").write_text(source)
        (tmp_path / f"{name}.yaml").write_text(yaml)
        return f"./{name}.yaml"

    return write


class Runner:
    """Builds sources with g++ and runs Programs on the cpu device's runtime, in this process."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        subprocess.run([*commands.header(folder), OPTIMISE], check=True, capture_output=True)
        self.runtime = native.Runtime(library)

    def build(self, source: Source) -> Path:
        text = "".join(f"#define {name} {value}\n" for name, value in source.defines) + lower(source.text)
        unit = commands.translation_unit(
            text,
            {f"entry{i}": entry for i, entry in enumerate(source.entries)},
            {f"symbol{i}": symbol for i, symbol in enumerate(source.symbols)},
        )
        out = self.folder / (hashlib.sha256(unit.encode()).hexdigest()[:24] + ".so")
        if not out.exists():
            cpp = out.with_suffix(".cpp")
            cpp.write_text(unit)
            done = subprocess.run(
                commands.kernel(cpp, out, flags=[OPTIMISE], precompiled=self.folder), capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return out

    def entry(self, source: Source, name: str) -> tuple[native.NativeEntry, native.NativeModule]:
        module = self.runtime.load(self.build(source))
        return module.entry(f"entry{source.entries.index(name)}"), module

    def run(self, program: Program, *, seed: int = 1, order: int = 0, checked: bool = True) -> Arrays | native.Fault:
        """All buffers after one run, or the first fault. `order` is the scheduler's seed, 0 for in order; of PTX there
        is one order, and only what is compared is left."""
        if any(each.language is SourceLanguage.PTX for each in program.sources):
            counted = counting.count(program, seed=seed, budget=None)
            failed = [counted.broke or "", *(row.failed for row in counted.rows)]
            assert not any(failed), failed
            return dict(counted.outputs)
        arrays: Arrays = {buffer.name: initial(buffer, seed).copy() for buffer in program.buffers}
        for each in program.buffers:
            if each.part_of is not None:
                arrays[each.name] = arrays[each.part_of][-each.elements :]
        for step in program.steps:
            if isinstance(step, FillStep):
                arrays[step.buffer].view(np.uint8)[:] = step.byte
                continue
            if isinstance(step, Copy):
                for name, target in step.messages:
                    arrays[target].view(np.uint8)[:] = arrays[name].view(np.uint8)
                continue
            assert isinstance(step, Launch)
            source = program.source(step.source)
            entry, module = self.entry(source, step.entry)
            launch = native.NativeLaunch(
                grid=step.grid, block=step.block, shared_bytes=step.shared_bytes, seed=order, checked=checked
            )
            arguments = [
                arrays[each.buffer]
                if isinstance(each, Pointer)
                else each.filled(lambda name: arrays[name].ctypes.data)
                if isinstance(each, Bytes)
                else narrow.scalar(each.dtype, each.value)
                for each in step.arguments
            ]
            variables = {
                buffer.name: module.symbol(f"symbol{source.symbols.index(buffer.symbol.partition(':')[2])}")
                for buffer in program.buffers
                if buffer.symbol is not None and buffer.symbol.partition(":")[0] == source.name
            }
            for name, memory in variables.items():
                memory[: arrays[name].nbytes] = arrays[name].view(np.uint8)
            done = self.runtime.launch(entry, launch, arguments)
            if isinstance(done, native.Fault):
                return done
            for name, memory in variables.items():
                arrays[name].view(np.uint8)[:] = memory[: arrays[name].nbytes]
        return arrays


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, scheduler_library: Path) -> Runner:
    return Runner(tmp_path_factory.mktemp("cpu"), scheduler_library)


def outputs(program: Program, arrays: Arrays) -> Arrays:
    return {buffer.name: arrays[buffer.name] for buffer in program.buffers if buffer.role.compared}


@pytest.fixture(scope="session")
def same(runner: Runner) -> Callable[[Program, Program], None]:
    """Asserts that two programs give the same outputs, for two seeds of data and three schedules."""

    def same(program: Program, reference: Program) -> None:
        for seed in (1, 2):
            wanted = runner.run(reference, seed=seed)
            assert isinstance(wanted, dict), wanted
            for order in (0, 7):
                got = runner.run(program, seed=seed, order=order)
                assert isinstance(got, dict), got
                for name, array in outputs(reference, wanted).items():
                    np.testing.assert_array_equal(outputs(program, got)[name], array, err_msg=name)

    return same


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/plugins/hfuse/golden; FUSIOND_UPDATE_GOLDEN=1 writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if os.environ.get("FUSIOND_UPDATE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; FUSIOND_UPDATE_GOLDEN=1 writes it"
        assert text == path.read_text()

    return compare


# --- kernels that have what the catalogue's lack --------------------------------------------------------

TILES = """\
#include <stdint.h>
#include "shared/square.cuh"
#define LANES (blockDim.x * blockDim.y)
#define SYNC() __syncthreads()
namespace tiles {
__constant__ float scale = 0.5f;
// Sums squares of a tile; every block of a two-dimensional grid writes one number.
template <typename T, int Most>
__global__ void __launch_bounds__(Most) sum(T* __restrict__ partial, const T* x, int64_t n)
{
    __shared__ T lane[Most];
    const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block * 3 > gridDim.x * gridDim.y * 3) return;
    T mine = 0;
    for (int64_t i = block * LANES + me; i < n; i += LANES * gridDim.x * gridDim.y) mine += square(x[i]);
    lane[me] = mine;
    SYNC();
    for (unsigned half = LANES / 2; half > 0; half /= 2) {
        if (me < half) lane[me] += lane[me + half];
        SYNC();
    }
    if (me == 0) partial[block] = lane[0] * T(scale);
}
}
extern "C" __global__ void unrelated(int* p) { p[threadIdx.x] = 1; }
"""
TILES_YAML = """\
kernel: tiles
source: tiles.cu
entry: tiles::sum
instance: "tiles::sum<double, 512>"
sizes: {n: 3001, across: 3, down: 5}
arguments:
  - {name: partial, dtype: float64, elements: across * down, role: output}
  - {name: x, dtype: float64, elements: n, role: input, fill: {integers: [-9, 9]}}
  - {name: n, dtype: int64, value: n}
block: {shape: [16, 8], tune: x}
grid: [across, down]
"""
SHIFT = """\
#pragma once
#include "shared/square.cuh"
#define LANES 7
// Reverses cells within a block through dynamic shared memory; blocks and threads have three dimensions.
__global__ void reverse(int *out, const int *in, const unsigned char *key)
{
    extern __shared__ int cells[];
    const int count = blockDim.x * blockDim.y * blockDim.z;
    const int me = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int base = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * count;
    cells[me] = in[base + me] + square(int(key[0])) + LANES;
    __syncthreads();
    auto other = [=] { return count - 1 - me; };
    out[base + me] = cells[other()] * BLOCK + threadIdx.z;
}
"""
SHIFT_YAML = """\
kernel: reverse
source: reverse.cu
entry: reverse
defines: {BLOCK: "block.x * block.y * block.z", UNUSED: "float"}
sizes: {gx: 2, gy: 3, gz: 2}
arguments:
  - {name: out, dtype: int32, elements: gx * gy * gz * 64, role: output}
  - {name: in, dtype: int32, elements: gx * gy * gz * 64, role: input, fill: iota}
  - {name: key, dtype: uint8, elements: 1, role: input, fill: {constant: 3}}
block: {shape: [8, 4, 2]}
grid: [gx, gy, gz]
shared: 4 * block.x * block.y * block.z
"""
SQUARE = """\
#pragma once
template <typename T> __device__ inline T square(T value) { return value * value; }
static __device__ int never_called(int value) { return value; }
"""

EARLY = """\
__global__ void early(float* out, const float* x, int n)
{
    extern __shared__ float cells[];
    if (blockIdx.x * blockDim.x >= n) return;
    cells[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 3 == 0) return;
    out[i] = cells[blockDim.x - 1 - threadIdx.x];
}
"""
EARLY_YAML = """\
kernel: early
source: early.cu
entry: early
sizes: {n: 1024}
arguments:
  - {name: out, dtype: float32, elements: n, role: inout, fill: zeros}
  - {name: x, dtype: float32, elements: n, role: input, fill: {uniform: [0, 1]}}
  - {name: n, dtype: int32, value: n}
block: {shapes: [[128], [256], [512]]}
grid: [3 + n // block.x]
shared: 4 * block.x
"""
BLOCK_SUM = """\
#define thread threadIdx.x
#define block blockIdx.x
extern __shared__ double pool[];
__device__ int lane();
template <typename T> __device__ T warp_sum(T v)
{
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
template <typename T> __device__ T block_sum(T v)
{
    v = warp_sum<T>(v);
    if (lane() == 0) pool[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) for (unsigned w = 1; w < blockDim.x / 32; ++w) v += T(pool[w]);
    return v;
}
__device__ int lane() { return threadIdx.x % 32; }
template <typename T> __global__ void sums(T* out, const T* x, int N)
{
    const int n = N;
    T v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = block_sum<T>(v);
    if (thread == 0) out[block] = v + lane ();
}
"""
BLOCK_SUM_YAML = """\
kernel: sums
source: sums.cu
entry: sums
instance: "sums<long>"
sizes: {n: 4001, blocks: 5}
arguments:
  - {name: out, dtype: int64, elements: blocks, role: output}
  - {name: x, dtype: int64, elements: n, role: input, fill: {integers: [-1000, 1000]}}
  - {name: n, dtype: int32, value: n}
block: {shape: [256], tune: x}
grid: [blocks]
shared: 8 * ceil_div(block.x, 32)
"""


@pytest.fixture
def zoo(tmp_path: Path, kernel_file: Callable[..., str]) -> dict[str, str]:
    """Name -> what a job calls the kernel."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "square.cuh").write_text(SQUARE)
    return {
        "tiles": kernel_file("tiles", TILES, TILES_YAML),
        "reverse": kernel_file("reverse", SHIFT, SHIFT_YAML),
        "early": kernel_file("early", EARLY, EARLY_YAML),
        "sums": kernel_file("sums", BLOCK_SUM, BLOCK_SUM_YAML),
    }
