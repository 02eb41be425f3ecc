"""Operators that torch decomposes, and those that need torch's conventions, give what eager torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle is eager PyTorch")
pytest.importorskip("jax", reason="what is written is computed by XLA on the processor, from jax")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from fusiond.torch import importer, recording, regions  # noqa: E402
from fusiond_stitching.frontend import importer as stitching  # noqa: E402

from .conftest import computed  # noqa: E402

aten = torch.ops.aten
Tensors = tuple[Any, ...]


def randn(*dims: int, seed: int = 0, dtype: Any = None) -> Any:
    made = torch.randn(dims, generator=torch.Generator().manual_seed(seed))
    return made if dtype is None else made.to(dtype)


X, Y, W, B = randn(5, 13), randn(5, 13, seed=1), randn(13, seed=2), randn(13, seed=3)
IMAGE, CHANNELS = randn(2, 6, 7, 9, seed=4), randn(6, seed=5)
ROWS = torch.tensor([[1, 4, 0], [2, -1, 1]])
CLASSES = torch.tensor([1, 0, -100, 12, 3])
MIXED = torch.randint(0, 4, (5, 13), generator=torch.Generator().manual_seed(6)).float()
MASK = X > 0
ODD = torch.tensor([[1.0, float("nan"), 2.0], [float("-inf"), 0.0, 0.0]])

FLOATS: dict[str, Any] = {
    **{each: (getattr(torch.nn.functional, each), X * 3)
       for each in ("silu", "gelu", "relu6", "hardswish", "hardsigmoid", "hardtanh", "softplus", "elu", "mish", "selu",
                    "logsigmoid", "celu", "softsign", "tanhshrink", "leaky_relu", "softshrink")},
    "gelu-tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), X),
    **{f"{each}-backward": (getattr(aten, f"{each}_backward").default, Y, X)
       for each in ("gelu", "silu", "hardswish", "hardsigmoid", "mish")},
    "tanh-backward": (aten.tanh_backward.default, Y, X.tanh()),
    "sigmoid-backward": (aten.sigmoid_backward.default, Y, X.sigmoid()),
    "threshold-backward": (lambda g, x: aten.threshold_backward.default(g, x, 0), Y, X),
    "hardtanh-backward": (lambda g, x: aten.hardtanh_backward.default(g, x, -1.0, 1.0), Y, X),
    "elu-backward": (lambda g, x: aten.elu_backward.default(g, 1, 1, 1, False, x), Y, X),
    "leaky-relu-backward": (lambda g, x: aten.leaky_relu_backward.default(g, x, 0.1, False), Y, X),
    "softmax": (lambda x: torch.softmax(x, 1), X), "log-softmax": (lambda x: torch.log_softmax(x * 9, 0), X),
    "softmax-backward": (lambda g, y: aten._softmax_backward_data.default(g, y, 1, g.dtype), Y, X.softmax(1)),
    "log-softmax-backward": (lambda g, y: aten._log_softmax_backward_data.default(g, y, 1, g.dtype), Y,
                             X.log_softmax(1)),
    "layer-norm": (lambda x, w, b: aten.native_layer_norm.default(x, [13], w, b, 1e-5)[0], X, W, B),
    "group-norm": (lambda x, w, b: torch.nn.functional.group_norm(x, 3, w, b), IMAGE, CHANNELS, CHANNELS),
    "batch-norm": (lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0], IMAGE, CHANNELS,
                   CHANNELS),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), X), "std": (lambda x: torch.std(x, 1), X),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3.0, 1), X),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.3), X, Y),
    "masked-fill": (lambda x: x.masked_fill(x > 0, -2.0), X), "where": (lambda x: torch.where(x > 0, x, 0.5), X),
    "cumsum": (lambda x: torch.cumsum(x, 1), X), "cumprod": (lambda x: torch.cumprod(x, 0), X),
    "max-dim": (lambda x: torch.max(x, 1), X), "sort": (lambda x: torch.sort(x, dim=0, stable=True), MIXED),
    "sort-down": (lambda x: torch.sort(x, dim=1, descending=True, stable=True), MIXED),
    "topk": (lambda x: torch.topk(x, 3, 1), X), "smallest": (lambda x: torch.topk(x, 2, 0, largest=False), X),
    "argmax": (lambda x: torch.argmax(x, 1), MIXED), "argmin": (lambda x: torch.argmin(x), X),
    "embedding": (aten.embedding.default, X, ROWS.abs()), "index": (lambda x, rows: x[:, rows], X, ROWS),
    "index-apart": (lambda x, a, b: x[a, :, b], IMAGE, ROWS[0] % 2, ROWS[1]),
    "index-select": (lambda x, rows: x.index_select(1, rows), X, ROWS[0]),
    "index-put": (lambda x, y, rows: aten.index_put.default(x, [rows], y[:3]), X, Y, ROWS[0]),
    "index-add": (lambda x, y, rows: aten.index_put.default(x, [None, rows], y[:, :3], True), X, Y, ROWS[1]),
    "embedding-backward": (lambda g, rows: aten.embedding_dense_backward.default(g, rows, 7, 1, False),
                           randn(2, 3, 4), ROWS.abs()),
    "scatter": (lambda x, y, rows: x.scatter(0, rows, y), X, Y, torch.tensor([[0, 1], [3, 0]])),
    "scatter-add": (lambda x, y, rows: x.scatter_add(1, rows, y), X, Y, ROWS.abs()),
    "stack": (lambda x, y: torch.stack([x, y], 1), X, Y), "tril": (lambda x: torch.tril(x, -1), X),
    "floor-divide": (lambda x, y: torch.div(x, y, rounding_mode="floor"), X * 4, Y),
    "max-pool": (lambda x: aten.max_pool2d_with_indices.default(x, [3, 2], [2, 2], [1, 0]), IMAGE),
    "max-pool-ceil": (lambda x: aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [0, 0], [1, 1], True), IMAGE),
    "max-pool-inf": (lambda x: aten.max_pool2d_with_indices.default(x - float("inf"), [3], [2], [1]), IMAGE),
    "avg-pool-backward": (lambda g, x: aten.avg_pool2d_backward.default(
        g, x, [3, 2], [2, 2], [1, 0], False, True, None), randn(2, 6, 4, 4, seed=8), IMAGE),
    "upsample": (lambda x: torch.nn.functional.interpolate(x, size=(14, 5)), IMAGE),
    "bilinear": (lambda x: torch.nn.functional.interpolate(x, size=(9, 11), mode="bilinear"), IMAGE),
    **{f"{mode}-{len(sides) // 2}": (lambda x, *, m=mode, s=sides: torch.nn.functional.pad(x, s, mode=m), of)
       for mode in ("reflect", "replicate") for sides, of in (((2, 1), X), ((2, 1, 3, 0), IMAGE))},
    "mse": (lambda x, y: torch.nn.functional.mse_loss(x, y), X, Y),
    "smooth-l1": (lambda x, y: torch.nn.functional.smooth_l1_loss(x, y, reduction="none"), X, Y),
    "bce": (lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(x, y.sigmoid()), X, Y),
    "foreach": (lambda x, y: aten._foreach_addcdiv.Scalar([x, y], [y, x], [x + 9, y + 9], 0.5), X, Y),
    "foreach-norm": (lambda x, y: aten._foreach_norm.Scalar([x, y], 2), X, Y),
    "foreach-lerp": (lambda x, y: aten._foreach_lerp.Scalar([x, y], [y, x], 0.1), X, Y),
    "foreach-mul": (lambda x, y: aten._foreach_mul.List([x, y], [y, x]), X, Y),
    "dropout-backward": (lambda x, y: aten.native_dropout_backward.default(x, y > 0, 2.0), X, Y),
    "roll": (lambda x: torch.roll(x, 2, 1), X), "float8": (lambda x: x.to(torch.float8_e4m3fn).to(x.dtype) * 2, X),
    "float8-wide": (lambda x: x.to(torch.float8_e5m2).float() + 1, X),
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "nll": (lambda x, to: aten.nll_loss_forward.default(x, to, None, 1, -100), X, CLASSES),
    "nll-backward": (lambda g, x, to, w, total: aten.nll_loss_backward.default(
        g, x, to, w, 1, -100, total), torch.tensor(0.7), X, CLASSES, W.abs(), torch.tensor(2.5)),
    "layer-norm-backward": (lambda g, x, w, b: aten.native_layer_norm_backward.default(
        g, x, [13], x.mean(1, True), 1 / x.std(1, keepdim=True), w, b, [True, True, True]), Y, X, W, B),
    "group-norm-backward": (lambda g, x, a, b, w: aten.native_group_norm_backward.default(
        g, x, a, b, w, 2, 6, 63, 3, [True, True, True]),
        randn(2, 6, 7, 9, seed=9), IMAGE, randn(2, 3, seed=10), randn(2, 3, seed=11).abs(), CHANNELS),
    "batch-norm-backward": (lambda g, x, w: aten.native_batch_norm_backward.default(
        g, x, w, None, None, w, w.abs() + 1, True, 1e-5, [True, True, True]), -IMAGE, IMAGE, CHANNELS),
    "mse-backward": (lambda g, x, y: aten.mse_loss_backward.default(g, x, y, 1), torch.tensor(0.7), X, Y),
    "not-a-number": (lambda x: (torch.argmax(x, 1), *torch.sort(x, dim=1, stable=True), *torch.max(x, 0)), ODD),
    "not-a-number-down": (lambda x: torch.sort(x, dim=1, descending=True, stable=True), ODD),
    "whole": (lambda x: (torch.cumsum(x, 0), torch.argmin(x, 0), *torch.sort(x, dim=1, stable=True)), ROWS),
    "count": (lambda x: torch.cumsum(x, 1), MASK),
    "max-pool-inside": (lambda x: aten.max_pool2d_with_indices.default(x, [3], [2], [1]),
                        torch.full((1, 1, 5, 5), -float("inf"))),
    "floor-divide": (lambda x, y: torch.div(x, y, rounding_mode="floor"),
                     torch.tensor([6.0, -6.0, 0.0, -0.0, 1.0, -1.0, 5.5, float("inf")]),
                     torch.tensor([0.1, 0.1, -2.0, 3.0, 0.0, 0.0, -2.0, 2.0])),
    "zeros": (lambda x: torch.zeros_like(x) + torch.arange(1, 27, 2, dtype=torch.float32) + torch.ones(13), X),
}  # fmt: skip


def array(tensor: Any) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def agrees(function: Callable[..., Any], tensors: Tensors) -> None:
    """One region of all that the function calls gives what eager torch gives: in these types, or in float32 and rounded
    once (on a processor, eager torch adds float16 up in float16 in places)."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        graph = make_fx(lambda *given: function(*given))(*map(mode.from_tensor, tensors)).graph
    read = recording.recorded(graph)
    assert not [
        why for each in read.nodes if (why := importer.problem(each, read.tensors())) and each.operator != "getitem"
    ]
    assert len([each for each in regions.cut(read) if not set(each.operators) <= {*regions.VIEWS, "getitem"}]) == 1
    text = importer.text("module", read.nodes, read.inputs, read.outputs)  # type: ignore[arg-type]
    assert not stitching.read(text, "module").foreign
    found = computed(text, [array(each) for each in tensors])
    own, wide = (_flat(function(*given)) for given in (tensors, [_widened(each) for each in tensors]))
    for got, each, more in zip(found, own, wide, strict=True):
        assert (got.shape, got.dtype) == (each.shape, array(each).dtype)
        bound = torch.finfo(each.dtype).eps * 2 if each.element_size() == 2 else 3e-5
        close = [
            np.isclose(got.astype(np.float64), wanted.double().numpy(), rtol=bound, atol=2e-6, equal_nan=True)
            for wanted in (each, more.to(each.dtype))
        ]
        assert np.all(close[0] | close[1]), f"{got} is not {each}"


def _flat(results: Any) -> list[Any]:
    return [each for each in (results if isinstance(results, tuple | list) else [results]) if each is not None]


def _widened(tensor: Any) -> Any:
    return tensor.float() if tensor.is_floating_point() else tensor


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", FLOATS)
def test_operators_of_floats_give_what_eager_torch_gives(name: str, dtype: str) -> None:
    function, *tensors = FLOATS[name]
    agrees(function, tuple(each.to(getattr(torch, dtype)) if each.is_floating_point() else each for each in tensors))


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_give_what_eager_torch_gives(name: str) -> None:
    function, *tensors = OTHERS[name]
    agrees(function, tuple(tensors))
