"""Frequencies of blocks that are made up, where the right ones are known."""

from __future__ import annotations

import pytest

from fusiond.counting.frequencies import Line, Unsolved, of_blocks
from fusiond.counting.sass import Block, Instruction


def block(*successors: int, line: int = 0, opcode: str = "NOP", copies: int = 1, ends: bool = False) -> Block:
    """A block with copies of one instruction."""
    return Block((Instruction(opcode, False, line),) * copies, successors, ends, None)


def line(threads: int, *, opcode: str = "ld.global.f32", entered: int | None = None) -> Line:
    return Line(opcodes=(opcode,), guarded=False, threads=threads, warps=threads // 32 or 1, entered=entered)


START = line(64, opcode="mov.u32")


def threads(blocks: list[Block], lines: dict[int, Line]) -> list[int]:
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


def test_a_loop_of_four_copies_and_what_is_left() -> None:
    """18 rounds of 64 threads: the unrolled part is taken four times, unless a line of its own says otherwise."""
    blocks = [
        block(1),
        block(1, 2, line=2, opcode="LDG", copies=4),
        block(2, 3, line=2, opcode="LDG"),
        block(ends=True),
    ]
    assert threads(blocks, {2: line(64 * 18)})[1:3] == pytest.approx([64 * 17 / 4, 64])


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
    moved = Instruction("FMUL", False, 2)
    blocks = [
        Block((moved, Instruction("LDG", False, 3)), (1,), False, None),
        block(1, 2, line=4, opcode="LDG"),
        block(ends=True),
    ]
    lines = {2: line(6400, opcode="mul.f32"), 3: line(64), 4: line(6400, entered=64)}
    assert threads(blocks, lines) == [64, 6400, 64]


def test_nobody_runs() -> None:
    assert [each.threads for each in of_blocks([block(ends=True)], {})] == [0.0]


def test_a_kernel_that_cannot_end_is_not_solved() -> None:
    with pytest.raises(Unsolved, match="no frequencies obey the control flow"):
        threads([block(1), block(1, line=2, opcode="LDG")], {2: line(64)})
