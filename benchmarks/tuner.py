"""What a trial costs beside building and running it: `python -m benchmarks.tuner [--trials 1000]`, JSON on standard
output.

A whole job on the fake device, in this process: ask, emit, check, sample, store, tell, events. The alternative is
Optuna alone (ask and tell in memory, the same sampler, the same space), which is the least that such a search can cost.

`fusiond_ms`: a measurement takes no time, so this is all that a trial costs, whoever has to wait for it; the fake
device's own work (fills, comparisons) is in it, and given beside it. `waiting_ms`: a measurement takes 50 ms; this is
for how long the device then waits from one trial to the next.
"""

from __future__ import annotations

import argparse
import functools
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

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.events import Event, Events, TrialFinished
from fusiond.model import DeviceInfo
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.store.database import Store
from fusiond.testing.fakes import FakePlugin, InProcess
from fusiond.tuning import tuner

SIDE = 100
MEASURING_SECS = 0.05


class Timed(InProcess):
    """Takes so long for each sample of the search; `spent` holds when each request began and ended."""

    def __init__(
        self, provider: DeviceProvider, device: DeviceInfo, *, measuring_secs: float, spent: list[tuple[float, float]]
    ) -> None:
        super().__init__(provider, device)
        self._measuring_secs, self._spent = measuring_secs, spent

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        begun = time.perf_counter()
        try:
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose.value == "search":
                time.sleep(self._measuring_secs)
            return super().call(request, timeout_secs)
        finally:
            self._spent.append((begun, time.perf_counter()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    (ours, device), optunas = fusiond_ms(trials, 0.0), optuna_ms(trials)
    calm, busy = fusiond_ms(min(trials, 200), MEASURING_SECS)
    last = slice(-min(100, trials), None)
    print(
        json.dumps(
            {
                "trials": trials,
                "fusiond_ms": {"mean": statistics.mean(ours), "mean_of_last_100": statistics.mean(ours[last])},
                "optuna_ms": {"mean": statistics.mean(optunas), "mean_of_last_100": statistics.mean(optunas[last])},
                "ratio_of_means": statistics.mean(ours) / statistics.mean(optunas),
                "fake_device_ms": {"mean": device},
                "waiting_ms": {"mean": statistics.mean(calm) - busy, "measuring": 1000 * MEASURING_SECS},
            },
            indent=1,
        )
    )


def fusiond_ms(trials: int, measuring_secs: float) -> tuple[list[float], float]:
    """Milliseconds from one finished trial to the next; and for how much of that, on the average, the device worked."""
    spent: list[tuple[float, float]] = []
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
            runner = functools.partial(Timed, measuring_secs=measuring_secs, spent=spent)
            tuner.Tuner(store, registry, Events(note), runner=runner).run(row.id, lambda: False)
    during = [end - begun for begun, end in spent if ended[0] <= begun and end <= ended[-1]]
    return [1000 * (right - left) for left, right in itertools.pairwise(ended)], 1000 * sum(during) / (trials - 1)


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
