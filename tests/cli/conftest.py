"""What the command line's tests share: `fusiond(...)` in this process, and a store with one answer in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusiond import jobs
from fusiond.cli import main
from fusiond.events import Events
from fusiond.store.database import Store
from fusiond.testing import daemon

JOB = "strategy: toy\npair: [hist, maxpool]\nsizes: {a.n: 500}\nsearch: {trials: 3}\n"


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "fusiond.sqlite"


@pytest.fixture
def fusiond(database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run one command in this process, on the test's own store."""
    monkeypatch.setenv("FUSIOND_DB", str(database))

    def run(*words: object) -> Said:
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


@pytest.fixture
def done_job(database: Path) -> str:
    """A store in which one job has run; its id."""
    with Store.open(database) as store:
        row = daemon.submit(store, jobs.read("/job.yaml", JOB)[0])
        store.claim("nobody")
        daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
        return row.id
