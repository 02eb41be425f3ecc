"""Schedules (section 4.1): the whole space against brute force, figure 5, and which are tried."""

import math

import pytest

from fusiond_stitching.analysis import schedule
from fusiond_stitching.analysis.plan import BoxChunk, ChunkSchedule, ScheduleKind

from . import index_sets

DIMS = [(), (1,), (7,), (12, 10), (2, 3, 4), (5, 1, 6, 2)]


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
