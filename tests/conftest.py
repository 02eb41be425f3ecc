"""Fixtures for all tests: nothing of the user's is touched, and what the machine lacks is a skip with its reason."""

import collections
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fusiond.build import gxx, nvcc
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.devices.timing import Sampling
from fusiond.model.events import Events
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Job
from fusiond.model.outcomes import BuildFailed, JobState
from fusiond.model.program import Program
from fusiond.requests import planning
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.tuning import profiles, tuner, verdict
from tests.devices.cuda import stand_in
from tests.fakes import FakePlugin

# No deadline for one example: a busy machine is not a bug. The timeout of each test stands.
settings.register_profile("all", deadline=None)
settings.register_profile("sample", deadline=None, max_examples=20)  # `make test-all` asks for "all"
settings.load_profile("sample")


@pytest.hookimpl(tryfirst=True)  # before markers select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a compiler or a GPU that is not here; the reason is the remedy. What needs nvcc and what is a
    campaign is slow. Every n-th case of what is `sampled(n)` is run by `make test`, and the others are a campaign."""
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) and not item.get_closest_marker("campaign"):
            function = item.nodeid.partition("[")[0]
            if seen[function] % sampled.args[0]:
                item.add_marker(pytest.mark.campaign)
            seen[function] += 1
    lacking = {"needs_nvcc": nvcc.missing(), "needs_gpu": "; ".join(CudaProvider().missing()) or None}
    for item in items:
        for marker, reason in lacking.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("campaign"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("needs_nvcc"):  # each takes a second or more, and tells a developer little
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for the whole run, all processes of it: builds are by content, so tests cannot disturb each
    other through it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "builds"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setenv("FUSIOND_LOCKS", str(locks))
    monkeypatch.setenv("FUSIOND_CACHE", str(shared_cache))
    monkeypatch.setenv("FUSIOND_DB", str(tmp_path / "store" / "fusiond.sqlite"))


def run_job(
    store: Store, registry: Registry, job: Job, *listeners: Callable[[Any], object], **options: Any
) -> tuple[JobRow, JobState]:
    """Submit a job and tune it to its end, in this process; `options` are the Tuner's."""
    row = tuner.submit(store, registry, job)
    store.claim("test", job=row.id)
    return row, tuner.Tuner(store, registry, Events(*listeners), **options).run(row.id, lambda: False)


def ran_on_the_cpu(program: Program, seed: int) -> Any:
    """A program on the cpu device, in this process, after a checked run over its own data."""
    binaries = {}
    for source in program.sources:
        path = interpreted.build(source)
        assert not isinstance(path, BuildFailed), path
        binaries[source.name] = path
    loaded = CpuExecutor().load(program, binaries)
    for buffer in program.buffers:
        loaded.write(buffer.name, initial(buffer, seed))
    loaded.run(seed=seed, checked=True)
    assert not loaded.broken_guards()
    return loaded


def measure_shortly(patch: pytest.MonkeyPatch) -> None:
    """Few samples in few processes, on a machine that may be busy: for what is not about how exact times are."""
    patch.setattr(verdict, "LEAST_PROCESSES", 3)
    patch.setattr(profiles, "keep", lambda context: None)
    for name, value in {"warm_up_secs": 0.0, "pairs": 6, "budget_secs": 0.1, "noise_limit": 9.0}.items():
        patch.setitem(Sampling.__init__.__kwdefaults__, name, value)


@pytest.fixture
def short_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_shortly(monkeypatch)


@pytest.fixture
def without_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans for a GPU that is not there ask no compiler for registers: a second for each kernel."""
    monkeypatch.setattr(planning, "NvccFacts", lambda arch: lambda source: None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
def fakes() -> Registry:
    """A registry with the toy strategy and the fake device, and nothing else."""
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    return registry


@pytest.fixture(scope="session")
def real() -> Registry:
    """The registry of this environment."""
    return Registry.load()


@pytest.fixture(scope="session")
def gxx_here() -> None:
    """Skips where there is no C++ compiler."""
    reason = gxx.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def scheduler_library(gxx_here: None, shared_cache: Path) -> Path:
    """The scheduler library, built once for the whole run."""
    return gxx.scheduler(BuildCache(shared_cache))


@pytest.fixture(scope="session")
def fake_libcuda(gxx_here: None, shared_cache: Path) -> Path:
    """The fake driver, built once for the whole run."""
    folder = shared_cache.with_name("driver")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = folder / "libcuda.so"
        return there if (folder / "libcuda.so.1").exists() else stand_in.built(folder)


@pytest.fixture
def gpu(fake_libcuda: Path, tmp_path: Path) -> stand_in.FakeGpu:
    """A GPU that is not there, and the cuda device's executor on it."""
    return stand_in.FakeGpu(fake_libcuda, tmp_path)
