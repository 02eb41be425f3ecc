"""The kernels that a device's contract runs, their buffers and their launches."""

from typing import Any

from fusiond.model.program import Buffer, Fill, Launch, Pointer, Role, Scalar

N = 1000

KERNELS = """
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ float table[4];

__global__ void scale(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}

__global__ void accumulate(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}

__global__ void lookup(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = table[i % 4];
}

__global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float s[];
  int i = threadIdx.x;
  if (i < n) s[i] = x[i];
  __syncthreads();
  if (i < n) y[i] = s[n - 1 - i];
}

__global__ void total(const float* x, float* partial, float* y, int n) {
  namespace cg = cooperative_groups;
  cg::grid_group grid = cg::this_grid();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = blockIdx.x; i < n; i += gridDim.x) sum += x[i];
    partial[grid.block_rank()] = sum;
  }
  grid.sync();
  float sum = 0;
  for (int b = 0; b < gridDim.x; b++) sum += partial[b];
  for (int i = (int)grid.thread_rank(); i < n; i += (int)grid.size()) y[i] = sum;
}

__global__ void narrow(const __half* x, __nv_bfloat16* y, __half by, __nv_bfloat16 add, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hadd(__float2bfloat16_rn(__half2float(__hmul(x[i], by))), add);
}

__global__ void stray(float* y, int index) { if (threadIdx.x == 0 && blockIdx.x == 0) y[index] = 1.0f; }

__global__ void crash(float* y) { *reinterpret_cast<volatile int*>(threadIdx.x * 4) = 1; }
"""
ENTRIES = ("scale", "accumulate", "lookup", "reverse", "total", "narrow", "stray", "crash")


def floats(name: str, role: Role, **fields: Any) -> Buffer:
    """N numbers between 1 and 2."""
    return Buffer(
        **{
            "name": name,
            "dtype": "float32",
            "elements": N,
            "role": role,
            "fill": Fill(kind="uniform", low=1.0, high=2.0),
            **fields,
        }
    )


X, Y = floats("x", Role.INPUT), floats("y", Role.OUTPUT)


def launch(name: str, entry: str, *arguments: str | int | float, **fields: Any) -> Launch:
    """Four blocks of an entry; an argument that is a text is a buffer's name."""
    packed = tuple(
        Pointer(buffer=each) if isinstance(each, str) else Scalar(dtype=f"{type(each).__name__}32", value=each)
        for each in arguments
    )
    return Launch(
        **{
            "name": name,
            "source": "kernels",
            "entry": entry,
            "grid": (4, 1, 1),
            "block": (256, 1, 1),
            "arguments": packed,
            **fields,
        }
    )
