"""Single instructions of PTX against NumPy and plain Python, over bits that Hypothesis chooses."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fusiond.devices.counting.library import CountingLibrary
from fusiond.model.ptx import flat

from .conftest import Bench

Array = NDArray[Any]
Case = tuple[str, tuple[str, ...], str, Callable[..., Any]]
TYPES = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "f32": np.float32, "f64": np.float64, "f16": np.float16,
    "u8": np.uint8, "s8": np.int8,
}  # fmt: skip
HEADER = (".version 8.0", ".target sm_90", ".address_size 64")
REGISTERS = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def program(opcode: str, types: tuple[str, ...], result: str) -> str:
    """A kernel that applies it to a lane's elements of so many arrays."""
    lines = [
        *HEADER, ".visible .entry k(",
        ",\n".join(f".param .u64 p{k}" for k in range(len(types) + 1)), ") {",
        ".reg .b64 %rd<20>; .reg .b32 %t;", "mov.u32 %t, %tid.x;",
    ]  # fmt: skip
    for k, each in enumerate((*types, result)):
        size = np.dtype(TYPES[each]).itemsize
        lines += [f".reg .{REGISTERS[size]} %v{k};", f"ld.param.u64 %rd{k}, [p{k}];"]
        lines += [f"mad.wide.u32 %rd{k}, %t, {size}, %rd{k};"]
        if k < len(types):
            lines.append(f"ld.global.b{8 * size} %v{k}, [%rd{k}];")
    operands = ", ".join(f"%v{k}" for k in range(len(types)))
    last = len(types)
    size = np.dtype(TYPES[result]).itemsize
    lines += [f"{opcode} %v{last}, {operands};", f"st.global.b{8 * size} [%rd{last}], %v{last};", "ret;", "}"]
    return "\n".join(lines)


def applied(library: CountingLibrary, opcode: str, types: tuple[str, ...], result: str, values: list[Array]) -> Array:
    bench = Bench(program(opcode, types, result), library)
    ran = bench.run("k", [*values, np.zeros(32, TYPES[result])])
    assert ran.result.failed is None
    return ran.arrays[-1]


def wrapped(function: Callable[..., int], dtype: type) -> Callable[..., Array]:
    """A function of Python's integers, over arrays; what it gives wraps round."""
    bits = 8 * np.dtype(dtype).itemsize

    def over(*arrays: Array) -> Array:
        found = [function(*(int(x) for x in each)) & (2**bits - 1) for each in zip(*arrays, strict=True)]
        return np.array(found, f"u{bits // 8}").view(dtype)

    return over


def shifted(a: int, b: int, bits: int) -> int:
    return a >> min(b, bits - 1) if a < 0 else a >> b if b < bits else 0


def sign_extended(a: int, bits: int) -> int:
    part = a & ((1 << bits) - 1)
    return part - (1 << bits) if bits and part >> (bits - 1) else part


INTEGERS: list[tuple[str, tuple[str, ...], str, Callable[..., int]]] = []
for _type in ("u16", "s16", "u32", "s32", "u64", "s64"):
    _bits = int(_type[1:])
    _pair = (_type, _type)
    INTEGERS += [
        (f"add.{_type}", _pair, _type, lambda a, b: a + b),
        (f"sub.{_type}", _pair, _type, lambda a, b: a - b),
        (f"mul.lo.{_type}", _pair, _type, lambda a, b: a * b),
        (f"mul.hi.{_type}", _pair, _type, lambda a, b, bits=_bits: a * b >> bits),
        (f"mad.lo.{_type}", (_type,) * 3, _type, lambda a, b, c: a * b + c),
        (f"min.{_type}", _pair, _type, min),
        (f"max.{_type}", _pair, _type, max),
        (f"shr.{_type}", (_type, "u32"), _type, lambda a, b, bits=_bits: shifted(a, b, bits)),
        (f"div.{_type}", _pair, _type, lambda a, b: abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1) if b else -1),
        (f"rem.{_type}", _pair, _type, lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1) if b else a),
    ]
for _type in ("u16", "s16", "u32", "s32"):
    _wide = f"{_type[0]}{2 * int(_type[1:])}"
    INTEGERS.append((f"mul.wide.{_type}", (_type, _type), _wide, lambda a, b: a * b))
