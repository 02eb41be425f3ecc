"""Starting the process that loads the plugins: without waiting for it, and with the standard library alone, so that a
command can have it done while its own modules are imported."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the start
    from collections.abc import Mapping, Sequence

SECS = 60.0
MEMORY_BYTES = 4 << 30
STACK_BYTES = 64 << 20


class Started:
    """A process that loads the plugins, and our end of its socket."""

    __slots__ = ("arguments", "control", "process")

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.arguments = tuple(arguments)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fusiond.isolation.zygote", str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the program that asks
                env={
                    **os.environ,
                    "LIBCLANG_NOTHREADS": "1",  # else it parses in a thread of its own, with a shallow stack
                    "OPENBLAS_NUM_THREADS": "1",  # threads of a zygote would not be in its children
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
            )


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


def early(*, told: bool = False) -> None:
    """Start one for this environment's plugins now; whoever needs one first takes it. Where the machine has no process
    to spare just now, whoever needs one tries again."""
    if not _early:
        with contextlib.suppress(OSError, MemoryError):
            _early.append(Started(arguments(told=told), {}))
            atexit.register(_unused)


def _unused() -> None:
    while _early:
        found = _early.pop()
        found.control.close()
        found.process.kill()
        found.process.communicate()


def started(wanted: Sequence[str], environment: Mapping[str, str]) -> Started:
    """The one that was started early, where it is what is wanted; else a new one."""
    if _early and not environment and _early[-1].arguments == tuple(wanted) and _early[-1].process.poll() is None:
        return _early.pop()
    return Started(wanted, environment)
