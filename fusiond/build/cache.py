"""A content-addressed folder of build results, shared by any number of threads and processes.

    FOLDER/ab/ab12...ef.ptx     a result: written under another name, synced, renamed; never changed afterwards
    FOLDER/ab/ab12...ef.no      a failure, as small JSON: what did not build will not build the second time either
    FOLDER/ab/ab12...ef.ptx.sum size and digest of the result: what a full disk or a power cut has damaged is built anew

Keys are content keys of everything that decides the result, the compiler's version included, so an entry is never
stale: of two processes that build the same key, either may win, its bytes and its sum together. A file's modification
time is when it was last used; when the folder outgrows its limit, those not used for longest go.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fusiond.model.keys import text_key
from fusiond.model.outcomes import BuildFailed
from fusiond.model.system import faults, folders

log = logging.getLogger(__name__)

LIMIT_BYTES = 2 << 30
FAILURE = ".no"
SUM = ".sum"
_KEEP_SECS = 900.0  #: What was used so recently is never evicted: somebody may be about to load it
_LOG_CHARACTERS = 20_000


def default_folder() -> Path:
    """FUSIOND_CACHE, or `builds` in the user's cache directory."""
    return Path(os.environ.get("FUSIOND_CACHE") or os.path.join(folders.cache(), "builds"))


@functools.lru_cache(maxsize=16)
def of_folder(folder: Path) -> BuildCache:
    """The one of this process: what each has to do once (look at its size, compare contents) is done once."""
    return BuildCache(folder)


class BuildCache:
    """`get` and `put` by key and suffix. Every method may be called from any thread."""

    def __init__(self, folder: Path | None = None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder or default_folder()
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._verified: set[tuple[Path, int]] = set()
        """Files (with their inodes) whose content this process has compared with its digest."""
        self._unswept_bytes = limit_bytes  # so that the first `put` of a process looks once
        """Written by this process since it last looked at the folder's size."""

    def path(self, key: str, suffix: str) -> Path:
        """Where an entry is, or would be."""
        return self.folder / key[:2] / f"{key}{suffix}"

    def get(self, key: str, suffix: str) -> Path | None:
        """The file of an entry, marked as used; None when it is not there, or damaged: then it is removed."""
        path = self.path(key, suffix)
        with contextlib.suppress(OSError):
            # Read-only and shared caches are fine: an entry that cannot be marked can still be used.
            os.utime(path)
        if not path.is_file():
            return None
        if not self._whole(path) and not self._settled(path):
            level = logging.WARNING if _sum_of(path).is_file() else logging.DEBUG  # without: of an earlier version
            log.log(level, "%s is damaged, and is built anew", path)
            self._remove(path)
            return None
        return path

    def put(self, key: str, suffix: str, data: bytes | str) -> Path:
        """Write an entry; the file appears whole or not at all. StoreUnavailable: the disk is full, or the folder
        read-only."""
        path = self.path(key, suffix)
        content = data.encode() if isinstance(data, str) else data
        sum_of_it = f"{len(content)} {text_key(content)}".encode()
        try:
            self._make(path.parent)
            with _written(path.parent, content) as file, _written(path.parent, sum_of_it) as sums, _alone(path.parent):
                os.replace(sums, _sum_of(path))
                os.replace(file, path)
        except OSError as problem:
            remedy = "free some space, or name another folder in FUSIOND_CACHE"
            doing = f"the build cache {self.folder} cannot be written"
            raise faults.of_our_file(problem, doing, remedy) from problem
        self._grown(len(content))
        return path

    @contextlib.contextmanager
    def turn(self, key: str, suffix: str) -> Iterator[Path | None]:
        """`get`, for what takes long to build: where it is None, no other thread or process builds such a thing during
        the block, and one that has waited for its turn is handed what was built meanwhile."""
        found = self.get(key, suffix)
        if found is not None:
            yield found
            return
        with contextlib.suppress(OSError):  # `put` says so
            self._make(self.folder)
        with _alone(self.folder):
            yield self.get(key, suffix)

    def _make(self, folder: Path) -> None:
        """Folders of our making are private; one that is there keeps its mode, since somebody may share it."""
        if not folder.is_dir():
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True, mode=0o700)

    def _whole(self, path: Path) -> bool:
        """Whether a file is what was written; the content is compared once in each process."""
        try:
            size, _, digest = _sum_of(path).read_text().partition(" ")
            status = path.stat()
            if str(status.st_size) != size:
                return False
            known = (path, status.st_ino)
            if known not in self._verified:
                if text_key(path.read_bytes()) != digest:
                    return False
                self._verified.add(known)
        except (OSError, ValueError):
            return False
        return True

    def _settled(self, path: Path) -> bool:
        """Whether a file that did not fit its sum does so once nobody is about to put both into their places."""
        with _alone(path.parent):
            return self._whole(path)

    @staticmethod
    def _remove(path: Path) -> None:
        for each in (path, _sum_of(path)):
            with contextlib.suppress(OSError):
                each.unlink()

    def failure(self, key: str) -> BuildFailed | None:
        """The failure that was kept for a key; None when it built, or was never tried."""
        path = self.get(key, FAILURE)
        if path is None:
            return None
        try:
            entry = json.loads(path.read_text())
            return BuildFailed(reason=entry["reason"], log=entry["log"])
        except (OSError, ValueError, KeyError):
            return None

    def put_failure(self, key: str, failed: BuildFailed) -> BuildFailed:
        """Keep a failure (its log cut to a readable length), and hand it back."""
        entry = {"reason": failed.reason, "log": failed.log[:_LOG_CHARACTERS]}
        self.put(key, FAILURE, json.dumps(entry))
        return failed

    def sweep(self) -> int:
        """Delete what was not used for longest until nine tenths of the limit are left; how many bytes went."""
        entries = []
        for path in self.folder.glob("??/*"):
            if path.suffix == SUM:
                continue
            with contextlib.suppress(OSError):  # another process sweeps too
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return 0
        freed, recent = 0, time.time() - _KEEP_SECS
        for used_at, size, path in sorted(entries):
            if total - freed <= self.limit_bytes * 9 // 10 or used_at > recent:
                break
            self._remove(path)
            freed += size
        log.info("build cache: %d MB of %d MB deleted", freed >> 20, total >> 20)
        return freed

    def _grown(self, size: int) -> None:
        with self._lock:
            self._unswept_bytes += size
            due = self._unswept_bytes > self.limit_bytes // 16
            if due:
                self._unswept_bytes = 0
        if due:
            self.sweep()


def _sum_of(path: Path) -> Path:
    return path.with_name(path.name + SUM)


@contextlib.contextmanager
def _written(folder: Path, content: bytes) -> Iterator[str]:
    """A file on disk with that content, to be renamed inside the block; what was not is removed."""
    handle, work = tempfile.mkstemp(prefix=".", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield work
    finally:
        with contextlib.suppress(OSError):
            os.unlink(work)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other thread or process puts a file and its sum into this folder meanwhile, or takes its turn. Where a
    folder cannot be locked, two may build the same, and what they write for one key at once once more."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):  # not by closing alone: a child that was forked meanwhile has it open, too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
