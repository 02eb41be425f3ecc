"""The few largest of a row: against XLA, with ties and what is not a number."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fusiond_stitching.analysis import planner, traffic
from fusiond_stitching.codegen import tolerances
from fusiond_stitching.frontend import importer, top_k

from . import oracle
from .cases import Case
from .checking import Batch
from .policies import LIMITS, POLICIES

PLANNED = ("stages", "blocks")

RANDOM = np.random.default_rng(4)
ROWS = RANDOM.normal(size=(9, 40)).astype(np.float32)
ROWS[1] = 3.0  # all alike
ROWS[2, 5:] = -np.inf
ROWS[3, ::7] = np.nan
ROWS[4, 3:9] = np.inf
ROWS[5] = -np.inf
ROWS[6] = np.nan
ROWS[7] = np.round(ROWS[7])  # many ties
ROWS[7][ROWS[7] == 0] = 0.0  # XLA tells 0 from -0
WHOLE = RANDOM.integers(-5, 5, size=(4, 3, 33)).astype(np.int32)
WHOLE[0, 0] = -(2**31)


def largest(k: int) -> Any:
    return lambda x: tuple(jax.lax.top_k(x, k))


def router(x: Any) -> Any:
    """Two experts of each row, their weights, and what is left of the row."""
    values, where = jax.lax.top_k(x, 2)
    return jax.nn.softmax(values), where, jnp.where(x >= values[:, -1:], x, 0.0)


CASES: dict[str, tuple[Any, np.ndarray]] = {
    "one": (largest(1), ROWS),
    "three": (largest(3), ROWS),
    "eight of eight": (largest(8), ROWS[:, :8]),
    "whole numbers": (largest(4), WHOLE),
    "unsigned": (largest(2), WHOLE.astype(np.uint8)),
    "bf16": (largest(2), ROWS.astype(ml_dtypes.bfloat16)),
    "a row": (largest(2), ROWS[7]),
    "router": (router, np.arange(9 * 64, dtype=np.float32).reshape(9, 64) % 37),
}


def batch(name: str) -> Batch:
    function, x = CASES[name]
    return Batch.made((Case(name=name, group="top", function=function, inputs=(x,)),), "top")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
def test_they_are_what_xla_finds(name: str, policy: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.foreign == {}
    found.check_planned(runner, policy, seeds=(0, 1))


def test_a_row_is_read_once_by_one_kernel() -> None:
    module = batch("three").module
    plan = planner.plan(module, POLICIES["blocks"], LIMITS).plan
    assert len(plan.kernels) == 1
    assert traffic.moved(module, plan) == traffic.ideal_bytes(module)


def test_what_only_chooses_rounds_nothing() -> None:
    """The indices are whole numbers that hang on floats; no order of a sum can change them."""
    assert tolerances.near_ties(batch("three").module) == ()
    text = oracle.lowered(lambda x: jax.lax.top_k(x.sum(1), 2), np.zeros((9, 40, 5), np.float32))
    assert tolerances.near_ties(importer.read(text, "m.hlo")) == ("out_1",)


@pytest.mark.parametrize(("function", "x"), [(largest(top_k.MOST + 1), ROWS), (largest(2), ROWS > 0)])
def test_the_rest_is_left_to_a_library(function: Any, x: np.ndarray) -> None:
    module = importer.read(oracle.lowered(function, x), "m.hlo")
    assert len(module.foreign) >= 1


def test_the_smallest_are_left_to_a_library() -> None:
    text = oracle.lowered(largest(2), ROWS).replace("largest=true", "largest=false")
    assert importer.read(text, "m.hlo").foreign
