"""Plans of programs as they are stored: compressed, since nine tenths of one are sources. Standard library only."""

from __future__ import annotations

import zlib

from fusiond.model.errors import StoreError
from fusiond.store import tables
from fusiond.store.format import decoded
from fusiond.store.tables import Damage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any


def pack(text: str) -> bytes:
    """The text of a plan as it is stored."""
    return zlib.compress(text.encode(), 9)


def unpack(stored: bytes | str) -> Any:
    """The plan as JSON values; earlier versions stored the text itself. ValueError for what is neither."""
    try:
        return decoded(zlib.decompress(stored).decode() if isinstance(stored, bytes) else stored)
    except zlib.error as problem:
        raise ValueError(str(problem)) from problem


def unpacked(connection: sqlite3.Connection, path: str, program_key: str) -> dict[str, Any] | None:
    """The plan of a program; None when there is none of that key. StoreError for a damaged one."""
    for (row,) in tables.rows(connection, "FROM programs p WHERE program_key = ?", [program_key], p="programs"):
        if isinstance(row, Damage):
            raise StoreError(row.sentence(path))
        if row is not None:
            plan: dict[str, Any] = unpack(row["plan"])
            return plan
    return None
