"""What was counted is counted once, and anew as soon as anything that decides it has changed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import fusiond
from fusiond.build import nvcc, nvdisasm
from fusiond.build.cache import BuildCache
from fusiond.devices.counting import cached
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.model import H100, H200
from fusiond.devices.counting.run import Counted, CountRow
from fusiond.testing.fakes import fake_program

PROGRAM = fake_program("k")


class Counting:
    """In the place of `run.count`: how often it ran, and with what."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[dict[str, Any]] = []
        self.cache = BuildCache(folder)

    def __call__(self, program: Any, **given: Any) -> Counted:
        self.calls.append({"program": program, **given})
        name = given["gpu"].name
        row = CountRow(program="as run", launch="k", kernel="k", dram_bytes=len(self.calls), bound_us=1.5, model=name)
        return Counted(rows=(row,), outputs={}, bound_us=2.5, lines={})

    def rows(self, **changed: Any) -> list[dict[str, Any]]:
        given = {"program": PROGRAM, "gpu": H100, "cache": self.cache, **changed}
        return cached.counted(given.pop("program"), given.pop("gpu"), **given)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting(tmp_path / "cache")
    monkeypatch.setattr(cached, "count", found)
    monkeypatch.setattr(nvcc, "version", lambda: "13.0.88")
    monkeypatch.setattr(nvdisasm, "find", lambda: None)
    return found


def test_the_second_time_nothing_is_counted_and_the_label_is_that_of_who_asks(counting: Counting) -> None:
    first = counting.rows(label="native")
    assert first == [
        {
            **dataclasses.asdict(
                CountRow(program="native", launch="k", kernel="k", dram_bytes=1, bound_us=1.5, model="h100")
            ),
            "program_bound_us": 2.5,
        }
    ]
    assert counting.rows(label="seed 0") == [{**first[0], "program": "seed 0"}]
    assert json.loads(json.dumps(first)) == first
    assert len(counting.calls) == 1
    assert counting.calls[0]["gpu"] is H100


(STEP,) = PROGRAM.steps
ASKED: dict[str, dict[str, Any]] = {
    "another program": {"program": fake_program("k", 11.0)},
    "another launch": {"program": dataclasses.replace(PROGRAM, steps=(dataclasses.replace(STEP, grid=(2, 1, 1)),))},  # type: ignore[call-arg]
    "another gpu": {"gpu": H200},
    "calibrated": {"gpu": H100.calibrated({"copy_gbs": 3000.0})},
    "another seed": {"seed": 1},
    "whole": {"budget": None},
    "smaller budget": {"budget": 1000},
}
AROUND: dict[str, tuple[Any, str, Any]] = {
    "another nvcc": (nvcc, "version", lambda: "13.1.0"),
    "with nvdisasm": (nvdisasm, "find", lambda: Path("/opt/cuda/bin/nvdisasm")),
    "another fusiond": (fusiond, "__version__", "99.0"),
    "other code": (cached, "_code", lambda: "other"),
}


@pytest.mark.parametrize("change", [*ASKED, *AROUND])
def test_whatever_decides_it_is_in_the_key(counting: Counting, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    counting.rows()
    if change in AROUND:
        monkeypatch.setattr(*AROUND[change])
    for _ in range(2):
        assert counting.rows(**ASKED.get(change, {}))[0]["dram_bytes"] == 2
    assert len(counting.calls) == 2
    monkeypatch.undo()


def test_a_damaged_file_is_counted_anew_and_kept_again(
    counting: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting.rows()
    (kept,) = tmp_path.joinpath("cache").rglob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b'"dram_bytes": 1', b'"dram_bytes": 7'))
    counting.cache = BuildCache(tmp_path / "cache")  # as another process: this one has compared it already
    assert counting.rows()[0]["dram_bytes"] == 2
    assert "is damaged, and is built anew" in caplog.text
    assert counting.rows()[0]["dram_bytes"] == 2
    assert len(counting.calls) == 2


def test_what_cannot_be_counted_is_not_kept(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(program: Any, **given: Any) -> Counted:
        raise CountError("k.cu does not build")

    with monkeypatch.context() as broken:
        broken.setattr(cached, "count", refused)
        for _ in range(2):
            with pytest.raises(CountError, match="does not build"):
                counting.rows()
    assert counting.rows()[0]["dram_bytes"] == 1