for _type in ("b32", "b64"):
    _bits = int(_type[1:])
    INTEGERS += [
        (f"popc.{_type}", (_type,), "u32", int.bit_count),
        (f"clz.{_type}", (_type,), "u32", lambda a, bits=_bits: bits - a.bit_length()),
        (f"brev.{_type}", (_type,), _type, lambda a, bits=_bits: int(f"{a:0{bits}b}"[::-1], 2)),
        (f"shl.{_type}", (_type, "u32"), _type, lambda a, b, bits=_bits: a << b if b < bits else 0),
    ]
INTEGERS += [
    ("shf.l.wrap.b32", ("b32",) * 3, "b32", lambda a, b, c: (b << 32 | a) << (c % 32) >> 32),
    ("shf.r.wrap.b32", ("b32",) * 3, "b32", lambda a, b, c: (b << 32 | a) >> (c % 32)),
    ("shf.r.clamp.b32", ("b32",) * 3, "b32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("bfe.u32", ("u32",) * 3, "u32", lambda a, b, c: a >> (b & 255) & ((1 << (c & 255)) - 1)),
    (
        "prmt.b32", ("b32",) * 3, "b32",
        lambda a, b, c: sum(
            (((b << 32 | a) >> 8 * (c >> 4 * k & 7) & 255) if not c >> 4 * k & 8
             else 255 * ((b << 32 | a) >> (8 * (c >> 4 * k & 7) + 7) & 1)) << 8 * k
            for k in range(4)
        ),
    ),
    ("cvt.sat.u8.s32", ("s32",), "u32", lambda a: min(max(a, 0), 255)),
    ("cvt.pack.sat.u16.s32", ("s32", "s32"), "b32", lambda a, b: min(max(a, 0), 65535) << 16 | min(max(b, 0), 65535)),
    (
        "cvt.pack.sat.s8.s32.b32", ("s32", "s32", "b32"), "b32",
        lambda a, b, c: c << 16 | (min(max(a, -128), 127) & 255) << 8 | (min(max(b, -128), 127) & 255),
    ),
    ("mul24.lo.s32", ("s32", "s32"), "s32", lambda a, b: sign_extended(a, 24) * sign_extended(b, 24)),
    ("mul24.hi.u32", ("u32", "u32"), "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16),
    ("bmsk.clamp.b32", ("b32", "b32"), "b32", lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32)),
    ("szext.wrap.u32", ("u32", "u32"), "u32", lambda a, b: a & ((1 << b % 32) - 1)),
    ("szext.clamp.s32", ("s32", "u32"), "s32", lambda a, b: sign_extended(a, min(b, 32))),
    ("bfind.shiftamt.u32", ("u32",), "u32", lambda a: 32 - a.bit_length() if a else -1),
    ("cvt.s32.s8", ("s8",), "s32", lambda a: a),
    ("cvt.u16.u64", ("u64",), "u16", lambda a: a),
    ("cvt.s64.s32", ("s32",), "s64", lambda a: a),
]  # fmt: skip


def drawn(data: st.DataObject, type_: str, *, least: int = 0) -> Array:
    """32 lanes: any bits, and often small numbers and the ends."""
    size = np.dtype(TYPES[type_]).itemsize
    bits = 8 * size
    ends = st.sampled_from([2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1])
    element = st.one_of(st.integers(0, 2**bits - 1), st.integers(0, 70), ends)
    seeds = data.draw(st.lists(element, min_size=8, max_size=8))
    return np.array([seeds[k * (k + least + 1) // 2 % 8] for k in range(32)], f"u{size}").view(TYPES[type_])


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", INTEGERS, ids=lambda case: case[0])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_integers(counting: CountingLibrary, case: Case, data: st.DataObject) -> None:
    opcode, types, result, function = case
    values = [drawn(data, each, least=k) for k, each in enumerate(types)]
    expected = wrapped(function, TYPES[result])(*values)
    assert applied(counting, opcode, types, result, values).tolist() == expected.tolist()


def same(found: Array, expected: Array) -> bool:
    """Bit for bit, but for which NaN."""
    bits = f"u{found.itemsize}"
    return bool(np.all((found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))))


def directed(rounding: str, a: Array, b: Array) -> Array:
    """The sum of two floats, rounded downward or to zero: by the exact sum in a wider type."""
    exact = a.astype(np.longdouble) + b.astype(np.longdouble)
    near = (a + b).astype(np.float32)
    step = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    if rounding == "rz":
        step = np.where(exact < 0, np.where(near < exact, np.nextafter(near, np.float32(np.inf)), near), step)
    return step.astype(np.float32)


FLOATS: list[tuple[str, tuple[str, ...], str, Callable[..., Any]]] = [
    ("add.f32", ("f32", "f32"), "f32", np.add),
    ("mul.rn.f32", ("f32", "f32"), "f32", np.multiply),
    ("div.rn.f32", ("f32", "f32"), "f32", np.divide),
    ("sqrt.rn.f32", ("f32",), "f32", np.sqrt),
    ("add.f64", ("f64", "f64"), "f64", np.add),
    ("div.rn.f64", ("f64", "f64"), "f64", np.divide),
    ("min.f32", ("f32", "f32"), "f32", np.fmin),
    ("add.f16", ("f16", "f16"), "f16", np.add),
    ("mul.f16", ("f16", "f16"), "f16", np.multiply),
    ("cvt.rn.f16.f32", ("f32",), "f16", lambda a: a.astype(np.float16)),
    ("cvt.f32.f16", ("f16",), "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.f64", ("f64",), "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.s32", ("s32",), "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.u64", ("u64",), "f32", lambda a: a.astype(np.float32)),
    ("cvt.rni.f32.f32", ("f32",), "f32", np.rint),
    ("cvt.rmi.f32.f32", ("f32",), "f32", np.floor),
    ("abs.f32", ("f32",), "f32", np.abs),
]


@pytest.mark.parametrize("case", FLOATS, ids=lambda case: case[0])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_floats(counting: CountingLibrary, case: Case, data: st.DataObject) -> None:
    opcode, types, result, function = case
    values = [drawn(data, each, least=k) for k, each in enumerate(types)]
    if opcode == "min.f32":  # NumPy leaves open which zero is the lesser one
        values = [np.where(each == 0, np.float32(0), each) for each in values]
    with np.errstate(all="ignore"):
        expected = np.asarray(function(*values), TYPES[result])
    assert same(applied(counting, opcode, types, result, values), expected)


@pytest.mark.parametrize("rounding", ["rm", "rz"])
def test_other_roundings(counting: CountingLibrary, rounding: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (np.ldexp(rng.standard_normal(32), rng.integers(-12, 12, 32)).astype(np.float32) for _ in range(2))
    found = applied(counting, f"add.{rounding}.f32", ("f32", "f32"), "f32", [a, b])
    assert found.tolist() == directed(rounding, a, b).tolist()
    assert found.tolist() != (a + b).tolist()


def test_a_directed_rounding_that_flushes(counting: CountingLibrary) -> None:
    """As libdevice's exponential takes the whole part of a number: 252 x + 12582913 in the lowest bits."""
    x = np.concatenate([np.linspace(0, 1, 31), [1e-40]]).astype(np.float32)
    factor, shift = np.full(32, 252, np.float32), np.full(32, 12582913, np.float32)
    found = applied(counting, "fma.rm.ftz.f32", ("f32", "f32", "f32"), "f32", [x, factor, shift])
    assert (found - np.float32(12582913)).tolist() == np.floor(x.astype(np.float64) * 252).tolist()
    assert applied(counting, "add.rp.ftz.f32", ("f32", "f32"), "f32", [x * 0, x])[31] == 0
    assert applied(counting, "add.rp.f32", ("f32", "f32"), "f32", [x * 0, x])[31] != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
@given(data=st.data())
@settings(max_examples=30)
def test_floats_of_8_bits(counting: CountingLibrary, name: str, data: st.DataObject) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name]
    most = float(ml_dtypes.finfo(kind).max)
    numbers = (
        st.floats(width=32)
        | st.floats(-1.125 * most, 1.125 * most, width=32)
        | st.floats(-(2.0**-6), 2.0**-6, width=32)
    )
    upper, lower = (np.array(data.draw(st.lists(numbers, min_size=32, max_size=32)), np.float32) for _ in range(2))

    def codes(a: Array) -> Array:
        bits = np.clip(a, -most, most).astype(kind).view(np.uint8)
        return np.where(np.isnan(a), 0x7F, bits).astype(np.uint16)

    packed = codes(upper) << 8 | codes(lower)
    made = applied(counting, f"cvt.rn.satfinite.{name}x2.f32", ("f32", "f32"), "u16", [upper, lower])
    assert made.tolist() == packed.tolist()
    back = applied(counting, f"cvt.rn.f16x2.{name}x2", ("u16",), "u32", [packed])
    halves = (packed & 255).astype(np.uint8).view(kind).astype(np.float16)
    np.testing.assert_array_equal((back & 0xFFFF).astype(np.uint16).view(np.float16), halves)
    with np.errstate(over="ignore"):
        pair = upper.astype(np.float16).view(np.uint16).astype(np.uint32) << 16 | lower.astype(np.float16).view(
            np.uint16
        )
        again = codes(upper.astype(np.float16).astype(np.float32)) << 8 | codes(
            lower.astype(np.float16).astype(np.float32)
        )
    made = applied(counting, f"cvt.rn.satfinite.{name}x2.f16x2", ("u32",), "u16", [pair])
    assert made.tolist() == again.tolist()


def test_float_to_integer_clamps(counting: CountingLibrary) -> None:
    a = np.array([0.5, 1.5, -1.5, 3e9, -3e9, np.nan, np.inf, -0.4] * 4, np.float32)
    found = applied(counting, "cvt.rni.s32.f32", ("f32",), "s32", [a])
    assert found[:8].tolist() == [0, 2, -2, 2**31 - 1, -(2**31), 0, 2**31 - 1, 0]
    assert applied(counting, "cvt.rzi.u8.f32", ("f32",), "u32", [a])[:8].tolist() == [0, 1, 0, 255, 0, 0, 255, 0]


@pytest.mark.parametrize(
    ("mode", "by", "clamp", "source"),
    [
        ("up", 3, 0, lambda lane: lane - 3 if lane >= 3 else lane),
        ("down", 5, 31, lambda lane: lane + 5 if lane < 27 else lane),
        ("bfly", 6, 31, lambda lane: lane ^ 6),
        ("idx", 9, 31, lambda lane: 9),
        ("idx", 2, 31 | 24 << 8, lambda lane: lane // 8 * 8 + 2),
        ("down", 1, 31 | 28 << 8, lambda lane: lane + 1 if lane % 4 < 3 else lane),
    ],
)
def test_shuffles(counting: CountingLibrary, mode: str, by: int, clamp: int, source: Callable[[int], int]) -> None:
    text = program("mov.b32", ("b32",), "b32").replace(
        "mov.b32 %v1, %v0;", f"shfl.sync.{mode}.b32 %v1, %v0, {by}, {clamp}, 0xffffffff;"
    )
    a = np.arange(100, 132, dtype=np.uint32)
    ran = Bench(text, counting).run("k", [a, np.zeros(32, np.uint32)])
    assert ran.arrays[1].tolist() == [100 + source(lane) for lane in range(32)]


def test_votes_and_matches(counting: CountingLibrary) -> None:
    a = np.array([3, 3, 5, 7] * 8, np.uint32)
    ballot = program("mov.b32", ("b32",), "b32").replace(
        "mov.b32 %v1, %v0;", ".reg .pred %p; setp.eq.u32 %p, %v0, 3; vote.sync.ballot.b32 %v1, %p, -1;"
    )
    assert Bench(ballot, counting).run("k", [a, a]).arrays[1].tolist() == [0x33333333] * 32
    match = program("mov.b32", ("b32",), "b32").replace("mov.b32 %v1, %v0;", "match.any.sync.b32 %v1, %v0, -1;")
    found = Bench(match, counting).run("k", [a, a]).arrays[1]
    assert found[:4].tolist() == [0x33333333, 0x33333333, 0x44444444, 0x88888888]


# --- numbers of several words ---------------------------------------------------------------------------

WORDS: dict[str, tuple[str, Callable[[int, int], int], int]] = {
    "a sum": ("add.cc.u32 %r0, %a0, %b0; addc.cc.u32 %r1, %a1, %b1; addc.u32 %r2, 0, 0;", lambda a, b: a + b, 3),
    "a difference": (
        "sub.cc.u32 %r0, %a0, %b0; subc.cc.u32 %r1, %a1, %b1; subc.u32 %r2, 0, 0;", lambda a, b: a - b, 3
    ),
    "a signed sum": ("add.cc.s32 %r0, %a0, %b0; addc.s32 %r1, %a1, %b1;", lambda a, b: a + b, 2),
    "a product": (
        "mul.lo.u32 %r0, %a0, %b0; mul.hi.u32 %r1, %a0, %b0; mad.lo.cc.u32 %r1, %a0, %b1, %r1; "
        "madc.hi.cc.u32 %r2, %a0, %b1, 0; addc.u32 %r3, 0, 0; mad.lo.cc.u32 %r1, %a1, %b0, %r1; "
        "madc.hi.cc.u32 %r2, %a1, %b0, %r2; addc.u32 %r3, %r3, 0; mad.lo.cc.u32 %r2, %a1, %b1, %r2; "
        "madc.hi.u32 %r3, %a1, %b1, %r3;", lambda a, b: a * b, 4,
    ),
    "words of 64 bits": (
        "mov.b64 %w0, {%a0, %a1}; mov.b64 %w1, {%b0, %b1}; add.cc.u64 %w2, %w0, %w1; addc.u64 %w3, 0, 0; "
        "mov.b64 {%r0, %r1}, %w2; mov.b64 {%r2, %r3}, %w3;", lambda a, b: a + b, 4,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_carry_goes_from_word_to_word(counting: CountingLibrary, name: str, data: st.DataObject) -> None:
    code, function, words = WORDS[name]
    lines = [
        *HEADER,
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {",
        ".reg .b64 %rd<4>; .reg .b64 %w<4>; .reg .b32 %t; .reg .b32 %a<2>; .reg .b32 %b<2>; .reg .b32 %r<4>;",
        "mov.u32 %t, %tid.x;",
    ]
    for k, size in enumerate((8, 8, 16)):
        lines += [f"ld.param.u64 %rd{k}, [p{k}];", f"mad.wide.u32 %rd{k}, %t, {size}, %rd{k};"]
    lines += ["ld.global.v2.b32 {%a0, %a1}, [%rd0];", "ld.global.v2.b32 {%b0, %b1}, [%rd1];", code]
    lines += [f"st.global.b32 [%rd2+{4 * k}], %r{k};" for k in range(words)] + ["ret;", "}"]
    a, b = drawn(data, "u64"), drawn(data, "u64")
    ran = Bench("\n".join(lines), counting).run("k", [a, b, np.zeros((32, 4), np.uint32)])
    assert ran.result.failed is None
    bits = 2 ** (32 * words) - 1
    for lane, found in enumerate(ran.arrays[2]):
        whole = sum(int(word) << 32 * k for k, word in enumerate(found[:words]))
        assert whole == function(int(a[lane]), int(b[lane])) & bits


# --- matrices of a warp ---------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True], ids=["as they lie", "transposed"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("way", ["load", "store"])
def test_matrices_of_a_warp(counting: CountingLibrary, way: str, count: int, turned: bool) -> None:
    """Row r of matrix m is where lane 8 * m + r says; a lane's two numbers lie in row lane / 4, in a column if
    transposed."""
    registers = ", ".join(f"%v{k}" for k in range(count))
    shape = f"sync.aligned.m8n8.x{count}{'.trans' if turned else ''}.shared.b16"
    lines = [
        *HEADER,
        ".visible .entry k(.param .u64 p0, .param .u64 p1) {",
        ".shared .align 16 .b8 tile[1024];",
        ".reg .b64 %rd<4>; .reg .b32 %t; .reg .b32 %s; .reg .b32 %v<4>; .reg .b32 %x;",
        "mov.u32 %t, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd0, %t, 16, %rd0;",
        "mad.wide.u32 %rd1, %t, 16, %rd1; mov.u32 %s, tile; mad.lo.u32 %s, %t, 16, %s;",
    ]
    if way == "load":
        for k in range(4):
            lines += [f"ld.global.b32 %x, [%rd0+{4 * k}]; st.shared.b32 [%s+{4 * k}], %x;"]
        lines += ["bar.sync 0;", f"ldmatrix.{shape} {{{registers}}}, [%s];"]
        lines += [f"st.global.b32 [%rd1+{4 * k}], %v{k};" for k in range(count)]
    else:
        lines += [f"ld.global.b32 %v{k}, [%rd0+{4 * k}];" for k in range(count)]
        lines += [f"stmatrix.{shape} [%s], {{{registers}}};", "bar.sync 0;"]
        for k in range(4):
            lines += [f"ld.shared.b32 %x, [%s+{4 * k}]; st.global.b32 [%rd1+{4 * k}], %x;"]
    given_ = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)  # matrix, row, column: 8 rows of 16 bytes by 8 lanes each
    held = np.zeros((32, 4, 2), np.uint16)  # lane, matrix, two numbers
    for lane in range(32):
        for half in range(2):
            row, column = lane // 4, 2 * (lane % 4) + half
            held[lane, :, half] = given_[:, column, row] if turned else given_[:, row, column]
    held[:, count:] = 0
    source, wanted = (given_, held) if way == "load" else (held, given_[:count])
    ran = Bench("\n".join([*lines, "ret;", "}"]), counting).run(
        "k", [source.reshape(-1).view(np.uint32), np.zeros(128, np.uint32)]
    )
    assert ran.result.failed is None
    words = wanted.reshape(-1).view(np.uint32).tolist()
    assert ran.arrays[1].tolist()[: len(words)] == words  # what nobody has stored holds anything


@pytest.mark.parametrize("way", ["atom.global.v4.f32.add %o, [%rd1], %v;", "red.global.add.v4.f32 [%rd1], %v;"])
def test_four_neighbours_are_added_at_once(counting: CountingLibrary, way: str) -> None:
    """Lanes l and l + 16 fall on the same four numbers."""
    lines = [
        *HEADER,
        ".visible .entry k(.param .u64 p0, .param .u64 p1) {",
        ".reg .b64 %rd<4>; .reg .b32 %t; .reg .b32 %s; .reg .b32 %v<4>; .reg .b32 %o<4>;",
        "mov.u32 %t, %tid.x; and.b32 %s, %t, 15; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];",
        "mad.wide.u32 %rd0, %t, 16, %rd0; mad.wide.u32 %rd1, %s, 16, %rd1;",
        "ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%rd0];",
        way.replace("%o,", "{%o0, %o1, %o2, %o3},").replace("%v;", "{%v0, %v1, %v2, %v3};"),
        "ret;",
        "}",
    ]
    given_ = np.arange(128, dtype=np.float32)
    ran = Bench("\n".join(lines), counting).run("k", [given_, np.ones(64, np.float32)])
    assert ran.result.failed is None
    assert ran.arrays[1].tolist() == (1 + given_[:64] + given_[64:]).tolist()


@pytest.mark.parametrize("opcode", ["max.NaN.bf16", "min.NaN.bf16", "max.NaN.f16", "min.NaN.f16"])
def test_no_number_is_the_largest_and_the_least(counting: CountingLibrary, opcode: str) -> None:
    kind = ml_dtypes.bfloat16 if opcode.endswith("bf16") else np.float16
    a, b = (np.array(values * 8, kind).view(np.uint16) for values in ([1, np.nan, -2, 3], [2, 1, np.nan, -3]))
    found = applied(counting, opcode, ("b16", "b16"), "b16", [a, b]).view(kind).astype(np.float32)
    wanted = (np.maximum if opcode.startswith("max") else np.minimum)(
        a.view(kind).astype(np.float32), b.view(kind).astype(np.float32)
    )
    assert np.array_equal(found, wanted, equal_nan=True)


def test_what_floats_are(counting: CountingLibrary) -> None:
    a = np.array([1, 0, -np.inf, np.nan, 1e-40, -2.5, np.inf, 1e-45] * 4, np.float32)
    kinds = {"finite": np.isfinite(a), "infinite": np.isinf(a), "notanumber": np.isnan(a), "number": ~np.isnan(a)}
    kinds |= {"subnormal": (np.abs(a) > 0) & (np.abs(a) < 1.17e-38), "normal": np.isfinite(a) & (np.abs(a) > 1.17e-38)}
    for kind, expected in kinds.items():
        text = program("mov.b32", ("f32",), "u32").replace(
            "mov.b32 %v1, %v0;", f".reg .pred %p; testp.{kind}.f32 %p, %v0; selp.u32 %v1, 1, 0, %p;"
        )
        assert Bench(text, counting).run("k", [a, np.zeros(32, np.uint32)]).arrays[1].tolist() == expected.tolist(), (
            kind
        )


@pytest.mark.parametrize(
    "opcode", ["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "add.u7", "frobnicate.b32", "sust.b.2d.b32.trap"]
)
def test_what_is_not_known_is_said_by_name(counting: CountingLibrary, opcode: str) -> None:
    bench = Bench(program("mov.b32", ("b32",), "b32").replace("mov.b32", opcode), counting)
    with pytest.raises(flat.PtxError, match=opcode.replace(".", r"\.")):
        bench.unit.code("k")
