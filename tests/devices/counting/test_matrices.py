"""Matrices of a warp against NumPy, their parts laid out as CuTe says (CUTLASS 4.2, cute/atom/mma_traits_*.hpp):
shape and stride of lanes, and of a lane's values, into row + rows * column."""

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.devices.counting.library import CountingLibrary

from .conftest import Bench

Array = NDArray[Any]
Mode = Sequence[tuple[int, int]]  #: (extent, stride) of each part, the fastest first
KINDS: dict[str, tuple[int, Any]] = {
    "f16": (16, np.float16), "bf16": (16, ml_dtypes.bfloat16), "tf32": (32, np.float32), "f32": (32, np.float32),
    "f64": (64, np.float64), "s8": (8, np.int8), "u8": (8, np.uint8), "s4": (4, np.int8), "u4": (4, np.uint8),
    "b1": (1, np.uint8), "s32": (32, np.int32),
    "e4m3": (8, ml_dtypes.float8_e4m3fn), "e5m2": (8, ml_dtypes.float8_e5m2),
}  # fmt: skip
"""Bits of an element, and how NumPy holds it."""
ROW_16X8 = ([(4, 32), (8, 1)], [(2, 16), (2, 8)])
ROW_8X8 = ([(4, 16), (8, 1)], [(2, 8)])
ROW_8X16 = ([(4, 32), (8, 1)], [(4, 8)])
ROW_8X4 = ([(4, 8), (8, 1)], [(1, 0)])
LAYOUTS: dict[tuple[int, str], tuple[Any, Any, Any]] = {
    (16, "m16n8k8"): (ROW_16X8, ROW_8X8, ROW_16X8),
    (16, "m16n8k16"): (
        ([(4, 32), (8, 1)], [(2, 16), (2, 8), (2, 128)]), ([(4, 16), (8, 1)], [(2, 8), (2, 64)]), ROW_16X8),
    (32, "m16n8k4"): (([(4, 16), (8, 1)], [(2, 8)]), ROW_8X4, ROW_16X8),
    (32, "m16n8k8"): (([(4, 16), (8, 1)], [(2, 8), (2, 64)]), ([(4, 8), (8, 1)], [(2, 32)]), ROW_16X8),
    (64, "m8n8k4"): (ROW_8X4, ROW_8X4, ROW_8X8),
    (64, "m16n8k4"): (([(4, 16), (8, 1)], [(2, 8)]), ROW_8X4, ROW_16X8),
    (64, "m16n8k8"): (([(4, 16), (8, 1)], [(2, 8), (2, 64)]), ([(4, 8), (8, 1)], [(2, 32)]), ROW_16X8),
    (64, "m16n8k16"): (([(4, 16), (8, 1)], [(2, 8), (4, 64)]), ([(4, 8), (8, 1)], [(4, 32)]), ROW_16X8),
    (8, "m8n8k16"): (ROW_8X16, ROW_8X16, ROW_8X8),
    (8, "m16n8k16"): (([(4, 64), (8, 1)], [(4, 16), (2, 8)]), ROW_8X16, ROW_16X8),
    (8, "m16n8k32"): (
        ([(4, 64), (8, 1)], [(4, 16), (2, 8), (2, 256)]), ([(4, 32), (8, 1)], [(4, 8), (2, 128)]), ROW_16X8),
    (4, "m8n8k32"): (([(4, 64), (8, 1)], [(8, 8)]), ([(4, 64), (8, 1)], [(8, 8)]), ROW_8X8),
    (4, "m16n8k64"): (
        ([(4, 128), (8, 1)], [(8, 16), (2, 8), (2, 512)]), ([(4, 64), (8, 1)], [(8, 8), (2, 256)]), ROW_16X8),
    (1, "m16n8k256"): (
        ([(4, 512), (8, 1)], [(32, 16), (2, 8), (2, 2048)]), ([(4, 256), (8, 1)], [(32, 8), (2, 1024)]), ROW_16X8),
}  # fmt: skip
FORMS = [
    ("m16n8k8", "f16", "f16", "f32"), ("m16n8k8", "f16", "f16", "f16"), ("m16n8k16", "f16", "f16", "f32"),
    ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "bf16", "bf16", "f32"), ("m16n8k16", "bf16", "bf16", "f32"),
    ("m16n8k4", "tf32", "tf32", "f32"), ("m16n8k8", "tf32", "tf32", "f32"), ("m8n8k4", "f64", "f64", "f64"),
    ("m16n8k4", "f64", "f64", "f64"), ("m16n8k8", "f64", "f64", "f64"), ("m16n8k16", "f64", "f64", "f64"),
    ("m8n8k16", "s8", "u8", "s32"), ("m16n8k16", "u8", "s8", "s32"), ("m16n8k32", "s8", "s8", "s32"),
    ("m16n8k32", "e4m3", "e5m2", "f32"), ("m8n8k32", "s4", "u4", "s32"), ("m16n8k64", "s4", "s4", "s32"),
    ("m16n8k256", "b1", "b1", "s32"),
]  # fmt: skip


