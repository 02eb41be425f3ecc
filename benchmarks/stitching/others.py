"""Functions that nobody tuned this strategy for: training steps, layers, losses, simulations, image and signal code.

Each is lowered by jax, for a GPU, when it is asked for; what XLA's own GPU compiler launches for the same texts is in
`others.json`. Inputs are drawn from one seed, so that the same functions can be run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.stitching.drawn_inputs import floats, positive, weights, whole, zeros_like


@dataclass(frozen=True, eq=False)
class Function:
    """`function(*inputs)`; the inputs may be nested in tuples, lists and dicts."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]

    @functools.cached_property
    def text(self) -> str:
        """HLO as jax lowers it for a GPU (for a processor, random bits would be a loop), before XLA."""
        traced = jax.jit(self.function, keep_unused=True).trace(*self.inputs)
        return str(traced.lower(lowering_platforms=("cuda",)).as_text(dialect="hlo"))


def functions() -> Mapping[str, Function]:
    """All of them, by name."""
    return {each.name: each for each in _FUNCTIONS}


@functools.cache
def xla() -> Mapping[str, Any]:
    """What XLA's GPU compiler launches for each, and how that was found out."""
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


_FUNCTIONS: list[Function] = []


def _other(*inputs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _FUNCTIONS.append(Function(function.__name__, function, inputs))
        return function

    return add


# --- layers ---------------------------------------------------------------------------------------------


def _layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def _rms_norm(x: Any, gain: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


@_other(floats(33, 100), floats(100), floats(100), floats(33, 100))
def layer_norm_gradient(x, gain, bias, slope):
    return jax.vjp(_layer_norm, x, gain, bias)[1](slope)


@_other(floats(7, 1000), floats(1000), floats(7, 1000))
def rms_norm_gradient(x, gain, slope):
    value, back = jax.vjp(_rms_norm, x, gain)
    return value, back(slope)


@_other(floats(16, 64), *weights((64, 96), (64, 96), (96, 64)).values())
def swiglu(x, gate, up, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


_MLP = weights((784, 33), (33,), (33, 10), (10,))


@_other(_MLP, zeros_like(_MLP), zeros_like(_MLP), np.float32(3), floats(33, 784), whole(10, 33))
def mlp_adam(weights, means, squares, step, x, y):
    def loss(w):
        hidden = jax.nn.gelu(x @ w["w0"] + w["w1"])
        logits = jax.nn.log_softmax(hidden @ w["w2"] + w["w3"])
        wanted = jax.nn.one_hot(y, 10) * 0.9 + 0.01
        return -(wanted * logits).sum(-1).mean()

    value, slopes = jax.value_and_grad(loss)(weights)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, slopes)

    def new(w, m, v):
        return w - 1e-3 * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

    return value, jax.tree.map(new, weights, means, squares), means, squares


@_other(_MLP, floats(33, 784), whole(10, 33))
def clipped_sgd(weights, x, y):
    def loss(w):
        logits = jax.nn.relu(x @ w["w0"] + w["w1"]) @ w["w2"] + w["w3"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    slopes = jax.grad(loss)(weights)
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(slopes)))
    return jax.tree.map(lambda w, g: w - 0.1 * g * jnp.minimum(1.0, 1.0 / norm), weights, slopes)


@_other(floats(8, 7, 7, 12), floats(12), floats(12), floats(12), positive(12), floats(8, 7, 7, 12))
def batch_norm_step(x, gain, bias, mean, variance, wanted):
    def loss(gain, bias, x):
        now, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
        y = jax.nn.relu((x - now) * lax.rsqrt(spread + 1e-5) * gain + bias)
        return ((y - wanted) ** 2).mean(), (0.9 * mean + 0.1 * now, 0.9 * variance + 0.1 * spread)

    return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(gain, bias, x)


@_other(floats(2, 6, 6, 12), floats(12), floats(12))
def group_norm(x, gain, bias):
    y = x.reshape(2, 6, 6, 4, 3)
    scaled = (y - y.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)
    return scaled.reshape(x.shape) * gain + bias


@_other(floats(3, 9, 11, 5), floats(3, 9, 11, 5))
def instance_norm_gradient(x, slope):
    def norm(x):
        return (x - x.mean((1, 2), keepdims=True)) / jnp.sqrt(x.var((1, 2), keepdims=True) + 1e-5)

    return jax.vjp(norm, x)[1](slope)


_GRU = (floats(17, 24), floats(17, 40), floats(24, 120, scale=0.2), floats(40, 120, scale=0.2), floats(120))


@_other(*_GRU)
def gru_cell(x, h, w, u, b):
    given, kept = jnp.split(x @ w + b, 3, 1), jnp.split(h @ u, 3, 1)
    reset, keep = jax.nn.sigmoid(given[0] + kept[0]), jax.nn.sigmoid(given[1] + kept[1])
    return (1 - keep) * jnp.tanh(given[2] + reset * kept[2]) + keep * h


@_other(*_GRU, floats(17, 40))
def gru_gradient(x, h, w, u, b, slope):
    return jax.vjp(gru_cell, x, h, w, u, b)[1](slope)


@_other(floats(1, 7), floats(1, 33), floats(1, 33), floats(40, 132, scale=0.2), floats(132))
def lstm_cell(x, h, c, w, b):
    i, f, g, o = jnp.split(jnp.concatenate([x, h], 1) @ w + b, 4, axis=1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _rotary(x: Any) -> Any:
    time, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(time)[:, None] / 10000.0 ** (jnp.arange(half) / half)
    left, right = x[..., :half], x[..., half:]
    cosine, sine = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _block(w: Any, x: Any, mask: Any) -> Any:
    batch, time, width = x.shape
    y = _rms_norm(x, w["w0"])
    q, k, v = ((y @ w[name]).reshape(batch, time, 4, width // 4) for name in ("w1", "w2", "w3"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", _rotary(q), _rotary(k)) / np.float32(np.sqrt(width // 4))
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)) & mask[:, None, None, :], scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(batch, time, width)
    x = x + mixed @ w["w4"]
    y = _rms_norm(x, w["w5"])
    return x + (jax.nn.silu(y @ w["w6"]) * (y @ w["w7"])) @ w["w8"]


_BLOCK = weights((32,), (32, 32), (32, 32), (32, 32), (32, 32), (32,), (32, 48), (32, 48), (48, 32))
_MASK = np.arange(17)[None, :] < np.array([17, 9])[:, None]


@_other(_BLOCK, floats(2, 17, 32), _MASK)
def llama_block(weights, x, mask):
    return _block(weights, x, mask)


@_other(_BLOCK, floats(2, 17, 32), _MASK, floats(2, 17, 32))
def llama_step(weights, x, mask, wanted):
    value, slopes = jax.value_and_grad(lambda w: ((_block(w, x, mask) - wanted) ** 2).mean())(weights)
    return value, jax.tree.map(lambda w, g: w - 0.01 * g, weights, slopes)


@_other(floats(2, 4, 1, 16), floats(2, 4, 33, 16), floats(2, 4, 33, 16), floats(2, 4, 1, 16),
        floats(2, 4, 1, 16), np.int32(20))  # fmt: skip
def decode_with_cache(q, keys, values, k, v, at):
    keys = lax.dynamic_update_slice(keys, k, (0, 0, at, 0))
    values = lax.dynamic_update_slice(values, v, (0, 0, at, 0))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys) * 0.25
    scores = jnp.where(jnp.arange(33) <= at, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), values), keys, values


