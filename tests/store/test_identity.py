"""The file at the path is the file that is open, and its owner's alone; otherwise nothing is acknowledged."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import MachineFault, StoreError, StoreUnavailable
from fusiond.model.outcomes import JobState
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process


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
