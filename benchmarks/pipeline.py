"""How well compiling and measuring overlap: `python -m benchmarks.pipeline`, JSON on standard output.

The compile times of 32 candidates of `hist,maxpool` (processor time of nvcc and ptxas for sm_90, nothing cached) and
the times that checking and sampling them took on the cpu device were recorded once (`--record`, into
pipeline_times.json). They are replayed through the real tuner: emitting a candidate (which compiles, as hfuse does to
know the registers) sleeps as long as its compile took, sampling it as long as its measuring took. Measuring is scaled:
it takes a third of what the cores need to compile (limited by the cores), as long (balanced: the hardest), and three
times as long (limited by the device).

The ideal is the same work in the same order by a tuner that costs nothing and knows all its candidates from the start:
a build begins as soon as a core is free, a measurement as soon as its build and the device are ready. With a space that
is searched whole all candidates are known; with the sampler a few are asked for ahead (`fusiond.tuning.search`).
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.devices import protocol
from fusiond.devices.base import Binary, DeviceProvider
from fusiond.events import Event, Events, PhaseStarted, TrialFinished
from fusiond.hookspecs import hookimpl
from fusiond.model import Analysis, BuildFailed, Config, DeviceInfo, JobState
from fusiond.program import Program, Source
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.search.space import Parameter, Space
from fusiond.store.database import Store
from fusiond.strategy import Known
from fusiond.testing.fakes import FakeProvider, InProcess, ToyStrategy
from fusiond.tuning import tuner

TIMES = Path(__file__).with_name("pipeline_times.json")
CORES = (2, 8)
LOADS = {"cores": 1 / 3, "balanced": 1.0, "device": 3.0}
SPEED = 3.0
"""Recorded seconds are stretched, so that what the tuner itself costs on a busy machine does not decide."""
MEMORY = "/dev/shm"
"""Where the store lies meanwhile: how long a shared disk takes to sync is not what is asked here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the times anew (needs nvcc; minutes)")
    parser.add_argument("--speed", type=float, default=SPEED, help="replayed seconds for a recorded one")
    arguments = parser.parse_args()
    if arguments.record:
        TIMES.write_text(json.dumps(record(), indent=1) + "\n")
    recorded = json.loads(TIMES.read_text())
    table = [
        replayed(recorded, cores=cores, load=load, whole=whole, speed=arguments.speed)
        for cores in CORES
        for load in LOADS
        for whole in (True, False)
    ]
    print(json.dumps({"recorded": recorded["recorded"], "speed": arguments.speed, "table": table}, indent=1))


# --- replaying ------------------------------------------------------------------------------------------


def replayed(recorded: Mapping[str, Any], *, cores: int, load: str, whole: bool, speed: float) -> dict[str, Any]:
    """One search, replayed: its makespan, that of the ideal, and the share of the time in which the device worked."""
    compiles = [speed * each for each in recorded["compile_secs"]]
    runs = [speed * each for each in recorded["measure_secs"]]
    scale = LOADS[load] * sum(compiles) / cores / sum(runs)
    runs = [scale * each for each in runs]
    clock = Clock(compiles, runs)
    started, ended, order = _search(clock, cores, whole)
    makespan = ended - started
    best = ideal([compiles[each] for each in order], [runs[each] for each in order], cores)
    return {
        "cores": cores,
        "limited_by": load,
        "space": "whole" if whole else "sampler",
        "trials": len(order),
        "makespan_secs": round(makespan, 3),
        "ideal_secs": round(best, 3),
        "of_ideal": round(best / makespan, 3),
        "device_busy": round(sum(runs[each] for each in order) / makespan, 3),
    }


def ideal(compiles: Sequence[float], runs: Sequence[float], cores: int) -> float:
    """The makespan of a tuner that costs nothing."""
    free = [0.0] * cores
    device = 0.0
    for compile_secs, run_secs in zip(compiles, runs, strict=True):
        ready = heapq.heappop(free) + compile_secs
        heapq.heappush(free, ready)
        device = max(device, ready) + run_secs
    return device


class Clock:
    """Which candidate takes how long. What is not a candidate (a baseline) takes no time."""

    def __init__(self, compiles: Sequence[float], runs: Sequence[float]) -> None:
        self._compiles, self._runs = compiles, runs
        self._lock = threading.Lock()
        self._built: dict[str, threading.Event] = {}

    def number(self, text: str) -> int | None:
        """The candidate that a source's text belongs to."""
        if "candidate" not in text:
            return None
        return int(text.split("candidate ")[1].split()[0]) % len(self._compiles)

    def build(self, text: str) -> None:
        """Takes time once, as with a cache; whoever asks meanwhile waits."""
        number = self.number(text)
        if number is None:
            return
        with self._lock:
            first = text not in self._built
            done = self._built.setdefault(text, threading.Event())
        if first:
            time.sleep(self._compiles[number])
            done.set()
        done.wait()

    def run(self, text: str) -> None:
        number = self.number(text)
        if number is not None:
            time.sleep(self._runs[number])


class PacedProvider(FakeProvider):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        self.clock.build(source.text)
        return super().build(source, arch)


class PacedRunner(InProcess):
    def __init__(self, provider: DeviceProvider, device: DeviceInfo) -> None:
        super().__init__(provider, device)
        assert isinstance(provider, PacedProvider)
        self._clock = provider.clock

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        if isinstance(request, protocol.SampleRequest) and request.plan.purpose.value == "search":
            (text,) = (Path(request.candidate) / "sources").glob("*")
            self._clock.run(text.read_text())
        return super().call(request, timeout_secs)


