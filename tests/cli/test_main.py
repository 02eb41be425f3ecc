"""Dispatch and errors: one line, the right status, one JSON document, never a traceback."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from fusiond import __version__
from fusiond.cli import COMMANDS, main
from fusiond.model.errors import StoreError
from fusiond.requests.isolation import start

Run = Callable[..., Any]


def test_every_command_is_a_file_and_every_file_a_command_or_a_shared_part() -> None:
    folder = Path(sys.modules["fusiond.cli"].__file__ or "").parent
    shared = {
        "__init__", "answer_text", "bundling", "captured", "causes", "counts", "job_texts", "options",
        "output", "parser", "preloaded", "render", "rich_output",
    }  # fmt: skip
    assert {path.stem for path in folder.glob("*.py")} == set(COMMANDS) | shared


@pytest.mark.parametrize("command", COMMANDS)
def test_help(fusiond: Run, command: str) -> None:
    said = fusiond(command, "--help")
    assert said.status == 0
    assert said.out.startswith(f"usage: fusiond {command}")


def test_usage_and_version(fusiond: Run) -> None:
    said = fusiond("--help")
    assert said.status == 0
    assert all(command in said.out for command in COMMANDS)
    assert fusiond("--version").out == f"fusiond {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "a command is wanted"),
        (["bset"], "unknown command 'bset'; did you mean 'best'?"),
        (["best"], "one of the arguments JOB.yaml --pair --workload is required"),
        (["best", "--pair", "a"], "'a' is not a pair"),
        (["best", "--pair", "a,b,c"], "is not a pair"),
        (["best", "--pair", "a,b", "--workload", "c"], "not allowed with argument"),
        (["best", "--pair", "a,b", "--size", "n"], "'n' is not NAME=NUMBER"),
        (["best", "--pair", "a,b", "--size", "n=x"], "'x' is not a whole number"),
        (["best", "--pair", "a,b", "--size", "n=1", "--size", "n=2"], "n is given twice"),
        (["best", "--pair", "a,b", "--json", "--source"], "one of them"),
        (["best", "hist,maxpool"], "JOB.yaml: there is no file hist,maxpool; a name is asked for with --pair"),
        (["best", "gone.yaml"], "there is no file gone.yaml"),
        (["best", "job.yaml", "--pair", "a,b"], "job.yaml: stands beside --pair or --workload; one of them"),
        (["best", "--workload", "a", "--unfused"], "--unfused: is for --source and --export"),
        (["best", "--workload", "a", "--arch", "sm_90"], "--arch: is for --export"),
        (["best", "--workload", "a", "--cache", "hot"], "argument --cache: invalid choice: 'hot'"),
        (["best", "--pair", "a,b", "--devise", "cpu"], "unrecognized arguments: --devise"),
        (["jobs", "--state", "asleep"], "invalid choice"),
        (["run"], "JOB.yaml"),
        (["run", "none.yaml"], "there is no file none.yaml"),
        (["run", "none.yaml", "--trials", "many"], "invalid int value"),
        (["submit", "none.yaml"], "there is no file"),
        (["plan", "none.yaml"], "there is no file none.yaml"),
        (["show", "zzz"], "there is no job 'zzz'"),
        (["explain", "zzz"], "there is no job 'zzz'"),
        (["watch", "zzz"], "there is no job 'zzz'"),
        (["cancel", "zzz"], "there is no job 'zzz'"),
        (["serve", "--config", "none.yaml"], "there is no file none.yaml"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(fusiond: Run, database: Path, words: list[str], says: str) -> None:
    said = fusiond(*words)
    assert said.status == 2
    assert said.err.startswith("fusiond: error: ")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == "" or "--json" in words
    assert not database.exists()


def test_with_json_an_error_is_a_document_too(fusiond: Run) -> None:
    said = fusiond("best", "--pair", "a,b", "--json")
    assert said.status == 3
    assert said.json["error"]["kind"] == "NothingKnown"
    said = fusiond("show", "zzz", "--json")
    assert (said.status, said.json["error"]) == (
        2,
        {"kind": "RequestError", "where": "job", "problem": "there is no job 'zzz'"},
    )


def command_that(raises: BaseException) -> Any:
    def run(arguments: object) -> int:
        raise raises

    return SimpleNamespace(configure=lambda parser: None, run=run)


@pytest.mark.parametrize(
    ("raises", "status", "says"),
    [
        (StoreError("the disk is full"), 1, "fusiond: error: the disk is full\n"),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "fusiond: error: ZeroDivisionError: division by zero\n"
            "fusiond: this is a bug in fusiond; --debug shows the traceback\n",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1, "fusiond: error: fusiond: no memory left\n"),
        (KeyboardInterrupt(), 130, "fusiond: stopped\n"),
    ],
)
def test_whatever_a_command_raises(
    fusiond: Run, monkeypatch: pytest.MonkeyPatch, raises: BaseException, status: int, says: str
) -> None:
    monkeypatch.setitem(sys.modules, "fusiond.cli.jobs", command_that(raises))
    said = fusiond("jobs")
    assert (said.status, said.err) == (status, says)


def test_a_plan_goes_on_where_no_process_could_be_started_early(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def none_to_spare(*arguments: object, fork: bool) -> NoReturn:
        tried.append(arguments)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(start, "_early", [])
    monkeypatch.setattr(start, "Started", none_to_spare)
    start.early()
    assert len(tried) == 1
    assert start._early == []


@pytest.mark.parametrize(("words", "fork"), [("plan", True), ("doctor", True), ("serve", False)])
def test_only_a_process_of_its_own_is_forked(monkeypatch: pytest.MonkeyPatch, words: str, fork: bool) -> None:
    asked: list[dict[str, bool]] = []
    monkeypatch.setattr(start, "early", lambda **options: asked.append(options))
    monkeypatch.setattr(sys, "argv", ["fusiond", words, "--no-such-option"])
    assert main([words, "--no-such-option"]) == main() == 2
    assert [each["fork"] for each in asked] == [False, fork]


def test_debug_shows_the_traceback(fusiond: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fusiond.cli.jobs", command_that(ZeroDivisionError("by \x1b[31m")))
    said = fusiond("jobs", "--debug")
    assert said.status == 1
    assert said.err.startswith("Traceback (most recent call last):\n")
    assert said.err.endswith("\nZeroDivisionError: by \\x1b[31m\n")
