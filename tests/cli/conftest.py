"""What the command line's tests share: `fusiond(...)` in this process, and a store with one answer in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fusiond.cli import main
from fusiond.model.events import Events
from fusiond.requests import jobs
from fusiond.store.database import Store
from tests import fake_daemon as daemon
from tests.finished_command import FinishedCommand

JOB = "strategy: toy\npair: [hist, maxpool]\nsizes: {a.n: 500}\nsearch: {trials: 3}\n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "fusiond.sqlite"


@pytest.fixture
def fusiond(
    database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FinishedCommand]:
    """Run one command in this process, on the test's own store."""
    monkeypatch.setenv("FUSIOND_DB", str(database))

    def run(*words: object) -> FinishedCommand:
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return FinishedCommand(status, captured.out, captured.err)

    return run


@pytest.fixture
def done_job(database: Path) -> str:
    """A store in which one job has run; its id."""
    with Store.open(database) as store:
        row = daemon.submit(store, jobs.read("/job.yaml", JOB)[0])
        store.claim("nobody")
        daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
        return row.id
