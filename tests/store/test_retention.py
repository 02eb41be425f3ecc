"""What is old goes, but for what an answer, its history or an undone job needs; and the file shrinks."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fusiond import __version__
from fusiond.model.errors import StoreError
from fusiond.model.outcomes import JobState, Purpose
from fusiond.model.program import Program, Source, replace_sources
from fusiond.store import lookup
from fusiond.store.check import check
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from fusiond.store.retention import remove_old
from tests.store import test_database

PLACE = {"device_key": "device", "gpu_uuid": "", "env_key": "env", "against": None}
LATER = "2999-01-01T00:00:00.000+00:00"
TODAY: dict[str, Any] = {"driver": "580.1", "version": __version__}


def program(text: str = "") -> Program:
    """A program of its own for each text."""

    def commented(source: Source) -> Source:
        return dataclasses.replace(source, text=f"{source.text} // {text}")

    return replace_sources(test_database.program(), commented)


def run(store: Store, make: Any, number: int, *, end: JobState | None = JobState.DONE) -> str:
    """A job with twenty trials, each of a program of its own, and finals."""
    row = store.submit(make.job(search=make.search(number)), make.workload())
    assert store.claim(this_process(), job=row.id)
    for sequence in range(20):
        emitted = program(f"job {number} candidate {sequence}")
        store.save_emitted(row.id, f"config{sequence}", emitted)
        measured = make.measurement(*(float(each) for each in range(200)))
        trial = make.trial(sequence, program_key=emitted.key, measurement=measured)
        store.add_trial(row.id, trial, **PLACE)
    store.add_finals(row.id, 0, {emitted.key: make.measurement(purpose=Purpose.FINAL)})
    if end is not None:
        store.finish(row.id, end)
    return row.id


@pytest.fixture
def jobs(store: Store, make: Any) -> dict[str, str]:
    """By what is to become of it: failed, of a former answer, of the answer, running, and a parent of a running one."""
    found = {"failed": run(store, make, 1, end=JobState.FAILED)}
    for index, name in enumerate(("former", "current"), 2):
        found[name] = run(store, make, index)
        make.known(store, make.workload(), make.device(), job=found[name], trials=index, program_key=program().key)
    store.save_program(program())
    found["running"] = run(store, make, 4, end=None)
    found["parent"] = run(store, make, 5)
    part = store.submit(make.job(device="cpu"), make.workload("hist"), parent=found["parent"])
    found["part"] = part.id
    return found


def test_only_what_nothing_needs_goes(store: Store, make: Any, jobs: dict[str, str]) -> None:
    key = make.workload().key, make.device().key
    before = lookup.best(store.path, name="hist,maxpool", **TODAY), store.history(*key)
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    removed = remove_old(store, LATER)
    assert (removed.jobs, removed.trials, removed.samples) == (1, 20, 60)
    assert removed.programs == 20 + 3 * 19  # of the others, one each was in the finals
    assert removed.bytes > 100_000
    assert (lookup.best(store.path, name="hist,maxpool", **TODAY), store.history(*key)) == before
    assert {row.id for row in store.jobs()} == set(jobs.values()) - {jobs["failed"]}
    assert store.program(program().key) == program()
    for name in ("former", "current", "parent"):
        trials = store.trials(jobs[name])
        assert [(each.ratio, each.measurement) for each in trials] == [(2.0, None)] * 20
        assert len(store.finals(jobs[name])) == 1
    assert all(each.measurement for each in store.trials(jobs["running"]))
    assert store.emitted(jobs["running"], "config3") == program("job 4 candidate 3")
    assert check(store.path) == []
    again = remove_old(store, LATER)
    assert (again.jobs, again.samples, again.programs) == (0, 0, 0)


def test_what_is_young_stays(store: Store, make: Any, jobs: dict[str, str]) -> None:
    removed = remove_old(store, "2020-01-01T00:00:00.000+00:00")
    assert (removed.jobs, removed.trials, removed.samples, removed.programs) == (0, 0, 0, 0)
    assert len(store.jobs()) == len(jobs)


def test_a_file_of_an_earlier_version_shrinks_too(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "fusiond.sqlite"
    with Store.open(path) as store:
        store._database.execute("PRAGMA auto_vacuum = NONE")
        store._database.execute("VACUUM")
        assert store._database.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        run(store, make, 1, end=JobState.FAILED)
        store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert remove_old(store, LATER).bytes > 50_000
        assert store._database.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert check(path) == []


def test_a_job_with_a_damaged_row_is_kept(
    store: Store, make: Any, jobs: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    store._database.execute("DROP TRIGGER trials_sealed")
    store._database.execute("UPDATE trials SET digest = x'00' WHERE job_id = ? AND sequence = 3", [jobs["former"]])
    assert remove_old(store, LATER).jobs == 1
    assert f"the job {jobs['former']} is kept: " in caplog.text
    with pytest.raises(StoreError, match="is damaged"):
        store.trials(jobs["former"])
    assert len(store.trials(jobs["former"], skip=True)) == 19
