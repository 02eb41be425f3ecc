"""Schedules (section 4.1): the whole space against brute force, figure 5, and which are tried."""

import math
from pathlib import Path

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusiond_stitching
from fusiond.model.nouns import frozen
from fusiond_stitching.analysis import schedule, span
from fusiond_stitching.analysis.plan import BoxChunk, ChunkSchedule, FlatChunk, ScheduleKind
from fusiond_stitching.analysis.propagate import joined, named, required
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloInstruction

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


# --- table 1 of the paper -------------------------------------------------------------------------------


def tensor(name, dims, opcode="parameter", operands=(), **attributes):
    return HloInstruction(
        name=name, opcode=opcode, dtype="f32", dims=tuple(dims), operands=tuple(operands), attributes=frozen(attributes)
    )


def passed(user, operand, each, place=0):
    """The schedule of the operand that the paper's algorithm would go on with; None when it has no name."""
    return named(operand.dims, required(user, place, operand, each.chunk(user.dims)))


def rows_and_columns(dims):
    return [each for each in schedule.space(dims) if each.blocks(dims) > 1]


def same(dims, one, other):
    """Two names of one chunk: Row(0, 2) and Column(0, 2) of [4] are the same."""
    return other is not None and one.chunk(dims) == other.chunk(dims)


def test_a_reduce_passes_row_left_of_the_reduced_dims_and_column_right_of_them():
    x = tensor("x", (6, 4, 10, 8))
    y = tensor("y", (6, 8), "reduce", ["x", "zero"], dimensions=(1, 2))
    source = {0: 0, 1: 3}  # of each dimension of the result
    seen = set()
    for each in rows_and_columns(y.dims):
        own = source[each.split_dim]
        found = passed(y, x, each)
        if own < 1 and each.sched_type is ScheduleKind.ROW:
            assert same(x.dims, ChunkSchedule(own, each.sword, ScheduleKind.ROW), found)
        elif own > 2 and each.sched_type is ScheduleKind.COLUMN:
            assert same(x.dims, ChunkSchedule(own, each.sword, ScheduleKind.COLUMN), found)
        else:
            # What the table leaves out is not a schedule of the operand, unless nothing is cut on the other side.
            assert found is None or math.prod(each.chunk(y.dims).local) == 1 or len(cut(each.chunk(y.dims))) == 1
        seen.add((own, each.sched_type, found is not None))
    assert (0, ScheduleKind.COLUMN, False) in seen
    assert (3, ScheduleKind.ROW, False) in seen


def cut(chunk):
    return [at for at, each in enumerate(chunk.splits) if each.parts > 1]


def test_a_transpose_passes_row_left_of_what_it_moves_and_column_right_of_it():
    x = tensor("x", (6, 4, 10, 9, 8))
    y = tensor("y", (6, 10, 4, 9, 8), "transpose", ["x"], dimensions=(0, 2, 1, 3, 4))  # moves 1 and 2
    for each in rows_and_columns(y.dims):
        found = passed(y, x, each)
        if (each.split_dim < 1 and each.sched_type is ScheduleKind.ROW) or (
            each.split_dim > 2 and each.sched_type is ScheduleKind.COLUMN
        ):
            assert same(x.dims, ChunkSchedule(each.split_dim, each.sword, each.sched_type), found)
    assert passed(y, x, ChunkSchedule(1, 2, ScheduleKind.ROW)) is None
    assert passed(y, x, ChunkSchedule(2, 2, ScheduleKind.COLUMN)) is None


def test_a_batched_dot_passes_row_while_split_dim_is_a_batch_dim():
    x, z = tensor("x", (4, 6, 5, 7)), tensor("z", (4, 6, 7, 3))
    y = tensor("y", (4, 6, 5, 3), "dot", ["x", "z"], lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contracting=(3,),
               rhs_contracting=(2,))  # fmt: skip
    for each in rows_and_columns(y.dims):
        for place, operand in enumerate((x, z)):
            asked = required(y, place, operand, each.chunk(y.dims))
            wasted = each.blocks(y.dims) * asked.size > max(1, operand.elements)
            if each.split_dim < 2 and each.sched_type is ScheduleKind.ROW:
                assert same(operand.dims, each, named(operand.dims, asked))
                assert not wasted
            elif place == (0 if any(at == 3 for at in cut(each.chunk(y.dims))) else 1):
                # Cut along the columns each block needs all rows of the left side, and the other way round.
                assert wasted or not set(cut(each.chunk(y.dims))) & {2, 3}


