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

import numpy as np

from benchmarks.models import models

ROUNDS, QUICK_ROUNDS, LEAST_ROUNDS = 60, 5, 5
SAMPLE_MS = 50.0
"""Steps are repeated in a sample until it takes so long."""
TOLERANCE = {"float32": 2e-3, "bfloat16": 5e-2}
"""Of the largest difference in an output over the largest value there; GPUs multiply float32 in TF32."""
WAYS = {"jax": ("jax.jit", "fusiond"), "torch": ("inductor", "fusiond", "eager")}
Way = Callable[[], Any]


def step(framework: str, s: models.Sizes, dtype: str, given: argparse.Namespace, until: float) -> dict[str, Any]:
    """The row of a step; what fails is its reason."""
    row: dict[str, Any] = {"batch": s.batch, "regions": {}}
    try:
        ways, states = (_jax if framework == "jax" else _torch)(s, dtype, given)
        base, *others = ways
        results = {name: _leaves(run()) for name, run in ways.items()}
        row |= {"regions": dict(Counter(states())), "apart": {}}
        for name in others:
            row["apart"][name] = found = apart(results[base], results[name])
            if not found <= TOLERANCE[dtype]:
                return {**row, "failed": f"{name} gives what is {found:.1e} of the largest value apart"}
        del results
        taken = samples(ways, QUICK_ROUNDS if given.quick else ROUNDS, until)
    except Exception as problem:  # out of memory, a compiler's refusal: the other steps are measured
        return {**row, "failed": f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"}
    rounds = len(taken[base])
    row |= {"rounds": rounds, "ms": {name: round(float(np.median(each)), 3) for name, each in taken.items() if each}}
    if rounds < LEAST_ROUNDS:
        return {**row, "failed": f"{rounds} rounds until --minutes was over"}
    return {**row, "failed": "", "gain": {name: gain(taken[base], taken[name]) for name in others}}


def samples(ways: Mapping[str, Way], rounds: int, until: float) -> dict[str, list[float]]:
    """Milliseconds of a step in each sample."""

    def timed(run: Way, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            run()
        return (time.perf_counter() - began) / steps * 1e3

    steps = {name: max(1, math.ceil(SAMPLE_MS / min(timed(run, 1) for _ in range(2)))) for name, run in ways.items()}
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


def apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference in an output, over the largest value there."""
    found = [np.abs(a - b).max() / max(np.abs(a).max(), 1e-30) for a, b in zip(one, other, strict=True)]
    return math.inf if np.isnan(found).any() else float(max(found))


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping | tuple | list):
        return [leaf for each in (tree.values() if isinstance(tree, Mapping) else tree) for leaf in _leaves(each)]
    return [np.asarray(tree.detach().float().cpu() if hasattr(tree, "detach") else tree, np.float32)]


def options(given: argparse.Namespace) -> dict[str, Any]:
    """Of `fuse`, and of the backend. On a processor answers are emulated, and used to see that it works."""
    tuned = {"block": True, "search": {"trials": given.tune}} if given.tune else {}
    return {"device": given.device, "always": given.device == "cpu", **tuned}


def _jax(s: models.Sizes, dtype: str, given: argparse.Namespace) -> tuple[dict[str, Way], Callable[[], list[str]]]:
    """(the ways, the states of the regions once they have run)"""
    import jax

    import fusiond.jax
    from benchmarks.models import in_jax

    arguments, function = jax.device_put(models.arrays(s, 0)), in_jax.step(s, dtype)
    fused = fusiond.jax.fuse(function, **options(given))
    ways = {"jax.jit": _way(jax.jit(function), arguments, jax), "fusiond": _way(fused, arguments, jax)}
    return ways, lambda: [each.state for each in fusiond.jax.explain(fused, *arguments).regions]


def _torch(s: models.Sizes, dtype: str, given: argparse.Namespace) -> tuple[dict[str, Way], Callable[[], list[str]]]:
    import torch
    from torch.utils import _pytree as trees

    import fusiond.torch
    from benchmarks.models import in_torch

    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high")  # as JAX multiplies float32 on a GPU
    arguments = trees.tree_map(lambda each: torch.from_numpy(each).to(given.device), models.arrays(s, 0))
    before = len(fusiond.torch.explain().regions)
    compiling: Any = ({"backend": "inductor"}, {"backend": "fusiond", "options": options(given)}, {})

    ways = {
        name: _way(in_torch.step(s, dtype, **each), arguments, torch)
        for name, each in zip(WAYS["torch"], compiling, strict=True)
    }
    return ways, lambda: [each.state for each in fusiond.torch.explain().regions[before:]]


def _way(function: Callable[..., Any], arguments: Sequence[Any], framework: Any) -> Way:
    def run() -> Any:
        found = function(*arguments)
        if framework.__name__ == "jax":
            framework.block_until_ready(found)
        elif framework.cuda.is_available():
            framework.cuda.synchronize()
        return found

    return run
