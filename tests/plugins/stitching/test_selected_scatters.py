"""Scatters that become selects, look-ups in what is computed, reductions of what was put side by side: against XLA,
and by what is left of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond_stitching.frontend import short_reduces, sunk_gathers
from fusiond_stitching.frontend.graph import HloModule

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


# --- look-ups in what is computed -----------------------------------------------------------------------


OF_LOOKUPS = np.random.default_rng(8).normal(size=(6, 40)).astype(np.float32)
AT = np.array([0, 39, 7, 7, 50, -1], np.int32)


def taken_along(x: Any, labels: Any) -> Any:
    return jnp.take_along_axis(jax.nn.log_softmax(x * 2, -1), labels[:, None], -1, mode="clip")[:, 0]


def counted(x: Any, labels: Any) -> Any:
    return jax.nn.log_softmax(x, -1)[jnp.arange(6), labels]


def row_of(x: Any, labels: Any) -> Any:
    """Whole rows: what lies along them stays, what lies across them is looked up."""
    return (x.T + jnp.arange(6) - x.max(0)[:, None])[labels[:1] % 40]


def clipped(x: Any, labels: Any) -> Any:
    return jnp.clip(x.astype(jnp.float16), -1, 1)[0, labels % 40]


def diagonal(x: Any, labels: Any) -> Any:
    wide = x[:, :, None] * x[:, None]
    return jnp.where(wide > 0, wide, labels[:, None, None] * 1.0)[:, jnp.arange(40), jnp.arange(40)]


def column(x: Any, labels: Any) -> Any:
    return jnp.exp(x[:, :, None] - x[:, None])[:, :, labels[:2]]


LOOKED_UP: dict[str, Callable[..., Any]] = {
    "taken": taken_along, "counted": counted, "rows": row_of, "clipped": clipped, "a diagonal": diagonal,
    "a column": column,
}  # fmt: skip


def gathers(name: str, function: Callable[..., Any], *inputs: np.ndarray) -> Batch:
    return Batch.one("gather", name, function, inputs)


def looked_up_in(module: HloModule) -> set[str]:
    return {module[each.operands[0]].opcode for each in module.instructions if each.opcode == "gather"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKED_UP)
def test_look_ups_are_of_what_is_there(name: str, runner: Any) -> None:
    found = gathers(name, LOOKED_UP[name], OF_LOOKUPS, AT)
    assert looked_up_in(found.module) <= {"parameter", "broadcast", "reduce", "iota", "reshape", "transpose"}
    found.check(runner, handmade.unfused(found.module))


def test_where_much_is_looked_up_it_is_computed_once(runner: Any) -> None:
    found = gathers("many", lambda x, at: jnp.exp(x)[:, at % 40], OF_LOOKUPS, np.arange(100, dtype=np.int32))
    assert looked_up_in(found.module) == {"exponential"}
    found.check(runner, handmade.unfused(found.module))


def test_a_mutant_dies(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sunk_gathers, "_counted", lambda *_: {0: 0, 1: 1, 2: 1})
    found = gathers("the element of a broadcast", LOOKED_UP["a column"], OF_LOOKUPS, AT)
    with pytest.raises(AssertionError):
        found.check(runner, handmade.unfused(found.module))


# --- what was put side by side --------------------------------------------------------------------------


def shares(x: Any) -> Any:
    best, at = jax.lax.top_k(x, 3)
    weights = jnp.exp(best - best.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True), jax.nn.one_hot(at, 40).sum(1), at.sum(-1), best.min(-1)


def stacked(x: Any) -> Any:
    """Side by side along the first dimension, with another computation, and an init that counts."""
    both = jnp.stack([x, x * 2 + x[0]]) + jnp.arange(2)[:, None, None]
    return jax.lax.reduce(both, np.float32(0.5), jax.lax.max, (0,)), (both * both).prod(0), both[:, :, 0].sum(0)


@pytest.mark.parametrize("function", [shares, stacked])
def test_what_was_put_side_by_side_is_taken_as_it_was(function: Callable[..., Any], runner: Any) -> None:
    found = gathers("parts", function, OF_LOOKUPS)
    sources = [found.module[each.operands[0]].dims for each in found.module.instructions if each.opcode == "reduce"]
    assert set(sources) <= {OF_LOOKUPS.shape}
    found.check(runner, handmade.unfused(found.module))


def test_another_part_is_seen(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    part = short_reduces._Parted._part
    monkeypatch.setattr(short_reduces._Parted, "_part", lambda self, name, at, number: part(self, name, at, 0))
    found = gathers("the part", shares, OF_LOOKUPS)
    with pytest.raises(AssertionError):
        found.check(runner, handmade.unfused(found.module))
