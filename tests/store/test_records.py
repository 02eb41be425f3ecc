"""One answer per workload, device and cache; what it replaced is history."""

from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import StoreError
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
