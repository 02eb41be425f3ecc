"""Source files against the digests that a record has of them. Standard library only."""

from __future__ import annotations

import os
import stat

from fusiond.store.format import now
from fusiond.store.hashing import hashed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMPARED_BYTES = 4_000_000  #: Source files up to this size are compared by content; larger ones by their date


def text_key(data: bytes) -> str:
    """`fusiond.model.keys.text_key`, without what that module imports."""
    return hashed(data).hex()


def equal(path: str, digest: str) -> bool:
    """Whether a file has that content; False for one that cannot be read, or is too large to be read here."""
    try:
        if os.path.getsize(path) > COMPARED_BYTES:
            return False
        return has(read(path), digest)
    except OSError:
        return False


def read(path: str) -> bytes:
    """A plain file's bytes; OSError for a pipe, which would keep us waiting, and for every other kind of file."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(0, "it is not a regular file")
        return stream.read()


def has(data: bytes, digest: str) -> bool:
    """Texts were hashed with their line ends as Python reads them."""
    return digest in (text_key(data), text_key(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")))


def are(hashes: Mapping[str, str], documents: Iterable[Iterable[str]]) -> bool:
    """Whether what a record was made of is what these documents are, and all that lies beside them.

    `hashes`: file -> digest, of the record. `documents`: for each member of the workload, the files of today that may
    be its document; one of each must be among the record's. A file beside a document of the record must be equal to
    the one at the same place beside the document of today; one that lies elsewhere (a header of the system, the
    document of another member) must be what it was."""
    moved: dict[str, str] = {}  #: A document of the record -> the equal one of today
    for files in documents:
        found = {then: file for file in files for then, digest in hashes.items() if equal(file, digest)}
        if not found:
            return False
        moved |= found
    return bool(moved) and all(_is_beside(file, digest, moved) for file, digest in hashes.items() if file not in moved)


def _is_beside(file: str, digest: str, moved: Mapping[str, str]) -> bool:
    shared = {then: len(os.path.commonpath([os.path.dirname(then), file])) for then in moved}
    nearest = [then for then, length in shared.items() if length == max(shared.values())]
    for then in nearest:
        relative = os.path.relpath(file, os.path.dirname(then))
        today = os.path.normpath(os.path.join(os.path.dirname(moved[then]), relative))
        beside = not relative.startswith(os.pardir)
        if (beside or os.path.exists(today)) and not equal(today, digest):
            return False
        if not beside and not os.path.exists(today) and not equal(file, digest):
            return False
    return True


def changes(hashes: Mapping[str, str], found_at: str) -> tuple[list[str], bool]:
    """A line for every source file that is another one now, and whether one of them surely is; one that cannot be read
    is not a statement."""
    lines, surely = [], False
    for file, digest in hashes.items():
        try:
            if os.path.getsize(file) > COMPARED_BYTES:
                if now(at=os.path.getmtime(file)) > found_at:
                    lines.append(
                        f"source may have changed: {file} (too large to compare here) is younger than this answer"
                    )
                continue
            data = read(file)
        except FileNotFoundError:
            lines.append(f"source is gone: {file}")
            continue
        except OSError as problem:
            lines.append(f"source cannot be compared: {file}: {problem.strerror}")
            continue
        if not has(data, digest):
            lines.append(f"source changed: {file}")
            surely = True
    return lines, surely
