"""A stranger's plugin, installed beside fusiond and not into it: found, tuned with, and shown when it is broken."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.nouns import Job
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.strategy import Strategy
from fusiond.testing.strategies import StrategyContract

STRANGER = Path(__file__).parent / "stranger"
JOB = "strategy: saxpy-unroll\nsaxpy: small\ndevice: cpu\nsizes: {n: 3000}\nsearch: {trials: 3, timeout: 60s}\n"

TUNE = """
import json, sys
from fusiond.requests import jobs
from fusiond.tuning import tuner
from fusiond.model.events import Events, TrialFinished
from fusiond.requests.registry import Registry
from fusiond.store.database import Store

registry = Registry.load()
outcomes = []

def hear(event):
    registry.notify(event)
    if isinstance(event, TrialFinished):
        outcomes.append(event.trial.outcome.value)

(job,) = jobs.read(sys.argv[1])
with Store.open(sys.argv[2]) as store:
    row = tuner.submit(store, registry, job)
    store.claim("test", job=row.id)
    state = tuner.Tuner(store, registry, Events(hear)).run(row.id, lambda: False)
    (device,) = registry.providers["cpu"].devices()
    record = store.record(row.workload_key, device.key)
    print(json.dumps({
        "state": state.value, "problem": store.job(row.id).problem, "outcomes": outcomes,
        "verified": record.verified, "evidence": record.evidence, "config": dict(record.config or {}),
    }))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `pip install --target` leaves it: the package, and what its pyproject.toml says of it.

    Built by hand, because a build needs the network or `wheel`, and neither has to be here.
    """
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads((STRANGER / "pyproject.toml").read_text())["project"]
    for package in tomllib.loads((STRANGER / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]:
        shutil.copytree(STRANGER / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of another process, in which the stranger is installed."""

    def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site), **environment},
        )  # fmt: skip

    return python


def plugins(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)}


@pytest.mark.slow
def test_it_is_found_by_its_entry_point(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    found = plugins(python("-m", "fusiond", "plugins", "--json"))
    assert found["stranger"] == {
        "name": "stranger", "distribution": "fusiond-stranger", "strategies": ["saxpy-unroll"], "devices": [],
        "workloads": ["small"], "problem": None,
    }  # fmt: skip
    assert found["hfuse"]["problem"] is None


@pytest.mark.slow
def test_a_plugin_that_raises_is_shown_and_the_others_load(
    python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # A cache of its own, since what was registered is remembered.
    broken = {"STRANGER_BREAKS": "1", "FUSIOND_CACHE": str(tmp_path / "cache")}
    found = plugins(python("-m", "fusiond", "plugins", "--json", **broken))
    assert found["stranger"]["problem"] == "RuntimeError: the stranger's licence has run out"
    assert found["stranger"]["strategies"] == []
    assert found["hfuse"]["problem"] is None
    assert "cpu" in found["devices"]["devices"]
    (tmp_path / "job.yaml").write_text(JOB)
    refused = python("-m", "fusiond", "plan", "job.yaml", "--json", **broken)
    assert refused.returncode == 2
    assert "saxpy-unroll" in refused.stdout + refused.stderr


@pytest.mark.slow
def test_a_plan_of_it_can_be_shown(python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = python("-m", "fusiond", "plan", "job.yaml", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["analysis"] == {"bytes": 36000}
    assert document["space"]["points"] == 11
    (tmp_path / "job.yaml").write_text(JOB.replace("saxpy: small", "saxpy: smal"))
    wrong = python("-m", "fusiond", "plan", "job.yaml")
    assert wrong.returncode == 2
    assert "did you mean 'small'?" in wrong.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_a_job_of_it_is_tuned_from_end_to_end(
    python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    notes = tmp_path / "notes"
    done = python("-c", TUNE, "job.yaml", "store.sqlite", STRANGER_NOTES=str(notes))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["problem"]) == ("done", None)
    assert len(found["outcomes"]) == 3
    assert "measured" in found["outcomes"]
    assert found["verified"]
    assert found["evidence"] == "emulated"
    assert set(found["config"]) == {"threads", "unroll"}
    lines = notes.read_text().splitlines()
    assert sum(line.startswith("trial ") for line in lines) == 3
    assert lines[-1].startswith("record saxpy ")
    exported = python("-m", "fusiond", "best", "--workload", "saxpy", "--db", "store.sqlite", "--export", "answer")
    assert exported.returncode == 0, exported.stderr
    assert "scale * x[i + 0] + y[i + 0]" in next((tmp_path / "answer").glob("**/*.cu")).read_text()


# --- in this process: the contract ---


@pytest.fixture(scope="module")
def importable(site: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "stranger_plugin"]:
        del sys.modules[name]


@pytest.mark.usefixtures("importable")
class TestStranger(StrategyContract):
    def strategy(self) -> Strategy:
        from stranger_plugin.strategy import SaxpyUnroll

        return SaxpyUnroll()

    def registry(self) -> Registry:
        from stranger_plugin import plugin

        registry = Registry()
        registry.add(plugin, "stranger", "fusiond-stranger")
        return registry

    def jobs(self) -> tuple[Job, ...]:
        texts = [JOB, "strategy: saxpy-unroll", "strategy: saxpy-unroll\nsizes: {n: 3}"]
        return tuple(job for text in texts for job in jobs.read("job.yaml", text))

    def test_the_workload_key_is_the_same_in_another_process(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[override]
        monkeypatch.setenv("PYTHONPATH", str(site))
        super().test_the_workload_key_is_the_same_in_another_process()
