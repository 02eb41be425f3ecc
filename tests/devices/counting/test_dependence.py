"""Which launches go by data, and which must therefore run whole."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from fusiond.devices.counting import dependence
from fusiond.devices.counting.dependence import ANY, Uses
from fusiond.devices.counting.library import CountingLibrary
from fusiond.devices.counting.model import H100
from fusiond.devices.counting.run import count
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source
from fusiond.model.ptx import flat
from tests.ptx_data.cases import cases

from .conftest import DATA

MODULES = {name: flat.parse((DATA / f"{name}.ptx").read_text()) for name in ("truths", "sampled")}


def of(kernel: str, *pointers: int) -> dict[str, set[int] | None]:
    """Parameters by their numbers; None for an address that nobody knows."""
    found = next(each.kernels[kernel] for each in MODULES.values() if kernel in each.kernels)
    names = [each.name for each in found.parameters]
    known = dependence.uses(found, [names[each] for each in pointers])
    return {
        name: None if ANY in held else {names.index(each) for each in held}
        for name, held in (("reads", known.reads), ("writes", known.writes), ("steering", known.steering))
    }


@pytest.mark.parametrize(
    ("kernel", "pointers", "reads", "writes", "steering"),
    [
        ("copy_float4", (0, 1), {0}, {1}, set()),
        ("passes", (0, 1), {0}, {1}, set()),
        ("transpose_tile", (0, 1), {0}, {1}, set()),  # by way of shared memory
        ("product", (0, 1, 2), {0, 1}, {2}, set()),
        ("gather", (0, 1, 2), {0, 1}, {2}, {0}),
        ("histogram", (0, 1), {0, 1}, {1}, {0}),
        ("histogram_shared", (0, 1), {0}, {1}, {0}),
        ("meet", (0, 1), {0, 1}, {1}, {0, 1}),  # branches
        ("last", (0, 1, 2), {0, 2}, {1, 2}, {2}),  # the value of an atomic, by way of shared memory
    ],
)
def test_what_kernels_go_by(
    kernel: str, pointers: tuple[int, ...], reads: set[int], writes: set[int], steering: set[int]
) -> None:
    assert of(kernel, *pointers) == {"reads": reads, "writes": writes, "steering": steering}


def test_an_address_out_of_memory_may_be_any() -> None:
    text = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .b64 %rd<4>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [p];
ld.global.u64 %rd2, [%rd1];
st.global.b32 [%rd2], %r1;
ret;
}"""
    found = dependence.uses(flat.parse(text).kernels["k"], ["p"])
    assert found == Uses(reads=frozenset({"p"}), writes=frozenset({ANY}), steering=frozenset({"p"}))


# --- programs -------------------------------------------------------------------------------------------

N = 1 << 16


