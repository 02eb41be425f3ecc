"""Tables at any width: what does not fit is told in paragraphs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from fusiond.cli import render, rich_output
from fusiond.service.progress import Progress

COLUMNS = ("program", "launch", "threads", "registers", "occupancy", "limited by")
ROWS = [
    ("seed:block_interleaved", "fused", 512, 32, "100 % (4 blocks)", "registers"),
    ("reference", "a", 1024, None, "75 % (1 block)", "[threads]"),
]
Shown = Callable[[int, str], str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    def run(width: int, title: str = "facts") -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        render.table(title, COLUMNS, ROWS)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)

    return run


def test_a_row_is_a_line_where_there_is_room_and_a_paragraph_where_there_is_not(shown: Shown) -> None:
    wide, narrow = shown(110, "facts"), shown(60, "facts")
    assert re.search(r"seed:block_interleaved +fused +512 +32 +100 % \(4 blocks\) +registers", wide)
    assert narrow.splitlines() == [
        "facts: program, launch, threads, registers, occupancy, limited by",
        "seed:block_interleaved",
        "    launch fused; threads 512; registers 32; occupancy 100 %",
        "    (4 blocks); limited by registers",
        "reference",
        "    launch a; threads 1024; occupancy 75 % (1 block);",
        "    limited by [threads]",
    ]


def test_an_empty_column_goes_first(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    shown(80)
    render.table("", ("id", "workload", "problem"), [("a" * 20, "b" * 20, None), ("c" * 20, "d" * 20, None)])
    assert "problem" in capsys.readouterr().out
    shown(50)
    render.table("", ("id", "workload", "problem"), [("a" * 20, "b" * 20, None), ("c" * 20, "d" * 20, None)])
    out = capsys.readouterr().out
    assert "problem" not in out
    assert re.search("a{20} +b{20}", out)


def test_rich_is_not_imported_for_a_pipe() -> None:
    """Not by `fusiond plan` either, whose imports are most of its time."""
    code = (
        "import sys, fusiond.cli.plan, fusiond.cli.render as r; r.table('facts', ('name',), [('a',)]);"
        "print(sorted({'rich.console', 'numpy', 'http.client', 'asyncio'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"


def test_the_bar_says_nothing_of_a_part_of_its_whole() -> None:
    live = rich_output.Live()
    live.show(Progress(job="whole", event="job", state="running", done=3, budget=64))
    live.show(Progress(job="part", event="trial", done=8, budget=8, best=2.5, ratio=2.5))
    live.show(Progress(job="whole", event="phase", phase="reference"))
    (task,) = live._bar.tasks
    standing = live._standings.of("whole")
    assert standing is not None
    assert (task.completed, task.total, standing.best) == (3, 64, None)
