"""CUDA's arithmetic functions on the cpu device, each against exact integers, fractions, NumPy or SciPy.

One object holds a kernel for each function: `out[i] = function(a[i], b[i], c[i])`.
"""

import itertools
import math
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from fusiond.build import gxx
from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.devices.cpu.native import Finished, NativeLaunch, NativeModule, Runtime

pytestmark = pytest.mark.usefixtures("gxx_here")

C_NAMES = {
    "i4": "int", "u4": "unsigned", "i8": "long long", "u8": "unsigned long long", "f4": "float", "f8": "double",
}  # fmt: skip
RANGES = {"i4": (-(2**31), 2**31), "u4": (0, 2**32), "i8": (-(2**63), 2**63), "u8": (0, 2**64)}


@dataclass(frozen=True, slots=True)
class Function:
    """A function, its result type and argument types, and what it should give for Python's numbers."""

    name: str
    result: str
    arguments: tuple[str, ...]
    oracle: Callable[..., Any]

    @property
    def kernel(self) -> str:
        return f"{self.name.strip('_').replace('.', '_')}_{'_'.join(self.arguments)}"

    @property
    def text(self) -> str:
        parameters = [f"const {C_NAMES[kind]}* {'abc'[i]}" for i, kind in enumerate(self.arguments)]
        call = f"{self.name}({', '.join(f'{each}[i]' for each in 'abc'[: len(self.arguments)])})"
        body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = {call};"
        return (
            f"__global__ void k_{self.kernel}({C_NAMES[self.result]}* out, {', '.join(parameters)}, int n) {{ {body} }}"
        )


def wrapped(value: int, kind: str) -> int:
    low, high = RANGES[kind]
    return (value - low) % (high - low) + low


# Rounding

WHOLE: dict[str, Callable[[Fraction], int]] = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}


def rounded(value: Fraction | float, kind: str, mode: str) -> float:
    """The float (of 24 or 53 bits) that a rounding mode makes of an exact value."""
    if isinstance(value, float):
        return value
    bits, least = (24, -149) if kind == "f4" else (53, -1074)
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() - bits
    while size >= Fraction(2) ** (exponent + bits):
        exponent += 1
    exponent = max(exponent, least)
    scaled = value / Fraction(2) ** exponent
    whole = WHOLE[mode](scaled)
    most = (2**bits - 1) * 2 ** ((127 if kind == "f4" else 1023) - bits + 1)
    result = Fraction(whole) * Fraction(2) ** exponent
    if abs(result) > most:
        inward = mode == "rz" or mode == ("rd" if result > 0 else "ru")
        return math.copysign(float(most) if inward else math.inf, result)
    return float(result)


def exactly(operation: Callable[..., Fraction], kind: str, mode: str) -> Callable[..., float]:
    return lambda *values: rounded(operation(*map(Fraction, values)), kind, mode)


def root(value: Fraction, kind: str, mode: str) -> float:
    """The rounded square root: from a whole root with so many bits that a sticky one decides the rest."""
    scaled = (value.numerator << 400) // value.denominator
    whole = math.isqrt(scaled)
    sticky = Fraction(1, 4) if whole * whole != scaled else Fraction(0)
    return rounded((Fraction(whole) + sticky) / Fraction(2) ** 200, kind, mode)


