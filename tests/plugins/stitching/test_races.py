"""No data races in stitched kernels: ThreadSanitizer on small modules, every launch of them."""

import dataclasses

import pytest

from fusiond.devices.cpu.race import find_in
from fusiond_stitching.analysis import planner

from .checking import Batch
from .policies import LIMITS, POLICIES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("softmaxes", "paper"), ("softmaxes", "grid"), ("layer_norm", "tiny"), ("arguments", "blocks"),
        ("slices", "tiny"),
    ],
)  # fmt: skip
@pytest.mark.sampled(8)
def test_stitched_kernels_have_none(name, policy):
    batch = Batch.alone(name)
    program = batch.program(planner.plan(batch.module, POLICIES[policy], LIMITS).plan)
    assert list(find_in(program)) == []


def test_a_barrier_less_is_one():
    """What the checks above would find."""
    batch = Batch.alone("softmaxes")
    program = batch.program(planner.plan(batch.module, POLICIES["paper"], LIMITS).plan)
    (source,) = program.sources
    assert "__syncthreads();" in source.text
    broken = dataclasses.replace(source, text=source.text.replace("__syncthreads();", ""))
    assert list(find_in(dataclasses.replace(program, sources=(broken,))))
