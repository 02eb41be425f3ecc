"""The two connections that all nouns share, and the one place where SQLite's errors become ours.

One connection writes and one reads, each behind a lock of its own. A Store can therefore be used from any thread; a
reader (the daemon's event loop) never waits for a writer, in this process or in another one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import sqlite_utils

from fusiond.errors import StoreError, StoreUnavailable
from fusiond.store.format import BUSY_SECS, explained

Row: TypeAlias = Mapping[str, Any]
"""A row as column -> value; it goes no further than the module that asked for it."""


class Connected:
    """What every noun of the store is built on. Any method of any noun may raise StoreError."""

    def __init__(self, path: Path, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self.path = path
        self._database = sqlite_utils.Database(writer, execute_plugins=False, recursive_triggers=False)
        self._reader = reader
        self._reader.row_factory = sqlite3.Row
        self._write_lock = threading.RLock()
        self._read_lock = threading.Lock()

    def close(self) -> None:
        """Close both connections; whatever is called afterwards raises StoreError."""
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._database.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Several writes, one commit: what is written inside is on disk when the block has ended, or not at all."""
        with self._transaction():
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite_utils.Database]:
        """All or nothing; on disk when the block has ended. Inside another one of this thread it is a part of that."""
        with self._write_lock, translated(self.path):
            if self._database.conn.in_transaction:
                with self._database.atomic():
                    yield self._database
                return
            self._database.execute("BEGIN IMMEDIATE")  # two that read before they write would deadlock
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.conn.in_transaction:  # a full disk has rolled back already
                    self._database.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Row]:
        """Everything that a SELECT finds; what an open transaction of this process wrote is not seen."""
        with self._read_lock, translated(self.path):
            return [dict(row) for row in self._reader.execute(sql, parameters)]

    def _row(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> Row | None:
        rows = self._rows(sql, parameters)
        return rows[0] if rows else None


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time."""
    connection = sqlite3.connect(path, timeout=BUSY_SECS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged outlives a power cut
    return connection


@contextlib.contextmanager
def translated(path: Path | str) -> Iterator[None]:
    """SQLite's errors as StoreError."""
    try:
        yield
    except sqlite3.Error as problem:
        raise explained(os.fspath(path), problem) from problem
    except MemoryError as problem:  # SQLite's own, or Python's while it reads a row
        raise StoreUnavailable(f"{path}: no memory left to read or write it") from problem
    except UnicodeEncodeError as problem:
        raise StoreError(f"{path}: a text that is no Unicode cannot be stored ({problem.reason})") from problem
