"""The processes behind a planner, seen from the program that asks: the one that forks, and its children."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from fusiond.model.system import faults
from fusiond.model.system.tail import Tail, last_line
from fusiond.requests.isolation import messages, start
from fusiond.requests.isolation.messages import ChildLimits, Description

log = logging.getLogger(__name__)

START_SECS = 60.0
OVERSLEPT_SECS = 5.0  #: A wait that takes so much longer than it should means that this process was stopped meanwhile


class Helper(Protocol):
    """Does on this side what a child asks for while it works on a request."""

    def __call__(self, name: str, arguments: Sequence[Any]) -> object: ...


class Crashed(Exception):
    """A request that its child died of, twice and alone. `how` is what became of it."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


class TookTooLong(Exception):
    """A request that was stopped after so many seconds."""

    def __init__(self, secs: float) -> None:
        self.secs = secs
        super().__init__(f"more than {secs:g} s")


class Lost(Exception):
    """The child went away; `status` as that of `subprocess`, None when nobody knows."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        super().__init__(str(status))


def by_itself(status: int) -> bool:
    """Whether a process ended by its own doing: a fault, an exit that nobody asked for."""
    return faults.of_end(status, "") is None


def how(status: int | None) -> str:
    if status is None:
        return "it vanished"
    if status < 0:
        return f"died of {faults.signal_name(-status)}"
    return f"ended with exit status {status}"


def nobody(name: str, arguments: Sequence[Any]) -> object:
    raise LookupError(f"{name} is not done here")


class DiedLoading(Exception):
    def __init__(self, plugin: str, status: int, said: str) -> None:
        self.plugin, self.status = plugin, status
        super().__init__(f"{how(status)}{': ' + said if said else ''}")


class Zygote:
    """The process that forks, and the thread that hears of its children's ends."""

    def __init__(
        self,
        source: str,
        limits: ChildLimits,
        environment: Mapping[str, str],
        without: tuple[str, ...],
        only: Sequence[str] | None = None,
    ) -> None:
        told = only is not None
        wanted = start.arguments(limits.secs, limits.memory_bytes, limits.stack_bytes, source, without, told)
        found = start.started(wanted, environment)
        self._process, self._control = found.process, found.control
        if only is not None:
            self._control.send(" ".join(only).encode() or b" ")
        self._said = Tail(self._process.stderr, lambda text: log.debug("%s", text))
        self.alive = True
        self._numbers = itertools.count()
        self._running: dict[int, Child] = {}
        self._lock = threading.Lock()
        try:
            self.description = self._described()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._listen, name="planning", daemon=True).start()

    def _described(self) -> Description:
        out = self._process.stdout
        assert out is not None
        timer = threading.Timer(START_SECS, self._process.kill)
        timer.daemon = True
        timer.start()
        plugin = ""
        try:
            with out:
                while line := out.readline():
                    word, _, rest = line.decode(errors="replace").strip().partition(" ")
                    if word == "loading":
                        plugin = rest
                    elif word == "ready":
                        found: Description = pickle.loads(out.read())
                        return found
        except (pickle.UnpicklingError, EOFError):
            pass
        finally:
            timer.cancel()
        raise DiedLoading(plugin, self._process.wait(), last_line(self._said.text()))

    def fork(self) -> Child:
        """A new child. OSError when the zygote is gone, or descriptors are used up."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = next(self._numbers)
            child = Child(Connection(ours.detach()), lambda: self._kill(number))
            with self._lock:
                self._running[number] = child
            try:
                socket.send_fds(self._control, [f"fork {number}".encode()], [theirs.fileno()])
            except OSError:
                child.ended(None)
                raise
        if not self.alive:
            child.ended(None)
        child.listen()
        return child

    def close(self) -> None:
        self.alive = False
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.terminate()  # its children go with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._control.close()

    def _kill(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(f"kill {number}".encode())

    def _listen(self) -> None:
        while True:
            try:
                message = self._control.recv(64)
            except OSError:
                message = b""
            if not message:
                break
            word, number, value = message.split()
            with self._lock:
                child = self._running.get(int(number)) if word == b"pid" else self._running.pop(int(number), None)
            if child is not None and word == b"pid":
                child.pid = int(value)
            elif child is not None:
                child.ended(int(value))
        self.alive = False
        with self._lock:
            lost = list(self._running.values())
            self._running.clear()
        for child in lost:
            child.ended(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._control.close()


class Child:
    """One child: requests by number, and the thread that hands out its answers."""

    def __init__(self, connection: Connection, kill: Callable[[], None]) -> None:
        self.keeps: set[int] = set()
        self.parsed = 0
        self.pid = 0  #: Of its process, soon after it was started
        self.alive = True
        self._connection = connection
        self._kill = kill
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[tuple[Any, ...]]] = {}
        self._sending = threading.Lock()
        self._status: int | None = None
        self._gone = threading.Event()

    @property
    def busy(self) -> int:
        """Requests under way."""
        return len(self._waiting)

    def listen(self) -> None:
        threading.Thread(target=self._listen, name="planning", daemon=True).start()

    def kill(self) -> None:
        self.alive = False
        self._kill()

    def forget(self, number: int) -> None:
        if number in self.keeps:
            self.keeps.discard(number)
            with contextlib.suppress(Lost):
                self._send(("drop", [number]))

    def ended(self, status: int | None) -> None:
        """Its process is gone."""
        self.alive = False
        self._status = status
        self._gone.set()

    def ask(self, method: str, arguments: tuple[object, ...], helper: Helper, secs: float) -> Any:
        """One request. Raises what it raised there; Lost, TookTooLong."""
        number = next(self._numbers)
        answers: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._waiting[number] = answers
        self.parsed += method == "parse"
        try:
            self._send(("ask", number, method, arguments))
            deadline = time.monotonic() + secs
            while True:
                kind, *rest = _next(answers, deadline, secs)
                if kind == "lost":
                    raise Lost(rest[0])
                if kind == "done":
                    return rest[0]
                if kind == "raised":
                    raise rest[0]
                begun = time.monotonic()
                self._send(("answer", number, *_helped(helper, *rest)))
                deadline += time.monotonic() - begun
        finally:
            del self._waiting[number]

    def _send(self, message: tuple[object, ...]) -> None:
        try:
            with self._sending:
                messages.send(self._connection, message)
        except OSError:
            self._gone.wait(5)
            raise Lost(self._status) from None

    def _listen(self) -> None:
        try:
            while True:
                kind, *rest = messages.receive(self._connection)
                if kind == "log":
                    level, name, text = rest
                    logging.getLogger(name).log(level, "%s", text)
                elif (waiting := self._waiting.get(rest[0])) is not None:
                    waiting.put((kind, *rest[1:]))
        except Exception as problem:  # also what cannot be unpickled: then nothing more can be understood
            if not isinstance(problem, EOFError | OSError):
                log.error("a planning process cannot be understood: %s: %s", type(problem).__name__, problem)
        self.alive = False
        self._kill()
        self._gone.wait(5)
        for waiting in list(self._waiting.values()):
            waiting.put(("lost", self._status))
        with self._sending:  # its descriptor's number may be another file's a moment later
            self._connection.close()


def _next(answers: queue.SimpleQueue[tuple[Any, ...]], deadline: float, secs: float) -> tuple[Any, ...]:
    while True:
        left = max(0.0, deadline - time.monotonic())
        begun = time.monotonic()
        try:
            return answers.get(timeout=left)
        except queue.Empty:
            overslept = time.monotonic() - begun - left
            if overslept < OVERSLEPT_SECS:
                raise TookTooLong(secs) from None
            deadline = time.monotonic() + secs  # we were stopped ourselves, and the child perhaps with us


def _helped(helper: Helper, name: str, arguments: Sequence[Any]) -> tuple[bool, object]:
    try:
        return True, helper(name, arguments)
    except Exception as problem:
        return False, problem
