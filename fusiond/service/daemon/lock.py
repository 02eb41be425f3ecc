"""One daemon per store: a lock file beside it, held with flock, names the holder and its socket.

The kernel lets go of the lock when the daemon ends, however it ends; the file stays. Which file counts stands in the
store (`fusiond.store.serving`), so that unlinking it lets no second daemon in; its daemon puts it back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fusiond.model.errors import DaemonError, StoreError
from fusiond.store.file_permissions import give, make_folder
from fusiond.store.process_identity import this_process

if TYPE_CHECKING:  # a client that asks who holds it needs no store
    from fusiond.store.database import Store
    from fusiond.store.serving import Served

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The daemon of a store."""

    pid: int
    socket: Path


def lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


class StoreLock:
    """Held from `acquire` to `release`. Any thread may call any method."""

    def __init__(self, store: Store) -> None:
        self.path = lock_path(store.path)
        self._store = store
        self._file = -1
        self._mine: Served | None = None
        self._text = b""
        self._one = threading.Lock()

    def acquire(self) -> None:
        """DaemonError, naming the other one, when a daemon holds it already."""
        with self._one:
            file = self._locked_file(attempts=10)
            if file is None:
                other = _read(self.path)
                who = f" (pid {other.pid}, socket {other.socket})" if other else ""
                raise DaemonError(f"another daemon serves this store already{who}")
            self._write_down(file)

    def announce(self, socket: Path) -> None:
        """Write down where this daemon listens."""
        with self._one:
            self._text = (json.dumps({"pid": os.getpid(), "socket": str(socket)}) + "\n").encode()
            self._say()

    def keep(self) -> None:
        """Look whether the lock is what it was: to be called before each claim, and now and then.

        A file that was removed or replaced is put back. DaemonError when another daemon serves the store now."""
        with self._one:
            if self._mine is None:
                return
            found = self._store.served()
            if found != self._mine:  # an older store was put back, perhaps
                self._write_down(self._file)
            if not _is_at(self._file, self.path):
                self._put_back()

    def release(self) -> None:
        """Let another daemon in; no error when it is not held."""
        with self._one:
            if self._mine is not None:
                with contextlib.suppress(StoreError):  # the next one sees that this process is gone
                    self._store.unserve(self._mine)
                self._mine = None
            if self._file >= 0:
                os.ftruncate(self._file, 0)
                os.close(self._file)
                self._file = -1

    def _locked_file(self, *, attempts: int) -> int | None:
        """A handle of the file of this name, locked; None when another one holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(attempts):
            if attempt:  # a client that asks who holds the lock holds it itself for a moment
                time.sleep(0.05)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _lock(file) and _is_at(file, self.path):
                os.fchmod(file, 0o600)
                return file
            os.close(file)
        return None

    def _write_down(self, file: int) -> None:
        """In the store: this process serves by this file, which takes the place of the one before. DaemonError when
        another one does; then a new file is closed."""
        from fusiond.store.serving import Served

        try:
            status = os.fstat(file)
            mine = Served(owner=this_process(), device=status.st_dev, inode=status.st_ino)
            other = self._store.serve(mine, before=self._mine)
            if other is not None:
                raise DaemonError(f"another daemon serves this store already (pid {other.pid}, by another lock file)")
        except BaseException:
            if file != self._file:
                os.close(file)
            raise
        if self._file not in (-1, file):
            os.close(self._file)
        self._file, self._mine = file, mine

    def _put_back(self) -> None:
        """The store says that this daemon serves, so it is safe to go on when the file cannot be had just now: somebody
        who holds the new one will look into the store, and leave."""
        file = self._locked_file(attempts=1)
        if file is None:
            return
        self._write_down(file)
        self._say()
        log.warning("%s was removed or replaced, and is put back", self.path)

    def _say(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, self._text, 0)


def holder(database: Path) -> LockHolder | None:
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


@contextlib.contextmanager
def kept_out(database: Path) -> Iterator[None]:
    """No daemon begins to serve this store meanwhile. DaemonError when one does already, or none can be kept out."""
    path = lock_path(database)
    make_folder(path.parent)
    new = not path.exists()
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        raise DaemonError(f"{path}: cannot be opened: {problem.strerror}") from problem
    try:
        if new:
            give(path, path.parent.stat())
        if not _lock(file):
            raise DaemonError("a daemon serves this store; stop it first")
        yield
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is the one of that name."""
    try:
        named = path.lstat()
    except OSError:
        return False
    return os.path.samestat(os.fstat(file), named)


def _read(path: Path) -> LockHolder | None:
    try:
        document = json.loads(path.read_text())
        return LockHolder(pid=int(document["pid"]), socket=Path(document["socket"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
