"""Index sets against the sparsity of Jacobians that JAX computes, and chunk propagation against index sets."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import schedule
from fusiond_stitching.analysis.plan import FlatChunk
from fusiond_stitching.analysis.propagate import required
from fusiond_stitching.frontend import importer

from . import index_sets, oracle

EXACT = {
    "elementwise": ((7,), lambda x: x * 3.0 + x),
    "broadcast": ((3, 2), lambda x: lax.broadcast_in_dim(x, (3, 4, 2), (0, 2)) * 2.0),
    "broadcast, transposed": ((3, 2), lambda x: lax.broadcast_in_dim(x.T, (2, 5, 3), (0, 2)) * 2.0),
    "scalar": ((), lambda x: jnp.broadcast_to(x, (2, 3)) * 2.0),
    "reshape": ((4, 6), lambda x: x.reshape(3, 8)),
    "transpose": ((2, 3, 5), lambda x: jnp.transpose(x, (2, 0, 1))),
    "slice": ((9, 7), lambda x: x[1:8:3, 2:7:2]),
    "reverse": ((5, 3), lambda x: x[::-1, :]),
    "pad": ((4, 3), lambda x: lax.pad(x, np.float32(0), ((1, 2, 1), (-1, 3, 0)))),
    "pad, interior cut": ((6,), lambda x: lax.pad(x, np.float32(0), ((-3, -2, 2),))),
    "concatenate": ((3, 4), lambda x: jnp.concatenate([x[:, :2] * 2.0, x, x[:, 3:]], axis=1)),
    "reduce": ((3, 4, 5), lambda x: x.sum(axis=(0, 2))),
    "softmax-like": ((3, 5), lambda x: x / x.sum(axis=1, keepdims=True)),
    "dot": ((3, 4), lambda x: x @ (1.0 + jnp.arange(8, dtype=jnp.float32).reshape(4, 2))),
    "batched dot": ((2, 3, 4), lambda x: jnp.einsum("bij,bkj->bik", x, x + 1.0)),
    "dot, rhs": ((4, 5), lambda x: jnp.einsum("ij,jk->ki", jnp.ones((3, 4), jnp.float32), x)),
    "dot over two dims": ((2, 3, 4), lambda x: lax.dot_general(x, x + 1.0, (((0, 2), (0, 2)), ((), ())))),
}
"""Functions of positive numbers whose Jacobian is zero nowhere but where nothing is read."""

COVERED = {
    "dynamic-slice": ((6, 5), lambda x: lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(1)), (3, 5))),
    "dynamic-update-slice": ((6, 5), lambda x: lax.dynamic_update_slice(x, x[:2, :] * 2.0, (jnp.int32(3), 0))),
    "gather of rows": ((6, 5), lambda x: x[jnp.array([4, 1, 4])]),
    "gather of elements": ((6, 5), lambda x: x[jnp.array([4, 1]), jnp.array([0, 3])]),
    "gather along an axis": ((6, 5), lambda x: jnp.take_along_axis(x, jnp.array([[3], [0]] * 3), axis=1)),
    "scatter of rows": ((6, 5), lambda x: x.at[jnp.array([4, 1])].add(x[:2] * 2.0)),
    "scatter of elements": ((6,), lambda x: (x * 2.0).at[jnp.array([4, 1])].set(x[:2] * 3.0)),
}
"""Functions that read through indices: what may be read covers what is."""


def module_of(dims, function):
    return importer.read(oracle.lowered(function, jax.ShapeDtypeStruct(dims, jnp.float32)), "test.hlo")


def read_by(module, mask):
    """What the first output's elements `mask` need of the only parameter."""
    needed = {module.outputs[0]: mask}
    for instruction in reversed(module.instructions):
        if instruction.name not in needed:
            continue
        for place, operand in enumerate(instruction.operands):
            more = index_sets.read(module, instruction, place, needed[instruction.name])
            assert more.shape == module[operand].dims
            needed[operand] = needed.get(operand, np.zeros(module[operand].dims, bool)) | more
    return needed[module.parameters[0]]


def sparsity(dims, function):
    x = np.random.default_rng(1).uniform(0.5, 1.5, dims).astype(np.float32)
    return np.asarray(jax.jacobian(function)(x)) != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *COVERED])
@pytest.mark.sampled(8)
def test_what_is_read_is_where_the_jacobian_is_not_zero(name):
    dims, function = (EXACT | COVERED)[name]
    module = module_of(dims, function)
    wanted = sparsity(dims, function)
    result = module[module.outputs[0]].dims
    wanted = wanted.reshape(*result, *dims)
    for index in np.ndindex(*result):
        mask = np.zeros(result, bool)
        mask[index] = True
        found = read_by(module, mask).reshape(dims)
        if name in EXACT:
            np.testing.assert_array_equal(found, wanted[index], err_msg=f"element {index}")
        else:
            assert (found | ~wanted[index]).all(), f"element {index}"


@pytest.mark.parametrize("name", [*EXACT, *COVERED])
def test_required_chunks_cover_the_index_sets(name):
    """`propagate.required` may ask for more than is read, never for less: every schedule, every block."""
    module = module_of(*(EXACT | COVERED)[name])
    tried = 0
    for instruction in module.instructions:
        for place, operand in enumerate(module.operands(instruction)):
            flats = [schedule.flat(instruction.elements, size) for size in (1, 3, 8)]
            for each in itertools.chain(schedule.space(instruction.dims, middle=True), flats):
                chunk = each.chunk(instruction.dims)
                asked = required(instruction, place, operand, chunk)
                for block in range(each.blocks(instruction.dims)):
                    mine = index_sets.of_chunk(chunk, instruction.dims, block)
                    needed = index_sets.read(module, instruction, place, mine)
                    given = index_sets.of_chunk(asked, operand.dims, block)
                    assert not (needed & ~given).any(), f"{instruction} operand {place}, {each}, block {block}"
                    tried += 1
    assert tried > 10


@pytest.mark.parametrize("dims", [(), (1,), (7,), (3, 4), (2, 3, 5)])
def test_chunks_of_a_schedule_cover_a_tensor_once(dims):
    for each in schedule.space(dims, middle=True):
        chunk = each.chunk(dims)
        counts = sum(index_sets.of_chunk(chunk, dims, block).astype(int) for block in range(each.blocks(dims)))
        assert (counts == 1).all(), each
    for size in (1, 2, 5, 100):
        flat = FlatChunk(size, -(-int(np.prod(dims, dtype=int)) // size))
        counts = sum(index_sets.of_chunk(flat, dims, block).astype(int) for block in range(flat.parts))
        assert (counts == 1).all()
