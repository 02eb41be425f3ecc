"""Loops that blocks run, their state in shared memory: against XLA, which runs their trips one after the other."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.frontend import importer, scans
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.frontend.scan_loop import Loop

from . import oracle
from .checking import Batch
from .policies import LIMITS
from .scan_cases import RULES, SLOW, drawn, wide

_NUMBERS = np.random.default_rng(5)


def floats(*dims: int, scale: float = 1.0) -> np.ndarray:
    return (scale * _NUMBERS.uniform(-1, 1, dims)).astype(np.float32)


def plain(x: Any, w: Any) -> Any:
    """Elman's cell; its input is multiplied already."""
    return lax.scan(lambda h, x: (h := jnp.tanh(h @ w + x), h), jnp.zeros(x.shape[1:], x.dtype), x)


def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    begin = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (begin, begin), x)


def normed(x: Any, w: Any) -> Any:
    """A cell with a layer norm, and one state for all rows beside it."""

    def step(carry: Any, x: Any) -> Any:
        h, count = carry
        y = h @ w + x
        y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
        return (jnp.tanh(y * count), count * 0.75 + 0.25), (h, y.max(-1))

    return lax.scan(step, (jnp.zeros(x.shape[1:]), jnp.ones(x.shape[2])), x)


def heat(x: Any) -> Any:
    """Neighbours meet in a long row."""

    def step(_: Any, h: Any) -> Any:
        return h + 0.2 * (jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] - 2 * h + jnp.pad(h, ((0, 0), (0, 1)))[:, 1:])

    return lax.fori_loop(0, 6, step, x)


def sinkhorn(x: Any) -> Any:
    """Rows and columns of a matrix in turn."""

    def step(_: Any, x: Any) -> Any:
        x = x - jax.nn.logsumexp(x, axis=2, keepdims=True)
        return x - jax.nn.logsumexp(x, axis=1, keepdims=True)

    return jnp.exp(lax.fori_loop(0, 5, step, x))


def heads(q: Any, k: Any, v: Any) -> Any:
    """A product for each row by a matrix of its own."""

    def step(h: Any, q: Any) -> Any:
        share = jax.nn.softmax(jnp.einsum("bd,bnd->bn", h + q, k), axis=-1)
        h = jnp.einsum("bn,bnd->bd", share, v)
        return h, share.max(-1)

    return lax.scan(step, jnp.zeros(q.shape[1:]), q)


def half(x: Any, w: Any) -> Any:
    """Products of bfloat16 that are summed in float, a state of each, and whole numbers."""

    def step(carry: Any, x: Any) -> Any:
        h, total, count = carry
        y = jnp.dot(h, w, preferred_element_type=jnp.float32)
        h = jnp.tanh(y + x).astype(jnp.bfloat16)
        return (h, total * 0.5 + y, count + jnp.int32(2)), (h, y * count)

    begin = jnp.zeros(x.shape[1:])
    return lax.scan(step, (begin.astype(jnp.bfloat16), begin, jnp.int32(1)), x)


def sums(x: Any, w: Any, g: Any, s: Any) -> Any:
    """What a gradient adds up over the steps, backwards, from other values than zero; and what only looks so."""

    def step(carry: Any, xs: Any) -> Any:
        h, g, s, t, last = carry
        at, x = xs
        h = jnp.tanh(h @ w + x * at)
        g = g + h.T @ (x * at)
        return (h, g, s + h.sum(0), x[0] + t * 2, (h * x).sum(0) + last), g.sum() * 0 + h

    begin = (jnp.zeros(x.shape[1:]), g, s, s, s)
    return lax.scan(step, begin, (jnp.arange(x.shape[0], dtype=jnp.float32), x), reverse=True)


def weights(x: Any, w: Any, v: Any) -> Any:
    """A cell's weights as parts, put together in each trip; and one that is multiplied from the left."""

    def step(h: Any, x: Any) -> Any:
        a, b = jnp.split(h @ jnp.concatenate([w, v * 0.5], 1), 2, 1)
        return jnp.tanh(a * b + x), (v @ h.T).T

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def training(cell: Any) -> Any:
    """Loss and gradients of a recurrent layer."""

    def loss(*given: Any) -> Any:
        (last, *_), hs = cell(*given)
        return (last * last).sum() + jnp.sin(hs).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))


