"""The corpus: public functions of jax, flax, optax and equinox, each at a small and at a real size.

An entry builds a function and the shapes of its arguments from `Dims`. Parameters of flax's and optax's are arguments
as well: what is traced is a pure function, as a training step has it. Matrix products stay in (they are library calls).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32
Traced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and the shapes of its arguments (trees of jax.ShapeDtypeStruct)."""


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes that the entries are made of."""

    batch: int
    length: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    tokens: int
    images: int
    side: int
    channels: int
    nodes: int
    edges: int
    features: int
    experts: int

    @property
    def rows(self) -> int:
        return self.batch * self.length


REAL = Dims(
    batch=8, length=2048, width=4096, heads=32, hidden=14336, vocabulary=128256, tokens=512, images=64, side=56,
    channels=256, nodes=100_000, edges=1_000_000, features=128, experts=8,
)  # fmt: skip
"""A llama-3-8B layer over 16,384 tokens, 128k logits, a ResNet stage, a graph of a million edges."""
SMALL = Dims(
    batch=2, length=12, width=32, heads=4, hidden=48, vocabulary=130, tokens=6, images=2, side=6, channels=16, nodes=20,
    edges=50, features=8, experts=4,
)  # fmt: skip


def of(*dims: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def library(name: str) -> Any:
    """flax.linen, optax or equinox. ModuleNotFoundError where it is not installed."""
    return importlib.import_module(name)


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of all floats among the arguments; the last argument is what comes from behind."""

    def pulled(*arguments: Any) -> Any:
        *given, behind = arguments
        return jax.vjp(function, *given)[1](behind)

    return pulled


def applied(module: Any, *inputs: Any, **options: Any) -> Traced:
    """A flax module as a function of its variables and inputs."""
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), *(jnp.zeros(x.shape, x.dtype) for x in inputs)))
    return lambda variables, *given: module.apply(variables, *given, **options), (variables, *inputs)


def backward(traced: Traced) -> Traced:
    """The gradients of a function by its arguments."""
    function, shapes = traced
    return gradient(function), (*shapes, jax.eval_shape(function, *shapes))


