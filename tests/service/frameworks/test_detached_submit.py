"""What a program asks and ends before: handed to the daemon by a process that it does not wait for."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fusiond.cuda
from fusiond.model.errors import DaemonError, Interrupted, NothingKnown, RequestError
from fusiond.service.client import client, functions
from fusiond.service.daemon import lock
from fusiond.service.frameworks import detached_submit, region_answers
from fusiond.service.frameworks.region_answers import Asker, Question

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


# --- a program that tunes here and now is still its own -------------------------------------------------


QUESTION: Any = SimpleNamespace(path="/x.yaml", job=lambda search=None: "strategy: hfuse")


def interrupted(by: int | None) -> Any:
    def tune(*given: object, **named: object) -> None:
        stopped = Interrupted("stopped after 3 trials")
        stopped.by_signal = by
        raise stopped

    return tune


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "tune", interrupted(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        Asker(tmp_path / "db").tune(QUESTION)


def test_sigterm_is_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        monkeypatch.setattr(functions, "tune", interrupted(signal.SIGTERM))
        found = Asker(tmp_path / "db").tune(QUESTION)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert (found.state, found.reason) == ("unknown", "stopped after 3 trials")


def test_a_device_that_is_wanted_by_others_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "tune", interrupted(None))
    assert Asker(tmp_path / "db").tune(QUESTION).state == "unknown"


PROGRAM = """
import sys
from types import SimpleNamespace
from fusiond.service.frameworks.region_answers import Asker
text = "strategy: hfuse\\npair: [hist, hist]\\nsizes: {hist.n: 5000}\\ndevice: cpu\\nsearch: {trials: 500}\\n"
question = SimpleNamespace(path="/x.yaml", job=lambda search=None: text)
print("begun", flush=True)
Asker(sys.argv[1]).tune(question)
print("went on", flush=True)
"""


@pytest.mark.slow
def test_a_program_that_is_told_to_end_ends(tmp_path: Path) -> None:
    """A real one, in the middle of real trials."""
    database = tmp_path / "db.sqlite"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(database)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        ends = time.monotonic() + 60
        while not database.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        time.sleep(1)
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == -signal.SIGTERM
        assert program.stdout.read() == ""
    finally:
        program.kill()
        program.communicate()


# --- what a program says wrongly ------------------------------------------------------------------------


WRONG = {
    "a key that no job has": ({"budget": 4}, None, r"^search: unknown key 'budget'.*trials"),
    "a wrong value": ({"trials": 0}, None, "^search: .*it must be from 1 to"),
    "what no file can say": ({"trials": {4}}, None, "^search: cannot be written into a job: .*set"),
    "no device": (None, "gpu 0", "^device: 'gpu 0' is not a device"),
}


@pytest.mark.parametrize(("search", "device", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_one_line(search, device, said):
    with pytest.raises(ValueError, match=said) as caught:
        region_answers.check_options(search, device)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=said):
        fusiond.cuda.launch(search=search, device=device)


def test_right_options_pass():
    region_answers.check_options({"trials": 20, "timeout": "10m", "order": "paper", "patience": "none"}, "cuda:1")
