"""What it costs that strategies run in child processes, beside the same work in this process: `python -m
benchmarks.isolation`, JSON on standard output. Interleaved; medians, and the ratio of the medians.

    plan      `fusiond plan` of a job from a cold shell, whole processes
    submit    what a daemon does with a submission when it is warm: read, parse, look whether anything can be tried
    emit      one config
    replace   from a child that died to the answer of the next one
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fusiond.client.here import checked
from fusiond.isolation.planner import Planner
from fusiond.isolation.registry import IsolatedRegistry, load, read
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, target_for_arch

JOBS = ("hist-maxpool", "mincut-harris", "stitching-lr", "transfer-fig2")
FOLDER = Path(__file__).parents[1] / "configs" / "jobs"
COLD, WARM, EMITS = 7, 15, 60

_HERE = """
import sys
from fusiond.isolation import registry, start
from fusiond.registry import Registry
start.early, registry.load = (lambda: None), Registry.load
from fusiond.cli import main
sys.exit(main(sys.argv[1:]))
"""


def main() -> None:
    here, children = Registry.load(), load()
    result: dict[str, object] = {"jobs": list(JOBS)}
    plans = {}
    for name in JOBS:
        words = ["plan", str(FOLDER / f"{name}.yaml")]
        plans[name] = _compared(
            lambda words=words: _run([sys.executable, "-c", _HERE, *words]),
            lambda words=words: _run([sys.executable, "-m", "fusiond", *words]),
            COLD,
        )
    result["plan"] = plans
    result["submit"] = {
        name: _compared(lambda name=name: _submit(here, name), lambda name=name: _submit(children, name), WARM)
        for name in JOBS
    }
    result["emit"] = {name: _emits(here, children, name) for name in JOBS}
    result["replace_ms"] = _replaced()
    print(json.dumps(result, indent=1))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _submit(registry: Registry, name: str) -> None:
    checked(registry, read(registry, str(FOLDER / f"{name}.yaml"), device="cpu"))


def _emits(here: Registry, children: Registry, name: str) -> dict[str, float]:
    (job, *_) = jobs.read(FOLDER / f"{name}.yaml")
    emitters: list[Callable[[], object]] = []
    for registry in (here, children):
        prepared = prepare(registry, job)
        strategy = prepared.strategy
        analysis = strategy.analyse(prepared.workload, target_for_arch("sm_90"))
        (_, seed), *_ = strategy.seeds(analysis, strategy.space(analysis, {}), {})
        emitters.append(lambda strategy=strategy, analysis=analysis, seed=seed: strategy.emit(analysis, seed, {}))
    return _compared(emitters[0], emitters[1], EMITS)


def _compared(here: Callable[[], object], children: Callable[[], object], rounds: int) -> dict[str, float]:
    """Milliseconds of both, taken in turns; the first round of each is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for kept, work in zip(times, (here, children), strict=True):
            begun = time.perf_counter()
            work()
            kept.append(1000 * (time.perf_counter() - begun))
    alone, isolated = (statistics.median(each[1:]) for each in times)
    return {"here_ms": round(alone, 2), "children_ms": round(isolated, 2), "ratio": round(isolated / alone, 2)}


def _replaced() -> float:
    """Milliseconds from the death of a child that keeps a parsed job to its next answer."""
    found = []
    with Planner(children=1) as planner:
        registry = IsolatedRegistry(planner)
        (job, *_) = jobs.read(FOLDER / "transfer-fig2.yaml")
        prepared = prepare(registry, job)
        for _ in range(WARM):
            (child,) = planner.children
            os.kill(child.pid, 9)
            begun = time.perf_counter()
            prepared.strategy.odd_sizes(prepared.workload)
            found.append(1000 * (time.perf_counter() - begun))
    return round(statistics.median(found), 1)


if __name__ == "__main__":
    main()