def tree(d: Dims) -> dict[str, jax.ShapeDtypeStruct]:
    """The parameters of a small layer."""
    return {
        "query": of(d.width, d.width), "key": of(d.width, d.width // 4), "up": of(d.width, d.hidden // 2),
        "scale": of(d.width), "shift": of(d.width),
    }  # fmt: skip


def optimizer(make: Callable[[Any], Any]) -> Callable[[Dims], Traced]:
    """A step of one of optax's optimizers over a tree of parameters."""

    def traced(d: Dims) -> Traced:
        optax = library("optax")
        transform = make(optax)
        parameters = tree(d)

        def step(gradients: Any, state: Any, parameters: Any) -> Any:
            updates, state = transform.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state

        return step, (parameters, jax.eval_shape(transform.init, parameters), parameters)

    return traced


def activation(function: Callable[..., Any], count: int = 1) -> Callable[[Dims], Traced]:
    return lambda d: (function, (of(d.rows, d.hidden // 2, dtype=BF16),) * count)


def loss(name: str, *shapes: Callable[[Dims], Any], **options: Any) -> Callable[[Dims], Traced]:
    """The mean of one of optax's losses."""

    def traced(d: Dims) -> Traced:
        function = getattr(library("optax"), name)
        return lambda *given: function(*given, **options).mean(), tuple(each(d) for each in shapes)

    return traced


def by_first(make: Callable[[Dims], Traced]) -> Callable[[Dims], Traced]:
    """The gradient of a mean by its first argument."""

    def traced(d: Dims) -> Traced:
        function, shapes = make(d)
        return jax.grad(function), shapes

    return traced


def both(make: Callable[[Dims], Traced]) -> Callable[[Dims], Traced]:
    return lambda d: backward(make(d))


def logits(d: Dims) -> Any:
    return of(d.tokens, d.vocabulary)


def labels(d: Dims) -> Any:
    return of(d.tokens, dtype=S32)


def values(d: Dims) -> Any:
    return of(d.rows, d.width)


def normed(name: str, dtype: Any = F32) -> Callable[[Dims], Traced]:
    return lambda d: applied(getattr(library("flax.linen"), name)(dtype=dtype), of(d.rows, d.width, dtype=dtype))


def image_normed(name: str, **options: Any) -> Callable[[Dims], Traced]:
    def traced(d: Dims) -> Traced:
        linen = library("flax.linen")
        given = {"num_groups": d.channels // 8, **options} if name == "GroupNorm" else options
        module = getattr(linen, name)(**given)
        later = {"mutable": ["batch_stats"]} if name == "BatchNorm" else {}
        return applied(module, of(d.images, d.side, d.side, d.channels), **later)

    return traced


def batch_normed(d: Dims) -> Traced:
    """What of a batch norm's training step is differentiated: its output, not its running statistics."""
    module = library("flax.linen").BatchNorm(use_running_average=False)
    function, shapes = applied(module, of(d.images, d.side, d.side, d.channels), mutable=["batch_stats"])
    return lambda *given: function(*given)[0], shapes


def eqx_norm(d: Dims) -> Traced:
    module = library("equinox").nn.LayerNorm(d.width)
    return (lambda scale, shift, x: jax.vmap(_with(module, scale, shift))(x)), (of(d.width), of(d.width), values(d))


def _with(module: Any, scale: Any, shift: Any) -> Any:
    eqx = library("equinox")
    return eqx.tree_at(lambda m: (m.weight, m.bias), module, (scale, shift))


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


FUNCTIONS: Mapping[str, Callable[[Dims], Traced]] = {
    # jax.nn and jax.random
    "softmax": lambda d: (jax.nn.softmax, (values(d),)),
    "softmax, backward": both(lambda d: (jax.nn.softmax, (values(d),))),
    "softmax of logits": lambda d: (jax.nn.softmax, (logits(d),)),
    "log softmax": lambda d: (jax.nn.log_softmax, (logits(d),)),
    "logsumexp": lambda d: ((lambda x: jax.nn.logsumexp(x, -1)), (logits(d),)),
    "standardize": lambda d: (jax.nn.standardize, (values(d),)),
    "GELU": activation(jax.nn.gelu),
    "GELU, backward": both(activation(jax.nn.gelu)),
    "SwiGLU": activation(lambda a, b: jax.nn.silu(a) * b, 2),
    "SwiGLU, backward": both(activation(lambda a, b: jax.nn.silu(a) * b, 2)),
    "GeGLU": activation(lambda a, b: jax.nn.gelu(a) * b, 2),
    "squared ReLU, backward": both(activation(lambda x: jnp.square(jax.nn.relu(x)))),
    "one-hot": lambda d: ((lambda at: jax.nn.one_hot(at, d.width)), (of(d.rows, dtype=S32),)),
    "dropout": dropped,
    "categorical": sampled,
    "argmax": lambda d: ((lambda x: jnp.argmax(x, -1)), (logits(d),)),
    "top-p": top_p,
    "causal attention weights": attention_weights,
    "causal attention weights, backward": both(attention_weights),
    "RoPE": rotated,
    "RoPE, backward": lambda d: (lambda x, angles, g: jax.vjp(lambda x: rope(x, angles), x)[1](g)[0],
                                 (*rotated(d)[1], rotated(d)[1][0])),
    "transpose and scale": lambda d: ((lambda x: x.T * 0.5), (values(d),)),
    "heads to the front": lambda d: (
        lambda x, b: jnp.transpose(x + b, (0, 2, 1, 3)),
        (of(d.batch, d.length, d.heads, d.width // d.heads, dtype=BF16), of(d.heads, d.width // d.heads, dtype=BF16))),
    "advantage estimation": advantages,
    "selective scan": selective_scan,
    "matrix states": matrix_states,
    "gated recurrence": gated,
    "gated recurrence, backward": both(gated),
    # flax
    "LayerNorm": normed("LayerNorm"),
    "LayerNorm, backward": both(normed("LayerNorm")),
    "LayerNorm, bf16": normed("LayerNorm", BF16),
    "RMSNorm, bf16": normed("RMSNorm", BF16),
    "RMSNorm, bf16, backward": both(normed("RMSNorm", BF16)),
    "BatchNorm, training": image_normed("BatchNorm", use_running_average=False),
    "BatchNorm, backward": both(batch_normed),
    "BatchNorm, inference": image_normed("BatchNorm", use_running_average=True),
    "GroupNorm": image_normed("GroupNorm"),
    "GroupNorm, backward": both(image_normed("GroupNorm")),
    "InstanceNorm": image_normed("InstanceNorm"),
    "max pooling": pooled("max_pool"),
    "average pooling": pooled("avg_pool"),
    "LSTM cell": cell("OptimizedLSTMCell"),
    "GRU cell": cell("GRUCell"),
    "LSTM over time": over_time("LSTMCell"),
    "LSTM over time, backward": both(over_time("LSTMCell")),
    "GRU over time": over_time("GRUCell"),
    "GRU over time, backward": both(over_time("GRUCell")),
    "ViT block": vit_block,
    "ViT block, backward": both(vit_block),
    "UNet block": unet_block,
    "UNet block, backward": both(unet_block),
    "llama layer": llama_block,
    "llama layer, backward": both(llama_block),
    # equinox
    "equinox LayerNorm": eqx_norm,
    "equinox LayerNorm, backward": both(eqx_norm),
    # optax: losses
    "cross-entropy": loss("softmax_cross_entropy_with_integer_labels", logits, labels),
    "cross-entropy, gradient": by_first(loss("softmax_cross_entropy_with_integer_labels", logits, labels)),
    "soft cross-entropy": loss("softmax_cross_entropy", logits, logits),
    "soft cross-entropy, gradient": by_first(loss("softmax_cross_entropy", logits, logits)),
    "sigmoid cross-entropy": loss("sigmoid_binary_cross_entropy", values, values),
    "sigmoid cross-entropy, gradient": by_first(loss("sigmoid_binary_cross_entropy", values, values)),
    "focal loss": loss("sigmoid_focal_loss", values, values, alpha=0.25),
    "Huber loss, gradient": by_first(loss("huber_loss", values, values)),
    "KL divergence": loss("kl_divergence", logits, logits),
    "cosine similarity": loss("cosine_similarity", values, values, epsilon=1e-6),
    "hinge loss": loss("hinge_loss", values, values),
    # optax: optimizers
    "SGD with momentum": optimizer(lambda optax: optax.sgd(0.1, momentum=0.9)),
    "Adam": optimizer(lambda optax: optax.adam(1e-3)),
    "AdamW": optimizer(lambda optax: optax.adamw(1e-3)),
    "Lion": optimizer(lambda optax: optax.lion(1e-4)),
    "Adafactor": optimizer(lambda optax: optax.adafactor(1e-3)),
    "LAMB": optimizer(lambda optax: optax.lamb(1e-3)),
    "RMSProp": optimizer(lambda optax: optax.rmsprop(1e-3)),
    "AdaGrad": optimizer(lambda optax: optax.adagrad(1e-3)),
    "clipped AdamW": optimizer(lambda optax: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))),
    "moving average": lambda d: ((lambda a, b: library("optax").incremental_update(a, b, 0.01)), (tree(d), tree(d))),
    "global norm": lambda d: ((lambda a: library("optax").tree.norm(a)), (tree(d),)),
    # quantisation, graphs, experts, embeddings
    "int8 by rows": quantised(-1, jnp.int8, 127),
    "int8 by tensor": quantised(None, jnp.int8, 127),
    "fp8 by tensor": quantised(None, jnp.float8_e4m3fn, 448),
    "from int8": restored,
    "graph messages": messages,
    "edge softmax": edge_softmax,
    "embedding": embedded,
    "embedding, gradient": embedding_gradient,
    "router": router,
    "experts": dispatched,
}  # fmt: skip


def text(name: str, dims: Dims) -> str:
    """The module of an entry as HLO text, as jax lowers it. ModuleNotFoundError without the library that it is of."""
    function, shapes = FUNCTIONS[name](dims)
    return str(jax.jit(function).lower(*shapes).as_text(dialect="hlo"))
