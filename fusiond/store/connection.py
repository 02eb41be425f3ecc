"""The two connections that all nouns share, and the one place where SQLite's errors become ours.

One connection writes and one reads, each behind a lock of its own. A Store can therefore be used from any thread; a
reader (the daemon's event loop) never waits for a writer, in this process or in another one.

Nothing is acknowledged, and nothing read, unless the open file is the one at the path.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.store import last_commit, tables
from fusiond.store.file_permissions import make_private, tighten_store
from fusiond.store.format import BUSY_SECS, SCHEMA_VERSION, check_header, corrupt, explained, now, persist
from fusiond.store.identity import demand, identity, log_of
from fusiond.store.tables import Damage

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

log = logging.getLogger(__name__)

Row: TypeAlias = Mapping[str, Any]  #: A row as column -> value; it goes no further than the module that asked for it


class Connected:
    """What every noun of the store is built on. Any method of any noun may raise StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._told: set[str] = set()  #: What was said about damage: once is enough
        self._claimed: set[str] = set()  #: The jobs that were claimed here and not given back yet
        self._attach()

    def close(self) -> None:
        """Close both connections; whatever is called afterwards raises StoreError."""
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()

    @functools.cached_property
    def _database(self) -> Database:
        """What writes. A command that only reads goes without sqlite_utils, which takes longer to load (with all of
        NumPy) than a list of answers takes to read."""
        import sqlite_utils

        return sqlite_utils.Database(self._writer, execute_plugins=False, recursive_triggers=False)

    def check_identity(self) -> None:
        """StoreUnavailable when the file that is open, or its log, is not at its path any more."""
        demand(self.path, self._identity)
        if log_of(self.path) != self._log:
            raise StoreUnavailable(
                f"{self.path}: its log (-wal, -shm) was deleted or replaced while it was open; nothing more is written "
                "until the store is opened again"
            )

    def _attach(self) -> None:
        """Connect to the file that is at the path now, and bring it up to date."""
        known = last_commit.read(self.path)
        with contextlib.ExitStack() as opened, translated(self.path):
            writer = opened.enter_context(contextlib.closing(connect(self.path)))
            opened_file = identity(self.path)
            _prepare(writer, str(self.path))
            tighten_store(self.path)
            reader = opened.enter_context(contextlib.closing(connect(self.path)))
            reader.execute("PRAGMA query_only = ON")
            reader.row_factory = sqlite3.Row
            if opened_file is None or identity(self.path) != opened_file:
                raise StoreUnavailable(f"{self.path}: another file took its place while it was opened; try again")
            self._identity = opened_file
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # now there is a log
            self._log = log_of(self.path)
            self._writer, self._reader = writer, reader
            self.__dict__.pop("_database", None)
            if check_header(writer, str(self.path)) < SCHEMA_VERSION:
                from fusiond.store.migrations import migrate  # what an up-to-date file does without

                with self._transaction() as database:  # again, now that nobody else can write
                    if check_header(database.conn, str(self.path)) < SCHEMA_VERSION:
                        migrate(database)
            self._look_for_losses(known)
            opened.pop_all()

    def _look_for_losses(self, known: tuple[int, int] | None) -> None:
        """Write down when acknowledged transactions are missing: from the next one on, nothing else would tell."""
        present = last_commit.commits(self._reader)
        lost = last_commit.missing(known, present)
        if lost and known is not None:
            log.warning(
                "%s: the last %d acknowledged changes are missing: its log was damaged, or an older copy took its "
                "place; `fusiond store check` says what to do",
                self.path,
                lost,
            )
            with self._transaction() as database:
                database.execute("INSERT INTO losses VALUES (?, ?, ?)", [now(), known[0], present[0]])
                database.execute("UPDATE sums SET rows = ? WHERE name = 'commits'", [known[0]])
        elif known is None or known[1] != present[1]:
            self._acknowledge(*present)

    def _acknowledge(self, number: int, own: int) -> None:
        """Keep the number of a transaction that is on disk. That it cannot be kept is not a reason to call what was
        written lost."""
        try:
            last_commit.write(self.path, number, own)
        except OSError as problem:
            self._tell(f"{last_commit.file_of(self.path)} cannot be written ({problem.strerror}): a log that is cut "
                       "short would go unnoticed")  # fmt: skip

    # --- writing ---

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Several writes, one commit: what is written inside is on disk when the block has ended, or not at all."""
        with self._transaction():
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Database]:
        """All or nothing; on disk when the block has ended. Inside another one of this thread it is a part of that."""
        with self._write_lock, translated(self.path):
            if self._database.conn.in_transaction:
                with self._database.atomic():
                    yield self._database
                return
            self._database.execute("SELECT 1")  # a closed store says so
            self.check_identity()
            self._database.execute("BEGIN IMMEDIATE")  # two that read before they write would deadlock
            before = self._database.conn.total_changes
            try:
                yield self._database
                written = None
                if self._database.conn.total_changes != before:
                    written = last_commit.count(self._database.conn)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.conn.in_transaction:  # a full disk has rolled back already
                    self._database.execute("ROLLBACK")
                raise
            self.check_identity()  # what went into a file that nobody finds again is not acknowledged
            if written is not None:
                self._acknowledge(*written)

    # --- reading ---

    @contextlib.contextmanager
    def _moment(self) -> Iterator[None]:
        """Several reads of one state of the file; inside another one it is a part of that."""
        with self._read_lock, translated(self.path):
            if self._reader.in_transaction:
                yield
                return
            self._reader.execute("BEGIN")
            try:
                yield
                self.check_identity()
            finally:
                self._reader.execute("ROLLBACK")

    def _rows(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Row]:
        """Everything that a SELECT finds; what an open transaction of this process wrote is not seen."""
        with self._read_lock, translated(self.path):
            found: list[Row] = [dict(row) for row in self._reader.execute(sql, parameters)]
            self.check_identity()
            return found

    def _row(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> Row | None:
        rows = self._rows(sql, parameters)
        return rows[0] if rows else None

    def _sealed(
        self,
        tail: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        skip: bool = False,
        expected: int | None = None,
        wanted: Mapping[str, object] | None = None,
        connection: sqlite3.Connection | None = None,
        **parts: str,
    ) -> list[tuple[Any, ...]]:
        """What `SELECT ... tail` finds, each row compared with its digest: a mapping for each table of `parts`
        (alias=table), None where an outer join found nothing.

        StoreError for a damaged row; with `skip` it is left out, and said so in the log. `expected`: how many rows
        there have to be, damaged or not. `wanted`: values that each row of the first table has. `connection`: that of
        a transaction which is open."""
        with self._read_lock if connection is None else contextlib.nullcontext(), translated(self.path):
            rows = list(tables.rows(connection or self._reader, tail, parameters, **parts))
            self.check_identity()
        table = next(iter(parts.values()))
        if wanted:
            rows = [(tables.wanted(table, row[0], **wanted), *row[1:]) for row in rows]
        if expected is not None and len(rows) != expected:
            text = f"{self.path}: rows of {table} have vanished; `fusiond store check` says how to go on"
            if not skip:
                raise StoreError(text)
            self._tell(text)
        found = []
        for row in rows:
            damage = next((part for part in row if isinstance(part, Damage)), None)
            if damage is None:
                found.append(row)
            elif not skip:
                raise StoreError(damage.sentence(self.path))
            else:
                self._tell(damage.sentence(self.path))
        return found

    def _same(self, first: str, second: str, parameters: Sequence[object] | Mapping[str, object]) -> list[Any]:
        """The first column of a query that takes two ways through the file. StoreError where they differ: a damaged
        index hides rows."""
        with self._moment():
            found = tables.same(self._reader, first, second, parameters)
        if found is None:
            raise StoreError(
                f"{self.path}: an index is damaged and hides rows; `fusiond store check` says how to go on"
            )
        return found

    def _sealed_of(
        self, table: str, ways: tuple[str, str], *, order: str = "rowid", skip: bool = False, **key: object
    ) -> list[Row]:
        """The rows of a table that have these values, in the order of a column, looked for in two ways (`INDEXED BY
        name`, `NOT INDEXED`). StoreError: see `_sealed` and `_same`."""
        where = " AND ".join(f"{name} = :{name}" for name in key)
        first, second = (f"SELECT rowid FROM {table} {way} WHERE {where}" for way in ways)
        with self._moment():
            count = len(self._same(first, second, key))
            tail = f"FROM {table} t WHERE {where} ORDER BY {order}"
            return [row for (row,) in self._sealed(tail, key, skip=skip, expected=count, wanted=key, t=table)]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time."""
    make_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECS, isolation_level=None, check_same_thread=False)
    tables.register(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged outlives a power cut
    connection.execute("PRAGMA trusted_schema = ON")  # the triggers call our digest
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
    except UnicodeDecodeError as problem:  # of SQLite's own words about a damaged schema, for example
        raise corrupt(os.fspath(path), problem) from problem
    except UnicodeEncodeError as problem:
        raise StoreError(f"{path}: a text that is not Unicode cannot be stored ({problem.reason})") from problem


def _prepare(writer: sqlite3.Connection, path: str) -> None:
    """Look at the header before anything is changed, then turn write-ahead logging on."""

    def turn_on() -> str:
        if check_header(writer, path) == 0:
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that `prune` can give pages back
        (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
        return str(mode)

    mode = persist(turn_on)
    if mode != "wal":
        raise StoreError(f"{path}: this file system does not take a write-ahead log (journal mode {mode!r})")
