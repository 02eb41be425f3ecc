"""Look-ups in what is computed: against XLA, and by what is left of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond_stitching.frontend import sunk_gathers
from fusiond_stitching.frontend.graph import HloModule

from . import handmade
from .checking import Batch

X = np.random.default_rng(8).normal(size=(6, 40)).astype(np.float32)
LABELS = np.array([0, 39, 7, 7, 50, -1], np.int32)


def taken(x: Any, labels: Any) -> Any:
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
    "taken": taken, "counted": counted, "rows": row_of, "clipped": clipped, "a diagonal": diagonal,
    "a column": column,
}  # fmt: skip


def batch(name: str, function: Callable[..., Any], *inputs: np.ndarray) -> Batch:
    return Batch.one("gather", name, function, inputs)


def looked_up_in(module: HloModule) -> set[str]:
    return {module[each.operands[0]].opcode for each in module.instructions if each.opcode == "gather"}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKED_UP)
def test_look_ups_are_of_what_is_there(name: str, runner: Any) -> None:
    found = batch(name, LOOKED_UP[name], X, LABELS)
    assert looked_up_in(found.module) <= {"parameter", "broadcast", "reduce", "iota", "reshape", "transpose"}
    found.check(runner, handmade.unfused(found.module))


def test_where_much_is_looked_up_it_is_computed_once(runner: Any) -> None:
    found = batch("many", lambda x, at: jnp.exp(x)[:, at % 40], X, np.arange(100, dtype=np.int32))
    assert looked_up_in(found.module) == {"exponential"}
    found.check(runner, handmade.unfused(found.module))


def test_a_mutant_dies(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sunk_gathers, "_counted", lambda *_: {0: 0, 1: 1, 2: 1})
    found = batch("the element of a broadcast", LOOKED_UP["a column"], X, LABELS)
    with pytest.raises(AssertionError):
        found.check(runner, handmade.unfused(found.module))
