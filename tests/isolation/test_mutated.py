"""Thousands of mutated files: every one is planned, or refused in a line; no crash, nothing that takes for ever or
all of the memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fusiond.errors import DeviceError, RequestError
from fusiond.isolation.planner import Planner
from fusiond.isolation.registry import IsolatedRegistry, read
from fusiond.planning import plan
from fusiond.registry import Registry
from tests.isolation import mutants

MOST_SECS = 10.0
MOST_BYTES = 1 << 30
CHUNK = 500
SEEDS = range(40)
"""40 x 500 files, all of them by `make test-all`."""


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Planner() as planner:
        yield IsolatedRegistry(planner, points=_devices())


def _devices() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group="fusiond", name="devices"))


def campaign(registry: IsolatedRegistry, folder: Path, seed: int, count: int) -> dict[str, int]:
    """Plan `count` mutated projects; how many were planned and how many refused. AssertionError, with the files left in
    `folder`, for what is neither."""
    draw = random.Random(seed)
    projects = mutants.projects()
    others = [content for project in projects for content in project.files.values()]
    said = {"planned": 0, "refused": 0}
    for number in range(count):
        project = draw.choice(projects)
        here = folder / f"{seed}-{number}"
        here.mkdir()
        files = mutants.mutated(project, draw, others)
        for name, content in files.items():
            (here / name).write_bytes(content)
        begun = _processor_secs()
        where = f"{project.name}, seed {seed}, number {number}: {here}"
        try:
            for job in read(registry, str(here / "job.yaml"), device="cpu"):
                plan(registry, job)
            said["planned"] += 1
        except (RequestError, DeviceError) as problem:
            assert "\n" not in str(problem), where
            said["refused"] += 1
        except Exception as problem:
            raise AssertionError(f"{type(problem).__name__} at {where}") from problem
        assert _processor_secs() - begun < MOST_SECS, where
        for name in files:
            (here / name).unlink()
        here.rmdir()
    peak = max((_peak_bytes(each.pid) for each in psutil.Process().children(recursive=True)), default=0)
    assert peak < MOST_BYTES, f"{peak} bytes, seed {seed}"
    return said


def _processor_secs() -> float:
    """Of this process and its children: what a busy machine does not change. A child that ended takes its share along,
    and is stopped in time itself."""
    found = 0.0
    for each in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:2])
    return found


def _peak_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


def test_the_projects_are_right_as_they_are(registry: IsolatedRegistry, tmp_path: Path) -> None:
    for project in mutants.projects():
        for name, content in project.files.items():
            (tmp_path / name).write_bytes(content)
        for job in read(registry, str(tmp_path / "job.yaml"), device="cpu"):
            assert plan(registry, job).seeds, project.name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_of_mutated_files(registry: IsolatedRegistry, tmp_path: Path) -> None:
    said = campaign(registry, tmp_path, seed=1000, count=120)
    assert min(said.values()) > 10, "both happen"


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_files(registry: IsolatedRegistry, tmp_path: Path, seed: int) -> None:
    campaign(registry, tmp_path, seed, CHUNK)
