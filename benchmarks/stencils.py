"""Launches, bytes and instructions of image functions of small convolutions, for an H100: in JAX beside XLA's,
kornia's through torch.compile beside Inductor's. `python -m benchmarks.stencils` (jax, its CUDA plugin, torch,
kornia, nvcc; no GPU). `benchmarks.stitching.traffic` has it on its page.

Ours is the first seed, counted (docs/counting.md). XLA's launches are those of its optimised module; each reads its
operands and writes its results once, a library's call as well. Inductor's are the nodes of its schedule and the bytes
that it says they access; it compiles for the processor, where there is no GPU.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import fusiond.torch
from benchmarks import runs
from benchmarks.corpus import xla
from fusiond.counting.run import count
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import plan
from fusiond_stitching.frontend import hlo

SIDE = 2048
WHERE = runs.RESULTS / "static" / "stencils-h100.json"
SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32) / 8


def gauss(size: int, sigma: float) -> np.ndarray[Any, Any]:
    taps = np.exp(-0.5 * (np.arange(size) - size // 2) ** 2 / sigma**2)
    return (taps / taps.sum())[None].astype(np.float32)


def filtered(x: Any, taps: Any, mode: str = "reflect") -> Any:
    """kornia's `filter2d`: a border, then one filter for all planes."""
    low, wide = taps.shape[0] // 2, taps.shape[1] // 2
    planes = jnp.pad(x, ((0, 0), (low, low), (wide, wide)), mode=mode)[:, None]
    return jax.lax.conv_general_dilated(planes, jnp.asarray(taps)[None, None], (1, 1), "VALID")[:, 0]


def blur(x: Any, size: int = 11, sigma: float = 1.5) -> Any:
    taps = gauss(size, sigma)
    return filtered(filtered(x, taps), taps.T)


def gradient(x: Any) -> tuple[Any, Any]:
    return filtered(x, SOBEL, "edge"), filtered(x, SOBEL.T, "edge")


def harris(x: Any) -> Any:
    dx, dy = gradient(x)
    xx, yy, xy = blur(dx * dx, 7, 1.0), blur(dy * dy, 7, 1.0), blur(dx * dy, 7, 1.0)
    return xx * yy - xy * xy - 0.04 * (xx + yy) ** 2


def sobel(x: Any) -> Any:
    dx, dy = gradient(x)
    return jnp.sqrt(dx * dx + dy * dy + 1e-6)


def canny(x: Any) -> tuple[Any, Any]:
    dx, dy = gradient(blur(x, 5, 1.0))
    return jnp.sqrt(dx * dx + dy * dy + 1e-6), jnp.arctan2(dy, dx)


def maxima(x: Any) -> Any:
    strength = sobel(blur(x, 5, 1.0))
    ring = jax.lax.reduce_window(strength, -jnp.inf, jax.lax.max, (1, 3, 3), (1, 1, 1), "SAME")
    return jnp.where(strength == ring, strength, 0)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "harris": (harris, 1), "sobel": (sobel, 1), "canny's gradient": (canny, 1), "maxima of it": (maxima, 1),
    "gaussian blur": (blur, 3), "unsharp mask": (lambda x: jnp.clip(x + 1.5 * (x - blur(x, 9)), 0, 1), 3),
    "augmentation": (lambda x: (filtered(jnp.clip((x + 0.1) * 1.2, 0, 1), np.ones((3, 3), np.float32) / 9) - 0.4) / 0.2,
                     3),
    "shifted sum": (lambda x: x + jnp.roll(x, 1, 1) - jnp.roll(blur(x, 3, 1.0), 2, 2), 1),
}  # fmt: skip


