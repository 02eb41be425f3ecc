"""The queue: one job for one question, claimed by one process, recovered when that process is gone."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fusiond.model.errors import RequestError, StoreError, StoreUnavailable
from fusiond.model.outcomes import JobState
from fusiond.store.database import Store
from fusiond.store.process_identity import is_alive, this_process

PLACE = {"device_key": "device", "gpu_uuid": "GPU-0", "env_key": "env", "against": "baseline"}


def test_the_same_job_twice_is_one_row_while_it_has_not_ended(store: Store, make: Any) -> None:
    first = store.submit(make.job(), make.workload())
    assert store.submit(make.job(path="other.yaml"), make.workload(), priority=7).id == first.id
    assert store.claim(this_process()) is not None
    again = store.submit(make.job(), make.workload(), priority=1)
    assert (again.id, again.state, again.priority) == (first.id, JobState.RUNNING, 7)
    store.finish(first.id, JobState.DONE)
    assert store.submit(make.job(), make.workload()).id != first.id
    assert len(store.jobs()) == 2


def test_another_device_search_kind_or_workload_is_another_job(store: Store, make: Any) -> None:
    ids = {
        store.submit(make.job(), make.workload()).id,
        store.submit(make.job(device="cpu"), make.workload()).id,
        store.submit(make.job(search=make.search(seed=1)), make.workload()).id,
        store.submit(make.job(), make.workload(), kind="verify").id,
        store.submit(make.job(), make.workload(sizes={"a.n": 1, "b.n": 1})).id,
    }
    assert len(ids) == 5


def test_a_parent_must_be_there(store: Store, make: Any) -> None:
    parent = store.submit(make.job(), make.workload())
    child = store.submit(make.job(), make.workload("hist"), parent=parent.id)
    assert child.parent == parent.id
    with pytest.raises(StoreError, match="not stored"):
        store.submit(make.job(), make.workload("maxpool"), parent="nobody")
    assert len(store.jobs()) == 2


def test_a_prefix_names_a_job_when_it_names_only_one(store: Store, make: Any) -> None:
    rows = [store.submit(make.job(), make.workload(sizes={"n": size})) for size in range(40)]
    letters = [row.id[0] for row in rows]
    shared = next(letter for letter in letters if letters.count(letter) > 1)
    with pytest.raises(RequestError, match="several jobs begin with"):
        store.job(shared)
    found = store.job(rows[0].id[:7])
    assert found is not None
    assert found.id == rows[0].id
    assert store.job("") is None
    assert store.job("_") is None
    assert store.job("zzzzzzzzz") is None


def test_the_oldest_of_the_highest_priority_is_claimed_first(store: Store, make: Any) -> None:
    priorities = [0, 5, 0, 5]
    ids = [
        store.submit(make.job(), make.workload(sizes={"n": index}), priority=priority).id
        for index, priority in enumerate(priorities)
    ]
    claimed = [store.claim(this_process()) for _ in range(5)]
    assert [row.id if row else None for row in claimed] == [ids[1], ids[3], ids[0], ids[2], None]
    assert {row.state for row in claimed if row} == {JobState.RUNNING}
    assert all(row.started_at for row in claimed if row)


def test_a_claim_can_ask_for_a_device_or_a_job(store: Store, make: Any) -> None:
    gpu = store.submit(make.job(device="cuda:0"), make.workload(), priority=9).id
    cpu = store.submit(make.job(device="cpu"), make.workload()).id
    other = store.submit(make.job(device="cpu"), make.workload("hist")).id
    claimed = store.claim(this_process(), devices={"cpu"}, job=other)
    assert claimed is not None
    assert claimed.id == other
    assert store.claim(this_process(), job=other) is None
    claimed = store.claim(this_process(), devices={"cpu"})
    assert claimed is not None
    assert claimed.id == cpu
    assert store.claim(this_process(), devices={"cpu"}) is None
    assert store.jobs([JobState.QUEUED])[0].id == gpu


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_asked(store: Store, make: Any) -> None:
    queued = store.submit(make.job(), make.workload())
    assert store.cancel(queued.id[:7]).state is JobState.CANCELLED
    assert store.cancel_requested(queued.id)
    running = store.submit(make.job(), make.workload("hist"))
    store.claim(this_process(), job=running.id)
    assert not store.cancel_requested(running.id)
    row = store.cancel(running.id)
    assert (row.state, row.cancel_requested) == (JobState.RUNNING, True)
    store.finish(running.id, JobState.CANCELLED)
    assert store.cancel(running.id).state is JobState.CANCELLED


def test_a_job_that_has_ended_keeps_its_end(store: Store, job: str) -> None:
    with pytest.raises(ValueError, match="not an end"):
        store.finish(job, JobState.RUNNING)
    store.finish(job, JobState.FAILED, "no \udcff compiler")
    store.finish(job, JobState.DONE)
    store.requeue(job)
    row = store.job(job)
    assert row is not None
    assert (row.state, row.problem) == (JobState.FAILED, "no \\udcff compiler")
    assert row.ended_at is not None


def test_a_job_given_back_is_queued_unless_it_was_to_be_cancelled(store: Store, make: Any) -> None:
    for name, cancelled, state in (("hist", False, JobState.QUEUED), ("maxpool", True, JobState.CANCELLED)):
        row = store.submit(make.job(), make.workload(name))
        store.claim(this_process(), job=row.id)
        if cancelled:
            store.cancel(row.id)
        store.requeue(row.id)
        again = store.job(row.id)
        assert again is not None
        assert again.state is state


@pytest.mark.parametrize("call", ["load_job", "cancel", "requeue", "cancel_requested"])
def test_an_unknown_job_is_a_wrong_request(store: Store, call: str) -> None:
    with pytest.raises(RequestError, match="there is no job 'nobody'"):
        getattr(store, call)("nobody")
    with pytest.raises(RequestError, match="there is no job"):
        store.finish("nobody", JobState.DONE)
    with pytest.raises(RequestError, match="there is no job"):
        store.set_device("nobody", "x")


# --- owners ---


def test_a_job_whose_process_is_gone_is_queued_again(store: Store, make: Any) -> None:
    mine, theirs, stopped = (store.submit(make.job(), make.workload(name)).id for name in "abc")
    store.claim(this_process(), job=mine)
    script = "from fusiond.store.process_identity import this_process; print(this_process())"
    gone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    store.claim(gone, job=theirs)
    store.claim(gone, job=stopped)
    assert store.cancel(stopped).state is JobState.CANCELLED  # nobody is there who would stop it
    assert store.recover() == [theirs]
    states = {row.id: row.state for row in store.jobs()}
    assert states == {mine: JobState.RUNNING, theirs: JobState.QUEUED, stopped: JobState.CANCELLED}
    assert store.recover() == []


def test_an_owner_is_a_process_and_not_a_number() -> None:
    me = this_process()
    pid, boot, started = me.split(":")
    assert is_alive(me)
    assert not is_alive(f"{pid}:{boot}:{int(started) - 1}")  # the number was given to another process since
    assert not is_alive(f"{pid}:00000000-0000-0000-0000-000000000000:{started}")  # before the last boot
    for text in ("", "me", "1:2", f"{pid}:{boot}:", "-1:x:1", "²:x:1"):
        assert not is_alive(text)


def test_a_zombie_owns_nothing() -> None:
    script = "from fusiond.store.process_identity import this_process; print(this_process(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        assert is_alive(owner)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the table
        assert not is_alive(owner)


# --- several processes ---

_CLAIM = """
import sys
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
with Store.open(sys.argv[1]) as store:
    sys.stdin.readline()
    while (row := store.claim(this_process())) is not None:
        print(row.id, flush=True)
