"""What a trial costs beside building and running it: `python benchmarks/tuner.py [--trials 1000]`, JSON on standard
output.

A whole job on the fake device, in this process: ask, emit, check, sample, store, tell, events. The alternative is
Optuna alone (ask and tell in memory, the same sampler, the same space), which is the least that such a search can cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import optuna

from fusiond import jobs, tuner
from fusiond.events import Event, Events, TrialFinished
from fusiond.registry import Registry
from fusiond.store.database import Store
from fusiond.testing.fakes import FakePlugin, InProcess

SIDE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    ours, optunas = fusiond_ms(trials), optuna_ms(trials)
    last = slice(-min(100, trials), None)
    print(
        json.dumps(
            {
                "trials": trials,
                "fusiond_ms": {"mean": statistics.mean(ours), "mean_of_last_100": statistics.mean(ours[last])},
                "optuna_ms": {"mean": statistics.mean(optunas), "mean_of_last_100": statistics.mean(optunas[last])},
                "ratio_of_means": statistics.mean(ours) / statistics.mean(optunas),
            },
            indent=1,
        )
    )


def fusiond_ms(trials: int) -> list[float]:
    """Milliseconds from one finished trial to the next."""
    ended: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialFinished):
            ended.append(time.perf_counter())

    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIOND_CACHE"] = os.environ["FUSIOND_LOCKS"] = folder
        with Store.open(Path(folder) / "store.sqlite") as store:
            (job,) = jobs.read("toy.yaml", f"strategy: toy\nside: {SIDE}\nsearch: {{trials: {trials}, timeout: 1h}}\n")
            row = tuner.submit(store, registry, job)
            store.claim("benchmark", job=row.id)
            tuner.Tuner(store, registry, Events(note), runner=InProcess).run(row.id, lambda: False)
    return [1000 * (right - left) for left, right in itertools.pairwise(ended)]


def optuna_ms(trials: int) -> list[float]:
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=0, group=True, constant_liar=False)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    spent = []
    for _ in range(trials):
        begun = time.perf_counter()
        trial = study.ask()
        x, y = (trial.suggest_int(name, 0, SIDE - 1) for name in "xy")
        study.tell(trial, math.log(20 / (10 + (x - 3) ** 2 + (y - 5) ** 2 / 4)))
        spent.append(1000 * (time.perf_counter() - begun))
    return spent


if __name__ == "__main__":
    main()
