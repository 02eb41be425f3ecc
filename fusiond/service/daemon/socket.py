"""The daemon's Unix socket: in a folder that only its user can enter, with mode 0600 from its first moment on."""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import TypeAlias

from fusiond.model.errors import DaemonError, RequestError
from fusiond.model.keys import text_key
from fusiond.model.system import files

Listener: TypeAlias = socket.socket

LONGEST_BYTES = 107  #: What fits into `sockaddr_un` on Linux, without the final zero


def default_path(database: Path) -> Path:
    """Beside the store, in a folder of its own; in the user's runtime folder where that path would be too long."""
    database = database.absolute()
    beside = database.with_name(database.name + ".run") / "socket"
    if len(os.fsencode(beside)) > LONGEST_BYTES:
        return files.runtime_folder() / f"{text_key(str(database))[:16]}.socket"
    return beside


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`. A stale one is removed, but only when nobody answers on it.

    DaemonError when somebody does; RequestError when the path cannot be a socket's or others may enter its folder."""
    path = path.absolute()
    if len(os.fsencode(path)) > LONGEST_BYTES:
        raise RequestError(
            f"is {len(os.fsencode(path))} bytes long; a Unix socket's path has at most {LONGEST_BYTES}: "
            "name a shorter one with --socket or `socket:` in the configuration",
            where=str(path),
        )
    files.private_folder(path.parent)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The folder keeps others out whatever the mode is; fchmod before bind gives the socket its mode from the start,
        # without the umask, which belongs to the whole process and all its threads.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(1024)  # a client that finds no place here takes the daemon for gone
    except OSError as problem:
        listener.close()
        raise RequestError(f"cannot listen here: {problem.strerror}", where=str(path)) from None
    return listener


def listen_tcp(address: tuple[str, int]) -> socket.socket:
    """A listening TCP socket. RequestError where it cannot be had: the port is taken, the host is none of ours."""
    host, port = address
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
    except OSError as problem:
        raise RequestError(f"{host}:{port}: {problem.strerror}", where="--web") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise RequestError(f"cannot listen on {host}:{port}: {problem.strerror}", where="--web") from None
    return listener


def remove(path: Path) -> None:
    """Take the socket away; no error when it is gone already."""
    with contextlib.suppress(OSError):
        path.unlink()


def answers(path: Path) -> bool:
    """Whether somebody accepts connections on this socket."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(2)
    try:
        probe.connect(str(path))
    except TimeoutError:
        return True  # somebody is there, and busy
    except OSError as problem:
        return problem.errno in (errno.EAGAIN, errno.EPERM, errno.EACCES)
    finally:
        probe.close()
    return True


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise RequestError("there is a file of this name that is not a socket", where=str(path))
    if answers(path):
        raise DaemonError(f"another daemon answers on {path}")
    path.unlink()
