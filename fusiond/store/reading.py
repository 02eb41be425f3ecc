"""Opening the file for a lookup: read-only, as it is at this moment. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from fusiond.errors import StoreError
from fusiond.store.format import SCHEMA_VERSION, check_header, explained

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the lookup
    from collections.abc import Iterator

_WAIT_SECS = 2.0


class Outdated(StoreError):
    """A file that an older fusiond wrote; whoever opens it to write brings it up to date."""


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection | None]:
    """A connection inside a transaction; None when the file is missing or holds nothing yet.

    StoreError for a file that cannot be read, Outdated for one that an older fusiond wrote.
    """
    where = os.fspath(path)
    if not os.path.exists(where):
        yield None
        return
    connection = None
    try:
        connection, version = _open(where)
        if 0 < version < SCHEMA_VERSION:
            raise Outdated(f"{where}: written by an older fusiond; `fusiond jobs` brings it up to date")
        connection.execute("BEGIN")
        yield connection if version else None
    except sqlite3.Error as problem:
        raise explained(where, problem) from problem
    finally:
        if connection is not None:
            connection.close()


def connect(path: str | os.PathLike[str], how: str, *, wait_secs: float = _WAIT_SECS) -> sqlite3.Connection:
    """`how` is a parameter of SQLite's URIs, such as `mode=ro`."""
    where = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(f"file://{where}?{how}", uri=True, timeout=wait_secs, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


def _open(where: str) -> tuple[sqlite3.Connection, int]:
    connection = connect(where, "mode=ro")
    try:
        return connection, check_header(connection, where)
    except sqlite3.OperationalError:
        connection.close()
        # In a folder that we may not write, SQLite cannot make the files that go with a log; an empty log needs none.
        if os.access(os.path.dirname(os.path.abspath(where)), os.W_OK) or os.path.exists(f"{where}-wal"):
            raise
    connection = connect(where, "immutable=1")
    try:
        return connection, check_header(connection, where)
    except BaseException:
        connection.close()
        raise
