"""Functions of the corpus that need JAX alone, fused: what they give beside what `jax.jit` gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")

import fusiond.jax as fused  # noqa: E402
from benchmarks.corpus import dims, functions  # noqa: E402

NAMES = (
    "softmax", "softmax, backward", "softmax of logits", "log softmax", "logsumexp", "standardize", "GELU",
    "GELU, backward", "SwiGLU", "SwiGLU, backward", "GeGLU", "squared ReLU, backward", "one-hot", "dropout",
    "categorical", "argmax", "top-p", "causal attention weights", "causal attention weights, backward", "RoPE",
    "RoPE, backward", "transpose and scale", "heads to the front", "advantage estimation", "selective scan",
    "matrix states", "gated recurrence", "gated recurrence, backward", "llama layer", "llama layer, backward",
    "int8 by rows", "int8 by tensor", "fp8 by tensor", "from int8", "graph messages", "edge softmax", "embedding",
    "embedding, gradient", "router", "experts",
)  # fmt: skip
XLAS = {"transpose and scale", "heads to the front", "argmax"}
"""One operation that has nothing to be fused with: nothing is asked."""


def inputs(shapes: Any) -> Any:
    """Floats of both signs; whole numbers below the smallest size of what they may index."""
    random = np.random.default_rng(5)

    def drawn(leaf: Any) -> Any:
        dtype = np.dtype(leaf.dtype)
        if dtype.kind in "iu":
            return jax.numpy.asarray(random.integers(0, 4, leaf.shape), dtype)
        return jax.numpy.asarray(random.uniform(-1.5, 1.5, leaf.shape), dtype)

    return jax.tree.map(drawn, shapes)


def tolerance(dtype: Any) -> float:
    """Some units in the last place: sums are in another order."""
    return 0.0 if np.dtype(dtype).kind in "iub" else 64 * float(ml_dtypes.finfo(dtype).eps)


def differs(got: Any, wanted: Any) -> str:
    """How; of floats by the larger of their own size and the typical one of their array, as sums cancel."""
    if (got.shape, got.dtype, got.weak_type) != (wanted.shape, wanted.dtype, wanted.weak_type):
        return f"{got.aval} for {wanted.aval}"
    within = tolerance(got.dtype)
    one, other = (np.asarray(each) for each in (got, wanted))
    if not within:
        return "" if np.array_equal(one, other) else f"{np.count_nonzero(one != other)} of {one.size} differ"
    one, other = (each.astype(np.float64) for each in (one, other))
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return "what is not finite differs"
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return "what is not finite differs"
    one, other = one[finite], other[finite]
    size = np.maximum(np.abs(other), np.sqrt(np.mean(other**2)) if other.size else 0.0)
    error = np.abs(one - other) - within * size
    return "" if not (error > 0).any() else f"by {(np.abs(one - other) / np.maximum(size, 1e-300)).max():.1e}"


@pytest.mark.slow
@pytest.mark.sampled(46)
@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_the_corpus_gives_what_it_gave(name: str, answered: Callable[..., Any], db: Path) -> None:
    asked = answered()
    function, shapes = functions.FUNCTIONS[name](dims.SMALL)
    given = inputs(shapes)
    whole = fused.fuse(function, always=True, db=db)
    got, wanted = whole(*given), jax.jit(function)(*given)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    found = [differs(*each) for each in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)]
    assert not any(found) or closer(got, wanted, jax.jit(function)(*wider(given))), found
    report = fused.explain(whole, *given)
    assert {each.state for each in report.regions} <= {"fused", "library"}, str(report)
    assert bool(asked) == (name not in XLAS)


def wider(tree: Any) -> Any:
    narrow = (jax.numpy.bfloat16, jax.numpy.float16)
    return jax.tree.map(lambda each: each.astype("float32") if each.dtype in narrow else each, tree)


def closer(got: Any, wanted: Any, exact: Any) -> bool:
    """Where values in bfloat16 cancel, XLA's own rounding is what there is to be measured by: ours is at most twice as
    far from what comes of wider types."""
    for one, other, true in zip(*map(jax.tree.leaves, (got, wanted, exact)), strict=True):
        ours, theirs = (np.abs(np.asarray(each, np.float64) - np.asarray(true, np.float64)) for each in (one, other))
        if not ours.max() <= 2 * theirs.max():
            return False
    return True
