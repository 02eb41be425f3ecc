"""Windows that are put in or cut out by their places: against XLA, with indices that fit and that do not."""

from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

from fusiond_stitching.frontend import constant_numbers, importer

from . import handmade, oracle
from .checking import Batch

X = np.random.default_rng(3).normal(size=(7, 9)).astype(np.float32)
INSIDE = np.random.default_rng(4).normal(size=(5, 7)).astype(np.float32)
LABELS = np.array([0, 8, 3, 3, 8, 1, 5], np.int32)
NUMBERS = lax.ScatterDimensionNumbers((0, 1), (), (0, 1))


def window(update: Callable[..., Any], start: Any) -> Callable[..., Any]:
    """A scatter of one window that begins at `start`, or where an argument says."""

    def function(x: Any, u: Any, *at: Any) -> Any:
        index = at[0] if at else jnp.array(start, jnp.int32)
        return update(x, index, u, NUMBERS, mode=lax.GatherScatterMode.FILL_OR_DROP)

    return function


def jacobi(u: Any) -> Any:
    for _ in range(2):
        u = u.at[1:-1, 1:-1].set(0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]))
    return u


def at(*start: int, kind: Any = np.int32) -> np.ndarray:
    return np.array(start, kind)


PLACED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "inside": (lambda x, u: x.at[1:-1, 1:-1].set(u), (X, INSIDE)),
    "added": (lambda x, u: x.at[2:, :-2].add(u), (X, INSIDE)),
    "multiplied": (lambda x, u: x.at[:-2, 2:].multiply(u), (X, INSIDE)),
    "twice": (jacobi, (X,)),
    "a row": (lambda x, u: x.at[3].set(u[0, :1].repeat(9)), (X, INSIDE)),
    "an element": (lambda x, u: x.at[2, 5].set(u[0, 0]), (X, INSIDE)),
    "does not fit": (window(lax.scatter_add, (3, 0)), (X, INSIDE)),
    "before the first": (window(lax.scatter, (-1, 1)), (X, INSIDE)),
    "given": (window(lax.scatter_add, None), (X, INSIDE, at(2, 1))),
    "given, does not fit": (window(lax.scatter, None), (X, INSIDE, at(2, 3))),
    "given, before the first": (window(lax.scatter_add, None), (X, INSIDE, at(-1, 0))),
    "given in bytes": (window(lax.scatter, None), (X, INSIDE, at(1, 2, kind=np.int8))),
    "cut": (lambda x: lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(30)), (3, 4)) * 2, (X,)),
    "diagonal": (lambda x, u: x.at[jnp.arange(7), jnp.arange(7)].add(u[0]), (X, INSIDE)),
    "rows and labels": (lambda x, y: jax.grad(lambda x: (x[jnp.arange(7), y] ** 2).sum())(x), (X, LABELS)),
    "columns and labels": (lambda x, y: x.at[y[:7] % 7, jnp.arange(7)].set(y * 1.0), (X[:, :7], LABELS)),
}
"""What no scatter is left of."""


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PLACED)
def test_one_window_is_put_in_by_its_place(name: str, runner: Any) -> None:
    batch = Batch.one("scatter", name, *PLACED[name])
    assert all(each.opcode not in ("scatter", "dynamic-slice") for each in batch.module.instructions) or "given" in name
    batch.check(runner, handmade.unfused(batch.module))


def test_rows_that_are_not_all_counted_stay_a_scatter(runner: Any) -> None:
    def some(x: Any, y: Any) -> Any:
        return x.at[jnp.arange(5), y[:5]].add(1.0)

    batch = Batch.one("scatter", "some", some, (X, LABELS))
    assert any(each.opcode == "scatter" for each in batch.module.instructions)
    batch.check(runner, handmade.unfused(batch.module))


def numbers(*arrays: Callable[[], Any]) -> list[tuple[int, ...] | None]:
    """What is known of values that jax makes of constants."""

    def function() -> Any:
        return [each() for each in arrays]

    with jax.disable_jit(False):
        module = importer.read(oracle.lowered(function), "known")
    given = {each.name: each for each in module.instructions}
    return [constant_numbers.elements(given, name) for name in module.outputs]


@hypothesis.given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=6), st.integers(-5, 5), st.integers(1, 3)
)
@hypothesis.settings(max_examples=25)
def test_numbers_are_what_numpy_says(values: list[int], limit: int, step: int) -> None:
    array = np.array(values, np.int32)
    with np.errstate(over="ignore"):
        wanted = np.concatenate(
            [np.where(array < limit, array + np.int32(len(values)), array)[::step],
             np.maximum(array * np.int32(3), array - np.int32(7)), np.broadcast_to(array[:1], (3,)),
             np.arange(4, dtype=np.int32)]
        )  # fmt: skip

    def same() -> Any:
        x = lax.optimization_barrier(jnp.array(array))
        return jnp.concatenate(
            [jnp.where(x < limit, x + len(values), x)[::step], jnp.maximum(x * 3, x - 7), jnp.broadcast_to(x[:1], (3,)),
             lax.iota(jnp.int32, 4)],
        )  # fmt: skip

    assert numbers(same) == [tuple(wanted.tolist())]


def test_what_depends_on_an_input_is_not_known() -> None:
    module = importer.read(oracle.lowered(lambda x: jnp.stack([x[0], jnp.int32(3)]), LABELS), "unknown")
    given = {each.name: each for each in module.instructions}
    assert constant_numbers.elements(given, module.outputs[0]) is None
