"""What was counted is counted once, and anew as soon as anything that decides it has changed."""

import dataclasses
import json
from collections.abc import Callable
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


def _another_program(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"program": fake_program("k", 11.0)}


def _another_launch(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (step,) = PROGRAM.steps
    return {"program": dataclasses.replace(PROGRAM, steps=(dataclasses.replace(step, grid=(2, 1, 1)),))}  # type: ignore[call-arg]


def _another_gpu(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"gpu": H200}


def _calibrated(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"gpu": H100.calibrated({"copy_gbs": 3000.0})}


def _another_seed(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"seed": 1}


def _whole(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"budget": None}


def _smaller_budget(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"budget": 1000}


def _another_nvcc(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(nvcc, "version", lambda: "13.1.0")
    return {}


def _with_nvdisasm(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(nvdisasm, "find", lambda: Path("/opt/cuda/bin/nvdisasm"))
    return {}


def _another_fusiond(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(fusiond, "__version__", "99.0")
    return {}


def _other_code(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(cached, "_code", lambda: "other")
    return {}


CHANGES = (
    _another_program, _another_launch, _another_gpu, _calibrated, _another_seed, _whole, _smaller_budget,
    _another_nvcc, _with_nvdisasm, _another_fusiond, _other_code,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__.strip("_"))
def test_whatever_decides_it_is_in_the_key(
    counting: Counting,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Counting, pytest.MonkeyPatch], dict[str, Any]],
) -> None:
    counting.rows()
    changed = change(counting, monkeypatch)
    for _ in range(2):
        assert counting.rows(**changed)[0]["dram_bytes"] == 2
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
