"""Row operations of models at real sizes, each as a user writes it in JAX and in PyTorch, some in Triton.

The JAX form is what fusiond is given (as HLO) and what `jax.jit` compiles; the PyTorch form computes the same from the
same arrays, in the same order. Nothing here imports a framework before it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EPSILON, RATE, DECAY = 1e-5, 1e-3, 0.01
FIRST, SECOND = 0.9, 0.999

Shape = tuple[int, ...]
Maker = Callable[[Any], Callable[..., Any]]
"""From a framework's module to a function of arrays that returns a tuple of arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """All arrays are float32."""

    name: str
    what: str
    shapes: tuple[Shape, ...]
    tiny: tuple[Shape, ...]  #: To try it out on a processor
    jax: Maker
    torch: Maker
    triton: Callable[[Any, Any], Callable[..., Any]] | None = None  #: From torch and triton
    liger: str | None = None
    """The function of `liger_kernel.transformers.functional` that does the same, where it has one."""

    def hlo(self, *, tiny: bool = False) -> str:
        """As jax lowers it."""
        jax = importlib.import_module("jax")
        specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in (self.tiny if tiny else self.shapes)]
        text: str = jax.jit(self.jax(jax)).lower(*specs).as_text(dialect="hlo")
        return text


# --- softmax --------------------------------------------------------------------------------------------


def _softmax_jax(jax: Any) -> Callable[..., Any]:
    return lambda x: (jax.nn.softmax(x, axis=-1),)


def _softmax_torch(torch: Any) -> Callable[..., Any]:
    return lambda x: (torch.softmax(x, -1),)


def _softmax_triton(torch: Any, triton: Any) -> Callable[..., Any]:
    from benchmarks.headlines import triton_kernels

    return lambda x: (triton_kernels.softmax(torch, triton, x),)


# --- layer normalisation --------------------------------------------------------------------------------


def _norm(jax: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON) * scale + shift


def _norm_jax(jax: Any) -> Callable[..., Any]:
    return lambda x, scale, shift: (_norm(jax, x, scale, shift),)


def _norm_torch(torch: Any) -> Callable[..., Any]:
    return lambda x, scale, shift: (torch.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift, EPSILON),)


def _norm_triton(torch: Any, triton: Any) -> Callable[..., Any]:
    from benchmarks.headlines import triton_kernels

    return lambda x, scale, shift: (triton_kernels.layer_norm(torch, triton, x, scale, shift, EPSILON),)


def _norm_gradient_jax(jax: Any) -> Callable[..., Any]:
    def gradient(x: Any, scale: Any, shift: Any, towards: Any) -> Any:
        return jax.vjp(lambda *given: _norm(jax, *given), x, scale, shift)[1](towards)

    return gradient


def _norm_gradient_torch(torch: Any) -> Callable[..., Any]:
    def norm(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift, EPSILON)

    def gradient(x: Any, scale: Any, shift: Any, towards: Any) -> Any:
        return torch.func.vjp(norm, x, scale, shift)[1](towards)

    return gradient


# --- AdamW over a tree ----------------------------------------------------------------------------------


def _adamw(root: Callable[[Any], Any], maximum: Callable[[Any], Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """parameters, gradients, first and second moments, one after the other -> the new ones of the first, third and
    fourth. The gradients' norm is clipped at one; the step is the tenth."""
    count = len(given) // 4
    parts = [given[index * count : (index + 1) * count] for index in range(4)]
    clipped = 1.0 / maximum(root(sum((each * each).sum() for each in parts[1])))
    made: list[list[Any]] = [[], [], []]
    for p, gradient, first, second in zip(*parts, strict=True):
        g = gradient * clipped
        m, v = FIRST * first + (1 - FIRST) * g, SECOND * second + (1 - SECOND) * g * g
        moved = m / (1 - FIRST**10) / (root(v / (1 - SECOND**10)) + 1e-8)
        for one, new in zip(made, (p - RATE * (moved + DECAY * p), m, v), strict=True):
            one.append(new)
    return tuple(each for one in made for each in one)


def _adamw_jax(jax: Any) -> Callable[..., Any]:
    return lambda *given: _adamw(jax.numpy.sqrt, lambda each: jax.numpy.maximum(each, 1.0), given)


def _adamw_torch(torch: Any) -> Callable[..., Any]:
    return lambda *given: _adamw(torch.sqrt, lambda each: each.clamp(min=1.0), given)


def _tree(width: int, hidden: int) -> tuple[Shape, ...]:
    """A llama layer's parameters, four times: as parameters, gradients and moments."""
    return (*[(width, width)] * 4, *[(width, hidden)] * 2, (hidden, width), (width,), (width,)) * 4


# --- what a llama layer does to its rows ----------------------------------------------------------------


def _llama_rows_jax(jax: Any) -> Callable[..., Any]:
    def rows(x: Any, added: Any, scale: Any, gate: Any, up: Any) -> Any:
        x = x + added
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale
        return x, normed, jax.nn.silu(gate) * up

    return rows


def _llama_rows_torch(torch: Any) -> Callable[..., Any]:
    def rows(x: Any, added: Any, scale: Any, gate: Any, up: Any) -> Any:
        x = x + added
        normed = torch.nn.functional.rms_norm(x, (x.shape[-1],), scale, EPSILON)
        return x, normed, torch.nn.functional.silu(gate) * up

    return rows


FUNCTIONS: Mapping[str, Function] = {
    each.name: each
    for each in (
        Function(
            name="softmax",
            what="softmax of 1,024 rows of 131,072 logits",
            shapes=((1024, 131072),),
            tiny=((8, 517),),
            jax=_softmax_jax,
            torch=_softmax_torch,
            triton=_softmax_triton,
            liger="liger_softmax",
        ),
        Function(
            name="layer_norm",
            what="layer normalisation of 16,384 rows of 4,096",
            shapes=((16384, 4096), (4096,), (4096,)),
            tiny=((33, 96), (96,), (96,)),
            jax=_norm_jax,
            torch=_norm_torch,
            triton=_norm_triton,
            liger="liger_layer_norm",
        ),
        Function(
            name="layer_norm_gradient",
            what="its gradients, to the rows, the scale and the shift",
            shapes=((16384, 4096), (4096,), (4096,), (16384, 4096)),
            tiny=((33, 96), (96,), (96,), (33, 96)),
            jax=_norm_gradient_jax,
            torch=_norm_gradient_torch,
        ),
        Function(
            name="adamw",
            what="a step of AdamW over 51 million parameters, gradients clipped",
            shapes=_tree(2048, 5504),
            tiny=_tree(24, 40),
            jax=_adamw_jax,
            torch=_adamw_torch,
        ),
        Function(
            name="llama_rows",
            what="residual, RMS norm and SwiGLU of a llama layer, 4,096 tokens",
            shapes=((4096, 4096), (4096, 4096), (4096,), (4096, 11008), (4096, 11008)),
            tiny=((21, 64), (21, 64), (64,), (21, 160), (21, 160)),
            jax=_llama_rows_jax,
            torch=_llama_rows_torch,
        ),
    )
}
