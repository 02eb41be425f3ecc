"""Names and messages with characters that do something to a terminal, through whole commands."""

import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fusiond.cli
from fusiond.cli import main, output, render, rich_output, status
from fusiond.cli import rich_output as drawn
from fusiond.model.errors import RequestError
from fusiond.service.progress import Progress
from fusiond.service.remaining import Standing
from fusiond.store.database import Store
from tests import fake_daemon as daemon

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


# --- tables at any width --------------------------------------------------------------------------------


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
        "facts: program, launch, threads, registers, occupancy, limited by", "seed:block_interleaved",
        "    launch fused; threads 512; registers 32; occupancy 100 %", "    (4 blocks); limited by registers",
        "reference", "    launch a; threads 1024; occupancy 75 % (1 block);", "    limited by [threads]",
    ]  # fmt: skip


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


# --- `fusiond status --watch` ---------------------------------------------------------------------------


def standing(**more: Any) -> dict[str, Any]:
    return Standing(job="abc", workload="harris", device="cuda:0", phase="search", **more).as_json()


def worker(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "job": None, "waiting": None, "progress": None, **more}


def document(*workers: dict[str, Any]) -> dict[str, Any]:
    return {
        "daemon": {"state": "serving", "pid": 1, "version": "1", "uptime_secs": 9, "workers": list(workers)},
        "answers": [],
    }


def test_a_row_for_each_device_that_does_something_and_one_for_the_idle() -> None:
    part = standing(part=5, parts=11, part_name="sx,gx", done=12, budget=64, best=1.25, left_secs=200.0)
    final = standing(final=2, finals=5, done=64, budget=64, left_secs=31.0)
    (devices,) = status.tables(
        document(worker("cuda:0", job="abc", progress=part), worker("cuda:1", job="abd", progress=final), worker("cpu"),
                 worker("cuda:2", waiting="the device is sick: it fell over"), worker("replay")),
        (),
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in devices.rows}
    assert rows["cuda:0"] == ("abc", "harris", "5 of 11: sx,gx", "search", "###............. 12/64", "1.250x", "3 min")
    assert rows["cuda:1"][3:] == ("final 2 of 5", "################ 64/64", None, "31 s")
    assert rows["cuda:2"][3] == "waits: the device is sick: it fell over"
    assert rows["cpu, replay"][1] == "idle"


def test_what_waits_is_in_the_order_in_which_it_came(store: Store, toy: Callable[..., Any]) -> None:
    first, second = (toy(store, label) for label in ("one", "two"))
    found = {each.title: each for each in status.tables(document(worker("cpu")), store.jobs(None, 10))}
    assert [row[0] for row in found["2 jobs to come"].rows] == [first, second]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "fusiond.sqlite") as opened:
        yield opened


@pytest.fixture
def toy() -> Callable[..., str]:
    from fusiond.requests import jobs

    def submit(store: Store, label: str) -> str:
        text = f"strategy: toy\npair: [hist, {label}]\nsearch: {{trials: 2}}\n"
        return daemon.submit(store, jobs.read("/job.yaml", text)[0]).id

    return submit


def test_the_command_draws_until_it_is_interrupted(
    store: Store, toy: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, drawn = toy(store, "one"), []

    def sleep(secs: float) -> None:
        drawn.append(secs)
        if len(drawn) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["status", "--watch", "7", "--db", str(store.path)]) == 0
    assert drawn == [7, 7, 7]
    shown = capsys.readouterr().out
    assert shown.count(job) == 3
    for wrong in (["--watch", "0"], ["--watch", "x"], ["--watch", "--json"]):
        assert main(["status", *wrong, "--db", str(store.path)]) == 2


# --- bars and lines ---------------------------------------------------------------------------------------


def test_the_bar_shows_part_final_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with drawn.Live() as shown:
        shown._bar.console.width = 160
        shown.show(Progress(job="a", event="job", state="running", workload="harris", device="cpu", done=0, budget=9))
        shown.show(Progress(job="a", event="phase", phase="part", detail="sx,gx", number=5, of=11))
        shown.show(Progress(job="b", event="job", state="running", parent="a", done=0, budget=7))
        shown.show(Progress(job="b", event="phase", phase="search", then_secs=90.0))
        shown.show(Progress(job="b", event="phase", phase="search", detail="7 configs"))
        for done in (1, 2):
            shown.show(Progress(job="b", event="trial", done=done, budget=7, best=1.5))
        text = _drawn(shown)
        assert "part 5 of 11, search: 7 configs" in text
        assert "2/7" in text
        assert "best 1.50x" in text
        assert re.search(r"about \d+ (s|min) left", text)
        shown.show(Progress(job="b", event="phase", phase="final", number=3, of=5))
        assert "part 5 of 11, final 3 of 5" in _drawn(shown)
    capsys.readouterr()


def _drawn(shown: drawn.Live) -> str:
    with shown._bar.console.capture() as captured:
        shown._bar.console.print(shown._bar.get_renderable())
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", captured.get())
