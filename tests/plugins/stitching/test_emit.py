"""Programs of plans: the launches, their order and what is timed."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest

from fusiond.model import Rejection
from fusiond.program import Launch
from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    ChunkSchedule,
    Global,
    LaneExchange,
    LibraryCall,
    Phase,
    Reduction,
    ScheduleKind,
    Shared,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
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
def test_equal_kernels_share_an_entry():
    batch = module("lstm_step")
    program = batch.program(handmade.unfused(batch.module))
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert len({step.entry for step in launches}) < len(launches) / 3
    assert len({step.name for step in launches}) == len(launches)
    assert tuple(dict.fromkeys(step.entry for step in launches)) == program.sources[0].entries


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

SOFTMAX = """\
HloModule softmax

greatest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[12,40] parameter(0)
  w = f32[40,3] parameter(1)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[12] reduce(x, low), dimensions={1}, to_apply=greatest
  ms = f32[12,40] broadcast(m), dimensions={0}
  d = f32[12,40] subtract(x, ms)
  e = f32[12,40] exponential(d)
  s = f32[12] reduce(e, zero), dimensions={1}, to_apply=sum
  ss = f32[12,40] broadcast(s), dimensions={0}
  p = f32[12,40] divide(e, ss)
  ROOT y = f32[12,3] dot(p, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def softmax_plan(here) -> StitchingPlan:
    """Three rows a block: the maximum by shuffles, the sum through shared memory, exp kept in between."""
    rows = ChunkSchedule(0, 4, ScheduleKind.ROW)
    one, two = rows.chunk((12,)), rows.chunk((12, 40))
    stages = (
        Stage(
            chunk=one, dims=(12,), results=(StageResult("m", (Shared(0, 16),)),),
            reduction=Reduction(lanes=16, exchange=LaneExchange.WARP),
        ),
        Stage(chunk=two, dims=(12, 40), results=(StageResult("e", (Shared(16, 480),)),), barrier=True),
        Stage(
            chunk=one, dims=(12,), results=(StageResult("s", (Shared(0, 16),)),), barrier=True,
            reduction=Reduction(lanes=16, exchange=LaneExchange.SHARED, workspace=Shared(496, 256)),
        ),
        Stage(
            chunk=two, dims=(12, 40), results=(StageResult("p", (Global(here.buffer_of("p")),)),), barrier=True
        ),
    )  # fmt: skip
    program = BlockProgram(name="softmax", blocks=4, stages=stages, root="p", schedule=rows, shared_bytes=752)
    kernel = StitchedKernel(name="k0", phases=(Phase(programs=(program,)),), threads=64, grid=4, shared_bytes=752)
    return StitchingPlan(steps=(kernel, LibraryCall(instruction="y")))


@pytest.mark.slow
def test_the_text_of_a_softmax(runner):
    """FUSIOND_UPDATE_GOLDEN=1 writes the file instead."""
    here = importer.read(SOFTMAX, "softmax.hlo")
    program = emit.program(here, softmax_plan(here))
    path = Path(__file__).parent / "golden" / "softmax.cu"
    if os.environ.get("FUSIOND_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(program.sources[0].text)
    assert program.sources[0].text == path.read_text()
    random = np.random.default_rng(2)
    x, w = random.normal(size=(12, 40)).astype(np.float32), random.normal(size=(40, 3)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    wanted = (e / e.sum(axis=1, keepdims=True)) @ w
    for seed in (0, 1):
        got = runner.run(program, {"in_0": x, "in_1": w}, seed=seed)
        np.testing.assert_allclose(got["out_0"].reshape(12, 3), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "name"), [("f32", "float32"), ("pred", "bool"), ("bf16", "bfloat16"), ("s8", "int8")]
)
def test_buffers_have_the_types_of_the_module(dtype, name):
    text = f"HloModule one\nENTRY main {{\n  x = {dtype}[3] parameter(0)\n  ROOT y = {dtype}[1,3] reshape(x)\n}}\n"
    here = importer.read(text, "one.hlo")
    program = emit.program(here, handmade.unfused(here))
    assert {each.dtype for each in program.buffers} == {name}
    assert program.buffer("in_0").fill.kind == ("uniform" if dtype in ("f32", "bf16") else "integers")


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
