"""Inline PTX on the processor: each instruction against whole numbers of Python, by the rules of the PTX manual."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.build import gxx
from fusiond.devices.cpu import inline_ptx
from fusiond.devices.cpu.native import Finished, NativeLaunch, Runtime
from fusiond.program import Source

M32, M64 = 2**32 - 1, 2**64 - 1


def s32(x: int) -> int:
    return x - 2**32 if x >> 31 & 1 else x


def s64(x: int) -> int:
    return x - 2**64 if x >> 63 & 1 else x


def bfe(a: int, b: int, c: int, *, sign: bool) -> int:
    at, count = b & 255, c & 255
    last = min(at + count - 1, 31)
    fill = bool(sign and count and a >> last & 1)
    return sum(((a >> (at + i) & 1) if i < count and at + i < 32 else fill) << i for i in range(32))


def bfi(a: int, b: int, at: int, count: int) -> int:
    for i in range(count):
        if at + i < 32:
            b = b & ~(1 << at + i) | (a >> i & 1) << at + i
    return b


def lop3(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


def prmt(a: int, b: int, c: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    picked = [data[c >> 4 * i & 7] for i in range(4)]
    signs = [c >> 4 * i & 8 for i in range(4)]
    return int.from_bytes(bytes(0xFF * (x >> 7) if s else x for x, s in zip(picked, signs, strict=True)), "little")


Rule = Callable[[int, int, int], int]
OF_32: dict[str, Rule] = {
    "add.u32 %0, %1, %2;": lambda a, b, c: a + b,
    "sub.s32 %0, %1, %2;": lambda a, b, c: a - b,
    "mul.lo.u32 %0, %1, %2;": lambda a, b, c: a * b,
    "mul.hi.u32 %0, %1, %2;": lambda a, b, c: a * b >> 32,
    "mul.hi.s32 %0, %1, %2;": lambda a, b, c: s32(a) * s32(b) >> 32,
    "mad.lo.u32 %0, %1, %2, %3;": lambda a, b, c: a * b + c,
    "mad.hi.u32 %0, %1, %2, %3;": lambda a, b, c: (a * b >> 32) + c,
    "min.s32 %0, %1, %2;": lambda a, b, c: min(s32(a), s32(b)),
    "max.u32 %0, %1, %2;": lambda a, b, c: max(a, b),
    "and.b32 %0, %1, %2;": lambda a, b, c: a & b,
    "or.b32 %0, %1, 255;": lambda a, b, c: a | 255,
    "xor.b32 %0, %1, 0xF0F0;": lambda a, b, c: a ^ 0xF0F0,
    "not.b32 %0, %1;": lambda a, b, c: ~a,
    "neg.s32 %0, %1;": lambda a, b, c: -a,
    "shl.b32 %0, %1, %2;": lambda a, b, c: a << b if b < 32 else 0,
    "shr.u32 %0, %1, %2;": lambda a, b, c: a >> b if b < 32 else 0,
    "shr.s32 %0, %1, %2;": lambda a, b, c: s32(a) >> min(b, 31),
    "shf.l.wrap.b32 %0, %1, %2, %3;": lambda a, b, c: ((b << 32 | a) << c % 32) >> 32,
    "shf.r.wrap.b32 %0, %1, %2, %3;": lambda a, b, c: (b << 32 | a) >> c % 32,
    "shf.l.clamp.b32 %0, %1, %2, %3;": lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32,
    "shf.r.clamp.b32 %0, %1, %2, %3;": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "popc.b32 %0, %1;": lambda a, b, c: a.bit_count(),
    "clz.b32 %0, %1;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %0, %1;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %0, %1;": lambda a, b, c: a.bit_length() - 1,
    "bfind.s32 %0, %1;": lambda a, b, c: (a if a < 2**31 else ~a & M32).bit_length() - 1,
    "bfe.u32 %0, %1, %2, %3;": lambda a, b, c: bfe(a, b, c, sign=False),
    "bfe.s32 %0, %1, %2, %3;": lambda a, b, c: bfe(a, b, c, sign=True),
    "bfi.b32 %0, %1, %2, 5, 9;": lambda a, b, c: bfi(a, b, 5, 9),
    "bfi.b32 %0, %1, %2, 28, 9;": lambda a, b, c: bfi(a, b, 28, 9),
    "prmt.b32 %0, %1, %2, %3;": prmt,
    "lop3.b32 %0, %1, %2, %3, 0x96;": lambda a, b, c: a ^ b ^ c,
    "lop3.b32 %0, %1, %2, %3, 0xE8;": lambda a, b, c: lop3(a, b, c, 0xE8),
    "lop3.b32 %0, %1, %2, %3, 0x1B;": lambda a, b, c: lop3(a, b, c, 0x1B),
    "sad.u32 %0, %1, %2, %3;": lambda a, b, c: c + abs(a - b),
    "{ .reg .u32 t; xor.b32 t, %1, %2; and.b32 %0, t, %3; }": lambda a, b, c: (a ^ b) & c,
    "{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %3, 7, p; }": lambda a, b, c: c if s32(a) < s32(b) else 7,
    "{ .reg .pred q; setp.ge.u32 q, %1, %2; mov.u32 %0, %3; @!q mov.u32 %0, 9; }": lambda a, b, c: c if a >= b else 9,
    "{ .reg .u32 h; add.cc.u32 h, %1, %2; addc.u32 %0, %3, 0; }": lambda a, b, c: c + (a + b >> 32),
    "{ .reg .u32 h; sub.cc.u32 h, %1, %2; subc.u32 %0, %3, 0; }": lambda a, b, c: c - (a < b),
    "{ .reg .u32 h; mad.lo.cc.u32 h, %1, %2, %3; madc.hi.u32 %0, %1, %2, 0; }": lambda a, b, c: (a * b + c) >> 32,
    "cvt.u32.u8 %0, %1;": lambda a, b, c: a & 255,
    "cvt.s32.s8 %0, %1;": lambda a, b, c: (a & 127) - (a & 128),
    "mov.u32 %0, %%laneid;": lambda a, b, c: -1,  # in the test
}  # fmt: skip
OF_64: dict[str, Rule] = {
    "add.u64 %0, %1, %2;": lambda a, b, c: a + b,
    "mul.lo.u64 %0, %1, %2;": lambda a, b, c: a * b,
    "mul.hi.u64 %0, %1, %2;": lambda a, b, c: a * b >> 64,
    "mul.hi.s64 %0, %1, %2;": lambda a, b, c: s64(a) * s64(b) >> 64,
    "xor.b64 %0, %1, %2;": lambda a, b, c: a ^ b,
    "shl.b64 %0, %1, 7;": lambda a, b, c: a << 7,
    "shr.s64 %0, %1, 70;": lambda a, b, c: -(a >> 63),
    "popc.b64 %0, %1;": lambda a, b, c: a.bit_count(),
    "clz.b64 %0, %1;": lambda a, b, c: 64 - a.bit_length(),
    "{ .reg .b32 lo, hi; mov.b64 {lo, hi}, %1; mov.b64 %0, {hi, lo}; }": lambda a, b, c: a >> 32 | (a & M32) << 32,
    "{ .reg .u32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mul.wide.u32 %0, x, y; }":
        lambda a, b, c: (a & M32) * (b & M32),
    "{ .reg .s32 x, y; cvt.u32.u64 x, %1; cvt.u32.u64 y, %2; mad.wide.s32 %0, x, y, %3; }":
        lambda a, b, c: s32(a & M32) * s32(b & M32) + c,
    "{ .reg .u64 h; add.cc.u64 h, %1, %2; addc.u64 %0, %3, %3; }": lambda a, b, c: c + c + (a + b >> 64),
    "sub.cc.u64 %0, %1, %2;": lambda a, b, c: a - b,
}  # fmt: skip


def _kernel(rules: dict[str, Rule], word: str, letter: str) -> str:
    lines = [f"__global__ void all(const {word}* a, const {word}* b, const {word}* c, {word}* out, int n) {{",
             "    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"]  # fmt: skip
    for at, text in enumerate(rules):
        read = "".join(f', "{letter}"({name}[i])' for name in "abc").removeprefix(", ")
        lines.append(f'    asm volatile("{text}" : "={letter}"(out[{at} * n + i]) : {read} : "memory");')
    return "\n".join([*lines, "}"])


@pytest.mark.parametrize("bits", [32, 64])
def test_whole_numbers(bits: int, scheduler_library: Path, gxx_here: None) -> None:
    rules, mask, dtype = (OF_32, M32, np.uint32) if bits == 32 else (OF_64, M64, np.uint64)
    word, letter = ("unsigned", "r") if bits == 32 else ("unsigned long long", "l")
    rng = np.random.default_rng(0)
    edges = [0, 1, 2, 31, 32, 33, 63, 64, 2**31 - 1, 2**31, mask, mask - 1, mask >> 1, (mask >> 1) + 1]
    drawn = rng.integers(0, mask, (3, 300), dtype=np.uint64, endpoint=True)
    small = rng.integers(0, 40, (3, 100), dtype=np.uint64)
    corner = np.array([[x, y, edges[rng.integers(len(edges))]] for x in edges for y in edges], np.uint64).T
    a, b, c = np.concatenate(
        [drawn, small, corner, np.stack([drawn[0], small[1].repeat(3), small[2].repeat(3)])], 1
    ).astype(dtype)
    n = a.size
    out = np.zeros((len(rules), n), dtype)
    built = gxx.build(Source(name="ptx", text=_kernel(rules, word, letter), entries=("all",)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(-(-n // 64), 1, 1), block=(64, 1, 1))
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [a, b, c, out, np.int32(n)])
    assert isinstance(done, Finished), done
    for (text, rule), row in zip(rules.items(), out, strict=True):
        if "laneid" in text:
            expected = np.arange(n) % 32
        else:
            expected = np.array([rule(*map(int, each)) & mask for each in zip(a, b, c, strict=True)], dtype)
        np.testing.assert_array_equal(row, expected.astype(dtype), err_msg=text)


MEMORY = """
__global__ void memory(const float4* x, float4* y, const float* f, int* whole,
                       unsigned short* half, float* g, unsigned* counter)
{
    __shared__ float4 tile[32];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(to), "l"(&x[t]), "n"(16));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group %0;" :: "n"(0));
    float a, b, c, d;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(to));
    asm volatile("{\\n\\t"
                 ".reg .f32 s;\\n\\t"
                 "fma.rn.f32 s, %1, %2, %3;  // s\\n\\t"
                 "st.global.cs.v4.f32 [%0], {s, %1, 0f3F800000, %3};\\n\\t"
                 "}" :: "l"(&y[t]), "f"(a), "f"(b), "f"(d) : "memory");
    float v;
    asm("ld.global.nc.f32 %0, [%1+4];" : "=f"(v) : "l"(f + t));
    int n;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(n) : "f"(v));
    whole[t] = n;
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(whole[32 + t]) : "f"(v));
    asm("cvt.rmi.s32.f32 %0, %1;" : "=r"(whole[64 + t]) : "f"(v));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half[t]) : "f"(v));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(g[t]) : "f"(v));
    asm("rcp.approx.f32 %0, %1;" : "=f"(g[32 + t]) : "f"(v));
    asm("add.sat.f32 %0, %1, %2;" : "=f"(g[64 + t]) : "f"(v), "f"(0.25f));
    asm volatile("red.global.add.u32 [%0], %1;" :: "l"(counter), "r"(t) : "memory");
    asm volatile("membar.gl;" ::: "memory");
    unsigned old;
    asm volatile("atom.global.max.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter + 1), "r"(t * 3) : "memory");
}
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_memory_and_floats(seed: int, scheduler_library: Path, gxx_here: None) -> None:
    rng = np.random.default_rng(seed)
    x, f = rng.standard_normal((32, 4)).astype(np.float32), (rng.standard_normal(33) * 9).astype(np.float32)
    f[1:4] = 0.5, 1.5, -2.5
    y, whole, half = np.zeros_like(x), np.zeros((3, 32), np.int32), np.zeros(32, np.uint16)
    g, counter = np.zeros((3, 32), np.float32), np.zeros(2, np.uint32)
    built = gxx.build(Source(name="ptx", text=MEMORY, entries=("memory",)))
    assert isinstance(built, Path), built
    runtime = Runtime(scheduler_library)
    launch = NativeLaunch(grid=(1, 1, 1), block=(32, 1, 1), seed=seed)
    done = runtime.launch(runtime.load(built).entry("entry_0"), launch, [x, y, f, whole, half, g, counter])
    assert isinstance(done, Finished), done
    v = f[1:]
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y[:, 0], (wide[:, 0] * wide[:, 1] + wide[:, 3]).astype(np.float32))
    np.testing.assert_array_equal(y[:, 1:], np.stack([x[:, 0], np.ones(32, np.float32), x[:, 3]], 1))
    np.testing.assert_array_equal(whole, [np.rint(v), np.trunc(v), np.floor(v)])
    np.testing.assert_array_equal(half.view(np.float16), v.astype(np.float16))
    np.testing.assert_allclose(g, [np.exp2(v), 1 / v, np.clip(v + np.float32(0.25), 0, 1)], rtol=1e-6)
    assert counter[0] == math.comb(32, 2)
    assert counter[1] == 93


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "add",
                ".u32",
                ".cc",
                "mov",
                "ld",
                ".global",
                "st",
                "cvt",
                ".rn",
                "setp",
                ".lt",
                "%0",
                "%1",
                ",",
                " ",
                ";",
                "{",
                "}",
                "[",
                "]",
                "0f3F800000",
                "1",
                ".reg",
                "p",
                "@p",
                "cp.async",
                ".ca",
                "%laneid",
                "//",
                "\\n",
                "bar.sync",
            ]
        ),
        max_size=12,
    )
)
def test_any_text_is_a_statement_or_unknown(parts: list[str]) -> None:
    operands = [inline_ptx.Operand("=r", "x"), inline_ptx.Operand("r", "y")]
    try:
        found = inline_ptx.translated("".join(parts), operands, {})
    except inline_ptx.Unknown as problem:
        assert "\n" not in str(problem)
    else:
        assert found.startswith(("do {", "FUSIOND_BAR_SYNC("))