BF16 = jnp.bfloat16
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "plain": (plain, (floats(5, 3, 40), floats(40, 40, scale=0.2))),
    "lstm": (lstm, (floats(4, 5, 12), floats(12, 4 * 72, scale=0.3), floats(72, 4 * 72, scale=0.2), floats(4 * 72))),
    "normed": (normed, (floats(4, 3, 48), floats(48, 48, scale=0.2))),
    "heat": (heat, (floats(3, 700),)),
    "sinkhorn": (sinkhorn, (floats(2, 24, 20),)),
    "heads": (heads, (floats(3, 4, 16), floats(4, 40, 16), floats(4, 40, 16))),
    "half": (half, (np.asarray(floats(5, 3, 136), BF16), np.asarray(floats(136, 136, scale=0.1), BF16))),
    "weights": (weights, (floats(4, 3, 40), floats(40, 40, scale=0.2), floats(40, 40, scale=0.2))),
    "many rows": (plain, (floats(3, 700, 136), floats(136, 136, scale=0.1))),
    "one trip": (plain, (floats(1, 3, 136), floats(136, 136, scale=0.1))),
}  # fmt: skip


@functools.cache
def batch(name: str) -> Batch:
    return Batch.one("scans", name, *CASES[name])


def loops(module: HloModule) -> list[Loop]:
    return [module[names[0]].attributes["loop"] for names in module.scans.values()]


@pytest.mark.parametrize("rules", ["xla", "blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_a_loop_by_blocks_is_one_launch(name: str, rules: str, runner: Any) -> None:
    found = batch(name)
    left = [each for each in found.module.foreign if found.module[each].opcode != "dot"]
    assert left == []
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    assert all(each.by_block for each in loops(found.module))
    assert sum(program.scan for kernel in plan.kernels for program in kernel.programs) == 1
    found.check(runner, plan)


LSTM = (floats(4, 3, 12), floats(12, 4 * 72, scale=0.3), floats(72, 4 * 72, scale=0.2), floats(4 * 72))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "inputs", "products", "rows"),
    [
        (lambda x, w, g, s: sums(x, w, g, s)[0][:4], (floats(5, 3, 40), floats(40, 40, scale=0.2), floats(40, 40),
                                                      floats(40)), 1, (3,)),
        # Before the first loop the input's; between them all states' once more, for what the second needs of the gates;
        # behind it the gradients of the input and of both weights.
        (training(lstm), LSTM, 5, (3, 3)),
    ],
    ids=["sums", "training"],
)  # fmt: skip
@pytest.mark.parametrize("rules", ["xla", "blocks"])
def test_what_is_only_added_up_is_summed_behind_the_loop(
    function: Any, inputs: Any, products: int, rows: tuple[int, ...], rules: str, runner: Any
) -> None:
    found = Batch.one("scans", "sums", function, inputs)
    assert {found.module[each].opcode for each in found.module.foreign} <= {"dot"}
    assert tuple(each.axes[0] for each in loops(found.module)) == rows
    assert len([each for each in found.module.instructions if each.opcode == "dot"]) == products
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


def test_a_sum_that_is_read_on_the_way_stays() -> None:
    shapes = [wide(5, 300, 40), wide(40, 40), wide(40, 40), wide(40)]
    module = importer.read(oracle.lowered(lambda *given: sums(*given)[1], *shapes), "m.hlo")
    assert {module[each].opcode for each in module.foreign} == {"while"}


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("seed", range(100))
def test_a_random_loop_by_blocks(seed: int, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MOST_HELD", -1)  # no thread holds anything
    function, inputs = drawn(seed)
    found = Batch.one("scans", str(seed), function, inputs)
    if any(found.module[each].opcode == "while" for each in found.module.foreign):
        return
    plan = planner.plan(found.module, RULES[("blocks", "xla", "grid")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


def test_what_the_state_has_no_part_in_is_multiplied_before() -> None:
    shapes = [wide(64, 128, 96), wide(96, 512), wide(128, 512), wide(512)]
    module = importer.read(oracle.lowered(lstm, *shapes), "m.hlo")
    (first,) = [each for each in module.instructions if each.opcode == "dot"]
    assert first.dims == (64, 128, 512)
    (loop,) = loops(module)
    assert [loop.body[each].dims for each in loop.kept] == [(128, 512)]
    assert loop.axes == (128,)


def test_a_plan_has_room_for_the_state() -> None:
    found = batch("lstm")
    plan = planner.plan(found.module, RULES["blocks"], LIMITS).plan
    (loop,) = loops(found.module)
    needed = {loop.shared_bytes(rows) for rows in range(1, 9)}
    (kernel,) = [each for each in plan.kernels if any(one.scan for one in each.programs)]
    assert kernel.shared_bytes in needed
    less = kernel.shared_bytes - 16
    (program,) = kernel.programs
    small = dataclasses.replace(program, shared_bytes=less)
    kernels = dataclasses.replace(kernel, phases=(dataclasses.replace(kernel.phases[0], programs=(small,)),))
    steps = tuple(kernels if each is kernel else each for each in plan.steps)
    (problem,) = verify.problems(found.module, dataclasses.replace(plan, steps=steps))
    assert "bytes of shared memory and has" in problem


# --- broken on purpose ----------------------------------------------------------------------------------
