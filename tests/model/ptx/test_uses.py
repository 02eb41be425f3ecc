"""What a kernel reads and writes by its parameters: of Triton's kernels, and of PTX in which addresses travel oddly."""

import sys
from pathlib import Path

import pytest

from fusiond.model.ptx import parser, uses

sys.path.insert(0, str(Path(__file__).parents[2] / "ptx_data"))
import cases

CASES = cases.cases()
READ = {"output": (False, True), "input": (True, False)}
BY_ATOMICS = {"histogram_sm_80", "gemm_split_sm_80"}


def of(case):
    return [(each.read, each.written) for each in uses.of_parameters(parser.parse(case.text), case.entry)]


@pytest.mark.parametrize("name", [name for name in CASES if "descriptor" not in name])
def test_what_triton_made_reads_its_inputs_and_writes_its_outputs(name):
    roles = [each.get("role") for each in CASES[name].arguments]
    wanted = [READ.get(role, (False, False)) for role in roles]
    if name in BY_ATOMICS:
        wanted[roles.index("output")] = (True, True)
    assert of(CASES[name]) == [*wanted, (False, False), (False, False)]


def test_maps_as_parameters_are_read_or_written_as_they_are_used():
    found = of(CASES["gemm_host_descriptor_sm_90"])
    assert {k: each for k, each in enumerate(found) if any(each)} == {
        0: (True, False), 5: (True, False), 10: (False, True),
    }  # fmt: skip


def test_maps_that_the_kernel_makes_may_be_of_any_of_its_arrays():
    found = of(CASES["gemm_descriptor_sm_90"])
    assert found == [(True, True)] * 3 + [(False, False)] * 3 + [(True, True), (False, False)]


# Two addresses x and y in %rd1 and %rd2, a number n in %r1; the body says what becomes of them.
TEXT = """.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 smem[];
.global .align 8 .u64 table[4];
.func (.param .b32 out) f (.param .b64 at) {{ ret; }}
.visible .entry k(.param .u64{pointer} x, .param .u64{pointer} y, .param .u32 n, .param .align 8 .b8 pair[16])
{{
.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<9>;
.shared .align 8 .b8 tile[64];
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
{body}
}}
"""
NO, X, Y, ALL = (), (0,), (1,), (0, 1, 3)


