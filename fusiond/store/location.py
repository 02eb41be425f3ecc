"""Where the file lies by default, and where it must not lie."""

from __future__ import annotations

import os

from fusiond.model.errors import StoreError
from fusiond.model.system import folders

TYPE_CHECKING = False
if TYPE_CHECKING:  # `fusiond best` pays for everything that is imported here, and does without pathlib
    from pathlib import Path

_NETWORK = "nfs nfs4 cifs smb2 smb3 smbfs ncpfs afs ceph lustre gpfs beegfs pvfs2 glusterfs"
_NETWORK_FUSE = "sshfs glusterfs ceph s3fs rclone gcsfuse davfs2 juicefs"
NETWORK_TYPES = frozenset([*_NETWORK.split(), *(f"fuse.{kind}" for kind in _NETWORK_FUSE.split())])
"""File systems, in the words of /proc/self/mountinfo, whose files several machines write: WAL needs shared memory."""

_MOUNTS = "/proc/self/mountinfo"


def default_path() -> Path:
    """`default_name`, for those who go on with it."""
    from pathlib import Path

    return Path(default_name())


def default_name() -> str:
    """`FUSIOND_DB`, or `fusiond/HOST/fusiond.sqlite` in the user's data directory (machines may share a home)."""
    named = os.environ.get("FUSIOND_DB")
    return os.path.expanduser(named) if named else os.path.join(default_folder(), "fusiond.sqlite")


def default_folder() -> str:
    """`fusiond/HOST` in the user's data directory: fusiond's own, nobody else's business."""
    host = os.uname().nodename.replace("/", "_") or "localhost"
    return os.path.join(folders.data(), host)


def refuse_network(path: Path, mounts: str | Path = _MOUNTS) -> None:
    """StoreError when the file is, or would be, on a network file system. Silent where `mounts` cannot be read."""
    try:
        with open(mounts, errors="surrogateescape") as stream:
            text = stream.read()
    except OSError:
        return
    kind = file_system(os.path.realpath(path), text)
    if kind in NETWORK_TYPES:
        raise StoreError(
            f"{path}: on a network file system ({kind}), where SQLite files break; "
            "name a file on a local disk with --db or FUSIOND_DB"
        )


def file_system(path: str, mounts: str) -> str | None:
    """The type of the file system that holds an absolute path, in the words of a mountinfo text."""
    from pathlib import PurePath

    whole = PurePath(path)
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5 or not right:
            continue
        point = PurePath(_unescaped(fields[4]))
        # A later mount on the same point covers the earlier one.
        if whole.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), right.split(" ")[0]
    return found[1] if found else None


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
