"""SASS instructions of kernels whose control flow is known: sass.listing is what nvdisasm prints of sass.ptx."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import nvcc, nvdisasm
from fusiond.build.cache import BuildCache
from fusiond.devices.counting import frequencies, run, sass
from fusiond.devices.counting.library import CountingLibrary
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Scalar, Source, SourceKind

from .conftest import DATA, Bench, Ran

FLOATS = np.ones(8192, np.float32)


@pytest.fixture
def kernels(counting: CountingLibrary) -> Bench:
    return Bench((DATA / "sass.ptx").read_text(), counting)


@pytest.fixture(scope="module")
def functions() -> Mapping[str, sass.SassFunction]:
    return sass.parse((DATA / "sass.listing").read_text())


def executed(functions: Mapping[str, sass.SassFunction], kernel: str, ran: Ran) -> sass.Executed:
    assert ran.result.failed is None
    return sass.executed(functions[kernel], sass.lines_of(ran.result))


def between(kernel: str, begin: int, end: int) -> int:
    """Instructions of the listing at addresses from `begin` to before `end`."""
    section = (DATA / "sass.listing").read_text().partition(f".text.{kernel}:")[2].partition("//------")[0]
    return sum(begin <= int(each, 16) < end for each in re.findall(r"/\*([0-9a-f]{4})\*/", section))


@pytest.mark.parametrize(
    ("kernel", "dtype", "end"), [("straight", "f4", 0xF0), ("divide_integers", "i4", 0x270), ("either", "f4", 0xF0)]
)
def test_straight_lines_are_what_nvdisasm_prints(
    kernels: Bench, functions: Mapping[str, sass.SassFunction], kernel: str, dtype: str, end: int
) -> None:
    """Up to the last EXIT; `either` has both sides under predicates, which are executed by all."""
    arguments: list[Any] = [np.arange(1, 300).astype(dtype), np.zeros(300, dtype)]
    ran = kernels.run(kernel, [*arguments, *([np.int32(20)] if kernel == "either" else [])], grid=(2,), block=(64,))
    found = executed(functions, kernel, ran)
    each = between(kernel, 0, end)
    assert "EXIT" in functions[kernel][-1].instructions[-1].opcode
    assert sum(found.threads.values()) == 128 * each
    assert sum(found.warps.values()) == 4 * each


@pytest.mark.parametrize(
    ("kernel", "dtype", "slow"),
    [("exp_divide", "f4", "slowpath"), ("divide_double", "f8", "div_rn_f64_full"), ("divide_long", "i8", "div_s64")],
)
def test_slow_paths_of_divisions_are_not_executed(
    kernels: Bench, functions: Mapping[str, sass.SassFunction], kernel: str, dtype: str, slow: str
) -> None:
    ran = kernels.run(kernel, [np.arange(1, 34).astype(dtype), np.zeros(32, dtype)])
    found, listing = executed(functions, kernel, ran), (DATA / "sass.listing").read_text()
    assert slow in listing
    lines = sass.lines_of(ran.result)
    often = frequencies.of_blocks(functions[kernel], lines)
    calls = [k for k, block in enumerate(functions[kernel]) if block.calls is not None]
    assert len(calls) == 1
    assert often[calls[0]].threads == 0
    assert found.threads["sfu"] == (64 if kernel == "exp_divide" else 32)
    whole = sum(len(block.instructions) for block in functions[kernel])
    assert sum(found.warps.values()) < whole / 2


def test_a_branch_and_its_loop(kernels: Bench, functions: Mapping[str, sass.SassFunction]) -> None:
    """20 of 64 threads go round ten times; they are in one warp."""
    ran = kernels.run("branch", [FLOATS[:128], FLOATS[:64], np.int32(20)], block=(64,))
    found = executed(functions, "branch", ran)
    everybody = between("branch", 0, 0xA0) + between("branch", 0x140, 0x1B0)
    before, body = between("branch", 0xA0, 0xC0), between("branch", 0xC0, 0x140)
    assert sum(found.threads.values()) == 64 * everybody + 20 * before + 200 * body
    assert found.threads["fp32"] == 200
    assert found.warps["fp32"] == 10


def unrolled_instructions(trips: int) -> int:
    """Of `unrolled`, by hand along its branches: what nvcc's loops by 1 and by 4 became, the latter 4, 2 or 1 at once.

    Of a thread that goes round `trips` times as the source says."""
    parts = {name: between("unrolled", *bounds) for name, bounds in UNROLLED.items()}
    count = parts["begin"] + parts["end"]
    if trips == 0:
        return count
    single, quads = trips % 4, trips // 4
    count += parts["divide"] + parts["join"] + (parts["before_single"] if single else 0) + single * parts["single"]
    if quads == 0:
        return count
    count += parts["before_quads"] + parts["join_quads"] + parts["join_two"]
    if quads > 3:
        count += parts["before_four"] + (quads // 4) * parts["four"]
        quads %= 4
    if quads > 1:
        count += parts["two"]
        quads -= 2
    return count + quads * parts["one"]


UNROLLED = {
    "begin": (0x0, 0x80), "divide": (0x80, 0x110), "before_single": (0x110, 0x160), "single": (0x160, 0x1F0),
    "join": (0x1F0, 0x210), "before_quads": (0x210, 0x2A0), "before_four": (0x2A0, 0x2C0), "four": (0x2C0, 0x510),
    "join_quads": (0x510, 0x560), "two": (0x560, 0x6C0), "join_two": (0x6C0, 0x6F0), "one": (0x6F0, 0x770),
    "end": (0x770, 0x7C0),
}  # fmt: skip


def hash_instructions(trips: int) -> int:
    """Of `hash`, by hand: a loop of four at once, and what is left."""
    between_ = [between("hash", *bounds) for bounds in HASH]
    begin, divide, before, four, join, single, after, end = between_
    count = begin + end
    if trips == 0:
        return count
    count += divide + (before if trips >= 4 else 0) + (trips // 4) * four + join
    return count + (trips % 4) * single + (after if trips % 4 else 0)


HASH: Sequence[tuple[int, int]] = (
    (0x0, 0x90), (0x90, 0xF0), (0xF0, 0x110), (0x110, 0x340), (0x340, 0x350), (0x350, 0x400), (0x400, 0x420),
    (0x420, 0x470),
)  # fmt: skip


@pytest.mark.parametrize("trips", [0, 1, 3, 4, 7, 8, 16, 30, 61, 160, 250])
def test_loops_that_ptxas_unrolls(kernels: Bench, functions: Mapping[str, sass.SassFunction], trips: int) -> None:
    """What is left over may be taken to go through another of the copies: a few instructions a thread."""
    ran = kernels.run("unrolled", [FLOATS, FLOATS[:32], np.int32(32 * trips)])
    found, expected = sum(executed(functions, "unrolled", ran).threads.values()), 32 * unrolled_instructions(trips)
    assert found == pytest.approx(expected, rel=0.02 if trips > 16 else 0.08)
    words = np.zeros(64, np.uint32)
    ran = kernels.run("hash", [words, words, np.int32(trips)])
    found = sum(executed(functions, "hash", ran).threads.values())
    assert found == pytest.approx(32 * hash_instructions(trips), rel=0.02)


LISTING = """
\t.section\t.text.k,"ax",@progbits
k:
.text.k:
\t//## File ".nv_debug_ptx_txt", line 10
        /*0000*/                   FADD R1, R1, R1 ;
        /*0010*/                   BRA.DIV UR6, `(.L_x_2) ;
        /*0020*/               @P0 BRA P1, `(.L_x_1) ;