def rounding_functions() -> Iterable[Function]:
    modes = ("rn", "rz", "ru", "rd")
    for (kind, letter, fma), mode in itertools.product([("f4", "f", "__fmaf"), ("f8", "d", "__fma")], modes):

        def make(
            name: str, count: int, operation: Callable[..., Fraction], kind: str = kind, mode: str = mode
        ) -> Function:
            return Function(f"{name}_{mode}", kind, (kind,) * count, exactly(operation, kind, mode))

        yield make(f"__{letter}add", 2, lambda a, b: a + b)
        yield make(f"__{letter}sub", 2, lambda a, b: a - b)
        yield make(f"__{letter}mul", 2, lambda a, b: a * b)
        yield make(f"__{letter}div", 2, lambda a, b: a / b)
        yield make(f"__{letter}rcp", 1, lambda a: 1 / a)
        yield make(fma, 3, lambda a, b, c: a * b + c)
        yield Function(
            f"__{letter}sqrt_{mode}", kind, (kind,), lambda a, kind=kind, mode=mode: root(Fraction(a), kind, mode)
        )
        if kind == "f4":
            for source, name in (("i4", "int"), ("u4", "uint"), ("i8", "ll"), ("u8", "ull"), ("f8", "double")):
                yield Function(f"__{name}2float_{mode}", "f4", (source,), exactly(lambda a: a, "f4", mode))
        else:
            for source, name in (("i8", "ll"), ("u8", "ull")):
                yield Function(f"__{name}2double_{mode}", "f8", (source,), exactly(lambda a: a, "f8", mode))
        for target, name in (("i4", "int"), ("u4", "uint"), ("i8", "ll"), ("u8", "ull")):
            source_name = "float" if kind == "f4" else "double"
            yield Function(
                f"__{source_name}2{name}_{mode}", target, (kind,),
                lambda a, target=target, kind=kind, mode=mode: to_integer(a, kind, target, mode),
            )  # fmt: skip


def to_integer(value: float, kind: str, target: str, mode: str) -> int:
    low, high = RANGES[target]
    if math.isnan(value):
        if kind == "f4" and target in ("i4", "u4"):
            return 0
        return low if low else high // 2
    if math.isinf(value):
        return high - 1 if value > 0 else low
    whole = WHOLE[mode](Fraction(value))
    return min(max(whole, low), high - 1)


# Bits


def parts(word: int, bits: int, signed: bool) -> list[int]:
    values = [word >> shift & (2**bits - 1) for shift in range(0, 32, bits)]
    return [v - 2**bits if signed and v >> (bits - 1) else v for v in values]


def each_part(operation: Callable[..., int], bits: int, signed: bool) -> Callable[..., int]:
    def apply(*words: int) -> int:
        results = [operation(*values) for values in zip(*(parts(word, bits, signed) for word in words), strict=True)]
        return sum((int(value) & (2**bits - 1)) << bits * i for i, value in enumerate(results))

    return apply


def clamping(low: int, high: int) -> Callable[[int], int]:
    return lambda value: min(max(value, low), high)


def saturating(operation: Callable[..., int], low: int, high: int) -> Callable[..., int]:
    return lambda *values: clamping(low, high)(operation(*values))


def dpx(best: Callable[..., int]) -> tuple[Callable[..., int], ...]:
    """Not below zero; of a sum that wraps; both; of a sum of half-words."""

    def half(value: int) -> int:
        return (value + 2**15) % 2**16 - 2**15

    def add(a: int, b: int, c: int) -> int:
        return best(wrapped(a + b, "i4"), c)

    return (
        lambda *values: max(best(*values), 0), add, lambda *values: max(add(*values), 0),
        lambda a, b, c: best(half(a + b), c),
    )  # fmt: skip


