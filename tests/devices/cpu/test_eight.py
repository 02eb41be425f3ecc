"""Floats of 8 bits on the processor: every code, and rounding as JAX's ml_dtypes and CUDA's saturation have it."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.devices.cpu.native import Finished, NativeLaunch, Runtime
from fusiond.model.language import narrow
from fusiond.model.program import Source

TEXT = """
#include <cuda_fp8.h>
template <class T>
__global__ void all(const float* x, const double* wide, unsigned char* bits, float* back, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T one(x[i]), other(wide[i]);
    bits[2 * i] = one.__x;
    bits[2 * i + 1] = other.__x;
    T code;
    code.__x = i;
    back[i] = (float)code;
}
"""
KINDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


@pytest.mark.parametrize("dtype", KINDS)
def test_every_code_and_many_numbers(dtype: str, scheduler_library: Path, gxx_here: None) -> None:
    kind = KINDS[dtype]
    entry = f"all<__nv_fp8_{kind}>"
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
    bits, back = np.zeros((x.size, 2), np.uint8), np.zeros(x.size, np.float32)
    built = gxx.build(Source(name="eight", text=TEXT, entries=(entry,)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(-(-x.size // 64), 1, 1), block=(64, 1, 1))
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [x, wide, bits, back, np.int32(x.size)])
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(bits[:, 0], narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(bits[:, 1], narrow.NARROW[dtype].bits(wide))
    np.testing.assert_array_equal(back[:256], values)
