"""What the tests of transfer fusion share: graphs, jobs from texts, and a runner of Programs on the cpu device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Analysis, Workload
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Role
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond.testing.strategies import PROCESSOR
from fusiond_transfer import plugin
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer

Arrays = dict[str, NDArray[Any]]
Analyse = Callable[..., Analysis]
Parse = Callable[..., Workload]
Read = Callable[..., Graph]


@pytest.fixture(scope="session")
def registry() -> Registry:
    registry = Registry()
    registry.add(plugin, "transfer")
    return registry


@pytest.fixture(scope="session")
def strategy() -> Transfer:
    return Transfer()


@pytest.fixture(scope="session")
def cpu_target() -> Target:
    return Target(arch="cpu", limits=PROCESSOR, facts=lambda source: None)


@pytest.fixture
def parse(registry: Registry, strategy: Transfer, tmp_path: Path) -> Parse:
    """A workload from a catalogue name or a graph's text, and further lines of the job."""

    def parse(graph: str, *lines: str) -> Workload:
        name = graph
        if "\n" in graph:
            (tmp_path / "graph.yaml").write_text(graph)
            name = "./graph.yaml"
        (job,) = jobs.read(tmp_path / "job.yaml", "\n".join(["strategy: transfer", f"graph: {name}", *lines]))
        jobs.check_keys(job, strategy.job_keys)
        return strategy.parse(job, jobs.JobInputs(registry, job))

    return parse


@pytest.fixture
def analyse(parse: Parse, strategy: Transfer, cpu_target: Target) -> Analyse:
    def analyse(graph: str, *lines: str) -> Analysis:
        return strategy.analyse(parse(graph, *lines), cpu_target)

    return analyse


@pytest.fixture
def graph(parse: Parse) -> Read:
    """The graph behind a catalogue name or a text."""

    def graph(name: str, *lines: str) -> Graph:
        found: Graph = parse(name, *lines).payload.graph
        return found

    return graph


class Device:
    """Runs Programs on the cpu device, in this process."""

    def __init__(self, cache: Path) -> None:
        self._cache = BuildCache(cache)
        self._executor = CpuExecutor()

    def run(self, program: Program, *, seed: int = 0, inputs: Arrays | None = None, kind: int = 0) -> Arrays:
        """The outputs of a checked run; `seed` also picks the order of the steps: late, early or random copies."""
        binaries = {}
        for source in program.sources:
            built = gxx.build(source, cache=self._cache)
            assert not isinstance(built, BuildFailed), built.log
            binaries[source.name] = built
        loaded = self._executor.load(program, binaries)
        try:
            for buffer in program.buffers:
                if buffer.part_of is not None:
                    continue
                data = initial(buffer, seed // 3, kind=kind)
                if buffer.role is Role.INPUT and inputs and buffer.name in inputs:
                    data = np.ascontiguousarray(inputs[buffer.name]).reshape(-1)
                loaded.write(buffer.name, data)
            loaded.run(seed=seed, checked=True)
            assert loaded.broken_guards() == ()
            return {each.name: loaded.read(each.name) for each in program.buffers if each.role is Role.OUTPUT}
        finally:
            loaded.close()


@pytest.fixture(scope="session")
def device(shared_cache: Path, scheduler_library: Path) -> Device:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIOND_CACHE", str(shared_cache))
        return Device(shared_cache)