def packed_functions() -> Iterable[Function]:
    for bits in (16, 8):
        number = 32 // bits
        for signed in (True, False):
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            s = "s" if signed else "u"
            two: dict[str, Callable[[int, int], int]] = {
                f"__vmax{s}": max,
                f"__vmin{s}": min,
                f"__vabsdiff{s}": lambda a, b: abs(a - b),
                f"__vadd{s}s": saturating(lambda a, b: a + b, low, high),
                f"__vsub{s}s": saturating(lambda a, b: a - b, low, high),
                f"__vavg{s}": lambda a, b: (
                    math.floor(Fraction(a + b, 2) + Fraction(1, 2)) if a + b >= 0 else (a + b) // 2
                ),
                f"__vcmpge{s}": lambda a, b: -(a >= b),
                f"__vcmpgt{s}": lambda a, b: -(a > b),
                f"__vcmple{s}": lambda a, b: -(a <= b),
                f"__vcmplt{s}": lambda a, b: -(a < b),
                f"__vsetge{s}": lambda a, b: a >= b,
                f"__vsetlt{s}": lambda a, b: a < b,
            }
            if signed:
                two |= {"__vadd": lambda a, b: a + b, "__vsub": lambda a, b: a - b}
                two |= {"__vcmpeq": lambda a, b: -(a == b), "__vsetne": lambda a, b: a != b}
                single: dict[str, Callable[[int], int]] = {
                    "__vabs": abs, "__vneg": lambda a: -a,
                    "__vabsss": saturating(abs, low, high), "__vnegss": saturating(lambda a: -a, low, high),
                }  # fmt: skip
                for name, one in single.items():
                    yield Function(f"{name}{number}", "u4", ("u4",), each_part(one, bits, True))
            else:
                two["__vhaddu"] = lambda a, b: (a + b) // 2
            for name, operation in two.items():
                yield Function(f"{name}{number}", "u4", ("u4", "u4"), each_part(operation, bits, signed))
            yield Function(
                f"__vsad{s}{number}", "u4", ("u4", "u4"),
                lambda a, b, bits=bits, signed=signed: sum(
                    abs(x - y) for x, y in zip(parts(a, bits, signed), parts(b, bits, signed), strict=True)
                ),
            )  # fmt: skip
    bests: tuple[tuple[str, Callable[..., int]], ...] = (("min", min), ("max", max))
    for name, best in bests:
        relu, add, add_relu, add_half = dpx(best)
        yield Function(f"__vi{name}_s32_relu", "i4", ("i4",) * 2, relu)
        yield Function(f"__vi{name}3_s32", "i4", ("i4",) * 3, best)
        yield Function(f"__vi{name}3_s32_relu", "i4", ("i4",) * 3, relu)
        yield Function(f"__vi{name}3_u32", "u4", ("u4",) * 3, best)
        yield Function(f"__viadd{name}_s32", "i4", ("i4",) * 3, add)
        yield Function(f"__viadd{name}_s32_relu", "i4", ("i4",) * 3, add_relu)
        yield Function(f"__vi{name}3_s16x2", "u4", ("u4",) * 3, each_part(best, 16, True))
        yield Function(f"__vi{name}3_u16x2", "u4", ("u4",) * 3, each_part(best, 16, False))
        yield Function(f"__vi{name}_s16x2_relu", "u4", ("u4",) * 2, each_part(relu, 16, True))
        yield Function(
            f"__viadd{name}_s16x2", "u4", ("u4",) * 3,
            each_part(add_half, 16, True),
        )  # fmt: skip


