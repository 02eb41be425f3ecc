"""Reads the user's files: plain ones of a bearable size in UTF-8. Makes folders that only the user may enter."""

import contextlib
import io
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

from fusiond.model.errors import RequestError
from fusiond.model.system import faults

MAX_TEXT_BYTES = 5_000_000


_to_discard: set[Path] = set()
_discarding = threading.Lock()
_SECS_BETWEEN = (0.02, 0.05, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4)
"""How long removing a folder waits for the machine to come round, before each attempt but the first."""


def discard(folder: Path) -> None:
    """Remove a folder of ours. What the machine cannot do just now, for want of descriptors, say, it is asked again for
    a moment; what is there even then is removed with the next folder."""
    with _discarding:
        _to_discard.add(folder)
    discard_left()


def discard_left() -> None:
    """Ask the machine once more to remove what it did not remove before."""
    with _discarding:
        for each in sorted(_to_discard):
            _remove(each)
            if not os.path.lexists(each):
                _to_discard.discard(each)


def _remove(folder: Path) -> None:
    failed: list[BaseException] = []
    for wait in (0.0, *_SECS_BETWEEN):
        time.sleep(wait)
        failed.clear()
        shutil.rmtree(folder, onerror=lambda _call, _path, problem: failed.append(problem[1]))
        if not any(faults.of(each) for each in failed):  # nothing left, or nothing that waiting would mend
            return


SOURCES = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inc", ".inl", ".ptx"})
"""Files for a compiler, which may be in any encoding that has ASCII in it."""


def read_text(path: Path, *, where: str = "") -> str:
    """The text of a file in UTF-8, or of a source in Latin-1. Line ends are made one newline. RequestError for what
    cannot be read."""
    where = where if where != str(path) else ""
    data = read_bytes(path, where=where, most=MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise RequestError(f"{path} is larger than {MAX_TEXT_BYTES // 1_000_000} MB", where=where)
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except ValueError:
        if path.suffix in SOURCES:  # a compiler minds no byte in a comment
            return io.TextIOWrapper(io.BytesIO(data), encoding="latin-1").read()
        raise RequestError(f"cannot read {path}: it is not UTF-8 text", where=where) from None


def read_bytes(path: Path, *, where: str = "", most: int = -1) -> bytes:
    """The bytes of a plain file: a device would never end, and a pipe would keep us waiting."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise RequestError(f"{path} is not a plain file", where=where)
            return file.read(most)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}", where=where) from None
    except (OSError, ValueError) as problem:  # a folder, no permission, a NUL in the name
        if isinstance(problem, OSError) and (fault := faults.of_system(problem, f"reading {path}")):
            raise fault from None
        reason = problem.strerror if isinstance(problem, OSError) else "that is not a path"
        raise RequestError(f"cannot read {path}: {reason}", where=where) from None


def private_folder(folder: Path) -> Path:
    """The folder, which its user alone may enter: made with mode 0700 whatever the umask is, or checked.

    RequestError for one that is a link or no folder, belongs to somebody else, lets others in, or cannot be made;
    MachineFault for what is not a fault of the folder's."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # a umask may have taken bits of our own
        found = folder.lstat()
    except OSError as problem:
        if fault := faults.of_system(problem, f"making the folder {folder}"):
            raise fault from None
        raise RequestError(f"the folder cannot be made: {problem.strerror}", where=str(folder)) from None
    if not stat.S_ISDIR(found.st_mode):
        raise RequestError("expected a folder of your own; this is a link or another file", where=str(folder))
    if found.st_uid != os.geteuid():
        raise RequestError("the folder belongs to another user; name another one", where=str(folder))
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise RequestError("others may enter the folder; `chmod 700` it or name another one", where=str(folder))
    return folder


def runtime_folder() -> Path:
    """This user's folder for sockets and the like until the next boot: `$XDG_RUNTIME_DIR/fusiond`, else
    `fusiond-UID` in the temporary folder. Private; RequestError as `private_folder`."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    if named and os.access(named, os.W_OK | os.X_OK):
        return private_folder(Path(named) / "fusiond")
    return private_folder(Path(tempfile.gettempdir()) / f"fusiond-{os.geteuid()}")
