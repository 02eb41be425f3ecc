"""Which old jobs may go: all but those that an answer, its history or an open job needs.

Of a job that ended before a date:
    no record, former ones included, is from it    all of it goes, its trials too
    a record is from it                            its row, its trials and finals stay; the samples of its search, its
                                                   asks and what its candidates were emitted as go
Programs go when nothing refers to them any more that is kept.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.store.connection import Connected

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

_ENDED = "j.state IN ('done', 'failed', 'cancelled') AND j.ended_at < :before"
_NEEDED = (
    "EXISTS (SELECT 1 FROM records r WHERE r.job_id = j.id) "
    "OR EXISTS (SELECT 1 FROM jobs part WHERE part.parent_id = j.id) "
    # It says what the workload is, once the plugins are asked.
    "OR EXISTS (SELECT 1 FROM workloads w WHERE w.workload_key = j.workload_key AND w.content_key IS NULL)"
)
_AT_ONCE = 500
_PAGES = 1000  #: Given back in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How much went."""

    jobs: int
    trials: int
    samples: int  #: Measurements of trials that stay
    programs: int
    bytes: int  #: By which the file shrank


def remove_old(store: Connected, before: str) -> Removed:
    """Remove what ended before a time of day (UTC, ISO 8601) and nothing needs; a transaction a job, so that no other
    process waits. A job with a damaged row stays as it is, and is said so in the log."""
    size = store.path.stat().st_size
    with store._write_lock:
        # What hangs on a row goes before it; SQLite would look for it in whole tables, once for each row.
        store._database.execute("PRAGMA foreign_keys = OFF")
        try:
            jobs, trials, samples = _remove_jobs(store, before)
            programs = _remove_programs(store, before)
        finally:
            store._database.execute("PRAGMA foreign_keys = ON")
        _shrink(store)
    return Removed(
        jobs=jobs, trials=trials, samples=samples, programs=programs, bytes=max(0, size - store.path.stat().st_size)
    )


def _remove_jobs(store: Connected, before: str) -> tuple[int, int, int]:
    """How many jobs went, trials of theirs, and samples of others."""
    jobs = trials = samples = 0
    found = store._rows(f"SELECT j.id FROM jobs j WHERE {_ENDED} ORDER BY j.number DESC", {"before": before})
    for row in found:  # the newest first: a part goes before its parent
        try:
            with store._transaction() as database:
                if database.execute(f"SELECT {_NEEDED} FROM jobs j WHERE j.id = ?", [row["id"]]).fetchone()[0]:
                    samples += _thin(database, row["id"])
                else:
                    trials += _remove(database, row["id"])
                    jobs += 1
        except StoreUnavailable:
            raise
        except StoreError as problem:
            store._tell(f"the job {row['id']} is kept: {problem}")
    return jobs, trials, samples


def _remove(database: Database, job: str) -> int:
    """All of a job; how many trials it had."""
    measured = "SELECT measurement_id FROM {} WHERE job_id = :job AND measurement_id IS NOT NULL"
    database.execute(
        f"DELETE FROM measurements WHERE id IN ({measured.format('trials')} UNION ALL {measured.format('finals')})",
        {"job": job},
    )
    trials = int(database.execute("SELECT count(*) FROM trials WHERE job_id = ?", [job]).fetchone()[0])
    for table in ("trials", "finals", "finals_lost", "asks", "emitted", "rejections", "tallies"):
        database.execute(f"DELETE FROM {table} WHERE job_id = ?", [job])
    database.execute("DELETE FROM jobs WHERE id = ?", [job])
    return trials


def _thin(database: Database, job: str) -> int:
    """What explains an answer stays; how many samples went."""
    rows = database.execute("SELECT measurement_id FROM trials WHERE job_id = ? AND measurement_id NOT NULL", [job])
    ids = [id for (id,) in rows.fetchall()]
    database.execute("UPDATE trials SET measurement_id = NULL WHERE job_id = ? AND measurement_id NOT NULL", [job])
    for start in range(0, len(ids), _AT_ONCE):
        chunk = ids[start : start + _AT_ONCE]
        database.execute(f"DELETE FROM measurements WHERE id IN ({', '.join('?' * len(chunk))})", chunk)
    for table in ("asks", "emitted"):
        database.execute(f"DELETE FROM {table} WHERE job_id = ?", [job])
    return len(ids)


def _remove_programs(store: Connected, before: str) -> int:
    """Those that no record has, no job was emitted as, and no trial with its samples measured."""
    needed = (
        "SELECT program_key FROM records UNION SELECT baseline_program_key FROM records "
        "UNION SELECT program_key FROM emitted UNION SELECT program_key FROM finals "
        "UNION SELECT program_key FROM trials WHERE measurement_id NOT NULL "
        "UNION SELECT against FROM trials WHERE measurement_id NOT NULL"
    )
    removed = 0
    looked_at: int | None = None
    while True:
        with store._transaction() as database:
            (version,) = database.execute("PRAGMA data_version").fetchone()
            if version != looked_at:  # another process has written since: it may need a program again
                looked_at = version
                database.execute("DROP TABLE IF EXISTS temp.unneeded")
                database.execute(
                    "CREATE TEMP TABLE unneeded AS SELECT program_key FROM programs WHERE saved_at < ? "
                    f"EXCEPT SELECT * FROM ({needed})",
                    [before],
                )
            some = f"SELECT program_key FROM temp.unneeded ORDER BY rowid LIMIT {_AT_ONCE}"
            gone = database.execute(f"DELETE FROM programs WHERE program_key IN ({some})").rowcount
            rows = f"SELECT rowid FROM temp.unneeded ORDER BY rowid LIMIT {_AT_ONCE}"
            database.execute(f"DELETE FROM temp.unneeded WHERE rowid IN ({rows})")
            if not gone:
                database.execute("DROP TABLE temp.unneeded")
                database.execute("DELETE FROM profiles WHERE program_key NOT IN (SELECT program_key FROM programs)")
                return removed
        removed += gone


def _shrink(store: Connected) -> None:
    """Give free pages back to the file system. A file of an earlier version learns to by being written anew, once."""
    with store._write_lock:
        connection = store._database.conn
        try:
            if connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2:
                free = connection.execute("PRAGMA freelist_count").fetchone()[0]
                while free:  # some at a time: between two steps whoever writes may write
                    connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")  # `execute` gives one page back
                    left = connection.execute("PRAGMA freelist_count").fetchone()[0]
                    if left >= free:
                        break
                    free = left
            else:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as problem:  # somebody reads or writes: the pages are used again, or next time
            store._tell(f"{store.path}: does not shrink now: {problem}")