\t//## File ".nv_debug_ptx_txt", line 12
        /*0030*/                   CALL.REL.NOINC `($slow) ;
        /*0040*/                   BRA !P1, `(.L_x_1) ;
        /*0050*/              @!PT FADD R1, R1, R1 ;
.L_x_1:
        /*0060*/              @UP0 EXIT ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_1) ;
$slow:
        /*0090*/                   MUFU.RCP R1, R1 ;
        /*00a0*/                   RET.REL.NODEC R20 `(k) ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
"""


def test_blocks_of_a_listing() -> None:
    """BRA.DIV is not taken; a second predicate makes a branch conditional; functions of ptxas's own have no lines."""
    blocks = sass.parse(LISTING)["k"]
    assert [(each.successors, each.ends, each.calls) for each in blocks] == [
        ((1, 4), False, None), ((2,), False, 6), ((3, 4), False, None), ((4,), False, None), ((5,), True, None),
        ((), True, None), ((), True, None),
    ]  # fmt: skip
    assert [each.line for each in blocks[1].instructions] == [12]
    assert [(each.opcode, each.line) for each in blocks[6].instructions] == [("MUFU.RCP", 0), ("RET.REL.NODEC", 0)]
    assert [each.guarded for each in (*blocks[3].instructions, *blocks[4].instructions)] == [True, True]


def test_a_call_that_never_comes_back_is_a_jump() -> None:
    """So does ptxas leave loops up to sm_80; they were taken as never left, and hardly executed."""
    never = LISTING.replace("RET.REL.NODEC R20 `(k)", "EXIT")
    blocks = sass.parse(never)["k"]
    assert [(each.successors, each.calls) for each in blocks][1] == ((4,), None)
    assert len(blocks) == 5
    assert blocks[4].ends
    guarded = never.replace("     CALL.REL", "@P2  CALL.REL")
    assert [(each.successors, each.calls) for each in sass.parse(guarded)["k"]][1] == ((2, 6), None)