def offsets(mode: Mode) -> list[int]:
    """Of a mode's elements in order."""
    ranges = [[k * stride for k in range(extent)] for extent, stride in reversed(mode)]
    return [sum(each) for each in itertools.product(*ranges)]


def shape_of(name: str) -> tuple[int, int, int]:
    m, n, k = (int(each) for each in name[1:].replace("n", " ").replace("k", " ").split())
    return m, n, k


def packed(matrix: Array, layout: tuple[Mode, Mode], bits: int) -> Array:
    """The registers of 32 lanes; `matrix` has as many rows as the layout's fastest stride goes over (M or N)."""
    flat = matrix.reshape(-1, order="F")
    lanes, values = offsets(layout[0]), offsets(layout[1])
    held = flat[np.array(lanes)[:, None] + np.array(values)[None, :]]
    if bits >= 8:
        raw = np.ascontiguousarray(held).view(np.uint8)
        return raw.view(np.uint64 if bits == 64 else np.uint32)
    raw = held.astype(np.uint32) & ((1 << bits) - 1)
    words = raw.reshape(32, -1, 32 // bits)
    return np.bitwise_or.reduce(words << (np.arange(32 // bits, dtype=np.uint32) * bits), axis=2).astype(np.uint32)


def unpacked(registers: Array, layout: tuple[Mode, Mode], dtype: Any, shape: tuple[int, int]) -> Array:
    found = np.zeros(shape[0] * shape[1], dtype)
    lanes, values = offsets(layout[0]), offsets(layout[1])
    found[np.array(lanes)[:, None] + np.array(values)[None, :]] = registers.view(dtype)
    return found.reshape(shape, order="F")


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    bits, dtype = KINDS[kind]
    if kind == "tf32":  # 10 bits of fraction
        return (rng.standard_normal(shape).astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32)
    if kind[0] in "su" or kind == "b1":
        low, high = (0, 2**bits) if kind[0] in "ub" else (-(2 ** min(bits - 1, 20)), 2 ** min(bits - 1, 20))
        return rng.integers(low, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def wide(matrix: Array) -> Array:
    return matrix.astype(np.float64)


def kernel(opcode: str, counts: Sequence[tuple[int, int]]) -> str:
    """Loads A, B and C (registers, bits), applies the instruction, and stores D, whose registers are as C's."""
    lines = [
        ".version 8.7", ".target sm_90a", ".address_size 64",
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {",
        ".reg .b64 %q<4>; .reg .b32 %t; mov.u32 %t, %tid.x;",
    ]  # fmt: skip
    names = "abcd"
    given = [*counts, counts[2]]
    for k, (count, bits) in enumerate(given):
        lines += [f".reg .b{bits} %{names[k]}<{count}>; ld.param.u64 %q{k}, [p{k}];"]
        lines += [f"mad.wide.u32 %q{k}, %t, {count * bits // 8}, %q{k};"]
        if k < 3:
            lines += [f"ld.global.b{bits} %{names[k]}{j}, [%q{k}+{j * bits // 8}];" for j in range(count)]
    groups = ["{" + ", ".join(f"%{names[k]}{j}" for j in range(given[k][0])) + "}" for k in (3, 0, 1, 2)]
    lines += [f"{opcode} {', '.join(groups)};"]
    lines += [f"st.global.b{given[3][1]} [%q3+{j * given[3][1] // 8}], %d{j};" for j in range(given[3][0])]
    return "\n".join([*lines, "ret; }"])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=".".join)
def test_mma(counting: CountingLibrary, form: tuple[str, str, str, str]) -> None:
    shape, a_kind, b_kind, c_kind = form
    (m, n, k), bits = shape_of(shape), KINDS[a_kind][0]
    of_a, of_b, of_c = LAYOUTS[bits, shape]
    rng = np.random.default_rng(sum(map(ord, "".join(form))))
    a, b, c = drawn(rng, a_kind, (m, k)), drawn(rng, b_kind, (n, k)), drawn(rng, c_kind, (m, n))
    registers = packed(a, of_a, bits), packed(b, of_b, bits), packed(c, of_c, KINDS[c_kind][0])
    counts = [(each.shape[1], 8 * each.itemsize) for each in registers]
    extra = ".xor.popc" if a_kind == "b1" else ""
    opcode = f"mma.sync.aligned.{shape}.row.col.{c_kind}.{a_kind}.{b_kind}.{c_kind}{extra}"
    ran = Bench(kernel(opcode, counts), counting).run("k", [*registers, np.zeros_like(registers[2])])
    assert ran.result.failed is None
    found = unpacked(ran.arrays[3], of_c, KINDS[c_kind][1], (m, n))
    differing = (a[:, None, :] != b[None, :, :]).sum(2)
    expected = (differing if a_kind == "b1" else wide(a) @ wide(b).T) + wide(c)
    near = {"f16": 2e-3, "f32": 1e-6, "f64": 1e-13, "s32": 0.0}[c_kind]
    assert np.abs(wide(found) - expected).max() <= near * np.abs(expected).max()


def test_sums_of_integers_wrap_or_end_at_the_ends(counting: CountingLibrary) -> None:
    a, b = np.full((16, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    c = np.full((16, 8), 2**31 - 5, np.int32)
    of_a, of_b, of_c = LAYOUTS[8, "m16n8k32"]
    registers = packed(a, of_a, 8), packed(b, of_b, 8), packed(c, of_c, 32)
    counts = [(each.shape[1], 32) for each in registers]
    for word, expected in (("", 2**31 - 5 + 32 * 127**2 - 2**32), (".satfinite", 2**31 - 1)):
        text = kernel(f"mma.sync.aligned.m16n8k32.row.col{word}.s32.s8.s8.s32", counts)
        ran = Bench(text, counting).run("k", [*registers, np.zeros_like(registers[2])])
        assert set(ran.arrays[3].view(np.int32).reshape(-1).tolist()) == {expected}


QUAD_C = {"f16": ([(8, 1)], [(8, 8)]), "f32": ([(2, 1), (2, 16), (2, 4)], [(2, 8), (2, 2), (2, 32)])}


@pytest.mark.parametrize("c_kind", ["f16", "f32"])
@pytest.mark.parametrize("ways", [("row", "col"), ("col", "row"), ("row", "row"), ("col", "col")], ids=".".join)
def test_four_small_products_at_once(counting: CountingLibrary, ways: tuple[str, str], c_kind: str) -> None:
    """m8n8k4 of halves: eight lanes have a product, four neighbours and those 16 behind them."""
    rows, columns = ([(8, 1)], [(4, 8)]), ([(4, 8), (2, 4)], [(4, 1)])
    of_a, of_b = rows if ways[0] == "row" else columns, rows if ways[1] == "col" else columns
    rng = np.random.default_rng(5)
    products = []
    held: list[list[Array]] = [[], [], []]
    for _ in range(4):
        a, b, c = drawn(rng, "f16", (8, 4)), drawn(rng, "f16", (8, 4)), drawn(rng, c_kind, (8, 8))
        products.append(wide(a) @ wide(b).T + wide(c))
        for into, matrix, layout, bits in zip(
            held, (a, b, c), (of_a, of_b, QUAD_C[c_kind]), (16, 16, KINDS[c_kind][0]), strict=True
        ):
            flat, lanes, values = matrix.reshape(-1, order="F"), offsets(layout[0]), offsets(layout[1])
            part = flat[np.array(lanes)[:, None] + np.array(values)[None, :]]
            into.append(np.ascontiguousarray(part).view(np.uint8).view(np.uint32).reshape(8, -1))
            assert bits * part.shape[1] == 32 * into[-1].shape[1]
    lane_of = [[4 * quad + k % 4 + 16 * (k // 4) for k in range(8)] for quad in range(4)]
    registers = []
    for parts in held:
        whole = np.zeros((32, parts[0].shape[1]), np.uint32)
        for lanes, part in zip(lane_of, parts, strict=True):
            whole[lanes] = part
        registers.append(whole)
    counts = [(each.shape[1], 32) for each in registers]
    opcode = f"mma.sync.aligned.m8n8k4.{ways[0]}.{ways[1]}.{c_kind}.f16.f16.{c_kind}"
    ran = Bench(kernel(opcode, counts), counting).run("k", [*registers, np.zeros_like(registers[2])])
    assert ran.result.failed is None
    for lanes, expected in zip(lane_of, products, strict=True):
        layout = QUAD_C[c_kind]
        found = np.zeros(64)
        places = np.array(offsets(layout[0]))[:, None] + np.array(offsets(layout[1]))[None, :]
        found[places] = ran.arrays[3][lanes].view(KINDS[c_kind][1])
        assert np.abs(found.reshape(8, 8, order="F") - expected).max() < (0.01 if c_kind == "f16" else 1e-6)


# --- wgmma --------------------------------------------------------------------------------------------------


def in_shared(matrix: Array, k_major: bool, swizzle: int, begin: int, image: Array) -> int:
    """Puts a matrix (MN x K) into shared memory as a descriptor's canonical layout has it; the descriptor.

    In bytes, of element (mn, k): CuTe's ((8,m),(T,2)):((pT,SBO),(1,T or LBO)) where K goes first, and
    ((T,p,m),(8,k)):((1,T,LBO),(pT,SBO)) where MN does (without a swizzle LBO and SBO change places), p chunks of 16
    bytes a row.
    """
    size = matrix.itemsize
    t, chunks = 16 // size, max(swizzle // 16, 1)
    mn, k = np.meshgrid(np.arange(matrix.shape[0]), np.arange(matrix.shape[1]), indexing="ij")
    if k_major:
        stride = chunks * 128 if swizzle else 2 * 128
        leading = 128
        at = mn % 8 * chunks * 16 + mn // 8 * stride + k % t * size + k // t * (16 if swizzle else leading)
    else:
        groups = -(-matrix.shape[0] // (t * chunks))
        stride, leading = (128 * chunks * groups, 128 * chunks) if swizzle else (128, 128 * groups)
        along = mn // t
        if swizzle:
            at = mn % t * size + along % chunks * 16 + along // chunks * leading + k % 8 * chunks * 16 + k // 8 * stride
        else:
            at = mn % t * size + along * stride + k % 8 * 16 + k // 8 * leading
    at = at + begin
    at = at ^ ((at >> 7 & (chunks - 1)) << 4)
    raw = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, size)
    for byte in range(size):
        image[at + byte] = raw[..., byte]
    kind = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return begin >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | kind << 62


WGMMA = [
    # kind of A and B, of D, N, swizzle of A (None: registers), A is K-major, swizzle of B, B is K-major
    ("f16", "f32", 64, 128, True, 128, True), ("f16", "f32", 128, 64, True, 32, False),
    ("f16", "f32", 32, 0, True, 0, True), ("bf16", "f32", 64, 0, False, 0, False),
    ("bf16", "f32", 256, 128, False, 128, False), ("f16", "f16", 16, 32, False, 64, False),
    ("f16", "f32", 8, None, True, 128, True), ("bf16", "f32", 64, None, True, 64, False),
    ("tf32", "f32", 24, 128, True, 64, True), ("e4m3", "f32", 64, 64, True, 128, True),
    ("e5m2", "f16", 32, None, True, 32, True), ("s8", "s32", 64, 128, True, 0, True),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WGMMA, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("adding", [True, False], ids=["added", "alone"])
def test_wgmma(counting: CountingLibrary, case: tuple[Any, ...], adding: bool) -> None:
    kind, d_kind, n, of_a, a_first, of_b, b_first = case
    bits, k = KINDS[kind][0], 256 // KINDS[kind][0]
    rng = np.random.default_rng(n + bits)
    a, b, c = drawn(rng, kind, (64, k)), drawn(rng, kind, (n, k)), drawn(rng, d_kind, (64, n))
    image = np.zeros(32768, np.uint8)
    of_b_descriptor = in_shared(b, b_first, of_b, 16384, image)
    d_bits = KINDS[d_kind][0]
    size = n * d_bits // 64  # registers of D
    per = 32 // d_bits
    held = np.zeros((128, size * per), KINDS[d_kind][1])
    rows, columns = np.zeros(held.shape, int), np.zeros(held.shape, int)
    for thread, value in itertools.product(range(128), range(size * per)):
        # CuTe's CLayout_64xN: ((4,8,4),(2,2,N/8)) : ((128,1,16),(64,8,512))
        of_lane = thread % 4 * 128 + thread // 4 % 8 + thread // 32 * 16
        at = of_lane + value % 2 * 64 + value // 2 % 2 * 8 + value // 4 * 512
        rows[thread, value], columns[thread, value] = at % 64, at // 64
    held[:] = c[rows, columns]
    lines = [
        ".version 8.7", ".target sm_90a", ".address_size 64", ".extern .shared .align 1024 .b8 smem[];",
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 da, .param .u64 db) {",
        f".reg .b64 %q<8>; .reg .b32 %t, %s, %x, %a<4>, %d<{size}>; .reg .pred %p; mov.u32 %t, %tid.x;",
        "ld.param.u64 %q0, [p0]; ld.param.u64 %q1, [p1]; ld.param.u64 %q2, [p2];",
        "ld.param.u64 %q3, [da]; ld.param.u64 %q4, [db]; mov.u32 %s, smem; mad.lo.u32 %s, %t, 256, %s;",
        "mad.wide.u32 %q0, %t, 256, %q0; mad.wide.u32 %q1, %t, 16, %q1;",
        f"mad.wide.u32 %q2, %t, {4 * size}, %q2;",
    ]  # fmt: skip
    lines += [f"ld.global.b32 %x, [%q0+{4 * j}]; st.shared.b32 [%s+{4 * j}], %x;" for j in range(64)]
    lines += [f"ld.global.b32 %a{j}, [%q1+{4 * j}];" for j in range(4)]
    lines += [f"ld.global.b32 %d{j}, [%q2+{4 * j}];" for j in range(size)]
    lines += [f"bar.sync 0; setp.ne.u32 %p, {int(adding)}, 0; wgmma.fence.sync.aligned;"]
    word = "{" + ", ".join(f"%d{j}" for j in range(size)) + "}"
    if of_a is None:
        parts = np.zeros((128, 4 * 32 // bits), a.dtype)
        for warp in range(4):  # the registers of a warp are those of mma
            layout = LAYOUTS[bits, {16: "m16n8k16", 8: "m16n8k32"}[bits]][0]
            registers = packed(a[16 * warp : 16 * warp + 16], layout, bits)
            parts[32 * warp : 32 * warp + 32] = np.ascontiguousarray(registers).view(a.dtype)
        of_a_descriptor, first = 0, "{%a0, %a1, %a2, %a3}"
    else:
        parts = np.zeros((128, 4), np.uint32)
        of_a_descriptor, first = in_shared(a, a_first, of_a, 1024, image), "%q3"
    numbers = [] if kind == "s8" else ["1", "-1"]
    if bits == 16:
        numbers += ([] if of_a is None else [str(int(not a_first))]) + [str(int(not b_first))]
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d_kind}.{kind}.{kind}"
    lines += [f"{name} {', '.join([word, first, '%q4', '%p', *numbers])};"]
    lines += ["wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"]
    lines += [f"st.global.b32 [%q2+{4 * j}], %d{j};" for j in range(size)]
    given = [image, parts, held.copy(), np.uint64(of_a_descriptor), np.uint64(of_b_descriptor)]
    ran = Bench("\n".join([*lines, "ret; }"]), counting).run("k", given, block=(128,), shared_bytes=32768)
    assert ran.result.failed is None
    (counts,) = [
        counts
        for counts, source in zip(ran.result.counts, ran.result.code.sources, strict=True)
        if source.opcode.startswith("wgmma.mma")
    ]
    assert counts["wavefronts"] == 4 * (((0 if of_a is None else 64 * 32) + n * 32) // 512)
    found = np.zeros((64, n))
    found[rows, columns] = wide(ran.arrays[2])
    sign = 1 if kind == "s8" else -1  # B is negated
    expected = sign * (wide(a) @ wide(b).T) + (wide(c) if adding else 0)
    near = {"f16": 2e-3, "f32": 1e-6, "s32": 0.0}[d_kind]
    assert np.abs(found - expected).max() <= near * np.abs(expected).max()
