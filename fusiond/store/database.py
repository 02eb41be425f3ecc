"""Store: all nouns over one SQLite file.

    devices.py   what a device is, and which boards are sick
    jobs.py      the queue
    trials.py    what a study knows: asks, trials, finals, rejections
    programs.py  plans by key, artifacts beside the file
    probes.py    micro-measurements
    records.py   the answers and their history
    said.py      what the plugins said: versions, documents, the catalogue
    serving.py   the daemon that serves, and its lock file

A method returns when what it wrote is on disk. Any thread may call any method at any time; transactions are short, and
several processes (the daemon, `fusiond run`, `fusiond best`) may have the file open at once.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fusiond import faults
from fusiond.errors import StoreError
from fusiond.store.connection import connect, translated
from fusiond.store.devices import DeviceRow, Devices
from fusiond.store.format import BUSY_SECS, SCHEMA_VERSION, check_header, disk_full
from fusiond.store.jobs import JobRow, Jobs
from fusiond.store.location import default_path, refuse_network
from fusiond.store.migrations import migrate
from fusiond.store.owner import this_process
from fusiond.store.probes import Probes
from fusiond.store.records import Records
from fusiond.store.said import Said
from fusiond.store.serving import Serving
from fusiond.store.trials import Trials

__all__ = ["DeviceRow", "JobRow", "Store", "default_path", "this_process"]


class Store(Devices, Jobs, Trials, Probes, Records, Said, Serving):
    """What fusiond remembers. Every method may raise StoreError: a full disk, a damaged file, a closed store."""

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> Self:
        """Open a file, bringing an older one up to date; `create` makes it, and its folder, when it is missing.

        StoreError for a file that a newer fusiond wrote, one that is not fusiond's, one on a network file system, and
        for a missing one without `create`.
        """
        where = Path(path).expanduser().absolute()
        if not create and not where.is_file():
            raise StoreError(f"{where}: there is no such file")
        refuse_network(where)
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(str(where)) from problem
            doing = f"{where.parent}: the folder cannot be made"
            raise faults.of_system(problem, doing) or StoreError(f"{doing}: {problem.strerror}") from problem
        with contextlib.ExitStack() as opened, translated(where):
            writer = opened.enter_context(contextlib.closing(connect(where)))
            _prepare(writer, str(where))
            reader = opened.enter_context(contextlib.closing(connect(where)))
            reader.execute("PRAGMA query_only = ON")
            store = cls(where, writer, reader)
            with store._transaction() as database:
                if check_header(database.conn, str(where)) < SCHEMA_VERSION:  # again, now that nobody else can write
                    migrate(database)
            opened.pop_all()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _prepare(writer: sqlite3.Connection, path: str) -> None:
    """Look at the header before anything is changed, then turn write-ahead logging on.

    SQLite does not wait for others when it changes the journal, so two that make a file at once need this loop.
    """
    give_up_at = time.monotonic() + BUSY_SECS
    while True:
        try:
            check_header(writer, path)
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as problem:
            busy = (problem.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreError(f"{path}: this file system does not take a write-ahead log (journal mode {mode!r})")
        return
