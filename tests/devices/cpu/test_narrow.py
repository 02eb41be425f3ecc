"""Half precision and bfloat16 on the processor: every value and every rounding against NumPy, JAX's ml_dtypes and exact
fractions."""

import operator
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.build import gxx
from fusiond.devices.cpu.native import Finished, NativeLaunch, Runtime
from fusiond.model.language import narrow
from fusiond.model.program import Source

TEXT = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T> struct as;
template <> struct as<__half> {
  __device__ static __half of(unsigned short x) { return __ushort_as_half(x); }
  __device__ static unsigned short bits(__half x) { return __half_as_ushort(x); }
  __device__ static float wide(__half x) { return __half2float(x); }
  __device__ static __half narrow(double x) { return __double2half(x); }
  __device__ static __half rn(float x) { return __float2half_rn(x); }
  __device__ static __half rz(float x) { return __float2half_rz(x); }
  __device__ static __half ru(float x) { return __float2half_ru(x); }
  __device__ static __half rd(float x) { return __float2half_rd(x); }
};
template <> struct as<__nv_bfloat16> {
  __device__ static __nv_bfloat16 of(unsigned short x) { return __ushort_as_bfloat16(x); }
  __device__ static unsigned short bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
  __device__ static float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ static __nv_bfloat16 narrow(double x) { return __double2bfloat16(x); }
  __device__ static __nv_bfloat16 rn(float x) { return __float2bfloat16_rn(x); }
  __device__ static __nv_bfloat16 rz(float x) { return __float2bfloat16_rz(x); }
  __device__ static __nv_bfloat16 ru(float x) { return __float2bfloat16_ru(x); }
  __device__ static __nv_bfloat16 rd(float x) { return __float2bfloat16_rd(x); }
};
#define EACH int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
template <class T> __global__ void widen(const unsigned short* x, float* y, int n) {
  EACH;
  y[2 * i] = (float)as<T>::of(x[i]);
  y[2 * i + 1] = as<T>::wide(as<T>::of(x[i]));
}
template <class T> __global__ void round4(const float* x, unsigned short* y, int n) {
  EACH;
  y[4 * i] = as<T>::bits(as<T>::rn(x[i]));
  y[4 * i + 1] = as<T>::bits(as<T>::rz(x[i]));
  y[4 * i + 2] = as<T>::bits(as<T>::ru(x[i]));
  y[4 * i + 3] = as<T>::bits(as<T>::rd(x[i]));
}
template <class T> __global__ void from_double(const double* x, unsigned short* y, int n) {
  EACH;
  y[2 * i] = as<T>::bits(T(x[i]));
  y[2 * i + 1] = as<T>::bits(as<T>::narrow(x[i]));
}
template <class T> __global__ void from_long(const long long* x, unsigned short* y, int n) {
  EACH;
  y[i] = as<T>::bits(T(x[i]));
}
template <class T> __global__ void combine(const unsigned short* a, const unsigned short* b, const unsigned short* c,
                                           unsigned short* y, int n) {
  EACH;
  T p = as<T>::of(a[i]), q = as<T>::of(b[i]), r = as<T>::of(c[i]);
  unsigned short* out = y + 16 * i;
  out[0] = as<T>::bits(p + q);
  out[1] = as<T>::bits(p - q);
  out[2] = as<T>::bits(p * q);
  out[3] = as<T>::bits(p / q);
  out[4] = as<T>::bits(__hfma(p, q, r));
  out[5] = as<T>::bits(__hadd(p, q));
  out[6] = as<T>::bits(__hmul(p, q));
  out[7] = as<T>::bits(__hmax(p, q));
  out[8] = as<T>::bits(__hmin(p, q));
  out[9] = (p < q) | (p <= q) << 1 | (p > q) << 2 | (p >= q) << 3 | (p == q) << 4 | (p != q) << 5;
  out[10] = __hlt(p, q) | __hltu(p, q) << 1 | __heq(p, q) << 2 | __hequ(p, q) << 3 | __hisnan(p) << 4;
  out[11] = as<T>::bits(hsqrt(p));
  out[12] = as<T>::bits(-p);
  out[13] = as<T>::bits(__habs(p));
  p += q;
  out[14] = as<T>::bits(p);
  out[15] = as<T>::bits(hfloor(as<T>::of(a[i])));
}
// Pairs, shuffles, atomics and shared arrays: y = x * x + 1 of the neighbour, their sum, and the largest x * x.
__global__ void pairs(const __half2* x, __half2* y, __half* sum, __half* largest, int n) {
  __shared__ __half kept[64];
  EACH;
  __half2 one = __float2half2_rn(1.0f);
  __half2 value = __hfma2(x[i], x[i], one);
  value = __shfl_xor_sync(0xffffffffu, value, 1);
  kept[2 * threadIdx.x] = __low2half(value);
  kept[2 * threadIdx.x + 1] = __high2half(value);
  __syncthreads();
  y[i] = __halves2half2(kept[2 * threadIdx.x], kept[2 * threadIdx.x + 1]);
  atomicAdd(sum, __hadd(value.x, value.y));
  const __half2 square = x[i] * x[i];
  __half most = __hmax(__low2half(square), __high2half(square));
  for (int away = 16; away; away /= 2) most = __hmax(most, __shfl_down_sync(0xffffffffu, most, away));
  if (threadIdx.x == 0) *largest = most;
}
"""
FORMATS: dict[str, Any] = {"__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16}
KERNELS = tuple(
    f"{name}<{of}>" for name in ("widen", "round4", "from_double", "from_long", "combine") for of in FORMATS
)
SOURCE = Source(name="narrow", text=TEXT, entries=(*KERNELS, "pairs"))
Run = Callable[..., None]


@pytest.fixture(scope="module")
def run(scheduler_library: Path) -> Run:
    runtime = Runtime(scheduler_library)
    built = gxx.build(SOURCE)
    assert isinstance(built, Path), built
    module = runtime.load(built)

    def run(entry: str, n: int, *arguments: Any) -> None:
        launch = NativeLaunch(grid=(-(-n // 256), 1, 1), block=(256 if n > 32 else 32, 1, 1))
        done = runtime.launch(module.entry(gxx.exported(SOURCE, entry)), launch, [*arguments, np.int32(n)])
        assert isinstance(done, Finished), done

    return run


def same(found: Any, expected: Any, of: Any) -> None:
    """Equal bits; any NaN for any NaN."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(expected.view(of).astype(np.float64))
        np.testing.assert_array_equal(np.isnan(found.view(of).astype(np.float64)), nan)
    np.testing.assert_array_equal(found[~nan], expected[~nan])


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ALL = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_value_is_widened(run: Run, name: str) -> None:
    found = np.zeros((1 << 16, 2), np.float32)
    run(f"widen<{name}>", 1 << 16, ALL, found)
    with np.errstate(invalid="ignore"):
        for column in found.T:
            np.testing.assert_array_equal(column, ALL.view(FORMATS[name]).astype(np.float32))


