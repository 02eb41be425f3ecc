"""One answer per workload, device and cache; what it replaced is history."""

from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import StoreError
from fusiond.model.outcomes import Verdict
from fusiond.store import lookup
from fusiond.store.check import check
from fusiond.store.database import Store


def test_a_new_record_replaces_the_old_one_and_keeps_it(store: Store, job: str, make: Any) -> None:
    workload, device = make.workload(), make.device()
    saved = [make.known(store, workload, device, job=job, trials=trials) for trials in range(3)]
    assert store.record(workload.key, device.key) == saved[-1]
    assert store.history(workload.key, device.key) == saved[::-1]
    replaced = store._rows("SELECT id, replaced_by FROM records ORDER BY id")
    assert [(row["id"], row["replaced_by"]) for row in replaced] == [(1, 2), (2, 3), (3, None)]


def test_cache_and_device_keep_records_apart(store: Store, make: Any) -> None:
    workload, gpu, cpu = make.workload(), make.device(), make.device("cpu")
    records = {
        (gpu.key, "warm"): make.known(store, workload, gpu),
        (gpu.key, "cold"): make.known(store, workload, gpu, cache="cold"),
        (cpu.key, "warm"): make.known(store, workload, cpu),
    }
    for (key, cache), record in records.items():
        assert store.record(workload.key, key, cache) == record
        assert store.history(workload.key, key, cache) == [record]
    assert store.record(workload.key, cpu.key, "cold") is None


def test_known_answers_many_keys_at_once(store: Store, make: Any) -> None:
    device = make.device()
    workloads = [make.workload(sizes={"n": size}) for size in range(3)]
    records = {workload.key: make.known(store, workload, device) for workload in workloads}
    keys = [*records, *(f"unknown{index}" for index in range(1200))]
    assert store.known(device.key, keys) == records
    assert store.known("another", keys) == {}
    assert store.known(device.key, []) == {}


def test_a_record_must_be_of_a_workload_that_was_submitted(store: Store, make: Any) -> None:
    workload, device = make.workload(), make.device()
    with pytest.raises(StoreError, match="never submitted"):
        store.save_record(make.record(workload, device), job=None, source_hashes={})
    record = make.known(store, workload, device)
    with pytest.raises(StoreError, match="another sizes than it"):
        store.save_record(make.changed(record, sizes={"a.n": 2}), job=None, source_hashes={})
    with pytest.raises(StoreError, match="not stored"):
        store.save_record(record, job="nobody", source_hashes={})
    assert store.history(workload.key, device.key) == [record]  # what failed has not pushed it aside


def test_the_file_and_its_artifacts_can_be_moved_together(tmp_path: Path, make: Any) -> None:
    with Store.open(tmp_path / "a" / "fusiond.sqlite") as store:
        source = store.save_artifact(b"__global__", ".cu")
        record = make.known(store, make.workload(), make.device(), source=str(source))
        elsewhere = make.known(store, make.workload("hist"), make.device(), source="/some/where.cu")
        assert store.record(record.workload_key, record.device_key) == record
    (tmp_path / "a").rename(tmp_path / "b")
    with Store.open(tmp_path / "b" / "fusiond.sqlite") as store:
        moved = store.record(record.workload_key, record.device_key)
        assert moved is not None
        assert moved.source is not None
        assert Path(moved.source).read_bytes() == b"__global__"
        assert store.record(elsewhere.workload_key, elsewhere.device_key) == elsewhere


# --- lists of answers, and how one is given up ----------------------------------------------------------


@pytest.fixture
def known(store: Store, make: Any) -> list[Any]:
    """Four answers of today, the oldest first, and one that was replaced."""
    gpu, cpu = make.device(), make.device("cpu")
    make.known(store, make.workload(), gpu, found_at="2026-01-01T00:00:00.000+00:00")
    return [
        make.known(store, make.workload(), gpu, found_at="2026-02-01T00:00:00.000+00:00"),
        make.known(store, make.workload("b,a"), gpu, verdict=Verdict.KEEP, found_at="2026-03-01T00:00:00.000+00:00"),
        make.known(store, make.workload(), cpu, found_at="2026-04-01T00:00:00.000+00:00"),
        make.known(store, make.workload("c"), cpu, found_at="2026-05-01T00:00:00.000+00:00"),
    ]


def test_the_last_found_come_first_and_each_filter_leaves_out_others(store: Store, known: list[Any]) -> None:
    newest = known[::-1]
    assert store.answers(limit=9) == newest
    assert store.answers(limit=2) == newest[:2]
    assert store.answers(limit=9, verdicts=[Verdict.KEEP]) == [known[1]]
    assert store.answers(limit=9, verdicts=[Verdict.KEEP, Verdict.FUSE]) == newest
    assert store.answers(limit=9, since="2026-03-15") == newest[:2]
    for device in (known[0].device_key, known[0].device_name):
        assert store.answers(limit=9, device=device) == [known[1], known[0]]
    assert store.answers(limit=9, strategy=known[0].strategy) == newest
    assert store.answers(limit=9, strategy="another") == []
    assert store.answers(limit=9, device="nothing") == []


def test_what_is_forgotten_is_known_no_more(store: Store, known: list[Any]) -> None:
    name = known[0].workload_name
    assert store.forget(name, known[0].device_key) == 2
    assert store.history_of_name(name) == [known[2]]
    assert name in lookup.suggestions(store.path, name + "x")
    assert store.forget(name) == 1
    assert store.history_of_name(name) == []
    assert name not in lookup.suggestions(store.path, name + "x")
    assert store.forget(name) == 0
    assert store.answers(limit=9) == [known[3], known[1]]
    assert check(store.path) == []
