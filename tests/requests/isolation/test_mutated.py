"""Thousands of mutated files: every one is planned, or refused in a line; no crash, nothing that takes for ever or
all of the memory."""

import contextlib
import importlib.metadata
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fusiond.cli import main
from fusiond.requests.isolation.messages import ChildLimits
from fusiond.requests.isolation.planner import Planner
from fusiond.requests.isolation.registry import IsolatedRegistry, read
from fusiond.requests.planning import plan
from fusiond.requests.registry import Registry
from tests.requests.isolation import mutants

MOST_SECS = 10.0
MOST_BYTES = 1400 << 20  #: Of address space: a gigabyte, beside what a child has mapped before it reads anything
CHUNK = 500
SEEDS = range(40)  #: 40 x 500 files, all of them by `make test-all`


@pytest.fixture
def registry(shared: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """What `fusiond plan` loads, in the memory that a mutated file may take."""
    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: shared)
    monkeypatch.setattr("fusiond.requests.isolation.start.early", lambda **_: None)
    return shared


@pytest.fixture(scope="module")
def shared() -> Iterator[Registry]:
    with Planner(limits=ChildLimits(memory_bytes=MOST_BYTES)) as planner:
        yield IsolatedRegistry(planner, points=_devices())


def _devices() -> tuple[importlib.metadata.EntryPoint, ...]:
    return tuple(importlib.metadata.entry_points(group="fusiond", name="devices"))


def campaign(folder: Path, capsys: pytest.CaptureFixture[str], seed: int, count: int) -> dict[str, int]:
    """`fusiond plan` of `count` mutated projects; how many were planned and how many refused. AssertionError, with the
    files left in `folder`, for what is neither."""
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
        capsys.readouterr()
        status = main(["plan", str(here / "job.yaml"), "--db", str(folder / "none.sqlite")])
        out, err = capsys.readouterr()
        assert status in (0, 2, 3), f"{where}: {err}"
        assert (status == 0) == bool(out) or err, where
        assert "Traceback" not in err, where
        assert "more memory than it may use" not in err, where
        said["planned" if status == 0 else "refused"] += 1
        assert _processor_secs() - begun < MOST_SECS, where
        for name in files:
            (here / name).unlink()
        here.rmdir()
    return said


def _processor_secs() -> float:
    """Of this process and its children: what a busy machine does not change. A child that ended takes its share along,
    and is stopped in time itself."""
    found = 0.0
    for each in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:2])
    return found


@pytest.mark.campaign
def test_the_projects_are_right_as_they_are(registry: Registry, tmp_path: Path) -> None:
    for project in mutants.projects():
        for name, content in project.files.items():
            (tmp_path / name).write_bytes(content)
        for job in read(registry, str(tmp_path / "job.yaml"), device="cpu"):
            assert plan(registry, job).seeds, project.name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_of_mutated_files(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = campaign(tmp_path, capsys, seed=1000, count=25)
    assert min(said.values()) > 2, "both happen"


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_mutated_files(registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    campaign(tmp_path, capsys, seed, CHUNK)
