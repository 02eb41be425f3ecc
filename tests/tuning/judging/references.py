"""Kernels that are references, with what NumPy and SciPy say they compute."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.special

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.model.inputs.fills import initial
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source

NORMAL = Fill(kind="normal", low=0.0, high=1.0)
Arrays = dict[str, np.ndarray]


def buffer(name: str, elements: int, role: str = "input", dtype: str = "float32", **more) -> Buffer:
    return Buffer(name=name, dtype=dtype, elements=elements, role=Role(role), **{"fill": NORMAL, **more})


def program(text: str, entry: str, buffers: list[Buffer], *numbers, grid=1, block=128, shared=0, **more) -> Program:
    """One launch: the buffers in their order, then numbers (int32, or float32 where they are floats)."""
    arguments = [Pointer(buffer=each.name) for each in buffers if each.symbol is None]
    arguments += [Scalar(dtype="float32" if isinstance(each, float) else "int32", value=each) for each in numbers]
    block = block if isinstance(block, tuple) else (block, 1, 1)
    launch = Launch(
        name="k", source="k", entry=entry, arguments=tuple(arguments), grid=(*grid, 1, 1)[:3] if isinstance(grid, tuple)
        else (grid, 1, 1), block=block, shared_bytes=shared,
    )  # fmt: skip
    symbols = tuple(each.symbol.partition(":")[2] for each in buffers if each.symbol)
    source = Source(name="k", text=text, entries=(entry,), symbols=symbols, **more)
    return Program(name="k", buffers=tuple(buffers), sources=(source,), steps=(launch,))


def data(of: Program, seed: int = 1) -> Arrays:
    """The inputs in double precision."""
    return {each.name: initial(each, seed).astype(np.float64) for each in of.buffers if each.role is not Role.OUTPUT}


def single(of: Program, seed: int = 1) -> Arrays:
    """The outputs as the kernel itself gives them."""
    loaded = CpuExecutor().load(of, {each.name: interpreted.build(each) for each in of.sources})
    for each in of.buffers:
        loaded.write(each.name, initial(each, seed))
    loaded.run(seed=seed, checked=False)
    return {each.name: loaded.read(each.name) for each in of.buffers if each.role.compared}


SOFTMAX = """
#include <cuda_runtime.h>
#include <float.h>
// float stays float in a comment: 1.0f
__device__ __forceinline__ float warp_max(float v) {
    for (int lanes = 16; lanes > 0; lanes >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lanes));
    return v;
}
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int n) {
    __shared__ float of_warp[32];
    const float* row = x + blockIdx.x * n;
    float most = -FLT_MAX, sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; ++w) most = max(most, of_warp[w]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(row[i] - most);
    for (int lanes = 16; lanes > 0; lanes >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.f;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += of_warp[w];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __fdividef(__expf(row[i] - most), sum);
}
"""
ONLINE = """
__global__ void softmax(const float* x, float* y, int n) {  // one thread a row
    const float* row = x + threadIdx.x * n;
    float most = -INFINITY, sum = 0;
    for (int i = 0; i < n; ++i) {
        const float next = fmaxf(most, row[i]);
        sum = sum * expf(most - next) + expf(row[i] - next);
        most = next;
    }
    for (int i = 0; i < n; ++i) y[threadIdx.x * n + i] = expf(row[i] - most) / sum;
}
"""
LAYERNORM = """
__global__ void layernorm(const float* x, const float* gamma, float* y, int n, float epsilon) {
    extern __shared__ float partial[];
    const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * n);
    float4 sums = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        const float4 v = __ldg(row + i);
        sums.x += v.x, sums.y += v.y, sums.z += v.z, sums.w += v.w;
    }
    partial[threadIdx.x] = sums.x + sums.y + sums.z + sums.w;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
    const float mean = partial[0] / n;
    __syncthreads();
    float squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += powf(x[blockIdx.x * n + i] - mean, 2.0f);
    partial[threadIdx.x] = squares;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    __syncthreads();
    const float scale = rsqrtf(partial[0] / n + epsilon);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = (x[blockIdx.x * n + i] - mean) * scale * gamma[i];
}
"""
MATMUL = """
#define T 16
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[T][T + 1], bs[T][T];
    const int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    float sum = 0.0f;
    for (int at = 0; at < k; at += T) {
        as[threadIdx.y][threadIdx.x] = row < m && at + threadIdx.x < k ? a[row * k + at + threadIdx.x] : 0.0f;
        bs[threadIdx.y][threadIdx.x] = column < n && at + threadIdx.y < k ? b[(at + threadIdx.y) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; ++i) sum = __fmaf_rn(as[threadIdx.y][i], bs[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
"""
SUM = """
__global__ void total(const float* x, float* sum, int n) {
    float mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += x[i];
    for (int lanes = 16; lanes > 0; lanes >>= 1) mine += __shfl_down_sync(0xffffffffu, mine, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}
"""
GELU = """
template <typename T, int PER> __global__ void gelu(const T* x, T* y, int n) {
    for (int j = 0; j < PER; ++j) {
        const int i = (blockIdx.x * PER + j) * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 0.5f * x[i] * (1.0F + erff(x[i] * 0.70710678118654752f));
    }
}
"""
AXPY = """
__global__ void axpy(const float4* x, float4* y, int n, float a) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = y[i], w = x[i];
        y[i] = make_float4(fmaf(a, w.x, v.x), fmaf(a, w.y, v.y), __fadd_rn(__fmul_rn(a, w.z), v.z), a * w.w + v.w);
    }
}
"""
CONVOLVE = """
__constant__ float weights[9];
struct Tap { float value; int at; };
__global__ void convolve(const float* x, float* y, int* count, int n) {
    const int i = threadIdx.x + blockIdx.x * blockDim.x;
    float sum = 0x1p-3f;
    int used = 0;
    for (int j = 0; j < 9; ++j) {
        const Tap tap = {weights[j], i + j - 4};
        if (0 <= tap.at && tap.at < n) sum += tap.value * x[tap.at], ++used;
    }
    if (i < n) y[i] = sum, count[i] = used;
}
"""
SCAN = """
typedef float real;
__global__ void scan(const real* x, real* y, int n) {
    extern __shared__ real line[];
    const int i = threadIdx.x;
    line[i] = i < n ? x[i] : 0;
    for (int d = 1; d < blockDim.x; d *= 2) {
        __syncthreads();
        const real before = i >= d ? line[i - d] : 0;
        __syncthreads();
        line[i] += before;
    }
    if (i < n) y[i] = line[i];
}
"""
FUNCTIONS = """
__global__ void all(const float* x, float* y, int n) {
    const int i = threadIdx.x;
    float s, c;
    sincosf(x[i], &s, &c);
    y[i] = s + c + __sinf(x[i]) + __logf(2.0f + fabsf(x[i])) + log1pf(x[i] * x[i]) + exp2f(x[i]) + tanhf(x[i]) +
           cbrtf(x[i]) + __saturatef(x[i]) + floorf(x[i]) + __int2float_rn(i) + __float2int_rn(3.0f * x[i]) +
           __frsqrt_rn(1.5f + i) + hypotf(x[i], 2.f) + fminf(x[i], 0.25f) + atan2f(x[i], 3.f) + roundf(x[i]);
}
"""


def softmax(rows: int, n: int, text: str = SOFTMAX, **more) -> Program:
    buffers = [buffer("x", rows * n, fill=Fill(kind="normal", low=0.0, high=3.0)), buffer("y", rows * n, "output")]
    return program(text, "softmax", buffers, n, **{"grid": rows, **more})


def softmax_of(of: Arrays, rows: int, n: int) -> Arrays:
    return {"y": scipy.special.softmax(of["x"].reshape(rows, n), axis=1)}


def _layernorm(of: Arrays, n: int) -> Arrays:
    x = of["x"].reshape(-1, n)
    scale = 1 / np.sqrt(x.var(axis=1, keepdims=True) + np.float64(np.float32(1e-5)))
    return {"y": (x - x.mean(axis=1, keepdims=True)) * scale * of["gamma"]}


def matmul(m: int, n: int, k: int, *, fill: Fill = NORMAL) -> Program:
    buffers = [buffer("a", m * k, fill=fill), buffer("b", k * n, fill=fill), buffer("c", m * n, "output")]
    return program(MATMUL, "matmul", buffers, m, n, k, grid=(-(-n // 16), -(-m // 16)), block=(16, 16, 1))


def _convolve(of: Arrays, n: int) -> Arrays:
    padded = np.pad(of["x"], 4)
    return {"y": 0.125 + np.correlate(padded, of["weights"], "valid")}


def _functions(of: Arrays) -> Arrays:
    x, i = of["x"], np.arange(of["x"].size)
    terms = [
        2 * np.sin(x), np.cos(x), np.log(2 + abs(x)), np.log1p(x * x), np.exp2(x), np.tanh(x), np.cbrt(x),
        np.clip(x, 0, 1), np.floor(x), i, np.rint(3 * x), 1 / np.sqrt(1.5 + i), np.hypot(x, 2), np.minimum(x, 0.25),
        np.arctan2(x, 3), np.sign(x) * np.floor(abs(x) + 0.5),
    ]  # fmt: skip
    return {"y": sum(terms)}


def _gelu(of: Arrays) -> Arrays:
    return {"y": 0.5 * of["x"] * (1 + scipy.special.erf(of["x"] * np.float64(np.float32(0.7071067811865475))))}


SCALE = np.float64(np.float32(0.3))
CASES: dict[str, tuple[Program, Callable[[Arrays], Arrays]]] = {
    **{f"softmax {r}x{n}": (softmax(r, n), lambda of, r=r, n=n: softmax_of(of, r, n)) for r, n in ((3, 65), (2, 1000))},
    "online softmax": (softmax(8, 50, ONLINE, grid=1, block=8), lambda of: softmax_of(of, 8, 50)),
    **{
        f"layernorm {n}": (
            program(LAYERNORM, "layernorm", [buffer("x", 3 * n), buffer("gamma", n), buffer("y", 3 * n, "output")],
                    n, 1e-5, grid=3, block=64, shared=64 * 4),
            lambda of, n=n: _layernorm(of, n),
        )
        for n in (64, 516)
    },
    **{
        f"matmul {m}x{n}x{k}": (matmul(m, n, k),
                                lambda of, m=m, n=n, k=k: {"c": of["a"].reshape(m, k) @ of["b"].reshape(k, n)})
        for m, n, k in ((16, 32, 16), (33, 17, 70))
    },
    **{
        f"sum {n}": (program(SUM, "total", [buffer("x", n), buffer("sum", 1, "inout", fill=Fill())], n, grid=4),
                     lambda of: {"sum": of["x"].sum()[None]})
        for n in (100, 5003)
    },
    "gelu": (program(GELU, "gelu<float, 2>", [buffer("x", 700), buffer("y", 700, "output")], 700, grid=3), _gelu),
    "axpy": (program(AXPY, "axpy", [buffer("x", 400), buffer("y", 400, "inout")], 100, 0.3),
             lambda of: {"y": SCALE * of["x"] + of["y"]}),
    "convolve": (
        program(CONVOLVE, "convolve", [buffer("x", 300), buffer("y", 300, "output"),
                buffer("count", 300, "output", "int32"), buffer("weights", 9, symbol="k:weights")], 300, grid=3),
        lambda of: _convolve(of, 300),
    ),
    "scan": (program(SCAN, "scan", [buffer("x", 200), buffer("y", 200, "output")], 200, block=256, shared=1024),
             lambda of: {"y": np.cumsum(of["x"])}),
    "functions": (program(FUNCTIONS, "all", [buffer("x", 128), buffer("y", 128, "output")], 128), _functions),
}  # fmt: skip


def bundled(of: Program, folder: Path) -> Path:
    write_bundle(folder / "bundle", of, {})
    return folder / "bundle"
