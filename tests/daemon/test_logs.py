"""Nobody's text can pretend to be a message of the log."""

from __future__ import annotations

import json
import logging
import re

import pytest

from fusiond.model.events import JobEnded, JobStarted
from fusiond.service.daemon.logs import Limit, LogLines, Objects, follow


def record(message: str, *, problem: BaseException | None = None) -> logging.LogRecord:
    info = None if problem is None else (type(problem), problem, None)
    return logging.LogRecord("fusiond.x", logging.ERROR, __file__, 1, "%s", (message,), info)


def test_a_message_is_one_line_in_utc() -> None:
    text = LogLines().format(record("job a\n2026-01-31T12:00:00Z INFO MainThread: fusiond: all is well\x1b[2J\u202e"))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ERROR MainThread: fusiond\.x: job a\\n2026-", text)
    assert text.endswith(r"all is well\x1b[2J\u202e")
    assert "\n" not in text


@pytest.mark.parametrize("character", ["\n", "\r", "\x85", "\u2028", "\x0c"])
def test_a_traceback_is_indented(character: str) -> None:
    text = LogLines().format(record("fell over", problem=ValueError(f"one{character}2026 INFO two\x07")))
    first, *others = text.splitlines()
    assert first.endswith("fell over")
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "\x07" not in text


def test_an_object_is_one_line_with_what_its_thread_works_on() -> None:
    follow(JobStarted(job="k3f", workload="a,b", device="cuda:0", budget=4, known=0))
    try:
        found = json.loads(Objects().format(record("two\nlines \x1b", problem=ValueError("why"))))
    finally:
        follow(JobEnded(job="k3f", state="done"))
    assert found["message"] == "two\nlines \x1b"
    assert (found["level"], found["device"], found["job"]) == ("error", "cuda:0", "k3f")
    assert "ValueError: why" in found["traceback"]
    text = Objects().format(record("after"))
    assert "\n" not in text
    assert not {"job", "device", "trial"} & set(json.loads(text))


def test_a_kind_of_message_is_written_so_often_a_minute() -> None:
    clock = [0.0]
    limit = Limit(most=3, clock=lambda: clock[0])

    def passed(count: int, name: str = "fusiond.x") -> list[str]:
        made = [logging.LogRecord(name, logging.ERROR, __file__, 1, "lost %s", (at,), None) for at in range(count)]
        return [each.getMessage() for each in made if limit.filter(each)]

    assert passed(5) == ["lost 0", "lost 1", "lost 2"]
    assert passed(1, name="fusiond.y") == ["lost 0"]
    clock[0] = 61.0
    assert passed(2) == ["lost 0 (2 such messages were left out in the minute before)", "lost 1"]
