"""Launches that are run for what they compute, and not counted."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build import nvcc
from fusiond.devices.counting import library
from fusiond.devices.counting.kernels import CountedShape, ExecutedLaunch, LoadedPtx
from fusiond.devices.counting.layout import aligned
from fusiond.devices.counting.library import Cache
from fusiond.devices.counting.model import H100
from fusiond.model.program import Source

pytestmark = pytest.mark.skipif(nvcc.find() is None, reason="no nvcc")
_SOURCE = r"""
#include <cassert>
#include <cstdio>
extern "C" __global__ void mixed(
    signed char* bytes, const unsigned short* shorts, long long* sums, double4* four, int n) {
    __shared__ long long held[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = i < n ? bytes[i] + (long long)shorts[i] * sums[i] : 0;
    __syncthreads();
    if (i < n) {
        sums[i] = held[63 - threadIdx.x];
        bytes[i] = -bytes[i];
        double4 v = four[i];
        four[i] = make_double4(v.w, v.z, v.y, v.x);
    }
}
extern "C" __global__ void say(const char* word, int n) {
    int i = threadIdx.x;
    if (i < n)
        printf("%d|%5.2f|%-6s|%lld|%c|%08x|%u|%*d|%%|%e\n",
               i, i / 3.0, word, -1ll << 40, 'a' + i, 255 * i, 3000000000u, 4, i, 1e-9);
}
extern "C" __global__ void chained(volatile int* sums, const int* values, double* total, unsigned short* low) {
    if (threadIdx.x == 0) {  // a block waits for the one before it, as in a scan of one pass
        while (blockIdx.x > 0 && sums[blockIdx.x - 1] < 0) {}
        sums[blockIdx.x] = values[blockIdx.x] + (blockIdx.x > 0 ? sums[blockIdx.x - 1] : 0);
    }
    atomicAdd(total, 1.0);
    atomicMax((int*)total + 2, (int)(blockIdx.x * blockDim.x + threadIdx.x));
    unsigned short seen = atomicCAS(low + blockIdx.x % 8, (unsigned short)0, (unsigned short)1);
    if (seen == 0) atomicAdd((int*)total + 3, 1);
}
__device__ float plus(float a, float b) { return a + b; }
__device__ float times(float a, float b) { return a * b; }
__device__ float once(float a) { return a; }
__device__ float (*table[])(float, float) = {plus, times};
__device__ float (*other)(float) = once;
struct Shape { __device__ virtual float area(float x) const = 0; };
struct Square : Shape { __device__ float area(float x) const override { return x * x; } };
struct Circle : Shape { __device__ float area(float x) const override { return 3 * x * x; } };
extern "C" __global__ void pointed(float* x, const int* which, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Square square;
    Circle circle;
    const Shape* shape = which[i] & 2 ? static_cast<const Shape*>(&square) : &circle;
    float found = table[which[i] & 1](x[i], 2.0f);
    if (which[i] != 3) found += shape->area(x[i]);
    x[i] = other(found);
}
extern "C" __global__ void nowhere(float* x, long long at) {
    x[threadIdx.x] = threadIdx.x ? table[0](x[0], 1.0f) : reinterpret_cast<float (*)(float, float)>(at)(1.0f, 2.0f);
}
extern "C" __global__ void beyond(float* x, int n) { x[threadIdx.x + n] = 1; }
extern "C" __global__ void sure(int n) { assert(n > 3); }
__device__ int numbers[4] = {5, 6, 7, 8};
struct Entry { char tag; int* at; };
struct __attribute__((packed)) Packed { char tag; int* at; };
__device__ Entry entries[2] = {{1, numbers}, {2, numbers + 2}};
__device__ Packed unaligned[1] = {{3, numbers + 3}};  // its bytes are those of an address: 0xFF00(generic(numbers)+12)
extern "C" __global__ void addressed(int* x) { x[threadIdx.x] = *entries[threadIdx.x].at * *unaligned[0].at; }
"""


@pytest.fixture(scope="module")
def loaded() -> LoadedPtx:
    source = Source(
        name="s", text=_SOURCE, entries=("mixed", "say", "chained", "pointed", "nowhere", "beyond", "sure", "addressed")
    )
    text = nvcc.ptx(source, "sm_90")
    assert isinstance(text, str), text
    return LoadedPtx(text, library.load())


def _run(
    loaded: LoadedPtx, name: str, blocks: int, threads: int, given: Sequence[int | NDArray[Any]], *arrays: NDArray[Any]
) -> ExecutedLaunch:
    places = np.array(
        [(each.ctypes.data, each.ctypes.data + each.nbytes) for each in arrays] or np.zeros((0, 2)), np.uint64
    )
    words = [
        struct.pack("<i", each) if isinstance(each, int) else struct.pack("<Q", each.ctypes.data) for each in given
    ]
    shape = CountedShape(grid=(blocks, 1, 1), block=(threads, 1, 1))
    return loaded.execute(name, shape, words, places.reshape(-1, 2), H100)


def test_it_computes_what_a_counted_launch_does(loaded: LoadedPtx) -> None:
    draw = np.random.default_rng(3)
    n = 1000
    arrays = [
        draw.integers(-128, 127, n, np.int8), draw.integers(0, 65535, n, np.uint16),
        draw.integers(-(2**40), 2**40, n, np.int64), draw.random((n, 4)),
    ]  # fmt: skip
    begun = [each.copy() for each in arrays]
    assert _run(loaded, "mixed", 16, 64, [*arrays, n], *arrays).failed is None
    products = np.zeros(1024, np.int64)
    products[:n] = begun[0] + begun[1].astype(np.int64) * begun[2]
    assert (arrays[2] == products.reshape(16, 64)[:, ::-1].ravel()[:n]).all()
    assert (arrays[0] == -begun[0]).all()
    assert (arrays[3] == begun[3][:, ::-1]).all()
    again = [aligned(each.nbytes) for each in begun]  # sectors are counted whole
    for room, each in zip(again, begun, strict=True):
        room[:] = each.view(np.uint8).ravel()
    words = [struct.pack("<Q", each.ctypes.data) for each in again] + [struct.pack("<i", n)]
    cache = Cache(library.load(), H100.l2_bytes)
    shape = CountedShape(grid=(16, 1, 1), block=(64, 1, 1))
    counted = loaded.launch("mixed", shape, words, again, cache, H100)
    cache.close()
    assert counted.failed is None
    assert counted.counts["read_bytes"].sum() == n * (1 + 2 + 8 + 32 + 1)
    assert all((a.view(np.uint8).ravel() == b).all() for a, b in zip(arrays, again, strict=True))


def test_what_kernels_print(loaded: LoadedPtx) -> None:
    word = np.frombuffer(b"fuse\0", np.uint8).copy()
    done = _run(loaded, "say", 1, 32, [word, 3], word)
    expected = "".join(
        f"{i}|{i / 3:5.2f}|fuse  |{-1 << 40}|{chr(97 + i)}|{255 * i:08x}|3000000000|{i:4d}|%|{1e-9:e}\n"
        for i in range(3)
    )
    assert done == ExecutedLaunch(failed=None, printed=expected.encode())


def test_blocks_on_several_threads_wait_for_each_other(loaded: LoadedPtx) -> None:
    sums, values = np.full(2000, -1, np.int32), np.arange(2000, dtype=np.int32)
    total, low = np.zeros(2), np.zeros(8, np.uint16)
    done = _run(loaded, "chained", 2000, 64, [sums, values, total, low], sums, values, total, low)
    assert done.failed is None
    assert (sums == np.cumsum(values)).all()
    assert total[0] == 2000 * 64
    assert total.view(np.int32)[2:].tolist() == [2000 * 64 - 1, 8]


def test_functions_that_are_pointed_to(loaded: LoadedPtx) -> None:
    draw = np.random.default_rng(4)
    x, which = draw.random(100, np.float32), draw.integers(0, 4, 100, np.int32)
    begun = x.copy()
    assert _run(loaded, "pointed", 2, 64, [x, which, 100], x, which).failed is None
    first = np.where(which & 1, begun * 2, begun + 2)
    second = np.where(which == 3, 0, np.where(which & 2, 1, 3) * begun * begun)
    np.testing.assert_allclose(x, first + second, rtol=1e-6)


def test_addresses_in_structs(loaded: LoadedPtx) -> None:
    x = np.zeros(2, np.int32)
    assert _run(loaded, "addressed", 1, 2, [x], x).failed is None
    assert x.tolist() == [5 * 8, 7 * 8]


def test_a_pointer_to_no_function_fails(loaded: LoadedPtx) -> None:
    x = np.zeros(1, np.float32)
    words = [struct.pack("<Q", x.ctypes.data), struct.pack("<q", 12345)]
    places = np.array([(x.ctypes.data, x.ctypes.data + 4)], np.uint64)
    done = loaded.execute("nowhere", CountedShape(grid=(1, 1, 1), block=(1, 1, 1)), words, places, H100)
    assert "a call of what is no function here" in (done.failed or "")


def test_faults_are_where_they_are(loaded: LoadedPtx) -> None:
    x = np.zeros(64, np.float32)
    done = _run(loaded, "beyond", 1, 32, [x, 33], x)
    assert done.failed is not None
    assert "an access of 4 bytes at 0x" in done.failed
    assert "outside of every buffer" in done.failed
    assert "assertion failed: n > 3" in (_run(loaded, "sure", 1, 1, [3]).failed or "")
    assert _run(loaded, "sure", 1, 1, [4]).failed is None
