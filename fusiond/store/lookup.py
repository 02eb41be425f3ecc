"""The answer to `fusiond best`: read in well under a millisecond, with nothing but the standard library.

What is answered, of all current records of that name (pairs are unordered) and cache:

1. Not those that an older version of their strategy found, once a newer version has seen a workload of that name.
2. Where a device was asked for, those of that device; of them the ones measured on a GPU, and only where there are none
   the ones emulated on the processor.
3. The family is that of the record found last; its sizes are the ones meant, but for those that were given. Without
   given sizes that record is the answer.
4. A record of the family with exactly these sizes, one found with today's driver and fusiond before a `stale` one, the
   last found first.
5. Otherwise the `nearest`: the one of the family whose sizes are fewest doublings away.

Every departure from what was asked for is a line in `notes`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3

from fusiond.errors import StoreError, UnknownName
from fusiond.store.format import SCHEMA_VERSION, artifact_path, check_header, explained, lookup_name, new_id, now

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the lookup
    from collections.abc import Iterator, Mapping
    from typing import Any

COMPARED_BYTES = 4_000_000
"""Source files up to this size are compared by content; larger ones by their date."""

RECHECK_AGAIN_SECS = 3600.0

_WAIT_SECS = 2.0

_COLUMNS = "SELECT r.*, w.strategy, w.strategy_version, w.name, w.sizes, w.family_key, e.env"
_CURRENT = """
    r.replaced_by IS NULL AND r.cache = :cache AND r.evidence = :evidence AND NOT EXISTS (
        SELECT 1 FROM workloads newer WHERE newer.lookup_name = w.lookup_name AND newer.strategy = w.strategy
        AND newer.strategy_version > w.strategy_version)
"""
# CROSS JOIN fixes the order of the tables: the planner has no statistics to choose it by.
_OF_NAME = f"""
    FROM records r CROSS JOIN workloads w USING (workload_key) LEFT JOIN envs e USING (env_key)
    WHERE r.lookup_name = :name AND {_CURRENT}
"""
_OF_FAMILY = f"""
    FROM workloads w CROSS JOIN records r USING (workload_key) LEFT JOIN envs e USING (env_key)
    WHERE w.family_key = :family AND {_CURRENT}
