"""Calls of the table's operators as recorded graphs of one node, with what NumPy, SciPy and JAX say they give."""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import scipy.special
from jax import lax

from fusiond.service.frameworks import DTYPES
from fusiond.torch.graphs import FxGraph, FxNode, Ref, Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """What is expected is computed when it is asked for, not when tests are collected."""

    name: str
    operator: str
    arguments: tuple[Any, ...]  #: Refs stand for the inputs
    named: Mapping[str, Any]
    inputs: tuple[Array, ...]
    gives: Any

    @functools.cached_property
    def wanted(self) -> tuple[Array | None, ...]:
        found = self.gives(*self.inputs) if callable(self.gives) else self.gives
        each = found if isinstance(found, tuple) else (found,)
        return tuple(None if one is None else np.asarray(one) for one in each)

    @functools.cached_property
    def graph(self) -> FxGraph:
        results = tuple(None if each is None else tensor(each) for each in self.wanted)
        nodes = [
            FxNode(name="out", operator=self.operator, arguments=self.arguments, named=self.named, results=results)
        ]
        outputs = ("out",)
        if len(results) > 1:
            kept = [at for at, each in enumerate(results) if each is not None]
            nodes += [
                FxNode(name=f"out{at}", operator="getitem", arguments=(Ref("out"), at), results=(results[at],))
                for at in kept
            ]
            outputs = tuple(f"out{at}" for at in kept)
        inputs = {f"in{at}": tensor(each) for at, each in enumerate(self.inputs)}
        return FxGraph(inputs=inputs, nodes=tuple(nodes), outputs=outputs)


def tensor(array: Array) -> Tensor:
    return Tensor(array.shape, DTYPES[str(array.dtype)])


_numbers = itertools.count()


