"""A stale answer is served at once; this queues the job that measures it again. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3

from fusiond.model.errors import StoreError
from fusiond.store import last_commit, tables
from fusiond.store.format import SCHEMA_VERSION, check_header, decoded, new_id, now
from fusiond.store.reading import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

AGAIN_SECS = 3600.0


def queue_recheck(path: str | os.PathLike[str], answer: Mapping[str, Any]) -> str | None:
    """Queue a `verify` job for an answer of `best`, and give its id.

    None when one is queued or running, or ended within the last hour (one that fails would be queued for ever), when
    the record came without a job, and when the file cannot be written just now: no answer waits for its check. None
    also where measuring again would not help: another version of the strategy found it, or its sources have changed."""
    if set(answer["changed"]) - {"driver", "fusiond"}:
        return None
    try:
        with contextlib.closing(connect(path, "mode=rw", wait_secs=0.2)) as connection:
            if check_header(connection, os.fspath(path)) != SCHEMA_VERSION:
                return None
            tables.register(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA trusted_schema = ON")
            connection.execute("BEGIN IMMEDIATE")
            id = _insert(connection, answer["workload"]["key"], answer["device"]["key"], answer["cache"])
            if id is None:
                connection.execute("ROLLBACK")
                return None
            written = last_commit.count(connection)
            connection.execute("COMMIT")
        last_commit.write(path, *written)
        return id
    except (sqlite3.Error, StoreError, OSError):
        return None


def _insert(connection: sqlite3.Connection, workload_key: str, device_key: str, cache: str) -> str | None:
    """Inside a transaction: the job that found a record once more, as `verify`, on the device of the record."""
    found = tables.rows(
        connection,
        "FROM records r JOIN jobs j ON j.id = r.job_id "
        "WHERE r.workload_key = ? AND r.device_key = ? AND r.cache = ? AND r.replaced_by IS NULL",
        [workload_key, device_key, cache],
        r="records",
        j="jobs",
    )
    record, first = next(iter(found), (None, None))
    if not isinstance(record, dict) or not isinstance(first, dict):  # none, or damaged
        return None
    names = [
        board["name"] if isinstance(board, dict) else None
        for (board,) in tables.rows(
            connection,
            "FROM boards b WHERE device_key = ? AND name <> '' ORDER BY seen_at DESC",
            [device_key],
            b="boards",
        )
    ]
    if None in names:  # a damaged one
        return None
    device = names[0] if names else record["device_name"]
    another = connection.execute(
        "SELECT 1 FROM jobs WHERE kind = 'verify' AND workload_key = ? AND device = ? AND search = ? "
        "AND (state IN ('queued', 'running', 'waiting') OR ended_at > ?)",
        [workload_key, device, first["search"], now(ago_secs=AGAIN_SECS)],
    ).fetchone()
    if another is not None:
        return None
    id = new_id()
    job = json.dumps({**decoded(first["job"]), "device": device}, sort_keys=True, separators=(",", ":"))
    connection.execute(
        "INSERT INTO jobs (id, kind, workload_key, device, state, priority, cancel_requested, search, created_at, job) "
        "VALUES (?, 'verify', ?, ?, 'queued', 1, 0, ?, ?, ?)",
        [id, workload_key, device, first["search"], now(), job],
    )
    return id
