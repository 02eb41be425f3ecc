"""What the strategies' benchmarks share: the command as it is kept, the newest run of each device, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import commands, runs
from fusiond.model.errors import RequestError


def test_a_mistake_is_a_line_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise RequestError("no such thing", where="job.yaml:3")

    assert commands.status(wrong) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert commands.status(lambda: None) == 0


@pytest.mark.parametrize(("quick", "out", "said"), [
    ([], [], "What is known without one: --nothing"),
    (["--device", "cpu"], ["--out", str(runs.RESULTS / "x")], "emulated times are not results"),
])  # fmt: skip
def test_emulated_times_are_asked_for_and_no_results(
    quick: list[str], out: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = commands.choose_device
    monkeypatch.setattr(commands, "choose_device", lambda registry, name: choose(registry, "cpu"))  # no GPU here
    given = commands.parser("toy", "About.", quick="little").parse_args([*quick, *out])
    with pytest.raises(RequestError, match=said):
        commands.place("toy", given, without="--nothing")


def test_measurements_are_files_of_their_own(tmp_path: Path) -> None:
    run = runs.new("toy", "Nobody, 2000", "python -m benchmarks.toy", "measured", {"model": "NVIDIA H200"})
    other = {**run, "date": "2001-02-03T04:05:06+00:00"}
    static = {**run, "evidence": "static", "device": {"arch": "sm_90"}}
    for each in (run, other, static, {**static, "nvcc": "0"}):
        runs.write(runs.path(tmp_path / runs.slug("NVIDIA H200"), each), each)
    names = {"toy.json", "toy-20010203T040506.json", runs.path(tmp_path, run).name}
    assert {each.name for each in (tmp_path / "nvidia-h200").iterdir()} == names
    assert len(list(runs.kept("toy", tmp_path))) == 3
    assert list(runs.kept("to", tmp_path)) == []


def test_the_newest_run_of_each_device_on_each_evidence() -> None:
    def run(date: str, evidence: str, **device: str) -> dict[str, Any]:
        return {"date": date, "evidence": evidence, "device": device}

    kept = [
        run("2003", "measured", model="B"), run("2001", "measured", model="B"), run("2002", "measured", model="A"),
        run("2009", "emulated", model="A"), run("2004", "static", arch="sm_90"), run("2005", "planning"),
    ]  # fmt: skip
    assert [each["date"] for each in runs.newest(iter(kept), "measured")] == ["2002", "2003"]
    assert [each["date"] for each in runs.newest(kept, "static")] == ["2004"]
    assert [each["date"] for each in runs.newest(kept, "planning")] == ["2005"]
