"""Starting the process that loads the plugins, without waiting for it, so that a command can have it done while its own
modules are imported: forked from the command where that is safe, since to import the same modules again takes longer
than all else; else a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from fusiond.requests.isolation.limits import MEMORY_BYTES, SECS, STACK_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the start
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

ENVIRONMENT = {
    "LIBCLANG_NOTHREADS": "1",  # else it parses in a thread of its own, with a shallow stack
    "OPENBLAS_NUM_THREADS": "1",  # threads of a zygote would not be in its children
    "OMP_NUM_THREADS": "1",
}
BEFORE_A_FORK = frozenset({"numpy", "jax", "torch"})
"""Modules that must not be there yet: they have threads, or have read ENVIRONMENT already."""


class Started:
    """A process that loads the plugins, and our end of its socket."""

    __slots__ = ("arguments", "control", "process")

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], *, fork: bool = False) -> None:
        self.arguments = tuple(arguments)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process: subprocess.Popen[bytes] | Forked
        with theirs:
            if fork:
                self.process = Forked(theirs.fileno(), arguments)
                return
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fusiond.requests.isolation.zygote", str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the program that asks
                env={**os.environ, **ENVIRONMENT, **environment},
            )


class Forked:
    """A zygote forked from this process: what `Started` asks of a `subprocess.Popen`."""

    def __init__(self, control: int, arguments: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._lock = threading.Lock()
        out, err = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out[0], "rb"), os.fdopen(err[0], "rb")
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become_zygote(control, out[1], err[1], arguments)
        finally:
            os.close(out[1])
            os.close(err[1])

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # this process was started to ignore the ends of its children
                    pid, status = self.pid, 0
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("zygote", timeout or 0.0)
            time.sleep(0.001)
        return status

    def terminate(self, number: int = signal.SIGTERM) -> None:
        self.poll()
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.terminate(signal.SIGKILL)


def _become_zygote(control: int, out: int, err: int, arguments: Sequence[str]) -> NoReturn:
    """Never returns, so that nothing of the command is done twice: no `finally`, no `atexit`, nothing written to where
    it writes."""
    status = 1
    try:
        os.setpgid(0, 0)
        for at, each in enumerate((os.open(os.devnull, os.O_RDONLY), out, err, control)):
            os.dup2(each, at, inheritable=at < 3)
        for each in map(int, os.listdir("/proc/self/fd")):
            if each > 3:
                with contextlib.suppress(OSError):  # the one that lists them
                    os.close(each)
        os.environ.update(ENVIRONMENT)
        status = sys.modules["fusiond.requests.isolation.zygote"].main(["3", *arguments])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def arguments(
    secs: float = SECS,
    memory_bytes: int = MEMORY_BYTES,
    stack_bytes: int = STACK_BYTES,
    source: str = "",
    without: Sequence[str] = (),
    told: bool = False,
) -> tuple[str, ...]:
    """The command line of a zygote; `told`: it waits to be told which plugins to load."""
    return (str(secs), str(memory_bytes), str(stack_bytes), source, "told" if told else "", *without)


_early: list[Started] = []


def early(*, told: bool = False, fork: bool = False) -> None:
    """Start one for this environment's plugins now; whoever needs one first takes it. Where the machine has no process
    to spare just now, whoever needs one tries again. `fork`: this process runs a command and nothing else."""
    if not _early:
        with contextlib.suppress(OSError, MemoryError):
            _early.append(Started(arguments(told=told), {}, fork=fork and _alone()))
            atexit.register(_unused)


def _alone() -> bool:
    """Whether this process can be forked: with one thread, streams of its own, and all that both need imported."""
    import fusiond.requests.isolation.zygote  # noqa: F401 - where it is not forked, nobody needs it

    streams = sys.__stdin__, sys.__stdout__, sys.__stderr__  # None where one was closed: its number is another file's
    return None not in streams and not BEFORE_A_FORK & sys.modules.keys() and len(os.listdir("/proc/self/task")) == 1


def _unused() -> None:
    while _early:
        found = _early.pop()
        found.control.close()
        found.process.kill()
        found.process.wait()


def started(wanted: Sequence[str], environment: Mapping[str, str]) -> Started:
    """The one that was started early, where it is what is wanted; else a new one."""
    if _early and not environment and _early[-1].arguments == tuple(wanted) and _early[-1].process.poll() is None:
        return _early.pop()
    return Started(wanted, environment)
