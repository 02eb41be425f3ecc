"""What a pipeline gives, by NumPy: whole images, kernel by kernel, borders by an index map.

Nothing of the plugin's own code runs here but the tree itself: every operation is NumPy's. The index maps are checked
against SciPy and np.pad in test_borders.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import (
    BinaryOperation,
    Cast,
    Const,
    Expr,
    Fetch,
    FunctionCall,
    Let,
    Local,
    Lookup,
    PixelAccess,
    Select,
    UnaryOperation,
)
from fusiond_mincut.frontend.graph import HISTOGRAM, Border, ImageKernel, Pipeline, SamplingStep

Array = NDArray[np.generic]
_SAME = SamplingStep()
Images = Mapping[str, Array]  #: Shape (height, width, channels); of what a global kernel makes (1, 1, channels)


def run(pipeline: Pipeline, inputs: Images) -> dict[str, Array]:
    """All images by name: what is put in and what every kernel makes. `inputs` have shape (height, width, channels)."""
    images = dict(inputs)
    with np.errstate(all="ignore"):
        for kernel in pipeline.kernels:
            bins = pipeline.sides(kernel.name)
            images[kernel.name] = evaluate(kernel, images, *pipeline.domain(kernel), bins)
    return images


def evaluate(kernel: ImageKernel, images: Images, width: int, height: int, bins: tuple[int, int] = (1, 1)) -> Array:
    if kernel.reduction == HISTOGRAM:
        both = [np.broadcast_to(_value(body, kernel, images, {}, (height, width), 0), (height, width)).reshape(-1)
                for body in kernel.bodies]  # fmt: skip
        edges = [np.arange(n + 1) - 0.5 for n in reversed(bins)]
        return np.histogram2d(both[1], both[0], bins=edges)[0].astype(np.int32)[:, :, None]
    channels = []
    for channel in range(kernel.channels):
        value = _value(kernel.body(channel), kernel, images, {}, (height, width), channel)
        value = np.broadcast_to(_converted(value, kernel.dtype), (height, width))
        channels.append(value)
    image = np.stack(channels, axis=-1)
    if kernel.pattern == "hysteresis":
        parts, _ = ndimage.label(image[:, :, 0] >= 1, np.ones((3, 3)))
        return np.isin(parts, np.unique(parts[image[:, :, 0] >= 2]))[:, :, None].astype(kernel.dtype)
    if kernel.pattern == "scan":
        wide = np.float64 if kernel.dtype.startswith("float") else np.int64
        return np.cumsum(image, axis=int(kernel.reduction == "x"), dtype=wide).astype(kernel.dtype)
    if kernel.reduction is None:
        return image
    if kernel.reduction == "sum":
        exact = image.astype(np.float64 if kernel.dtype == "float32" else np.int64).sum(axis=(0, 1), keepdims=True)
        return _converted(exact, kernel.dtype) if kernel.dtype == "float32" else exact.astype(kernel.dtype)
    return (np.fmin if kernel.reduction == "min" else np.fmax).reduce(
        image.reshape(-1, kernel.channels), axis=0
    ).reshape(1, 1, -1)  # fmt: skip


def indices(offset: int, size: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each position of a row the pixel that `position + offset` stands for, and whether it is one (constant)."""
    return exchanged(np.arange(size) + offset, size, mode)


