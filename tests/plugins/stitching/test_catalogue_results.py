"""The eight modules of the catalogue: what they compute, unfused and stitched, against XLA on the processor."""

import functools
from pathlib import Path

import numpy as np
import pytest

import fusiond_stitching
from fusiond.model.inputs.fills import fill
from fusiond_stitching.analysis import planner
from fusiond_stitching.frontend import importer

from . import handmade, oracle
from .checking import Batch
from .policies import LIMITS, POLICIES

FOLDER = Path(fusiond_stitching.__file__).parent / "modules"
NAMES = sorted(path.stem for path in FOLDER.glob("*.hlo"))


@functools.cache
def module(name: str) -> Batch:
    text = (FOLDER / f"{name}.hlo").read_text()
    read = importer.read(text, name)
    plain = Batch(text, read, (), tuple(f"out_{place}" for place, _ in enumerate(read.outputs)), ())
    program = plain.program(handmade.unfused(read))
    inputs = tuple(
        fill(program.buffer(f"in_{place}"), 1).reshape(read[parameter].dims)
        for place, parameter in enumerate(read.parameters)
    )
    return Batch(text, read, inputs, plain.names, tuple(oracle.run(text, inputs)))


def test_all_eight_are_here():
    assert len(NAMES) == 8


SMALL = ("nmt_fig3",)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in SMALL else pytest.mark.slow) for each in NAMES]
)
@pytest.mark.sampled(12)
def test_stitched_across_blocks(name, runner):
    check(name, "grid", runner)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("lr_step", "tiny"), ("w2v_step", "tiny"), ("speech_fwd", "tiny"), ("lr_step", "paper"), ("nmt_attn", "paper"),
        ("speech_step", "paper"), ("bilstm_step", "blocks"), ("speech_fwd", "blocks"),
    ],
)  # fmt: skip
def test_stitched(name, policy, runner):
    check(name, policy, runner)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w2v_step", "nmt_attn"])
def test_one_kernel_per_instruction(name, runner):
    here = module(name)
    here.check(runner, handmade.unfused(here.module))


def check(name, policy, runner):
    here = module(name)
    planned = planner.plan(here.module, POLICIES[policy], LIMITS)
    assert planned.problems == ()
    here.check(runner, planned.plan, seed=1)
    assert all(np.isfinite(each).any() for each in here.wanted)
