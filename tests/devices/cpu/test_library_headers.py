"""What CUDA's own libraries give a kernel, on the processor: matrices of a warp, asynchronous copies, barriers that are
objects, pipelines, groups. NumPy is the oracle; what a program does too early must be seen."""

from __future__ import annotations

import functools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.devices.cpu.native import Fault, Finished, NativeLaunch, Runtime
from fusiond.devices.cpu.race import find_races
from fusiond.program import Source

SEEDS = (0, 1, 2, 3, 4)


@pytest.fixture
def run(scheduler_library: Path, gxx_here: None):
    @functools.lru_cache
    def built(text: str, entry: str) -> Path:
        found = gxx.build(Source(name="library", text=text, entries=(entry,)))
        assert isinstance(found, Path), found
        return found

    def start(text: str, entry: str, arguments: list, *, block=(32, 1, 1), grid=(1, 1, 1), seed=0, shared=0):
        runtime = Runtime(scheduler_library)
        launch = NativeLaunch(grid=grid, block=block, seed=seed, shared_bytes=shared)
        return runtime.launch(runtime.load(built(text, entry)).entry("entry_0"), launch, arguments)

    return start


# --- <mma.h> ---

WMMA = """
#include <mma.h>
using namespace nvcuda;
template <class Layout> constexpr bool by_rows = false;
template <> constexpr bool by_rows<wmma::row_major> = true;
template <class In, class Kind, class Out, int M, int N, int K, class LA, class LB>
__global__ void product(const In* a, const In* b, const Out* c, Out* d, int steps, int lda, int ldb)
{
    wmma::fragment<wmma::matrix_a, M, N, K, Kind, LA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, Kind, LB> right;
    wmma::fragment<wmma::accumulator, M, N, K, Out> sum, more;
    wmma::load_matrix_sync(sum, c, N, wmma::mem_row_major);
    for (int step = 0; step < steps; ++step) {
        wmma::load_matrix_sync(left, a + step * K * (by_rows<LA> ? 1 : lda), lda);
        wmma::load_matrix_sync(right, b + step * K * (by_rows<LB> ? ldb : 1), ldb);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::fill_fragment(more, (Out)2);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = sum.x[i] + more.x[i];
    wmma::store_matrix_sync(d, sum, N, wmma::mem_row_major);
}
"""
KINDS = {
    "half": ("half", "half", "float", np.float16, np.float32, 16),
    "half, sums in half": ("half", "half", "half", np.float16, np.float16, 16),
    "bfloat16": ("__nv_bfloat16", "__nv_bfloat16", "float", ml_dtypes.bfloat16, np.float32, 16),
    "int8": ("signed char", "signed char", "int", np.int8, np.int32, 16),
    "uint8": ("unsigned char", "unsigned char", "int", np.uint8, np.int32, 16),
    "tf32": ("float", "wmma::precision::tf32", "float", np.float32, np.float32, 8),
    "double": ("double", "double", "double", np.float64, np.float64, 4),
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "rows"), [(kind, (True, False)) for kind in KINDS] + [("half", (True, True)), ("int8", (False, True))]
)
def test_products_of_a_warp(kind: str, rows: tuple[bool, bool], run) -> None:
    of, element, out, dtype, sums, k = KINDS[kind]
    shapes = [(16, 16)] if k == 8 else [(8, 8)] if k == 4 else [(16, 16), (32, 8), (8, 32)]
    for m, n in shapes:
        steps, rng = 3, np.random.default_rng(m)
        a = rng.integers(0 if kind == "uint8" else -4, 5, (m, steps * k)).astype(dtype)
        b = rng.integers(0 if kind == "uint8" else -4, 5, (steps * k, n)).astype(dtype)
        c = rng.integers(-9, 9, (m, n)).astype(sums)
        layouts = ["wmma::row_major" if each else "wmma::col_major" for each in rows]
        padded = [
            np.pad(x, [(0, 16 + -size % 16) for size in x.shape]) for x in (a, b)
        ]  # rows are multiples of 16 bytes apart
        given = [np.ascontiguousarray(x if row else x.T) for x, row in zip(padded, rows, strict=True)]
        bits = [np.uint16 if dtype is ml_dtypes.bfloat16 else dtype] * 2
        d = np.zeros((m, n), sums)
        entry = f"product<{of}, {element}, {out}, {m}, {n}, {k}, {', '.join(layouts)}>"
        arguments = [x.view(t) for x, t in zip(given, bits, strict=True)]
        numbers = [np.int32(steps), np.int32(given[0].shape[1]), np.int32(given[1].shape[1])]
        for seed in (0, 1):
            d[:] = 0
            done = run(WMMA, entry, [*arguments, c, d, *numbers], seed=seed)
            assert isinstance(done, Finished), done
            expected = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64) + 2
            np.testing.assert_array_equal(d.astype(np.float64), expected)


def test_a_float_becomes_tf32_by_its_ten_bits(run) -> None:
    text = """
#include <mma.h>
__global__ void cut(const float* x, float* y) { y[threadIdx.x] = nvcuda::wmma::__float_to_tf32(x[threadIdx.x]); }
"""
    x = np.array([1.0, 1 + 2.0**-11, 1 + 2.0**-12, -(1 + 2.0**-11), 3e38, np.inf], np.float32)
    y = np.zeros_like(x)
    assert isinstance(run(text, "cut", [x, y], block=(x.size, 1, 1)), Finished)
    np.testing.assert_array_equal(y[[0, 1, 2, 3, 5]], [1, 1 + 2.0**-10, 1, -1 - 2.0**-10, np.inf])


# --- asynchronous copies ---

COPIES = """
#include <cuda_pipeline.h>
__global__ void stages(const float4* x, float4* y, int n, int keep, int waits)
{
    extern __shared__ float4 tile[];
    int t = threadIdx.x;
    for (int i = 0; i < keep; ++i) {
        __pipeline_memcpy_async(&tile[i * 32 + t], &x[i * 32 + t], 16);
        __pipeline_commit();
    }
    for (int i = 0; i < n; ++i) {
        if (waits) __pipeline_wait_prior(keep - 1);
        float4 v = tile[i % keep * 32 + t];
        v.x += i;
        y[i * 32 + t] = v;
        if (i + keep < n)
            __pipeline_memcpy_async(&tile[i % keep * 32 + t], &x[(i + keep) * 32 + t], 16, i == 0 ? 4 : 0);
        __pipeline_commit();
    }
}
"""


