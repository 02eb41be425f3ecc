"""Halves on the cpu device, bit by bit against NumPy's float16."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.devices.cpu import commands
from fusiond.devices.cpu.lower import lower
from fusiond.devices.cpu.native import Finished, Launch, Runtime

SOURCE = """\
#include <cuda_fp16.h>
__global__ void widened(const half* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __half2float(a[i]);
}
__global__ void narrowed(const double* a, const float* b, half* out, half* more, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __double2half(a[i]), more[i] = __float2half(b[i]);
}
__global__ void worked(const half* a, const half* b, const half* c, half* out, bool* less, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    half2 both = __halves2half2(a[i], b[i]) * __halves2half2(b[i], c[i]);
    out[8 * i] = a[i] + b[i];
    out[8 * i + 1] = __hsub(a[i], b[i]);
    out[8 * i + 2] = a[i] * b[i];
    out[8 * i + 3] = a[i] / b[i];
    out[8 * i + 4] = __hfma(a[i], b[i], c[i]);
    out[8 * i + 5] = hsqrt(__habs(a[i]));
    out[8 * i + 6] = -a[i];
    out[8 * i + 7] = __high2half(both);
    less[i] = a[i] < b[i];
}
__global__ void shuffled(const half2* a, half2* out, half* sum)
{
    const half2 other = __shfl_xor_sync(0xffffffffu, a[threadIdx.x], 5);
    out[threadIdx.x] = other;
    half total = other.x;
    for (int o = 16; o; o /= 2) total = __hmax(total, __shfl_down_sync(0xffffffffu, total, o));
    if (threadIdx.x == 0) atomicAdd(sum, total);
}
"""
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
Run = Callable[..., None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, scheduler_library: Path) -> Run:
    folder = tmp_path_factory.mktemp("halves")
    entries = {name: name for name in ("widened", "narrowed", "worked", "shuffled")}
    (folder / "k.cpp").write_text(commands.translation_unit(lower(SOURCE), entries))
    subprocess.run(commands.kernel(folder / "k.cpp", folder / "k.so"), check=True, capture_output=True)
    runtime = Runtime(scheduler_library)
    module = runtime.load(folder / "k.so")

    def run(name: str, *arguments: Any, blocks: int = 1, threads: int = 256) -> None:
        launch = Launch(grid=(blocks, 1, 1), block=(threads, 1, 1), shared_bytes=0)
        done = runtime.launch(module.entry(name), launch, list(arguments))
        assert isinstance(done, Finished), done

    return run


def same_bits(got: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Bit by bit, but for which NaN it is."""
    at = ~(np.isnan(got) & np.isnan(wanted))
    unsigned = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(unsigned)[at], wanted.astype(got.dtype).view(unsigned)[at])


def test_every_half_is_a_float(run: Run) -> None:
    out = np.zeros(EVERY.size, np.float32)
    run("widened", EVERY.copy(), out, np.int32(EVERY.size), blocks=256)
    same_bits(out, EVERY.astype(np.float32))


def test_numbers_are_rounded_to_the_nearest_half(run: Run) -> None:
    generator = np.random.default_rng(1)
    finite = EVERY[np.isfinite(EVERY)].astype(np.float64)
    between = np.sort(finite)
    middles = (between[:-1] + between[1:]) / 2  # ties go to even
    a = np.concatenate(
        [finite, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), generator.normal(size=9999),
         10.0 ** generator.uniform(-12, 8, 9999), [np.inf, -np.inf, np.nan, 65519.99, 65520.0, -0.0, 2.0**-25]]
    )  # fmt: skip
    b = a.astype(np.float32)
    out, more = np.zeros(a.size, np.float16), np.zeros(a.size, np.float16)
    run("narrowed", a, b, out, more, np.int32(a.size), blocks=-(-a.size // 256))
    with np.errstate(over="ignore"):
        same_bits(out, a.astype(np.float16))
        same_bits(more, b.astype(np.float16))


def test_arithmetic_is_rounded_once(run: Run) -> None:
    generator = np.random.default_rng(2)
    n = 40_000
    a, b, c = (generator.choice(EVERY, n) for _ in range(3))
    a[: n // 2], b[: n // 2] = generator.normal(size=n // 2), generator.normal(size=n // 2)
    out, less = np.zeros((n, 8), np.float16), np.zeros(n, np.bool_)
    run("worked", a, b, c, out, less, np.int32(n), blocks=-(-n // 256))
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
        wanted = [a + b, a - b, a * b, a / b, exact.astype(np.float16), np.sqrt(np.abs(a)), -a, b * c]
    for at, each in enumerate(wanted):
        same_bits(out[:, at].copy(), each)
    np.testing.assert_array_equal(less, a < b)


def test_shuffles_and_atomics_of_halves(run: Run) -> None:
    a = np.random.default_rng(3).normal(size=(32, 2)).astype(np.float16)
    out, total = np.zeros_like(a), np.ones(1, np.float16)
    run("shuffled", a, out, total, threads=32)
    np.testing.assert_array_equal(out, a[np.arange(32) ^ 5])
    assert total[0] == np.float16(1) + a[:, 0].max()
