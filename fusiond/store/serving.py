"""Which daemon serves this store: its process, and the lock file that keeps others out.

A lock file can be unlinked under its holder, and a second daemon would lock another file of the same name. The store
itself cannot be in two places, so it says which file counts.
"""

from dataclasses import dataclass

from fusiond.store.connection import Connected, Row
from fusiond.store.process_identity import is_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """By a process (see `fusiond.store.process_identity`), with the lock on the file of this device and inode."""

    owner: str
    device: int
    inode: int

    @property
    def pid(self) -> str:
        return self.owner.partition(":")[0]


class Serving(Connected):
    def served(self) -> Served | None:
        """Who serves, or did when it last ran; None when nobody ever did, or the last one ended in order."""
        rows = self._rows("SELECT owner, device, inode FROM serving")
        return _served(rows[0]) if rows else None

    def serve(self, new: Served, *, before: Served | None = None) -> Served | None:
        """Write down who serves from now on. Another one that lives stays, and is returned; `before` is what this one
        wrote itself."""
        with self._transaction() as database:
            rows = list(database.query("SELECT owner, device, inode FROM serving"))
            other = _served(rows[0]) if rows else None
            if other not in (None, before, new) and is_alive(other.owner):
                return other
            database.execute("DELETE FROM serving")
            # As texts: some file systems have inodes that no signed number of 64 bits holds.
            row = {"owner": new.owner, "device": str(new.device), "inode": str(new.inode)}
            database.table("serving").insert(row)
        return None

    def unserve(self, mine: Served) -> None:
        """This one serves no longer; nothing happens when another one does."""
        with self._transaction() as database:
            database.execute(
                "DELETE FROM serving WHERE owner = ? AND device = ? AND inode = ?",
                (mine.owner, str(mine.device), str(mine.inode)),
            )


def _served(row: Row) -> Served:
    return Served(owner=row["owner"], device=int(row["device"]), inode=int(row["inode"]))
