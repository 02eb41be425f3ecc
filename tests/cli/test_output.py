"""Names and messages with characters that do something to a terminal, through whole commands."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fusiond.cli
from fusiond.cli import output, render, rich_output
from fusiond.model.errors import RequestError
from fusiond.service.progress import Progress

EVIL = "a\x1b[2J\u202ename\nfusiond: error: not ours\ud800"
SEEN = r"a\x1b[2J\u202ename\nfusiond: error: not ours\ud800"


def test_nothing_else_of_the_command_line_prints() -> None:
    """Only `output` knows print; rich prints in `render`."""
    for path in Path(fusiond.cli.__file__).parent.glob("*.py"):
        calls = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
        names = {ast.unparse(each.func) for each in calls}
        assert "print" not in names or path.name == "output.py", path
        assert not names & {"sys.stderr.write", "sys.stdout.writelines"}, path


def test_lines_and_tables_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(EVIL)
    output.complain(EVIL)
    render.table("", ("name",), [(EVIL,)])
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == SEEN
    assert said.err == SEEN + "\n"
    assert SEEN in "".join(said.out.splitlines()[1:])


@pytest.mark.parametrize("kind", [render.ProgressLines, rich_output.Live])
def test_progress_is_escaped(kind: Callable[[], render.Display], capsys: pytest.CaptureFixture[str]) -> None:
    with kind() as shown:
        shown.show(Progress(job="j", event="phase", phase="search", detail=EVIL))
        shown.show(Progress(job="j", event="ended", state="failed", problem=EVIL))
    err = capsys.readouterr().err
    assert "\x1b[2J" not in err
    assert "\u202e" not in err
    assert r"a\x1b[2J\u202ename" in err


def failing(problem: BaseException) -> Any:
    def run(arguments: object) -> int:
        raise problem

    return SimpleNamespace(configure=lambda parser: parser.add_argument("--json", action="store_true"), run=run)


def test_an_error_is_one_short_line_and_json_has_all(
    fusiond: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\u202e" + "x" * 5000
    monkeypatch.setitem(sys.modules, "fusiond.cli.jobs", failing(RequestError(text, where="a\x1bb")))
    said = fusiond("jobs", "--json")
    assert said.status == 2
    assert said.err.startswith(r"fusiond: error: a\x1bb: \u202exxx")
    assert len(said.err) < 700
    assert said.err.count("\n") == 1
    assert said.out.isascii()
    assert json.loads(said.out)["error"]["problem"] == text


def test_a_source_is_escaped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "int x;\t// \u202e\n\x1b\n"
    output.say_text(source)
    assert capsys.readouterr().out == source
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.say_text(source)
    assert capsys.readouterr().out == "int x;\t// \\u202e\n\\x1b\n"
