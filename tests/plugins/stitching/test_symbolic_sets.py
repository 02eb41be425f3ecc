"""Symbolic sets of elements against masks, block by block; and that no set is larger than what the planner takes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fusiond.model import frozen
from fusiond_stitching.analysis import schedule, symbolic_reads, symbolic_sets
from fusiond_stitching.analysis.plan import BoxChunk, Chunk, FlatChunk, Split, boxed
from fusiond_stitching.analysis.propagate import required
from fusiond_stitching.analysis.symbolic_sets import Elements
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

from . import graphs, index_sets
from .test_index_sets import COVERED, EXACT, module_of

MANY = settings(max_examples=100, deadline=None)
APPROXIMATE = ("slice", "pad", "pad, interior cut", "reshape")
"""Of the functions of `test_index_sets`: steps are filled up, and a box need not be one behind a reshape."""

WINDOWS = {
    "pooling": ((7, 9), lambda x: lax.reduce_window(x, -np.inf, lax.max, (3, 2), (2, 3), ((1, 0), (2, 1)))),
    "dilated": (
        (9, 8),
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 3), (1, 2), ((0, 0), (1, 2)), base_dilation=(1, 2), window_dilation=(1, 3)
        ),
    ),
    "moving sum": ((6, 5), lambda x: lax.reduce_window(x, 0.0, lax.add, (4, 1), (1, 1), "VALID")),
}
INTO = lax.ScatterDimensionNumbers((1, 2), (), (0,))
PARTS = {
    "gather of parts": ((6, 5), lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 5)))(jnp.array([1, 3]))),
    "scatter of parts": ((6, 5), lambda x: lax.scatter_add(x, jnp.array([[1], [3]]), x.reshape(2, 3, 5), INTO)),
}
"""Windows of a gather and a scatter that are shorter than the dimension."""
CASES = EXACT | COVERED | WINDOWS | PARTS


def mask_of(elements: Elements, dims: tuple[int, ...], block: int) -> np.ndarray:
    """The elements for one block, as a mask."""
    found = np.zeros(math.prod(dims), bool)
    for each in elements:
        part = np.zeros(each.view, bool)
        part[tuple(slice(max(0, one.start.at(block)), max(0, one.stop.at(block))) for one in each.intervals)] = True
        found |= part.reshape(-1)
    return found.reshape(dims)


def chunks_of(dims: tuple[int, ...]) -> list[tuple[Chunk, int]]:
    """(chunk, blocks) of every schedule, and of some runs of the row-major order."""
    found = itertools.chain(
        schedule.space(dims, middle=True), (schedule.flat(math.prod(dims), size) for size in (1, 3, 4, 8))
    )
    return [(each.chunk(dims), each.blocks(dims)) for each in found]


@st.composite
def boxes(draw: st.DrawFn, dims: tuple[int, ...]) -> tuple[BoxChunk, int]:
    """Parts that need not divide a dimension, numbered anyhow, in blocks of which some are replicas, or too few."""
    splits = []
    for dim in dims:
        size = draw(st.integers(1, dim))
        splits.append(Split(size, draw(st.integers(1, -(-dim // size))), draw(st.sampled_from([1, 2, 3, 4, 6, 8]))))
    return BoxChunk(tuple(splits)), draw(st.integers(1, 30))


DIMS = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@given(DIMS, st.data())
@MANY
def test_a_chunk_is_its_elements(dims, data):
    chunk, blocks = data.draw(boxes(dims))
    flat = FlatChunk(data.draw(st.integers(1, 9)), 3)
    for each in (chunk, flat):
        found = (symbolic_sets.of_chunk(each, dims, blocks),)
        for block in range(blocks):
            np.testing.assert_array_equal(mask_of(found, dims, block), index_sets.of_chunk(each, dims, block))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_covers_the_index_sets_and_lies_in_what_the_planner_requires(name):
    """Every instruction, every schedule, every block; and where nothing is approximated it is the index set."""
    module = module_of(*CASES[name])
    for user in module.instructions:
        for place, operand in enumerate(module.operands(user)):
            for chunk, blocks in chunks_of(user.dims):
                given_ = (symbolic_sets.of_chunk(chunk, user.dims, blocks),)
                found = symbolic_reads.read(module, user, place, given_)
                asked = symbolic_sets.of_chunk(required(user, place, operand, chunk), operand.dims, blocks)
                assert symbolic_sets.contained(found, asked), f"{user} operand {place}, {chunk}"
                for block in range(blocks):
                    mine = index_sets.of_chunk(chunk, user.dims, block)
                    wanted = index_sets.read(module, user, place, mine)
                    got = mask_of(found, operand.dims, block)
                    if isinstance(chunk, BoxChunk) and name not in (*APPROXIMATE, *WINDOWS):
                        np.testing.assert_array_equal(got, wanted, f"{user} operand {place}, {chunk}, block {block}")
                    assert not (wanted & ~got).any(), f"{user} operand {place}, {chunk}, block {block}"


@pytest.mark.slow
@given(text=graphs.modules(most=30), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_is_read_covers_the_index_sets_of_random_modules(text, data):
    """Boxes that no schedule has."""
    module = importer.read(text, "random.hlo")
    for user in module.instructions:
        if user.elements > 300:
            continue
        for place, operand in enumerate(module.operands(user)):
            chunk, blocks = data.draw(boxes(user.dims))
            found = symbolic_reads.read(module, user, place, (symbolic_sets.of_chunk(chunk, user.dims, blocks),))
            for block in range(blocks):
                wanted = index_sets.read(module, user, place, index_sets.of_chunk(chunk, user.dims, block))
                assert not (wanted & ~mask_of(found, operand.dims, block)).any(), f"{user} operand {place}, {chunk}"


# --- views ----------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two lists of dims with one product."""
    total = draw(st.sampled_from([1, 12, 24, 30, 36, 48]))

    def dims() -> tuple[int, ...]:
        left, found = total, []
        for _ in range(draw(st.integers(0, 3))):
            found.append(draw(st.sampled_from([each for each in range(1, left + 1) if left % each == 0])))
            left //= found[-1]
        return tuple(draw(st.permutations([*found, left])))

    return dims(), dims()


