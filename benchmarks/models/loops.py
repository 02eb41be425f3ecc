"""Loops as JAX's users write them, through `fusiond.jax.fuse`: launches and bytes, beside XLA's.

    python -m benchmarks.models.loops [--only kalman ...] [--quick]

Nothing is executed. Writes docs/results-loops.md; `--page` does nothing else.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import sigmoid

from benchmarks import commands, runs
from benchmarks.corpus import xla
from benchmarks.models import counted
from benchmarks.pages import DOCS, table
from fusiond.errors import RequestError
from fusiond.jax import explain, fuse

KEPT = runs.RESULTS / "static" / f"loops-{counted.GPU}.json"
TORCH = KEPT.with_name(f"loops-torch-{counted.GPU}.json")
"""Of `benchmarks.models.loops_torch`, with its section of the page."""
PAGE = DOCS / "results-loops.md"
HEAD = """# Loops in one launch

`python -m benchmarks.models.loops`: loops as JAX's users write them, through `fusiond.jax.fuse`, and the gradients of
some. 1,024 trips where a function says no other number (`paths` 256, `lorenz` 200, `escape` 64, `heat` 50, `roots` 20),
rows of 4,096 numbers (`paths`, `lorenz`, `roots`, `escape`: a million), layers of 256 units for 8 sequences, all in
float32. The functions stand in benchmarks/models/loops.py.

For an H100 that is not here. *Launches*: the kernels of a region's first seed, before any search, and library calls;
XLA's own as often as its thunks run them. *DRAM*: what the planner reckons that these kernels move, over the least (all
arguments read once, all results written once); XLA's by the operands of its kernels, the least that they can move. What
library calls move is left out on both sides. *Cut*: processor time to trace, cut and look at a loop, before it is asked
for. That results are right, at odd sizes and with gradients, is tested (tests/jax/test_loops.py).
"""
_LIBRARY = ("dot_general", "scan", "while", "cond", "sort", "conv_general_dilated")


def state_space(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """Mamba's: sixteen states a channel."""

    def step(h: Any, now: Any) -> Any:
        x, delta, b, c = now
        h = jnp.exp(delta[:, None] * a) * h + (delta * x)[:, None] * b
        return h, (h * c).sum(-1)

    return lax.scan(step, jnp.zeros_like(a), (x, delta, b, c))[1]


def advantages(rewards: Any, values: Any, done: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        reward, value, following, done = now
        carry = reward + 0.99 * (1 - done) * (following + 0.95 * carry) - value
        return carry, carry

    given = (rewards, values[:-1], values[1:], done)
    return lax.scan(step, jnp.zeros_like(values[0]), given, reverse=True)[1]


def paths(start: Any, key: Any) -> Any:
    step = lambda x, key: (x * jnp.exp(0.02 * jax.random.normal(key, x.shape) - 2e-4), None)  # noqa: E731
    return lax.scan(step, start, jax.random.split(key, 256))[0].mean()


def smoothed(x: Any) -> Any:
    return lax.scan(lambda h, x: (0.9 * h + 0.1 * x,) * 2, x[0], x)[1]


def wkv(k: Any, v: Any, w: Any, u: Any) -> Any:
    """RWKV's, by channel."""

    def step(state: Any, now: Any) -> Any:
        (above, below), (k, v) = state, now
        e, first = jnp.exp(k), jnp.exp(u + k)
        return (above * jnp.exp(-w) + e * v, below * jnp.exp(-w) + e), (above + first * v) / (below + first)

    return lax.scan(step, (jnp.zeros_like(u), jnp.zeros_like(u)), (k, v))[1]


def lorenz(x: Any, y: Any, z: Any) -> Any:
    def step(_: Any, s: Any) -> Any:
        x, y, z = s
        return x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)

    return lax.fori_loop(0, 200, step, (x, y, z))


def roots(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), jnp.ones_like(x))


def escape(re: Any, im: Any) -> Any:
    def step(state: Any) -> Any:
        i, a, b, count = state
        return i + 1, a * a - b * b + re, 2 * a * b + im, count + (a * a + b * b < 4)

    zero = jnp.zeros_like(re)
    return lax.while_loop(lambda state: state[0] < 64, step, (0, zero, zero, zero.astype(jnp.int32)))[3]


