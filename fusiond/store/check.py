"""Checks a store by reading and comparing everything, and continues without what is lost."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.model.errors import StoreError
from fusiond.store import last_commit, names, tables
from fusiond.store.connection import Connected, connect, translated
from fusiond.store.document import is_intact
from fusiond.store.format import ARTIFACT, artifacts_folder
from fusiond.store.tables import COLUMNS, Damage

_RESTORE = "restore a backup (`fusiond store restore FILE`)"
_FORGET = "`fusiond store check --forget` goes on without it"
_MEANING = {
    "records": "an answer or a former one; what asks for it finds nothing until the workload is tuned again",
    "trials": "a trial; its job does not go on, and `explain` leaves it out",
    "measurements": "the samples of a trial or of the finals; its job does not go on",
    "jobs": "a job; it is neither listed nor run",
    "workloads": "what is known about a workload; its answers are not served, its jobs not listed",
    "programs": "a program; its answer cannot be exported or measured again",
    "devices": "what is known about a device; no answer is served until it is gone",
    "envs": "an environment; no answer is served until it is gone",
    "boards": "a device's name; no answer is served for a device until it is gone",
    "strategies": "what the plugins said; the next `fusiond run` or `serve` writes it anew",
    "catalogue": "what the plugins said; the next `fusiond run` or `serve` writes it anew",
    "probes": "a probe; it is measured again",
    "drawings": "pictures of an answer, which nothing shows any more",
    "profiles": "what a program asks of a GPU; `explain --count` counts it anew",
    "calibrations": "what `calibrate` found; the defaults hold until it is run again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not what was written."""

    where: str  #: A table and a row, a file, or a part of the file
    problem: str  #: What is wrong, and what that means
    remedy: str


