"""`fusiond store`: what is damaged is named, what is forgotten is gone, and a copy goes on where the store was."""

import dataclasses
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond import __version__
from fusiond.model.errors import MachineFault, NothingKnown, RequestError, StoreError, StoreUnavailable
from fusiond.model.outcomes import JobState, Purpose
from fusiond.model.program import Program, Source, replace_sources
from fusiond.store import last_commit, lookup, tables
from fusiond.store.backup import backup, restore
from fusiond.store.check import check, forget
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from fusiond.store.retention import remove_old
from tests.store import test_database

PLACE = {"device_key": "device", "gpu_uuid": "", "env_key": "env", "against": None}
TODAY: dict[str, Any] = {"driver": "580.1", "version": __version__}


@pytest.fixture
def filled(store: Store, make: Any) -> Store:
    """Two answers, one with a job and its trials, one with a history and a source."""
    row = store.submit(make.job(), make.workload())
    store.claim(this_process(), job=row.id)
    for sequence in range(5):
        store.add_trial(row.id, make.trial(sequence), **PLACE)
    make.known(store, make.workload(), make.device(), job=row.id)
    source = store.save_artifact(b"__global__", ".cu")
    for trials in (1, 2):
        make.known(store, make.workload("scale"), make.device(), source=str(source), trials=trials)
    return store


def damage(store: Store, sql: str) -> None:
    """Change rows behind the triggers' back, as a failing disk does."""
    with sqlite3.connect(store.path) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(sql).rowcount > 0
        for _, text in triggers:
            connection.execute(text)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(tables.COLUMNS))
def test_a_changed_row_of_every_table_is_found(filled: Store, make: Any, table: str) -> None:
    column = tables.COLUMNS[table][-1]
    if not filled._rows(f"SELECT 1 FROM {table}"):
        pytest.skip("no row of this table in the fixture; its triggers are those of the others")
    damage(filled, f"UPDATE {table} SET {column} = coalesce({column}, '') || 'x'")
    found = [each for each in check(filled.path) if each.where.startswith(table)]
    assert found
    assert "is damaged" in found[0].problem
    assert "restore a backup" in found[0].remedy


def test_a_row_that_vanished_is_found(filled: Store) -> None:
    damage(filled, "DELETE FROM trials WHERE sequence = 4")
    assert [each.where for each in check(filled.path)] == ["trials"]


def test_a_damaged_answer_is_none_and_says_so(filled: Store, make: Any) -> None:
    damage(filled, "UPDATE records SET time_us = 0.5 WHERE lookup_name = 'hist,maxpool'")
    with pytest.raises(NothingKnown, match=r"1 damaged record is left out; `fusiond store check`"):
        lookup.best(filled.path, name="hist,maxpool", **TODAY)
    found = lookup.best(filled.path, name="scale", **TODAY)
    assert found is not None
    assert found["notes"] == []


def test_a_damaged_source_is_not_served(filled: Store) -> None:
    (file,) = filled.artifacts.rglob("*.cu")
    file.write_bytes(b"__globol__")
    found = lookup.best(filled.path, name="scale", **TODAY)
    assert found is not None
    assert found["source"] is None
    assert "source is damaged" in found["notes"][0]
    (finding,) = check(filled.path)
    assert finding.where == str(file)
    assert filled.save_artifact(b"__global__", ".cu").read_bytes() == b"__global__"
    assert check(filled.path) == []


def test_a_damaged_row_is_never_sealed_again(filled: Store) -> None:
    damage(filled, "UPDATE jobs SET priority = 9")
    (row,) = check(filled.path)
    assert row.where.startswith("jobs")
    with pytest.raises(StoreError, match="damaged row of jobs"):
        filled.finish(filled._rows("SELECT id FROM jobs")[0]["id"], JobState.DONE)
    assert check(filled.path) == [row]


def test_what_is_forgotten_is_gone_with_all_that_hangs_on_it(filled: Store, make: Any) -> None:
    damage(filled, "UPDATE jobs SET priority = 9")
    damage(filled, "UPDATE records SET trials = 9 WHERE trials = 2")
    assert forget(filled) == 1 + 1 + 5 + 1  # the job, a record, its trials, its tally
    assert check(filled.path) == []
    assert filled.jobs() == []
    assert lookup.best(filled.path, name="hist,maxpool", **TODAY) is not None
    assert lookup.best(filled.path, name="scale", **TODAY) is None
    assert [each.trials for each in filled.history(make.workload("scale").key, make.device().key)] == [1]
    filled.submit(make.job(), make.workload())