def gru(x: Any, w: Any, u: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        (z, r, n), (hz, hr, hn) = jnp.split(x @ w, 3, -1), jnp.split(h @ u, 3, -1)
        z = sigmoid(z + hz)
        h = (1 - z) * jnp.tanh(n + sigmoid(r + hr) * hn) + z * h
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], u.shape[0])), x)[1]


def lstm(x: Any, w: Any, u: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        i, f, g, o = jnp.split(x @ w + state[0] @ u, 4, -1)
        c = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]))
    return lax.scan(step, (zero, zero), x)[1]


def recurrence(a: Any, b: Any) -> Any:
    return lax.associative_scan(lambda one, next: (one[0] * next[0], next[0] * one[1] + next[1]), (a, b))[1]


def running(x: Any) -> Any:
    return jnp.cumsum(x, 0) / jnp.arange(1, len(x) + 1)[:, None], lax.cummax(x, axis=0)


def kalman(z: Any, q: Any, r: Any) -> Any:
    def step(state: Any, z: Any) -> Any:
        gain = (state[1] + q) / (state[1] + q + r)
        state = (state[0] + gain * (z - state[0]), (1 - gain) * (state[1] + q))
        return state, state

    return lax.scan(step, (jnp.zeros_like(q), jnp.ones_like(q)), z)[1]


def masked(x: Any, key: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.fold_in(key, now[1]), 0.8, h.shape)
        return (jnp.where(keep, 0.5 * h + now[0], h),) * 2

    return lax.scan(step, jnp.zeros_like(x[0]), (x, jnp.arange(len(x))))[1]


def substeps(x: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        return (lax.fori_loop(0, 4, lambda _, h: h + 0.1 * (x - jnp.tanh(h)), h),) * 2

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def averages(x: Any, rates: Any) -> Any:
    def one(x: Any, rate: Any) -> Any:
        return lax.scan(lambda h, x: ((1 - rate) * h + rate * x,) * 2, x[0], x)[1]

    return jax.vmap(jax.vmap(one, (1, None), 1), (None, 0))(x, rates)


def heat(u: Any) -> Any:
    step = lambda _, u: u.at[:, 1:-1].add(0.1 * (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2]))  # noqa: E731
    return lax.fori_loop(0, 50, step, u)


def viterbi(scores: Any, transition: Any) -> Any:
    def step(best: Any, now: Any) -> Any:
        every = best[:, :, None] + transition
        return every.max(1) + now, every.argmax(1)

    return lax.scan(step, scores[0], scores[1:])


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: jax.grad(lambda given: (function(*given) ** 2).mean())(given)