def nth_bit(mask: int, base: int, offset: int) -> int:
    base %= 32
    if offset == 0:
        return base if mask >> base & 1 else 2**32 - 1
    order = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [bit for bit in order if mask >> bit & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else 2**32 - 1


def funnel(left: bool, clamp: bool) -> Callable[[int, int, int], int]:
    def shift(low: int, high: int, by: int) -> int:
        by = min(by, 32) if clamp else by % 32
        pair = high << 32 | low
        return (pair << by >> 32 if left else pair >> by) % 2**32

    return shift


def dot(a: int, b: int, c: int, *, bits: int, signed: bool, high: bool = False) -> int:
    left = parts(a % 2**32, bits, signed)
    right = parts(b % 2**32, 8, signed)[2 * high :]
    return c + sum(x * y for x, y in zip(left, right, strict=False))


def integer_functions() -> Iterable[Function]:
    yield Function("__fns", "u4", ("u4", "u4%32", "i4%40"), nth_bit)
    for left, clamp in itertools.product((True, False), (True, False)):
        name = f"__funnelshift_{'l' if left else 'r'}{'c' if clamp else ''}"
        yield Function(name, "u4", ("u4", "u4", "u4%40"), funnel(left, clamp))
    for s, kind in (("", "i4"), ("u", "u4")):
        signed = kind == "i4"
        yield Function("__dp4a", kind, (kind,) * 3, lambda a, b, c, s=signed: dot(a, b, c, bits=8, signed=s))
        yield Function("__dp2a_lo", kind, (kind,) * 3, lambda a, b, c, s=signed: dot(a, b, c, bits=16, signed=s))
        yield Function(
            "__dp2a_hi", kind, (kind,) * 3, lambda a, b, c, s=signed: dot(a, b, c, bits=16, signed=s, high=True)
        )
        yield Function(f"__{s}mulhi", kind, (kind,) * 2, lambda a, b: a * b >> 32)
        yield Function(f"__{s}hadd", kind, (kind,) * 2, lambda a, b: (a + b) >> 1)
        yield Function("__rhadd" if signed else "__urhadd", kind, (kind,) * 2, lambda a, b: (a + b + 1) >> 1)
        yield Function(f"__{s}sad", "u4", (kind, kind, "u4"), lambda a, b, c: abs(a - b) + c)
        yield Function("min", kind, (kind,) * 2, min)
    for s, kind in (("", "i8"), ("u", "u8")):
        yield Function(f"__{s}mul64hi", kind, (kind,) * 2, lambda a, b: a * b >> 64)
        yield Function("llmax" if kind == "i8" else "ullmax", kind, (kind,) * 2, max)
        yield Function("llmin" if kind == "i8" else "ullmin", kind, (kind,) * 2, min)
    yield Function("umin", "u4", ("u4",) * 2, min)
    yield Function("umax", "u4", ("u4",) * 2, max)


# Functions of reals: name, SciPy's, range, arguments


REALS: tuple[tuple[str, Callable[..., Any], float, float, int], ...] = (
    ("erfinv", special.erfinv, -1, 1, 1),
    ("erfcinv", special.erfcinv, 0, 2, 1),
    ("erfcx", special.erfcx, -5, 60, 1),
    ("normcdf", special.ndtr, -9, 9, 1),
    ("normcdfinv", special.ndtri, 0, 1, 1),
    ("sinpi", lambda x: np.sin(np.pi * np.remainder(x, 2)), -99, 99, 1),
    ("cospi", lambda x: np.cos(np.pi * np.remainder(x, 2)), -99, 99, 1),
    ("cyl_bessel_i0", special.i0, -60, 60, 1),
    ("cyl_bessel_i1", special.i1, -60, 60, 1),
    ("cbrt", np.cbrt, -1e6, 1e6, 1),
    ("rcbrt", lambda x: 1 / np.cbrt(x), -1e6, 1e6, 1),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 0.001, 1e6, 1),
    ("rhypot", lambda a, b: 1 / np.hypot(a, b), -1e3, 1e3, 2),
    ("norm3d", lambda a, b, c: np.sqrt(a * a + b * b + c * c), -1e3, 1e3, 3),
    ("rnorm3d", lambda a, b, c: 1 / np.sqrt(a * a + b * b + c * c), -1e3, 1e3, 3),
)

EXACT = (*rounding_functions(), *packed_functions(), *integer_functions())
FLOATS = tuple(
    Function(f"{name}{'f' if kind == 'f4' else ''}", kind, (kind,) * count, oracle)
    for name, oracle, _, _, count in REALS
    for kind in ("f4", "f8")
)
N = 400


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runtime, NativeModule]:
    folder = tmp_path_factory.mktemp("arithmetic")
    functions = [*EXACT, *FLOATS]
    text = "".join(plain(each).text + "\n" for each in functions) + ODDMENTS
    source = folder / "arithmetic.cpp"
    kernels = {f"k_{plain(each).kernel}": f"k_{plain(each).kernel}" for each in functions} | {"oddments": "oddments"}
    source.write_text(commands.translation_unit(lower(text), kernels))
    subprocess.run(commands.kernel(source, source.with_suffix(".so")), check=True)
    runtime = Runtime(gxx.scheduler())
    return runtime, runtime.load(source.with_suffix(".so"))


