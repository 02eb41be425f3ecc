"""What the tests of horizontal fusion share: jobs from texts, and a runner of Programs on the processor."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond import jobs
from fusiond.devices.cpu import commands, native
from fusiond.devices.cpu.lower import lower
from fusiond.fills import initial
from fusiond.model import Analysis, DeviceLimits, Job, Workload
from fusiond.program import Launch, Pointer, Program, Source
from fusiond.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse import plugin
from fusiond_hfuse.strategy import Hfuse

Arrays = dict[str, NDArray[Any]]

CPU = DeviceLimits(
    multiprocessors=1, registers_per_sm=0, shared_bytes_per_sm=227 * 1024, shared_bytes_per_block=227 * 1024,
    threads_per_sm=1024, blocks_per_sm=1,
)  # fmt: skip
"""As the cpu device says of itself: registers mean nothing there."""

SMALL = {"hist.n": 20_000, "maxpool.channels": 2, "maxpool.height": 200, "maxpool.width": 150}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = [tool for tool in ("nvcc", "ptxas") if shutil.which(tool) is None]
    if lacking:
        skip = pytest.mark.skip(reason=f"needs {' and '.join(lacking)} on PATH")
        for item in items:
            if "needs_nvcc" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def registry() -> Registry:
    registry = Registry()
    registry.add(plugin, "hfuse")
    return registry


@pytest.fixture(scope="session")
def strategy() -> Hfuse:
    return Hfuse()


@pytest.fixture
def parse(registry: Registry, strategy: Hfuse, tmp_path: Path) -> Callable[..., Workload]:
    """A workload from a job's text, or from a pair of names and sizes; paths are relative to `tmp_path`."""

    def parse(*pair: str, text: str = "", sizes: Mapping[str, int] | None = None, granularity: int = 128) -> Workload:
        if not text:
            lines = ["strategy: hfuse", f"pair: [{', '.join(pair)}]", f"granularity: {granularity}"]
            if sizes:
                lines.append("sizes: {" + ", ".join(f"{name}: {value}" for name, value in sizes.items()) + "}")
            text = "\n".join(lines)
        (job,) = jobs.read(tmp_path / "job.yaml", text)
        jobs.check_keys(job, strategy.job_keys)
        return strategy.parse(job, jobs.JobInputs(registry, job))

    return parse


@pytest.fixture(scope="session")
def cpu_target() -> Target:
    return Target(arch="cpu", limits=CPU, facts=lambda source: None)


@pytest.fixture
def analyse(parse: Callable[..., Workload], strategy: Hfuse, cpu_target: Target) -> Callable[..., Analysis]:
    """The analysis of a pair on the processor."""

    def analyse(*pair: str, target: Target = cpu_target, **job: Any) -> Analysis:
        return strategy.analyse(parse(*pair, **job), target)

    return analyse


@pytest.fixture
def kernel_file(tmp_path: Path) -> Callable[..., str]:
    """Writes NAME.cu and NAME.yaml, and gives what a job calls them."""

    def write(name: str, source: str, yaml: str) -> str:
        (tmp_path / f"{name}.cu").write_text(source)
        (tmp_path / f"{name}.yaml").write_text(yaml)
        return f"./{name}.yaml"

    return write


class Runner:
    """Builds sources with g++ and runs Programs on the cpu device's runtime, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = folder / "libfusiond_cpu.so"
        subprocess.run(commands.library(library), check=True, capture_output=True)
        subprocess.run(commands.header(folder), check=True, capture_output=True)
        self.runtime = native.Runtime(library)

    def build(self, source: Source) -> Path:
        text = "".join(f"#define {name} {value}\n" for name, value in source.defines) + lower(source.text)
        unit = commands.translation_unit(text, {f"entry{i}": entry for i, entry in enumerate(source.entries)})
        out = self.folder / (hashlib.sha256(unit.encode()).hexdigest()[:24] + ".so")
        if not out.exists():
            cpp = out.with_suffix(".cpp")
            cpp.write_text(unit)
            done = subprocess.run(
                commands.kernel(cpp, out, precompiled=self.folder), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        return out

    def run(self, program: Program, *, seed: int = 1, order: int = 0, checked: bool = True) -> Arrays | native.Fault:
        """All buffers after one run, or the first fault. `order` is the scheduler's seed, 0 for in order."""
        arrays: Arrays = {buffer.name: initial(buffer, seed).copy() for buffer in program.buffers}
        for step in program.steps:
            assert isinstance(step, Launch)
            source = program.source(step.source)
            module = self.runtime.load(self.build(source))
            entry = module.entry(f"entry{source.entries.index(step.entry)}")
            launch = native.Launch(
                grid=step.grid, block=step.block, shared_bytes=step.shared_bytes, seed=order, checked=checked
            )
            arguments = [
                arrays[each.buffer] if isinstance(each, Pointer) else np.dtype(each.dtype).type(each.value)
                for each in step.arguments
            ]
            done = self.runtime.launch(entry, launch, arguments)
            if isinstance(done, native.Fault):
                return done
        return arrays


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("cpu"))


def outputs(program: Program, arrays: Arrays) -> Arrays:
    return {buffer.name: arrays[buffer.name] for buffer in program.buffers if buffer.role.compared}


@pytest.fixture(scope="session")
def same(runner: Runner) -> Callable[[Program, Program], None]:
    """Asserts that two programs give the same outputs, for two seeds of data and three schedules."""

    def same(program: Program, reference: Program) -> None:
        for seed in (1, 2):
            wanted = runner.run(reference, seed=seed)
            assert isinstance(wanted, dict), wanted
            for order in (0, 7):
                got = runner.run(program, seed=seed, order=order)
                assert isinstance(got, dict), got
                for name, array in outputs(reference, wanted).items():
                    np.testing.assert_array_equal(outputs(program, got)[name], array, err_msg=name)

    return same


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/plugins/hfuse/golden; FUSIOND_UPDATE_GOLDEN=1 writes the file instead."""

    def compare(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if os.environ.get("FUSIOND_UPDATE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; FUSIOND_UPDATE_GOLDEN=1 writes it"
        assert text == path.read_text()

    return compare


def job_of(text: str) -> Job:
    (job,) = jobs.read("job.yaml", text)
    return job
