"""Modules that jax makes, over all operations, against XLA on the processor: one kernel per instruction."""

import dataclasses
from pathlib import Path

import pytest

from fusiond.build import gxx
from fusiond_stitching.analysis import planner
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer

from . import handmade
from .cases import cases
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module as catalogue

GROUPS = sorted({each.group for each in cases().values()})


slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.sampled(8)
def test_one_kernel_per_instruction(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.unfused(batch.module))


@slow
@pytest.mark.parametrize("group", ["indexing", "movement", "reductions"])
def test_everything_inlined_into_the_outputs(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.inlined(batch.module))


STITCHED = [
    ("indexing", "tiny"),
    pytest.param("reductions", "grid", marks=slow),
    *(pytest.param(group, policy, marks=slow) for group, policy in zip(GROUPS, ["tiny", "grid"] * 4, strict=False)),
    *(pytest.param(group, "paper", marks=slow) for group in ("movement", "reductions", "wide")),
    *(pytest.param(group, "blocks", marks=slow) for group in ("half", "indexing", "dots")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "policy"), STITCHED)
@pytest.mark.sampled(12)
def test_stitched(group, policy, runner):
    batch = Batch.of(group)
    planned = planner.plan(batch.module, POLICIES[policy], LIMITS)
    assert planned.problems == ()
    for seed in (0, 1):
        batch.check(runner, planned.plan, seed=seed)


def speech():
    return catalogue("speech_fwd")


@pytest.mark.slow
@pytest.mark.parametrize(("made", "policy"), [(lambda: Batch.alone("slices"), "tiny"), (speech, "grid")])
def test_a_grid_smaller_than_its_phases(made, policy, runner):
    """The blocks of a cooperative launch take several turns; the shared arena is used again in each."""
    batch = made()
    small = dataclasses.replace(LIMITS, multiprocessors=1, blocks_per_sm=2)
    plan = planner.plan(batch.module, POLICIES[policy], small).plan
    turns = [phase.blocks > kernel.grid for kernel in plan.kernels for phase in kernel.phases if kernel.cooperative]
    assert any(turns)
    for seed in (0, 1):
        batch.check(runner, plan, seed=seed)


def test_more_elements_than_an_int_counts():
    text = """\
HloModule large
ENTRY main {
  x = f32[65536]{0} parameter(0)
  a = f32[65536,65536]{1,0} broadcast(x), dimensions={0}
  b = f32[65536,65536]{1,0} broadcast(x), dimensions={1}
  ROOT c = f32[65536,65536]{1,0} add(a, b)
}
"""
    module = importer.read(text, "large.hlo")
    program = emit.program(module, handmade.unfused(module, threads=256))
    assert isinstance(gxx.build(program.sources[0]), Path)
    source = program.sources[0].text
    assert "const long long block = blockIdx.x;" in source
    assert "int i" not in source.replace("long long", "")