def case(operator: str, *arguments: Any, gives: Any, **named: Any) -> Case:
    """Arrays among the arguments are inputs. `gives`: an array, several, or a function of the inputs."""
    inputs: list[Array] = []

    def given(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            inputs.append(value)
            return Ref(f"in{len(inputs) - 1}")
        return tuple(given(each) for each in value) if isinstance(value, list | tuple) else value

    arguments = tuple(given(each) for each in arguments)
    whole = operator if operator.startswith("prims.") or "." not in operator else f"aten.{operator}"
    return Case(f"{operator}-{next(_numbers)}", whole, arguments, named, tuple(inputs), gives)


def floats(*dims: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, dims).astype(np.float32)


def whole(*dims: int, low: int = -5, high: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, dims)


def f32(function: Callable[..., Any]) -> Callable[..., Array]:
    """Computed in float64, rounded once."""
    return lambda *arrays: np.asarray(
        function(*(each.astype(np.float64) if each.dtype == np.float32 else each for each in arrays))
    ).astype(np.float32)


def jaxed(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *arrays: np.asarray(function(*map(jnp.asarray, arrays)))


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function of one array at a point, times what comes from above: (above, point)."""
    return lambda above, point: np.asarray(jax.vjp(function, jnp.asarray(point))[1](jnp.asarray(above))[0])


def of(function: Callable[..., Any], *arrays: Array) -> Callable[..., Any]:
    """Of these arrays, not of the inputs."""
    return lambda *_: function(*arrays)


X, Y, ROW, POSITIVE = floats(4, 6), floats(4, 6, seed=1), floats(6, seed=2), floats(4, 6, low=0.1, seed=3)
WHOLE, DIVISORS, TRUE = whole(4, 6), whole(4, 6, low=1, seed=1), floats(4, 6, seed=4) > 0
BRAIN = X.astype(ml_dtypes.bfloat16)
CUBE = floats(2, 3, 5, seed=5)

_UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "expm1": np.expm1, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "floor": np.floor,
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "ceil": np.ceil, "round": np.rint, "sign": np.sign,
    "sgn": np.sign, "abs": np.abs, "neg": np.negative, "sigmoid": scipy.special.expit, "exp2": np.exp2,
    "reciprocal": np.reciprocal, "trunc": np.trunc, "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip
_POSITIVE: dict[str, Callable[..., Any]] = {
    "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal}  # fmt: skip
ODD = np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)


def _elementwise() -> list[Case]:
    cases = [case(f"{name}.default", X, gives=f32(function)) for name, function in _UNARY.items()]
    cases += [case(f"{name}.default", POSITIVE, gives=f32(function)) for name, function in _POSITIVE.items()]
    cases += [case(f"{name}.default", X, gives=X) for name in ("clone", "alias", "detach", "lift_fresh_copy",
                                                               "contiguous")]  # fmt: skip
    for name, compare in _COMPARE.items():
        cases += [
            case(f"{name}.Tensor", X, Y, gives=compare),
            case(f"{name}.Scalar", WHOLE, 1.5, gives=compare(WHOLE, 1.5)),
        ]
    for name, function in (("isnan", np.isnan), ("isinf", np.isinf)):
        cases.append(case(f"{name}.default", ODD, gives=function))
    for name in ("and", "or", "xor"):
        bits = getattr(np, f"bitwise_{name}")
        cases.append(case(f"bitwise_{name}.Tensor", WHOLE, DIVISORS, gives=bits))
        cases.append(case(f"bitwise_{name}.Scalar", WHOLE, 3, gives=bits(WHOLE, 3)))
    for overload in ("Tensor", "Scalar"):
        b: Any = ROW if overload == "Tensor" else 1.5
        cases += [
            case(f"add.{overload}", X, b, gives=X + np.float32(2) * b, alpha=2),
            case(f"sub.{overload}", X, b, gives=X - b),
            case(f"rsub.{overload}", X, b, gives=b - X),
            case(f"mul.{overload}", X, b, gives=X * b),
            case(f"div.{overload}", X, b, gives=X / b),
            case(f"div.{overload}_mode", WHOLE, DIVISORS if overload == "Tensor" else 2, rounding_mode="floor",
                 gives=WHOLE // (DIVISORS if overload == "Tensor" else 2)),
            case(f"remainder.{overload}", X, b, gives=np.remainder(X, b)),
            case(f"fmod.{overload}", X, b, gives=np.fmod(X, b)),
        ]  # fmt: skip
    for name in ("maximum", "minimum"):
        function = getattr(np, name)
        cases += [
            case(f"{name}.default", X, Y, gives=function),
            case(f"{name[:3]}.other", ODD, X[:1, :4], gives=function),
        ]
    cases += [
        case("add.Tensor", BRAIN, BRAIN, gives=BRAIN + BRAIN),
        case("mul.Tensor", WHOLE, X, gives=(WHOLE * X).astype(np.float32)),
        case("hypot.default", 1e30 * X, 1e30 * Y, gives=f32(np.hypot)),
        case("hypot.default", *np.meshgrid(*[np.array([0, -0.0, 3, np.inf, -np.inf, np.nan], np.float32)] * 2),
             gives=f32(np.hypot)),
        case("atan2.default", X, Y, gives=f32(np.arctan2)),
        case("logical_not.default", WHOLE, gives=np.logical_not),
        case("bitwise_not.default", WHOLE, gives=np.invert),
        case("pow.Tensor_Tensor", POSITIVE, Y, gives=f32(np.power)),
        case("pow.Tensor_Scalar", X, 3, gives=X**3),
        case("pow.Tensor_Scalar", POSITIVE, -0.5, gives=f32(lambda x: x**-0.5)),
        case("pow.Scalar", 2.0, X, gives=f32(np.exp2)),
        case("where.self", TRUE, X, Y, gives=np.where),
        case("clamp_min.default", X, 0.1, gives=np.maximum(X, np.float32(0.1))),
        case("clamp_max.default", X, 0.1, gives=np.minimum(X, np.float32(0.1))),
        case("clamp_min.Tensor", X, Y, gives=np.maximum),
        case("clamp_max.Tensor", X, Y, gives=np.minimum),
        case("lerp.Scalar", X, Y, 0.8, gives=f32(lambda a, b: a + 0.8 * (b - a))),
        case("lerp.Tensor", X, Y, POSITIVE, gives=f32(lambda a, b, w: a + w * (b - a))),
        case("addcmul.default", X, Y, POSITIVE, value=0.5, gives=f32(lambda a, b, c: a + 0.5 * b * c)),
        case("addcdiv.default", X, Y, POSITIVE, value=-0.5, gives=f32(lambda a, b, c: a - 0.5 * b / c)),
        case("prims.fma.default", X, Y, POSITIVE, gives=f32(lambda a, b, c: a * b + c)),
        case("_to_copy.default", X * 3, dtype="int32", gives=(X * 3).astype(np.int32)),
        case("_to_copy.default", WHOLE, dtype="bool", gives=WHOLE.astype(bool)),
        case("to.dtype", X, "bfloat16", gives=BRAIN),
        case("prims.convert_element_type.default", BRAIN, "float32", gives=BRAIN.astype(np.float32)),
    ]  # fmt: skip
    return cases


def _reductions() -> list[Case]:
    def over(function: Any, axis: Any = None, keep: bool = False) -> Callable[..., Array]:
        return f32(lambda x: function(x, axis=axis, keepdims=keep))

    return [
        case("sum.default", CUBE, gives=over(np.sum)),
        case("sum.dim_IntList", CUBE, [0, -1], True, gives=over(np.sum, (0, 2), True)),
        case("sum.dim_IntList", TRUE, [1], gives=TRUE.sum(1)),
        case("mean.default", CUBE, gives=over(np.mean)),
        case("mean.dim", CUBE, [1], gives=over(np.mean, 1)),
        case("mean.dim", BRAIN, [1], gives=BRAIN.astype(np.float64).mean(1).astype(ml_dtypes.bfloat16)),
        case("prod.default", CUBE, gives=over(np.prod)),
        case("prod.dim_int", CUBE, 1, True, gives=over(np.prod, 1, True)),
        case("amax.default", CUBE, [0, 2], gives=CUBE.max((0, 2))),
        case("amin.default", WHOLE, [1], True, gives=WHOLE.min(1, keepdims=True)),
        case("max.default", CUBE, gives=CUBE.max()),
        case("max.dim", CUBE, 1, gives=(CUBE.max(1), CUBE.argmax(1))),
        case("min.dim", CUBE, 2, True, gives=(CUBE.min(2, keepdims=True), CUBE.argmin(2, keepdims=True))),
        case("argmax.default", WHOLE, 0, gives=WHOLE.argmax(0)),
        case("argmin.default", CUBE, gives=CUBE.argmin()),
        case("cumsum.default", CUBE, 1, gives=over(lambda x, axis, keepdims: np.cumsum(x, 1))),
        case("cumsum.default", TRUE, 1, gives=np.cumsum(TRUE, 1)),
        case("cumprod.default", CUBE, -1, gives=over(lambda x, axis, keepdims: np.cumprod(x, 2))),
        case("sort.default", WHOLE, 0, gives=(np.sort(WHOLE, 0), np.argsort(WHOLE, 0, stable=True))),
        case("sort.stable", X, stable=True, dim=1, descending=True, gives=(-np.sort(-X, 1), np.argsort(-X, 1))),
        case("topk.default", X, 2, gives=(-np.sort(-X, 1)[:, :2], np.argsort(-X, 1)[:, :2])),
        case("topk.default", X, 3, 0, False, gives=(np.sort(X, 0)[:3], np.argsort(X, 0)[:3])),
        case("min.default", CUBE, gives=CUBE.min()),
        case("any.default", TRUE, gives=TRUE.any()),
        case("any.dim", WHOLE, 1, gives=WHOLE.any(1)),
        case("any.dims", TRUE, [0], True, gives=TRUE.any(0, keepdims=True)),
        case("var.correction", CUBE, [0, 1], gives=f32(lambda x: x.var((0, 1), ddof=1))),
        case("var_mean.correction", CUBE, [1], correction=0, keepdim=True,
             gives=lambda x: (x.var(1, keepdims=True), x.mean(1, keepdims=True))),
    ]  # fmt: skip


def _products() -> list[Case]:
    a, b, c, many, other = floats(5, 3), floats(3, 7, seed=1), floats(7, seed=2), floats(2, 5, 3), floats(2, 3, 7)
    return [
        case("mm.default", a, b, gives=np.matmul),
        case("bmm.default", many, other, gives=np.matmul),
        case("bmm.default", many[:, :1], other, gives=np.matmul),
        case("bmm.default", many, other[:, :, :1], gives=np.matmul),
        case("bmm.default", many[:, :, :1], other[:, :1], gives=np.matmul),
        case("mm.default", a, b[:, :1], gives=np.matmul),
        case("addmm.default", c, a, b, gives=lambda c, a, b: a @ b + c),
    ]


def _movement() -> list[Case]:
    column = np.array([[0], [5], [2], [1]])
    scattered = X.copy()
    np.put_along_axis(scattered, column, np.float32(-1), 1)
    replaced = X.copy()
    np.put_along_axis(replaced, column, floats(4, 1, seed=10), 1)
    sliced, put, added, summed = CUBE.copy(), X.copy(), X.copy(), X.copy()
    sliced[:, :, 0:5:2] = 7
    rows, turns = np.array([2, -1]), np.array([[0, 0, 5]] * 4)
    put[rows] = Y[:2]
    np.add.at(added, (slice(None), turns[0]), Y[:, :3])
    np.add.at(summed, (np.arange(4)[:, None], turns), Y[:, :3])
    return [
        case("full.default", [4, 6], 2.5, gives=np.full((4, 6), np.float32(2.5))),
        *(case(name, CUBE, [6, 5], gives=CUBE.reshape(6, 5)) for name in ("view.default", "_unsafe_view.default",
                                                                            "reshape.default")),
        case("unsqueeze.default", X, 1, gives=X[:, None]),
        case("squeeze.default", X[:, None], gives=X),
        case("squeeze.dim", X[:, None], 1, gives=X),
        case("squeeze.dims", X[:, None], [1, 2], gives=X),
        case("permute.default", CUBE, [2, 0, 1], gives=CUBE.transpose(2, 0, 1)),
        case("transpose.int", CUBE, 0, -1, gives=CUBE.swapaxes(0, 2)),
        case("t.default", X, gives=X.T),
        case("expand.default", CUBE[:1], [4, 3, 5], gives=np.broadcast_to(CUBE[:1], (4, 3, 5))),
        case("expand.default", ROW, [-1, 4, 6], gives=np.broadcast_to(ROW, (2, 4, 6))),
        case("slice.Tensor", CUBE, 1, 1, 2**63 - 1, 2, gives=CUBE[:, 1::2]),
        case("slice.Tensor", CUBE, 2, -2, gives=CUBE[:, :, -2:]),
        case("select.int", CUBE, 1, -1, gives=CUBE[:, -1]),
        case("cat.default", [X, Y], 1, gives=np.concatenate([X, Y], 1)),
        *(case(name, CUBE, [0, 2], gives=np.flip(CUBE, (0, 2))) for name in ("flip.default", "prims.rev.default")),
        case("constant_pad_nd.default", X, [1, 2, 0, 3], 0.5,
             gives=np.pad(X, ((0, 3), (1, 2)), constant_values=0.5)),
        case("constant_pad_nd.default", X, [-1, 2], gives=np.pad(X[:, 1:], ((0, 0), (0, 2)))),
        case("slice_scatter.default", CUBE, np.full((2, 3, 3), 7, np.float32), 2, 0, 5, 2, gives=sliced),
        case("split.Tensor", CUBE, 2, 2, gives=tuple(np.split(CUBE, [2, 4], 2))),
        case("split_with_sizes.default", CUBE, [1, 4], 2, gives=tuple(np.split(CUBE, [1], 2))),
        case("unbind.int", CUBE, 1, gives=tuple(CUBE[:, at] for at in range(3))),
        case("gather.default", X, 1, column, gives=np.take_along_axis(X, column, 1)),
        case("gather.default", X, 0, column.T % 4, gives=np.take_along_axis(X[:, :4], column.T % 4, 0)),
        case("scatter.value", X, 1, column, -1.0, gives=scattered),
        case("scatter.src", X, 1, column, floats(4, 1, seed=10), gives=replaced),
        case("scatter_add.default", X, 1, turns, Y, gives=summed),
        *(case(f"{name}.Tensor", CUBE, [None, rows], gives=CUBE[:, rows]) for name in ("index", "_unsafe_index")),
        case("constant", tuple(X.flatten().tolist()), gives=X),
        case("constant", (True,) * 6, gives=np.ones((2, 3), bool)),
        case("constant", (0.5, -np.inf, 2.0), gives=np.array([0.5, -np.inf, 2], np.float16)),
        case("index.Tensor", CUBE, [rows % 2, None, rows], gives=CUBE[rows % 2, :, rows]),
        *(case(f"{name}.default", X, [rows], Y[:2], gives=put) for name in ("index_put", "_unsafe_index_put")),
        case("index_put.default", X, [None, turns[0]], Y[:, :3], True, gives=added),
        case("as_strided.default", CUBE, [6, 5], [5, 1], gives=CUBE.reshape(6, 5)),
        case("copy.default", X, ROW, gives=np.broadcast_to(ROW, (4, 6))),
        case("scalar_tensor.default", 3.5, gives=np.float32(3.5)),
        case("prims.iota.default", 6, start=2, step=3, gives=np.arange(2, 20, 3)),
    ]  # fmt: skip


def _convolved(strides: Any, padding: Any, dilation: Any, groups: int, spread: Any = (1, 1)) -> Callable[..., Any]:
    return lambda x, weight, *bias: np.asarray(
        lax.conv_general_dilated(
            jnp.asarray(x), jnp.asarray(weight), strides, padding, lhs_dilation=spread, rhs_dilation=dilation,
            feature_group_count=groups, precision=lax.Precision.HIGHEST,
        ) + sum(each[:, None, None] for each in bias)
    )  # fmt: skip


def _pooled(kind: Any, first: float, sizes: Any, strides: Any, padding: Any, dilation: Any = (1, 1)) -> Any:
    edges, ones = ((0, 0), *((each, each) for each in padding)), (1,)
    return jaxed(lambda x: lax.reduce_window(
        x, first, kind, ones + sizes, ones + strides, edges, window_dilation=ones + dilation))  # fmt: skip


def _windows() -> list[Case]:
    images, one = floats(2, 3, 9, 11, seed=6), floats(2, 1, 7, 8, seed=7)
    filters, several = floats(3, 1, 3, 5, seed=8), floats(2, 1, 4, 3, seed=9)
    forward = _convolved((2, 1), [(1, 1), (2, 2)], (1, 2), 3)
    slope = np.ones_like(forward(images, filters))
    slope *= floats(*slope.shape, seed=11)
    transposed = _convolved((1, 1), [(2, 3), (1, 1)], (1, 1), 1, (2, 1))
    swapped = several[::-1, :, ::-1, ::-1].transpose(1, 0, 2, 3)[:, ::-1]
    sums = _pooled(lax.add, 0.0, (3, 2), (2, 1), (1, 1))
    places = np.array([[[[0, 5], [2, 3]]]], np.int8)
    return [
        case("convolution.default", images, filters, None, [2, 1], [1, 2], [1, 2], False, [0, 0], 3, gives=forward),
        case("convolution.default", one, several, floats(2, seed=12), [1], [0], [1], False, [0], 1,
             gives=_convolved((1, 1), [(0, 0)] * 2, (1, 1), 1)),
        case("convolution.default", one.astype(np.float16), several.astype(np.float16), None, [1], [1], [1], False, [0],
             1, gives=lambda x, w: _convolved((1, 1), [(1, 1)] * 2, (1, 1), 1)(
                 x.astype(np.float32), w.astype(np.float32)).astype(np.float16)),
        case("convolution.default", floats(2, 2, 7, 8, seed=13), several, None, [2, 1], [1, 1], [1, 1], True, [1, 0], 1,
             gives=of(transposed, floats(2, 2, 7, 8, seed=13), swapped)),
        case("convolution_backward.default", slope, images, filters, [0], [2, 1], [1, 2], [1, 2], False, [0, 0], 3,
             [True, False, False], gives=lambda slope, images, filters: (np.asarray(jax.vjp(
                 lambda x: lax.conv_general_dilated(x, filters, (2, 1), [(1, 1), (2, 2)], rhs_dilation=(1, 2),
                     feature_group_count=3, precision=lax.Precision.HIGHEST), images)[1](slope)[0]), None, None)),
        case("avg_pool1d.default", CUBE, [3], [2], gives=_pooled_mean(CUBE, 3, 2)),
        case("avg_pool2d.default", CUBE, [3, 2], [2, 1], [1, 1], gives=f32(lambda x: sums(x) / 6)),
        case("avg_pool2d.default", CUBE, [3, 2], [2, 1], [1, 1], False, False,
             gives=f32(lambda x: sums(x) / sums(np.ones_like(x)))),
        case("avg_pool3d.default", floats(1, 2, 4, 4, 4), [2, 2, 2], gives=f32(
            lambda x: x.reshape(1, 2, 2, 2, 2, 2, 2, 2).mean((3, 5, 7)))),
        case("max_pool2d_with_indices.default", CUBE, [3, 2], [1, 1], [1, 0], [1, 2], gives=lambda x: (
            _pooled(lax.max, -np.inf, (3, 2), (1, 1), (1, 0), (1, 2))(x), None)),
        case("prims._low_memory_max_pool_with_offsets.default", floats(1, 2, 4, 6), [2, 3], [2, 3], [0, 0],
             [1, 1], False, gives=lambda x: (_blocks(x).max(-1), _blocks(x).argmax(-1).astype(np.int8))),
        case("prims._low_memory_max_pool_offsets_to_indices.default", places, [2, 3], [4, 6], [2, 3],
             [0, 0], [1, 1], gives=np.take_along_axis(
                 _blocks(np.arange(24).reshape(1, 1, 4, 6)), places[..., None].astype(int), -1)[..., 0]),
        case("avg_pool2d_backward.default", sums(CUBE), CUBE, [3, 2], [2, 1], [1, 1], False, True, None,
             gives=lambda slope, x: np.asarray(jax.vjp(lambda x: lax.reduce_window(
                 x, 0.0, lax.add, (1, 3, 2), (1, 2, 1), ((0, 0), (1, 1), (1, 1))) / 6, x)[1](slope)[0])),
        case("max_pool3d_with_indices.default", floats(1, 2, 4, 4, 4), [2, 2, 2], gives=lambda x: (
            x.reshape(1, 2, 2, 2, 2, 2, 2, 2).max((3, 5, 7)), None)),
    ]  # fmt: skip


def _blocks(x: Array) -> Array:
    """Blocks of 2 x 3, in the last dimension."""
    split = x.reshape(*x.shape[:-2], x.shape[-2] // 2, 2, x.shape[-1] // 3, 3)
    return split.swapaxes(-3, -2).reshape(*split.shape[:-4], split.shape[-4], split.shape[-2], 6)


def _pooled_mean(x: Array, size: int, step: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, size, -1)[..., ::step, :].mean(-1)


def _complex() -> list[Case]:
    a, b = floats(3, 5, seed=21), floats(3, 5, seed=22)
    z, y = (a + 1j * b).astype(np.complex64), (b - 2j * a).astype(np.complex64)
    pairs = np.stack([a, b], -1)
    ones = [
        case(f"{name}.default", z, gives=gives) for name, gives in {
            "abs": np.abs, "exp": np.exp, "neg": np.negative, "real": np.real, "imag": np.imag, "_conj": np.conj,
            "_conj_physical": np.conj, "conj_physical": np.conj, "resolve_conj": z, "resolve_neg": z,
            "view_as_real": np.stack([z.real, z.imag], -1),
        }.items()
    ]  # fmt: skip
    return [
        *ones, case("complex.default", a, b, gives=z), case("view_as_complex.default", pairs, gives=z),
        case("polar.default", a, b, gives=(a * np.exp(1j * b)).astype(np.complex64)),
        case("mul.Tensor", z, y, gives=np.multiply), case("mul.Tensor", z, a, gives=np.multiply),
        case("mul.Tensor", z, 2.5, gives=z * np.float32(2.5)), case("add.Tensor", z, y[:1], gives=np.add),
        case("sub.Tensor", a, z, gives=np.subtract), case("div.Tensor", z, y, gives=np.divide),
        case("sum.dim_IntList", z, [1], gives=z.sum(1)), case("permute.default", z, [1, 0], gives=z.T),
        case("view.dtype", z, "float32", gives=z.view(np.float32)),
        case("view.dtype", pairs.reshape(3, 10), "complex64", gives=z),
    ]  # fmt: skip


CASES = [*_elementwise(), *_reductions(), *_products(), *_movement(), *_windows(), *_complex()]
