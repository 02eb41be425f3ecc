"""Whose fault it is when something goes wrong. Three kinds, and each goes its own way:

    the program's   a kernel that does not build, crashes, hangs or is wrong: the outcome of its trial
                    (`Outcome`, `BuildFailed`, `MeasureFailed` in fusiond.model), never an exception
    the user's      a job file, a kernel, an option: RequestError, one line, exit status 2, nothing stored
    the machine's   no space, no descriptors, no memory, a process of ours killed from outside, a store that is locked
                    or gone, a GPU that fell off the bus: MachineFault; tried again, then the job waits and goes on by
                    itself; never the blame of a kernel, never a failed job

What is none of them is a bug of fusiond's or a plugin's, and is logged with its traceback.
"""

from __future__ import annotations

import errno
import os
import signal

from fusiond.errors import MachineFault

_LACKING = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EMFILE: "no file descriptors left in this process",
    errno.ENFILE: "no file descriptors left on this machine",
    errno.ENOMEM: "no memory left",
    errno.EAGAIN: "no process or memory to be had just now",
    errno.EIO: "the disk failed to read or write",
    errno.EROFS: "the file system is read-only",
    errno.ESTALE: "the file system is gone",
    errno.ENODEV: "the device is gone",
}
"""What the system says when it cannot, whatever is asked of it."""

FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
"""Signals that a program brings upon itself; it was killed from outside by every other one."""


def of_system(problem: OSError, doing: str) -> MachineFault | None:
    """The machine's fault behind an error of the system; None where it may be anybody's. `doing` says what was being
    done, to which file."""
    lacking = _LACKING.get(problem.errno or 0)
    return MachineFault(f"{doing}: {lacking}") if lacking else None


def of_end(status: int, who: str) -> MachineFault | None:
    """The machine's fault behind the end of a process: None for one that ended by itself or by its own doing."""
    if status >= 0 or -status in FAULTS:
        return None
    return MachineFault(f"{who} was killed by {signal_name(-status)}; was the memory used up?")


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def lacks(problem: OSError) -> str:
    """In a few words what the system said."""
    return _LACKING.get(problem.errno or 0) or problem.strerror or os.strerror(problem.errno or 0)
