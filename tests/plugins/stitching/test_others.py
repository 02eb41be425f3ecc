"""JAX's loops and stencils: short loops are written out, others are one launch or a boundary, no code is endless."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond.model.nouns import Rejection
from fusiond_stitching.analysis import planner, policy, verify
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer

from . import oracle
from .cases import rand
from .checking import Batch
from .policies import LIMITS, MORE

# --- stencils -------------------------------------------------------------------------------------------


def stencil(x, times):
    for _ in range(times):
        x = x + 0.1 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) - 4 * x)
    return x


def test_a_stencil_applied_often_does_not_make_endless_code():
    """Each round reads the one before at nine places: written into one kernel, eight rounds are 9^8 of them."""
    text = oracle.lowered(lambda x: stencil(x, 8), rand(16, 16))
    module = importer.read(text, "stencil")
    for rules in (policy.xla_rules(), policy.FusionPolicy(**MORE, packing=True)):
        planned = planner.plan(module, rules, LIMITS)
        assert verify.problems(module, planned.plan) == ()
        made = emit.program(module, planned.plan)
        assert not isinstance(made, Rejection)
        assert sum(len(each.text) for each in made.sources) < 200_000


# --- loops that are written out -------------------------------------------------------------------------

LOOP = """HloModule loop

body {{ s = (s32[], {kind}[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = {kind}[7] get-tuple-element(s), index=1
  step = s32[] constant({step})
  j = s32[] add(i, step)
  w = {kind}[7] {work}
  ROOT t = (s32[], {kind}[7]) tuple(j, w)
}}

test {{ s = (s32[], {kind}[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({limit})
  ROOT c = pred[] compare(i, n), direction={direction}
}}

ENTRY main {{
  x = {kind}[7] parameter(0)
  first = s32[] {first}
  start = (s32[], {kind}[7]) tuple(first, x)
  run = (s32[], {kind}[7]) while(start), condition=test, body=body
  ROOT last = {kind}[7] get-tuple-element(run), index=1
}}
"""
SHORT = {"kind": "u32", "step": 1, "limit": 5, "direction": "LT", "work": "multiply(v, v)", "first": "constant(2)"}


def test_random_bits_are_written_out_where_jax_has_a_loop_for_them(runner):
    """As it lowers them for a processor; for a GPU it writes them out itself."""
    function = lambda x, key: jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0)  # noqa: E731
    inputs = (rand(5, 7), np.array([1, 2], np.uint32))
    text = oracle.lowered(function, *inputs)
    assert " while(" in text
    module = importer.read(text, "dropout")
    assert not module.foreign
    planned = planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS)
    assert len(planned.plan.kernels) == 1
    Batch(text, module, inputs, ("kept",), tuple(oracle.run(text, inputs))).check(runner, planned.plan)


@pytest.mark.parametrize(("first", "rounds"), [(2, 3), (4, 1), (5, 0), (9, 0), (-4, 9)])
def test_a_short_loop_over_whole_numbers_is_written_out(first, rounds, runner):
    text = LOOP.format(**{**SHORT, "first": f"constant({first})"})
    module = importer.read(text, "loop.hlo")
    assert not module.foreign
    assert not module.frames
    assert sum(each.opcode == "multiply" for each in module.instructions) == rounds
    inputs = (np.arange(3, 10, dtype=np.uint32),)
    batch = Batch(text, module, inputs, ("last",), tuple(oracle.run(text, inputs)))
    batch.check(runner, planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS).plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"kind": "f32"}, {"limit": 99}, {"step": 2}, {"direction": "LE"}, {"direction": "NE"},
        {"step": -3, "limit": -9, "direction": "GT", "first": "constant(200)"},
        {"work": "dynamic-slice(v, i), dynamic_slice_sizes={7}"},
    ],
    ids=str,
)  # fmt: skip
def test_any_other_loop_of_so_many_trips_is_one_launch(change, runner):
    text = LOOP.format(**{**SHORT, **change})
    module = importer.read(text, "loop.hlo")
    assert (module.foreign, module.frames, len(module.scans)) == ({}, (), 1)
    inputs = (np.arange(3, 10).astype(np.float32 if "kind" in change else np.uint32),)
    batch = Batch(text, module, inputs, ("last",), tuple(oracle.run(text, inputs)))
    batch.check(runner, planner.plan(module, policy.FusionPolicy(**MORE, packing=True), LIMITS).plan)


@pytest.mark.parametrize(
    "change",
    [
        {"first": "add(nothing, nothing)"},
        {"limit": 1_000_000, "kind": "f32"},
        {"first": "constant(9)", "kind": "f32"},
        {"step": 0, "kind": "f32"},
    ],
    ids=str,
)
def test_a_loop_of_unknown_length_is_a_boundary(change):
    """As is one that is too long to be followed, or not run at all."""
    text = LOOP.format(**{**SHORT, **change}).replace("  first = ", "  nothing = s32[] parameter(1)\n  first = ")
    module = importer.read(text, "loop.hlo")
    assert {module[each].opcode for each in module.foreign} == {"while"}
    assert {each.name for each in module.frames} == {"body", "test"}
