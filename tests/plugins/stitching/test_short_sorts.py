"""Sorts of short rows by counting: against XLA, with ties, what is not a number, and several keys."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.frontend import importer, short_sorts

from . import oracle
from .cases import Case
from .checking import Batch

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


def batch(name: str) -> Batch:
    function, inputs = CASES[name]
    return Batch.made((Case(name=name, group="sorts", function=function, inputs=inputs),), "sorts")


@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_they_are_in_the_order_of_xla(name: str, policy: str, runner: Any) -> None:
    found = batch(name)
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
