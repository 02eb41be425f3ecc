"""Triggers that keep every row's digest right, and sums over whole tables.

A row that is damaged already is never sealed again: a statement that would change it fails. `sums` holds for each
table how many rows it has and the sum of their digests, so that a row that has vanished shows; and, as `commits`, how
many transactions there were, with a number of the store's own (`last_commit.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fusiond.store.tables import COLUMNS, mixed

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

DAMAGED = "damaged row"  #: What SQLite says, with the table and the row behind it, when a damaged row would be changed


def seal_all(database: Database) -> None:
    """Give every table that there is its digests, sums and triggers. Inside a migration; none has digests yet."""
    database.execute("CREATE TABLE sums (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, total INTEGER NOT NULL)")
    own = int.from_bytes(os.urandom(8), "little") >> 4
    database.execute("INSERT INTO sums VALUES ('commits', 0, ?)", [own])
    for table in COLUMNS:
        if database.table(table).exists():
            seal_table(database, table)


def seal_table(database: Database, table: str) -> None:
    """The same for one table, which came after the others."""
    database.execute(f"ALTER TABLE {table} ADD COLUMN digest BLOB")
    database.execute("INSERT INTO sums VALUES (?, 0, 0)", [table])
    database.execute(f"UPDATE {table} SET digest = {seal(table)}")
    rows = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    total = 0
    for (digest,) in database.execute(f"SELECT digest FROM {table}").fetchall():
        total = mixed(total, None, digest)
    database.execute("UPDATE sums SET rows = ?, total = ? WHERE name = ?", [rows, total, table])
    add_triggers(database, table)


def seal(table: str, row: str = "") -> str:
    """The SQL of a row's digest; `row` is `NEW.` or `OLD.` in a trigger."""
    return f"fusiond_digest('{table}', {', '.join(row + name for name in COLUMNS[table])})"


def add_triggers(database: Database, table: str) -> None:
    names = ", ".join(COLUMNS[table])
    database.execute(
        f"CREATE TRIGGER {table}_came AFTER INSERT ON {table} BEGIN "
        f"UPDATE sums SET rows = rows + 1 WHERE name = '{table}'; "
        f"UPDATE {table} SET digest = {seal(table, 'NEW.')} WHERE rowid = NEW.rowid; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_changed AFTER UPDATE OF {names} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, '{DAMAGED} of {table}') WHERE OLD.digest IS NOT {seal(table, 'OLD.')}; "
        f"UPDATE {table} SET digest = {seal(table, 'NEW.')} WHERE rowid = NEW.rowid; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_sealed AFTER UPDATE OF digest ON {table} BEGIN "
        f"UPDATE sums SET total = fusiond_mixed(total, OLD.digest, NEW.digest) WHERE name = '{table}'; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_went AFTER DELETE ON {table} BEGIN "
        "UPDATE sums SET rows = rows - 1, total = fusiond_mixed(total, OLD.digest, NULL) "
        f"WHERE name = '{table}'; END"
    )