"""


@pytest.mark.slow
def test_no_two_processes_claim_one_job(store: Store, make: Any) -> None:
    ids = {store.submit(make.job(), make.workload(sizes={"n": index})).id for index in range(60)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CLAIM, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    claimed = [id for child in children for id in child.communicate()[0].split()]
    assert len(claimed) == len(ids)
    assert set(claimed) == ids
    assert sorted(store.recover()) == sorted(ids)


@pytest.mark.parametrize("how", ["row", "loss"])
def test_a_job_that_has_vanished_is_not_one_that_never_was(store: Store, make: Any, how: str) -> None:
    """A row that is gone is damage; after a loss nobody knows, and it is an unknown job with a note."""
    with pytest.raises(RequestError, match=r"there is no job 'job'$"):
        store.load_job("job")
    expected: type[Exception] = RequestError
    if how == "row":
        store._database.execute("UPDATE sums SET rows = rows + 1 WHERE name = 'jobs'")
        expected = StoreError
    else:
        store._database.execute("INSERT INTO losses VALUES ('2026-01-01', 9, 7)")
        assert store.job("job") is None
    asks: list[Callable[[], object]] = [
        lambda: store.named_job("job"), lambda: store.load_job("job"), lambda: store.cancel("job"),
        lambda: store.finish_early("job"), lambda: store.finish("job", JobState.DONE), lambda: store.requeue("job"),
        lambda: store.set_space("job", "space"), lambda: store.cancel_requested("job"),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(expected, match="store check"):
            ask()


def test_whether_somebody_lives_is_not_guessed_for_want_of_descriptors() -> None:
    """Else a job would be taken from one who runs it."""
    me = this_process()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            is_alive(me)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert is_alive(me)


# --- a long queue: pages by key, claims by device -------------------------------------------------------


OF_TRIALS = {"device_key": "device", "gpu_uuid": "", "env_key": "env", "against": None}


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
        store.add_trial(job, make.trial(sequence, ratio=1.0 + sequence), **OF_TRIALS)
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
