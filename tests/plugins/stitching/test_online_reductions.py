"""The maximum and the sum of exponentials of a row in one reduction: against XLA, with what is not a number."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from fusiond_stitching.analysis import online_reductions, planner, row_groups, rows, split_reductions, verify
from fusiond_stitching.analysis.plan import RowPlace
from fusiond_stitching.frontend.graph import HloModule

from .checking import Batch
from .policies import LIMITS, POLICIES

ROWS = np.random.default_rng(2).normal(size=(9, 40)).astype(np.float32) * 30
ROWS[1, 3:20] = -np.inf
ROWS[2] = -np.inf
ROWS[3, 5] = np.inf
ROWS[4, 7] = np.nan
ROWS[5] = -3e38


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_reductions, "LEAST_ROW", 8)
    monkeypatch.setattr(split_reductions, "LEAST_ELEMENTS", 64)
    monkeypatch.setattr(split_reductions, "LEAST_RUN", 2)
    monkeypatch.setattr(split_reductions, "HELD_BYTES", 0)


def both(x: Any) -> Any:
    return jax.nn.softmax(x, -1), jax.nn.log_softmax(x, -1)


def guarded(x: Any) -> Any:
    """Where the maximum is infinite, 0 is subtracted."""
    return jax.nn.logsumexp(x, -1), jax.nn.softmax(x + 1, -1)


def batch(function: Any, *inputs: np.ndarray) -> Batch:
    return Batch.one("online", "online", function, inputs)


def pairs(module: HloModule) -> int:
    return sum(each.opcode == "reduce" and len(each.operands) == 4 for each in module.instructions)


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("policy", ["none", "stages", "blocks"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("function", "reduces"), [(both, 2), (guarded, 4)])
def test_rows_of_all_kinds(function: Any, reduces: int, policy: str, split: bool, runner: Any) -> None:
    found = batch(function, ROWS)
    online = online_reductions.rewritten(found.module)
    assert (pairs(found.module), pairs(online)) == (0, reduces)
    module = split_reductions.reductions(online, 108) if split else online
    assert pairs(module) == (2 * reduces if split else reduces)
    found = dataclasses.replace(found, module=module)
    found.check_planned(runner, policy, seeds=(0, 1))


def side_by_side(x: Any) -> Any:
    """Contrastive losses have both: each row, and each column, of the same values."""
    return jax.nn.logsumexp(x, 0), jax.nn.softmax(x * 2, 0)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("registers", [False, True])
def test_columns_of_all_kinds(split: bool, registers: bool, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_reductions, "LEAST_COLUMN", 8)
    monkeypatch.setattr(rows, "FEW", 1 << 30)
    monkeypatch.setattr(row_groups, "LARGE_BYTES", 0)
    found = batch(side_by_side, np.tile(ROWS, (1, 4)).T.copy())
    module = online_reductions.rewritten(found.module)
    assert pairs(module) == 4
    module = split_reductions.reductions(module, 108) if split else module
    found = dataclasses.replace(found, module=module)
    policy = dataclasses.replace(POLICIES["stages"], registers=registers, threads=64)
    plan = planner.plan(module, policy, LIMITS).plan
    assert verify.problems(module, plan) == ()
    stages = [each for kernel in plan.kernels for program in kernel.programs for each in program.stages]
    together = any(each.place is RowPlace.COLUMN and len(each.results) > 1 for each in stages)
    assert together == (registers and split)
    for seed in (0, 1):
        found.check(runner, plan, seed=seed)


def guard(value: Any, otherwise: float, by: Any = None) -> Any:
    return jax.numpy.where(jax.numpy.isfinite(value if by is None else by), value, otherwise)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.numpy.exp(x - x.max(0, keepdims=True)).sum(-1),  # the maximum of other elements
        lambda x: jax.numpy.exp(x - x.min(-1, keepdims=True)).sum(-1),
        lambda x: jax.numpy.exp2(x - x.max(-1, keepdims=True)).sum(-1),
        lambda x: jax.numpy.exp(x - guard(x.max(-1, keepdims=True), 1.0)).sum(-1),  # not with 0
        lambda x: jax.numpy.exp(x - guard(x.max(-1, keepdims=True), 0.0, x.min(-1, keepdims=True))).sum(-1),
        lambda x: jax.numpy.exp(x - 2 * x.max(-1, keepdims=True)).sum(-1),
        lambda x: jax.numpy.exp(x - (x + 1).max(-1, keepdims=True)).sum(-1),
        lambda x: jax.numpy.exp(x.T - x.T.max(-1)[None, : x.shape[0]].repeat(40, 0)[:, :9]).sum(-1),
    ],
)
def test_what_only_looks_like_it_stays(function: Any) -> None:
    module = batch(function, ROWS).module
    assert online_reductions.rewritten(module) is module


def test_short_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_reductions, "LEAST_ROW", 40)
    module = batch(both, ROWS).module
    assert online_reductions.rewritten(module) is module
