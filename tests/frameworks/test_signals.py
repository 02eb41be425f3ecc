"""A program that tunes here and now is still its own: what ends the measuring by a signal ends the program, too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusiond.model.errors import Interrupted
from fusiond.service.client import functions
from fusiond.service.frameworks.region_answers import Asker

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
