"""A pipeline over whole images of any array module: NumPy (the oracle), CuPy, JAX, PyTorch.

Each kernel shifts whole images and computes on them, one operation of the module for each node of its body. What the
modules have no common name for is in an adapter (`Names`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import (
    BinaryOperation,
    Cast,
    Const,
    Expr,
    FunctionCall,
    Let,
    Local,
    PixelAccess,
    Select,
    UnaryOperation,
)
from fusiond_mincut.frontend.graph import Border, ImageKernel, Pipeline

PADS = {"clamp": "edge", "mirror": "reflect", "reflect": "symmetric", "repeat": "wrap", "constant": "constant"}
RENAMED = {"min": "fmin", "max": "fmax", "pow": "power", "atan": "arctan", "atan2": "arctan2"}
TORCH = {"power": "pow", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "rint": "round"}


class Names:
    """An array module with NumPy's names: NumPy and CuPy."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def constant(self, value: float, dtype: str) -> Any:
        return self.module.asarray(value, dtype)

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def converted(self, array: Any, dtype: str) -> Any:
        return array.astype(dtype)

    def stacked(self, planes: list[Any]) -> Any:
        return self.module.stack(self.module.broadcast_arrays(*planes), axis=-1)

    def reduced(self, reduction: str, image: Any) -> Any:
        """Over rows and columns, in the image's own type."""
        more = {"dtype": image.dtype} if reduction == "sum" else {}
        return getattr(self.module, reduction)(image, axis=(0, 1), keepdims=True, **more)

    def shifted(self, plane: Any, dx: int, dy: int, border: Border) -> Any:
        """The plane as it is seen from each pixel, `dx` to the right and `dy` below."""
        up, down, left, right = max(0, -dy), max(0, dy), max(0, -dx), max(0, dx)
        more = {"constant_values": border.value} if border.mode == "constant" else {}
        padded = self.module.pad(plane, ((up, down), (left, right)), mode=PADS[border.mode], **more)
        height, width = plane.shape
        return padded[down : down + height, right : right + width]

    def function(self, name: str, arguments: list[Any]) -> Any:
        """A function of NumPy's by its name there."""
        if name == "rsqrt":
            return self.constant(1, self.dtype(arguments[0])) / self.module.sqrt(arguments[0])
        return getattr(self.module, name)(*arguments)

    def divided(self, left: Any, right: Any) -> Any:
        """int32, towards zero; `right` is not zero."""
        return self.module.floor_divide(left - self.remainder(left, right), right)

    def remainder(self, left: Any, right: Any) -> Any:
        return self.module.fmod(left, right).astype("int32")  # CuPy's is a float64, exactly


class JaxNames(Names):
    def __init__(self, jax: Any) -> None:
        super().__init__(jax.numpy)
        self.lax = jax.lax

    def function(self, name: str, arguments: list[Any]) -> Any:
        return self.lax.rsqrt(*arguments) if name == "rsqrt" else super().function(name, arguments)

    def divided(self, left: Any, right: Any) -> Any:
        return self.lax.div(*self.module.broadcast_arrays(left, right))

    def remainder(self, left: Any, right: Any) -> Any:
        return self.lax.rem(*self.module.broadcast_arrays(left, right))


class TorchNames(Names):
    """PyTorch. Borders are gathered by indices: its own pads take no integers."""

    def __init__(self, torch: Any, device: str) -> None:
        super().__init__(torch)
        self.device = device
        self._indices: dict[tuple[int, int, str], Any] = {}

    def constant(self, value: float, dtype: str) -> Any:
        return self.module.tensor(value, dtype=getattr(self.module, dtype), device=self.device)

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def converted(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(self.module, dtype))

    def stacked(self, planes: list[Any]) -> Any:
        return self.module.stack(self.module.broadcast_tensors(*planes), dim=-1)

    def reduced(self, reduction: str, image: Any) -> Any:
        if reduction == "sum":
            return self.module.sum(image, dim=(0, 1), keepdim=True, dtype=image.dtype)
        return getattr(self.module, f"a{reduction}")(image, dim=(0, 1), keepdim=True)

    def shifted(self, plane: Any, dx: int, dy: int, border: Border) -> Any:
        height, width = plane.shape
        rows, columns = self._index(dy, height, border.mode), self._index(dx, width, border.mode)
        seen = plane[rows.clamp(min=0)[:, None], columns.clamp(min=0)[None, :]]
        if border.mode != "constant":
            return seen
        outside = (rows < 0)[:, None] | (columns < 0)[None, :]
        return self.module.where(outside, self.constant(border.value, self.dtype(plane)), seen)

    def function(self, name: str, arguments: list[Any]) -> Any:
        return getattr(self.module, TORCH.get(name, name))(*arguments)

    def divided(self, left: Any, right: Any) -> Any:
        return self.module.div(left, right, rounding_mode="trunc")

    def remainder(self, left: Any, right: Any) -> Any:
        return self.module.fmod(left, right)

    def _index(self, offset: int, size: int, mode: str) -> Any:
        """For each position the one that `position + offset` stands for; -1 outside of a constant border. Made once, so
        that it is not part of what is timed."""
        if (offset, size, mode) not in self._indices:
            before, after = max(0, -offset), max(0, offset)
            more = {"constant_values": -1} if mode == "constant" else {}
            padded = np.pad(np.arange(size), (before, after), mode=PADS[mode], **more)  # type: ignore[call-overload]
            shifted = np.ascontiguousarray(padded[after : after + size])
            self._indices[offset, size, mode] = self.module.from_numpy(shifted).to(self.device)
        return self._indices[offset, size, mode]


