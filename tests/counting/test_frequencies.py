"""Frequencies of blocks that are made up, where the right ones are known."""

from __future__ import annotations

import pytest

from fusiond.devices.counting.frequencies import LineCounts, of_blocks
from fusiond.devices.counting.sass import BasicBlock, SassInstruction


def block(*successors: int, line: int = 0, opcode: str = "NOP", copies: int = 1, ends: bool = False) -> BasicBlock:
    """A block with copies of one instruction."""
    return BasicBlock((SassInstruction(opcode, False, line),) * copies, successors, ends, None)


def line(threads: int, *, opcode: str = "ld.global.f32", entered: int | None = None) -> LineCounts:
    return LineCounts(opcodes=(opcode,), guarded=False, threads=threads, warps=threads // 32 or 1, entered=entered)


START = line(64, opcode="mov.u32")


def threads(blocks: list[BasicBlock], lines: dict[int, LineCounts]) -> list[int]:
    return [round(each.threads) for each in of_blocks(blocks, {1: START, **lines})]


def test_two_loops_on_two_sides_are_entered_by_as_many_as_in_ptx() -> None:
    blocks = [
        block(1, 3),
        block(2),
        block(2, 5, line=2, opcode="LDG"),
        block(4),
        block(4, 5, line=3, opcode="LDG"),
        block(ends=True),
    ]
    found = threads(blocks, {2: line(1000, entered=40), 3: line(500, entered=24)})
    assert found == [64, 40, 1000, 24, 500, 64]


def test_two_loops_that_each_want_all_threads_share_them() -> None:
    blocks = [
        block(1, 3),
        block(2),
        block(2, 5, line=2, opcode="LDG"),
        block(4),
        block(4, 5, line=3, opcode="LDG"),
        block(ends=True),
    ]
    found = threads(blocks, {2: line(1000), 3: line(500)})
    assert (found[2], found[4], found[1] + found[3]) == (1000, 500, 64)


def unrolled_by_four() -> list[BasicBlock]:
    """A loop of four rounds at once, which saves jumps, and one of what is left."""
    load, jump = SassInstruction("LDG", False, 2), SassInstruction("BRA", True, 0)
    return [
        block(1, 2),
        BasicBlock((load, load, load, load, jump), (1, 2), False, None),
        block(3, 4),
        BasicBlock((load, jump), (3, 4), False, None),
        block(ends=True),
    ]


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
        block(1),
        block(2, 4, line=2, opcode="LDG"),
        block(3, line=4, opcode="IMAD"),
        block(3, 4, line=3, opcode="FMUL"),
        block(1, 5),
        block(ends=True),
    ]
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
        block(1, 2),
        block(3, line=2, opcode="STG"),
        block(3, line=2, opcode="STG"),
        block(ends=True, line=3, opcode="STG"),
    ]
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
