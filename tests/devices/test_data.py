"""The host's data plane: what is drawn how often, what is compared with what, and how much is kept."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import data as planes
from fusiond.devices.data import HostData
from fusiond.devices.protocol import Checked, CheckRequest, Reference
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import BuildFailed, MeasureFailed
from fusiond.model.program import EQUAL, Buffer, Fill, Role
from tests.fakes import FakeExecutor, FakeProvider, fake_program

DRAWN = Fill(kind="integers", low=0, high=9)


def buffer(name: str = "x", role: Role = Role.INPUT, elements: int = 100, fill: Fill = DRAWN) -> Buffer:
    return Buffer(name=name, dtype="int32", elements=elements, role=role, fill=fill, compare=EQUAL)


class Memory:
    """A `Loaded` as far as data go."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def write(self, name: str, data: Any) -> None:
        self.held[name] = data.copy()

    def read(self, name: str) -> Any:
        return self.held[name].copy()

    def broken_guards(self) -> tuple[str, ...]:
        return ("x: 4 bytes after its end",)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the buffers whose contents were made, in order."""
    made: list[str] = []

    def count(each: Buffer, seed: int, **given: Any) -> Any:
        made.append(f"{each.name}{seed}")
        return initial(each, seed, **given)

    monkeypatch.setattr(planes, "initial", count)
    return made


def test_a_content_is_drawn_once(drawn: list[str]) -> None:
    plane, loaded = HostData(), Memory()
    for _ in range(3):
        for seed in (0, 1):
            plane.fill(loaded, buffer(), seed)  # type: ignore[arg-type]
            np.testing.assert_array_equal(loaded.held["x"], initial(buffer(), seed))
            assert plane.intact(loaded, buffer(), seed)  # type: ignore[arg-type]
            loaded.held["x"][7] += 1
            assert not plane.intact(loaded, buffer(), seed)  # type: ignore[arg-type]
    assert drawn == ["x0", "x1"]
    plane.fill(loaded, buffer(elements=99), 0)  # type: ignore[arg-type]
    plane.fill(loaded, buffer(fill=Fill(kind="integers", low=0, high=8)), 0)  # type: ignore[arg-type]
    assert drawn == ["x0", "x1", "x0", "x0"]


def test_what_is_not_read_is_poisoned_with_the_kind_that_is_named() -> None:
    plane, loaded = HostData(), Memory()
    each = buffer(role=Role.OUTPUT)
    for kind in (0, 1):
        plane.fill(loaded, each, 5, kind=kind)  # type: ignore[arg-type]
        np.testing.assert_array_equal(loaded.held["x"], initial(each, 5, kind=kind))


def test_what_is_kept_is_bounded_and_the_oldest_goes(drawn: list[str]) -> None:
    plane, loaded = HostData(kept_bytes=900), Memory()  # two of 400 bytes
    for name in ("a", "b", "a", "c", "a", "b"):
        plane.fill(loaded, buffer(name), 0)  # type: ignore[arg-type]
    assert drawn == ["a0", "b0", "c0", "b0"]
    plane.fill(loaded, buffer("large", elements=1000), 0)  # type: ignore[arg-type]
    assert plane.intact(loaded, buffer("large", elements=1000), 0)  # type: ignore[arg-type]
    assert drawn[4:] == ["large0"]
    assert plane.clear()
    assert not plane.clear()


def test_a_file_without_a_digest_is_read_every_time(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    each = buffer(elements=4, fill=Fill(kind="file", file=str(path)))
    plane, loaded = HostData(), Memory()
    for value in (1, 2):
        np.save(path, np.full(4, value, np.int32))
        plane.fill(loaded, each, 0)  # type: ignore[arg-type]
        assert loaded.held["x"][0] == value


def test_a_reference_is_read_from_its_file_only_where_it_was_not_kept() -> None:
    plane, loaded = HostData(), Memory()
    each = buffer(role=Role.OUTPUT)
    asked: list[int] = []

    def stored() -> Any:
        asked.append(1)
        return np.zeros(100, np.int32)

    loaded.held["x"] = np.ones(100, np.int32)
    np.testing.assert_array_equal(plane.keep(loaded, each, "r"), loaded.held["x"])  # type: ignore[arg-type]
    assert plane.compare(loaded, each, "r", stored).equal  # type: ignore[arg-type]
    assert asked == []
    plane.forget("r")
    found = plane.compare(loaded, each, "r", stored)  # type: ignore[arg-type]
    assert found.detail == "x: 100 of 100 differ, first at [0]: 1 instead of 0"
    assert not plane.compare(loaded, each, "r", stored).equal  # type: ignore[arg-type]
    assert asked == [1]


# --- the worker ------------------------------------------------------------------------------------------


def folder(tmp_path: Path, fault: str = "") -> str:
    made = fake_program("s", 10.0, fault)
    binary = FakeProvider().build(made.sources[0], "fake")
    assert not isinstance(binary, BuildFailed)
    write_bundle(tmp_path / f"bundle{fault}", made, {"s": binary.path})
    return str(tmp_path / f"bundle{fault}")


def test_a_reference_that_another_process_wrote_is_not_taken_for_the_kept_one(tmp_path: Path) -> None:
    path = str(tmp_path / "0.npz")
    worker = ExecutorWorker(FakeExecutor())
    assert worker.answer(Reference(bundle=folder(tmp_path), seed=0, outputs=path)) == Checked(worst=0.0)
    check = CheckRequest(bundle=folder(tmp_path), references=((0, path),))
    assert worker.answer(check) == Checked(worst=0.0)
    with np.load(path) as stored:
        other = {name: stored[name] + 1 for name in stored.files}
    os.unlink(path)
    np.savez(path, **other)  # type: ignore[arg-type]
    answer = worker.answer(check)
    assert isinstance(answer, MeasureFailed)
    assert "differ, first at [0]" in answer.reason


def test_a_reference_survives_the_process_that_wrote_it(tmp_path: Path) -> None:
    path = str(tmp_path / "0.npz")
    ExecutorWorker(FakeExecutor()).answer(Reference(bundle=folder(tmp_path), seed=0, outputs=path))
    check = CheckRequest(bundle=folder(tmp_path), references=((0, path),))
    assert ExecutorWorker(FakeExecutor()).answer(check) == Checked(worst=0.0)
    wrong = CheckRequest(bundle=folder(tmp_path, "wrong"), references=((0, path),))
    assert isinstance(ExecutorWorker(FakeExecutor()).answer(wrong), MeasureFailed)


def test_what_was_kept_goes_before_a_program_is_called_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor()
    worker = ExecutorWorker(executor)
    path = str(tmp_path / "0.npz")
    worker.answer(Reference(bundle=folder(tmp_path), seed=0, outputs=path))
    monkeypatch.setattr(worker, "_check", short_of_memory(worker._check))
    assert worker.answer(CheckRequest(bundle=folder(tmp_path), references=((0, path),))) == Checked(worst=0.0)


def short_of_memory(then: Any) -> Any:
    """The first call finds no memory, the next ones do."""
    calls: list[int] = []

    def call(request: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError("no")
        return then(request)

    return call
