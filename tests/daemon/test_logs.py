"""Nobody's text can pretend to be a message of the log."""

from __future__ import annotations

import logging
import re

import pytest

from fusiond.daemon.logs import Lines


def record(message: str, *, problem: BaseException | None = None) -> logging.LogRecord:
    info = None if problem is None else (type(problem), problem, None)
    return logging.LogRecord("fusiond.x", logging.ERROR, __file__, 1, "%s", (message,), info)


def test_a_message_is_one_line_in_utc() -> None:
    text = Lines().format(record("job a\n2026-01-31T12:00:00Z INFO MainThread: fusiond: all is well\x1b[2J\u202e"))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ERROR MainThread: fusiond\.x: job a\\n2026-", text)
    assert text.endswith(r"all is well\x1b[2J\u202e")
    assert "\n" not in text


@pytest.mark.parametrize("character", ["\n", "\r", "\x85", "\u2028", "\x0c"])
def test_a_traceback_is_indented(character: str) -> None:
    text = Lines().format(record("fell over", problem=ValueError(f"one{character}2026 INFO two\x07")))
    first, *others = text.splitlines()
    assert first.endswith("fell over")
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "\x07" not in text


def test_an_interrupted_stack_is_indented() -> None:
    shown = record("here")
    shown.stack_info = 'Stack (most recent call last):\n  File "x\x1b"'
    assert Lines().format(shown).splitlines()[1:] == ["    Stack (most recent call last):", r'      File "x\x1b"']
