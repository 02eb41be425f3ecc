"""What only a GPU can show. Everything runs as users run it: a bundle, in a process of its own."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.model.program import (
    Buffer,
    Compare,
    Copy,
    Fill,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
    SourceKind,
    Step,
)

pytestmark = pytest.mark.needs_gpu

N = 1 << 16
KERNELS = """\
__constant__ float weights[4];
template <class T> __global__ void scale(T* x, int n, T by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
__global__ void weigh(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += weights[i % 4];
}
__global__ void stray(float* x, int n) { x[n] = 1; x[-1] = 1; }
__global__ void crash(float* x, int n) { *(volatile float*)(0x10) = 1; }
__global__ void spread(float* x, int n) {
    extern __shared__ float values[];
    for (int i = threadIdx.x; i < 20000; i += blockDim.x) values[i] = i;
    __syncthreads();
    if (threadIdx.x < n) x[threadIdx.x] = values[19999 - threadIdx.x];
}
"""
SOURCE = Source(
    name="k", text=KERNELS, entries=("scale<float>", "weigh", "stray", "crash", "spread"), symbols=("weights",)
)
X = Buffer(
    name="x", dtype="float32", elements=N, role=Role.INOUT, fill=Fill(kind="iota"),
    compare=Compare(kind="close", rtol=1e-5),
)  # fmt: skip


def launch(name: str, entry: str = "scale<float>", *, on: str = "x", **values: Any) -> Launch:
    arguments = [Pointer(buffer=on), Scalar(dtype="int32", value=N)]
    if entry == "scale<float>":
        arguments.append(Scalar(dtype="float32", value=0.5))
    given = {"source": "k", "entry": entry, "grid": (N // 256, 1, 1), "block": (256, 1, 1)}
    return Launch(**{"name": name, **given, "arguments": tuple(arguments), **values})


def plan(
    *steps: Step, buffers: tuple[Buffer, ...] = (X,), sources: tuple[Source, ...] = (SOURCE,), **values: Any
) -> Program:
    return Program(name="test", buffers=buffers, sources=sources, steps=steps, **values)


def run(program: Program, folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    provider = CudaProvider()
    device = provider.devices()[0]
    binaries = {}
    for source in program.sources:
        built = provider.build(source, device.arch)
        assert hasattr(built, "path"), built
        binaries[source.name] = built.path
    write_bundle(folder / "bundle", program, binaries)
    outputs = folder / "outputs.npz"
    command = [sys.executable, "-m", "fusiond.devices.cuda.run", str(folder / "bundle"), "--outputs", str(outputs)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=100, check=False)
    arrays = dict(np.load(outputs)) if outputs.is_file() else {}
    return done, arrays


IOTA = np.arange(N, dtype=np.float32)


@pytest.mark.parametrize("issue", ["streams", "graph"])
def test_results_and_times(tmp_path: Path, issue: str) -> None:
    y = dataclasses.replace(X, name="y")
    steps = (launch("a", stream=0), launch("b", on="y", stream=1), launch("c", stream=0, after=("b",)))
    done, arrays = run(plan(*steps, buffers=(X, y), issue=issue), tmp_path, "--samples", "10")
    assert done.returncode == 0, done.stderr
    assert np.allclose(arrays["x"], IOTA / 4)
    assert np.allclose(arrays["y"], IOTA / 2)
    span_us = float(done.stdout.splitlines()[-1].split()[0])
    # Three tiny kernels take some 10 us; Python's launches would add 30.
    assert 1 < span_us < 60
    assert "device clock" in done.stdout


def test_many_launches_are_timed_without_python(tmp_path: Path) -> None:
    done, _ = run(plan(*(launch(f"s{index}") for index in range(200))), tmp_path, "--samples", "10")
    assert done.returncode == 0, done.stderr
    assert "gate" not in done.stderr
    span_us = float(done.stdout.splitlines()[-1].split()[0])
    assert span_us / 200 < 5


def test_constant_memory_and_large_shared_memory(tmp_path: Path) -> None:
    weights = Buffer(name="w", dtype="float32", elements=4, role=Role.INPUT, fill=Fill(kind="iota"), symbol="k:weights")
    large = launch("large", "spread", grid=(1, 1, 1), shared_bytes=80_000)
    done, arrays = run(plan(large, launch("weigh", "weigh"), buffers=(X, weights)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(arrays["x"][:256], (19999 - np.arange(256)) + np.arange(256) % 4)
    assert np.array_equal(arrays["x"][256:], IOTA[256:] + np.arange(N - 256) % 4)


def test_writes_out_of_bounds_are_seen(tmp_path: Path) -> None:
    done, _ = run(plan(launch("a", "stray", grid=(1, 1, 1), block=(1, 1, 1))), tmp_path)
    assert done.returncode == 1
    assert "1 bytes before it" in done.stderr
    assert "bytes after its end" in done.stderr


def test_an_illegal_access_is_a_crash_with_its_name(tmp_path: Path) -> None:
    done, _ = run(plan(launch("a", "crash")), tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("crashed: running: ")
    assert "illegal memory access" in done.stderr


@pytest.mark.parametrize("memory", [Memory.PINNED, Memory.PAGEABLE])
def test_host_functions_between_copies(tmp_path: Path, memory: Memory) -> None:
    text = 'extern "C" void shift(float* x, int n, double by) { for (int i = 0; i < n; i++) x[i] += by; }'
    host = Source(name="h", kind=SourceKind.HOST, text=text, entries=("shift",))
    on_host = dataclasses.replace(X, memory=memory)
    on_device = dataclasses.replace(X, name="d", role=Role.SCRATCH)
    call = (Pointer(buffer="x"), Scalar(dtype="int32", value=N), Scalar(dtype="float64", value=1.0))
    steps = (
        Copy(name="up", source=("x",), target=("d",)),
        launch("half", on="d"),
        Copy(name="down", source=("d",), target=("x",)),
        HostCall(name="shift", source="h", entry="shift", arguments=call),
    )
    done, arrays = run(plan(*steps, buffers=(on_host, on_device), sources=(SOURCE, host)), tmp_path, "--samples", "5")
    assert done.returncode == 0, done.stderr
    assert np.allclose(arrays["x"], IOTA / 2 + 1)
    assert "wall clock" in done.stdout
