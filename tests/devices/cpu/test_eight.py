"""Floats of 8 bits on the processor: every code, and rounding as JAX's ml_dtypes and CUDA's saturation have it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.devices.cpu.native import Finished, NativeLaunch, Runtime
from fusiond.language import narrow
from fusiond.program import Source

TEXT = """
#include <cuda_fp8.h>
template <class T, class T4>
__global__ void all(const float* x, const double* wide, unsigned char* bits, float* back, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T one(x[i]), other(wide[i]);
    bits[3 * i] = one.__x;
    bits[3 * i + 1] = other.__x;
    T4 four(make_float4(0.0f, x[i], 1.0f, -x[i]));
    bits[3 * i + 2] = four.__x >> 8;
    T code;
    code.__x = i;
    back[2 * i] = (float)code;
    back[2 * i + 1] = static_cast<float4>(four).w;
}
__global__ void overflows(const float* x, unsigned char* e4m3, unsigned char* e5m2)
{
    e4m3[threadIdx.x] = __nv_cvt_float_to_fp8(x[threadIdx.x], __NV_NOSAT, __NV_E4M3);
    e5m2[threadIdx.x] = __nv_cvt_float_to_fp8(x[threadIdx.x], __NV_NOSAT, __NV_E5M2);
}
"""
KINDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


@pytest.mark.parametrize("dtype", KINDS)
def test_every_code_and_many_numbers(dtype: str, scheduler_library: Path, gxx_here: None) -> None:
    kind = KINDS[dtype]
    entry = f"all<__nv_fp8_{kind}, __nv_fp8x4_{kind}>"
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):
        values = narrow.NARROW[dtype].values(np.arange(256).astype(np.uint8))
    finite = values[np.isfinite(values)].astype(np.float64)
    edges = np.sort(np.unique(finite))
    drawn = rng.standard_normal(1000) * np.repeat([1.0, 1e4], 500)
    beyond = [np.inf, -np.inf, 1e30, -1e-30, -0.0, 464.0, 465.0, 6e4, 61440.0, 61441.0]
    wide = np.concatenate([finite, (edges[1:] + edges[:-1]) / 2, drawn, beyond])
    wide = np.concatenate([wide, wide * (1 + 2.0**-40)])
    x = wide.astype(np.float32)
    bits, back = np.zeros((x.size, 3), np.uint8), np.zeros((x.size, 2), np.float32)
    built = gxx.build(Source(name="eight", text=TEXT, entries=(entry,)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(-(-x.size // 64), 1, 1), block=(64, 1, 1))
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [x, wide, bits, back, np.int32(x.size)])
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(bits[:, 0], narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(bits[:, 1], narrow.NARROW[dtype].bits(wide))
    np.testing.assert_array_equal(bits[:, 2], narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(back[:256, 0], values)
    np.testing.assert_array_equal(back[:, 1], narrow.NARROW[dtype].values(narrow.NARROW[dtype].bits(-x)))


def test_without_saturation_there_is_infinity_or_no_number(scheduler_library: Path, gxx_here: None) -> None:
    x = np.array([448, 464, 465, 1e9, np.inf, -np.inf, 57344, 61440, -61441, 1], np.float32)
    found = np.zeros((2, x.size), np.uint8)
    built = gxx.build(Source(name="eight", text=TEXT, entries=("overflows",)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(1, 1, 1), block=(x.size, 1, 1))
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [x, found[0], found[1]])
    assert isinstance(done, Finished), done
    for ours, kind in zip(found, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            np.testing.assert_array_equal(ours.view(kind).astype(np.float32), x.astype(kind).astype(np.float32))
