"""The same pipelines in what users have today: JAX (XLA decides what to fuse), and OpenCV.

JAX runs on whatever it finds, which is named; OpenCV on the processor's cores, in float32 and without the integer
divisions of the pipelines (it has no filters for int32), the way people write these filters with it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.fills import fill
from fusiond.program import Buffer, Role
from fusiond_mincut import expr as tree
from fusiond_mincut.expr import Access, Binary, Call, Cast, Const, Expr, Let, Local, Select, Unary
from fusiond_mincut.graph import Kernel, Pipeline

Arrays = dict[str, NDArray[Any]]
PADS = {"clamp": "edge", "mirror": "reflect", "reflect": "symmetric", "repeat": "wrap", "constant": "constant"}
WARM, REPEATS = 2, 9


def inputs(pipeline: Pipeline, seed: int = 0) -> Arrays:
    """What the pipeline's inputs hold in a measured run: (height, width, channels) each."""
    found = {}
    for image in pipeline.inputs:
        elements = image.elements(pipeline.width, pipeline.height)
        buffer = Buffer(name=image.name, dtype=image.dtype, elements=elements, role=Role.INPUT, fill=image.fill)
        found[image.name] = fill(buffer, seed).reshape(pipeline.height, pipeline.width, image.channels)
    return found


def median_us(call: Callable[[], object]) -> float:
    """Wall-clock microseconds of a call, the median after some that do not count."""
    for _ in range(WARM):
        call()
    spent = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1e6


# --- JAX ------------------------------------------------------------------------------------------------


