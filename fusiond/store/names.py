"""The names that have an answer, to suggest one of a million in a millisecond. Standard library only.

A name with a mistake in it still begins or ends like the one that is meant. So names stand in the file in their order
forwards and backwards, the neighbours in both orders are looked at, and only these are compared letter by letter.
Members of a pair are unordered; a mistake may have moved one, so both orders are tried.
"""

from __future__ import annotations

import sqlite3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

OF_RECORDS = (
    "SELECT DISTINCT w.name FROM records r CROSS JOIN workloads w USING (workload_key) WHERE r.replaced_by IS NULL"
)
_NEIGHBOURS = 24
_LONGEST = 200  #: Letters of a name that are compared; what is longer is not a slip of the finger


def make(database: Any) -> None:
    """Inside a migration: the table, with the names of the records that there are."""
    database.execute("CREATE TABLE names (name TEXT PRIMARY KEY, backwards TEXT NOT NULL) WITHOUT ROWID")
    database.execute("CREATE INDEX idx_names_backwards ON names (backwards)")
    for (name,) in database.execute(OF_RECORDS).fetchall():
        add(database, name)


def add(database: Any, name: str) -> None:
    """Inside a transaction: a name that has an answer now."""
    database.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", [name, name[::-1]])


def near(connection: sqlite3.Connection, name: str, limit: int) -> list[str]:
    """The names most like this one, the nearest first; where none is like it, the first ones there are."""
    import difflib  # 2 ms that an answer need not wait for

    asked = name[:_LONGEST]
    candidates = {each for turned in _turned(asked) for each in _beside(connection, turned)} - {name}
    found = difflib.get_close_matches(asked, sorted(candidates), n=limit, cutoff=0.5)
    return found or [row[0] for row in connection.execute("SELECT name FROM names ORDER BY name LIMIT ?", [limit])]


def _turned(name: str) -> Iterable[str]:
    members = [each.strip() for each in name.split(",")]
    return {name, ",".join(members), ",".join(reversed(members))}


def _beside(connection: sqlite3.Connection, name: str) -> Iterator[str]:
    for column, value in (("name", name), ("backwards", name[::-1])):
        for order in (">= ? ORDER BY {}", "< ? ORDER BY {} DESC"):
            query = f"SELECT name FROM names WHERE {column} {order.format(column)} LIMIT {_NEIGHBOURS}"
            for row in connection.execute(query, [value]):
                yield row[0]
