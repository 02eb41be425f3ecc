"""One daemon a store: a lock file beside it, held with flock, that says who holds it and where it listens.

The kernel lets go of the lock when the daemon ends, however it ends; the file stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from fusiond.errors import DaemonError


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The daemon of a store."""

    pid: int
    socket: Path


def lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


class StoreLock:
    """Held from `acquire` to `release`."""

    def __init__(self, database: Path) -> None:
        self.path = lock_path(database)
        self._file = -1

    def acquire(self) -> None:
        """DaemonError, naming the other one, when a daemon holds it already."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A client that asks who holds the lock holds it itself for a moment: hence several attempts.
        attempts = 10
        while not _lock(file) and attempts:
            time.sleep(0.05)
            attempts -= 1
        if not attempts:
            os.close(file)
            other = _read(self.path)
            who = f" (pid {other.pid}, socket {other.socket})" if other else ""
            raise DaemonError(f"another daemon serves this store already{who}")
        self._file = file

    def announce(self, socket: Path) -> None:
        """Write down where this daemon listens."""
        text = json.dumps({"pid": os.getpid(), "socket": str(socket)}) + "\n"
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        """Let another daemon in; no error when it is not held."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1


def holder(database: Path) -> Holder | None:
    """The daemon that serves this store now; None when there is none."""
    path = lock_path(database)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(path)
    finally:
        os.close(file)
    return None


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> Holder | None:
    try:
        document = json.loads(path.read_text())
        return Holder(pid=int(document["pid"]), socket=Path(document["socket"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