@pytest.mark.parametrize(
    ("dims", "source", "pairs"),
    [
        # merged: [6, 4] -> [24]
        ((24,), (6, 4), {(0, 6, "row"): (0, 6, "row"), (0, 2, "row"): (0, 2, "row"), (0, 12, "row"): (1, 2, "row")}),
        # taken apart: [24] -> [6, 4]
        ((6, 4), (24,), {(0, 3, "row"): (0, 3, "row"), (1, 2, "row"): (0, 12, "row")}),
        # dimensions before and behind stay: [5, 6, 4, 7] -> [5, 24, 7]
        ((5, 24, 7), (5, 6, 4, 7),
         {(0, 5, "row"): (0, 5, "row"), (2, 7, "column"): (3, 7, "column"), (1, 6, "row"): (1, 6, "row")}),
    ],
)  # fmt: skip
def test_a_reshape_transforms_split_dim_and_sword(dims, source, pairs):
    x = tensor("x", source)
    y = tensor("y", dims, "reshape", ["x"])
    for given_, wanted in pairs.items():
        assert same(source, named_as(*wanted), passed(y, x, named_as(*given_))), given_


def named_as(split_dim, sword, sched_type):
    return ChunkSchedule(split_dim, sword, ScheduleKind(sched_type))


# --- joining --------------------------------------------------------------------------------------------


@st.composite
def two_chunks(draw):
    dims = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    some = [each.chunk(dims) for each in schedule.space(dims, middle=True)]
    some += [FlatChunk(size, -(-math.prod(dims) // size)) for size in (1, 2, 5)]
    return dims, draw(st.sampled_from(some)), draw(st.sampled_from(some))


@given(two_chunks())
@settings(max_examples=80, deadline=None)
def test_a_joined_chunk_covers_both_in_every_block(drawn):
    dims, one, other = drawn
    both = joined(one, other, dims)
    assert joined(one, one, dims) == one
    for block in range(max(one.parts, other.parts)):
        wanted = index_sets.of_chunk(one, dims, block) | index_sets.of_chunk(other, dims, block)
        assert not (wanted & ~index_sets.of_chunk(both, dims, block)).any()


# --- spans (section 3.1) against the longest ways that networkx finds -----------------------------------


FOLDER = Path(fusiond_stitching.__file__).parent / "modules"


@pytest.mark.parametrize("name", sorted(each.stem for each in FOLDER.glob("*.hlo")))
def test_a_span_is_the_longest_way_to_an_end(name):
    module = importer.read((FOLDER / f"{name}.hlo").read_text(), name)
    found = span.analyse(module)
    graph = networkx.DiGraph()
    graph.add_nodes_from(each.name for each in module.instructions)
    graph.add_edges_from((operand, each.name) for each in module.instructions for operand in each.operands)
    assert found.length == networkx.dag_longest_path_length(graph)
    longest: dict[str, int] = {}
    for node in reversed(list(networkx.topological_sort(graph))):
        longest[node] = max((1 + longest[each] for each in graph.successors(node)), default=0)
    assert dict(found.of) == longest
    calls = {each.name for each in module.instructions if module.library(each)}
    assert found.library == tuple(sorted({longest[call] for call in calls}))
    for each in module.instructions:
        assert found.between(each.name) == sum(1 for layer in found.library if layer <= longest[each.name])


def test_figure_3_has_nine_layers_below_its_inputs():
    """The paper's example: a softmax and a dot behind it. (Its bitcast is a reshape here.)"""
    module = importer.read((FOLDER / "nmt_fig3.hlo").read_text(), "nmt_fig3")
    found = span.analyse(module)
    (dot,) = [each.name for each in module.instructions if each.opcode == "dot"]
    divide, exponential, reduces = (
        [each.name for each in module.instructions if each.opcode == opcode]
        for opcode in ("divide", "exponential", "reduce")
    )
    assert found.of[dot] < found.of[divide[0]] < found.of[exponential[0]]
    sums, tops = sorted(reduces, key=found.of.__getitem__)
    assert found.of[divide[0]] < found.of[sums] < found.of[exponential[0]] < found.of[tops]
