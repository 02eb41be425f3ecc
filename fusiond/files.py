"""Files: those of the user, read as they should be (plain, of a bearable size, in UTF-8), and folders of ours."""

from __future__ import annotations

import io
import os
import shutil
import stat
import threading
from pathlib import Path

from fusiond.errors import RequestError

MAX_TEXT_BYTES = 5_000_000


_to_discard: set[Path] = set()
_discarding = threading.Lock()


def discard(folder: Path) -> None:
    """Remove a folder of ours. Where that cannot be done now, for want of descriptors, say, it is with the next one."""
    with _discarding:
        _to_discard.add(folder)
        for each in sorted(_to_discard):
            shutil.rmtree(each, ignore_errors=True)
            if not os.path.lexists(each):
                _to_discard.discard(each)


def read_text(path: Path, *, where: str = "") -> str:
    where = where if where != str(path) else ""
    data = read_bytes(path, where=where, most=MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise RequestError(f"{path} is larger than {MAX_TEXT_BYTES // 1_000_000} MB", where=where)
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except ValueError:
        raise RequestError(f"cannot read {path}: it is not UTF-8 text", where=where) from None


def read_bytes(path: Path, *, where: str = "", most: int = -1) -> bytes:
    """The bytes of a plain file: a device would never end, and a pipe would keep us waiting."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise RequestError(f"{path} is no plain file", where=where)
            return file.read(most)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}", where=where) from None
    except (OSError, ValueError) as problem:  # a folder, no permission, a NUL in the name
        reason = problem.strerror if isinstance(problem, OSError) else "that is no path"
        raise RequestError(f"cannot read {path}: {reason}", where=where) from None
