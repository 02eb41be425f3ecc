"""A long queue: pages by key, claims by device, and no work for what is not asked."""

from typing import Any

import pytest

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.model.outcomes import JobState
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process

PLACE = {"device_key": "device", "gpu_uuid": "", "env_key": "env", "against": None}


@pytest.fixture
def queued(store: Store, make: Any) -> list[str]:
    """The ids of 300 jobs for three devices in turn, the newest last."""
    with store.transaction():
        store.save_workload(make.workload())
        for index in range(300):
            store._database.execute(
                "INSERT INTO jobs (id, kind, workload_key, device, state, priority, cancel_requested, search, job) "
                "VALUES (?, 'tune', ?, ?, 'queued', ?, 0, ?, '{}')",
                [f"job{index:03d}", make.workload().key, f"cuda:{index % 3}", index % 7, f'{{"seed": {index}}}'],
            )
    return [f"job{index:03d}" for index in range(300)]


def test_pages_are_the_whole_list_in_order(store: Store, queued: list[str]) -> None:
    store.cancel(queued[10])
    seen: list[str] = []
    before = None
    while True:
        page = store.jobs([JobState.QUEUED], limit=70, before=before)
        if not page:
            break
        seen += [row.id for row in page]
        before = page[-1].number
    assert seen == [id for id in reversed(queued) if id != queued[10]]
    assert [row.id for row in store.jobs(limit=1, before=2)] == [queued[0]]
    assert store.count_jobs([JobState.QUEUED]) == 299


def test_claims_by_device_are_those_of_a_sorted_list(store: Store, queued: list[str]) -> None:
    wanted = {"cuda:1", "auto"}
    right = sorted((-(index % 7), index) for index in range(300) if index % 3 == 1)
    claimed = [store.claim(this_process(), devices=wanted) for _ in range(30)]
    assert [row.id for row in claimed if row] == [queued[index] for _, index in right[:30]]
    assert store.claim(this_process(), devices={"cpu"}) is None
    assert store.claim(this_process(), devices=()) is None


def test_a_claim_without_a_job_takes_no_lock(store: Store, queued: list[str]) -> None:
    statements: list[str] = []
    for connection in (store._database.conn, store._reader):
        connection.set_trace_callback(statements.append)
    assert store.claim(this_process(), devices={"cpu"}) is None
    assert statements
    assert not [each for each in statements if not each.startswith("SELECT")]
    for query in statements:
        plan = " ".join(row["detail"] for row in store._rows(f"EXPLAIN QUERY PLAN {query}"))
        assert "SEARCH jobs USING INDEX idx_jobs_queue (state=? AND device=?)" in plan
        assert "TEMP B-TREE" not in plan


def test_a_list_looks_at_no_trial(store: Store, job: str, make: Any) -> None:
    for sequence in range(3):
        store.add_trial(job, make.trial(sequence, ratio=1.0 + sequence), **PLACE)
    statements: list[str] = []
    store._reader.set_trace_callback(statements.append)
    (row,) = store.jobs()
    assert (row.trials, row.best_ratio) == (3, 3.0)
    assert not [each for each in statements if "trials" in each]


def test_a_damaged_job_is_passed_over(store: Store, queued: list[str], caplog: pytest.LogCaptureFixture) -> None:
    store._database.execute("DROP TRIGGER jobs_sealed")
    store._database.execute("UPDATE jobs SET digest = x'00' WHERE id = 'job006'")  # the first that would be claimed
    claimed = store.claim(this_process())
    assert claimed is not None
    assert claimed.id == "job013"
    assert "the damaged job job006 is passed over" in caplog.text
    assert len(store.jobs(limit=1000)) == 299
    assert "row 'job006' of jobs is damaged" in caplog.text
    with pytest.raises(StoreError, match="'job006' of jobs is damaged"):
        store.job("job006")
    with pytest.raises(StoreError, match="damaged row of jobs"):
        store.finish("job006", JobState.DONE)


def test_a_claim_whose_last_step_raises_is_given_back(
    store: Store, queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store.claim(this_process())
    assert kept is not None

    def fail(self: Store, *arguments: Any) -> None:
        raise StoreUnavailable("the file went away")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_acknowledge", fail)
        with pytest.raises(StoreUnavailable):
            store.claim(this_process())
    assert store.count_jobs([JobState.RUNNING]) == 2
    (lost,) = store.recover(own=this_process())
    assert lost != kept.id
    again = store.claim(this_process())
    assert again is not None
    assert again.id == lost
    assert store.recover(own=this_process()) == []
