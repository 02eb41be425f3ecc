"""What programs ask of a GPU is kept with them: counted and measured apart, and never in the way of a job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.counting import cached
from fusiond.devices.cuda import counters
from fusiond.model.errors import DeviceError
from fusiond.model.nouns import COUNTED, MEASURED
from fusiond.model.outcomes import Record
from fusiond.store.database import Store
from fusiond.tuning import counts

from .test_counts import BOUNDS, AsIf, registry, tuned

pytestmark = pytest.mark.slow
Patch = pytest.MonkeyPatch
FEW = "strategy: toy\nsearch: {trials: 2}\n"
READ = {"issue_slot_pct": 61.0, "memory_stall_pct": 30.0, "occupancy_pct": 70.0, "cycles": 9.0}


def row(**more: Any) -> dict[str, Any]:
    return {"program": "native", "launch": "a", "bound_us": 1.0, **more}


def keys(store: Store, record: Record) -> set[str]:
    (job,) = store.jobs()
    found = {each.program_key for each in store.trials(job.id, None)} - {None}
    assert {record.program_key, record.baseline_program_key} < found
    return {each for each in found if each is not None}


def test_a_search_by_counts_keeps_those_of_every_candidate(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cached, "known", lambda program, gpu: [row(kernel=program.key, model=gpu.name)])
    monkeypatch.setattr(counts, "of_answer", lambda *programs: ())
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record = tuned(store, registry(AsIf(*BOUNDS)), BOUNDS[0], FEW)
        tried = keys(store, record)
        found = store.profiles(tried, "h100", COUNTED)
        measured = {
            each.program_key
            for job in store.jobs()
            for each in store.trials(job.id, None)
            if each.outcome.value == "measured"
        }
        assert found.keys() == measured
        assert all(rows == [row(kernel=key, model="h100")] for key, rows in found.items())
        assert store.profiles(tried, "h100", MEASURED) == {}


def on_a_gpu(store: Store, monkeypatch: Patch, asked: Callable[..., Any]) -> tuple[Record, str]:
    rows = (row(kernel="apart"), row(program="fused", kernel="together"))
    monkeypatch.setattr(counts, "of_answer", lambda *programs: rows)
    monkeypatch.setattr(counters, "missing", lambda: None)
    monkeypatch.setattr(counters, "of_program", asked)
    record = tuned(store, registry(AsIf("cuda:0", "measured")), "cuda:0", FEW)
    return record, record.device_key


def test_a_gpu_keeps_both_sides_of_its_answer_and_what_its_counters_say(tmp_path: Path, monkeypatch: Patch) -> None:
    asked: list[str] = []

    def of_program(provider: Any, device: Any, program: Any) -> dict[str, Any]:
        asked.append(program.key)
        return {**READ, "reason": None}

    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record, device = on_a_gpu(store, monkeypatch, of_program)
        assert record.program_key is not None
        assert record.baseline_program_key is not None
        sides = [record.baseline_program_key, record.program_key]
        counted = store.profiles(keys(store, record), "h100", COUNTED)
        assert {key: rows[0]["kernel"] for key, rows in counted.items()} == dict(
            zip(sides, ("apart", "together"), strict=True)
        )
        assert store.profiles(sides, device, MEASURED) == {key: [{**READ, "reason": None}] for key in sides}
        assert asked == sides


@pytest.mark.parametrize("how", ["no permission", "raises"])
def test_counters_that_cannot_be_read_cost_no_answer(tmp_path: Path, monkeypatch: Patch, how: str) -> None:
    def of_program(provider: Any, device: Any, program: Any) -> dict[str, Any]:
        if how == "raises":
            raise DeviceError("it is gone")
        return counters.nothing("this user may not")

    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record, device = on_a_gpu(store, monkeypatch, of_program)
        assert record.verified
        assert store.profiles(keys(store, record), device, MEASURED) == {}


def test_profiles_go_with_their_programs_and_damage_is_no_value(tmp_path: Path) -> None:
    path = tmp_path / "fusiond.sqlite"
    with Store.open(path) as store:
        store.save_profile("one", "h100", COUNTED, [row()])
        store.save_profile("one", "h100", COUNTED, [row(launch="b")])
        store.save_profile("two", "h100", COUNTED, [row()])
        assert store.profiles(["one"], "h100", COUNTED) == {"one": [row(launch="b")]}
        with pytest.raises(ValueError, match="a profile is counted or measured, not 'emulated'"):
            store.save_profile("one", "h100", "emulated", [])
        with store._transaction() as database:
            database.execute("DROP TRIGGER profiles_changed")
            database.execute("UPDATE profiles SET rows = '[]' WHERE program_key = 'one'")
        assert store.profiles(["one", "two"], "h100", COUNTED) == {"two": [row()]}
