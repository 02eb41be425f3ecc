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

from benchmarks.mincut import images
from fusiond.inputs.fills import fill
from fusiond.program import Buffer, Role
from fusiond_mincut.frontend.graph import Pipeline

Arrays = dict[str, NDArray[Any]]
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

        self.jax = jax
        self.call = jax.jit(images.Images(pipeline, images.JaxNames(jax)))

    @property
    def device(self) -> str:
        return f"JAX {self.jax.__version__} on {self.jax.devices()[0].platform}"

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each.block_until_ready() for name, each in self.call(dict(given)).items()}


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
