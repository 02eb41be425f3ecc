"""Lower bounds of times: by hand, and how they depend on what was counted."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.devices.counting.bounds import LaunchBound, LaunchWork, bound, program_bound_us
from fusiond.devices.counting.classes import CLASSES, lasting_class
from fusiond.devices.counting.frequencies import BasicBlock, LineCounts, SassInstruction, of_blocks
from fusiond.devices.counting.model import A100, GPUS, H100, L4, Gpu, gpu_named, gpu_of
from fusiond.model.errors import RequestError
from fusiond.model.program import HostCall, Launch, Program

NOTHING = LaunchWork(
    blocks=132 * 8, warps_per_block=8, resident_per_sm=8, dram_bytes=0, compulsory_read_sectors=0, read_sectors=0,
    write_sectors=0, atomic_sectors=0, shared_wavefronts=0, warps={},
)  # fmt: skip


def test_a_copy_is_bound_by_dram() -> None:
    sectors = 10**9 // 32
    work = dataclasses.replace(
        NOTHING, dram_bytes=2 * 10**9, compulsory_read_sectors=sectors, read_sectors=sectors, write_sectors=sectors,
        warps={"global": 2 * sectors // 4, "integer": 6 * sectors // 4},
    )  # fmt: skip
    found = bound(work, H100)
    assert found.binding == "dram"
    assert found.us == pytest.approx(2e9 / 3.35e12 * 1e6)
    assert bound(work, L4).us == pytest.approx(2e9 / 300e9 * 1e6)


def test_arithmetic_is_bound_by_issue_slots_or_by_its_lanes() -> None:
    count = 132 * 4 * 10**6
    found = bound(dataclasses.replace(NOTHING, warps={"fp32": count}), H100)
    assert (found.binding, found.us) == ("issue", pytest.approx(1e6 / 1980))
    doubles = bound(dataclasses.replace(NOTHING, warps={"fp64": count}), H100)
    assert (doubles.binding, doubles.us) == ("issue_fp64", pytest.approx(2e6 / 1980))
    special = bound(dataclasses.replace(NOTHING, warps={"sfu": count, "fp32": count}), H100)
    assert (special.binding, special.us) == ("issue_sfu", pytest.approx(8e6 / 1980))


def test_a_tail_of_equal_blocks() -> None:
    """133 blocks on 132 multiprocessors: one of them has two."""
    work = dataclasses.replace(NOTHING, blocks=133, warps={"fp32": 133 * 8000}, shortest_share=1.0)
    assert bound(work, H100).terms["tail"] == pytest.approx(2 * 8000 / 4 / 1980)
    assert bound(dataclasses.replace(work, shortest_share=0.0), H100).terms["tail"] == 0


counts = st.integers(0, 10**12)
works = st.builds(
    LaunchWork, blocks=st.integers(1, 10**7), warps_per_block=st.integers(1, 32), resident_per_sm=st.integers(1, 32),
    dram_bytes=counts, compulsory_read_sectors=counts, read_sectors=counts, write_sectors=counts, atomic_sectors=counts,
    shared_wavefronts=counts, warps=st.dictionaries(st.sampled_from(CLASSES), counts), shortest_share=st.floats(0, 1),
)  # fmt: skip
gpus = st.sampled_from(tuple(GPUS.values()))


@given(works, gpus, st.data())
def test_more_work_never_takes_less(work: LaunchWork, gpu: Gpu, data: st.DataObject) -> None:
    fields = [
        each.name for each in dataclasses.fields(LaunchWork) if each.type == "int" and "resident" not in each.name
    ]
    fields = [each for each in fields if each not in ("blocks", "warps_per_block")]
    name = data.draw(st.sampled_from([*fields, "warps"]))
    more: object = (
        getattr(work, name) + data.draw(counts)
        if name != "warps"
        else {**work.warps, "fp32": work.warps.get("fp32", 0) + data.draw(counts)}
    )
    assert bound(dataclasses.replace(work, **{name: more}), gpu).us >= bound(work, gpu).us  # type: ignore[arg-type]


@given(works, gpus, st.sampled_from(["clock_mhz", "dram_gbs", "l2_bytes_per_clock"]), st.floats(1, 4))
def test_a_faster_part_never_takes_more(work: LaunchWork, gpu: Gpu, name: str, times: float) -> None:
    faster = dataclasses.replace(gpu, **{name: getattr(gpu, name) * times})
    assert bound(work, faster).us <= bound(work, gpu).us


@given(works, gpus)
def test_the_bound_is_the_largest_part(work: LaunchWork, gpu: Gpu) -> None:
    found = bound(work, gpu)
    assert found.us == max(found.terms.values())
    assert min(found.terms.values()) >= 0


# --- programs -------------------------------------------------------------------------------------------


def step(name: str, stream: int = 0, after: tuple[str, ...] = (), counted: bool = True) -> Launch:
    return Launch(
        name=name, source="s", entry="e", grid=(1, 1, 1), block=(32, 1, 1), arguments=(), stream=stream, after=after,
        counted=counted,
    )  # fmt: skip


def test_a_program_takes_its_longest_chain_with_gaps() -> None:
    one = LaunchBound(us=10.0, binding="latency", terms={"latency": 10.0, "dram": 2.0})

    def us(*steps: Launch | HostCall) -> float:
        program = Program(name="p", buffers=(), sources=(), steps=steps)
        return program_bound_us(program, {each.name: one for each in steps if isinstance(each, Launch)}, H100)

    gap = H100.launch_gap_us
    assert us(step("a")) == 10
    assert us(step("a"), step("b")) == 20 + gap
    assert us(step("a"), step("b", 1)) == 10
    assert us(step("a"), step("b", 1), step("c", 0, ("b",))) == 20 + gap
    assert us(step("a"), step("b", counted=False), step("c")) == 20 + gap
    assert us(*(step(f"s{k}", k) for k in range(8))) == 16.0  # side by side, DRAM is asked eight times


# --- the table ------------------------------------------------------------------------------------------


def test_a_calibration_takes_the_place_of_the_data_sheet() -> None:
    found = H100.calibrated({"copy_gbs": 3000.0, "fp32_tflops": 60.0, "kernel_gap_us": 1.2})
    assert (found.dram_gbs, found.launch_gap_us) == (3000.0, 1.2)
    assert found.clock_mhz == pytest.approx(60e6 / (2 * 128 * 132))
    assert H100.calibrated({}) == H100
    assert A100.calibrated({"fp32_tflops": 19.5}).clock_mhz == pytest.approx(1410, rel=0.01)


def test_gpus_by_name_and_by_architecture() -> None:
    assert gpu_named("H200").name == "h200"
    assert (gpu_of("sm_90").name, gpu_of("sm_90a").name, gpu_of("sm_80").name) == ("h100", "h100", "a100")
    with pytest.raises(RequestError, match="known: a100, h100"):
        gpu_named("v100")
    with pytest.raises(RequestError, match="sm_75"):
        gpu_of("sm_75")


def test_registers_and_shared_memory_decide_what_is_resident() -> None:
    assert H100.resident(256, 0) == 132 * 8
    assert H100.resident(256, 0, registers=64) == 132 * 4
    assert H100.resident(256, 100 * 1024) == 132 * 2  # 101 KiB each, of 228
    assert H100.resident(1024, 0, registers=255) == 132  # refused by the driver: counted as one all the same


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("ld.global.nc.v4.f32", "global"), ("ld.param.u64", None), ("st.shared.f32", "shared"), ("ld.f32", "global"),
        ("atom.shared.add.u32", "shared"), ("fma.rn.f32", "fp32"), ("add.f32", None), ("add.rn.f32", "fp32"),
        ("mul.f64", "fp64"), ("ex2.approx.ftz.f32", "sfu"), ("shfl.sync.bfly.b32", "shuffle"), ("mov.b32", None),
        ("mad.lo.s32", None), ("bar.sync", "barrier"), ("bra.uni", None), ("ldmatrix.sync.aligned.m8n8.x4", "shared"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "mma"), ("wgmma.fence.sync.aligned", None),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "mma"), ("cp.async.commit_group", None),
        ("cp.async.cg.shared.global", "global"), ("mbarrier.try_wait.parity.shared::cta.b64", "barrier"),
    ],
)  # fmt: skip
def test_what_no_compiler_leaves_out(opcode: str, kind: str | None) -> None:
    assert lasting_class(opcode) == kind
    assert kind is None or kind in CLASSES


# --- frequencies of blocks that are made up, where the right ones are known -----------------------------


def block(*successors: int, line: int = 0, opcode: str = "NOP", copies: int = 1, ends: bool = False) -> BasicBlock:
    """A block with copies of one instruction."""
    return BasicBlock((SassInstruction(opcode, False, line),) * copies, successors, ends, None)


def line(threads: int, *, opcode: str = "ld.global.f32", entered: int | None = None) -> LineCounts:
    return LineCounts(opcodes=(opcode,), guarded=False, threads=threads, warps=threads // 32 or 1, entered=entered)


START = line(64, opcode="mov.u32")


def threads(blocks: list[BasicBlock], lines: dict[int, LineCounts]) -> list[int]:
    return [round(each.threads) for each in of_blocks(blocks, {1: START, **lines})]


TWO_LOOPS = [
    block(1, 3), block(2), block(2, 5, line=2, opcode="LDG"), block(4), block(4, 5, line=3, opcode="LDG"),
    block(ends=True),
]  # fmt: skip
"""On two sides of a branch."""


def test_two_loops_on_two_sides_are_entered_by_as_many_as_in_ptx() -> None:
    found = threads(TWO_LOOPS, {2: line(1000, entered=40), 3: line(500, entered=24)})
    assert found == [64, 40, 1000, 24, 500, 64]


def test_two_loops_that_each_want_all_threads_share_them() -> None:
    found = threads(TWO_LOOPS, {2: line(1000), 3: line(500)})
    assert (found[2], found[4], found[1] + found[3]) == (1000, 500, 64)


def unrolled_by_four() -> list[BasicBlock]:
    """A loop of four rounds at once, which saves jumps, and one of what is left."""
    load, jump = SassInstruction("LDG", False, 2), SassInstruction("BRA", True, 0)
    return [
        block(1, 2), BasicBlock((load, load, load, load, jump), (1, 2), False, None), block(3, 4),
        BasicBlock((load, jump), (3, 4), False, None), block(ends=True),
    ]  # fmt: skip


@pytest.mark.parametrize(("rounds", "four"), [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_who_goes_round_fewer_times_does_not_pass_through_the_unrolled_part(rounds: int, four: int) -> None:
    """Although that would take fewer instructions. The loop is entered once by each of 64 threads."""
    found = threads(unrolled_by_four(), {2: line(64 * rounds, entered=64)})
    assert (found[1], found[3]) == (64 * four, 64 * (rounds - 4 * four))


@pytest.mark.parametrize(("entered", "expected"), [(640, 640), (64, 64)])
def test_an_inner_loop_is_entered_each_time_that_the_outer_one_goes_round(entered: int, expected: int) -> None:
    """Ten rounds of 64 threads outside, each of which begins another inside, or one of which does: PTX says which, and
    not the product that ptxas moved to where the inner one begins."""
    blocks = [
        block(1), block(2, 4, line=2, opcode="LDG"), block(3, line=4, opcode="IMAD"),
        block(3, 4, line=3, opcode="FMUL"), block(1, 5), block(ends=True),
    ]  # fmt: skip
    lines = {2: line(640, entered=64), 3: line(6400, opcode="mul.f32", entered=entered)}
    lines[4] = line(64, opcode="mul.lo.s32")
    assert threads(blocks, lines) == [64, 640, expected, 6400, 640, 64]


def test_a_negation_before_an_addition_is_no_second_copy() -> None:
    """Twenty subtractions of two instructions each, beside a load: as often as the load, not half as often."""
    subtractions = tuple(SassInstruction("IADD3", False, k) for k in range(3, 23) for _ in range(2))
    blocks = [
        block(1, 2),
        BasicBlock((*subtractions, SassInstruction("LDG.E", False, 2)), (2,), False, None),
        block(ends=True),
    ]
    lines = {2: line(40), **{k: line(40, opcode="sub.s32") for k in range(3, 23)}}
    assert threads(blocks, lines)[1] == 40


def test_copies_at_the_ends_of_branches_share_the_count() -> None:
    blocks = [
        block(1, 2), block(3, line=2, opcode="STG"), block(3, line=2, opcode="STG"),
        block(ends=True, line=3, opcode="STG"),
    ]  # fmt: skip
    found = threads(blocks, {2: line(64, opcode="st.global.f32"), 3: line(64, opcode="st.global.f32")})
    assert (found[1] + found[2], found[3]) == (64, 64)


def test_what_is_moved_out_of_a_loop_is_outvoted() -> None:
    moved = SassInstruction("FMUL", False, 2)
    blocks = [
        BasicBlock((moved, SassInstruction("LDG", False, 3)), (1,), False, None),
        block(1, 2, line=4, opcode="LDG"),
        block(ends=True),
    ]
    lines = {2: line(6400, opcode="mul.f32"), 3: line(64), 4: line(6400, entered=64)}
    assert threads(blocks, lines) == [64, 6400, 64]
