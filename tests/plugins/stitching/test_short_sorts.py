"""Sorts of short rows by counting: against XLA, with ties, what is not a number, and several keys."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import planner, traffic
from fusiond_stitching.codegen import tolerances
from fusiond_stitching.frontend import importer, short_sorts, top_k

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES

PLANNED = ("stages", "blocks")

RANDOM = np.random.default_rng(6)
ROWS = RANDOM.normal(size=(5, 12)).astype(np.float32)
ROWS[1] = np.round(ROWS[1])
ROWS[2, ::3] = np.nan
ROWS[3, :4], ROWS[3, 6:9] = np.inf, -np.inf
WHOLE = RANDOM.integers(-4, 5, size=(3, 9, 4)).astype(np.int32)
WHOLE[0, :3] = -(2**31)


def two_keys(x: Any, y: Any) -> Any:
    return lax.sort((x, y, jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape)), num_keys=2)


def by_experts(x: Any) -> Any:
    """Tokens in the order of their experts, and how far each is from the median."""
    order = jnp.argsort(jnp.argmax(x, -1))
    return order, x - jnp.median(x, -1, keepdims=True)


CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "rows": (jnp.sort, (ROWS,)),
    "descending": (lambda x: -jnp.sort(-x, -1), (ROWS[[0, 1, 3]],)),
    "columns": (lambda x: jnp.sort(x, 0), (ROWS,)),
    "in the middle": (lambda x: jnp.sort(x, 1), (WHOLE,)),
    "places": (lambda x: jnp.argsort(x, -1), (ROWS,)),
    "unsigned": (lambda x: jnp.argsort(x, 1), (WHOLE.astype(np.uint8),)),
    "truth": (lambda x: lax.sort((x, jnp.arange(12) + jnp.zeros(x.shape, jnp.int32)), num_keys=1), (ROWS > 0,)),
    "bf16": (jnp.sort, (ROWS.astype(ml_dtypes.bfloat16),)),
    "two keys": (two_keys, (np.round(ROWS[:2]), WHOLE.reshape(-1)[:24].reshape(2, 12))),
    "experts": (by_experts, (ROWS[[0, 1]].repeat(9, 0),)),
    "one element": (lambda x: jnp.sort(x[:, :1]), (ROWS,)),
}


@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_they_are_in_the_order_of_xla(name: str, policy: str, runner: Any) -> None:
    found = Batch.one("sorts", name, *CASES[name])
    assert found.module.foreign == {}
    found.check_planned(runner, policy, seeds=(0, 1))


@pytest.mark.parametrize(
    ("dims", "left"),
    [((4, short_sorts.LONGEST), False), ((4, short_sorts.LONGEST + 1), True), ((1 << 17, 128), False),
     ((1 << 18, 128), True)],
)  # fmt: skip
def test_long_rows_are_left_to_a_library(dims: tuple[int, ...], left: bool) -> None:
    text = oracle.lowered(jnp.sort, jax.ShapeDtypeStruct(dims, np.float32))
    assert bool(importer.read(text, "m.hlo").foreign) == left


# --- the few largest of a row ---------------------------------------------------------------------------


OF_TOP = np.random.default_rng(4)
LONG = OF_TOP.normal(size=(9, 40)).astype(np.float32)
LONG[1] = 3.0  # all alike
LONG[2, 5:] = -np.inf
LONG[3, ::7] = np.nan
LONG[4, 3:9] = np.inf
LONG[5] = -np.inf
LONG[6] = np.nan
LONG[7] = np.round(LONG[7])  # many ties
LONG[7][LONG[7] == 0] = 0.0  # XLA tells 0 from -0
LONG_WHOLE = OF_TOP.integers(-5, 5, size=(4, 3, 33)).astype(np.int32)
LONG_WHOLE[0, 0] = -(2**31)


def largest(k: int) -> Any:
    return lambda x: tuple(jax.lax.top_k(x, k))


def router(x: Any) -> Any:
    """Two experts of each row, their weights, and what is left of the row."""
    values, where = jax.lax.top_k(x, 2)
    return jax.nn.softmax(values), where, jnp.where(x >= values[:, -1:], x, 0.0)


LARGEST: dict[str, tuple[Any, np.ndarray]] = {
    "one": (largest(1), LONG),
    "three": (largest(3), LONG),
    "eight of eight": (largest(8), LONG[:, :8]),
    "whole numbers": (largest(4), LONG_WHOLE),
    "unsigned": (largest(2), LONG_WHOLE.astype(np.uint8)),
    "bf16": (largest(2), LONG.astype(ml_dtypes.bfloat16)),
    "a row": (largest(2), LONG[7]),
    "router": (router, np.arange(9 * 64, dtype=np.float32).reshape(9, 64) % 37),
}


def batch(name: str) -> Batch:
    function, x = LARGEST[name]
    return Batch.one("top", name, function, (x,))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", LARGEST)
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


@pytest.mark.parametrize(("function", "x"), [(largest(top_k.MOST + 1), LONG), (largest(2), LONG > 0)])
def test_the_rest_is_left_to_a_library(function: Any, x: np.ndarray) -> None:
    module = importer.read(oracle.lowered(function, x), "m.hlo")
    assert len(module.foreign) >= 1


def test_the_smallest_are_left_to_a_library() -> None:
    text = oracle.lowered(largest(2), LONG).replace("largest=true", "largest=false")
    assert importer.read(text, "m.hlo").foreign
