"""What nvcc says to the generated code: it compiles without a warning, for the oldest and a new architecture."""

import subprocess

import pytest

from fusiond_stitching.analysis import planner

from . import handmade
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module

pytestmark = [pytest.mark.needs_nvcc, pytest.mark.slow]


def compiled(text, folder, arch="sm_75"):
    path = folder / "module.cu"
    path.write_text(text)
    command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", str(folder / "module.cubin"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(("group", "policy"), [("reductions", "blocks"), ("indexing", "grid"), ("half", "tiny")])
def test_stitched_modules(group, policy, tmp_path):
    batch = Batch.of(group)
    program = batch.program(planner.plan(batch.module, POLICIES[policy], LIMITS).plan)
    assert "warning" not in compiled(program.sources[0].text, tmp_path)


def test_one_kernel_per_instruction(tmp_path):
    batch = Batch.of("elementwise")
    assert "warning" not in compiled(batch.program(handmade.unfused(batch.module)).sources[0].text, tmp_path)


def test_a_cooperative_kernel_of_the_catalogue(tmp_path):
    batch = module("speech_fwd")
    program = batch.program(planner.plan(batch.module, POLICIES["grid"], LIMITS).plan)
    assert any(step.cooperative for step in program.steps)
    said = compiled(program.sources[0].text, tmp_path, arch="sm_90")
    assert "warning" not in said
    assert " 0 bytes spill stores" in said