@pytest.mark.parametrize(
    ("body", "read", "written"),
    [
        # How an address travels.
        ("cvta.to.global.u64 %rd3, %rd1; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], 1;",
         NO, X),
        ("add.s64 %rd5, %rd4, %rd1; sub.s64 %rd6, %rd5, 8; st.global.u32 [%rd6+4], 1;", NO, X),
        ("mad.wide.u32 %rd5, %r1, 4, %rd1; st.global.u32 [%rd5], 1;", NO, X),
        ("mad.lo.u64 %rd5, %rd2, 1, %rd1; st.global.u32 [%rd5], 1;", NO, (0, 1)),
        ("selp.b64 %rd5, %rd1, %rd2, %p1; st.global.u32 [%rd5], 1;", NO, (0, 1)),
        ("slct.u64.s32 %rd5, %rd1, %rd2, %r1; st.global.u32 [%rd5], 1;", NO, (0, 1)),
        ("setp.eq.u64 %p1, %rd2, 0; selp.b64 %rd5, %rd1, 0, %p1; st.global.u32 [%rd5], 1;", NO, X),
        ("mov.b64 {%r2, %r3}, %rd1; mov.b64 %rd5, {%r2, %r3}; st.global.u32 [%rd5], 1;", NO, X),
        ("add.cc.u32 %r5, %r2, 4; addc.u32 %r6, %r3, 0; mov.b64 {%r2, %r3}, %rd1; mov.b64 %rd5, {%r5, %r6};"
         "st.global.u32 [%rd5], 1;", NO, X),
        ("shfl.sync.idx.b32 %r4|%p1, %r2, 0, 31, -1; mov.b64 {%r2, %r3}, %rd1; mov.b64 %rd5, {%r4, %r3};"
         "st.global.u32 [%rd5], 1;", NO, X),
        ("and.b64 %rd3, %rd1, -16; xor.b64 %rd4, %rd3, 1; max.u64 %rd5, %rd4, 0; st.global.u32 [%rd5], 1;", NO, X),
        ("L: ld.global.u32 %r2, [%rd5]; mov.u64 %rd5, %rd6; mov.u64 %rd6, %rd1; bra L;", X, NO),
        ("{ .reg .b64 %rd1; mov.u64 %rd1, smem; st.u32 [%rd1], 1; } ld.global.u32 %r2, [%rd1];", X, NO),
        ("ld.param.u64 %rd3, [pair+8]; st.global.u32 [%rd3], 1;", NO, (3,)),
        ("mov.b64 %rd3, pair; ld.param.u64 %rd4, [%rd3+8]; st.global.u32 [%rd4], 1;", NO, (3,)),
        ("ld.param.v2.u64 {%rd3, %rd4}, [pair]; st.global.u32 [%rd4], 1;", NO, (3,)),
        # What came from memory, or from a call, may be any address.
        ("ld.global.u64 %rd3, [%rd1]; st.global.u32 [%rd3], 1;", X, ALL),
        ("ld.global.v2.u64 {%rd3, %rd4}, [%rd1]; ld.u32 %r2, [%rd4];", ALL, NO),
        ("st.shared.u64 [tile], %rd2; ld.shared.u64 %rd3, [tile]; st.global.u32 [%rd3], 1;", NO, Y),
        ("st.local.v2.b64 [%rd9], {%rd3, %rd2}; ld.local.b64 %rd4, [%rd9+8]; st.global.u32 [%rd4], 1;", NO, Y),
        ("ld.global.u64 %rd4, [%rd1]; st.shared.u64 [tile], %rd4; ld.shared.u64 %rd3, [tile]; st.global.u32 [%rd3], 1;",
         X, ALL),
        ("ld.global.f32 %f1, [%rd1]; st.shared.f32 [tile], %f1; st.shared.u64 [tile+8], %rd2;"
         "ld.shared.u64 %rd3, [tile]; st.global.u32 [%rd3], 1;", X, Y),
        ("st.shared.u64 [tile], %rd2; cp.async.ca.shared.global [tile], [%rd1], 8; cvta.shared.u64 %rd3, %rd8;"
         "ld.u64 %rd4, [%rd3]; st.global.u32 [%rd4], 1;", X, ALL),
        ("cp.async.ca.shared.global [tile], [%rd1], 8; ld.shared.u64 %rd4, [tile]; st.global.u32 [%rd4], 1;", X, ALL),
        ("cp.async.ca.shared.global [tile], [%rd1], 8; ld.shared.u32 %r4, [tile]; mad.wide.u32 %rd5, %r4, 4, %rd2;"
         "st.global.u32 [%rd5], 1;", X, Y),
        ("ld.global.v2.u32 {%r4, %r5}, [%rd1]; mov.b64 %rd4, {%r4, %r5}; selp.b64 %rd5, %rd4, %rd2, %p1;"
         "st.global.u32 [%rd5], 1;", X, ALL),
        ("ld.global.u32 %r4, [%rd1]; cvt.u64.u32 %rd4, %r4; st.global.u32 [%rd4], 1;", X, ALL),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2]; mad.wide.u32 %rd5, %r3, 4, %rd2; ld.u32 %r4, [%rd5];",
         Y, NO),
        ("mov.u64 %rd3, table; ld.global.u64 %rd4, [%rd3]; st.global.u32 [%rd4+8], 1;", NO, ALL),
        ("atom.shared.exch.b64 %rd3, [tile], %rd1; st.global.u32 [%rd3], 1;", NO, X),
        ("ld.global.u64 %rd3, [%rd1]; selp.b64 %rd4, %rd2, %rd3, %p1; st.global.u32 [%rd4], 1;", X, ALL),
        ("ld.global.u64 %rd3, [%rd1]; selp.b64 %rd4, %rd1, %rd3, %p1; selp.b64 %rd6, %rd2, %rd3, %p1;"
         "add.u64 %rd5, %rd4, %rd6; st.global.u32 [%rd5], 1;", X, ALL),
        ("{ .param .b64 a; .param .b32 r; st.param.b64 [a], %rd1; call (r), f, (a); }", ALL, ALL),
        # What does what.
        ("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]; ldu.global.f32 %f1, [%rd2];", (0, 1), NO),
        ("prefetch.global.L2 [%rd1];", X, NO),
        ("ld.u32 %r2, [%rd1]; st.u32 [%rd2], %r2;", X, Y),
        ("atom.global.add.u32 %r2, [%rd1], 1; red.add.f32 [%rd2], %f1;", (0, 1), (0, 1)),
        ("atom.cas.b64 %rd4, [%rd1], %rd2, %rd3;", X, X),
        ("fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;", X, NO),
        ("discard.global.L2 [%rd1], 128;", X, X),
        ("cp.async.cg.shared.global [%r2], [%rd1], 16;", X, NO),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], %r3, [%rd4];", X, NO),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], %r3;", NO, X),
        ("cp.async.bulk.prefetch.L2.global [%rd1], %r2;", X, NO),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], %r3;", X, X),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2, %r3}], [%r4];", NO, X),
        ("multimem.red.global.add.f32 [%rd1], %f1;", X, X),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r2, %r3}, [%rd1], 16;"
         "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd2], {%f1, %f2}, 16;", X, Y),
        # Other memory.
        ("mov.u64 %rd3, smem; add.u64 %rd4, %rd3, 8; st.u32 [%rd4], 1; mov.u64 %rd5, table; st.global.u64 [%rd5], 1;",
         NO, NO),
        ("ld.shared.u32 %r2, [tile]; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2]; st.shared.u32 [%r2], 1;"
         "mbarrier.init.shared::cta.b64 [%r2], 1; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];", NO, NO),
        ("st.local.u64 [%rd3], %rd1; cp.async.bulk.shared::cluster.shared::cta.bulk_group [%r2], [%r3], 16, [%r4];",
         NO, NO),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pointer", [" .ptr .global .align 16", ""])
