"""Launches, bytes and instructions of image functions written with small convolutions, beside XLA's for an H100:
`python -m benchmarks.stencils` (jax, its CUDA plugin, nvcc; no GPU). `benchmarks.stitching.traffic` has it on its page.

Ours is the first seed, counted (docs/counting.md). XLA's launches are those of its optimised module; each reads its
operands and writes its results once, a library's call as well.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def row(name: str, side: int, registry: Registry, compiled: Any) -> list[str]:
    function, planes = FUNCTIONS[name]
    given = jax.ShapeDtypeStruct((planes, side, side), jnp.float32)
    with tempfile.TemporaryDirectory() as folder:
        text = jax.jit(function).lower(given).as_text(dialect="hlo")
        (Path(folder) / "module.hlo").write_text(text)
        (job,) = jobs.read(
            Path(folder) / "job.yaml", "strategy: stitching\nmodule: ./module.hlo\ngroups: 0\nprobes: 0\n"
        )
        programs = plan(registry, job, arch="sm_90").programs
        seed = next(each for each in programs if each.startswith("seed:"))
        rows = count(programs[seed]).rows
        theirs = hlo.parse(compiled(function, [given], Path(folder)), "optimised")
    ends = [each for each in programs[seed].buffers if each.role.value != "scratch"]
    moved = [xla.operand_bytes(theirs, within, each) for each, within, _ in
             xla._launched(theirs, theirs.computations[theirs.entry], 1)]  # fmt: skip
    pixels, instructions = planes * side * side, [each.instructions for each in rows]
    said = "" if None in instructions else f"{sum(each or 0 for each in instructions) / pixels:.0f}"
    ours = sum(each.dram_bytes or 0 for each in rows)
    least = sum(each.size_bytes for each in ends)
    return [name, seed.removeprefix("seed:"), str(len(rows)), f"{ours / least:.2f}", said,
            str(len(moved)), f"{sum(moved) / least:.2f}"]  # fmt: skip


def main() -> None:
    registry, compiled = Registry.load(), xla.compiler()
    rows = []
    for name in FUNCTIONS:
        rows.append(row(name, SIDE, registry, compiled))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    run = runs.new("stencils", "", "python -m benchmarks.stencils", "static", {"name": "h100", "arch": "sm_90"})
    runs.write(WHERE, run | {"rows": rows})


if __name__ == "__main__":
    main()
