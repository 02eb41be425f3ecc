"""The number of the last acknowledged transaction, kept outside the database. Standard library only.

SQLite cuts a damaged log short without a word, and what was acknowledged after the damage is gone. The number of
transactions stands in the database (`sums`, row `commits`) and, after each commit, in a small file beside it, synced.
The database is never behind the file, however a process ends, unless something was lost.

The file is for one store: it holds the store's own number, too, and says nothing of a store that was copied without it.
"""

from __future__ import annotations

import contextlib
import os
import struct

from fusiond.store.hashing import hashed
from fusiond.store.identity import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from fusiond.store.identity import Identity

_FORMAT = struct.Struct("<qq16s")


def file_of(path: str | os.PathLike[str]) -> str:
    """Where the number of the store at `path` is kept."""
    return os.fspath(path) + ".acknowledged"


def commits(connection: sqlite3.Connection) -> tuple[int, int]:
    """The number of transactions that the database has seen, and its own number."""
    cursor = connection.cursor()
    cursor.row_factory = None
    number, own = cursor.execute("SELECT rows, total FROM sums WHERE name = 'commits'").fetchone()
    return number, own


def count(connection: sqlite3.Connection) -> tuple[int, int]:
    """Inside a transaction, as the last thing in it: its number, and the store's own."""
    connection.execute("UPDATE sums SET rows = rows + 1 WHERE name = 'commits'")
    return commits(connection)


class AcknowledgedNumber:
    """The file of one store, kept open: a lookup reads it each time."""

    __slots__ = ("_data", "_descriptor", "_file", "_known", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = file_of(path)
        self._descriptor = -1
        self._file: Identity | None = None
        self._data = b""
        self._known: tuple[int, int] | None = None

    def read(self) -> tuple[int, int] | None:
        """(number, own number of the store) that the file has; None when there is no file, or it is damaged.

        To be read before the database: other processes go on meanwhile."""
        file = identity(self._path)
        if file != self._file or file is None:
            self._close()
            if file is None:
                return None
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            opened = os.fstat(self._descriptor)
            self._file = opened.st_dev, opened.st_ino
        try:
            data = os.pread(self._descriptor, _FORMAT.size, 0)
        except OSError:
            return None
        if data != self._data:
            self._data, self._known = data, _unpacked(data)
        return self._known

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._file, self._data, self._known = -1, None, b"", None

    def __del__(self) -> None:
        self._close()


def read(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """The same, once."""
    return AcknowledgedNumber(path).read()


def missing(known: tuple[int, int] | None, present: tuple[int, int]) -> int:
    """How many acknowledged transactions the database lacks; 0 where the file is of another store, or missing."""
    return 0 if known is None or known[1] != present[1] else max(0, known[0] - present[0])


def write(path: str | os.PathLike[str], number: int, own: int, *, lower: bool = False) -> None:
    """Keep the number, on disk when this returns, unless the file has a higher one of the same store. OSError.

    `lower`: an older state was put in place on purpose."""
    import fcntl  # a lookup only reads

    where = file_of(path)
    new = not os.path.exists(where)
    descriptor = os.open(where, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        known = _unpacked(os.pread(descriptor, _FORMAT.size, 0))
        if lower or known is None or known[1] != own or known[0] < number:
            os.pwrite(descriptor, _packed(number, own), 0)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        os.chmod(where, 0o600)
        sync_folder(os.path.dirname(os.path.abspath(where)))


def forget(path: str | os.PathLike[str]) -> None:
    """Nothing is known any more of the store at that path."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file_of(path))


def sync_folder(folder: str) -> None:
    """The names in a folder are on disk when this returns. OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _packed(number: int, own: int) -> bytes:
    return _FORMAT.pack(number, own, _check(number, own))


def _unpacked(data: bytes) -> tuple[int, int] | None:
    if len(data) != _FORMAT.size:
        return None
    number, own, check = _FORMAT.unpack(data)
    return (number, own) if check == _check(number, own) else None


def _check(number: int, own: int) -> bytes:
    return hashed(struct.pack("<qq", number, own))
