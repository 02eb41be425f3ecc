"""Programs of plans: the launches, their order and what is timed."""

import jax
import numpy as np
import pytest

from fusiond.model.nouns import Rejection
from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.codegen import emit, tolerances
from fusiond_stitching.frontend import importer

from . import handmade, oracle
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")


def stitched(name: str = "lr_step", policy: str = "paper"):
    batch = module(name)
    return batch, batch.program(planner.plan(batch.module, POLICIES[policy], LIMITS).plan)


# --- what is timed --------------------------------------------------------------------------------------


def test_library_calls_are_not_counted_but_in_the_whole():
    _, program = stitched()
    library = [step for step in program.steps if emit.is_library(step)]
    assert len(library) == 2
    assert [step for step in program.steps if not step.counted] == library
    whole = emit.timed_whole(program)
    assert all(step.counted for step in whole.steps)
    assert [step.name for step in whole.steps] == [step.name for step in program.steps]
    assert whole.key != program.key


# --- launches -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_text_is_the_same_every_time():
    batch = module("speech_fwd")
    plan = planner.plan(batch.module, POLICIES["grid"], LIMITS).plan
    assert batch.program(plan) == batch.program(plan)


def test_a_boundary_is_never_inlined():
    """A plan that leaves the call out has no code for what reads its result."""
    text = """\
HloModule sorts
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[9] parameter(0)
  y = f32[9] negate(x)
  s = f32[9] sort(y), dimensions={0}, to_apply=less
  ROOT z = f32[9] negate(s)
}
"""
    here = importer.read(text, "sorts.hlo")
    plan = handmade.unfused(here)
    assert not isinstance(emit.program(here, plan), Rejection)
    made = emit.program(here, StitchingPlan(steps=plan.kernels))
    assert isinstance(made, Rejection)
    assert made.rule == "no_code"
    assert "sort" in made.detail


def test_results_that_near_ties_decide_are_named():
    """A comparison behind a sum of floats; not one of inputs, of whole numbers, or behind a boundary's stand-in."""
    text = """\
HloModule ties
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
count {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
ENTRY main {
  x = f32[9,5] parameter(0)
  n = s32[9,5] parameter(1)
  zero = f32[] constant(0)
  none = s32[] constant(0)
  zeros = f32[9] broadcast(zero), dimensions={}
  sum = f32[9] reduce(x, zero), dimensions={1}, to_apply=add
  summed = pred[9] compare(sum, zeros), direction=GT
  whole = s32[9] reduce(n, none), dimensions={1}, to_apply=count
  direct = pred[9,5] compare(x, x), direction=EQ
  sorted = f32[9] sort(sum), dimensions={0}, to_apply=less
  behind = pred[9] compare(sorted, zeros), direction=GT
  rounded = s32[9] convert(sum)
  ROOT r = (pred[9], s32[9], pred[9,5], pred[9], s32[9], f32[9]) tuple(summed, whole, direct, behind, rounded, sum)
}
"""
    assert tolerances.near_ties(importer.read(text, "ties.hlo")) == ("out_0", "out_4")


@pytest.mark.slow
def test_an_expression_that_explodes_is_refused():
    """Each value reads the one before it at two places: inlined, that doubles with every step."""
    lines = ["HloModule twice", "ENTRY main {", "  v0 = f32[64] parameter(0)"]
    for step in range(1, 25):
        lines += [
            f"  r{step} = f32[64] reverse(v{step - 1}), dimensions={{0}}",
            f"  s{step} = f32[1] slice(v{step - 1}), slice={{[{step}:{step + 1}]}}",
            f"  t{step} = f32[] reshape(s{step})",
            f"  b{step} = f32[64] broadcast(t{step}), dimensions={{}}",
            f"  a{step} = f32[64] add(r{step}, b{step})",
            f"  c{step} = f32[128] concatenate(a{step}, v{step - 1}), dimensions={{0}}",
            f"  {'ROOT ' if step == 24 else ''}v{step} = f32[64] slice(c{step}), slice={{[{step}:{step + 64}]}}",
        ]
    here = importer.read("\n".join([*lines, "}", ""]), "twice.hlo")
    made = emit.program(here, handmade.inlined(here))
    assert made.rule == "no_code"
    assert "too often" in made.detail


# --- what the text looks like ---------------------------------------------------------------------------


def test_the_tolerance_holds_for_long_sums_in_any_order():
    """A serial sum and a pairwise one of numbers that cancel, in float32; a wrong summand is still seen."""
    for length in (33, 1023, 4096, 100_000):
        x = np.random.default_rng(length).normal(size=(length, 64)).astype(np.float32)
        exact = x.astype(np.float64).sum(axis=0)
        serial = np.add.accumulate(x, axis=0)[-1]
        text = f"HloModule one\nENTRY main {{\n  ROOT y = f32[{length}] parameter(0)\n}}\n"
        allowed = tolerances.tolerance(importer.read(text, "one.hlo")["y"], tolerances.Precision(length, 2.0**-23))
        error = np.abs(serial - exact) / (allowed.atol + allowed.rtol * np.abs(exact))
        assert error.max() < 0.7
        assert allowed.atol < 0.02


@pytest.mark.parametrize(
    ("body", "relative"),
    [
        ("exponential(x)", True),
        ("multiply(x, x)", True),
        ("subtract(x, x)", False),
        ("add(x, x)", False),  # of numbers that may cancel
        ("log(x)", False),
    ],
)
def test_what_cannot_cancel_is_compared_by_its_own_size(body, relative):
    text = f"HloModule one\n\nENTRY main {{\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] {body}\n}}\n"
    compare = tolerances.compares(importer.read(text, "one.hlo"))["out_0"]
    assert (compare.atol < 1e-30) == relative


def test_the_probabilities_of_a_long_softmax_are_compared_by_their_own_size():
    """An absolute tolerance of 5e-4, as sums that may cancel need it, would accept anything for numbers of 3e-5."""
    text = oracle.lowered(jax.nn.softmax, jax.ShapeDtypeStruct((2, 32768), np.float32))
    compare = tolerances.compares(importer.read(text, "softmax.hlo"))["out_0"]
    assert compare.atol < 1e-30
    assert compare.rtol < 1e-3