def test_a_call_that_comes_back_on_the_way_of_one_that_does_not() -> None:
    """The function's RET is no way back from what called it."""
    inner = (
        "        /*00a0*/                   CALL.REL.NOINC `($inner) ;\n        /*00b0*/                   EXIT ;\n"
        "$inner:\n        /*00c0*/                   RET.REL.NODEC R20 `(k) ;\n"
    )
    text = LISTING.replace("        /*00a0*/                   RET.REL.NODEC R20 `(k) ;\n", inner)
    blocks = sass.parse(text)["k"]
    slow = next(each for each in blocks if each.instructions[0].opcode == "MUFU.RCP")
    assert [(each.successors, each.calls) for each in blocks][1] == ((blocks.index(slow),), None)
    assert slow.calls is not None
    assert blocks[slow.calls].instructions[0].opcode == "RET.REL.NODEC"


# --- with the tools -------------------------------------------------------------------------------------


@pytest.fixture
def tools() -> nvcc.Toolkit:
    toolkit = nvcc.find()
    line = nvcc.missing() or nvdisasm.missing()
    if toolkit is None or line:
        pytest.skip(line or "no nvcc")
    return toolkit


@pytest.mark.needs_nvcc
def test_lines_do_not_change_the_code(tools: nvcc.Toolkit, tmp_path: Path, shared_cache: Path) -> None:
    text = re.sub(r"\n\s*\.(loc|file)[^\n]*", "", (DATA / "sass.ptx").read_text()).partition("\t.section")[0]
    listings = []
    for flags in ([], ["-lineinfo"]):
        (tmp_path / "in.ptx").write_text(text)
        command = [tools.ptxas, "-arch=sm_90", *flags, "-o", tmp_path / "out.cubin", tmp_path / "in.ptx"]
        subprocess.run(command, check=True)
        listing = nvdisasm.listing(tmp_path / "out.cubin", cache=BuildCache(shared_cache))
        assert isinstance(listing, str)
        listings.append([row for row in listing.splitlines() if "//##" not in row])
    assert listings[0] == listings[1]


def program_of(source: Source) -> Program:
    """A launch of each of its kernels that is asked for, four warps each."""
    limit = Scalar(dtype="int32", value=32)
    roles = {"x": Role.INPUT, "y": Role.OUTPUT}
    return Program(
        name="k",
        buffers=tuple(Buffer(name=name, dtype="float32", elements=256, role=role) for name, role in roles.items()),
        sources=(source,),
        steps=tuple(
            Launch(name=entry, source=source.name, entry=entry, grid=(2, 1, 1), block=(64, 1, 1),
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y"), *([limit] if entry == "branch" else [])))
            for entry in source.entries
        ),
    )  # fmt: skip


@pytest.mark.needs_nvcc
def test_a_launch_says_its_instructions_by_class(tools: nvcc.Toolkit, shared_cache: Path) -> None:
    """Under a cap of registers as well: the lines of the PTX stay where they are."""
    text = (DATA / "sass.cu").read_text()
    for cap in (None, 32):
        source = Source(name="k", kind=SourceKind.DEVICE, text=text, entries=("straight", "branch"), register_cap=cap)
        program = program_of(source)
        rows = run.count(program, cache=BuildCache(shared_cache)).rows
        assert [each.failed for each in rows] == [None, None]
        for row in rows:
            assert row.instruction_classes is not None
            assert row.warp_instructions is not None
            assert row.instructions == sum(row.instruction_classes.values())
            assert row.instruction_classes["global"] == row.warp_instructions["global"] * 32
        found = [each.instruction_classes or {} for each in rows]
        assert found[0]["global"] == 2 * 128  # a load, a store
        assert found[1]["fp32"] == 2 * 32 * 10


@pytest.mark.needs_nvcc
def test_without_a_disassembler_they_are_null(
    tools: nvcc.Toolkit, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvdisasm, "find", lambda: None)
    source = Source(name="k", kind=SourceKind.DEVICE, text=(DATA / "sass.cu").read_text(), entries=("straight",))
    found = nvdisasm.listing(Path("none"), cache=BuildCache(shared_cache))
    assert isinstance(found, BuildFailed)
    assert "fusiond[nvcc]" in found.reason
    row = run.count(program_of(source), cache=BuildCache(shared_cache)).rows[0]
    assert row.instructions is row.instruction_classes is row.warp_instructions is None
    assert row.ptx_instructions
