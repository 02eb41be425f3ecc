"""What a program asks and ends before: handed to the daemon by a process that it does not wait for."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusiond.model.errors import DaemonError, NothingKnown, RequestError
from fusiond.service.client import client
from fusiond.service.daemon import lock
from fusiond.service.frameworks import detached_submit, region_answers
from fusiond.service.frameworks.region_answers import Question

QUESTIONS = [Question(name, f"HloModule m\n\nENTRY {name} {{}}\n", "cpu", {"trials": 2}) for name in ("one", "two")]


class Client:
    """With a job of the first question waiting."""

    def __init__(self, db: Path) -> None:
        self.submitted: list[tuple[str, str, int]] = []
        clients.append(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def jobs(self, states: Iterable[Any], limit: int) -> list[Any]:
        return [SimpleNamespace(workload_name=QUESTIONS[0].workload)]

    def submit(self, path: str, text: str, *, priority: int) -> None:
        self.submitted.append((path, text, priority))


clients: list[Client] = []


def test_what_waits_already_is_not_handed_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "Client", Client)
    clients.clear()
    asked = {
        "db": str(tmp_path / "db"),
        "jobs": [{"path": each.path, "text": each.job(), "workload": each.workload} for each in QUESTIONS],
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    assert detached_submit.main() == 0
    assert clients[0].submitted == [(QUESTIONS[1].path, QUESTIONS[1].job(), detached_submit.PRIORITY)]
    assert 'search: {"trials": 2}' in QUESTIONS[1].job()


def test_a_daemon_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(db: Path) -> Client:
        raise DaemonError("no daemon answers")

    monkeypatch.setattr(client, "Client", broken)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"db": "/nothing", "jobs": []})))
    assert detached_submit.main() == 1


@pytest.mark.parametrize("daemon", [True, False])
def test_what_was_not_handed_in_is_left_to_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, daemon: bool
) -> None:
    """Where a daemon is; what was handed in by the thread is not left."""
    started: list[Any] = []
    written = io.BytesIO()
    monkeypatch.setattr(written, "close", lambda: None)

    def popen(command: list[str], **options: Any) -> Any:
        started.append((command, options["start_new_session"]))
        return SimpleNamespace(stdin=written)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(lock, "holder", lambda db: object() if daemon else None)
    asker = region_answers.Asker(tmp_path / "db")
    asker._wanted = {each.digest: (each, []) for each in QUESTIONS}
    asker._submitted = {QUESTIONS[0].digest: float("inf")}
    asker.end()
    if not daemon:
        assert started == []
        return
    assert started == [([sys.executable, "-m", "fusiond.service.frameworks.detached_submit"], True)]
    left = json.loads(written.getvalue())
    assert left["db"] == str(tmp_path / "db")
    assert [each["workload"] for each in left["jobs"]] == [QUESTIONS[1].workload]


@pytest.mark.parametrize(
    ("problem", "standing"),
    [
        (None, "handed to the daemon, which has no answer yet"),
        (DaemonError("no daemon answers"), "no daemon answers; `fusiond serve` starts one"),
        (NothingKnown("there is no store yet"), "no daemon answers; `fusiond serve` starts one"),
        (RequestError("unknown key 'trails'"), "not handed in: unknown key 'trails'"),
    ],
)
def test_what_is_said_of_a_question_is_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: Exception | None, standing: str
) -> None:
    def hand_in(db: Path, jobs: Iterable[Any]) -> None:
        if problem is not None:
            raise problem

    monkeypatch.setattr(detached_submit, "hand_in", hand_in)
    asker = region_answers.Asker(tmp_path / "db")
    assert asker.standing(QUESTIONS[0]) == "not asked for yet"
    asker._submit(QUESTIONS[0])
    assert asker.standing(QUESTIONS[0]) == standing