# --- the log ---


def cut(store: Store, tmp_path: Path) -> Path:
    """A copy whose log was damaged, so that SQLite ends it before the last transactions."""
    folder = tmp_path / "cut"
    folder.mkdir()
    for each in store.path.parent.glob("fusiond.sqlite*"):
        if not each.name.endswith("-shm"):
            shutil.copy(each, folder)
    shutil.copytree(store.artifacts, folder / "fusiond.artifacts")
    log = folder / "fusiond.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-5000])
    return folder / "fusiond.sqlite"


def test_a_log_that_was_cut_short_is_said_at_the_start_and_until_it_is_forgotten(
    filled: Store, tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = cut(filled, tmp_path)
    found = lookup.best(path, name="hist,maxpool", **TODAY)
    assert found is not None
    assert any("acknowledged changes of the store are missing" in note for note in found["notes"])
    with Store.open(path) as store:
        assert "acknowledged changes are missing" in caplog.text
        store.submit(make.job(device="cpu"), make.workload())  # more numbers than before, and it is still known
    with Store.open(path) as store:
        (finding,) = (each for each in check(path) if each.where == "log")
        assert "acknowledged changes are missing" in finding.problem
        forget(store)
        assert check(path) == []
        found = lookup.best(path, name="hist,maxpool", **TODAY)
        assert found is not None
        assert found["notes"] == []


def test_a_copy_without_the_number_is_no_loss(filled: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = cut(filled, tmp_path)
    Path(last_commit.file_of(path)).unlink()
    with Store.open(path):
        assert check(path) == []
    assert caplog.text == ""


def test_a_crash_before_the_number_is_written_is_no_loss(
    filled: Store, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(last_commit, "write", lambda *_, **__: None)
    filled.submit(make.job(device="cpu"), make.workload())
    monkeypatch.undo()
    with Store.open(filled.path):
        assert check(filled.path) == []
    assert caplog.text == ""


def test_several_writers_never_lower_the_number(filled: Store, make: Any) -> None:
    with Store.open(filled.path) as other:
        for index in range(6):
            (filled, other)[index % 2].submit(make.job(device=f"cuda:{index}"), make.workload())
    known = last_commit.read(filled.path)
    assert known is not None
    assert known == last_commit.commits(filled._reader)
    last_commit.write(filled.path, known[0] - 3, known[1])
    assert last_commit.read(filled.path) == known


# --- copies ---


def test_a_backup_is_a_store_with_all_that_was_there(filled: Store, tmp_path: Path, make: Any) -> None:
    target = tmp_path / "copy" / "backup.sqlite"
    target.parent.mkdir()
    copied = backup(filled.path, target)
    assert (copied.artifacts, copied.damaged) == (1, ())
    assert sorted(each.name for each in target.parent.iterdir()) == ["backup.artifacts", "backup.sqlite"]
    assert target.stat().st_mode & 0o777 == 0o600
    for name in ("hist,maxpool", "scale"):
        then, now = (lookup.best(path, name=name, **TODAY) for path in (filled.path, target))
        assert then is not None
        assert now is not None
        assert {**now, "source": None} == {**then, "source": None}
    with Store.open(target) as again:
        assert again.jobs() == filled.jobs()
    with pytest.raises(RequestError, match="there already"):
        backup(filled.path, target)


def test_a_backup_holds_no_writer_up_and_is_of_one_moment(filled: Store, tmp_path: Path, make: Any) -> None:
    """A writer that writes at each step of the copy: the copy is of before."""
    from fusiond.store import backup as module

    before = filled.count_jobs()
    steps = []

    class Writing(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **options: Any) -> None:
            def progress(*_: int) -> None:
                steps.append(filled.submit(make.job(device=f"cuda:{len(steps)}"), make.workload()).id)

            super().backup(target, **{**options, "pages": 8}, progress=progress)

    def connect(path: Any, how: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?{how}", uri=True, isolation_level=None, factory=Writing)

    original, module.reading.connect = module.reading.connect, connect
    try:
        backup(filled.path, tmp_path / "b.sqlite")
    finally:
        module.reading.connect = original
    assert len(steps) > 5
    with Store.open(tmp_path / "b.sqlite") as copy:
        assert copy.count_jobs() == before


def test_a_restored_store_goes_on(filled: Store, tmp_path: Path, make: Any) -> None:
    """Its jobs are queued again, no trial is repeated, the store that was there is kept, and nothing is called lost."""
    (job,) = (row.id for row in filled.jobs())
    target = tmp_path / "b.sqlite"
    backup(filled.path, target)
    filled.submit(make.job(device="cpu"), make.workload())
    filled.close()
    shutil.rmtree(filled.artifacts)
    copied = restore(target, filled.path)
    assert copied.aside is not None
    assert copied.damaged == ()
    with Store.open(copied.aside) as aside:
        assert len(aside.jobs()) == 2
    with Store.open(filled.path) as store:
        assert check(store.path) == []
        assert [row.id for row in store.jobs()] == [job]
        assert store.recover(own=this_process()) == [job]
        assert store.claim(this_process(), job=job)
        assert len(store.trials(job)) == 5
        with pytest.raises(StoreError, match="recorded already"):
            store.add_trial(job, make.trial(0), **PLACE)
        store.add_trial(job, make.trial(5), **PLACE)


def test_what_is_no_backup_is_refused_and_nothing_changes(filled: Store, tmp_path: Path) -> None:
    before = filled.path.read_bytes()
    with pytest.raises(RequestError, match="no such file"):
        restore(tmp_path / "none", filled.path)
    with pytest.raises(RequestError, match="is the store itself"):
        restore(filled.path, filled.path)
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(StoreError):
        restore(tmp_path / "text", filled.path)
    assert filled.path.read_bytes() == before
    assert not list(tmp_path.glob(".fusiond-copy-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_restores_belongs_to_whom_the_store_did(filled: Store, tmp_path: Path) -> None:
    target = tmp_path / "b.sqlite"
    backup(filled.path, target)
    filled.close()
    os.chown(filled.path, 12345, 12346)
    restore(target, filled.path)
    files = [filled.path, Path(f"{filled.path}.acknowledged"), filled.artifacts, *filled.artifacts.rglob("*")]
    assert {(each.stat().st_uid, each.stat().st_gid) for each in files} == {(12345, 12346)}


# --- the file at the path is the file that is open ------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_what_is_made_is_the_owners_alone(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "new" / "fusiond.sqlite"
    with Store.open(path) as store:
        store.submit(make.job(), make.workload())
        artifact = store.save_artifact(b"data", ".cu")
        files = [each for each in path.parent.iterdir() if each.is_file()]
        assert {each.name for each in files} >= {path.name, f"{path.name}-wal", f"{path.name}-shm"}
        assert {each.name: mode(each) for each in [*files, artifact]} == {
            each.name: 0o600 for each in [*files, artifact]
        }
        assert [mode(each) for each in (path.parent, store.artifacts, artifact.parent)] == [0o700] * 3


def test_a_deleted_store_acknowledges_nothing(store: Store, make: Any) -> None:
    store.submit(make.job(), make.workload())
    store.path.unlink()
    with pytest.raises(StoreUnavailable, match="was deleted or moved away") as caught:
        store.submit(make.job(device="cpu"), make.workload())
    assert isinstance(caught.value, MachineFault)
    with pytest.raises(StoreUnavailable, match="deleted"):
        store.jobs()
    with pytest.raises(StoreUnavailable, match="deleted"):
        store.claim(this_process())
    with pytest.raises(StoreUnavailable, match="no such file"):
        store.reopen()


def test_a_store_that_goes_away_within_a_transaction_acknowledges_nothing(store: Store, make: Any) -> None:
    with pytest.raises(StoreUnavailable, match="deleted"), store.transaction():  # noqa: PT012
        store.save_device(make.device())
        store.path.rename(store.path.with_name("moved"))


def test_a_store_that_comes_back_is_gone_on_with(store: Store, make: Any) -> None:
    row = store.submit(make.job(), make.workload())
    moved = store.path.with_name("moved.sqlite")
    for beside in ("", "-wal", "-shm"):
        Path(f"{store.path}{beside}").rename(f"{moved}{beside}")
    with pytest.raises(StoreUnavailable):
        store.jobs()
    for beside in ("", "-wal", "-shm"):
        Path(f"{moved}{beside}").rename(f"{store.path}{beside}")
    assert [each.id for each in store.jobs()] == [row.id]  # the same file


def test_a_replaced_store_is_opened_anew_and_leaves_no_job_running(store: Store, tmp_path: Path, make: Any) -> None:
    """The file in its place is a copy of before, in which this process runs two jobs; it still runs one of them."""
    ids = [store.submit(make.job(device=device), make.workload()).id for device in ("cpu", "cuda:0", "auto")]
    for id in ids[:2]:
        assert store.claim(this_process(), job=id)
    store.close()
    copy = shutil.copy(store.path, tmp_path / "copy")
    with Store.open(store.path) as opened:
        opened.finish(ids[0], JobState.DONE)
        os.replace(copy, opened.path)
        with pytest.raises(StoreUnavailable, match="another file took the place"):
            opened.submit(make.job(device="cuda:1"), make.workload())
        assert opened.reopen(running=[ids[1]]) == [ids[0]]
        states = {row.id: row.state for row in opened.jobs()}
        assert states == {ids[0]: JobState.QUEUED, ids[1]: JobState.RUNNING, ids[2]: JobState.QUEUED}
        opened.submit(make.job(device="cuda:1"), make.workload())
    with Store.open(store.path) as again:
        assert len(again.jobs()) == 4
        assert [row["integrity_check"] for row in again._rows("PRAGMA integrity_check")] == ["ok"]


def test_what_is_no_store_is_not_opened_in_its_place(store: Store, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"no database at all" * 100)
    os.replace(theirs, store.path)
    with pytest.raises(StoreError):
        store.reopen()
    with pytest.raises(StoreUnavailable, match="another file"):
        store.jobs()


def test_a_job_that_runs_here_is_claimed_by_nobody_in_the_file_that_took_the_place(
    store: Store, tmp_path: Path, make: Any
) -> None:
    id = store.submit(make.job(), make.workload()).id
    store.close()
    copy = shutil.copy(store.path, tmp_path / "copy")
    with Store.open(store.path) as opened:
        assert opened.claim(this_process(), job=id)
        os.replace(copy, opened.path)
        assert opened.reopen(running=[id]) == []
        assert opened.claim(this_process()) is None
        assert [row.state for row in opened.jobs()] == [JobState.RUNNING]


@pytest.mark.slow
@pytest.mark.parametrize("gone", [("-wal",), ("-wal", "-shm"), ("-shm",)])
@pytest.mark.parametrize("others", [False, True])
def test_a_log_that_is_taken_away_costs_nothing(
    store: Store, make: Any, gone: tuple[str, ...], others: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What was acknowledged is written anew; what another process wrote meanwhile is kept beside it."""
    id = store.submit(make.job(), make.workload()).id
    for beside in gone:
        Path(f"{store.path}{beside}").unlink()
    with pytest.raises(StoreUnavailable, match="its log"):
        store.submit(make.job(device="cpu"), make.workload())
    others = others and "-wal" in gone and "-shm" in gone
    if others:  # it sees the main file alone, in which there is nothing yet
        code = "import sys; from fusiond.store.database import Store; Store.open(sys.argv[1]).probe('x', 'y', 1)"
        subprocess.run([sys.executable, "-c", code + "; import os; os._exit(0)", str(store.path)], check=True)
    store.reopen()
    assert [row.id for row in store.jobs()] == [id]
    store.submit(make.job(device="cpu"), make.workload())
    assert len(list(store.path.parent.glob("*.before-*T*[0-9]"))) == others
    assert not list(store.path.parent.glob(".*rescued*"))
    store.close()
    with Store.open(store.path) as again:
        assert len(again.jobs()) == 2
        assert [row["integrity_check"] for row in again._rows("PRAGMA integrity_check")] == ["ok"]
    assert "acknowledged changes are missing" not in caplog.text


@pytest.mark.slow
def test_processes_that_come_and_go_leave_the_log_where_it_is(store: Store, make: Any) -> None:
    code = "import sys; from fusiond.store.database import Store; Store.open(sys.argv[1]).close()"
    for turn in range(3):
        store.submit(make.job(search=make.search(turn)), make.workload())
        subprocess.run([sys.executable, "-c", code, str(store.path)], check=True)
        store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert len(store.jobs()) == turn + 1


# --- what is old goes, but for what an answer, its history or an undone job needs -----------------------


LATER = "2999-01-01T00:00:00.000+00:00"


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


def test_a_trial_whose_measurement_has_vanished_is_damaged(store: Store, jobs: dict[str, str]) -> None:
    of = "SELECT measurement_id FROM trials WHERE job_id = ? AND sequence = 3"
    (gone,) = store._database.execute(of, [jobs["former"]]).fetchone()
    store._database.execute("PRAGMA foreign_keys = OFF")
    store._database.execute("DELETE FROM measurements WHERE id = ?", [gone])
    with pytest.raises(StoreError, match=f"row {gone} of measurements is damaged"):
        store.trials(jobs["former"])
    assert len(store.trials(jobs["former"], skip=True)) == 19
