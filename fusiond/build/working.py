"""Working folders of compilers. All lie in one place, so that leftovers of a killed process are found.

A process holds a lock on each of its folders as long as it lives; the kernel lets go of it, however the process ends.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fusiond.build.cache import default_folder
from fusiond.model.errors import StoreError
from fusiond.model.system import faults


def place() -> Path:
    """Where all of them are: in the build cache, whose bytes on the disk they share."""
    return default_folder() / "work"


@contextlib.contextmanager
def working_folder(what: str) -> Iterator[Path]:
    """An empty folder for the block, mode 0700; `what` goes into its name. MachineFault where there is no space,
    StoreError where it cannot be made for another reason."""
    root = place()
    try:
        if not root.parent.exists():
            root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        root.mkdir(exist_ok=True, mode=0o700)
        folder, lock = _locked(root, f"{what}-{os.getpid()}-")
    except OSError as problem:
        doing = f"making a working folder in {root}"
        fault = faults.of_system(problem, doing)
        raise fault or StoreError(f"{doing}: {faults.lacks(problem)}; name another one in FUSIOND_CACHE") from problem
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> int:
    """Remove the folders whose processes are gone; the bytes that this frees."""
    freed = 0
    for folder in sorted(place().glob("*-*-*")):
        with contextlib.suppress(OSError):  # in use, not ours, or gone meanwhile
            lock = _lock(folder)
            try:
                files = [path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
                shutil.rmtree(folder)
                freed += sum(files)
            finally:
                os.close(lock)
    return freed


def _locked(root: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # swept in between
            lock = _lock(folder)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _lock(folder: Path) -> int:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle
