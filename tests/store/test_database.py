"""Opening a store: what is made, what is refused, and who may use it at the same time."""

import errno
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.store import location, lookup
from fusiond.store.database import Store
from fusiond.store.format import SCHEMA_VERSION

PLACE = {"device_key": "device", "gpu_uuid": "GPU-0", "env_key": "env", "against": "baseline"}

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw
31 30 0:41 / /home/local rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/two\\040words rw - fuse.sshfs me@there rw
33 22 0:43 / /data rw - xfs /dev/vdc rw
34 22 0:44 / /data rw master:3 - cifs //server/data rw
"""


def test_a_store_is_made_with_its_folders_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "fusiond.sqlite"
    with Store.open(path) as store:
        assert store.path == path
        assert store.artifacts == path.with_suffix(".artifacts")
    with Store.open(str(path), create=False) as again:
        assert again.jobs() == []


def test_what_is_acknowledged_is_on_disk(store: Store) -> None:
    writer = store._database.conn
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert writer.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_missing_file_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        Store.open(tmp_path / "none" / "fusiond.sqlite", create=False)
    assert not (tmp_path / "none").exists()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "fusiond.sqlite"
    Store.open(path).close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    other.close()
    with pytest.raises(StoreError, match=rf"newer fusiond \(schema {SCHEMA_VERSION + 1}; this one knows"):
        Store.open(path)
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
    other.close()


def test_another_programs_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of fusiond's"):
        Store.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to have a header" * 20, b"SQLite format 3\0" + b"\x07" * 200]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fusiond.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="no SQLite file, or a damaged one"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_folder_in_the_way_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder cannot be made"):
        Store.open(tmp_path / "file" / "fusiond.sqlite")
    with pytest.raises(StoreError, match=r"is a folder; name a file with --db or FUSIOND_DB"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match=r"is a folder; name a file with --db or FUSIOND_DB"):
        lookup.best(tmp_path, name="a,b", driver=None, version="0")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "fusiond.sqlite")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.jobs()
    with pytest.raises(StoreError, match="closed"):
        store.recover()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/f.sqlite", "ext4"),
        ("/home/me/f.sqlite", "nfs4"),
        ("/home/local/me/f.sqlite", "xfs"),
        ("/homes/f.sqlite", "ext4"),
        ("/mnt/two words/f.sqlite", "fuse.sshfs"),
        ("/data/f.sqlite", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_last_mount(path: str, kind: str) -> None:
    assert location.file_system(path, MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {tmp_path.resolve()} rw - nfs4 server:/x rw\n")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*--db"):
        location.refuse_network(tmp_path / "new" / "fusiond.sqlite", mounts)
    location.refuse_network(Path("/elsewhere/fusiond.sqlite"), mounts)
    location.refuse_network(tmp_path / "fusiond.sqlite", tmp_path / "no such mountinfo")
    monkeypatch.setattr(location.refuse_network, "__defaults__", (mounts,))
    with pytest.raises(StoreError, match="network file system"):
        Store.open(tmp_path / "new" / "fusiond.sqlite")
    assert not (tmp_path / "new").exists()


# --- a full disk ---


@pytest.mark.slow
def test_a_full_database_is_a_store_error_and_loses_nothing(store: Store, job: str, make: Any) -> None:
    def fill() -> None:
        for sequence in range(len(store.trials(job)), 100):
            store.add_trial(job, make.trial(sequence, reason="x" * 2000), **PLACE)
            acknowledged.append(sequence)

    acknowledged: list[int] = []
    (pages,) = store._database.conn.execute("PRAGMA page_count").fetchone()
    store._database.conn.execute(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(StoreError, match="disk is full; free some space"):
        fill()
    assert [trial.sequence for trial in store.trials(job)] == acknowledged != []
    store._database.conn.execute("PRAGMA max_page_count = 1000000")
    fill()
    assert [trial.sequence for trial in store.trials(job)] == acknowledged == list(range(100))


def test_a_full_disk_leaves_no_half_artifact(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk is full"):
        store.save_artifact(b"data", ".cu")
    monkeypatch.undo()
    assert [path for path in store.artifacts.rglob("*") if path.is_file()] == []


# --- several at once ---


@pytest.mark.slow
def test_many_threads_write_and_read(store: Store, job: str, make: Any) -> None:
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for index in range(20):
                store.add_trial(job, make.trial(thread * 100 + index), **PLACE)
                assert any(trial.sequence == thread * 100 + index for trial in store.trials(job))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.trials(job)) == 120


def test_a_reader_does_not_wait_for_a_writer(store: Store, job: str) -> None:
    with store._transaction() as database:
        database.execute("UPDATE jobs SET priority = 5")
        seen = []
        reader = threading.Thread(target=lambda: seen.append(store.job(job)))
        reader.start()
        reader.join(timeout=5)
        assert seen[0] is not None
        assert seen[0].priority == 0


@pytest.mark.slow
def test_several_processes_make_one_store(tmp_path: Path) -> None:
    script = f"from fusiond.store.database import Store; Store.open({str(tmp_path / 'fusiond.sqlite')!r}).close()"
    children = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [child.communicate()[1] for child in children] == [""] * 4


def test_a_store_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(os, "replace", full)
    folder = tmp_path / "new"
    folder.mkdir()
    with pytest.raises(StoreUnavailable, match="the disk is full"), Store.open(folder / "fusiond.sqlite"):
        pass
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []
