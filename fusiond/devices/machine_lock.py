"""A name that one process of a machine holds: an abstract Unix socket, bound.

No file, no owner and no mode stand behind such a name, so any user can hold it, and nobody can leave it behind: the
kernel frees it when its process ends, however it ends. Who asks connects: the kernel vouches for pid and user, and the
holder says since when, and from then on that it lives. The names belong to a network namespace, that is, to the
machine and to every container without a network of its own.

    asks:     connects, and stays; `visit\\n` where a short while between two measurements of the holder's would do
    holder:   `fusiond SECONDS_SINCE_1970\\n`, then `\\n` every BEAT_SECS; the end of the stream when it lets go.
              `enter\\n` lets a visitor in, which is gone when it ends the stream; the name stays the holder's meanwhile
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import pwd
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fusiond.model.english import shown

BEAT_SECS = 2.0
_MOST_ASKING = 256
_LOOK_SECS = 0.2
_VISIT, _ENTER = b"visit\n", b"enter\n"
_HELLO = re.compile(rb"fusiond ([0-9]{1,12}(?:\.[0-9]{1,6})?)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameHolder:
    """The process that holds a name. `since` is in seconds since 1970, as it says itself; None where it says nothing
    that makes sense."""

    pid: int
    uid: int
    since: float | None

    def __str__(self) -> str:
        """`pid 4711 of anna since 12:03 UTC`."""
        who = f"pid {self.pid} of {user_name(self.uid)}" if self.pid else f"a process of {user_name(self.uid)}"
        return who if self.since is None else f"{who} since {_clock(self.since)}"


class Presence:
    """Holds a name from `hold` to `close`, and answers whoever asks, in a thread of its own."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._hello = f"fusiond {time.time():.3f}\n".encode()
        self._asking: list[socket.socket] = []
        self._lock = threading.Lock()  #: Whoever has it may use what is in there; the thread alone adds to it
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._answer, name="device lock", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # no thread to be had
            os.close(self._wake)
            os.close(self._woken)
            raise

    @classmethod
    def hold(cls, name: str) -> Presence | None:
        """None when another process, or another part of this one, holds it. OSError when the system lacks something,
        RuntimeError when that is a thread; nothing is held then."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(b"\0" + name.encode())
            listener.listen(_MOST_ASKING)
            return cls(listener)
        except BaseException as problem:
            listener.close()
            if isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE:
                return None
            raise

    def close(self) -> bool:
        """Let go; whether somebody waited for that."""
        os.close(self._woken)
        self._thread.join()
        os.close(self._wake)
        self._listener.close()  # first, so that whoever sees the end of its stream finds the name free
        for each in self._asking:
            each.close()
        return bool(self._asking)

    def let_in(self, leave: Callable[[], None], stop: Callable[[], bool], most_secs: float) -> bool:
        """Let in the first of those who ask for a visit, once `leave` has returned, and wait until it is gone, the time
        is up or `stop` says so; whether there was one."""
        visitor = self._visitor()
        if visitor is None:
            return False
        with visitor, contextlib.suppress(OSError):
            leave()
            until = time.monotonic() + most_secs
            visitor.send(_ENTER)
            while (left := until - time.monotonic()) > 0 and not stop():
                visitor.settimeout(min(left, _LOOK_SECS))
                with contextlib.suppress(TimeoutError):
                    if not visitor.recv(64):
                        break
        return True

    def _visitor(self) -> socket.socket | None:
        with self._lock:
            for each in self._asking:
                with contextlib.suppress(OSError):  # it has said nothing, or is gone
                    if each.recv(64) == _VISIT:
                        self._asking = [other for other in self._asking if other is not each]
                        return each
        return None

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._wake, 0)  # its other end closed
        poll.register(self._listener, select.POLLIN)
        next_beat = time.monotonic() + BEAT_SECS
        while True:
            ready = dict(poll.poll(1000 * max(0.0, next_beat - time.monotonic())))
            if self._wake in ready:
                return
            if self._listener.fileno() in ready and not self._accept():
                poll.unregister(self._listener)  # no descriptors: look again with the next beat
            if time.monotonic() >= next_beat:
                with self._lock:
                    self._asking = [each for each in self._asking if _said(each, b"\n")]
                poll.register(self._listener, select.POLLIN)
                next_beat = time.monotonic() + BEAT_SECS

    def _accept(self) -> bool:
        try:
            asking, _ = self._listener.accept()
        except OSError as problem:
            return problem.errno in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR)
        asking.setblocking(False)
        if len(self._asking) < _MOST_ASKING and _said(asking, self._hello):
            with self._lock:
                self._asking.append(asking)
        else:
            asking.close()
        return True


class Asking:
    """A connection to a name's holder."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.greeted = False  #: The holder is a fusiond, and has said so
        self.heard_at = time.monotonic()
        """When it gave its last sign of life, of `time.monotonic`; one that is not a fusiond gives none."""
        self.let_in = False  #: The holder waits until `close`
        self._since: float | None = None
        self._begun = b""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._pid, self._uid, _ = struct.unpack("3i", credentials)

    @classmethod
    def of(cls, name: str) -> Asking | None:
        """None when nobody holds it, or so many ask that not one more can."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(b"\0" + name.encode())
            return cls(connection)
        except OSError:
            connection.close()
            return None

    def close(self) -> None:
        self._connection.close()

    def visit(self) -> None:
        """Ask to be let in for a short while."""
        _said(self._connection, _VISIT)

    @property
    def holder(self) -> NameHolder:
        return NameHolder(pid=self._pid, uid=self._uid, since=self._since)

    def wait(self, secs: float) -> bool:
        """Listen for so long, or until it is known who the holder is, or it lets this one in; False as soon as it has
        let go."""
        known, end = self.greeted, time.monotonic() + secs
        while (left := end - time.monotonic()) > 0 and known == self.greeted and not self.let_in:
            self._connection.settimeout(left)
            try:
                data = self._connection.recv(4096)
            except TimeoutError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._hear(data)
        return True

    def _hear(self, data: bytes) -> None:
        if self.greeted:
            self.let_in = self.let_in or _ENTER in data
            if not data.replace(_ENTER, b"").strip(b"\n"):
                self.heard_at = time.monotonic()
            return
        self._begun = (self._begun + data)[:64]
        match = _HELLO.match(self._begun)
        if match:
            self.greeted = True
            self.heard_at = time.monotonic()
            since = float(match[1])
            self._since = since if since <= time.time() + 60 else None
            self._hear(self._begun[match.end() :])


def user_name(uid: int) -> str:
    """`anna`, or `user 1234` where nobody knows a name."""
    try:
        return shown(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"user {uid}"


def _clock(since: float) -> str:
    """`12:03 UTC`, with the date where that is another day."""
    then = time.gmtime(math.floor(since))
    same_day = time.strftime("%F", then) == time.strftime("%F", time.gmtime())
    return time.strftime("%H:%M UTC" if same_day else "%F %H:%M UTC", then)


def _said(asking: socket.socket, data: bytes) -> bool:
    with contextlib.suppress(OSError):
        asking.send(data)
        return True
    asking.close()
    return False
