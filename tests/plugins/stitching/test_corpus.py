"""The functions of the corpus at small sizes: against XLA on the processor."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.corpus import dims, functions
from fusiond_stitching.analysis import forms, planner, verify
from fusiond_stitching.codegen import emit, tolerances
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES

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
