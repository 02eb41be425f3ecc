"""The file as a lookup reads it: read-only, as it is at one moment, and kept open for the next one. Standard library
only.

A connection belongs to a thread and to the file that was opened: another one at the path, or none, and it is closed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from _thread import _local

from fusiond.model.errors import StoreError
from fusiond.store import last_commit
from fusiond.store.format import SCHEMA_VERSION, check_header, corrupt, explained
from fusiond.store.identity import identity

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the lookup
    from collections.abc import Iterator
    from typing import Any

    from fusiond.store.identity import Identity

_WAIT_SECS = 2.0
_KEPT = 4  #: Files that a thread keeps open


class Outdated(StoreError):
    """A file that an older fusiond wrote; whoever opens it to write brings it up to date."""


class Reader:
    """An open file, as it is in the transaction that is open."""

    __slots__ = (
        "_acknowledged",
        "_version",
        "asked",
        "connection",
        "facts",
        "file",
        "held",
        "kept",
        "known",
        "path",
        "schema",
    )

    def __init__(
        self, path: str, file: Identity, connection: sqlite3.Connection, number: last_commit.AcknowledgedNumber
    ) -> None:
        self.path, self.file, self.connection = path, file, connection
        self.kept: dict[Any, Any] = {}  #: What is read once and holds as long as the sums of its tables do
        self.asked: dict[Any, int] = {}
        """How many records each question that is kept holds, the one asked last at the end; `held` in all."""
        self.held = 0
        self.facts: dict[str, Any] = {}  #: What is read once and holds until anybody writes
        self.schema = 0  #: As `check_header` has it
        self.known: tuple[int, int] | None = None  #: What was acknowledged, read before the transaction began
        self._acknowledged = number
        self._version: int | None = None

    def begin(self) -> None:
        """Look at the file as it is now. StoreError for one that is none of ours any more."""
        self.known = self._acknowledged.read()
        self.connection.execute("BEGIN")
        # Reading this number takes the snapshot, and it changes with every commit of another connection.
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self.schema = check_header(self.connection, self.path)
            self.facts.clear()
            self._version = version

    def __del__(self) -> None:
        self.connection.close()


class _Open(_local):
    def __init__(self) -> None:
        self.readers: dict[str, Reader] = {}


_open_files = _Open()


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Reader | None]:
    """The file, inside a transaction; None when it is missing or holds nothing yet.

    StoreError for a file that cannot be read, Outdated for one that an older fusiond wrote."""
    where = os.path.abspath(path)
    readers = _open_files.readers
    reader = readers.pop(where, None)
    try:
        file = identity(where)
        if file is None:
            reader = None
            yield None
            return
        if reader is None or reader.file != file:
            reader = Reader(where, file, _opened(where), last_commit.AcknowledgedNumber(where))
        try:
            reader.begin()
            if 0 < reader.schema < SCHEMA_VERSION:
                raise Outdated(f"{where}: written by an older fusiond; `fusiond jobs` brings it up to date")
            yield reader if reader.schema else None
        finally:
            if reader.connection.in_transaction:
                reader.connection.execute("ROLLBACK")
    except sqlite3.Error as problem:
        reader = None
        raise explained(where, problem) from problem
    except UnicodeDecodeError as problem:  # of SQLite's own words about a damaged schema, for example
        reader = None
        raise corrupt(where, problem) from problem
    else:
        readers[where] = reader
        while len(readers) > _KEPT:
            del readers[next(iter(readers))]


def connect(path: str | os.PathLike[str], how: str, *, wait_secs: float = _WAIT_SECS) -> sqlite3.Connection:
    """`how` is a parameter of SQLite's URIs, such as `mode=ro`."""
    where = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(
        f"file://{where}?{how}", uri=True, timeout=wait_secs, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    return connection


def _opened(where: str) -> sqlite3.Connection:
    connection = connect(where, "mode=ro")
    try:
        check_header(connection, where)
        connection.execute("PRAGMA cache_size = -8000")
    except sqlite3.OperationalError:
        connection.close()
        # In a folder that we may not write, SQLite cannot make the files that go with a log; an empty log needs none.
        if os.access(os.path.dirname(where), os.W_OK) or os.path.exists(f"{where}-wal"):
            raise
        return connect(where, "immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection
