"""Large reductions in two steps: what they are split into, and that they still compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond.model.nouns import Rejection
from fusiond_stitching.analysis import planner, split_reductions, traffic, verify
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer

from . import oracle
from .checking import Batch
from .policies import LIMITS, MORE

SMS = 16
ROWS = np.random.default_rng(7).normal(size=(1024, 96)).astype(np.float32)


def graph(function, *arrays):
    text = oracle.lowered(function, *arrays)
    return text, importer.read(text, "large")


def steps(module):
    return sorted(each.name for each in module.instructions if each.name.endswith("~partial"))


@pytest.mark.parametrize(
    ("function", "partial"),
    [(lambda x: x.sum(0), (64, 96)), (lambda x: x.max(), None), (lambda x: x.reshape(32, 32, 96).sum((0, 1)), None)],
)
def test_a_large_reduce_becomes_two(function, partial):
    _, module = graph(function, ROWS)
    after = split_reductions.reductions(module, SMS)
    (name,) = steps(after)
    if partial is not None:
        assert after[name].dims == partial
    assert after.outputs == module.outputs
    reduced = [each for each in after.instructions if each.opcode == "reduce"]
    assert len(reduced) == 2
    source = after[after[name].operands[0]]
    assert source.elements == ROWS.size
    assert source.elements // after[name].elements >= split_reductions.LEAST_RUN


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:8].sum(0),  # too small to matter
        lambda x: x.sum(1),  # a row each: enough of them
        lambda x: jnp.argmax(x, 0),  # several values
        lambda x: x[:1021].sum(0),  # a prime
    ],
)
def test_what_is_small_wide_or_has_no_divisors_stays_whole(function):
    _, module = graph(function, ROWS)
    after = split_reductions.reductions(module, SMS)
    assert steps(after) == []
    assert after is module


@pytest.mark.slow
def test_both_steps_compute_what_one_did(runner):
    def function(x):
        p = jax.nn.softmax(x, -1)
        return p.sum(0), (p * x).sum(), x.max(0), x.min(), jnp.prod(1 + x / 1e5), (x > 3).any(0), (x > -9).all()

    text, module = graph(function, ROWS)
    wanted = oracle.run(text, [ROWS])
    here = Batch(text, module, (ROWS,), tuple(f"out_{at}" for at in range(len(wanted))), tuple(wanted))
    after = split_reductions.reductions(module, SMS)
    assert len(steps(after)) == 5
    for policy in (FusionPolicy(**MORE, packing=True), FusionPolicy(**MORE, packing=True, barriers=True, threads=64)):
        planned = planner.plan(after, policy, LIMITS)
        assert planned.problems == ()
        assert verify.problems(after, planned.plan) == ()
        program = emit.program(after, planned.plan)
        assert not isinstance(program, Rejection)
        got = runner.run(program, here.given())
        assert here.differences(here.program(planner.plan(module, policy, LIMITS).plan), got) == []


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_whole_numbers_are_equal(dtype, runner):
    array = (np.arange(1024 * 80) * 2654435761 % 251).astype(dtype).reshape(1024, 80)

    def function(x):
        return x.max(0), x.min(0), jnp.sum(x, 0, dtype=x.dtype)

    text, module = graph(function, array)
    wanted = oracle.run(text, [array])
    after = split_reductions.reductions(module, SMS)
    assert len(steps(after)) == 3
    here = Batch(text, after, (array,), ("max", "min", "sum"), tuple(wanted))
    here.check(runner, planner.plan(after, FusionPolicy(**MORE, packing=True), LIMITS).plan)


def test_minus_zero_survives_a_split_sum(runner):
    zeros = np.full((1024, 80), -0.0, np.float32)
    text, module = graph(lambda x: jax.lax.reduce(x, np.float32(-0.0), jax.lax.add, (0,)), zeros)
    after = split_reductions.reductions(module, SMS)
    assert len(steps(after)) == 1
    program = emit.program(after, planner.plan(after, FusionPolicy(**MORE), LIMITS).plan)
    (got,) = runner.run(program, {"in_0": zeros}).values()
    assert np.array_equal(np.signbit(got), np.signbit(oracle.run(text, [zeros])[0]))


# --- outputs that run earlier ---------------------------------------------------------------------------


def norm_step(x, g, b, y):
    def loss(g, b, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return ((scaled * g + b - y) ** 2).mean()

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(g, b, x)


def test_layer_norm_and_its_gradients_are_one_pass_over_the_data_and_a_small_kernel():
    """Forward, loss, and three gradients: every large tensor is read once and written once, in two launches."""
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((8192, 1024), (1024,), (1024,), (8192, 1024))]
    module = split_reductions.reductions(importer.read(oracle.lowered(norm_step, *shapes), "norm"), 132)
    policy = FusionPolicy(**MORE, packing=True, shared_limit=48 << 10, multiprocessors=132)
    late = planner.plan(module, policy)
    early = planner.plan(
        module, FusionPolicy(**MORE, packing=True, shared_limit=48 << 10, multiprocessors=132, lift=True)
    )
    assert early.problems == ()
    assert len(early.plan.kernels) <= len(late.plan.kernels) == 2
    assert traffic.moved(module, early.plan) < 0.6 * traffic.moved(module, late.plan)
    assert traffic.moved(module, early.plan) < 1.15 * traffic.ideal_bytes(module)


def test_what_is_lifted_computes_the_same(runner):
    rng = np.random.default_rng(3)
    shapes = ((1024, 128), (128,), (128,), (1024, 128))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    text, whole = graph(norm_step, *arrays)
    module = split_reductions.reductions(whole, SMS)
    wanted = oracle.run(text, arrays)
    here = Batch(text, module, tuple(arrays), ("loss", "dg", "db", "dx"), tuple(wanted))
    plain = planner.plan(module, FusionPolicy(**MORE, packing=True, grain=2048, multiprocessors=SMS), LIMITS)
    lifted = planner.plan(
        module, FusionPolicy(**MORE, packing=True, grain=2048, multiprocessors=SMS, lift=True), LIMITS
    )
    assert traffic.moved(module, lifted.plan) < traffic.moved(module, plain.plan)
    assert verify.problems(module, lifted.plan) == ()
    here.check(runner, lifted.plan)


@pytest.mark.parametrize(
    ("images", "dims", "parts"), [(8, (1, 2, 3), None), (8, (0, 1, 2, 3), (8, 64)), (2, (0, 1, 2, 3), (16, 64))]
)
def test_columns_of_groups_are_summed_image_by_image(
    images: int, dims: tuple[int, ...], parts: tuple[int, ...] | None
) -> None:
    """Where there are groups enough for the device: what sums their columns goes with them, and is split so or not."""

    def function(x):
        wide = x.reshape(images, 16, 16, 16, 4, 16)
        return wide.sum((1, 2, 3, 5)), x.reshape(images, 16, 16, 16, 64).sum(dims)

    _, module = graph(function, np.ones((images, 16, 16, 16, 64), np.float32))
    after = split_reductions.reductions(module, SMS)
    found = [after[name].dims for name in steps(after)]
    if parts is None:
        assert found == []
    elif images == 8:
        assert found == [parts]
    else:
        assert parts in found