def cases(t: int, d: int, n: int, units: int) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
    """Name -> (function, shapes)."""
    key = jax.eval_shape(lambda: jax.random.key(0))

    def f(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    cell = (f(t, 8, units), f(units, 3 * units), f(units, 3 * units))
    long = (f(t, 8, units), f(units, 4 * units), f(units, 4 * units))
    space = (f(t, d), f(t, d), f(d, 16), f(t, 16), f(t, 16))
    return {
        "state_space": (state_space, space),
        "advantages": (advantages, (f(t, d), f(t + 1, d), f(t, d))),
        "paths": (paths, (f(n), key)),
        "smoothed": (smoothed, (f(t, d),)),
        "wkv": (wkv, (f(t, d), f(t, d), f(d), f(d))),
        "lorenz": (lorenz, (f(n),) * 3),
        "roots": (roots, (f(n),)),
        "escape": (escape, (f(n), f(n))),
        "gru": (gru, cell),
        "lstm": (lstm, long),
        "recurrence": (recurrence, (f(t, d), f(t, d))),
        "running": (running, (f(t, d),)),
        "kalman": (kalman, (f(t, d), f(d), f(d))),
        "masked": (masked, (f(t, d), key)),
        "substeps": (substeps, (f(t, d),)),
        "averages": (averages, (f(t, d), f(4))),
        "heat": (heat, (f(d, 61),)),
        "viterbi": (viterbi, (f(t, 8, 9), f(9, 9))),
        "smoothed, gradient": (gradient(smoothed), (f(t, d),)),
        "state_space, gradient": (gradient(state_space), space),
        "substeps, gradient": (gradient(substeps), (f(t, d),)),
        "gru, gradient": (gradient(gru), cell),
        "lstm, gradient": (gradient(lstm), long),
    }


REAL, QUICK = (1024, 4096, 1_000_000, 256), (33, 40, 500, 24)


def row(function: Callable[..., Any], shapes: Sequence[Any]) -> dict[str, Any]:
    noting = counted.Noting({})
    fused = fuse(function, always=True, device=counted.DEVICE, db=noting.db)
    began = time.process_time()
    with mock.patch("fusiond.jax.fusing._platform", return_value="cuda"):
        segments = explain(fused, *shapes).regions
    cut_secs = round(time.process_time() - began, 2)
    regions = [counted.region(each)[1] for each in noting.questions]
    left = [each for each in segments if each.state != "unknown"]
    with tempfile.TemporaryDirectory() as folder:
        theirs = xla.counted(xla.compiler()(function, shapes, Path(folder)))
    results = jax.tree.leaves(jax.eval_shape(function, *shapes))
    size = sum(math.prod(each.shape) * each.dtype.itemsize for each in (*jax.tree.leaves(shapes), *results))
    return {
        "refused": [each["refused"] for each in regions if each["refused"]],
        "kernels": sum(each["kernels"] for each in regions if not each["refused"]),
        "calls": sum(name in _LIBRARY for each in left for name in each.primitives),
        "left": sorted({each.reason for each in left if each.reason and each.reason != "too little to fuse"}),
        "moved": sum(each["planned_bytes"] for each in regions if not each["refused"]),
        "least": size,
        "cut_secs": cut_secs,
        "plan_secs": round(sum(each.get("plan_secs", 0.0) for each in regions), 2),
        "xla": {"kernels": theirs.kernels, "calls": theirs.calls, "moved": theirs.operand_bytes},
    }


def render(run: runs.Run) -> str:
    loops = run["loops"]
    lines = []
    for name, each in loops.items():
        ours, theirs = (f"{one['kernels']}" + (f" + {one['calls']}" if one["calls"] else "")
                        for one in (each, each["xla"]))  # fmt: skip
        times = (one["moved"] / each["least"] for one in (each, each["xla"]))
        why = "; ".join((*each["refused"], *each["left"]))
        lines.append((name, f"**{ours}**", theirs, *(f"{one:.2f}" for one in times), f"{each['cut_secs']:.1f} s", why))
    head = ("loop", "launches", "XLA's", "DRAM over the least", "XLA's", "cut", "left to XLA")
    origin = f"`{run['command']}`, {run['date'][:10]}, nvcc {run['nvcc']}.\n"
    beside = [json.loads(TORCH.read_text(encoding="utf-8"))["section"]] if TORCH.is_file() else []
    return "\n".join([HEAD, table(head, lines), origin, *beside])


def main(argv: Sequence[str] | None = None) -> int:
    made = commands.parser("models.loops", __doc__, quick="few trips")
    made.set_defaults(device=None)
    commands.only(made, cases(*QUICK))

    def run() -> None:
        given = made.parse_args(argv)
        if given.page:
            return commands.page(PAGE, render(json.loads(KEPT.read_text(encoding="utf-8"))), ())
        known = cases(*(QUICK if given.quick else REAL))
        commands.check_only(given, list(known), "loop")
        if given.quick and not given.out:
            raise RequestError("small sizes are not results: name a folder outside benchmarks/results", where="--out")
        where = (given.out / KEPT.name) if given.out else KEPT
        kept = json.loads(where.read_text(encoding="utf-8"))["loops"] if where.is_file() else {}
        run = runs.new("loops", "", made.prog, "counted", {"name": counted.GPU, "arch": counted.ARCH})
        run["loops"] = kept
        for name in given.only or known:
            kept[name] = row(*known[name])
            runs.write(where, run)
            commands.say(f"{name}: {kept[name]}")
        if not given.out:
            commands.page(PAGE, render(run), ())

    return commands.status(functools.partial(run))


if __name__ == "__main__":
    raise SystemExit(main())