class Images:
    """A pipeline as a function: images of shape (height, width, channels) by name, in and out."""

    def __init__(self, pipeline: Pipeline, names: Names) -> None:
        self.pipeline, self.names = pipeline, names

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        images = dict(given)
        for kernel in self.pipeline.kernels:
            planes = [
                self._converted(self._value(kernel.body(channel), kernel, images, {}), kernel.dtype)
                for channel in range(kernel.channels)
            ]
            image = self.names.stacked(planes)
            images[kernel.name] = image if kernel.reduction is None else self.names.reduced(kernel.reduction, image)
        return {name: images[name] for name in self.pipeline.outputs}

    def _pixels(self, access: PixelAccess, kernel: ImageKernel, images: Mapping[str, Any]) -> Any:
        plane = images[access.image][:, :, access.channel]
        if access.dx == access.dy == 0:
            return plane
        return self.names.shifted(plane, access.dx, access.dy, kernel.border(access.image))

    def _value(self, expr: Expr, kernel: ImageKernel, images: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
        def of(each: Expr) -> Any:
            return self._value(each, kernel, images, names)

        match expr:
            case Const(value, dtype):
                return self.names.constant(value, dtype)
            case PixelAccess():
                return self._pixels(expr, kernel, images)
            case Local(name):
                return names[name]
            case Let(name, value, body):
                return self._value(body, kernel, images, {**names, name: of(value)})
            case Cast(operand, dtype):
                return self._converted(of(operand), dtype)
            case Select(condition, then, other):
                return self.names.function("where", [of(condition) != 0, of(then), of(other)])
            case UnaryOperation(op, operand):
                found = of(operand)
                return self._truth(found == 0) if op == "!" else -found if op == "-" else ~found
            case BinaryOperation(op, left, right):
                return self._joined(op, of(left), of(right))
            case FunctionCall(function, arguments):
                return self._function(function, [of(each) for each in arguments])
        raise AssertionError(expr)

    def _truth(self, found: Any) -> Any:
        return self.names.converted(found, "int32")

    def _joined(self, op: str, left: Any, right: Any) -> Any:
        names = self.names
        if op in tree.COMPARISONS:
            return self._truth(compared(op, left, right))
        if op in tree.LOGICAL:
            both = (left != 0) & (right != 0) if op == "&&" else (left != 0) | (right != 0)
            return self._truth(both)
        if op in ("/", "%") and names.dtype(left) == "int32":
            nothing, one = names.constant(0, "int32"), names.constant(1, "int32")
            safe = names.function("where", [right == 0, one, right])
            whole = names.divided(left, safe) if op == "/" else names.remainder(left, safe)
            return names.function("where", [right == 0, nothing, whole])
        simple = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "&": "bitwise_and", "|": "bitwise_or",
                  "^": "bitwise_xor"}  # fmt: skip
        if op in simple:
            return names.function(simple[op], [left, right])
        return names.function("left_shift" if op == "<<" else "right_shift", [left, right & 31])

    def _function(self, function: str, arguments: list[Any]) -> Any:
        if function == "clamp":
            return self.names.function("fmin", [self.names.function("fmax", arguments[:2]), arguments[2]])
        return self.names.function(RENAMED.get(function, function), arguments)

    def _converted(self, found: Any, dtype: str) -> Any:
        """As C converts, and as the pipelines define it where C leaves it open."""
        names = self.names
        if names.dtype(found) == dtype:
            return found
        if dtype in ("uint8", "int32") and names.dtype(found).startswith("float"):
            kind = names.dtype(found)
            least, most = names.constant(-2147483648.0, kind), names.constant(2147483520.0, kind)
            whole = names.function("fmin", [names.function("fmax", [names.function("trunc", [found]), least]), most])
            number = names.function("where", [found != found, names.constant(0, kind), whole])
            found = names.converted(number, "int32")
        return names.converted(found, dtype)


def compared(op: str, left: Any, right: Any) -> Any:
    """A comparison by its sign."""
    match op:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "==":
            return left == right
    return left != right
