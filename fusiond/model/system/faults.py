"""Whose fault it is when something goes wrong. Three kinds, and each goes its own way:

    the program's   a kernel that does not build, crashes, hangs or is wrong: the outcome of its trial
                    (`Outcome`, `BuildFailed`, `MeasureFailed` in fusiond.model.nouns), never an exception
    the user's      a job file, a kernel, an option: RequestError, one line, exit status 2, nothing stored
    the machine's   no space, no descriptors, no memory, a process of ours killed from outside, a store that is locked
                    or gone, a GPU that fell off the bus: MachineFault; tried again, then the job waits and goes on by
                    itself; never the blame of a kernel, never a failed job

What is none of them is a bug of fusiond's or a plugin's, and is logged with its traceback.

This module decides it for whatever may come: an exception (`of`), an error of the system on a file of ours
(`of_our_file`), the end of a process (`of_end`), what a process of ours or a compiler wrote before it gave up
(`of_text`, `of_compiler`). SQLite's errors are told apart in `fusiond.store.format.explained`.
"""

import errno
import os
import re
import signal
from collections.abc import Iterable

from fusiond.model.errors import MachineFault, StoreUnavailable

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

TEMPORARY = os.EX_TEMPFAIL
"""The exit status by which a process of ours says that the machine failed it; its last line says how."""

_NO_THREAD = "can't start new thread"  #: What Python says, in a plain RuntimeError, when the system gives it no thread

_SYSTEM_SAYS = (
    r"(?:No space left on device|Disk quota exceeded|Too many open files|Cannot allocate memory|Input/output error"
    r"|Read-only file system|Stale file handle|Resource temporarily unavailable)"
)
_MEMORY_SAYS = (
    r"(?:out of memory allocating|memory exhausted|Memory allocation failure|Cannot allocate memory"
    r"|(?:instance of|what\(\):) *'?std::bad_alloc)"
)
_SAID_BY_TOOL = re.compile(
    rf"{_SYSTEM_SAYS}|{_MEMORY_SAYS}|(?:Killed|Terminated|Hangup) signal terminated program"
    r"|died due to signal (?:1|2|9|15)\b",
    re.IGNORECASE,
)
"""How tools say it: the system's words for the numbers above, and a compiler's for a part of it that was killed."""
_SAID = re.compile(rf"{_SAID_BY_TOOL.pattern}|std::bad_alloc|{_NO_THREAD}|MemoryError\b", re.IGNORECASE)
"""The same of a process of ours: Python's words as well."""
_OUT_OF_MEMORY = re.compile(_MEMORY_SAYS, re.IGNORECASE)
_PART_KILLED = re.compile(r"Killed signal terminated program|died due to signal 9\b", re.IGNORECASE)
"""What a compiler says of a part of it that got SIGKILL, which is what the system sends for want of memory."""
_QUOTED = re.compile(r"#\s*(?:error|warning)\b|static[ _]assert|^\s")
"""Lines in which a compiler repeats what stands in the source, where anything may stand: they are indented."""
_PLACED = re.compile(r"[^:(]+(?::\d+(?::\d+)?|\(\d+\)) ?: +(?P<complaint>.*)")
"""A diagnostic that points into a source: `x.cu:3:10: error: ...`, nvcc's `x.cu(3): error: ...`. It quotes the source
too, as identifiers, file names, and the text of attributes and pragmas."""
_PLACED_FAULT = re.compile(rf"(?:fatal|catastrophic) error: .*: {_SYSTEM_SAYS}", re.IGNORECASE)
"""What such a diagnostic says where a file could not be read or written: `fatal error: x.h: Too many open files`."""


def of(problem: BaseException) -> MachineFault | None:
    """The machine's fault behind an exception that nobody expected; None for a bug, and for everybody else's."""
    if isinstance(problem, MachineFault):
        return problem
    if isinstance(problem, OSError):
        return of_system(problem, f"{problem.filename}" if problem.filename else "fusiond")
    if isinstance(problem, MemoryError):
        return MachineFault(f"no memory left{f' ({problem})' if str(problem) else ''}")
    if isinstance(problem, RuntimeError) and _NO_THREAD in str(problem):
        return MachineFault("no thread to be had just now; is the number of processes or the memory limited?")
    return None


def of_system(problem: OSError, doing: str) -> MachineFault | None:
    """The machine's fault behind an error of the system; None where it may be anybody's. `doing` says what was being
    done, to which file."""
    lacking = _LACKING.get(problem.errno or 0)
    return MachineFault(f"{doing}: {lacking}") if lacking else None


def of_our_file(problem: OSError, doing: str, remedy: str = "") -> StoreUnavailable:
    """The same for a file that is fusiond's own (artifacts, the build cache): whatever is wrong with it, nothing that
    was asked for is. `doing` names the file."""
    return StoreUnavailable(f"{doing}: {lacks(problem)}{f'; {remedy}' if remedy else ''}")


def of_end(status: int, who: str) -> MachineFault | None:
    """The machine's fault behind the end of a process: None for one that ended by itself or by its own doing."""
    if status >= 0 or -status in FAULTS:
        return None
    return MachineFault(f"{who} was killed by {signal_name(-status)}; was the memory used up?")


def of_text(text: str, who: str) -> MachineFault | None:
    """The machine's fault that a process of ours complained of before it gave up; None where it did not."""
    line = first_said(text.splitlines())
    return None if line is None else MachineFault(f"{who}: {line[:300]}")


def of_compiler(text: str, who: str) -> MachineFault | None:
    """The machine's fault that a compiler complained of: None where it complained of its input. What it quotes of the
    input is not looked at."""
    line = next(filter(_blames_the_machine, text.splitlines()), None)
    return None if line is None else MachineFault(f"{who}: {line.strip()[:300]}")


def out_of_memory(status: int, text: str, kills: int) -> bool:
    """Whether a compiler that the machine failed wanted memory: it says so, or it was killed while the system killed
    `kills` processes for that."""
    line = next(filter(_blames_the_machine, text.splitlines()), "")
    return bool(_OUT_OF_MEMORY.search(line)) or (
        kills > 0 and (status == -signal.SIGKILL or bool(_PART_KILLED.search(line)))
    )


def first_said(lines: Iterable[str]) -> str | None:
    """The first line in which a process of ours says what the machine lacked."""
    return next((each.strip() for each in lines if _SAID.search(each)), None)


def _blames_the_machine(line: str) -> bool:
    if _QUOTED.search(line):
        return False
    placed = _PLACED.match(line)
    if placed:
        return _PLACED_FAULT.fullmatch(placed["complaint"].rstrip()) is not None
    return _SAID_BY_TOOL.search(line) is not None


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def lacks(problem: OSError) -> str:
    """In a few words what the system said."""
    if problem.errno in _LACKING:
        return _LACKING[problem.errno]
    return problem.strerror or (os.strerror(problem.errno) if problem.errno else str(problem))
