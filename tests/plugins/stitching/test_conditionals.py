"""Conditionals with cheap branches as selects: against XLA, which takes one branch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.frontend import conditionals, importer

from . import handmade, oracle
from .checking import Batch

PLANNED = ("stages", "blocks")

X = np.random.default_rng(1).normal(size=(6, 20)).astype(np.float32)
X[2, 3], X[4] = np.nan, 0.0


def cond(test: Any, x: Any) -> Any:
    return lax.cond(test, lambda x: jnp.sin(x) * 2, lambda x: x + 1, x) * 3


def skipped(total: Any, x: Any) -> Any:
    """The step of an optimizer that leaves out what is not a number: two results, one of them handed on."""
    fine = jnp.isfinite(total.sum())
    return lax.cond(fine, lambda x, n: (x * 0.5, n + 1), lambda x, n: (x, n), x, jnp.int32(3))


def harmless(test: Any, x: Any) -> Any:
    """What would trap, or make everything a NaN, if it were taken."""
    whole = x.astype(jnp.int32)
    return lax.cond(test, lambda x, n: (7 // n, jnp.log(x)), lambda x, n: (n, x), x, whole)


def softmax_or_not(test: Any, x: Any) -> Any:
    return lax.cond(test, lambda x: jax.nn.softmax(x, -1), lambda x: x - x.mean(), x)


def switch(at: Any, x: Any) -> Any:
    """The index is clamped by jax, and by HLO beyond that."""
    branches = [lambda x, y: (x * 2, y), lambda x, y: (x + y, y * y), lambda x, y: (y, x)]
    return lax.switch(at, branches, x, jnp.flip(x))


def nested(at: Any, x: Any) -> Any:
    return lax.cond(at > 0, lambda x: lax.cond(at > 1, jnp.tanh, jnp.negative, x), lambda x: cond(at < -1, x), x)


TRUE, FALSE = np.array(True), np.array(False)
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "true": (cond, (TRUE, X)),
    "false": (cond, (FALSE, X)),
    "a step": (skipped, (X[:2], X)),
    "a step left out": (skipped, (X, X)),
    "what would trap": (harmless, (TRUE, X)),
    "what is not taken": (harmless, (FALSE, X)),
    "softmax": (softmax_or_not, (TRUE, X)),
    "no softmax": (softmax_or_not, (FALSE, X)),
    **{f"switch {at}": (switch, (np.int32(at), X)) for at in (-3, 0, 1, 2, 9)},
    **{f"nested {at}": (nested, (np.int32(at), X)) for at in (-2, 0, 1, 2)},
}


@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(32)
def test_what_is_asked_for_is_taken(name: str, policy: str, runner: Any) -> None:
    found = Batch.one("branches", name, *CASES[name])
    assert found.module.foreign == {}
    found.check_planned(runner, policy)


BRANCHES = """HloModule branches
double { a = f32[5] parameter(0)
  ROOT b = f32[5] add(a, a)
}
minus { a = f32[5] parameter(0)
  ROOT b = f32[5] negate(a)
}
half { a = f32[5] parameter(0)
  ROOT b = f32[5] sqrt(a)
}
ENTRY main { at = s32[] parameter(0)
  x = f32[5] parameter(1)
  ROOT y = f32[5] conditional(at, x, x, x), branch_computations={double, minus, half}
}
"""


@pytest.mark.parametrize("at", [-7, -1, 0, 1, 2, 3, 100])
def test_a_number_that_no_branch_has_takes_the_last(at: int, runner: Any) -> None:
    inputs = [np.array(at, np.int32), np.array([1, 2, 3, 4, 5], np.float32)]
    module = importer.read(BRANCHES, "m.hlo")
    batch = Batch(BRANCHES, module, tuple(inputs), ("y[0]",), tuple(oracle.run(BRANCHES, inputs)))
    batch.check(runner, handmade.unfused(module))


@pytest.mark.parametrize("at", [-7, 0, 1, 2, 3])
def test_a_branch_that_is_always_taken_is_the_only_one_read(at: int, runner: Any) -> None:
    """Whatever the others would be: jax's gradient of a diagonal has such conditionals."""
    text = BRANCHES.replace("at = s32[] parameter(0)", f"at = s32[] constant({at})")
    text = text.replace("x = f32[5] parameter(1)", "x = f32[5] parameter(0)")
    text = text.replace("negate(a)", "negate(a)" if at == 1 else 'custom-call(a), custom_call_target="other"')
    inputs = [np.array([1, 2, 3, 4, 5], np.float32)]
    module = importer.read(text, "m.hlo")
    assert not module.foreign
    assert {each.opcode for each in module.instructions} <= {"parameter", "add", "negate", "sqrt", "copy"}
    if at == 1:
        batch = Batch(text, module, tuple(inputs), ("y[0]",), tuple(oracle.run(text, inputs)))
        batch.check(runner, handmade.unfused(module))


def wide(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, np.float32)


PREDICATE = jax.ShapeDtypeStruct((), np.bool_)


@pytest.mark.parametrize(
    ("function", "shapes", "selected"),
    [
        (cond, (PREDICATE, wide(4096, 4096)), True),
        # One of them reads three more tensors than the other.
        (lambda p, x, a, b, c: lax.cond(p, lambda x, a, b, c: x + a + b + c, lambda x, a, b, c: x * 2, x, a, b, c),
         (PREDICATE, *[wide(4096, 4096)] * 4), False),
        (lambda p, x, a, b, c: lax.cond(p, lambda x, a, b, c: x + a + b + c, lambda x, a, b, c: x * 2, x, a, b, c),
         (PREDICATE, *[wide(64, 64)] * 4), True),
        (lambda p, x: lax.cond(p, lambda x: x @ x, lambda x: x, x), (PREDICATE, wide(8, 8)), False),
        (lambda p, x: lax.cond(p, jnp.sort, lambda x: x, x), (PREDICATE, wide(8)), False),
        (softmax_or_not, (PREDICATE, wide(4096, 4096)), False),
        (lambda p, x: lax.cond(p, lambda x: lax.while_loop(lambda s: s.sum() > 0, jnp.sin, x), lambda x: x, x),
         (PREDICATE, wide(8)), False),
    ],
)  # fmt: skip
def test_what_is_dear_stays_a_boundary(function: Any, shapes: Any, selected: bool) -> None:
    module = importer.read(oracle.lowered(function, *shapes), "m.hlo")
    assert (not module.foreign) == selected
    assert ("conditional" in {each.opcode for each in module.instructions}) != selected


def test_the_bound_is_twice_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three tensors read and one written against one and one."""
    function = lambda p, x, a, b: lax.cond(p, lambda x, a, b: x + a + b, lambda x, a, b: x * 2, x, a, b)  # noqa: E731
    text = oracle.lowered(function, PREDICATE, *[wide(64, 64)] * 3)
    monkeypatch.setattr(conditionals, "SMALL_BYTES", 0)
    assert not importer.read(text, "m.hlo").foreign
    function = lambda p, x, a, b, c: lax.cond(  # noqa: E731
        p, lambda x, a, b, c: x + a + b + c, lambda x, a, b, c: x * 2, x, a, b, c
    )
    text = oracle.lowered(function, PREDICATE, *[wide(64, 64)] * 4)
    assert importer.read(text, "m.hlo").foreign
