"""Complex numbers as pairs of real ones: against XLA, which has them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond.model.errors import RequestError
from fusiond_stitching.analysis import planner
from fusiond_stitching.frontend import importer

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES

PLANNED = ("stages", "blocks")

RANDOM = np.random.default_rng(3)


def real(*dims: int) -> np.ndarray:
    return RANDOM.normal(size=dims).astype(np.float32)


def whole(*dims: int) -> np.ndarray:
    return (real(*dims) + 1j * real(*dims)).astype(np.complex64)


def rope(x: Any, angles: Any) -> Any:
    """Neighbours turned by an angle for each position."""
    turned = lax.complex(x[..., 0::2], x[..., 1::2]) * jnp.exp(1j * angles)[None]
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def arithmetic(a: Any, b: Any) -> Any:
    return a + b, a - b, a * b, a / b, -a, jnp.conj(a) * 2, a * 1j, 1 / b, a == b, a != jnp.where(a.real > 0, a, b)


def parts(a: Any) -> Any:
    return a.real, a.imag, jnp.abs(a), jnp.exp(a * 0.5), a.real.astype(jnp.complex64), (a * jnp.conj(a)).real


def moved(a: Any, b: Any) -> Any:
    return (
        a.T, a[1:, ::2], a[::-1], jnp.concatenate([a, b]), a.reshape(-1), jnp.pad(a, ((1, 0), (0, 2))), a[:, None] * b,
        jnp.take(a, jnp.array([2, 0]), axis=0), lax.dynamic_slice(a, (1, 2), (2, 3)),
        lax.dynamic_update_slice(a, b[:2, :1], (1, 3)),
    )  # fmt: skip


def sums(a: Any) -> Any:
    return a.sum(0), a.sum(), (a * jnp.array([1, 1j, -1, 2 - 0.5j, 0], jnp.complex64)).mean(-1)


def rotated(x: Any) -> Any:
    """A function of them by a call."""
    return jax.jit(lambda z: z * jnp.exp(0.25j))(x.astype(jnp.complex64)).real


EDGES = np.array([1e30 + 1e30j, 1e-30 - 1e-30j, 3e38 + 1j, 0, 1j, -2], np.complex64)
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "rope": (rope, (real(3, 8, 16), real(8, 8))),
    "arithmetic": (arithmetic, (whole(4, 5), whole(4, 5))),
    "parts": (parts, (whole(4, 5),)),
    "large and small": (lambda a, b: (a / b, jnp.abs(a)), (EDGES[[0, 1, 0, 3]], EDGES[[0, 1, 2, 4]])),
    "sizes": (jnp.abs, (EDGES,)),
    "moved": (moved, (whole(4, 5), whole(4, 5))),
    "sums": (sums, (whole(4, 5),)),
    "a call": (rotated, (real(7),)),
    "a number": (lambda a: a * 2, (np.complex64(1 - 2j),)),
}


def batch(name: str) -> Batch:
    """The case, with inputs and outputs as they lie in memory."""
    function, inputs = CASES[name]
    found = Batch.one("complex", name, function, inputs)
    return dataclasses.replace(found, inputs=tuple(map(laid, inputs)), wanted=tuple(map(laid, found.wanted)))


def laid(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.reshape(*array.shape, 1).view(np.float32) if array.dtype == np.complex64 else array


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANNED)])
@pytest.mark.parametrize("name", CASES)
def test_they_are_what_xla_computes(name: str, policy: str, runner: Any) -> None:
    found = batch(name)
    assert found.module.foreign == {}
    found.check_planned(runner, policy)


def test_a_rotation_is_one_kernel_without_a_complex_number() -> None:
    module = batch("rope").module
    assert {each.dtype for each in module.instructions} <= {"f32", "pred"}
    assert len(planner.plan(module, POLICIES["blocks"], LIMITS).plan.kernels) == 1


def test_parameters_and_results_are_pairs() -> None:
    module = batch("arithmetic").module
    assert [module[name].dims for name in module.parameters] == [(4, 5, 2), (4, 5, 2)]
    assert module[module.outputs[0]].dims == (4, 5, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: jnp.fft.fft(a * 2).real, lambda a: lax.while_loop(lambda s: jnp.abs(s).sum() < 9, lambda s: s * 2, a),
        lambda a: jnp.tanh(a), lambda a: (a @ a.T).real, lambda a: a.prod(),
        lambda a: a.at[jnp.array([1, 1])].add(a[:2]),
    ],
)  # fmt: skip
def test_where_one_cannot_be_a_pair_none_is(function: Any) -> None:
    module = importer.read(oracle.lowered(function, jax.ShapeDtypeStruct((4, 4), np.complex64)), "m.hlo")
    assert any("c64" in why or "library" in why for why in module.foreign.values())
    assert "c64" in {each.dtype for each in module.instructions}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ROOT c = c64[2] constant({(1, 2)})", "1 pairs of numbers for c64[2]"),
        ("ROOT c = c64[1] constant({(1, x)})", "is not a c64"),
        ("ROOT c = pred[3] compare(a, a), direction=LT", "no order"),
    ],
)
def test_what_is_no_complex_number_is_said(line: str, said: str) -> None:
    text = f"HloModule m\nENTRY main {{\n  a = c64[3] parameter(0)\n  {line}\n}}\n"
    with pytest.raises(RequestError, match=r"m\.hlo:4") as problem:
        importer.read(text, "m.hlo")
    assert said in str(problem.value)