def _staged(run, *, waits: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    n, keep = 7, 3
    x = np.arange(n * 32 * 4, dtype=np.float32).reshape(n, 32, 4) + 1
    y = np.zeros_like(x)
    numbers = [np.int32(n), np.int32(keep), np.int32(waits)]
    done = run(COPIES, "stages", [x, y, *numbers], seed=seed, shared=keep * 32 * 16)
    assert isinstance(done, Finished), done
    expected = x.copy()
    expected[keep, :, 3] = 0  # the last four bytes of that copy are zeros
    expected[:, :, 0] += np.arange(n)[:, None]
    return y, expected


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_in_stages(seed: int, run) -> None:
    np.testing.assert_array_equal(*_staged(run, waits=1, seed=seed))


def test_who_reads_before_the_wait_is_seen(run) -> None:
    assert any(not np.array_equal(*_staged(run, waits=0, seed=seed)) for seed in SEEDS)


def test_what_is_never_waited_for_does_not_reach_the_next_block(run) -> None:
    text = """
#include <cuda_pipeline.h>
__global__ void leave(const float* x, float* y)
{
    __shared__ float tile[32];
    tile[threadIdx.x] = 0;
    if (blockIdx.x == 0) {
        __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
        __pipeline_commit();
        return;
    }
    __pipeline_wait_prior(0);
    y[threadIdx.x] = tile[threadIdx.x];
}
"""
    for seed in SEEDS:
        y = np.ones(32, np.float32)
        done = run(text, "leave", [np.full(32, 7, np.float32), y], grid=(2, 1, 1), seed=seed)
        assert isinstance(done, Finished), done
        np.testing.assert_array_equal(y, 0)


# --- <cuda/barrier>, <cuda/pipeline> ---

BARRIER = """
#include <cuda/barrier>
#include <cooperative_groups.h>
__global__ void exchange(const int* x, int* y, int rounds, int expected)
{
    __shared__ cuda::barrier<cuda::thread_scope_block> filled, read;
    __shared__ int tile[128];
    auto block = cooperative_groups::this_thread_block();
    if (block.thread_rank() == 0) { init(&filled, expected); init(&read, block.size()); }
    block.sync();
    int sum = 0;
    for (int i = 0; i < rounds; ++i) {
        cuda::memcpy_async(&tile[threadIdx.x], &x[i * 128 + threadIdx.x], sizeof(int), filled);
        filled.arrive_and_wait();
        sum += tile[127 - threadIdx.x] * (i + 1);
        auto token = read.arrive();
        read.wait(std::move(token));
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_that_are_objects(seed: int, run) -> None:
    x = np.arange(3 * 128, dtype=np.int32).reshape(3, 128)
    y = np.zeros(128, np.int32)
    done = run(
        "#include <utility>\n" + BARRIER, "exchange", [x, y, np.int32(3), np.int32(128)], block=(128, 1, 1), seed=seed
    )
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(y, (x[:, ::-1] * np.array([1, 2, 3])[:, None]).sum(0))


def test_a_barrier_that_expects_too_many_is_stuck(run) -> None:
    x, y = np.zeros((1, 128), np.int32), np.zeros(128, np.int32)
    done = run("#include <utility>\n" + BARRIER, "exchange", [x, y, np.int32(1), np.int32(129)], block=(128, 1, 1))
    assert isinstance(done, Fault)
    assert "a cuda::barrier (128 of 129 have arrived)" in done.text


def test_a_barrier_that_nobody_initialised(run) -> None:
    text = """
#include <cuda/barrier>
__global__ void bare() { __shared__ cuda::barrier<cuda::thread_scope_block> b; b.arrive_and_wait(); }
"""
    done = run(text, "bare", [])
    assert isinstance(done, Fault)
    assert "not initialised" in done.text


PIPELINE = """
#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
__global__ void stages(const int* x, int* y, int n)
{
    constexpr int Stages = 3;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, Stages> state;
    __shared__ int tile[Stages][64];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int at = 0, next = 0; at < n; ++at) {
        for (; next < n && next < at + Stages; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, tile[next % Stages], x + next * 64,
                               cuda::aligned_size_t<16>(64 * sizeof(int)), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += tile[at % Stages][63 - threadIdx.x] * (at + 1);
        pipe.consumer_release();
    }
    y[threadIdx.x] = sum;
}
__global__ void split(const int* x, int* y, int n)
{
    constexpr int Stages = 2;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, Stages> state;
    __shared__ int tile[Stages][32];
    auto block = cg::this_thread_block();
    const bool produces = threadIdx.x < 32;
    auto pipe = cuda::make_pipeline(block, &state,
                                    produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
    if (produces)
        for (int at = 0; at < n; ++at) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[at % Stages][threadIdx.x], x + at * 32 + threadIdx.x, sizeof(int), pipe);
            pipe.producer_commit();
        }
    else {
        int sum = 0;
        for (int at = 0; at < n; ++at) {
            pipe.consumer_wait();
            sum += tile[at % Stages][63 - threadIdx.x] * (at + 1);
            pipe.consumer_release();
        }
        y[threadIdx.x - 32] = sum;
    }
}
__global__ void alone(const int* x, int* y, int n)
{
    __shared__ int tile[4][64];
    auto pipe = cuda::make_pipeline();
    int sum = 0;
    for (int at = 0, next = 0; at < n; ++at) {
        for (; next < n && next < at + 4; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[next % 4][threadIdx.x], &x[next * 64 + threadIdx.x], sizeof(int), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += tile[at % 4][threadIdx.x] * (at + 1);
        pipe.consumer_release();
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_pipelines(seed: int, run) -> None:
    n = 9
    x = np.random.default_rng(0).integers(0, 99, (n, 64)).astype(np.int32)
    weights = np.arange(1, n + 1)[:, None]
    for entry, rows, expected in (
        ("stages", x, (x[:, ::-1] * weights).sum(0)),
        ("alone", x, (x * weights).sum(0)),
        ("split", x[:, :32].copy(), (x[:, 31::-1] * weights).sum(0)),
    ):
        y = np.zeros(expected.size, np.int32)
        done = run(PIPELINE, entry, [rows, y, np.int32(n)], block=(64, 1, 1), seed=seed)
        assert isinstance(done, Finished), done
        np.testing.assert_array_equal(y, expected, err_msg=entry)


# --- cooperative groups, atomics ---

GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
__device__ int sum_of(cg::thread_group group, int* scratch, int value)
{
    int lane = group.thread_rank();
    for (int i = group.size() / 2; i > 0; i /= 2) {
        scratch[lane] = value;
        group.sync();
        if (lane < i) value += scratch[lane + i];
        group.sync();
    }
    return value;
}
__global__ void groups(const int* x, int* y, int* counted)
{
    __shared__ int tile[64], scratch[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x, sizeof(int) * 64);
    cg::wait(block);
    int t = threadIdx.x, v = tile[63 - t];
    auto warp = cg::tiled_partition<32>(block);
    auto small = cg::tiled_partition<8>(warp);
    y[t] = cg::reduce(small, v, cg::plus<int>());
    y[64 + t] = cg::reduce(warp, v, cg::greater<int>());
    y[128 + t] = cg::inclusive_scan(warp, v);
    y[192 + t] = cg::exclusive_scan(small, v, cg::plus<int>());
    auto parity = cg::binary_partition(warp, v % 2 == 0);
    y[256 + t] = cg::reduce(parity, v, cg::plus<int>());
    if (v % 3 == 0) {
        auto here = cg::coalesced_threads();
        y[320 + t] = here.size() * 100 + here.thread_rank();
    }
    cuda::atomic_ref<int, cuda::thread_scope_device> all(*counted);
    all.fetch_add(v, cuda::memory_order_relaxed);
    y[384 + t] = sum_of(block, scratch, v);
    cg::thread_group quarter = cg::tiled_partition(block, 16);
    y[448 + t] = sum_of(quarter, scratch + t / 16 * 16, v);
}
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_groups(seed: int, run) -> None:
    x = np.random.default_rng(1).integers(0, 1000, 64).astype(np.int32)
    y, counted = np.zeros((8, 64), np.int32), np.zeros(1, np.int32)
    done = run(GROUPS, "groups", [x, y, counted], block=(64, 1, 1), seed=seed)
    assert isinstance(done, Finished), done
    v = x[::-1]
    warps, eights = v.reshape(2, 32), v.reshape(8, 8)
    np.testing.assert_array_equal(y[0].reshape(8, 8), eights.sum(1)[:, None] + np.zeros((1, 8)))
    np.testing.assert_array_equal(y[1].reshape(2, 32), warps.max(1)[:, None] + np.zeros((1, 32)))
    np.testing.assert_array_equal(y[2].reshape(2, 32), warps.cumsum(1))
    np.testing.assert_array_equal(y[3].reshape(8, 8), eights.cumsum(1) - eights)
    for found, row in zip(y[4].reshape(2, 32), warps, strict=True):
        np.testing.assert_array_equal(found, np.where(row % 2 == 0, row[row % 2 == 0].sum(), row[row % 2 == 1].sum()))
    for found, row in zip(y[5].reshape(2, 32), warps, strict=True):
        third = row % 3 == 0
        np.testing.assert_array_equal(found[third], third.sum() * 100 + np.arange(third.sum()))
    assert counted[0] == v.sum()
    assert y[6][0] == v.sum()
    np.testing.assert_array_equal(y[7][::16], v.reshape(4, 16).sum(1))


# --- races ---

RACES = {
    "barrier": (BARRIER, "exchange", "filled.arrive_and_wait();", 128, (np.int32(3), np.int32(128)), 3),
    "pipeline": (PIPELINE, "stages", "pipe.consumer_wait();", 64, (np.int32(9),), 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize("name", RACES)
def test_races_are_those_that_nothing_orders(name: str, sound: bool, gxx_here: None) -> None:
    text, entry, wait, threads, numbers, rows = RACES[name]
    text = "#include <utility>\n" + (
        text if sound else text.replace(wait, "(void)filled.arrive();" if name == "barrier" else "")
    )
    source = Source(name="library", text=text, entries=(entry,))
    kernel = gxx.build(source, races=True)
    assert isinstance(kernel, Path), kernel
    arguments = [np.zeros((rows, threads), np.int32), np.zeros(threads, np.int32), *numbers]
    launch = NativeLaunch(grid=(1, 1, 1), block=(threads, 1, 1), seed=3)
    races = find_races(gxx.race_host(), kernel, gxx.exported(source, entry), launch, arguments)
    assert (races == []) == sound, races
