"""Loops in one launch: against XLA, which runs their trips one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis import policy as policies

from .cases import Case
from .checking import Batch
from .policies import LIMITS, POLICIES

RULES = {**POLICIES, "none": policies.unfused(), "xla": policies.xla_rules()}
SLOW = ("none", "stages", "grid", "paper")
_NUMBERS = np.random.default_rng(3)


def floats(*dims: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return _NUMBERS.uniform(low, high, dims).astype(np.float32)


def advantages(rewards: Any, values: Any, done: Any) -> Any:
    """Generalised advantage estimation, from the last step to the first."""

    def step(carry: Any, x: Any) -> Any:
        advantage, following = carry
        reward, value, done = x
        delta = reward + 0.99 * following * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value), advantage

    begin = (jnp.zeros_like(values[-1]), values[-1])
    _, found = lax.scan(step, begin, (rewards, values, done), reverse=True)
    return found, found + values


def mamba(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """A selective state space: [time, batch, channel], and a state of so many numbers for each channel."""

    def step(h: Any, xs: Any) -> Any:
        x, delta, b, c = xs
        h = jnp.exp(delta[..., None] * a) * h + (delta * x)[..., None] * b[:, None, :]
        return h, (h * c[:, None, :]).sum(-1)

    last, y = lax.scan(step, jnp.zeros((*x.shape[1:], a.shape[-1]), x.dtype), (x, delta, b, c))
    return y, last


def rwkv(r: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    """[time, batch, head, channel]: a matrix for each head, which decays row by row."""

    def step(state: Any, xs: Any) -> Any:
        r, k, v, w = xs
        outer = k[..., :, None] * v[..., None, :]
        y = jnp.einsum("bhk,bhkv->bhv", r, state + u[:, :, None] * outer)
        return jnp.exp(-jnp.exp(w))[..., :, None] * state + outer, y

    heads, channels = u.shape
    return lax.scan(step, jnp.zeros((r.shape[1], heads, channels, channels)), (r, k, v, w))


def delta_rule(q: Any, k: Any, v: Any, beta: Any) -> Any:
    """What the state says of a key is corrected: a reduction of the state goes into the state."""

    def step(state: Any, xs: Any) -> Any:
        q, k, v, beta = xs
        wrong = v - (state * k[:, :, None]).sum(1)
        state = state + beta[:, None, None] * k[:, :, None] * wrong[:, None, :]
        return state, (state * q[:, :, None]).sum(1)

    return lax.scan(step, jnp.zeros((q.shape[1], q.shape[2], v.shape[2])), (q, k, v, beta))


def small_cell(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A recurrent cell so small that a thread holds its state."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)


def moving(x: Any) -> Any:
    """Exponential means in bfloat16; the result is what the last trip leaves, squared."""
    mean, _ = lax.scan(lambda m, x: (m * 0.9 + x * 0.1, None), jnp.zeros(x.shape[1:], x.dtype), x)
    return mean * mean


def counts(x: Any) -> Any:
    """Whole numbers, truth values, a scalar beside a tensor, and the number of the trip in the result."""

    def step(carry: Any, x: Any) -> Any:
        count, best, seen = carry
        count = count + 1
        better = x > best
        return (count, jnp.where(better, x, best), seen | better), (count * x, jnp.where(better, count, -1))

    begin = (jnp.int32(0), jnp.full(x.shape[1:], -5, x.dtype), jnp.zeros(x.shape[1:], bool))
    return lax.scan(step, begin, x)


def unrolled(x: Any) -> Any:
    """Four steps to a trip."""
    return lax.scan(lambda h, x: (h * 0.5 + x, h), jnp.zeros(x.shape[1:]), x, unroll=4)


def shifted(x: Any) -> Any:
    """Each number meets its neighbours: a thread has to have all of a row."""

    def step(h: Any, x: Any) -> Any:
        h = 0.5 * h + 0.25 * jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] + 0.25 * jnp.roll(h, -1, axis=1) + x
        return h, h.max(-1)

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def crossed(x: Any) -> Any:
    """A state that is added to its transpose."""
    return lax.scan(lambda h, x: (0.5 * h + 0.25 * jnp.swapaxes(h, 1, 2) + x, None), jnp.zeros(x.shape[1:]), x)[0]


def power(x: Any) -> Any:
    """No piece of anything for a trip; a constant among the results."""
    return lax.fori_loop(0, 9, lambda at, s: (s[0] * x + at, s[1]), (x, x + 1))


def prefix(x: Any, y: Any) -> Any:
    """What comes before the loop and behind it is fused with what is near."""
    total, sums = lax.scan(lambda s, x: (s + x, s), jnp.zeros(x.shape[1:]), jnp.tanh(x) * 2)
    return jax.nn.softmax(sums + y, axis=-1), total - 1


def twice(x: Any, y: Any) -> Any:
    """One loop after the other, and the second backwards over what the first has laid down."""
    forward = lax.scan(lambda h, x: (h * 0.5 + x, h), jnp.zeros(x.shape[1:]), x)[1]
    return lax.scan(lambda h, x: (h * 0.5 + x, h), y, forward, reverse=True)


def gradient(x: Any, w: Any) -> Any:
    """What jax makes of the gradient of a scan: a second one, over what the first has kept."""

    def loss(w: Any) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(h * w + x), h), jnp.zeros(x.shape[1:]), x)[0].sum()

    return jax.value_and_grad(loss)(w)


BF16 = jnp.bfloat16
CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "advantages": (advantages, (floats(11, 37), floats(11, 37), (floats(11, 37) > 0.7).astype(np.float32))),
    "mamba": (mamba, (floats(7, 2, 24), floats(7, 2, 24, low=0), floats(24, 4, low=-1, high=0), floats(7, 2, 4),
                      floats(7, 2, 4))),
    "rwkv": (rwkv, (floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(3, 8))),
    "delta rule": (delta_rule, (floats(6, 3, 8), floats(6, 3, 8), floats(6, 3, 10), floats(6, 3))),
    "small cell": (small_cell, (floats(6, 9, 5), floats(5, 8), floats(8, 8), floats(8))),
    "moving": (moving, (np.asarray(floats(12, 50), BF16),)),
    "counts": (counts, (_NUMBERS.integers(-9, 9, (10, 21), dtype=np.int32),)),
    "unrolled": (unrolled, (floats(16, 33),)),
    "unrolled with a rest": (unrolled, (floats(18, 33),)),
    "shifted": (shifted, (floats(5, 40, 6),)),
    "crossed": (crossed, (floats(5, 20, 4, 4),)),
    "power": (power, (floats(30),)),
    "prefix": (prefix, (floats(9, 40), floats(9, 40))),
    "twice": (twice, (floats(9, 40), floats(40))),
    "gradient": (gradient, (floats(9, 40), floats(40))),
    "one trip": (moving, (floats(1, 40),)),
    "scalar": (lambda x: lax.scan(lambda s, x: (jnp.cos(s + x), s), jnp.float32(0), x), (floats(30),)),
}  # fmt: skip


@pytest.mark.parametrize("rules", ["xla", "blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(24)
def test_a_loop_is_one_launch(name: str, rules: str, runner: Any) -> None:
    function, inputs = CASES[name]
    found = Batch.made((Case(name=name, group="scans", function=function, inputs=inputs),), "scans")
    assert found.module.foreign == {}
    assert found.module.scans
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    assert sum(program.scan for kernel in plan.kernels for program in kernel.programs) == len(found.module.scans)
    found.check(runner, plan)
