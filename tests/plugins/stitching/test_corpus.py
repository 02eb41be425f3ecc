"""The functions of the corpus at small sizes: against XLA on the processor."""

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.corpus import dims, functions
from fusiond.build import gxx
from fusiond_stitching.analysis import forms, planner, verify
from fusiond_stitching.codegen import emit, tolerances
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, oracle
from .cases import cases
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module as catalogue

NEEDED = "the function is of a library: pip install flax optax equinox"


def inputs(module: HloModule) -> tuple[np.ndarray, ...]:
    """Positive floats (optimizers take roots of what they hold), and whole numbers that are indices where they are
    read so."""
    random = np.random.default_rng(3)
    found = []
    for name in module.parameters:
        each = module[name]
        kind = np.dtype(ml_dtypes.bfloat16 if each.dtype == "bf16" else emit.TYPES[each.dtype].program)
        if emit.TYPES[each.dtype].kind == "float":
            found.append(random.uniform(0.1, 1.0, each.dims).astype(kind))
        else:
            fill = fills.default(module, name)
            found.append(random.integers(int(fill.low), int(fill.high), each.dims, endpoint=True).astype(kind))
    return tuple(found)


@pytest.mark.slow
@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", functions.FUNCTIONS)
def test_what_it_computes(name: str, runner: Any) -> None:
    try:
        text = functions.text(name, dims.SMALL)
    except ModuleNotFoundError as problem:
        pytest.skip(f"{problem}: {NEEDED}")
    asked = importer.read(text, name)
    module = forms.forms(asked, LIMITS.multiprocessors)(forms.SPLIT)
    plan = planner.plan(module, POLICIES["grid"], LIMITS).plan
    assert verify.problems(module, plan) == ()
    if asked.foreign:
        pytest.skip(f"planned and proved; a library's results are filled, so there is nothing to compare: {name}")
    given = inputs(asked)
    names = tuple(f"{name}[{place}]" for place in range(len(asked.outputs)))
    batch = Batch(text, module, given, names, tuple(oracle.run(text, given)))
    program = batch.program(plan)
    near = set(tolerances.near_ties(asked))
    got = runner.run(program, batch.given())
    differences = batch.differences(program, got)
    kept = [each for each in differences if f"out_{each.split('[')[1].split(']')[0]}" not in near]
    if not kept:
        return
    # Where large values cancel, XLA's own rounding is what there is to be measured by.
    exact = oracle.run(text.replace("f32[", "f64["), [each.astype(np.float64) if each.dtype == np.float32 else each
                                                      for each in given])  # fmt: skip
    for said in kept:
        place = int(said.split("[")[1].split("]")[0])
        truth = exact[place].reshape(-1)
        ours, theirs = (abs(each.reshape(-1) - truth).max() for each in (got[f"out_{place}"], batch.wanted[place]))
        assert ours <= 2 * theirs, said


# --- modules that jax makes, over all operations, against XLA on the processor --------------------------


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
