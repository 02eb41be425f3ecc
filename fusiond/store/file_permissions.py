"""Creates files and folders that only their owner can read, whatever the umask."""

import contextlib
import errno
import os
import tempfile

from fusiond.model.errors import StoreError
from fusiond.store.format import disk_full

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_BESIDE = ("", "-wal", "-shm")  #: What SQLite may keep beside a file; it gives what it makes anew the mode of the file


def make_folder(folder: str | os.PathLike[str]) -> None:
    """A folder for its owner alone, with those above it; one that is there already stays as it is. OSError."""
    where = os.path.abspath(folder)
    if os.path.isdir(where):
        return
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(where, FOLDER_MODE)
        os.chmod(where, FOLDER_MODE)  # whatever the umask takes away
    if not os.path.isdir(where):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)


def make_private(path: str | os.PathLike[str]) -> None:
    """An empty file that its owner alone can read, where there is none, before SQLite opens it. StoreError,
    StoreUnavailable when it cannot be made."""
    where = os.path.abspath(path)
    if not os.path.exists(where):
        _make(where)


def tighten_store(path: str | os.PathLike[str]) -> None:
    """Keep a store of ours, and what SQLite keeps beside it, to its owner: earlier versions left that to the umask."""
    for beside in _BESIDE:
        tighten(os.path.abspath(path) + beside, FILE_MODE)


def tighten(path: str, mode: int) -> None:
    """Take the rights of others to a file or folder of ours; nothing happens to one that is not ours."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if found.st_uid == os.geteuid() and found.st_mode & 0o777 & ~mode:
            os.chmod(path, mode)


def give(path: str | os.PathLike[str], to: os.stat_result) -> None:
    """As root: a file or folder, with all in it, becomes that of the owner of another one. OSError."""
    if os.geteuid() != 0 or not os.path.lexists(path):
        return
    os.chown(path, to.st_uid, to.st_gid, follow_symlinks=False)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(os.path.join(folder, name), to.st_uid, to.st_gid, follow_symlinks=False)


def sync(file: str | os.PathLike[str]) -> None:
    """The content of a file is on disk when this returns. OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(where: str) -> None:
    """Under another name first: closing a descriptor of the file itself could drop the locks of a connection that
    another thread has made meanwhile."""
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(where), prefix=".making-")
        os.close(descriptor)
        try:
            os.link(unfinished, where)
        except FileExistsError:  # somebody else was faster
            pass
        except OSError:  # a file system without links
            if not os.path.exists(where):
                os.replace(unfinished, where)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(where) from problem
        raise StoreError(
            f"{where}: cannot be made: {problem.strerror}; check the permissions of the folder, or name another file "
            "with --db or FUSIOND_DB"
        ) from problem
