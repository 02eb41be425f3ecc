"""Scatters that become selects: against XLA, and only where no two updates can meet."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import handmade
from .checking import Batch

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(6, 9)).astype(np.float32)
DEEP = RANDOM.normal(size=(4, 5, 7)).astype(np.float32)
LABELS = np.array([0, 8, 3, -1, 20, 3], np.int32)  # the last row but one points nowhere


def taken(axis: int) -> Callable[..., Any]:
    """The gradient of `take_along_axis`."""

    def gradient(x: Any, at: Any, given: Any) -> Any:
        return x + jax.vjp(lambda y: jnp.take_along_axis(y, at, axis), x)[1](given)[0]

    return gradient


def each(update: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(update)


ONE_EACH: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "columns": (taken(-1), (X, np.clip(LABELS, -9, 8)[:, None], X[:, :1])),
    "rows": (taken(0), (X, np.arange(9, dtype=np.int32)[None] % 6, X[:1])),
    "in the middle": (taken(1), (DEEP, np.arange(28, dtype=np.int32).reshape(4, 1, 7) % 5, DEEP[:, :1])),
    "dropped": (each(lambda x, at, u: x.at[at].add(u, mode="drop")), (X, LABELS, X[:, 0])),
    "set": (each(lambda x, at, u: x.at[at].set(u)), (X, LABELS, X[:, 0])),
    "multiplied": (each(lambda x, at, u: x.at[at].multiply(u, mode="drop")), (X, LABELS, X[:, 0])),
    "windows": (each(lambda x, at, u: x.at[at].max(u)), (DEEP, np.array([4, 0, 2, 9], np.int32), DEEP[:, 0])),
    "bytes": (each(lambda x, at, u: x.at[at].add(u)), (X, LABELS.astype(np.int8), X[:, 0])),
}
SEVERAL: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "two in a row": (taken(-1), (X, np.array([[1, 1]] * 6, np.int32), X[:, :2])),
    "segments": (lambda x, at: jax.ops.segment_sum(x, at, 4), (X, np.array([0, 1, 1, 3, 2, 0], np.int32))),
}


def batch(name: str, case: tuple[Callable[..., Any], tuple[np.ndarray, ...]]) -> Batch:
    return Batch.one("scatter", name, case[0], case[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_EACH)
def test_one_update_for_each_row_is_a_select(name: str, runner: Any) -> None:
    found = batch(name, ONE_EACH[name])
    assert all(instruction.opcode != "scatter" for instruction in found.module.instructions)
    found.check(runner, handmade.unfused(found.module))


@pytest.mark.parametrize("name", SEVERAL)
def test_updates_that_may_meet_stay_a_scatter(name: str, runner: Any) -> None:
    found = batch(name, SEVERAL[name])
    assert any(instruction.opcode == "scatter" for instruction in found.module.instructions)
    found.check(runner, handmade.unfused(found.module))