class Jax:
    """A pipeline as one jitted function: each kernel pads and shifts whole images, XLA makes of it what it can."""

    def __init__(self, pipeline: Pipeline) -> None:
        import jax  # heavy, and wanted here only

        self.jax, self.np, self.pipeline = jax, jax.numpy, pipeline
        self.call = jax.jit(self._run)

    @property
    def device(self) -> str:
        return f"JAX {self.jax.__version__} on {self.jax.devices()[0].platform}"

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each.block_until_ready() for name, each in self.call(dict(given)).items()}

    def _run(self, given: dict[str, Any]) -> dict[str, Any]:
        images = dict(given)
        for kernel in self.pipeline.kernels:
            planes = [
                self._converted(self._value(kernel.body(channel), kernel, images, {}), kernel.dtype)
                for channel in range(kernel.channels)
            ]
            image = self.np.stack(planes, axis=-1)
            if kernel.reduction is not None:
                image = getattr(self.np, kernel.reduction)(image, axis=(0, 1), keepdims=True, dtype=image.dtype)
            images[kernel.name] = image
        return {name: images[name] for name in self.pipeline.outputs}

    def _pixels(self, access: Access, kernel: Kernel, images: Mapping[str, Any]) -> Any:
        plane = images[access.image][:, :, access.channel]
        if access.dx == access.dy == 0:
            return plane
        border = kernel.border(access.image)
        up, down, left, right = max(0, -access.dy), max(0, access.dy), max(0, -access.dx), max(0, access.dx)
        more = {"constant_values": border.value} if border.mode == "constant" else {}
        padded = self.np.pad(plane, ((up, down), (left, right)), mode=PADS[border.mode], **more)
        height, width = plane.shape
        return padded[down : down + height, right : right + width]

    def _value(self, expr: Expr, kernel: Kernel, images: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
        def of(each: Expr) -> Any:
            return self._value(each, kernel, images, names)

        match expr:
            case Const(value, dtype):
                return self.np.asarray(value, dtype)
            case Access():
                return self._pixels(expr, kernel, images)
            case Local(name):
                return names[name]
            case Let(name, value, body):
                return self._value(body, kernel, images, {**names, name: of(value)})
            case Cast(operand, dtype):
                return self._converted(of(operand), dtype)
            case Select(condition, then, other):
                return self.np.where(of(condition) != 0, of(then), of(other))
            case Unary(op, operand):
                found = of(operand)
                return self._truth(found == 0) if op == "!" else -found if op == "-" else ~found
            case Binary(op, left, right):
                return self._joined(op, of(left), of(right))
            case Call(function, arguments):
                return self._function(function, [of(each) for each in arguments])
        raise AssertionError(expr)

    def _truth(self, found: Any) -> Any:
        return found.astype(self.np.int32)

    def _joined(self, op: str, left: Any, right: Any) -> Any:
        lax, xp = self.jax.lax, self.np
        if op in tree.COMPARISONS:
            return self._truth(eval_comparison(op, left, right))
        if op in tree.LOGICAL:
            both = (left != 0) & (right != 0) if op == "&&" else (left != 0) | (right != 0)
            return self._truth(both)
        if op in ("/", "%") and left.dtype == xp.int32:
            left, right = xp.broadcast_arrays(left, right)
            safe = xp.where(right == 0, 1, right)
            return xp.where(right == 0, 0, lax.div(left, safe) if op == "/" else lax.rem(left, safe))
        simple = {"+": xp.add, "-": xp.subtract, "*": xp.multiply, "/": xp.divide, "&": xp.bitwise_and,
                  "|": xp.bitwise_or, "^": xp.bitwise_xor}  # fmt: skip
        if op in simple:
            return simple[op](left, right)
        return xp.left_shift(left, right & 31) if op == "<<" else xp.right_shift(left, right & 31)

    def _function(self, function: str, arguments: list[Any]) -> Any:
        xp = self.np
        known = {"min": xp.fmin, "max": xp.fmax, "pow": xp.power, "atan": xp.arctan, "atan2": xp.arctan2,
                 "rsqrt": self.jax.lax.rsqrt}  # fmt: skip
        if function == "clamp":
            return xp.fmin(xp.fmax(arguments[0], arguments[1]), arguments[2])
        return known.get(function, getattr(xp, function, None))(*arguments)

    def _converted(self, found: Any, dtype: str) -> Any:
        xp = self.np
        if found.dtype == xp.dtype(dtype):
            return found
        if dtype in ("uint8", "int32") and xp.issubdtype(found.dtype, xp.floating):
            whole = xp.where(xp.isnan(found), 0, xp.clip(xp.trunc(found), -2147483648.0, 2147483520.0))
            found = whole.astype(xp.int32)
        return found.astype(dtype)


def eval_comparison(op: str, left: Any, right: Any) -> Any:
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


# --- OpenCV ---------------------------------------------------------------------------------------------


def opencv() -> Mapping[str, Callable[[NDArray[Any]], object]]:
    """Application -> a function of the float32 gray image, where it can be written with OpenCV's filters."""
    import cv2  # an extra

    clamp = cv2.BORDER_REPLICATE
    gauss = np.outer((1, 2, 1), (1, 2, 1)).astype(np.float32) / 16
    across = np.array([[-1, 0, 1]] * 3, np.float32) / 6

    def tensor(image: NDArray[Any]) -> list[Any]:
        dx = cv2.filter2D(image, cv2.CV_32F, across, borderType=clamp)
        dy = cv2.filter2D(image, cv2.CV_32F, across.T, borderType=clamp)
        products = (cv2.multiply(dx, dx), cv2.multiply(dy, dy), cv2.multiply(dx, dy))
        return [cv2.filter2D(each, cv2.CV_32F, gauss, borderType=clamp) for each in products]

    def harris(image: NDArray[Any]) -> object:
        gx, gy, gxy = tensor(image)
        response = cv2.multiply(gx, gy) - cv2.multiply(gxy, gxy) - 0.04 * cv2.pow(gx + gy, 2)
        return cv2.threshold(response, 500000.0, 1.0, cv2.THRESH_BINARY)

    def shitomasi(image: NDArray[Any]) -> object:
        gx, gy, gxy = tensor(image)
        half = 0.5 * (gx - gy)
        least = 0.5 * (gx + gy) - cv2.sqrt(cv2.multiply(half, half) + cv2.multiply(gxy, gxy))
        return cv2.threshold(least, 600.0, 1.0, cv2.THRESH_BINARY)

    def sobel(image: NDArray[Any]) -> object:
        x = cv2.Sobel(image, cv2.CV_32F, 1, 0, borderType=clamp)
        y = cv2.Sobel(image, cv2.CV_32F, 0, 1, borderType=clamp)
        return cv2.magnitude(x, y)

    def unsharp(image: NDArray[Any]) -> object:
        sharp = cv2.addWeighted(image, 2.0, cv2.filter2D(image, cv2.CV_32F, gauss, borderType=clamp), -1.0, 0.0)
        return cv2.multiply(cv2.divide(sharp, image), image)

    def enhance(image: NDArray[Any]) -> object:
        mean = cv2.exp(cv2.blur(cv2.log(image), (3, 3), borderType=clamp))  # a geometric mean by logarithms
        return cv2.pow(mean * 2, 0.6)

    return {"harris": harris, "shitomasi": shitomasi, "sobel": sobel, "unsharp": unsharp, "enhance": enhance}


def run(pipelines: Mapping[str, Pipeline], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Wall-clock times of both; null with the reason where one is not installed."""
    rows: list[dict[str, Any]] = []
    for name, pipeline in pipelines.items():
        row: dict[str, Any] = {"application": name, "width": pipeline.width, "height": pipeline.height}
        given = inputs(pipeline)
        row |= _timed("jax", lambda pipeline=pipeline, given=given: _jax(pipeline, given))
        row |= _timed("opencv", lambda name=name, given=given: _opencv(name, given))
        rows.append(row)
        say(f"{name}: {row}")
    return rows


def _timed(name: str, of: Callable[[], tuple[str, float] | None]) -> dict[str, Any]:
    try:
        found = of()
    except ImportError as problem:
        return {name: None, f"{name}_reason": f"not installed: {problem.name}"}
    if found is None:
        return {name: None, f"{name}_reason": "its filters cannot say this"}
    return {name: {"what": found[0], "wall_us": round(found[1], 1)}}


def _jax(pipeline: Pipeline, given: Arrays) -> tuple[str, float]:
    peer = Jax(pipeline)
    held = {name: peer.jax.device_put(each) for name, each in given.items()}
    return peer.device, median_us(lambda: peer(held))


def _opencv(name: str, given: Arrays) -> tuple[str, float] | None:
    import cv2

    function = opencv().get(name)
    if function is None:
        return None
    image = given["src"][:, :, 0].astype(np.float32)
    what = f"OpenCV {cv2.__version__} on {cv2.getNumThreads()} threads of the processor, float32"
    return what, median_us(lambda: function(image))
