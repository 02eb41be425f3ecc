"""`fusiond status --watch`: a row for each device with what it does; and the words of bars and lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import live_status, main
from fusiond.cli import rich_output as drawn
from fusiond.service.progress import Progress
from fusiond.service.remaining import Standing
from fusiond.store.database import Store
from fusiond.testing import daemon


def standing(**more: Any) -> dict[str, Any]:
    return Standing(job="abc", workload="harris", device="cuda:0", phase="search", **more).as_json()


def worker(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "job": None, "waiting": None, "progress": None, **more}


def document(*workers: dict[str, Any]) -> dict[str, Any]:
    return {"daemon": {"state": "serving", "pid": 1, "workers": list(workers)}, "answers": []}


def test_a_row_for_each_device_that_does_something_and_one_for_the_idle() -> None:
    part = standing(part=5, parts=11, part_name="sx,gx", done=12, budget=64, best=1.25, left_secs=200.0)
    final = standing(final=2, finals=5, done=64, budget=64, left_secs=31.0)
    (devices,) = live_status.tables(
        document(
            worker("cuda:0", job="abc", progress=part), worker("cuda:1", job="abd", progress=final), worker("cpu"),
            worker("cuda:2", waiting="the device is sick: it fell over"), worker("replay"),
        ),
        (),
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in devices.rows}
    assert rows["cuda:0"] == ("abc", "harris", "5 of 11: sx,gx", "search", "###............. 12/64", "1.250x", "3 min")
    assert rows["cuda:1"][3:] == ("final 2 of 5", "################ 64/64", None, "31 s")
    assert rows["cuda:2"][3] == "waits: the device is sick: it fell over"
    assert rows["cpu, replay"][1] == "idle"


def test_what_waits_is_in_the_order_in_which_it_came(store: Store, toy: Callable[..., Any]) -> None:
    first, second = (toy(store, label) for label in ("one", "two"))
    found = {each.title: each for each in live_status.tables(document(worker("cpu")), store.jobs(None, 10))}
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
