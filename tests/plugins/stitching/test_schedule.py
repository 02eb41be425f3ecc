"""Schedules (section 4.1): the whole space against brute force, figure 5, and which are tried."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import schedule
from fusiond_stitching.analysis.plan import BoxChunk, ChunkSchedule, FlatChunk, ScheduleKind

from . import index_sets

DIMS = [(), (1,), (7,), (12, 10), (2, 3, 4), (5, 1, 6, 2)]


@given(st.integers(1, 5000))
@settings(max_examples=200, deadline=None)
def test_divisors(number):
    assert list(schedule.divisors(number)) == [each for each in range(1, number + 1) if number % each == 0]


@pytest.mark.parametrize("dims", DIMS)
def test_the_space_is_the_product_of_the_three_parameters(dims):
    wanted = {
        ChunkSchedule(split_dim, sword, kind)
        for kind in (ScheduleKind.ROW, ScheduleKind.COLUMN)
        for split_dim in range(len(dims))
        for sword in range(1, dims[split_dim] + 1)
        if dims[split_dim] % sword == 0
    } or {ChunkSchedule(0, 1, ScheduleKind.ROW)}
    assert set(schedule.space(dims)) == wanted
    assert len(list(schedule.space(dims))) == len(wanted)


@pytest.mark.parametrize("dims", DIMS)
def test_blocks_are_those_of_figure_5(dims):
    for each in schedule.space(dims, middle=True):
        if each.sched_type is ScheduleKind.ROW:
            blocks = math.prod(dims[: each.split_dim]) * each.sword
        elif each.sched_type is ScheduleKind.COLUMN:
            blocks = math.prod(dims[each.split_dim + 1 :]) * each.sword
        else:
            blocks = each.sword
        assert each.blocks(dims) == blocks
        chunk = each.chunk(dims)
        assert isinstance(chunk, BoxChunk)
        assert chunk.parts == blocks
        assert chunk.size * blocks == math.prod(dims)


def test_blocks_are_numbered_row_major():
    """Row(1, 2) of [3, 4, 5]: 6 blocks; block 3 is row 1, the second half of dimension 1."""
    chunk = ChunkSchedule(1, 2, ScheduleKind.ROW).chunk((3, 4, 5))
    assert chunk.ranges(3, (3, 4, 5)) == (range(1, 2), range(2, 4), range(5))
    chunk = ChunkSchedule(1, 2, ScheduleKind.COLUMN).chunk((3, 4, 5))
    assert chunk.ranges(7, (3, 4, 5)) == (range(3), range(2, 4), range(2, 3))


@pytest.mark.parametrize(
    "each",
    [
        ChunkSchedule(0, 5, ScheduleKind.ROW),
        ChunkSchedule(2, 1, ScheduleKind.ROW),
        ChunkSchedule(1, 0, ScheduleKind.COLUMN),
    ],
)
def test_a_sword_that_does_not_divide_is_refused(each):
    with pytest.raises(ValueError, match="sword must divide"):
        each.chunk((12, 10))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("wanted", [1, 16, 1000])
def test_candidates_cover_the_tensor_and_end_with_the_single_block(dims, wanted):
    found = schedule.candidates(dims, wanted, True)
    chunks = [chunk for _, chunk, _ in found]
    assert len(set(chunks)) == len(chunks)
    assert found[-1] == (ChunkSchedule(0, 1, ScheduleKind.ROW), chunks[-1], 1)
    legal = set(schedule.space(dims, middle=True))
    for each, chunk, blocks in found:
        assert each in legal
        assert blocks == each.blocks(dims)
        counts = sum(index_sets.of_chunk(chunk, dims, block).astype(int) for block in range(blocks))
        assert (counts == 1).all()


def test_of_every_way_to_cut_the_nearest_is_kept():
    """Of [64, 48] near 100 blocks: rows, columns and both, and of each way the block count nearest to what is
    wanted, found by trying the whole space."""
    dims, wanted = (64, 48), 100

    def way(chunk):
        return tuple(split.parts > 1 for split in chunk.splits)

    found = schedule.candidates(dims, wanted, False)
    kept = {}
    for _, chunk, blocks in found[:-1]:
        kept.setdefault(way(chunk), []).append(blocks)
    whole_space = {}
    for each in schedule.space(dims):
        if each.blocks(dims) > 1:
            whole_space.setdefault(way(each.chunk(dims)), []).append(each.blocks(dims))
    assert set(kept) == set(whole_space) == {(True, False), (False, True), (True, True)}
    for cut, blocks in whole_space.items():
        nearest = min(blocks, key=lambda count: (abs(math.log2(count / wanted)), count))
        assert kept[cut][0] == nearest


def test_flat_chunks():
    each = schedule.flat(1000, 256)
    assert each.blocks((10, 100)) == 4
    assert each.chunk((10, 100)) == FlatChunk(256, 4)
    assert schedule.flat(3, 256).chunk((3,)) == FlatChunk(3, 1)
