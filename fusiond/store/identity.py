"""Which file a path means: by stat alone, for a descriptor of the store that is opened and closed
beside SQLite would drop SQLite's locks. Standard library only."""

from __future__ import annotations

import os

from fusiond.model.errors import StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]
    """Device and inode of a file."""


def identity(path: str | os.PathLike[str]) -> Identity | None:
    """Which file is at that path now; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def log_of(path: str | os.PathLike[str]) -> tuple[Identity | None, Identity | None]:
    """Which files are the log of that store now, and its index. SQLite makes them before it reads, and removes them
    only where nobody has the store open: they stay the same for as long as a connection is open."""
    where = os.fspath(path)
    return identity(f"{where}-wal"), identity(f"{where}-shm")


def demand(path: str | os.PathLike[str], opened: Identity) -> None:
    """StoreUnavailable when the file that was opened is not at its path any more: what is written now would vanish."""
    now = identity(path)
    if now is None:
        raise StoreUnavailable(
            f"{path}: the store was deleted or moved away while it was open; nothing more is written; put it back, or "
            "restart fusiond to begin afresh"
        )
    if now != opened:
        raise StoreUnavailable(
            f"{path}: another file took the place of the store while it was open; nothing more is written until the "
            "store is opened again"
        )