class Numbered(ToyStrategy):
    """As many candidates as were recorded (with `unfused` above 1000), or a hundred times as many, of which the sampler
    asks for as many."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def space(self, analysis: Analysis, known: Known) -> Space:
        count, exactly = analysis.workload.payload["side"], analysis.workload.payload["unfused"] > 1000
        return Space(
            parameters=(
                Parameter(name="x", values=tuple(range(count))),
                Parameter(name="y", values=tuple(range(1 if exactly else 100))),
            )
        )

    def emit(self, analysis: Analysis, config: Config, known: Known) -> Program:
        number = config.integer("x") + analysis.workload.payload["side"] * config.integer("y")
        program = self._program(analysis, 10 + number % 7, "")
        (source,) = program.sources
        # A directive that the fake device does not know; it makes every candidate another source.
        text = f"{source.text}candidate {number}\n"
        self.clock.build(text)  # as a strategy does that must know the registers
        return dataclasses.replace(program, sources=(dataclasses.replace(source, text=text),))

    def odd_sizes(self, workload: Any) -> None:
        return None


def _search(clock: Clock, cores: int, whole: bool) -> tuple[float, float, list[int]]:
    """Begin and end of the search phase, and the recorded candidates in the order in which they were measured."""
    moments: dict[str, float] = {}
    order: list[int] = []
    side = len(clock._compiles)

    def note(event: Event) -> None:
        if isinstance(event, PhaseStarted) and event.phase == "search":
            moments.setdefault("begun", time.monotonic())
        if isinstance(event, TrialFinished):
            config = event.trial.config
            order.append((config.integer("x") + side * config.integer("y")) % side)
            moments["ended"] = time.monotonic()

    registry = Registry()
    registry.add(_Plugin(clock), "replay")
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        os.environ["FUSIOND_CACHE"] = os.environ["FUSIOND_LOCKS"] = folder
        with Store.open(Path(folder) / "store.sqlite") as store:
            unfused = 2000 if whole else 20
            text = f"strategy: toy\nside: {side}\nunfused: {unfused}\nsearch: {{trials: {side}, timeout: 1h}}\n"
            (job,) = jobs.read("replay.yaml", text)
            row = tuner.submit(store, registry, job)
            store.claim("benchmark", job=row.id)
            state = tuner.Tuner(store, registry, Events(note), runner=PacedRunner, build_jobs=cores).run(
                row.id, lambda: False
            )
            assert state is JobState.DONE, store.job(row.id)
    return moments["begun"], moments["ended"], order


class _Plugin:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @hookimpl
    def register_strategies(self, register: Callable[[ToyStrategy], None]) -> None:
        register(Numbered(self._clock))

    @hookimpl
    def register_devices(self, register: Callable[[FakeProvider], None]) -> None:
        register(PacedProvider(self._clock))


# --- recording ------------------------------------------------------------------------------------------


def children_secs() -> float:
    """Processor time of the compilers that have run so far: who else uses the cores makes no difference to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(count: int = 32) -> dict[str, Any]:
    """Compile and measure times of the first `count` points of a real space, each by itself."""
    import datetime
    import itertools

    from fusiond.build import nvcc
    from fusiond.build.gxx import version
    from fusiond.devices.supervisor import Supervisor
    from fusiond.devices.timing import Sampling
    from fusiond.model import MeasureFailed, Purpose
    from fusiond.requests.planning import choose_device, prepare, reference, target_for_arch, target_of
    from fusiond.tuning.measuring import Measurer, References

    registry = Registry.load()
    text = "strategy: hfuse\npair: [hist, maxpool]\nsizes: {hist.n: 20000, maxpool.height: 40, maxpool.width: 40}\n"
    (job,) = jobs.read("record.yaml", text)
    prepared = prepare(registry, job)
    strategy = prepared.strategy
    analysis = strategy.analyse(prepared.workload, target_for_arch("sm_90"))
    space = strategy.space(analysis, {})
    every = list(space.points())
    chosen = every[:: max(1, len(every) // (2 * count))]
    compiles: list[float] = []
    runs: list[float] = []
    provider, device = choose_device(registry, "cpu")
    here = strategy.analyse(prepared.workload, target_of(provider, device))
    names = {each.name for each in strategy.space(here, {}).parameters}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIOND_CACHE"] = folder
        runner = Supervisor(provider, device)
        measurer = Measurer(provider, runner, Path(folder) / "bundles", Path(folder) / "work")
        baseline = provider.normalise(reference(strategy, here))
        references = measurer.references(baseline, "reference")
        assert isinstance(references, References), references
        for config in itertools.islice(chosen, 2 * count):
            if len(compiles) == count:
                break
            begun = children_secs()
            program = strategy.emit(analysis, config, {})
            if not isinstance(program, Program) or any(
                isinstance(nvcc.build(each, "sm_90"), BuildFailed) for each in program.sources
            ):
                continue
            compiled = children_secs() - begun
            known = {name: value for name, value in config.items() if name in names}
            other = strategy.emit(here, Config.of(known), {})
            if not isinstance(other, Program):
                continue
            normal = provider.normalise(other)
            if isinstance(measurer.bundle(normal), MeasureFailed):
                continue
            begun = time.perf_counter()
            measurer.check(normal, references)
            measurer.sample(normal, baseline, Sampling(purpose=Purpose.SEARCH), references)
            runs.append(time.perf_counter() - begun)
            compiles.append(compiled)
        measurer.close()
        runner.close()
    return {
        "recorded": {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "workload": prepared.workload.name,
            "arch": "sm_90",
            "nvcc": nvcc.version(),
            "g++": version("g++"),
            "candidates": len(compiles),
        },
        "compile_secs": [round(each, 4) for each in compiles],
        "measure_secs": [round(each, 4) for each in runs],
    }


if __name__ == "__main__":
    main()
