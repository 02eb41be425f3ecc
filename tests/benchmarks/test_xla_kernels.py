"""XLA's kernels from its dumps: what they read is run by the counter, what is not understood is said."""

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs jax")

from benchmarks.corpus import xla_kernels

ELEMENTS = 1 << 16
BYTES = 4 * ELEMENTS
HLO = f"""HloModule m

%fused {{
  %p = f32[{ELEMENTS}]{{0}} parameter(0)
  %q = f32[{ELEMENTS}]{{0}} parameter(1)
  ROOT %s = f32[{ELEMENTS}]{{0}} add(%p, %q)
}}

ENTRY %main {{
  %x.1 = f32[{ELEMENTS}]{{0}} parameter(0)
  %y.1 = f32[{ELEMENTS}]{{0}} parameter(1)
  %loop_add_fusion.2 = f32[{ELEMENTS}]{{0}} fusion(%x.1, %y.1), kind=kLoop, calls=%fused
  %loop_add_fusion.3 = f32[{ELEMENTS}]{{0}} fusion(%loop_add_fusion.2, %x.1), kind=kLoop, calls=%fused
  %copy.4 = f32[{ELEMENTS}]{{0}} copy(%y.1)
  ROOT %t = (f32[{ELEMENTS}]{{0}}, f32[{ELEMENTS}]{{0}}) tuple(%loop_add_fusion.3, %copy.4)
}}
"""
LAUNCH = f"loop_add_fusion_2 grid: [{ELEMENTS // 128}, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes"
SEQUENCE = f"""001: kCustomKernel [source | next=002 (1)] {LAUNCH}
002: kCustomKernel [prev=001 (1) | sink] {LAUNCH}
003: kCopy [source | sink] copy_4
"""
METADATA = "\n".join(
    f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n    thunk_id: {at}\n  }}\n}}'
    for at, name in enumerate(("loop_add_fusion.2", "loop_add_fusion.3", "copy.4"), 1)
)
ASSIGNMENT = "BufferAssignment:\n" + "".join(
    f"allocation {at}: size {BYTES}, {what}:\n value: <{at} {name} @0> (size={BYTES},offset=0): f32[{ELEMENTS}]{{0}}\n"
    for at, (name, what) in enumerate(
        [("x.1", "parameter 0"), ("y.1", "parameter 1"), ("loop_add_fusion.2", "preallocated-temp"),
         ("loop_add_fusion.3", "maybe-live-out"), ("copy.4", "maybe-live-out")]
    )
)  # fmt: skip
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry loop_add_fusion_2(
.param .u64 .ptr .align 16 a,
.param .u64 .ptr .align 16 b,
.param .u64 .ptr .align 256 c
)
.reqntid 128, 1, 1
{
.reg .b64 %rd<8>;
.reg .b32 %r<8>;
.reg .f32 %f<4>;
ld.param.b64 %rd0, [a];
ld.param.b64 %rd1, [b];
ld.param.b64 %rd2, [c];
mov.u32 %r0, %ctaid.x;
mov.u32 %r1, %tid.x;
mad.lo.s32 %r2, %r0, 128, %r1;
mad.wide.u32 %rd0, %r2, 4, %rd0;
mad.wide.u32 %rd1, %r2, 4, %rd1;
mad.wide.u32 %rd2, %r2, 4, %rd2;
ld.global.nc.f32 %f0, [%rd0];
ld.global.nc.f32 %f1, [%rd1];
add.rn.f32 %f2, %f0, %f1;
st.global.f32 [%rd2], %f2;
ret;
}
"""
FILES = {
    "m.sm_9.0a_gpu_after_optimizations.txt": HLO, "m.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt": ASSIGNMENT,
    "m.thunk_sequence.txt": SEQUENCE, "m.thunk_metadata.txt": METADATA, "m.1.ptx": PTX,
}  # fmt: skip


def dumped(folder: Path, **changed: str) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(changed.get(name.rsplit(".", 2)[-2].split("-")[-1], text), encoding="utf-8")
    return folder


@pytest.mark.campaign
def test_kernels_are_run_with_what_they_are_launched_with(tmp_path: Path, gxx_here: None) -> None:
    """One kernel for two instructions, whose operands lie where the assignment says; a copy beside them."""
    program, copied = xla_kernels.of_dumps(dumped(tmp_path), {})
    assert copied == 2 * BYTES
    assert [[argument.buffer for argument in step.arguments] for step in program.launches] == [  # type: ignore[union-attr]
        [f"a{at}_0_{BYTES}" for at in places] for places in ((0, 1, 2), (2, 0, 3))
    ]
    found = xla_kernels.counted(tmp_path, {})
    # x and y are read, the sum is still in the cache; what is written leaves it once.
    assert found["dram_bytes"] == 4 * BYTES + copied
    assert found["write_sectors"] == 2 * BYTES // 32
    assert found["read_sectors"] == 4 * BYTES // 32


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"thunk_sequence": "001: kWhile [source | sink] while"}, "a launch of kind kWhile"),
        ({"thunk_sequence": "what is this"}, "what is launched by 'what is this'"),
        ({"thunk_metadata": METADATA.replace("fusion.2", "fusion.9")}, "of which instruction loop_add_fusion_2 is"),
        ({"assignment": ASSIGNMENT.replace("<2 ", "<2 other_")}, r"where loop_add_fusion\.2\{\} lies"),
        ({"1": PTX.replace(",\n.param .u64 .ptr .align 256 c", "").replace("[c]", "[b]")}, "has 2 parameters"),
        ({"1": PTX.replace("add.rn.f32", "frobnicate.f32")}, "frobnicate.f32 is not known here"),
    ],
)
def test_what_is_not_understood_is_said(tmp_path: Path, gxx_here: None, changed: dict[str, str], why: str) -> None:
    with pytest.raises(xla_kernels.Unmatched, match=why):
        xla_kernels.counted(dumped(tmp_path, **changed), {})


def test_what_a_library_computes_is_filled(tmp_path: Path) -> None:
    sequence = SEQUENCE.replace("001: kCustomKernel", "001: kCublasLtMatmul")
    program, _ = xla_kernels.of_dumps(dumped(tmp_path, thunk_sequence=sequence), {})
    assert len(list(program.launches)) == 1
    assert program.buffer(f"a2_0_{BYTES}").fill.kind == "uniform"
