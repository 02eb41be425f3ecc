"""The tables by their columns, and the digest that every row carries. Standard library only.

A row's digest is of all its other columns, ids and states included. Triggers write it (`migrations.py`), so no
statement that changes a row can forget it. Every reader compares it: a flipped bit is an error and never a value.
"""

from __future__ import annotations

import sqlite3

from fusiond.store.hashing import hashed

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

COLUMNS: Mapping[str, tuple[str, ...]] = {
    table: tuple(columns.split())
    for table, columns in {
        "devices": "device_key model arch memory_bytes mig evidence limits",
        "envs": "env_key env first_seen_at",
        "boards": "device_key uuid name env_key sick seen_at",
        "workloads": (
            "workload_key family_key strategy strategy_version name lookup_name members sizes source_hashes created_at "
            "content_key content_family_key"
        ),
        "jobs": (
            "number id kind workload_key device device_key state priority parent_id owner cancel_requested problem "
            "search space_hash created_at started_at ended_at job wall_secs device_secs finish_requested finding "
            "waiting_for retry_at retries"
        ),
        "tallies": "job_id candidates best_ratio",
        "programs": "program_key plan saved_at",
        "artifacts": "path bytes saved_at",
        "asks": "job_id sequence config_key config origin",
        "measurements": (
            "id program_key purpose clock cache time_us span_us baseline_us wall_us state_before state_after dropped "
            "at effort"
        ),
        "trials": (
            "id job_id role sequence config_key config origin outcome reason ratio time_us program_key against "
            "resolved worst_error measurement_id device_key gpu_uuid env_key at work_key against_work"
        ),
        "finals": "job_id program_key process measurement_id",
        "finals_lost": "job_id process program_key outcome reason",
        "probes": "probe_key device_key version time_us measurement_id",
        "calibrations": "device_key driver figures at",
        "profiles": "program_key gpu evidence rows at",
        "drawings": "workload_key device_key cache drawings",
        "rejections": "job_id rule nodes detail",
        "emitted": "job_id config_key program_key rule nodes detail",
        "records": (
            "id workload_key lookup_name device_key device_name env_key cache evidence verdict config program_key "
            "time_us baseline baseline_us baseline_program_key speedup ci_low ci_high verified checks trials found_at "
            "source source_hashes job_id replaced_by figures baseline_config processes ended replaced counted"
        ),
        "strategies": "strategy version wrong_versions names fusiond",
        "catalogue": "kind name path",
        "serving": "owner device inode",
    }.items()
}
"""All columns but `digest`, in the order in which they are digested; a test holds them to the schema."""