def interesting(name: str) -> Any:
    """Around every value and every tie, and random bits."""
    with np.errstate(invalid="ignore"):
        values = ALL.view(FORMATS[name]).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])
    ties = (finite[1:] + finite[:-1]) / 2
    with np.errstate(over="ignore"):
        near = np.concatenate([finite, ties]).astype(np.float32)
        found = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    random = np.random.default_rng(1).integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 65519.99, 65520, 3.4e38, 1e-45], np.float32)
    return np.concatenate([*found, random, edges])


def test_floats_are_rounded_in_every_direction(run: Run, name: str) -> None:
    of = FORMATS[name]
    x = interesting(name)
    found = np.zeros((x.size, 4), np.uint16)
    run(f"round4<{name}>", x.size, x, found)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(of)
        same(np.ascontiguousarray(found[:, 0]), expected.view(np.uint16), of)
        wide = [np.ascontiguousarray(found[:, each]).view(of).astype(np.float64) for each in range(4)]
    _, zero, up, down = wide
    real = ~np.isnan(x)
    assert np.all(np.abs(zero[real]) <= np.abs(x[real]))
    assert np.all(up[real] >= x[real])
    assert np.all(down[real] <= x[real])
    # The one above and the one below are the same, or neighbours.
    steps = np.ascontiguousarray(found[:, 2:]).view(np.int16).astype(np.int32)
    ordered = np.where(steps < 0, -(steps & 0x7FFF), steps)
    assert set((ordered[real, 0] - ordered[real, 1]).tolist()) <= {0, 1}


def test_doubles_are_rounded_once(run: Run, name: str) -> None:
    """Ties that lie beside a float: rounding to float first would be wrong."""
    with np.errstate(invalid="ignore"):
        near = interesting(name).astype(np.float64)
    near = near[np.isfinite(near)]
    x = np.concatenate([near, near * (1 + 2.0**-40), near * (1 - 2.0**-40)])
    found = np.zeros((x.size, 2), np.uint16)
    run(f"from_double<{name}>", x.size, x, found)
    if name == "__half":
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16).view(np.uint16)
    else:
        expected = narrow.NARROW["bfloat16"].bits(x)
    for column in found.T:
        np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize("value", [2**62 + 2**54, 2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 65519, 65520, -3, 0])
def test_long_integers_are_rounded_once(run: Run, name: str, value: int) -> None:
    found = np.zeros(1, np.uint16)
    run(f"from_long<{name}>", 1, np.array([value], np.int64), found)
    with np.errstate(over="ignore"):
        assert found.view(FORMATS[name])[0] == nearest(Fraction(value), FORMATS[name])


