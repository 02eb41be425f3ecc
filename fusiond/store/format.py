"""The format of the file, for its writers and for the read-only look-up. Standard library only.

The numbers in the SQLite header say what a file is before any table is looked at: `application_id` that it is ours,
`user_version` how many migrations it has seen.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time

from fusiond.model.errors import StoreError, StoreUnavailable

APPLICATION_ID = 0x66757364  #: `fusd`, in the header of every file that fusiond wrote

SCHEMA_VERSION = 6  #: How many migrations this fusiond knows (migrations.py); a test holds the two together

BUSY_SECS = 10.0  #: How long a writer waits for another process's transaction

ARTIFACT = "artifact:"
"""Before a path inside the artifacts, as it is stored: the file and its folder may be moved together."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Changed = TypeVar("Changed")

_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


def decoded(text: str | None, otherwise: Any = None) -> Any:
    """What a column's JSON stands for: the one place where the store decodes. `otherwise`: where it is NULL or empty.

    ValueError for what is not JSON; `encoding` makes nouns of it."""
    return json.loads(text) if text else otherwise


def check_header(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of an open file; 0 for one that holds nothing yet.

    StoreError for a file of something else, and for one that a newer fusiond wrote."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        if application == 0 and version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return 0
        raise StoreError(f"{path}: this is a SQLite file, but not one of fusiond's")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written by a newer fusiond (schema {version}; this one knows {SCHEMA_VERSION}); upgrade fusiond"
        )
    return int(version)


def persist(change: Callable[[], Changed]) -> Changed:
    """What a change of the journal comes to. SQLite does not wait for others there, so two that make a file at once
    need this loop."""
    give_up_at = time.monotonic() + BUSY_SECS
    while True:
        try:
            return change()
        except sqlite3.OperationalError as problem:
            busy = (problem.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)


def explained(path: str, problem: sqlite3.Error) -> StoreError:
    """What went wrong with the file, as a sentence that says what to do."""
    if os.path.isdir(path):
        return StoreError(f"{path}: is a folder; name a file with --db or FUSIOND_DB")
    code = (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return disk_full(path)
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnavailable(f"{path}: another process has kept it locked for {BUSY_SECS:g} s; try again later")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return corrupt(path, problem)
    folder = os.path.dirname(os.path.abspath(path))
    if code == sqlite3.SQLITE_CANTOPEN and os.access(path, os.R_OK | os.W_OK) and os.access(folder, os.W_OK | os.X_OK):
        return StoreUnavailable(f"{path}: the system does not open it just now; are the file descriptors used up?")
    if code in (sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(f"{path}: cannot be used just now ({problem})")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(f"{path}: cannot be opened or written ({problem}); check the permissions of file and folder")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(
            f"{path}: the system failed to read or write it ({problem}); is the disk full or failing?"
        )
    if code == sqlite3.SQLITE_CONSTRAINT and "damaged row" in str(problem):
        return StoreError(f"{path}: {problem}, so it was not changed; `fusiond store check` names it")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return StoreError(f"{path}: recorded already, or about something that is not stored ({problem})")
    return StoreError(f"{path}: {problem}")


def corrupt(path: str, problem: Exception) -> StoreError:
    """A file that SQLite cannot read."""
    return StoreError(
        f"{path}: no SQLite file, or a damaged one ({problem}); `fusiond store check` says how to go on, or move it "
        "away to begin afresh"
    )


def disk_full(path: str) -> StoreUnavailable:
    return StoreUnavailable(f"{path}: the disk is full; free some space, or name another file with --db or FUSIOND_DB")


def artifacts_folder(path: str) -> str:
    """The folder of a store's artifacts: `fusiond.sqlite` -> `fusiond.artifacts`."""
    return os.path.splitext(path)[0] + ".artifacts"


def exchange_file(path: str) -> str:
    """The file of what other boxes found: `fusiond.sqlite` -> `fusiond.exchange.sqlite`."""
    stem, suffix = os.path.splitext(os.path.abspath(path))
    return f"{stem}.exchange{suffix or '.sqlite'}"


def artifact_path(path: str, stored: str | None) -> str | None:
    """A stored path as one that can be opened."""
    if stored is None or not stored.startswith(ARTIFACT):
        return stored
    return os.path.join(artifacts_folder(path), stored[len(ARTIFACT) :])


def lookup_name(name: str) -> str:
    """A workload's name as it is compared: pairs are unordered, blanks do not count."""
    return ",".join(sorted(part.strip() for part in name.split(",")))


def now(*, at: float | None = None, ago_secs: float = 0.0) -> str:
    """UTC, ISO 8601, to the millisecond: of this moment, of the Unix time `at`, or of some time ago."""
    seconds = (time.time() if at is None else at) - ago_secs
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}+00:00"


def new_id() -> str:
    """Eight letters and digits that nobody confuses: 40 random bits."""
    return "".join(_ID_LETTERS[byte & 31] for byte in os.urandom(8))
