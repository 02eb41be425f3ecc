"""Loops that become scans, as jax writes them, and loops that nobody here has thought of."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis import policy as policies
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import oracle
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


def shifted(x: Any) -> Any:
    """Each number meets its neighbours: a thread has to have all of a row."""

    def step(h: Any, x: Any) -> Any:
        h = 0.5 * h + 0.25 * jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] + 0.25 * jnp.roll(h, -1, axis=1) + x
        return h, h.max(-1)

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def pushed(x: Any) -> Any:
    """The same with a shift that keeps the size."""
    return lax.scan(lambda h, x: (lax.pad(h, 0.0, ((1, -1, 0),)) * 0.5 + x, h), jnp.zeros(x.shape[1:]), x)


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


def behind(x: Any, gate: Any, skip: Any) -> Any:
    """What comes behind a loop element by element, in another type; one of them a result, one read by a reduction."""
    last, sums = lax.scan(lambda s, x: (s * 0.5 + x, s), jnp.zeros(x.shape[1:]), x)
    gated = sums * jnp.tanh(gate) + x * skip
    return gated.astype(jnp.bfloat16), jnp.abs(gated).sum(-1), last


def maps(x: Any, y: Any) -> Any:
    """Of three results of a backward loop two are not a loop's; their readers see them from the first step on."""

    def step(h: Any, xs: Any) -> Any:
        at, x, y = xs
        share = jnp.exp(x) * at
        return h * 0.5 + share * y[:, 0], (h, share, (y.T * 2)[None])

    begin = jnp.zeros(x.shape[1:])
    steps = jnp.arange(x.shape[0], dtype=jnp.float32)
    last, (h, share, turned) = lax.scan(step, begin, (steps, x, y), reverse=True)
    return last + share.sum(0) + share[1], h * 2, turned.sum() * 1.5


def counted(x: Any) -> Any:
    """The number of the trip in a map, and as data beside a state of its own."""
    _, (a, b) = lax.scan(lambda c, x: (c + 2, (c * x, x)), jnp.int32(3), x, reverse=True)
    return a + 1, b.sum(0)


def overlaid(x: Any) -> Any:
    """Pieces that are laid down twice at the same place: no whole of all trips, but a state."""

    def body(at: Any, state: Any) -> Any:
        y, h = state
        return lax.dynamic_update_slice(y, jnp.sin(h)[None], (at // 2, 0)), h * 2

    return lax.fori_loop(0, 9, body, (x, x[0]))[0]


def searched(a: Any, v: Any) -> Any:
    """Bisection: each thread looks up its own place in what no trip changes."""
    return jnp.searchsorted(a, v)


def picked(x: Any, at: Any) -> Any:
    """States look each other up, by an index that no trip changes and by one that is a state itself."""

    def step(carry: Any, x: Any) -> Any:
        h, at = carry
        return (h[:, at[0]] * 0.5 + x + jnp.take_along_axis(h, at, 1), (at + 1) % 6), h[:, 2:4]

    return lax.scan(step, (x[0], at), x)


def gradient(x: Any, w: Any) -> Any:
    """What jax makes of the gradient of a scan: a second one, over what the first has kept."""

    def loss(w: Any) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(h * w + x), h), jnp.zeros(x.shape[1:]), x)[0].sum()

    return jax.value_and_grad(loss)(w)


def substeps(x: Any) -> Any:
    """A loop in each trip, and its gradient: what that stores for the way back is the outer one's to store."""

    def step(h: Any, x: Any) -> Any:
        h = lax.fori_loop(0, 5, lambda i, h: h + 0.1 * (x - jnp.tanh(h)) * (1 + i), h)
        return h, h

    def loss(x: Any) -> Any:
        return (lax.scan(step, jnp.zeros_like(x[0]), x)[1] ** 2).sum()

    return jax.grad(loss)(x)


def laid_inside(x: Any) -> Any:
    """What the inner loop stores is read in the same trip; what it reads is computed there; three deep."""

    def step(h: Any, x: Any) -> Any:
        def inner(g: Any, row: Any) -> Any:
            g = lax.fori_loop(0, 3, lambda j, g: 0.5 * g + jnp.cos(row + j), g)
            return g, g * row

        last, rows = lax.scan(inner, h, jnp.stack([h, x, h + x, h * x]), reverse=True)
        return jnp.tanh(rows.max(0)) + 0.1 * last, rows

    return lax.scan(step, jnp.zeros_like(x[0]), x)


def around(x: Any) -> Any:
    """Sums of the whole state, round a loop that threads can have."""
    step = lambda i, s: lax.fori_loop(0, 20, lambda j, s: jnp.sin(s), s) / s.sum()  # noqa: E731
    return lax.fori_loop(0, 9, step, jnp.tile(x, 100))


