"""Modules that jax makes, over all operations, against XLA on the processor: one kernel per instruction."""

from __future__ import annotations

import pytest

from . import handmade
from .cases import cases
from .checking import Batch

GROUPS = sorted({each.group for each in cases().values()})


@pytest.mark.parametrize("group", GROUPS)
def test_one_kernel_per_instruction(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.unfused(batch.module))


@pytest.mark.parametrize("group", GROUPS)
def test_everything_inlined_into_the_outputs(group, runner):
    batch = Batch.of(group)
    batch.check(runner, handmade.inlined(batch.module))
