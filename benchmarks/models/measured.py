"""Milliseconds of a training step by each way, in turns, on the device that is there.

Each round runs every way, in the opposite order of the round before, so that what drifts falls on all of them. The
first way is what the others are compared with: the median of the ratios within rounds, with a bootstrap's interval.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fusiond.jax
import fusiond.torch
from benchmarks.models import in_jax, models

ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 60, 5, 5
SAMPLE_MS = 50.0  #: Steps are repeated in a sample until it takes so long
TOLERANCE = {"float32": 2e-3, "bfloat16": 5e-2}
"""Of the largest difference in an output over the largest value there; GPUs multiply float32 in TF32."""
Way = Callable[[], Any]


def step(framework: str, s: models.Sizes, dtype: str, given: argparse.Namespace, until: float) -> dict[str, Any]:
    """The row of a step; what fails is its reason."""
    row: dict[str, Any] = {"batch": s.batch, "regions": {}, "apart": {}}
    try:
        ways, states = (_in_jax if framework == "jax" else _in_torch)(s, dtype, given)
        base, *others = ways
        results = {name: run() for name, run in ways.items()}
        row["regions"] = dict(Counter(states()))
        for name in others:
            row["apart"][name] = found = apart(results[base], results[name])
            if not found <= TOLERANCE[dtype]:
                return {**row, "failed": f"{name} gives what is {found:.1e} of the largest value apart"}
        del results
        taken = samples(ways, QUICK_ROUNDS if given.quick else ROUNDS, until)
    except Exception as problem:  # out of memory, a compiler's refusal: the other steps are measured
        return {**row, "failed": f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"}
    if len(taken[base]) < LEAST_ROUNDS:
        return {**row, "failed": f"{len(taken[base])} rounds until --minutes was over"}
    row["ms"] = {name: round(float(np.median(each)), 3) for name, each in taken.items()}
    return {**row, "failed": "", "gain": {name: gain(taken[base], taken[name]) for name in others}, "samples": taken}


def samples(ways: Mapping[str, Way], rounds: int, until: float) -> dict[str, list[float]]:
    """Milliseconds of a step in each sample."""

    def timed(run: Way, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            run()
        return round((time.perf_counter() - began) / steps * 1e3, 4)

    steps = {name: math.ceil(SAMPLE_MS / max(1e-3, *(timed(run, 1) for _ in "ab"))) for name, run in ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1] if time.monotonic() < until else ():
            taken[name].append(timed(ways[name], steps[name]))
    return taken


def gain(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """(median, low, high): how many times as fast as `base`, with an interval of 95 %."""
    ratios = np.asarray(base) / np.asarray(other)
    drawn = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    return [round(float(each), 4) for each in (np.median(ratios), *np.percentile(drawn, (2.5, 97.5)))]


def apart(one: Any, other: Any) -> float:
    """The largest difference in an output of a step, over the largest value there."""
    pairs = zip(*(map(_array, jax.tree.leaves(each)) for each in (one, other)), strict=True)
    found = [np.abs(a - b).max() / max(np.abs(a).max(), 1e-30) for a, b in pairs]
    return math.inf if np.isnan(found).any() else float(max(found))


def _array(value: Any) -> Any:
    return np.asarray(value.detach().float().cpu() if hasattr(value, "detach") else value, np.float32)


def options(given: argparse.Namespace) -> dict[str, Any]:
    """Of `fuse`, and of the backend. On a processor answers are emulated, and used to see that it works."""
    tuned = {"block": True, "search": {"trials": given.tune}} if given.tune else {}
    return {"device": given.device, "always": given.device == "cpu", **tuned}


def _in_jax(s: models.Sizes, dtype: str, given: argparse.Namespace) -> tuple[dict[str, Way], Callable[[], list[str]]]:
    """(the ways, the states of the regions once they have run)"""
    arguments, function = jax.device_put(models.arrays(s, 0)), in_jax.step(s, dtype)
    fused = fusiond.jax.fuse(function, **options(given))
    ways = {name: _way(each, arguments, jax.block_until_ready) for name, each in
            (("jax.jit", jax.jit(function)), ("fusiond", fused))}  # fmt: skip
    return ways, lambda: [each.state for each in fusiond.jax.explain(fused, *arguments).regions]


def _in_torch(s: models.Sizes, dtype: str, given: argparse.Namespace) -> tuple[dict[str, Way], Callable[[], list[str]]]:
    import torch

    from benchmarks.models import in_torch

    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high")  # as JAX multiplies float32 on a GPU
    arguments = jax.tree.map(lambda each: torch.from_numpy(each).to(given.device), models.arrays(s, 0))
    before = len(fusiond.torch.explain().regions)
    backend = {"backend": "fusiond", "options": options(given)}
    compiling: dict[str, Any] = {"inductor": {"backend": "inductor"}, "fusiond": backend, "eager": {}}

    def ready(_: Any) -> None:
        if given.device != "cpu":
            torch.cuda.synchronize()

    ways = {name: _way(in_torch.step(s, dtype, **each), arguments, ready) for name, each in compiling.items()}
    return ways, lambda: [each.state for each in fusiond.torch.explain().regions[before:]]


def _way(function: Callable[..., Any], arguments: Sequence[Any], ready: Callable[[Any], Any]) -> Way:
    def run() -> Any:
        found = function(*arguments)
        ready(found)
        return found

    return run