# --- losses ---------------------------------------------------------------------------------------------


@_other(floats(50, 12), whole(50, 4, 7), floats(12, 9), whole(9, 4))
def embedding_step(table, words, head, wanted):
    def loss(table, head):
        logits = table[words].mean(1) @ head
        return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, wanted[:, None], 1)[:, 0]).mean()

    return jax.value_and_grad(loss, argnums=(0, 1))(table, head)


@_other(floats(31, 1000), whole(1000, 31))
def smoothed_cross_entropy(logits, y):
    def loss(x):
        logged = jax.nn.log_softmax(x)
        wanted = jax.nn.one_hot(y, 1000) * 0.9 + 0.1 / 1000
        return -(wanted * logged).sum(-1).mean()

    return jax.value_and_grad(loss)(logits)


@_other(floats(33, 20), whole(2, 33, 20).astype(np.float32))
def focal_loss(logits, y):
    def loss(x):
        p = jax.nn.sigmoid(x)
        entropy = -(y * jax.nn.log_sigmoid(x) + (1 - y) * jax.nn.log_sigmoid(-x))
        return ((1 - (p * y + (1 - p) * (1 - y))) ** 2 * entropy).mean()

    return jax.value_and_grad(loss)(logits)


@_other(floats(4096), floats(4096))
def huber(x, y):
    def loss(x):
        far = jnp.abs(x - y)
        return jnp.where(far < 1, 0.5 * far**2, far - 0.5).mean()

    return jax.value_and_grad(loss)(x)


@_other(floats(33, 40), floats(33, 40), floats(33, 40))
def triplet_loss(anchor, same, other):
    def unit(x):
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6)

    def loss(a, s, o):
        a, s, o = unit(a), unit(s), unit(o)
        return jnp.maximum((a * o).sum(-1) - (a * s).sum(-1) + 0.2, 0).mean()

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(anchor, same, other)


@_other(floats(33, 40), floats(33, 40))
def contrastive_loss(x, y):
    def loss(x, y):
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        y = y / jnp.linalg.norm(y, axis=-1, keepdims=True)
        scores = x @ y.T / 0.07
        at = jnp.arange(33)
        return -(jax.nn.log_softmax(scores, 1)[at, at].mean() + jax.nn.log_softmax(scores, 0)[at, at].mean()) / 2

    return jax.value_and_grad(loss, argnums=(0, 1))(x, y)


@_other(floats(33, 5), floats(33, 5), floats(33, 5), floats(33, 1))
def mixture_density(logits, means, spreads, y):
    def loss(logits, means, spreads):
        density = -0.5 * ((y - means) * jnp.exp(-spreads)) ** 2 - spreads - 0.919
        return -jax.nn.logsumexp(jax.nn.log_softmax(logits) + density, -1).mean()

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(logits, means, spreads)


@_other(positive(40, 4), positive(40))
def pairwise_iou(boxes, scores):
    low, high = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    size = jnp.clip(jnp.minimum(high[:, None], high) - jnp.maximum(low[:, None], low), 0)
    shared, area = size[..., 0] * size[..., 1], (high - low).prod(-1)
    iou = shared / (area[:, None] + area - shared)
    better = scores[None, :] > scores[:, None]
    return jnp.where((better & (iou > 0.5)).any(1), 0.0, scores), iou.max(1)


@_other(floats(100, 7), floats(9, 7))
def k_means(points, centres):
    far = ((points[:, None] - centres) ** 2).sum(-1)
    nearest = jnp.argmin(far, 1)
    members = jax.nn.one_hot(nearest, 9)
    return (members.T @ points) / jnp.maximum(members.sum(0)[:, None], 1), nearest, far.min(1).sum()


# --- images, signals, scans -----------------------------------------------------------------------------


@_other(floats(33, 47, 3))
def gaussian_blur(x):
    taps = [0.0625, 0.25, 0.375, 0.25, 0.0625]
    y = jnp.pad(x, ((2, 2), (0, 0), (0, 0)), mode="reflect")
    y = sum(tap * y[at : at + 33] for at, tap in enumerate(taps))
    y = jnp.pad(y, ((0, 0), (2, 2), (0, 0)), mode="edge")
    return sum(tap * y[:, at : at + 47] for at, tap in enumerate(taps))


@_other(floats(40, 40), floats(40, 40))
def wave_equation(now, before):
    for _ in range(3):
        around = jnp.roll(now, 1, 0) + jnp.roll(now, -1, 0) + jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1) - 4 * now
        now, before = 2 * now - before + 0.1 * around, now
    return now, before, (now**2).sum()


@_other(floats(1000))
def windowed_dct(x):
    frames = x[: 15 * 64].reshape(15, 64) * np.hanning(64).astype(np.float32)
    basis = np.cos(np.pi / 64 * (np.arange(64)[:, None] + 0.5) * np.arange(64)).astype(np.float32)
    return jnp.log(jnp.abs(frames @ basis) + 1e-6) - jnp.abs(frames).max(-1, keepdims=True)


@_other(floats(7, 33))
def running_sums(x):
    return jnp.cumsum(x, 1), jnp.cumprod(1 + 0.1 * x, 0), lax.cummax(x, axis=1)


@_other(floats(8, 12, 14, 3))
def pooling(x):
    most = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    mean = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jax.nn.relu(most), mean - mean.mean()


@_other(floats(4, 100))
def moving_average(x):
    mean = lax.reduce_window(x, 0.0, lax.add, (1, 9), (1, 1), ((0, 0), (4, 4))) / 9
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)


@_other(floats(7, 65))
def linear_recurrence(x):
    decay = jax.nn.sigmoid(x)
    return lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, x * (1 - decay)), axis=1)


@_other(whole(5, 33), floats(33, 7))
def segments(ids, x):
    sums = jax.ops.segment_sum(x, ids, 5)
    count = jax.ops.segment_sum(jnp.ones(33), ids, 5)
    return (x - (sums / jnp.maximum(count, 1)[:, None])[ids]) * 2


# --- science --------------------------------------------------------------------------------------------


@_other(floats(33, 3), positive(33))
def n_body(places, masses):
    apart = places[None] - places[:, None]
    near = ((apart**2).sum(-1) + 0.01) ** -1.5
    forces = (apart * (near * masses)[..., None]).sum(1)
    return forces, 0.5 * (masses[:, None] * (forces**2)).sum()


@_other(positive(1023), positive(1023), positive(1023))
def black_scholes(price, strike, time):
    def value(price, time):
        root = 0.3 * jnp.sqrt(time)
        first = (jnp.log(price / strike) + (0.02 + 0.045) * time) / root
        second = first - root
        phi = jax.scipy.stats.norm.cdf
        return (price * phi(first) - strike * jnp.exp(-0.02 * time) * phi(second)).sum()

    return jax.value_and_grad(value, argnums=(0, 1))(price, time)