HEADS: Mapping[str, tuple[str, ...]] = {
    table: tuple(columns.split())
    for table, columns in {
        "records": (
            "id workload_key device_key device_name env_key cache evidence verdict found_at program_key "
            "baseline_program_key"
        ),
        "workloads": "workload_key strategy strategy_version name content_key content_family_key family_key sizes",
    }.items()
}
"""What an answer is chosen by. Two indexes hold these columns, each on pages of its own."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "jobs": ("id",),
    "trials": ("job_id", "role", "sequence"),
    "measurements": ("id", "program_key"),
    "records": ("id", "lookup_name"),
    "finals": ("job_id", "process", "program_key"),
    "finals_lost": ("job_id", "process"),
    "asks": ("job_id", "sequence"),
    "profiles": ("program_key", "gpu"),
    "drawings": ("workload_key", "device_key"),
    "emitted": ("job_id", "config_key"),
    "rejections": ("job_id", "rule"),
    "boards": ("device_key", "uuid"),
    "catalogue": ("kind", "name"),
    "workloads": ("workload_key", "name"),
}
"""By what a message calls a row, where that is not its first column."""

_BITS = (1 << 60) - 1
_NO_TEXT = "Could not decode"


class Damage(Exception):
    """A row that is not what was written: its table, what it is called, as far as that can be read, and the digest that
    it has."""

    def __init__(self, table: str, row: str, seal: bytes | None = None) -> None:
        self.table, self.row, self.seal = table, row, seal
        super().__init__(f"{table} {row}")

    def sentence(self, path: object) -> str:
        """What is damaged, where, and what to do."""
        return (
            f"{path}: the row {self.row} of {self.table} is damaged; `fusiond store check` says what is lost and "
            "how to go on"
        )


def digest(table: str, *values: Any) -> bytes:
    """16 bytes over a row's values, in the order of COLUMNS.

    `ascii` of numbers, texts and None is the same in every version of Python, and four times as fast as JSON."""
    return hashed(ascii((table, values)).encode())


def mixed(total: int, old: bytes | None, new: bytes | None) -> int:
    """A sum of digests, after one of them has changed: the same in whatever order the rows came."""
    return (total - _short(old) + _short(new)) & _BITS


def _short(digest: bytes | None) -> int:
    return int.from_bytes(digest[:8], "little") & _BITS if digest else 0


def register(connection: sqlite3.Connection) -> None:
    """What the triggers call; every connection that writes needs it."""
    connection.create_function("fusiond_digest", -1, digest, deterministic=True)
    connection.create_function("fusiond_mixed", 3, mixed, deterministic=True)


def wanted(table: str, row: dict[str, Any] | Damage | None, **values: object) -> dict[str, Any] | Damage | None:
    """A row that was looked for by these values: Damage where it has others. The number by which SQLite finds a row
    that an index names is in no digest, so that a flipped bit there leads to another row, which is whole."""
    if not isinstance(row, dict) or all(row[name] == value for name, value in values.items()):
        return row
    return Damage(table, " ".join(repr(value)[:80] for value in values.values()))


_column_lists: dict[tuple[tuple[str, str], ...], str] = {}


def columns(**parts: str) -> str:
    """The column list of a SELECT from tables under aliases: `columns(r="records", w="workloads")`."""
    key = tuple(parts.items())
    if key not in _column_lists:
        names = (f"{alias}.{name}" for alias, table in key for name in (*COLUMNS[table], "digest"))
        _column_lists[key] = ", ".join(names)
    return _column_lists[key]


def rows(
    connection: sqlite3.Connection, tail: str, parameters: Sequence[object] | Mapping[str, object] = (), **parts: str
) -> Iterator[tuple[dict[str, Any] | Damage | None, ...]]:
    """What `SELECT ... tail` finds, a value for each table of `parts` (alias=table; the first is always there): the
    row; None where an outer join found none; Damage where the row is not what was written."""
    for values in fetched(connection, f"SELECT {columns(**parts)} {tail}", parameters):
        found: list[dict[str, Any] | Damage | None] = []
        start = 0
        for table in parts.values():
            end = start + len(COLUMNS[table])
            row = checked(table, values[start:end], values[end])
            found.append(Damage(table, "without any value") if row is None and start == 0 else row)
            start = end + 1
        yield tuple(found)


def fetched(
    connection: sqlite3.Connection, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
) -> list[tuple[Any, ...]]:
    """All rows of a query as plain tuples; a text that is not Unicode any more comes as one that equals no other."""
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        return cursor.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as problem:
        if _NO_TEXT not in str(problem):
            raise
    before = connection.text_factory
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        return cursor.execute(sql, parameters).fetchall()
    finally:
        connection.text_factory = before


def checked(table: str, values: Sequence[Any], seal: bytes | None) -> dict[str, Any] | Damage | None:
    """A row by its columns when its digest is right; None where it has no value at all."""
    if seal is None and not any(value is not None for value in values):
        return None
    if digest(table, *values) == seal:
        return dict(zip(COLUMNS[table], values, strict=True))
    return Damage(table, called(table, dict(zip(COLUMNS[table], values, strict=True))), seal)


def called(table: str, row: Mapping[str, Any]) -> str:
    """A row's name in a message."""
    keys = KEYS.get(table, COLUMNS[table][:1])
    return " ".join(repr(row[key])[:80] for key in keys)


def same(
    connection: sqlite3.Connection, first: str, second: str, parameters: Sequence[object] | Mapping[str, object]
) -> list[Any] | None:
    """The first column of two queries that ask the same of different parts of the file, in the order of the first; None
    where they differ: one bit damages only one of them. To be called inside a transaction."""
    found = [row[0] for row in fetched(connection, first, parameters)]
    again = [row[0] for row in fetched(connection, second, parameters)]
    return found if len(found) == len(again) and set(found) == set(again) else None