def test_an_address_is_followed_to_where_it_is_used(body, read, written, pointer):
    found = uses.of_parameters(parser.parse(TEXT.format(body=body, pointer=pointer)), "k")
    assert tuple(k for k, each in enumerate(found) if each.read) == read
    assert tuple(k for k, each in enumerate(found) if each.written) == written


@pytest.mark.parametrize(("pointer", "written"), [(" .ptr .global .align 16", X), ("", ALL)])
def test_an_index_from_memory_keeps_to_a_declared_pointer(pointer, written):
    body = (
        "ld.global.u64 %rd9, [%rd2]; mul.lo.u64 %rd3, %rd9, 4; add.s64 %rd4, %rd1, %rd3; mad.lo.u64 %rd5, %rd9, 4, "
        "%rd1; add.u64 %rd6, %rd4, %rd3; st.global.u32 [%rd4], 1; st.global.u32 [%rd5], 1; st.global.u32 [%rd6], 1;"
        "or.b64 %rd7, %rd3, %rd1; st.global.u32 [%rd7], 1; sub.s64 %rd8, %rd1, %rd3; st.global.u32 [%rd8], 1;"
    )
    found = uses.of_parameters(parser.parse(TEXT.format(body=body, pointer=pointer)), "k")
    assert tuple(k for k, each in enumerate(found) if each.written) == written


def test_a_stride_is_no_address():
    body = (
        "ld.param.u64 %rd3, [y]; mad.lo.s64 %rd4, %rd3, 8, %rd1; st.global.u32 [%rd4], 1; ld.param.u64 %rd5, [pair];"
        "add.s64 %rd6, %rd5, %rd3; ld.global.u32 %r2, [%rd6];"
    )
    text = TEXT.format(body=body, pointer=" .ptr .global .align 16").replace(".ptr .global .align 16 y", " y")
    found = uses.of_parameters(parser.parse(text), "k")
    assert [(each.read, each.written) for each in found] == [
        (False, True), (True, False), (False, False), (True, False),
    ]  # fmt: skip


def test_a_number_added_to_an_address_from_memory_does_not_hide_it():
    body = "ld.global.u64 %rd3, [%rd1]; ld.param.u64 %rd4, [pair]; add.s64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], 1;"
    found = uses.of_parameters(parser.parse(TEXT.format(body=body, pointer=" .ptr .global .align 16")), "k")
    assert tuple(k for k, each in enumerate(found) if each.written) == ALL