def ours(text: str, pixels: int, registry: Registry) -> tuple[list[str], int]:
    """(way, launches, bytes over the least, instructions a pixel), the least bytes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "module.hlo").write_text(text)
        request = "strategy: stitching\nmodule: ./module.hlo\ngroups: 0\nprobes: 0\n"
        (job,) = jobs.read(Path(folder) / "job.yaml", request)
        programs = plan(registry, job, arch="sm_90").programs
        seed = next(each for each in programs if each.startswith("seed:"))
        rows = count(programs[seed]).rows
    least = sum(each.size_bytes for each in programs[seed].buffers if each.role.value != "scratch")
    instructions = [each.instructions for each in rows]
    said = "" if None in instructions else f"{sum(each or 0 for each in instructions) / pixels:.0f}"
    moved = sum(each.dram_bytes or 0 for each in rows)
    return [seed.removeprefix("seed:"), str(len(rows)), f"{moved / least:.2f}", said], least


def in_jax(name: str, side: int, registry: Registry, compiled: Any) -> list[str]:
    function, planes = FUNCTIONS[name]
    given = jax.ShapeDtypeStruct((planes, side, side), jnp.float32)
    found, least = ours(jax.jit(function).lower(given).as_text(dialect="hlo"), planes * side * side, registry)
    with tempfile.TemporaryDirectory() as folder:
        theirs = hlo.parse(compiled(function, [given], Path(folder)), "optimised")
    moved = [xla.operand_bytes(theirs, within, each) for each, within, _ in
             xla._launched(theirs, theirs.computations[theirs.entry], 1)]  # fmt: skip
    return [name, *found, str(len(moved)), f"{sum(moved) / least:.2f}"]


# --- kornia ---


def of_kornia() -> dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]]:
    import torch
    from kornia import color, enhance, feature, filters

    def canny(x: Any) -> Any:
        gradient = filters.spatial_gradient(filters.gaussian_blur2d(x, (5, 5), (1.0, 1.0)), normalized=False)
        dx, dy = gradient[:, :, 0], gradient[:, :, 1]
        return torch.sqrt(dx * dx + dy * dy + 1e-6), torch.atan2(dy, dx)

    def augmented(x: Any) -> Any:
        bright = enhance.adjust_contrast(enhance.adjust_brightness(x, 0.1), 1.2)
        mixed = enhance.adjust_saturation_with_gray_subtraction(bright, 1.3)
        blurred = filters.gaussian_blur2d(torch.flip(mixed, (-1,)), (5, 5), (1.0, 1.0))
        return enhance.normalize(blurred, torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225]))

    one, three = (1, 1, SIDE, SIDE), (1, 3, SIDE, SIDE)
    return {
        "harris_response": (lambda x: feature.harris_response(x, k=0.04), one),
        "sobel": (filters.sobel, one),
        "canny's gradient": (canny, one),
        "gaussian_blur2d": (lambda x: filters.gaussian_blur2d(x, (11, 11), (1.5, 1.5)), three),
        "unsharp_mask": (lambda x: filters.unsharp_mask(x, (9, 9), (1.5, 1.5)), three),
        "filter2d": (lambda x: filters.filter2d(x, torch.ones(1, 5, 5) / 25, "replicate"), three),
        "sobel of a grey image": (lambda x: filters.sobel(color.rgb_to_grayscale(x)), three),
        "augmentation": (augmented, three),
        "augmentation, a batch": (augmented, (8, 3, SIDE // 4, SIDE // 4)),
    }


def in_torch(name: str, function: Callable[[Any], Any], dims: tuple[int, ...], registry: Registry) -> list[str]:
    import torch
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    from benchmarks.models.counted import DEVICE, Noting, _calls

    noting, x, theirs = Noting({}), torch.rand(dims), []
    compiled = torch.compile(function, backend="fusiond", options={"always": True, "device": DEVICE, "db": noting.db,
                                                                   "fallback": "eager"})  # fmt: skip
    codegen = GraphLowering.codegen

    def counting(graph: Any) -> Any:
        found = codegen(graph)
        theirs.append(graph.count_bytes()[:2])
        return found

    with torch.no_grad(), mock.patch.object(GraphLowering, "codegen", counting), config.patch(fx_graph_cache=False):
        torch._dynamo.reset()
        compiled(x)
        torch._dynamo.reset()
        torch.compile(function)(x)
    (question,) = {each.digest: each for each in noting.questions}.values()
    left = [each for each in fusiond.torch.explain(compiled).regions if each.state == "library" and _calls(each)]
    assert not left, left
    found, least = ours(question.text, x.numel(), registry)
    nodes = [node for _, each in theirs for node in each]
    return [name, *found, str(len(nodes)), f"{sum(moved for moved, _ in theirs) / least:.2f}"]


def main() -> None:
    registry, compiled = Registry.load(), xla.compiler()
    rows = [said(in_jax(name, SIDE, registry, compiled)) for name in FUNCTIONS]
    torch = [said(in_torch(name, *each, registry)) for name, each in of_kornia().items()]
    run = runs.new("stencils", "", "python -m benchmarks.stencils", "static", {"name": "h100", "arch": "sm_90"})
    runs.write(WHERE, run | {"rows": rows, "torch": torch})


def said(row: list[str]) -> list[str]:
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    main()
