"""A copy of a store while it is in use, and back.

A backup is a store: FILE, and its artifacts beside it as those of every store, so `--db FILE` reads it. It is complete
or it is not there.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fusiond.model.errors import RequestError, StoreError
from fusiond.store import last_commit, reading
from fusiond.store.check import Finding, check
from fusiond.store.connection import translated
from fusiond.store.document import is_intact
from fusiond.store.file_permissions import FILE_MODE, give, make_folder, sync
from fusiond.store.format import artifacts_folder, check_header, now

_PAGES = 512  #: Copied in one step; between two steps whoever writes may write


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a backup or a restored store holds."""

    path: Path
    bytes: int
    artifacts: int
    damaged: tuple[Finding, ...]  #: What was damaged already, and is in the copy as it was
    aside: Path | None = None  #: Where the store is that stood in this place


def backup(store: Path, target: Path) -> Copied:
    """Copy a store as it is at this moment. RequestError where `target` or its artifacts are there already; StoreError
    for a store that cannot be read, and where the copy cannot be written."""
    for there in (target, Path(artifacts_folder(str(target)))):
        if there.exists():
            raise RequestError("is there already; name a new file", where=str(there))
    with _written(target.parent) as folder:
        copy = folder / target.name
        _copy(store, copy)
        artifacts = _copy_artifacts(copy, store, Path(artifacts_folder(str(copy))))
        damaged = tuple(check(copy))
        last_commit.forget(copy)
        sync(copy)
        try:
            if artifacts:
                os.rename(artifacts_folder(str(copy)), artifacts_folder(str(target)))
            os.rename(copy, target)
            last_commit.sync_folder(str(target.parent.absolute()))
        except OSError:  # half a copy is none, and would be in the way of the next one
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            shutil.rmtree(artifacts_folder(str(target)), ignore_errors=True)
            raise
    return Copied(path=target, bytes=target.stat().st_size, artifacts=artifacts, damaged=damaged)


def restore(source: Path, store: Path) -> Copied:
    """Put a backup in a store's place; the store that stood there is kept beside it, under a name with the date. The
    caller has made sure that no daemon serves it.

    RequestError where `source` is missing or the store itself; StoreError for one that is not fusiond's or that SQLite
    cannot read."""
    if not source.is_file():
        raise RequestError("there is no such file", where=str(source))
    if store.exists() and source.samefile(store):
        raise RequestError("is the store itself; name a backup", where=str(source))
    make_folder(store.parent)
    owner = (store if store.exists() else store.parent).stat()
    with _written(store.parent) as folder:
        copy = folder / store.name
        _copy(source, copy)
        damaged = tuple(check(copy, artifacts=Path(artifacts_folder(str(source)))))
        unreadable = [each for each in damaged if each.where == "file"]
        if unreadable:
            raise StoreError(f"{source}: {unreadable[0].problem}; nothing was restored")
        artifacts = _copy_artifacts(copy, source, Path(artifacts_folder(str(store))))
        number, own = _commits(copy)
        last_commit.forget(copy)
        sync(copy)
        give(copy, owner)
        aside = _put_aside(store)
        os.rename(copy, store)
        last_commit.write(store, number, own, lower=True)
        for beside in (last_commit.file_of(store), artifacts_folder(str(store))):
            give(beside, owner)
        last_commit.sync_folder(str(store.parent.absolute()))
    return Copied(path=store, bytes=store.stat().st_size, artifacts=artifacts, damaged=damaged, aside=aside)


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """A folder in which a copy becomes complete; it goes away. OSErrors as StoreError."""
    try:
        with tempfile.TemporaryDirectory(prefix=".fusiond-copy-", dir=folder) as made:
            yield Path(made)
    except OSError as problem:
        raise StoreError(f"{problem.filename or folder}: cannot be written: {problem.strerror or problem}") from problem


def _copy(source: Path, target: Path) -> None:
    """The database alone, as it is at one moment, without holding anybody up."""
    if not source.is_file():
        raise StoreError(f"{source}: there is no such file")
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    os.close(descriptor)
    with translated(source), closing(reading.connect(source, "mode=ro")) as old:
        if check_header(old, str(source)) == 0:
            raise StoreError(f"{source}: holds nothing yet")
        old.execute("BEGIN")
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on it does not change for us
        with closing(sqlite3.connect(target, isolation_level=None)) as new:
            old.backup(new, pages=_PAGES, sleep=0)


def _copy_artifacts(copy: Path, source: Path, target: Path) -> int:
    """Copy the artifacts that the rows of `copy` name, from beside `source` to `target`; those that are missing or
    damaged are left out (`check` says so). How many there are."""
    folder = Path(artifacts_folder(str(source)))
    with closing(reading.connect(copy, "mode=ro")) as connection:
        names = [row[0] for row in connection.execute("SELECT path FROM artifacts")]
    copied = 0
    for name in names:
        old, new = folder / name, target / name
        if not old.is_file() or not is_intact(str(old)):
            continue
        copied += 1
        if new.is_file() and is_intact(str(new)):
            continue
        make_folder(target)
        make_folder(new.parent)
        unfinished = new.with_name(f".writing-{new.name}")
        shutil.copyfile(old, unfinished)
        unfinished.chmod(FILE_MODE)
        sync(unfinished)
        os.replace(unfinished, new)
        last_commit.sync_folder(str(new.parent))
    return copied


def _commits(copy: Path) -> tuple[int, int]:
    with closing(reading.connect(copy, "mode=ro")) as connection:
        return last_commit.commits(connection)


def _put_aside(store: Path) -> Path | None:
    """Rename a store with its log; its artifacts stay, for they are named by their content."""
    if not store.exists():
        return None
    stamp = now().replace(":", "").replace("-", "")[:15]
    aside = store.with_name(f"{store.name}.before-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = store.with_name(f"{store.name}.before-{stamp}-{number}")
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # then the database alone is all of it
    for beside in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{store}{beside}", f"{aside}{beside}")
    return aside
