"""Functions of the corpus that are parts of models: blocks, cells, routers, samplers, states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.corpus.dims import BF16, F32, S32, Dims, Traced, applied, library, logits, of, values


def attention_weights(d: Dims) -> Traced:
    side = min(d.length, 2048)

    def weights(scores: Any) -> Any:
        mask = jnp.tril(jnp.ones((side, side), bool))
        wide = jnp.where(mask, scores.astype(F32) * 0.088, -jnp.inf)
        return jax.nn.softmax(wide, -1).astype(scores.dtype)

    return weights, (of(d.heads // 2, side, side, dtype=BF16),)


def rope(x: Any, angles: Any) -> Any:
    first, second = jnp.split(x.astype(F32), 2, axis=-1)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def rotated(d: Dims) -> Traced:
    head = d.width // d.heads
    return rope, (of(d.batch, d.length, d.heads, head, dtype=BF16), of(d.length, head // 2))


def rms(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def llama_block(d: Dims) -> Traced:
    """A llama layer without the attention's products over the sequence, which a library's kernel does."""
    head = d.width // d.heads
    length = d.length // 2

    def layer(x: Any, w: Any, angles: Any) -> Any:
        h = rms(x, w["norm"])
        query = (h @ w["query"]).reshape(length, d.heads, head)
        key = (h @ w["key"]).reshape(length, d.heads // 4, head)
        query, key = rope(query, angles), rope(key, angles)
        mixed = query * jnp.repeat(key, 4, axis=1)
        x = x + mixed.reshape(length, d.width) @ w["out"]
        h = rms(x, w["norm_2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    kind = {"dtype": BF16}
    weights = {
        "norm": of(d.width, **kind), "norm_2": of(d.width, **kind), "query": of(d.width, d.width, **kind),
        "key": of(d.width, d.width // 4, **kind), "out": of(d.width, d.width, **kind),
        "gate": of(d.width, d.hidden, **kind), "up": of(d.width, d.hidden, **kind),
        "down": of(d.hidden, d.width, **kind),
    }  # fmt: skip
    return layer, (of(length, d.width, **kind), weights, of(length, head // 2))


def vit_block(d: Dims) -> Traced:
    linen = library("flax.linen")
    width, heads = d.width // 4, d.heads // 4 or 1

    class Block(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = x + linen.MultiHeadDotProductAttention(num_heads=heads)(linen.LayerNorm()(x))
            h = linen.Dense(4 * width)(linen.LayerNorm()(x))
            return x + linen.Dense(width)(linen.gelu(h))

    return applied(Block(), of(d.batch, min(d.length, 197), width))


def unet_block(d: Dims) -> Traced:
    linen = library("flax.linen")

    class Block(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, x: Any, time: Any) -> Any:
            h = linen.Conv(d.channels, (3, 3))(linen.silu(linen.GroupNorm(d.channels // 8)(x)))
            h = h + linen.Dense(d.channels)(linen.silu(time))[:, None, None]
            return x + linen.Conv(d.channels, (3, 3))(linen.silu(linen.GroupNorm(d.channels // 8)(h)))

    images = max(1, d.images // 8)
    return applied(Block(), of(images, d.side, d.side, d.channels), of(images, d.channels))


def cell(name: str) -> Callable[[Dims], Traced]:
    """A recurrent cell; its state may be a pair, which `applied` cannot make up."""

    def traced(d: Dims) -> Traced:
        module = getattr(library("flax.linen"), name)(features=d.width // 4)
        one = of(d.tokens, d.width // 4)
        carry = (one, one) if "LSTM" in name else one

        def start() -> Any:
            return module.init(
                jax.random.key(0), jax.tree.map(lambda x: jnp.zeros(x.shape), carry), jnp.zeros(one.shape)
            )

        return module.apply, (jax.eval_shape(start), carry, one)

    return traced


def over_time(name: str) -> Callable[[Dims], Traced]:
    """A recurrent layer: its cell for each step of sequences."""

    def traced(d: Dims) -> Traced:
        linen = library("flax.linen")
        return applied(linen.RNN(getattr(linen, name)(d.features)), of(d.tokens, max(8, d.length // 32), d.features))

    return traced


def quantised(axis: int | None, kind: Any, most: float) -> Callable[[Dims], Traced]:
    def convert(x: Any) -> Any:
        scale = jnp.abs(x).max(axis, keepdims=True) / most
        scaled = x / scale
        return (jnp.round(scaled) if kind == jnp.int8 else scaled).astype(kind), scale

    return lambda d: (convert, (values(d),))


def restored(d: Dims) -> Traced:
    return (lambda x, scale: (x.astype(F32) * scale[:, None]).astype(BF16)), (
        of(d.rows, d.width, dtype=jnp.int8), of(d.rows),
    )  # fmt: skip


def top_p(d: Dims) -> Traced:
    """Logits below the mean of what a nucleus keeps go, without a sort: three rounds of bisection."""

    def kept(x: Any) -> Any:
        shares = jax.nn.softmax(x, -1)
        low, high = jnp.zeros(x.shape[:-1]), shares.max(-1)
        for _ in range(3):
            middle = (low + high) / 2
            held = jnp.where(shares >= middle[..., None], shares, 0).sum(-1)
            low, high = jnp.where(held >= 0.9, middle, low), jnp.where(held >= 0.9, high, middle)
        return jnp.where(shares >= low[..., None], x, -jnp.inf)

    return kept, (logits(d),)


def messages(d: Dims) -> Traced:
    def summed(nodes: Any, source: Any, target: Any, weights: Any) -> Any:
        return jax.ops.segment_sum(nodes[source] * weights[:, None], target, nodes.shape[0])

    edges = of(d.edges, dtype=S32)
    return summed, (of(d.nodes, d.features), edges, edges, of(d.edges))


def edge_softmax(d: Dims) -> Traced:
    def shares(weights: Any, target: Any) -> Any:
        most = jax.ops.segment_max(weights, target, d.nodes)
        grown = jnp.exp(weights - most[target])
        return grown / jax.ops.segment_sum(grown, target, d.nodes)[target]

    return shares, (of(d.edges), of(d.edges, dtype=S32))


def embedded(d: Dims) -> Traced:
    return (lambda table, at: table[at]), (of(d.vocabulary // 4, d.width), of(d.batch, d.length // 2, dtype=S32))


def embedding_gradient(d: Dims) -> Traced:
    table, at = embedded(d)[1]

    def grown(at: Any, given: Any) -> Any:
        return jnp.zeros(table.shape).at[at].add(given)

    return grown, (at, of(*at.shape, d.width))


def router(d: Dims) -> Traced:
    def routed(x: Any) -> Any:
        shares = jax.nn.softmax(x, -1)
        best = jnp.argmax(shares, -1)
        return shares, best, jax.nn.one_hot(best, d.experts).mean(0) * shares.mean(0) * d.experts

    return routed, (of(d.rows, d.experts),)


def dispatched(d: Dims) -> Traced:
    slots = d.experts * (d.rows // d.experts + 4)

    def sent(x: Any, at: Any) -> Any:
        return jnp.zeros((slots, d.width), x.dtype).at[at].add(x, mode="drop")

    return sent, (of(d.rows // 2, d.width, dtype=BF16), of(d.rows // 2, dtype=S32))


def dropped(d: Dims) -> Traced:
    def drop(key: Any, x: Any) -> Any:
        kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
        return jnp.where(kept, x / 0.9, 0)

    return drop, (of(2, dtype=jnp.uint32), of(d.rows // 4, d.width))


def sampled(d: Dims) -> Traced:
    return (lambda key, x: jax.random.categorical(jax.random.wrap_key_data(key), x)), (
        of(2, dtype=jnp.uint32),
        logits(d),
    )


def pooled(name: str) -> Callable[[Dims], Traced]:
    def traced(d: Dims) -> Traced:
        pool = getattr(library("flax.linen"), name)
        return lambda x: pool(x, (2, 2), (2, 2)), (of(d.images, d.side, d.side, d.channels),)

    return traced


def advantages(d: Dims) -> Traced:
    """Generalised advantage estimation over many environments, from the last step to the first."""

    def estimated(rewards: Any, values: Any, done: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            advantage, following = carry
            reward, value, done = x
            delta = reward + 0.99 * following * (1 - done) - value
            advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
            return (advantage, value), advantage

        begin = (jnp.zeros_like(values[-1]), values[-1])
        found = jax.lax.scan(step, begin, (rewards, values, done), reverse=True)[1]
        return found, found + values

    one = of(d.length // 4, d.width * 4)
    return estimated, (one, one, one)


def selective_scan(d: Dims) -> Traced:
    """Mamba's over a part of the sequence: [time, batch, channel], a state of 16 numbers for each channel."""

    def scanned(x: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any) -> Any:
        def step(h: Any, xs: Any) -> Any:
            x, delta, b, c = xs
            h = jnp.exp(delta[..., None] * a) * h + (delta * x)[..., None] * b[:, None, :]
            return h, (h * c[:, None, :]).sum(-1)

        y = jax.lax.scan(step, jnp.zeros((d.batch, *a.shape)), (x, delta, b, c))[1]
        return y + x * skip

    length = max(8, d.length // 8)
    one, state = of(length, d.batch, d.width), of(length, d.batch, 16)
    return scanned, (one, one, of(d.width, 16), state, state, of(d.width))


def matrix_states(d: Dims) -> Traced:
    """RWKV-6's over a part of the sequence: a matrix for each head, whose rows decay as the data says."""
    channels = min(64, d.width // d.heads)

    def scanned(r: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
        def step(state: Any, xs: Any) -> Any:
            r, k, v, w = xs
            outer = k[..., :, None] * v[..., None, :]
            y = jnp.einsum("bhk,bhkv->bhv", r, state + u[:, :, None] * outer)
            return jnp.exp(-jnp.exp(w))[..., :, None] * state + outer, y

        return jax.lax.scan(step, jnp.zeros((d.batch, *u.shape, channels)), (r, k, v, w))

    one = of(max(8, d.length // 32), d.batch, d.width // channels, channels)
    return scanned, (one, one, one, one, of(d.width // channels, channels))


def gated(d: Dims) -> Traced:
    """A linear recurrence with gates, as Griffin and minGRU have it."""

    def scanned(x: Any, gate: Any) -> Any:
        def step(h: Any, xs: Any) -> Any:
            x, gate = xs
            share = jax.nn.sigmoid(gate)
            h = (1 - share) * h + share * x
            return h, h

        return jax.lax.scan(step, jnp.zeros(x.shape[1:]), (x, gate))[1]

    one = of(d.length, d.batch, d.width)
    return scanned, (one, one)