def nearest(exact: Fraction, of: Any) -> Any:
    """The value of the format that is nearest, ties to even: by search in the table of all its values."""
    with np.errstate(invalid="ignore"):
        values = np.arange(1 << 15, dtype=np.uint16).view(of).astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = 0, finite.size - 1
    magnitude = abs(exact)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Fraction(float(finite[middle])) <= magnitude else (low, middle)
    below, above = Fraction(float(finite[low])), Fraction(float(finite[high]))
    if magnitude > above:  # at or beyond the largest
        chosen = finite.size if magnitude - above >= (above - below) / 2 else high
    elif magnitude - below == above - magnitude:
        chosen = low if low % 2 == 0 else high
    else:
        chosen = low if magnitude - below < above - magnitude else high
    result = np.arange(1 << 15, dtype=np.uint16)[chosen : chosen + 1].view(of)[0]
    return -result if exact < 0 else result


bits = st.integers(0, (1 << 16) - 1)
triples = st.lists(st.tuples(bits, bits, bits), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(given=triples, of=st.sampled_from(sorted(FORMATS)))
def test_operations_are_rounded_once(run: Run, given: list[tuple[int, int, int]], of: str) -> None:
    a, b, c = (np.array(each, np.uint16) for each in zip(*given, strict=True))
    found = np.zeros((len(given), 16), np.uint16)
    run(f"combine<{of}>", len(given), a, b, c, found)
    p, q, r = (each.view(FORMATS[of]) for each in (a, b, c))
    with np.errstate(all="ignore"):
        columns = {0: p + q, 1: p - q, 2: p * q, 3: p / q, 5: p + q, 6: p * q, 7: np.fmax(p, q), 8: np.fmin(p, q),
                   11: np.sqrt(p), 12: -p, 13: np.abs(p), 14: p + q, 15: np.floor(p)}  # fmt: skip
        for column, expected in columns.items():
            one = np.ascontiguousarray(found[:, column])
            if column in (7, 8):  # of two zeros either
                same(one & np.where(p.astype(np.float32) == 0, 0x7FFF, 0xFFFF).astype(np.uint16),
                     expected.view(np.uint16) & np.where(p.astype(np.float32) == 0, 0x7FFF, 0xFFFF).astype(np.uint16),
                     FORMATS[of])  # fmt: skip
            else:
                same(one, expected.view(np.uint16), FORMATS[of])
        relations = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
        x, y = p.astype(np.float32), q.astype(np.float32)
        asked = sum(each(x, y).astype(int) << place for place, each in enumerate(relations))
        np.testing.assert_array_equal(found[:, 9], asked)
        unordered = np.isnan(x) | np.isnan(y)
        asked = (x < y) | ((x < y) | unordered) * 2 | (x == y) * 4 | ((x == y) | unordered) * 8 | np.isnan(x) * 16
        np.testing.assert_array_equal(found[:, 10], asked)
    with np.errstate(invalid="ignore"):
        wide = [each.astype(np.float64) for each in (p, q, r)]
    for row, (one, two, three) in enumerate(zip(*wide, strict=True)):
        if not np.isfinite([one, two, three]).all():
            continue
        exact = Fraction(one) * Fraction(two) + Fraction(three)
        got = found[row, 4:5].view(FORMATS[of])[0]
        assert float(got) == float(nearest(exact, FORMATS[of])), (one, two, three)


def test_pairs_shuffles_atomics_and_shared_arrays(run: Run) -> None:
    x = (np.arange(64) % 5).astype(np.float16)  # so small that sums are exact in any order
    y, total, largest = np.zeros(64, np.uint16), np.zeros(1, np.uint16), np.zeros(1, np.uint16)
    run("pairs", 32, x.view(np.uint16), y, total, largest)
    squares = (x.astype(np.float64) ** 2 + 1).astype(np.float16)
    np.testing.assert_array_equal(y.view(np.float16), squares.reshape(16, 2, 2)[:, ::-1].reshape(-1))
    assert total.view(np.float16)[0] == squares.sum()
    assert largest.view(np.float16)[0] == 16


# --- floats of 8 bits -----------------------------------------------------------------------------------


EIGHT_TEXT = """
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
    built = gxx.build(Source(name="eight", text=EIGHT_TEXT, entries=(entry,)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(-(-x.size // 64), 1, 1), block=(64, 1, 1))
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [x, wide, bits, back, np.int32(x.size)])
    assert isinstance(done, Finished), done
    np.testing.assert_array_equal(bits[:, 0], narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(bits[:, 1], narrow.NARROW[dtype].bits(wide))
    np.testing.assert_array_equal(back[:256], values)