def plain(function: Function) -> Function:
    """Without the ranges that stand behind `%`."""
    arguments = tuple(kind.partition("%")[0] for kind in function.arguments)
    return Function(function.name, function.result, arguments, function.oracle)


def call(loaded: tuple[Runtime, NativeModule], function: Function, values: list[NDArray[Any]]) -> NDArray[Any]:
    runtime, module = loaded
    out = np.zeros(len(values[0]), function.result)
    launch = NativeLaunch(grid=(-(-out.size // 128), 1, 1), block=(128, 1, 1))
    entry = module.entry(f"k_{plain(function).kernel}")
    done = runtime.launch(entry, launch, [out, *values, np.int32(out.size)])
    assert isinstance(done, Finished), done
    return out


def samples(kind: str, rng: np.random.Generator) -> NDArray[Any]:
    """Values of every size, and the edges."""
    name, _, limit = kind.partition("%")
    dtype = np.dtype(name)
    if dtype.kind == "f":
        values = (rng.normal(size=N) * 2.0 ** rng.integers(-40, 70, N)).astype(dtype)
        values[:60] = rng.integers(-40, 40, 60) / 4 + 0.125
        return values
    if limit:
        low = -int(limit) if dtype.kind == "i" else 0
        return rng.integers(low, int(limit), N).astype(dtype)
    bits = 8 * dtype.itemsize
    values = rng.integers(0, 2**bits, N, dtype=f"u{dtype.itemsize}") >> rng.integers(
        0, bits, N, dtype=np.uint64
    ).astype(f"u{dtype.itemsize}")
    edges = [0, 1, 2, 127, 128, 255, 2**15 - 1, 2**15, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, 0x80008000]
    values[: 12 * 12] = [edges[(i // 12 if rng.random() < 0.5 else i) % 12] for i in range(144)]
    return np.ascontiguousarray(rng.permutation(values)).view(dtype)


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("function", EXACT, ids=lambda each: each.kernel)
def test_is_exact(loaded: tuple[Runtime, NativeModule], function: Function) -> None:
    rng = np.random.default_rng(1)
    values = [samples(kind, rng) for kind in function.arguments]
    if "sqrt" in function.name:
        values = [np.abs(values[0])]
    if "div" in function.name or "rcp" in function.name:
        values[-1][values[-1] == 0] = 3
    if function.name.startswith(("__float2", "__double2")) and function.result != "f4":
        values[0][:6] = [np.nan, np.inf, -np.inf, -0.5, 2.5, 3.5]
    got = call(loaded, function, values)
    for *arguments, result in zip(*(each.tolist() for each in values), got.tolist(), strict=True):
        wanted = function.oracle(*arguments)
        if function.result in RANGES:
            wanted = wrapped(int(wanted), function.result)
        assert result == wanted, (function.name, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("function", FLOATS, ids=lambda each: each.kernel)
def test_is_close(loaded: tuple[Runtime, NativeModule], function: Function) -> None:
    rng = np.random.default_rng(2)
    name = function.name.removesuffix("f") if function.result == "f4" else function.name
    (low, high), count = next(((low, high), count) for each, _, low, high, count in REALS if each == name)
    values = [rng.uniform(low, high, N).astype(function.result) for _ in range(count)]
    if name in ("erfcinv", "normcdfinv"):
        values[0][:40] = np.logspace(-30, -1, 40)
    if name == "erfinv":
        values[0][:40] = np.logspace(-30, -1, 40)
    got = call(loaded, function, values)
    wanted = function.oracle(*(each.astype(np.float64) for each in values))
    atol = 1e-13 if name in ("sinpi", "cospi") else 0.0  # there the oracle is no better
    np.testing.assert_allclose(got, wanted, rtol=2e-7 if function.result == "f4" else 4e-13, atol=atol)


def test_edges_of_the_inverse_error_functions(loaded: tuple[Runtime, NativeModule]) -> None:
    inverse = next(each for each in FLOATS if each.name == "erfcinv")
    got = call(loaded, inverse, [np.array([0.0, 2.0, 1.0, -1.0, 2.5, np.nan])])
    np.testing.assert_array_equal(got, [np.inf, -np.inf, 0.0, np.nan, np.nan, np.nan])


ODDMENTS = """
struct Point { float x, y; };
__device__ int global_number;
__global__ void oddments(int* out, float* stored) {
    __shared__ int shared_number;
    extern __shared__ int dynamic[];
    int local_number;
    int* o = out;
    *o++ = __isShared(&shared_number) && __isShared(dynamic) && !__isGlobal(dynamic) && !__isShared(&local_number);
    *o++ = __isGlobal(out) && __isGlobal(&global_number) && !__isLocal(out) && !__isGlobal(&local_number);
    *o++ = __isLocal(&local_number);
    *o++ = __cvta_shared_to_generic(__cvta_generic_to_shared(&shared_number)) == &shared_number;
    const long long begun = clock64();
    const clock_t short_begun = clock();
    *o++ = clock64() >= begun && clock() >= short_begun;
    bool first, high, low;
    *o++ = __vibmax_s32(3, -7, &first) == 3 && first && __vibmin_u32(3u, 4u, &first) == 3u && first;
    *o++ = __vibmin_s16x2(0x0001ffffu, 0x00000000u, &high, &low) == 0x0000ffffu && !high && low;
    __stcg(stored, 1), __stcs(stored + 1, 2.0), __stwt(stored + 2, 3.0f);
    *o++ = (int)(__ldcg(stored) + __ldca(stored + 1) + __ldcs(stored + 2));
    Point p[1] = {{1.5f, 2.5f}};
    *o++ = (int)(2 * __ldg(&p[0]).y);
    float s, c;
    sincospif(0.5f, &s, &c);
    *o++ = s == 1.0f && c == 0.0f;
    const float numbers[] = {3, 4, 12, 84};
    *o++ = normf(4, numbers) == 85 && norm4df(3, 4, 12, 84) == 85 &&
           norm3d(scalbn(3.0, 600), scalbn(4.0, 600), 0) == scalbn(5.0, 600);
    __builtin_assume(out != nullptr);
    *o++ = isnan(s - s + CUDART_NAN_F) && !isinf(c);
    *o++ = __dp4a(make_char4(1, -2, 3, -4), make_char4(5, 6, 7, 8), 100);
    *o++ = (int)__dp2a_hi(make_ushort2(65535, 2), make_uchar4(9, 9, 255, 3), 1u);
#if __CUDA_ARCH__ == 900 && defined(__CUDACC__) && defined(__NVCC__) && __CUDACC_VER_MAJOR__ >= 12
    *o++ = 1;
#endif
#ifndef __CUDACC__
#define __shared__
#endif
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif
}
"""


def test_oddments(loaded: tuple[Runtime, NativeModule]) -> None:
    runtime, module = loaded
    out = np.full(16, -1, np.int32)
    launch = NativeLaunch(grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=16)
    assert isinstance(runtime.launch(module.entry("oddments"), launch, [out, np.zeros(4, np.float32)]), Finished)
    dot4, dot2 = 100 + 5 - 12 + 21 - 32, 65535 * 255 + 2 * 3 + 1
    assert out.tolist() == [1] * 7 + [6, 5] + [1] * 3 + [dot4, dot2, 1, -1]


HEADERS = (
    "algorithm", "array", "cmath", "cstdint", "limits", "type_traits", "utility", "tuple", "functional", "numeric",
)  # fmt: skip


def test_the_standard_library_beside_the_macros_of_nvcc(tmp_path: Path) -> None:
    source = tmp_path / "headers.cpp"
    text = "".join(f"#include <{each}>\n" for each in HEADERS)
    text += "__global__ void k(float* x) { x[0] = std::max(std::abs(x[1]), std::fma(x[0], x[1], x[2])); }\n"
    source.write_text(commands.translation_unit(lower(text), {"k": "k"}))
    subprocess.run(commands.kernel(source, source.with_suffix(".so")), check=True)