def state_space_gradient(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """Every channel reads `b` and `c`: their gradients are sums over all threads, stored in each trip."""

    def loss(*given: Any) -> Any:
        x, delta, a, b, c = given

        def step(h: Any, now: Any) -> Any:
            x, delta, b, c = now
            h = jnp.exp(delta[:, None] * a) * h + (delta * x)[:, None] * b
            return h, (h * c).sum(-1)

        return (lax.scan(step, jnp.zeros_like(a), (x, delta, b, c))[1] ** 2).sum()

    return jax.grad(loss, (0, 1, 2, 3, 4))(x, delta, a, b, c)


def long_reductions(q: Any, keys: Any) -> Any:
    """A row's state is normalised, its largest number found: of too many for a thread."""

    def step(m: Any, q: Any) -> Any:
        weights = jax.nn.softmax((m * q[:, None]).sum(-1), -1)
        m = m + 0.1 * weights[..., None] * q[:, None]
        return m / jnp.linalg.norm(m, axis=1, keepdims=True), (weights.argmax(-1), weights.min(-1))

    return lax.scan(step, keys, q)


CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "advantages": (advantages, (floats(11, 37), floats(11, 37), (floats(11, 37) > 0.7).astype(np.float32))),
    "mamba": (mamba, (floats(7, 2, 24), floats(7, 2, 24, low=0), floats(24, 4, low=-1, high=0), floats(7, 2, 4),
                      floats(7, 2, 4))),
    "rwkv": (rwkv, (floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(5, 2, 3, 8), floats(3, 8))),
    "delta rule": (delta_rule, (floats(6, 3, 8), floats(6, 3, 8), floats(6, 3, 10), floats(6, 3))),
    "moving": (moving, (np.asarray(floats(12, 50), jnp.bfloat16),)),
    "counts": (counts, (_NUMBERS.integers(-9, 9, (10, 21), dtype=np.int32),)),
    "shifted": (shifted, (floats(5, 40, 6),)),
    "pushed": (pushed, (floats(5, 40),)),
    "power": (power, (floats(30),)),
    "prefix": (prefix, (floats(9, 40), floats(9, 40))),
    "twice": (twice, (floats(9, 40), floats(40))),
    "gradient": (gradient, (floats(9, 40), floats(40))),
    "behind": (behind, (floats(9, 40), floats(9, 40), floats(40))),
    "maps": (maps, (floats(9, 6), floats(9, 6, 4))),
    "counted": (counted, (_NUMBERS.integers(-9, 9, (10, 21), dtype=np.int32),)),
    "overlaid": (overlaid, (floats(9, 40),)),
    "searched": (searched, (np.sort(floats(32)), floats(5, 9))),
    "picked": (picked, (floats(7, 5, 6), _NUMBERS.integers(0, 6, (5, 6), dtype=np.int32))),
    "substeps": (substeps, (floats(7, 37),)),
    "laid inside": (laid_inside, (floats(6, 37),)),
    "summed by neighbours": (state_space_gradient, (floats(4, 296), floats(4, 296, low=0), floats(296, 3, high=0),
                                                    floats(4, 3), floats(4, 3))),
    "long reductions": (long_reductions, (floats(5, 2, 5), floats(2, 90, 5))),
    "one trip": (moving, (floats(1, 40),)),
    "scalar": (lambda x: lax.scan(lambda s, x: (jnp.cos(s + x), s), jnp.float32(0), x), (floats(30),)),
}  # fmt: skip


@functools.cache
def batch(name: str) -> Batch:
    return Batch.one("scans", name, *CASES[name])


def wide(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, np.float32)


def planned(function: Any, *shapes: Any) -> tuple[HloModule, StitchingPlan]:
    module = importer.read(oracle.lowered(function, *shapes), "m.hlo")
    return module, planner.plan(module, RULES["grid"], LIMITS).plan


def cell(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(x.shape[1:]), x)[0]


def drawn(seed: int) -> tuple[Any, tuple[np.ndarray, ...]]:
    """A scan of a random body over a state of two dimensions and a scalar, and what comes behind it."""
    choose = np.random.default_rng(seed)
    steps, rows, columns = int(choose.integers(1, 9)), int(choose.integers(1, 6)), int(choose.integers(1, 9))
    moves = [
        lambda h: jnp.roll(h, 1, axis=1), lambda h: jnp.flip(h, 0), lambda h: h - h.mean(1, keepdims=True),
        lambda h: jnp.broadcast_to(h.max(0), h.shape), lambda h: lax.pad(h, 0.0, ((0, 0, 0), (-1, 1, 0))),
        lambda h: h.reshape(-1)[::-1].reshape(h.shape), lambda h: jnp.concatenate([h[1:], h[:1]], 0),
        lambda h: (h.reshape(1, *h.shape) * 0.5)[0], lambda h: h.T.reshape(h.shape), lambda h: jnp.cumsum(h, 1) * 0.3,
        lambda h: h @ jnp.full((h.shape[1], h.shape[1]), 0.1), lambda h: h.at[:, 0].set(0.5),
    ]  # fmt: skip
    plain = [jnp.sin, jnp.tanh, lambda h: h * 0.5, lambda h: jnp.abs(h) - 0.1, lambda h: jnp.where(h > 0, h, -0.5 * h)]
    picked = [plain[choose.integers(len(plain))] for _ in range(3)]
    if choose.random() < 0.6:
        picked.insert(int(choose.integers(4)), moves[choose.integers(len(moves))])
    kept = [bool(each) for each in choose.integers(0, 2, 4)]
    options = {"reverse": bool(choose.integers(2)), "unroll": int(choose.integers(1, 4))}

    def function(x: Any, w: Any) -> Any:
        def step(state: Any, xs: Any) -> Any:
            h, count, total = state
            given = jnp.exp(xs) * w
            new = h
            for each in picked:
                new = each(new)
            new = new * 0.7 + given * count
            total = total * 0.5 + (new[0, 0] if kept[3] else count)
            laid = [each for each, keep in zip((h, new, given, total), kept, strict=True) if keep]
            return (new, count + 0.25, total), tuple(laid)

        (h, _, total), laid = lax.scan(step, (x[0] * 0.1, jnp.float32(1), jnp.float32(0)), x, **options)
        behind = [jnp.tanh(each) + 1 if at % 2 else each.sum(0) for at, each in enumerate(laid)]
        return h, total, *behind

    shape = (steps, rows, columns)
    return function, (
        choose.uniform(-1, 1, shape).astype(np.float32),
        choose.uniform(-1, 1, columns).astype(np.float32),
    )