@pytest.mark.slow
@given(shapes(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_view_covers_the_same_elements(drawn, data):
    dims, view = drawn
    chunk, blocks = data.draw(st.one_of(boxes(dims), st.sampled_from(chunks_of(dims))))
    found = symbolic_sets.viewed(symbolic_sets.of_chunk(chunk, dims, blocks), view)
    for block in range(blocks):
        wanted = index_sets.of_chunk(chunk, dims, block).reshape(view)
        assert not (wanted & ~mask_of((found,), view, block)).any(), block


@given(shapes(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_run_is_exact_in_each_view_in_which_it_is_a_box(drawn, data):
    dims, view = drawn
    chunk, blocks = data.draw(st.sampled_from([each for each in chunks_of(dims) if isinstance(each[0], BoxChunk)]))
    reshaped = required(tensor("y", dims, "reshape"), 0, tensor("x", view), chunk)
    found = symbolic_sets.viewed(symbolic_sets.of_chunk(chunk, dims, blocks), view)
    assert symbolic_sets.contained((found,), symbolic_sets.of_chunk(reshaped, view, blocks))
    if reshaped.size == chunk.size:
        for block in range(blocks):
            wanted = index_sets.of_chunk(chunk, dims, block).reshape(view)
            np.testing.assert_array_equal(mask_of((found,), view, block), wanted)


@pytest.mark.slow
@given(shapes(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_reshape_keeps_the_elements_and_takes_its_own_dims_where_they_can_say_it(drawn, data):
    dims, view = drawn
    chunk, blocks = data.draw(st.one_of(boxes(dims), st.sampled_from(chunks_of(dims))))
    found = symbolic_sets.reshaped(symbolic_sets.of_chunk(chunk, dims, blocks), view)
    for block in range(blocks):
        wanted = index_sets.of_chunk(chunk, dims, block)
        np.testing.assert_array_equal(mask_of((found,), dims, block), wanted)
    asked = required(tensor("y", dims, "reshape"), 0, tensor("x", view), chunk)
    if isinstance(chunk, BoxChunk) and asked.size == chunk.size and chunk in [each for each, _ in chunks_of(dims)]:
        assert found.view == view


def tensor(name: str, dims: tuple[int, ...], opcode: str = "parameter") -> HloInstruction:
    return HloInstruction(
        name=name, opcode=opcode, dtype="f32", dims=dims, operands=("x",) if opcode == "reshape" else ()
    )


@st.composite
def chains(draw: st.DrawFn) -> HloModule:
    """x0, and what is read of it through a few reshapes and others."""
    dims, _ = draw(shapes())
    found = [tensor("x0", dims)]
    for number in range(1, draw(st.integers(2, 6))):
        before = found[-1].dims
        opcode = draw(st.sampled_from(["reshape", "reshape", "transpose", "broadcast", "reduce", "tanh"]))
        attributes: dict[str, tuple[int, ...]] = {}
        if opcode == "reshape":
            total, after = math.prod(before), []
            for _ in range(draw(st.integers(0, 3))):
                after.append(draw(st.sampled_from([each for each in range(1, total + 1) if total % each == 0])))
                total //= after[-1]
            dims = (*after, total)
        elif opcode == "transpose":
            order = tuple(draw(st.permutations(range(len(before)))))
            dims, attributes = tuple(before[at] for at in order), {"dimensions": order}
        elif opcode == "broadcast":
            at = draw(st.integers(0, len(before)))
            dims = (*before[:at], draw(st.integers(1, 4)), *before[at:])
            attributes = {"dimensions": tuple(place for place in range(len(dims)) if place != at)}
        elif opcode == "reduce" and before:
            at = draw(st.integers(0, len(before) - 1))
            dims, attributes = (*before[:at], *before[at + 1 :]), {"dimensions": (at,)}
        else:
            opcode, dims = "tanh", before
        found.append(
            HloInstruction(
                name=f"x{number}",
                opcode=opcode,
                dtype="f32",
                dims=dims,
                operands=(found[-1].name,),
                attributes=frozen(attributes),
            )
        )
    return HloModule(name="chain", instructions=tuple(found), parameters=("x0",), outputs=(found[-1].name,))


@pytest.mark.slow
@given(chains(), st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_read_through_a_chain_lies_in_what_the_planner_requires(module, data):
    chunk, blocks = data.draw(st.sampled_from(chunks_of(module[module.outputs[0]].dims)))
    follow(module, chunk, blocks)


@pytest.mark.parametrize(
    ("chain", "parts"),
    [
        # Between the first dims and the last ones alone, no product of leading ones agrees.
        (((36, 3), (6, 2, 3, 3), (6, 1, 3, 6)), (1, 1, 3, 6)),
        (((8, 3), (4, 2, 1, 3), (4, 6)), (1, 6)),
        # Of the dims between, the first two cannot say what is read, and the last two can.
        (((8, 3, 15, 8), (8, 3, 5, 3, 8), (4, 6, 5, 4, 6)), (1, 6, 1, 4, 6)),
    ],
)
def test_a_dimension_that_was_cut_on_the_way_stays_cut(chain, parts):
    names = tuple(f"x{number}" for number in range(len(chain)))
    found = [
        dataclasses.replace(tensor(name, dims, "reshape" if at else "parameter"), operands=names[at - 1 : at])
        for at, (name, dims) in enumerate(zip(names, chain, strict=True))
    ]
    module = HloModule(name="chain", instructions=tuple(found), parameters=("x0",), outputs=(names[-1],))
    for chunk, blocks in [*chunks_of(chain[-1]), (boxed(chain[-1], parts), math.prod(parts))]:
        follow(module, chunk, blocks)


def follow(module: HloModule, chunk: Chunk, blocks: int) -> None:
    last = module[module.outputs[0]]
    found: Elements = (symbolic_sets.of_chunk(chunk, last.dims, blocks),)
    for user in reversed(module.instructions[1:]):
        operand = module[user.operands[0]]
        found, chunk = symbolic_reads.read(module, user, 0, found), required(user, 0, operand, chunk)
        assert symbolic_sets.contained(found, symbolic_sets.of_chunk(chunk, operand.dims, blocks)), user


# --- union and containment ------------------------------------------------------------------------------


@given(DIMS, st.data())
@MANY
def test_a_union_covers_its_members_even_where_they_are_many(dims, data):
    blocks = data.draw(st.integers(1, 20))
    count = data.draw(st.sampled_from([2, 3, 2 * symbolic_sets.MOST]))
    drawn = [data.draw(boxes(dims))[0] for _ in range(count)]
    found: Elements = ()
    for each in drawn:
        found = symbolic_sets.union(found, (symbolic_sets.of_chunk(each, dims, blocks),), dims)
    assert len(found) <= symbolic_sets.MOST
    for block in range(blocks):
        wanted = np.logical_or.reduce([index_sets.of_chunk(each, dims, block) for each in drawn])
        got = mask_of(found, dims, block)
        assert not (wanted & ~got).any()
        if count < symbolic_sets.MOST:
            np.testing.assert_array_equal(got, wanted)


@given(DIMS, st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_contained_is_contained(dims, data):
    (inner, blocks), (outer, _) = data.draw(boxes(dims)), data.draw(boxes(dims))
    mine, yours = (symbolic_sets.of_chunk(each, dims, blocks) for each in (inner, outer))
    contained = all(
        not (index_sets.of_chunk(inner, dims, block) & ~index_sets.of_chunk(outer, dims, block)).any()
        for block in range(blocks)
    )
    assert symbolic_sets.contained((mine,), mine)
    assert contained or not symbolic_sets.contained((mine,), yours)


@given(DIMS, st.data())
@settings(max_examples=300, deadline=None)
def test_of_schedules_what_is_not_shown_to_be_contained_is_not(dims, data):
    (inner, blocks), (outer, others) = (data.draw(st.sampled_from(chunks_of(dims))) for _ in range(2))
    blocks = max(blocks, others)
    mine, yours = (symbolic_sets.of_chunk(each, dims, blocks) for each in (inner, outer))
    contained = all(
        not (index_sets.of_chunk(inner, dims, block) & ~index_sets.of_chunk(outer, dims, block)).any()
        for block in range(blocks)
    )
    if isinstance(inner, BoxChunk) and isinstance(outer, BoxChunk):
        assert symbolic_sets.contained((mine,), yours) == contained
    else:
        assert contained or not symbolic_sets.contained((mine,), yours)
