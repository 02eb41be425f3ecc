"""Store: all nouns over one SQLite file.

    devices.py   what a device is, which boards are sick, calibrations, micro-measurements
    jobs.py      the queue (job_reading.py: its lists)
    trials.py    what a study knows: asks, trials, finals, rejections
    programs.py  plans by key and what they ask of a GPU, artifacts beside the file
    records.py   the answers and their history
    plugin_listing.py  what the plugins registered: versions, documents, the catalogue
    serving.py   the daemon that serves, and its lock file

A method returns when what it wrote is on disk. Any thread may call any method at any time; transactions are short, and
several processes (the daemon, `fusiond run`, `fusiond best`) may have the file open at once.
"""

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from fusiond.model.errors import StoreError, StoreUnavailable
from fusiond.model.system import faults
from fusiond.store import last_commit
from fusiond.store.connection import translated
from fusiond.store.devices import DeviceRow, Devices
from fusiond.store.file_permissions import FOLDER_MODE, make_folder, make_private, sync, tighten
from fusiond.store.format import disk_full, now
from fusiond.store.identity import identity, log_of
from fusiond.store.jobs import JobRow, Jobs
from fusiond.store.location import default_folder, default_path, refuse_network
from fusiond.store.plugin_listing import Said
from fusiond.store.process_identity import this_process
from fusiond.store.records import Records
from fusiond.store.serving import Serving
from fusiond.store.trials import Trials

log = logging.getLogger(__name__)

__all__ = ["DeviceRow", "JobRow", "Store", "default_path", "this_process"]


class Store(Devices, Jobs, Trials, Records, Said, Serving):
    """What fusiond remembers. Every method may raise StoreError: a full disk, a damaged file, a closed store."""

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True) -> Self:
        """Open a file, bringing an older one up to date; `create` makes it, and its folder, when it is missing.

        StoreError for a file that a newer fusiond wrote, one that is not fusiond's, one on a network file system, and
        for a missing one without `create`."""
        where = Path(path).expanduser().absolute()
        if not create and not where.is_file():
            raise StoreError(f"{where}: there is no such file")
        refuse_network(where)
        try:
            make_folder(where.parent)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(str(where)) from problem
            doing = f"{where.parent}: the folder cannot be made"
            raise faults.of_system(problem, doing) or StoreError(f"{doing}: {problem.strerror}") from problem
        if str(where.parent) == default_folder():
            tighten(str(where.parent), FOLDER_MODE)
        return cls(where)

    def reopen(self, *, running: Collection[str] = ()) -> list[str]:
        """Open the file that is at the path now, in place of one that was deleted or replaced, and queue its running
        jobs of which nobody is left: the ids. `running` are those that the caller itself still runs: none of
        them is queued afterwards.

        StoreUnavailable while there is no file, StoreError for one that is not fusiond's; the Store goes on to refuse
        everything then, and may be opened again later."""
        with self._write_lock, self._read_lock:
            if not self.path.is_file():
                raise StoreUnavailable(f"{self.path}: there is no such file any more; put it back")
            if identity(self.path) == self._identity:
                self._rescue()
            else:
                self._part_from_log()
            reader, writer = self._reader, self._writer
            self._attach()
            reader.close()
            writer.close()
            self._adopt({*running, *self._claimed})
        return self.recover(own=this_process(), running=running)

    def _rescue(self) -> None:
        """The log was taken away; the open connection still has it. What it sees becomes a file of its own and takes
        the place: no other process may go on with the old one, whose log it cannot find. What others wrote to a new
        log meanwhile is kept beside."""
        if log_of(self.path) == self._log:
            return
        copy = self.path.with_name(f".{self.path.name}.rescued-{os.getpid()}")
        try:
            copy.unlink(missing_ok=True)
            make_private(copy)
            with translated(copy), contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as new:
                self._database.conn.backup(new)
            sync(copy)
            wal, shm = log_of(self.path)
            new_log = Path(f"{self.path}-wal")
            theirs = wal is not None and (wal != self._log[0] or shm is not None)
            if theirs and new_log.stat().st_size:
                stamp = now().replace(":", "").replace("-", "")[:15]
                aside = f"{self.path}.before-{stamp}"
                os.link(self.path, aside)
                os.replace(new_log, f"{aside}-wal")
                log.warning("%s: what was written since its log was taken away is kept as %s", self.path, aside)
            for name in ("wal", "shm"):
                Path(f"{self.path}-{name}").unlink(missing_ok=True)
            os.replace(copy, self.path)
            last_commit.sync_folder(str(self.path.parent))
        except OSError as problem:
            raise StoreUnavailable(
                f"{self.path}: its log is gone, and it cannot be written anew: {problem}"
            ) from problem
        finally:
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)
        log.warning("%s: its log was taken away; the store was written anew, and nothing is lost", self.path)

    def _part_from_log(self) -> None:
        """SQLite finds a log by its name: that of the file that is gone would be played into the one in its place."""
        if log_of(self.path)[0] != self._log[0]:
            return
        for name in ("wal", "shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}-{name}", f"{self.path}-{name}.of-replaced")

    def size_bytes(self) -> int:
        """Of the file and its log; what is not there counts as nothing."""
        total = 0
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
