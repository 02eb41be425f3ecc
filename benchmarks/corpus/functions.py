"""The corpus: public functions of jax, flax, optax and equinox, each at a small and at a real size.

An entry builds a function and the shapes of its arguments from `Dims`. Parameters of flax's and optax's are arguments
as well: what is traced is a pure function, as a training step has it. Matrix products stay in (they are library calls).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.corpus import models
from benchmarks.corpus.dims import BF16, F32, S32, Dims, Traced, applied, backward, labels, library, logits, of, values


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
    "dropout": models.dropped,
    "categorical": models.sampled,
    "argmax": lambda d: ((lambda x: jnp.argmax(x, -1)), (logits(d),)),
    "top-p": models.top_p,
    "causal attention weights": models.attention_weights,
    "causal attention weights, backward": both(models.attention_weights),
    "RoPE": models.rotated,
    "RoPE, backward": lambda d: (lambda x, angles, g: jax.vjp(lambda x: models.rope(x, angles), x)[1](g)[0],
                                 (*models.rotated(d)[1], models.rotated(d)[1][0])),
    "transpose and scale": lambda d: ((lambda x: x.T * 0.5), (values(d),)),
    "heads to the front": lambda d: (
        lambda x, b: jnp.transpose(x + b, (0, 2, 1, 3)),
        (of(d.batch, d.length, d.heads, d.width // d.heads, dtype=BF16), of(d.heads, d.width // d.heads, dtype=BF16))),
    "advantage estimation": models.advantages,
    "selective scan": models.selective_scan,
    "matrix states": models.matrix_states,
    "gated recurrence": models.gated,
    "gated recurrence, backward": both(models.gated),
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
    "max pooling": models.pooled("max_pool"),
    "average pooling": models.pooled("avg_pool"),
    "LSTM cell": models.cell("OptimizedLSTMCell"),
    "GRU cell": models.cell("GRUCell"),
    "LSTM over time": models.over_time("LSTMCell"),
    "LSTM over time, backward": both(models.over_time("LSTMCell")),
    "GRU over time": models.over_time("GRUCell"),
    "GRU over time, backward": both(models.over_time("GRUCell")),
    "ViT block": models.vit_block,
    "ViT block, backward": both(models.vit_block),
    "UNet block": models.unet_block,
    "UNet block, backward": both(models.unet_block),
    "llama layer": models.llama_block,
    "llama layer, backward": both(models.llama_block),
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
    "int8 by rows": models.quantised(-1, jnp.int8, 127),
    "int8 by tensor": models.quantised(None, jnp.int8, 127),
    "fp8 by tensor": models.quantised(None, jnp.float8_e4m3fn, 448),
    "from int8": models.restored,
    "graph messages": models.messages,
    "edge softmax": models.edge_softmax,
    "embedding": models.embedded,
    "embedding, gradient": models.embedding_gradient,
    "router": models.router,
    "experts": models.dispatched,
}  # fmt: skip


def text(name: str, dims: Dims) -> str:
    """The module of an entry as HLO text, as jax lowers it. ModuleNotFoundError without the library that it is of."""
    function, shapes = FUNCTIONS[name](dims)
    return str(jax.jit(function).lower(*shapes).as_text(dialect="hlo"))