"""
_LAST_FIRST = "ORDER BY r.found_at DESC, r.id DESC"


def best(
    path: str | os.PathLike[str],
    *,
    name: str,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    driver: str | None,
    version: str,
    cache: str = "warm",
) -> dict[str, Any] | None:
    """The object of `best --json`, with `sizes_asked`, `checks`, `figures` and `notes`; None when nothing is known.

    `device` is a name (`cpu`, `cuda:0`; `cuda` for any of them), a model, a device_key, or None for any device.
    `driver` (None: unknown) and `version` are the driver and the fusiond of today. RequestError for a size that the
    workload does not have, StoreError for a file that cannot be read.
    """
    with _reading(path) as connection:
        if connection is None:
            return None
        today = {"driver": driver, "fusiond": version}
        scope: dict[str, object] = {"name": lookup_name(name), "cache": cache}
        on_device = _device_filter(connection, device, scope)
        last = _last_found(connection, on_device, scope)
        if last is None:
            return None
        asked = _sizes_asked(last, sizes or {}, name)
        found = _closest(connection, on_device, scope, last, asked, today) if sizes else last
        answer = _answer(os.fspath(path), found, asked, today, _newest_version(connection, found["strategy"]))
        others = 0 if sizes else _other_sizes(connection, found)
        if others:
            answer["notes"].append(f"the answer found last; {others} other sizes are known: --size picks one")
        return answer


def _other_sizes(connection: sqlite3.Connection, found: sqlite3.Row) -> int:
    """How many other workloads of the same family have an answer."""
    row = connection.execute(
        "SELECT count(DISTINCT w.workload_key) AS known FROM workloads w JOIN records r USING (workload_key) "
        "WHERE w.family_key = ? AND r.device_key = ? AND r.replaced_by IS NULL",
        [found["family_key"], found["device_key"]],
    ).fetchone()
    return int(row["known"]) - 1


def suggestions(path: str | os.PathLike[str]) -> list[str]:
    """The names that have an answer; StoreError for a file that cannot be read."""
    with _reading(path) as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT DISTINCT w.name FROM records r CROSS JOIN workloads w USING (workload_key) "
            "WHERE r.replaced_by IS NULL"
        )
        return sorted(row["name"] for row in rows)


def devices(path: str | os.PathLike[str]) -> list[str]:
    """What a device may be called: the names and models of those that have an answer, and their keys."""
    with _reading(path) as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT DISTINCT r.device_name AS name, d.model, r.device_key AS key "
            "FROM records r LEFT JOIN devices d USING (device_key)"
        )
        return sorted({each for row in rows for each in (row["name"], row["model"], row["key"]) if each})


def queue_recheck(path: str | os.PathLike[str], answer: Mapping[str, Any], *, cache: str = "warm") -> str | None:
    """Queue a `verify` job for an answer of `best`, and give its id.

    None when one is queued or running, or ended within the last hour (one that fails would be queued for ever), when
    the record came without a job, and when the file cannot be written just now: no answer waits for its check.
    """
    try:
        with contextlib.closing(_connect(path, "mode=rw", wait_secs=0.2)) as connection:
            if check_header(connection, os.fspath(path)) != SCHEMA_VERSION:
                return None
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            id = _insert_recheck(connection, answer["workload"]["key"], answer["device"]["key"], cache)
            connection.execute("COMMIT")
            return id
    except (sqlite3.Error, StoreError):
        return None


def text_key(data: bytes) -> str:
    """`fusiond.keys.text_key`, without what that module imports."""
    import hashlib  # 3 ms that an answer without source files need not wait for

    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- opening --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection | None]:
    """The file, read-only, as it is at this moment; None when it is missing or holds nothing yet."""
    where = os.fspath(path)
    if not os.path.exists(where):
        yield None
        return
    connection = None
    try:
        connection, version = _open(where)
        if 0 < version < SCHEMA_VERSION:
            raise StoreError(f"{where}: written by an older fusiond; `fusiond jobs` brings it up to date")
        connection.execute("BEGIN")
        yield connection if version else None
    except sqlite3.Error as problem:
        raise explained(where, problem) from problem
    finally:
        if connection is not None:
            connection.close()


def _open(where: str) -> tuple[sqlite3.Connection, int]:
    connection = _connect(where, "mode=ro", wait_secs=_WAIT_SECS)
    try:
        return connection, check_header(connection, where)
    except sqlite3.OperationalError:
        connection.close()
        # In a folder that we may not write, SQLite cannot make the files that go with a log; an empty log needs none.
        if os.access(os.path.dirname(os.path.abspath(where)), os.W_OK) or os.path.exists(f"{where}-wal"):
            raise
    connection = _connect(where, "immutable=1", wait_secs=_WAIT_SECS)
    try:
        return connection, check_header(connection, where)
    except BaseException:
        connection.close()
        raise


def _connect(path: str | os.PathLike[str], how: str, *, wait_secs: float) -> sqlite3.Connection:
    where = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(f"file://{where}?{how}", uri=True, timeout=wait_secs, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


# --- choosing -------------------------------------------------------------------------------------------


def _device_filter(connection: sqlite3.Connection, device: str | None, scope: dict[str, object]) -> str:
    """A condition on records, its parameters added to `scope`. A name means the hardware that has it now."""
    if device is None or device == "auto":
        return ""
    scope["device"] = device
    for query in (
        "SELECT device_key FROM boards WHERE name = :device OR name GLOB :device || ':*'",
        "SELECT device_key FROM devices WHERE model = :device OR device_key = :device",
    ):
        keys = {row["device_key"] for row in connection.execute(query, {"device": device})}
        if keys:
            scope |= {f"device{index}": key for index, key in enumerate(sorted(keys))}
            marks = ", ".join(f":device{index}" for index in range(len(keys)))
            return f"AND r.device_key IN ({marks})"
    return "AND r.device_name = :device"


def _last_found(connection: sqlite3.Connection, on_device: str, scope: dict[str, object]) -> sqlite3.Row | None:
    """The record found last, of the best evidence there is; `scope` keeps to that evidence from here on."""
    for evidence in ("measured", "emulated"):
        scope["evidence"] = evidence
        row: sqlite3.Row | None = connection.execute(
            f"{_COLUMNS} {_OF_NAME} {on_device} {_LAST_FIRST} LIMIT 1", scope
        ).fetchone()
        if row is not None:
            return row
    return None


def _sizes_asked(last: sqlite3.Row, given: Mapping[str, int], name: str) -> dict[str, int]:
    sizes: dict[str, int] = json.loads(last["sizes"])
    for size in given:
        if size not in sizes:
            raise UnknownName("size", size, sizes, where=name)
    return {**sizes, **given}


def _closest(
    connection: sqlite3.Connection,
    on_device: str,
    scope: dict[str, object],
    last: sqlite3.Row,
    asked: dict[str, int],
    today: Mapping[str, str | None],
) -> sqlite3.Row:
    """The record of the family that is right for these sizes, or nearest to them."""
    scope |= {"family": last["family_key"], "sizes": json.dumps(asked, sort_keys=True, separators=(",", ":"))}
    exact = f"{_COLUMNS} {_OF_FAMILY} AND w.sizes = :sizes {on_device} {_LAST_FIRST}"
    found: list[sqlite3.Row] = connection.execute(exact, scope).fetchall()
    if not found:
        known = [text for (text,) in connection.execute(f"SELECT DISTINCT w.sizes {_OF_FAMILY} {on_device}", scope)]
        away = {text: distance(json.loads(text), asked) for text in known}
        nearest = min(away.values())
        for text in known:
            if away[text] == nearest:
                found += connection.execute(exact, {**scope, "sizes": text})
        found.sort(key=lambda row: (row["found_at"], row["id"]), reverse=True)
    return min(found, key=lambda row: bool(_changes(row, today)))


def distance(sizes: Mapping[str, int], asked: Mapping[str, int]) -> float:
    """How many doublings two sets of sizes are apart, root of the sum of squares; sizes below 1 count as 1."""
    squares = 0.0
    for name, size in asked.items():
        squares += (math.log2(max(1, sizes.get(name, 1))) - math.log2(max(1, size))) ** 2
    return round(math.sqrt(squares), 9)  # what is equally far compares equal


def _changes(row: sqlite3.Row, today: Mapping[str, str | None]) -> list[str]:
    """What was another one when this record was found; what is unknown then or now is no change."""
    then = json.loads(row["env"] or "{}")
    return [name for name, value in today.items() if value and then.get(name) and then[name] != value]


def _newest_version(connection: sqlite3.Connection, strategy: str) -> int:
    query = "SELECT MAX(strategy_version) AS newest FROM workloads WHERE strategy = ?"
    return int(connection.execute(query, [strategy]).fetchone()["newest"])


# --- answering ------------------------------------------------------------------------------------------


def _answer(
    path: str, row: sqlite3.Row, asked: dict[str, int], today: Mapping[str, str | None], newest_version: int
) -> dict[str, Any]:
    sizes = json.loads(row["sizes"])
    changes = _changes(row, today)
    match = "nearest" if sizes != asked else "stale" if changes else "exact"
    return {
        "workload": {"strategy": row["strategy"], "name": row["name"], "key": row["workload_key"], "sizes": sizes},
        "device": {"name": row["device_name"], "key": row["device_key"]},
        "verdict": row["verdict"],
        "config": json.loads(row["config"]) if row["config"] is not None else None,
        "time_us": row["time_us"],
        "baseline": row["baseline"],
        "baseline_us": row["baseline_us"],
        "speedup": row["speedup"],
        "ci95": [row["ci_low"], row["ci_high"]] if row["ci_low"] is not None else None,
        "verified": bool(row["verified"]),
        "evidence": row["evidence"],
        "match": match,
        "trials": row["trials"],
        "source": artifact_path(os.path.abspath(path), row["source"]),
        "found_at": row["found_at"],
        "sizes_asked": asked,
        "checks": json.loads(row["checks"]),
        "figures": json.loads(row["figures"] or "{}"),
        "notes": [*_notes(row, sizes, asked, changes, today, newest_version), *_changed_sources(row)],
    }


def _notes(
    row: sqlite3.Row,
    sizes: dict[str, int],
    asked: dict[str, int],
    changes: list[str],
    today: Mapping[str, str | None],
    newest_version: int,
) -> Iterator[str]:
    if sizes != asked:
        differing = [name for name in asked if sizes.get(name) != asked[name]]
        measured = ", ".join(f"{name}={sizes.get(name)}" for name in differing)
        wanted = ", ".join(f"{name}={asked[name]}" for name in differing)
        yield f"measured at {measured}; nothing is known at {wanted}"
    then = json.loads(row["env"] or "{}")
    for name in changes:
        yield f"found with {name} {then[name]}; today it is {today[name]}"
    if row["strategy_version"] < newest_version:
        yield f"found by version {row['strategy_version']} of {row['strategy']}; there is a version {newest_version}"


def _changed_sources(row: sqlite3.Row) -> Iterator[str]:
    """A line for every source file that is another one now; one that cannot be read is no statement."""
    for file, digest in json.loads(row["source_hashes"] or "{}").items():
        try:
            if os.path.getsize(file) > COMPARED_BYTES:
                date = now(at=os.path.getmtime(file))
                if date > row["found_at"]:
                    yield f"source may have changed: {file} (too large to compare here) is younger than this answer"
                continue
            with open(file, "rb") as stream:
                data = stream.read()
        except FileNotFoundError:
            yield f"source is gone: {file}"
            continue
        except OSError as problem:
            yield f"source cannot be compared: {file}: {problem.strerror}"
            continue
        # Texts were hashed with their line ends as Python reads them.
        if digest not in (text_key(data), text_key(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))):
            yield f"source changed: {file}"


# --- checking again -------------------------------------------------------------------------------------


def _insert_recheck(connection: sqlite3.Connection, workload_key: str, device_key: str, cache: str) -> str | None:
    """Inside a transaction: the job that found a record once more, as `verify`, on the device of the record."""
    record = connection.execute(
        "SELECT r.device_name, j.job, j.search FROM records r JOIN jobs j ON j.id = r.job_id "
        "WHERE r.workload_key = ? AND r.device_key = ? AND r.cache = ? AND r.replaced_by IS NULL",
        [workload_key, device_key, cache],
    ).fetchone()
    if record is None:
        return None
    board = connection.execute(
        "SELECT name FROM boards WHERE device_key = ? AND name <> '' ORDER BY seen_at DESC", [device_key]
    ).fetchone()
    device = board["name"] if board else record["device_name"]
    another = connection.execute(
        "SELECT 1 FROM jobs WHERE kind = 'verify' AND workload_key = ? AND device = ? "
        "AND (state IN ('queued', 'running') OR ended_at > ?)",
        [workload_key, device, now(ago_secs=RECHECK_AGAIN_SECS)],
    ).fetchone()
    if another is not None:
        return None
    id = new_id()
    job = json.dumps({**json.loads(record["job"]), "device": device}, sort_keys=True, separators=(",", ":"))
    connection.execute(
        "INSERT INTO jobs (id, kind, workload_key, device, state, priority, cancel_requested, search, created_at, job) "
        "VALUES (?, 'verify', ?, ?, 'queued', 1, 0, ?, ?, ?)",
        [id, workload_key, device, record["search"], now(), job],
    )
    return id