@_other(floats(500, 3), floats(7, 3, scale=3.0), positive(7))
def ray_sphere(rays, centres, radii):
    rays = rays / jnp.linalg.norm(rays, axis=-1, keepdims=True)
    along = (rays[:, None] * centres).sum(-1)
    under = along**2 - (centres**2).sum(-1) + radii**2
    far = jnp.where((under > 0) & (along > 0), along - jnp.sqrt(jnp.maximum(under, 0)), jnp.inf)
    near = far.min(-1)
    light = jnp.clip((rays * jnp.array([0.6, 0.0, 0.8])).sum(-1), 0.1, 1.0)
    return jnp.where(jnp.isfinite(near), light * jnp.exp(-near / 10), 0.0), (far < jnp.inf).sum(-1)


@_other(floats(6), floats(6, 6), floats(6, 6), floats(1, 6), floats(1))
def kalman_step(x, p, f, h, z):
    x, p = f @ x, f @ p @ f.T + 0.1 * jnp.eye(6)
    spread = h @ p @ h.T + 0.5
    gain = p @ h.T / spread
    return x + gain @ (z - h @ x), (jnp.eye(6) - gain @ h) @ p


@_other(floats(4, 33, 20))
def standardised(x):
    y = (x - x.mean((0, 2), keepdims=True)) / (x.std((0, 2), keepdims=True) + 1e-6)
    return y, y.var((0, 1), ddof=1), jnp.abs(y).max(), jnp.linalg.norm(y, axis=1)


# --- numbers of other kinds -----------------------------------------------------------------------------


@_other(floats(33, 100), np.array([1, 2], np.uint32))
def dropout(x, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0.0)


@_other(floats(100, 33), np.array([3, 4], np.uint32))
def noisy(x, key):
    return x + 0.1 * jax.random.normal(key, x.shape)


_HALF = {"w": floats(40, 24, scale=0.2), "b": floats(24)}


@_other(_HALF, floats(16, 40), floats(16, 24))
def mixed_precision(master, x, y):
    weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), master)

    def loss(w):
        out = jax.nn.relu(x.astype(jnp.bfloat16) @ w["w"] + w["b"]).astype(jnp.float32)
        return ((out - y) ** 2).mean() * 128

    value, slopes = jax.value_and_grad(loss)(weights)
    return value / 128, jax.tree.map(lambda w, g: w - 0.1 * g.astype(jnp.float32) / 128, master, slopes)


@_other(floats(33, 40), whole(255, 40, 24).astype(np.int8), positive(24))
def int8_layer(x, w, scales):
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    whole = jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8)
    out = lax.dot_general(whole, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return jax.nn.gelu(out.astype(jnp.float32) * scale * scales, approximate=False)


@_other(whole(2**31 - 1, 1000).astype(np.uint32))
def hashed(x):
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    return x, lax.population_count(x), lax.clz(x), (x >> 8).astype(jnp.float32) * 2.0**-24


@_other(floats(7, 12), floats(7, 12), whole(2, 7).astype(bool))
def rearranged(x, y, flag):
    joined = jnp.where(flag[:, None], jnp.roll(x, 3, 1)[:, ::-1], jnp.pad(y, ((0, 0), (2, 1)))[:, 1:-2])
    return jnp.stack([joined, joined.T.reshape(7, 12)]), jnp.repeat(joined, 3, 0).sum(1), jnp.tril(joined @ joined.T)


# --- with boundaries ------------------------------------------------------------------------------------


@_other(floats(17, 100), floats(17, 1))
def top_k(x, noise):
    scaled = x / 0.7 + noise
    most, at = lax.top_k(scaled, 5)
    return jax.nn.softmax(most), at


@_other(floats(9, 17, 8), floats(17, 16), floats(8, 64, scale=0.2), floats(16, 64, scale=0.2))
def scanned_rnn(xs, h, w, u):
    def step(h, x):
        i, g, o, f = jnp.split(x @ w + h @ u, 4, 1)
        h = jax.nn.sigmoid(f) * h + jax.nn.sigmoid(i) * jnp.tanh(g)
        return h, (jax.nn.sigmoid(o) * h).sum(-1)

    h, out = lax.scan(step, h, xs)
    return jax.nn.softmax(h), out.mean(0)


@_other(floats(33, 7), np.float32(0.3))
def branched(x, at):
    y = lax.cond(at > 0, lambda x: jnp.tanh(x - x.mean(0)), lambda x: x * 0.5, x)
    return jax.nn.softmax(y)


@_other(floats(2, 14, 14, 3), floats(3, 3, 3, 8, scale=0.2), floats(8))
def convolved(x, kernel, bias):
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + bias).mean((1, 2))