def chain(*, last: str = "gather") -> Program:
    """index -> copied -> made (as many blocks as threads / 64 each), then something that goes by it, or does not."""

    def buffer(name: str, role: Role, dtype: str = "int32", **more: Any) -> Buffer:
        return Buffer(name=name, dtype=dtype, elements=N, role=role, **more)

    def launch(name: str, entry: str, *arguments: str | int) -> Launch:
        packed = [
            Pointer(buffer=each) if isinstance(each, str) else Scalar(dtype="int32", value=each) for each in arguments
        ]
        source = "truths" if entry.startswith("copy") else "sampled"
        return Launch(
            name=name, source=source, entry=entry, grid=(N // 64, 1, 1), block=(64, 1, 1), arguments=tuple(packed)
        )

    ends = {"gather": launch("end", "gather", "made", "x", "y"), "copy": launch("end", "copy_float", "made", "y", 1, 0)}
    return Program(
        name="chain",
        buffers=(buffer("index", Role.INPUT, fill=Fill(kind="integers", low=0, high=N - 1)),
                 buffer("copied", Role.SCRATCH), buffer("made", Role.SCRATCH),
                 buffer("x", Role.INPUT, "float32", fill=Fill(kind="iota")), buffer("y", Role.OUTPUT, "float32")),
        sources=tuple(
            Source(name=name, text=(DATA / f"{name}.cu").read_text(), entries=entries)
            for name, entries in (("truths", ("copy_float",)), ("sampled", ("gather",)))
        ),
        steps=(launch("first", "copy_float", "index", "copied", 1, 0),
               launch("second", "copy_float", "copied", "made", 1, 0), ends[last]),
    )  # fmt: skip


def needs(program: Program) -> dependence.Needs:
    def kernel(step: Launch) -> tuple[flat.PtxKernel, dict[str, str]]:
        return MODULES[step.source].kernels[step.entry], {}

    return dependence.needs(program, kernel)


def test_what_leads_to_an_index_runs_whole() -> None:
    found = needs(chain())
    assert list(found.whole) == ["second", "first"]
    assert "made" in found.whole["second"]
    assert found.buffers == {"index", "copied", "made"}
    assert found.touched["end"] == ({"made", "x"}, {"y"})


def test_what_only_leads_to_values_does_not() -> None:
    found = needs(chain(last="copy"))
    assert found.whole == {}
    assert found.buffers == frozenset()


@pytest.mark.needs_nvcc
def test_indices_are_right_in_a_sampled_program(counting: CountingLibrary) -> None:
    """Whole where the indices come from, sampled where they are used; wrong ones would be outside of x."""
    gpu = dataclasses.replace(H100, multiprocessors=4, most_blocks=4, l2_bytes=16 << 10)
    sampled, whole = (count(chain(), gpu=gpu, budget=budget) for budget in (10_000, None))
    assert [each.failed for each in sampled.rows] == [None] * 3
    assert [each.sampled == 1.0 for each in sampled.rows] == [True, True, False]
    assert "y" not in sampled.outputs
    assert sorted(whole.outputs) == ["y"]
    assert np.count_nonzero(whole.outputs["y"])
    for one, other in zip(sampled.rows, whole.rows, strict=True):
        found, expected = one.dram_bytes or 0, other.dram_bytes or 0
        assert abs(found - expected) <= ((one.error or 0.0) + 0.02) * expected
        assert (one.bound_us or 0.0) > 0


@pytest.mark.parametrize(
    ("name", "reads", "writes", "steering"),
    [
        ("gemm_f16_sm_80", {0, 1}, {2}, set()),  # by cp.async, ldmatrix and mma
        ("gemm_f16_sm_90", {0, 1}, {2}, set()),  # by cp.async and wgmma
        ("gemm_split_sm_80", {0, 1, 2}, {2}, set()),
        ("histogram_sm_80", {0, 1}, {1}, {0}),
        ("gemm_host_descriptor_sm_90", {0, 5}, {10}, set()),  # tensor maps: parameters behind those of their shapes
    ],
)
def test_what_tensor_cores_go_by(name: str, reads: set[int], writes: set[int], steering: set[int]) -> None:
    case = cases()[name]
    kernel = flat.parse(case.text).kernels[case.entry]
    names = [each.name for each in kernel.parameters]
    pointers = [0, 5, 10] if "host" in name else [k for k, each in enumerate(case.arguments) if "shape" in each]
    found = dependence.uses(kernel, [names[each] for each in pointers])
    wanted = [{names[each] for each in held} for held in (reads, writes, steering)]
    assert [found.reads, found.writes, found.steering] == wanted


def test_what_a_kernel_maps_itself_may_be_anywhere_that_it_points() -> None:
    case = cases()["gemm_descriptor_sm_90"]
    kernel = flat.parse(case.text).kernels[case.entry]
    names = [each.name for each in kernel.parameters]
    found = dependence.uses(kernel, [names[each] for each in (0, 1, 2, 6)])
    assert {names[each] for each in (0, 1)} <= found.reads
    assert names[2] in found.writes
    assert ANY not in found.reads | found.writes
    assert not found.steering
