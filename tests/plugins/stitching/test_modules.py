"""Modules that jax makes, over all operations, against XLA on the processor: one kernel per instruction."""

from __future__ import annotations

import pytest

from fusiond_stitching import planner

from . import handmade
from .cases import cases
from .checking import Batch
from .policies import LIMITS, POLICIES

GROUPS = sorted({each.group for each in cases().values()})


@pytest.mark.parametrize("group", GROUPS)
def test_one_kernel_per_instruction(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.unfused(batch.module))


@pytest.mark.parametrize("group", GROUPS)
def test_everything_inlined_into_the_outputs(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.inlined(batch.module))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("group", GROUPS)
def test_stitched(group, policy, runner):
    batch = Batch.of(group)
    planned = planner.plan(batch.module, POLICIES[policy], LIMITS)
    assert planned.problems == ()
    for seed in (0, 1):
        batch.check(runner, planned.plan, seed=seed)