def check(path: Path, *, artifacts: Path | None = None) -> list[Finding]:
    """All that is wrong with a store; empty for one that is in order. StoreError when it cannot be read at all.
    `artifacts`: the folder that has them, if not the one beside it."""
    known = last_commit.read(path)
    with translated(path), closing(connect(path)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        return [
            *_structure(connection),
            *_rows(connection),
            *_losses(connection, known),
            *_artifacts(connection, artifacts or Path(artifacts_folder(str(path)))),
        ]


def _structure(connection: sqlite3.Connection) -> Iterator[Finding]:
    try:
        lines = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
        broken = connection.execute("PRAGMA foreign_key_check").fetchmany(20)
    except sqlite3.DatabaseError as problem:
        yield Finding(where="file", problem=f"SQLite cannot read it: {problem}", remedy=_RESTORE)
        return
    for line in lines:
        if line != "ok":
            first = " ".join(str(line).split())
            yield Finding(
                where="file", problem=f"SQLite's own check: {first[:200]}", remedy=f"{_RESTORE}, or {_FORGET}"
            )
    for table, row, parent, _ in broken:
        yield Finding(
            where=f"{table} {row}",
            problem=f"refers to a row of {parent} that is gone",
            remedy=f"{_RESTORE}, or {_FORGET}",
        )


def _rows(connection: sqlite3.Connection) -> Iterator[Finding]:
    sums = {name: (rows, total) for name, rows, total in connection.execute("SELECT name, rows, total FROM sums")}
    for table in COLUMNS:
        total = count = 0
        try:
            for row, *_ in _each(connection, table):
                count += 1
                if isinstance(row, Damage):
                    meaning = _MEANING.get(table, "a part of a job's history")
                    yield Finding(
                        where=f"{table} {row.row}",
                        problem=f"is damaged: it was {meaning}",
                        remedy=f"{_RESTORE}, or {_FORGET}",
                    )
                total = tables.mixed(total, None, row.seal if isinstance(row, Damage) else _seal(table, row))
        except sqlite3.DatabaseError as problem:
            yield Finding(where=table, problem=f"cannot be read to its end: {problem}", remedy=_RESTORE)
            continue
        if sums.get(table) != (count, total):
            said = sums.get(table, ("no", 0))[0]
            yield Finding(
                where=table,
                problem=f"{count} rows are there, {said} were written, or another one than was written is among them",
                remedy=f"{_RESTORE}, or {_FORGET}",
            )


def _each(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a table a few hundred at a time: a store may be larger than the memory."""
    last = -(1 << 62)
    while True:
        tail = f"FROM {table} t NOT INDEXED WHERE t.rowid > ? ORDER BY t.rowid LIMIT 500"
        ids = [row[0] for row in tables.fetched(connection, f"SELECT t.rowid {tail}", [last])]
        if not ids:
            return
        yield from tables.rows(connection, tail, [last], t=table)
        last = ids[-1]


def _seal(table: str, row: dict[str, Any]) -> bytes:
    return tables.digest(table, *row.values())


def _losses(connection: sqlite3.Connection, known: tuple[int, int] | None) -> Iterator[Finding]:
    """The transactions are numbered without a gap; the highest acknowledged one is kept outside."""
    lost = last_commit.missing(known, last_commit.commits(connection))
    if lost:
        yield _loss(lost, "now")
    for found_at, number, present in connection.execute("SELECT found_at, acknowledged, present FROM losses"):
        yield _loss(number - present, found_at)


def _loss(lost: int, found_at: str) -> Finding:
    return Finding(
        where="log",
        problem=f"{lost} acknowledged changes are missing (found {found_at}): the log was damaged and SQLite cut it "
        "short, or an older copy took the store's place; trials among them are measured again",
        remedy=f"{_RESTORE} if it has more; `fusiond store check --forget` takes the store as it is",
    )


def _artifacts(connection: sqlite3.Connection, folder: Path) -> Iterator[Finding]:
    used = {
        row[0][len(ARTIFACT) :]
        for row in tables.fetched(connection, "SELECT source FROM records WHERE replaced_by IS NULL")
        if isinstance(row[0], str) and row[0].startswith(ARTIFACT)
    }
    for name, size in tables.fetched(connection, "SELECT path, bytes FROM artifacts"):
        file = os.path.join(folder, str(name))
        try:
            wrong = "" if os.path.getsize(file) == size and is_intact(file) else "is not what was written"
        except OSError as problem:
            wrong = f"cannot be read ({problem.strerror})"
        if wrong:
            meaning = (
                "the source of an answer, which its program holds, too" if name in used else "of no answer of today"
            )
            yield Finding(
                where=file,
                problem=f"{wrong}; it is {meaning}",
                remedy=f"{_RESTORE}, or `fusiond best --export DIR`, which takes the source from the program",
            )


# --- going on ---


def forget(store: Connected) -> int:
    """Go on without what is lost: remove the damaged rows and what hangs on them, count what is there anew, take the
    last change that is there for the last one. How many rows went.

    StoreError when the file cannot be mended so; nothing is changed then."""
    gone = 0
    with store._transaction() as database:
        connection = database.conn
        connection.execute("PRAGMA defer_foreign_keys = ON")
        for table in COLUMNS:
            columns = ", ".join(f"t.{name}" for name in (*COLUMNS[table], "digest"))
            damaged = [
                rowid
                for rowid, *values, seal in tables.fetched(connection, f"SELECT t.rowid, {columns} FROM {table} t")
                if not isinstance(tables.checked(table, values, seal), dict)
            ]
            for rowid in damaged:
                gone += connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [rowid]).rowcount
        gone += _orphans(connection)
        connection.execute("REINDEX")
        connection.execute(
            "INSERT OR IGNORE INTO tallies (job_id, candidates, best_ratio) SELECT j.id, count(t.id), max(t.ratio) "
            "FROM jobs j LEFT JOIN trials t ON t.job_id = j.id AND t.role = 'candidate' GROUP BY j.id"
        )
        connection.execute("DELETE FROM names")
        for (name,) in connection.execute(names.OF_RECORDS).fetchall():
            names.add(database, name)
        for table in COLUMNS:
            total = 0
            digests = connection.execute(f"SELECT digest FROM {table}").fetchall()
            for (seal,) in digests:
                total = tables.mixed(total, None, seal)
            connection.execute("UPDATE sums SET rows = ?, total = ? WHERE name = ?", [len(digests), total, table])
        connection.execute("DELETE FROM losses")
        wrong = [row[0] for row in connection.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
        if wrong:
            raise StoreError(f"{store.path}: more than rows is damaged ({wrong[0]}); {_RESTORE}")
    return gone


def _orphans(connection: sqlite3.Connection) -> int:
    """Remove what refers to a row that is gone, and what refers to that."""
    gone = 0
    while True:
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
        if not broken:
            return gone
        for table, rowid, parent, _ in broken:
            if (table, parent) == ("records", "records"):  # the one that replaced it is gone: history, none the less
                connection.execute("UPDATE records SET replaced_by = id WHERE rowid = ?", [rowid])
            elif (table, parent) == ("jobs", "jobs"):
                connection.execute("UPDATE jobs SET parent_id = NULL WHERE rowid = ?", [rowid])
            elif (table, parent) == ("records", "jobs"):  # an answer stands without the job that found it
                connection.execute("UPDATE records SET job_id = NULL WHERE rowid = ?", [rowid])
            elif rowid is not None:
                gone += connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [rowid]).rowcount