def exchanged(at: NDArray[np.int64], size: int, mode: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The pixels of a row of `size` that positions stand for, and whether they are any (constant)."""
    inside = (at >= 0) & (at < size)
    if mode == "clamp":
        at = np.clip(at, 0, size - 1)
    elif mode == "repeat":
        at = at % size
    elif mode == "reflect":
        at = at % (2 * size)
        at = np.where(at < size, at, 2 * size - 1 - at)
    elif mode == "mirror":
        period = max(2 * size - 2, 1)
        at = at % period
        at = np.where(at < size, at, period - at)
    else:
        at = np.clip(at, 0, size - 1)
        return at, inside
    return at, np.ones(np.shape(at), bool)


def pixels(
    image: Array, access: PixelAccess, border: Border, shape: tuple[int, int], step: SamplingStep = _SAME
) -> Array:
    """The image as it is seen from every pixel at the access' offset: shape (height, width), the image's dtype."""
    assert access.channel is not None
    plane = image[:, :, access.channel]
    if plane.shape == (1, 1) and shape != (1, 1) and access.dx == access.dy == 0:
        return np.broadcast_to(plane, shape)
    (columns, column_inside), (rows, row_inside) = (
        exchanged(np.arange(count) * step.times[axis] // step.by[axis] + step.origin[axis] + offset, side, border.mode)
        for axis, count, offset, side in ((0, shape[1], access.dx, plane.shape[1]),
                                          (1, shape[0], access.dy, plane.shape[0]))
    )  # fmt: skip
    seen = plane[rows][:, columns]
    outside = ~(row_inside[:, None] & column_inside[None, :])
    return np.where(outside, np.asarray(border.value, plane.dtype), seen)


def _value(
    expr: Expr, kernel: ImageKernel, images: Images, names: Mapping[str, Any], shape: tuple[int, int], channel: int = 0
) -> Array:
    def of(each: Expr) -> Array:
        return _value(each, kernel, images, names, shape, channel)

    match expr:
        case Const(value, dtype):
            return np.asarray(value, dtype)
        case PixelAccess(image=image, dx=dx, dy=dy) if image in tree.POSITIONS.values():
            rows, columns = np.indices(shape, np.int32)
            return {tree.X: columns + dx, tree.Y: rows + dy}.get(
                image, np.asarray(shape[image == tree.WIDTH], np.int32)
            )  # fmt: skip
        case PixelAccess(image=image):
            own = PixelAccess(image, expr.dx, expr.dy, channel if expr.channel is None else expr.channel, expr.dtype)
            return pixels(images[image], own, kernel.border(image), shape, kernel.steps.get(image, SamplingStep()))
        case Fetch(image, x, y, own):
            plane = images[image][:, :, channel if own is None else own]
            border = kernel.border(image)
            columns, across = exchanged(of(x), plane.shape[1], border.mode)
            rows, down = exchanged(of(y), plane.shape[0], border.mode)
            return np.where(across & down, plane[rows, columns], np.asarray(border.value, plane.dtype))
        case Lookup(_, values, index, dtype):
            return np.asarray(values, dtype)[np.clip(of(index), 0, len(values) - 1)]
        case Local(name):
            return names[name]
        case Let(name, value, body):
            return _value(body, kernel, images, {**names, name: of(value)}, shape, channel)
        case Cast(operand, dtype):
            return _converted(of(operand), dtype)
        case Select(condition, then, other):
            return np.where(of(condition) != 0, of(then), of(other))
        case UnaryOperation(op, operand):
            value = of(operand)
            return (value == 0).astype(np.int32) if op == "!" else -value if op == "-" else ~value
        case BinaryOperation(op, left, right):
            return _operation(op, of(left), of(right))
        case FunctionCall(function, arguments):
            return _function(function, [of(each) for each in arguments])
    raise AssertionError(expr)


def _operation(op: str, left: Array, right: Array) -> Array:
    simple = {
        "+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    }  # fmt: skip
    compared = {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
        "!=": np.not_equal, "&&": np.logical_and, "||": np.logical_or,
    }  # fmt: skip
    assert left.dtype == right.dtype, (op, left.dtype, right.dtype)
    if op in simple:
        return np.asarray(simple[op](left, right))
    if op in compared:
        return np.asarray(compared[op](left, right)).astype(np.int32)
    if op == "<<":
        return np.left_shift(left, right & 31)
    if op == ">>":
        return np.right_shift(left, right & 31)
    if left.dtype != np.int32:
        return np.asarray(left / right)
    wide, by = left.astype(np.int64), right.astype(np.int64)
    safe = np.where(by == 0, 1, by)
    quotient = np.where(by == 0, 0, np.sign(wide) * np.sign(safe) * (np.abs(wide) // np.abs(safe)))
    if op == "/":
        return quotient.astype(np.int32)
    return np.where(by == 0, 0, np.fmod(wide, safe)).astype(np.int32)


def _function(function: str, arguments: list[Array]) -> Array:
    found = {
        "min": np.fmin, "max": np.fmax, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
        "rint": np.rint, "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
        "log10": np.log10, "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan, "atan2": np.arctan2,
        "tanh": np.tanh, "pow": np.power,
    }  # fmt: skip
    if function == "clamp":
        value, low, high = arguments
        return np.asarray(np.fmin(np.fmax(value, low), high))
    if function == "rsqrt":
        return np.asarray(arguments[0].dtype.type(1) / np.sqrt(arguments[0]))
    return np.asarray(found[function](*arguments))


def _converted(value: Array, dtype: str) -> Array:
    """As C converts, with what C leaves open as expr.py says."""
    if value.dtype == np.dtype(dtype):
        return value
    if dtype in ("float16", "float32", "float64"):
        return value.astype(dtype)
    if np.issubdtype(value.dtype, np.floating):
        whole = np.where(np.isnan(value), 0, np.clip(np.trunc(value.astype(np.float64)), -(2.0**31), 2.0**31 - 1))
        value = whole.astype(np.int64).astype(np.int32)
    return value.astype(dtype)
