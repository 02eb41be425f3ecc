"""Fused kernels give what NumPy gives, and what the unfused kernels give."""

from __future__ import annotations

import numpy as np
import pytest

from fusiond.fills import fill
from fusiond.model import Config
from fusiond.program import Program

SMALL = {"hist.n": 20_000, "maxpool.channels": 2, "maxpool.height": 200, "maxpool.width": 150}


def histogram(x, bins):
    """Counts in equal parts of [0, 1), in the kernel's single precision."""
    inside = x[(x >= 0) & (x < 1)]
    at = np.minimum((inside * np.float32(bins)).astype(np.int64), bins - 1)
    return np.bincount(at, minlength=bins).astype(np.uint32)


def max_pool(image, window, stride, pad):
    """Largest value and its place in the plane, for an array of planes x height x width."""
    planes, height, width = image.shape
    padded = np.full((planes, height + 2 * pad, width + 2 * pad), -np.inf, image.dtype)
    padded[:, pad : pad + height, pad : pad + width] = image
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))[:, ::stride, ::stride]
    flat = windows.reshape(*windows.shape[:3], window * window)
    at = flat.argmax(axis=-1)
    rows = np.arange(windows.shape[1])[None, :, None] * stride - pad + at // window
    columns = np.arange(windows.shape[2])[None, None, :] * stride - pad + at % window
    return flat.max(axis=-1), rows * width + columns


def horizontal(a, b, order="ab"):
    return Config.of({"kind": "horizontal", "threads.a": a, "threads.b": b, "order": order})


def vertical(threads, order="ab"):
    return Config.of({"kind": "vertical", "threads": threads, "order": order})


def emitted(strategy, analysis, config):
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    return program


CONFIGS = [
    horizontal(512, 512), horizontal(896, 128, "ba"), horizontal(128, 384), vertical(256), vertical(512, "ba"),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_hist_beside_maxpool_matches_numpy(analyse, strategy, runner, config):
    program = emitted(strategy, analyse("maxpool", "hist", sizes=SMALL), config)
    got = runner.run(program, order=5)
    assert isinstance(got, dict), got
    np.testing.assert_array_equal(got["a.counts"], histogram(fill(program.buffer("a.x"), 1), 20))
    image = fill(program.buffer("b.image"), 1).reshape(2, 200, 150)
    largest, position = max_pool(image, 5, 10, 2)
    np.testing.assert_array_equal(got["b.largest"], largest.ravel())
    np.testing.assert_array_equal(got["b.position"], position.ravel())


@pytest.mark.parametrize("name", ["sequential", "streams_ab", "streams_ba"])
def test_every_baseline_matches_numpy(analyse, strategy, runner, name):
    analysis = analyse("maxpool", "hist", sizes=SMALL)
    baseline = next(each for each in strategy.baselines(analysis) if each.name == name)
    for config in list(baseline.space.points())[::15]:
        program = baseline.emit(config)
        got = runner.run(program)
        assert isinstance(got, dict), got
        np.testing.assert_array_equal(got["a.counts"], histogram(fill(program.buffer("a.x"), 1), 20))


def test_the_odd_sizes_of_the_catalogue(analyse, strategy, same, parse):
    odd = strategy.odd_sizes(parse("hist", "maxpool"))
    assert odd == {
        "hist.n": 12345, "hist.bins": 17, "maxpool.channels": 3, "maxpool.height": 211, "maxpool.width": 97,
    }  # fmt: skip
    analysis = analyse("hist", "maxpool", sizes=odd)
    config = horizontal(384, 640)
    same(emitted(strategy, analysis, config), strategy.unfused(analysis, config))


@pytest.mark.parametrize("config", [horizontal(512, 128, "ba"), horizontal(256, 768), vertical(384)], ids=str)
def test_a_kernel_with_itself_on_different_data(analyse, strategy, same, runner, config):
    """Grids of 7 x 512 and 13 x 512 values come to coprime numbers of blocks, and both sides have a part of the arena."""
    analysis = analyse("hist", "hist", sizes={"a.n": 3_500, "b.n": 6_600, "a.bins": 20, "b.bins": 33})
    program = emitted(strategy, analysis, config)
    same(program, strategy.unfused(analysis, config))
    got = runner.run(program)
    assert not np.array_equal(got["a.counts"][:20], got["b.counts"][:20])
    np.testing.assert_array_equal(got["b.counts"], histogram(fill(program.buffer("b.x"), 1), 33))


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


@pytest.fixture
def zoo(tmp_path, kernel_file):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "square.cuh").write_text(SQUARE)
    return kernel_file("tiles", TILES, TILES_YAML), kernel_file("reverse", SHIFT, SHIFT_YAML)


@pytest.mark.parametrize("config", [horizontal(64, 128), horizontal(64, 512, "ba")], ids=str)
def test_shapes_templates_headers_macros_and_static_shared_memory(analyse, strategy, same, runner, zoo, config):
    """Two- and three-dimensional blocks and grids of 15 and 12 blocks, one header in both, macros of one name in both."""
    analysis = analyse(*zoo)
    assert analysis.rejections == ()
    program = emitted(strategy, analysis, config)
    same(program, strategy.unfused(analysis, config))
    got = runner.run(program)
    cells = np.arange(12 * 64).reshape(12, 64)[:, ::-1] + 9 + 7
    z = np.arange(64) // 32
    np.testing.assert_array_equal(got["a.out"].reshape(12, 64), cells * 64 + z)
    x = fill(program.buffer("b.x"), 1)
    assert got["b.partial"].sum() == pytest.approx((x * x).sum() / 2)


def test_a_two_dimensional_kernel_beside_a_catalogue_one(analyse, strategy, same, zoo):
    analysis = analyse(zoo[0], "hist", sizes={"hist.n": 9_999})
    for config in (horizontal(384, 256), vertical(512)):
        same(emitted(strategy, analysis, config), strategy.unfused(analysis, config))


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


def test_early_returns_that_harm_nobody(analyse, strategy, same, kernel_file):
    """A whole block returns before the barrier, single threads behind it; the other side goes on."""
    analysis = analyse(kernel_file("early", EARLY, EARLY_YAML), "hist", sizes={"hist.n": 5_000})
    assert analysis.rejections == ()
    for config in (horizontal(256, 384), horizontal(512, 128, "ba"), vertical(128)):
        same(emitted(strategy, analysis, config), strategy.unfused(analysis, config))
