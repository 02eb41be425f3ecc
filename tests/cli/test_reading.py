"""The commands that only read, and work without a daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import devices, doctor, plugins
from fusiond.registry import PluginState, Registry
from fusiond.store.database import Store
from fusiond.testing import daemon

Run = Callable[..., Any]


def test_jobs(fusiond: Run, done_job: str) -> None:
    (row,) = fusiond("jobs", "--json").json
    assert (row["id"], row["state"], row["workload"], row["trials"]) == (done_job, "done", "hist,maxpool", 3)
    assert done_job in fusiond("jobs").out
    assert fusiond("jobs", "--state", "queued").out == "no jobs\n"


def test_jobs_without_a_store(fusiond: Run, database: Path) -> None:
    assert fusiond("jobs", "--json").json == []
    assert not database.exists()


def test_show(fusiond: Run, done_job: str) -> None:
    assert fusiond("show", done_job, "--json").json == {
        "id": done_job,
        "state": "done",
        "trials": 3,
        "best": pytest.approx(1.02),
        "problem": None,
    }
    assert "trials      3 of 3" in fusiond("show", done_job[:4]).out


def test_watch_ends_with_the_state(fusiond: Run, done_job: str) -> None:
    said = fusiond("watch", done_job)
    assert said.status == 0
    assert said.out.splitlines()[-1] == f"job {done_job} is done"
    said = fusiond("watch", done_job, "--json")
    assert said.json["state"] == "done"
    assert f"job {done_job} is done" in said.err


def test_cancel_without_a_daemon(fusiond: Run, database: Path, done_job: str) -> None:
    assert fusiond("cancel", done_job, "--json").json["state"] == "done"  # what has ended stays as it is
    with Store.open(database) as store:
        job = store.load_job(done_job)
        row = daemon.submit(store, job)
    assert fusiond("cancel", row.id).out == f"job {row.id} is cancelled\n"


def test_explain(fusiond: Run, done_job: str) -> None:
    found = fusiond("explain", done_job, "--json").json
    assert [each["config"] for each in found["trials"]] == [{"block": 0}, {"block": 1}, {"block": 2}]
    assert found["answer"]["verdict"] == "fuse"
    text = fusiond("explain", done_job).out
    assert "3 candidates: 3 measured" in text
    assert "verdict: fuse, against streams_ab: 1.230x, 95% interval 1.210 to 1.250" in text


@pytest.fixture
def registry(fakes: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The fake device and the toy strategy, and a plugin that did not load."""
    fakes.states.append(PluginState(name="broken", distribution="somebody", problem="ImportError: no such thing"))

    class Loaded:
        @staticmethod
        def load() -> Registry:
            return fakes

    for module in (devices, doctor, plugins):
        monkeypatch.setattr(module, "Registry", Loaded)
    return fakes


def test_plugins(fusiond: Run, registry: Registry) -> None:
    found = {each["name"]: each for each in fusiond("plugins", "--json").json}
    assert found["fakes"]["strategies"] == ["toy"]
    assert found["broken"]["problem"] == "ImportError: no such thing"
    assert "ImportError: no such thing" in fusiond("plugins").out


def test_devices(fusiond: Run, registry: Registry, database: Path) -> None:
    (found,) = fusiond("devices", "--json").json["devices"]
    assert (found["name"], found["sick"]) == ("fake", None)
    info = registry.providers["fake"].devices()[0]
    with Store.open(database) as store:
        store.save_device(info)
        store.set_sick(info.key, info.uuid, "three deaths in a row")
    assert fusiond("devices", "--json").json["devices"][0]["sick"] == "three deaths in a row"
    assert "sick: three deaths in a row" in fusiond("devices").out
    checks = {each["name"]: each for each in fusiond("doctor", "--json").json["checks"] if each["state"] == "broken"}
    assert "three deaths in a row" in checks["fake"]["detail"]
    assert checks["fake"]["remedy"]


def test_a_sick_device_is_reset_or_tried(fusiond: Run, registry: Registry, database: Path, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    info = registry.providers["fake"].devices()[0]

    def sicken() -> None:
        with Store.open(database) as store:
            store.save_device(info)
            store.set_sick(info.key, info.uuid, "three deaths in a row")

    def sick() -> str | None:
        found: str | None = fusiond("devices", "--json").json["devices"][0]["sick"]
        return found

    assert fusiond("devices", "--reset", "fake").out == "fake was not sick\n"
    sicken()
    assert fusiond("devices", "--reset", "fake").out == "fake is well again (it was sick: three deaths in a row)\n"
    assert sick() is None
    sicken()
    ill = tmp_path / "ill"
    ill.touch()
    monkeypatch.setenv("FUSIOND_FAKE_SICK", str(ill))
    said = fusiond("devices", "--probe", "fake")
    assert (said.status, said.out) == (1, "fake does not work: crashed: uncorrectable ECC error\n")
    assert sick() == "three deaths in a row"
    ill.unlink()
    assert fusiond("devices", "--probe", "fake", "--json").json["problem"] is None
    assert sick() is None
    wrong = fusiond("devices", "--reset", "fike")
    assert (wrong.status, wrong.out) == (2, "")
    assert "did you mean 'fake'?" in wrong.err


def test_doctor(fusiond: Run, registry: Registry, database: Path) -> None:
    said = fusiond("doctor", "--json")
    assert (said.status, said.json["works"]) == (0, True)
    checks = {each["name"]: each for each in said.json["checks"]}
    assert checks["fake"]["state"] == "ok"
    assert checks["daemon"]["remedy"] == "start one: `fusiond serve`"
    assert checks["plugin broken"]["state"] == "broken"
    assert not database.exists()
    registry.providers.clear()
    said = fusiond("doctor")
    assert said.status == 1
    assert "no device works here" in said.out


def test_doctor_on_a_file_that_is_no_store(fusiond: Run, registry: Registry, database: Path) -> None:
    database.write_text("precious")
    checks = {each["name"]: each for each in fusiond("doctor", "--json").json["checks"]}
    assert checks["store"]["state"] == "broken"
