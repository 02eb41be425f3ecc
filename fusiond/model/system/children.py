"""Child processes that end with us, however we end.

A process that is killed with SIGKILL can end nobody else. So beside each fusiond that has children runs a guard, a
shell of a few lines in a session of its own: it is told of every child's process group over a pipe, and kills those
that are left when the pipe is closed, which the kernel does for whoever dies. A child that is started by `start` waits
for the guard to know of it. PR_SET_PDEATHSIG would not do: it ends with the thread that forked, and a compiler's own
children do not inherit it.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_GUARD = """
trap '' HUP INT TERM PIPE
groups=' '
while read -r word group; do
    case $word in
        +) groups="$groups$group " ;;
        -) groups="${groups%%" $group "*} ${groups#*" $group "}" ;;
    esac
done
for group in $groups; do kill -9 "-$group"; done 2>/dev/null
"""
_WAIT = 'read -r go && exec "$@" </dev/null'
"""Runs a command once a line has come; end of file means that nobody wants it any more."""


class Guard:
    """The guard of this process. Any thread may call any method; a guard that somebody killed is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        """Have a process group killed when this process ends. OSError when no guard can be started."""
        with self._lock:
            self._groups.add(group)
            try:
                self._tell(b"+ %d\n" % group)
            except OSError:
                self._groups.discard(group)
                raise

    def remove(self, group: int) -> None:
        """A group that has ended: its number may soon be another's."""
        with self._lock:
            if group in self._groups:
                self._groups.discard(group)
                with contextlib.suppress(OSError):
                    self._tell(b"- %d\n" % group)

    def close(self) -> None:
        """End the guard, and with it every child that is left; the next `add` starts another."""
        with self._lock:
            shell, self._shell = self._shell, None
            if shell is not None and shell.stdin is not None and self._owner == os.getpid():
                shell.stdin.close()
                shell.wait()

    def _tell(self, line: bytes) -> None:
        if self._shell is not None and self._owner == os.getpid() and self._shell.poll() is None:
            assert self._shell.stdin is not None
            try:
                self._shell.stdin.write(line)
                return
            except OSError:  # it has just died
                pass
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
        if self._owner != os.getpid():  # a fork of ours: the children are its parent's
            self._groups &= {int(line[2:])}
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd="/",
        )
        self._owner = os.getpid()
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"".join(b"+ %d\n" % group for group in sorted(self._groups)))


GUARD = Guard()
atexit.register(GUARD.close)


def kill(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """SIGKILL for a child and for what it has started, which are a process group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()


def run(
    command: Sequence[str],
    *,
    timeout_secs: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing on standard input, and hand back what it wrote.

    Its group is its own, so Ctrl-C is not for it; all of the group is gone when this returns or raises. Raises OSError
    when it cannot be started, and subprocess.TimeoutExpired."""
    with subprocess.Popen(
        ["/bin/sh", "-c", _WAIT, "sh", *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            GUARD.add(child.pid)
            deadline = time.monotonic() + timeout_secs
            out, err = child.communicate("go\n", timeout=max(0.0, deadline - time.monotonic()))
        finally:
            kill(child)
            child.wait()
            GUARD.remove(child.pid)
    return subprocess.CompletedProcess(list(command), child.returncode, out, err)
