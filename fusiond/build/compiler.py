"""Runs compilers, and runs one again when the machine failed it, so that its messages are about its input."""

import contextlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusiond.model.errors import MachineFault
from fusiond.model.outcomes import BuildFailed
from fusiond.model.system import children, faults, memory

log = logging.getLogger(__name__)

PAUSES_SECS = (0.2, 1.0)  #: Before the second attempt and the third; after that it is for the job to wait
STRIKES = 2  #: Times that a compiler uses up the memory alone until its input is to blame
ASK_SECS = 30.0
_NOT_FOUND = 127
_NOT_RUN = (126, _NOT_FOUND)  #: What the shell says of a command that it cannot start


class UsedUp(MachineFault):
    """A compiler that ran alone wanted more memory than this machine has, though most of it is free without that
    compiler. Who builds a candidate takes it for the candidate's."""


class NotBuilt(Exception):
    """It is not in the cache, and this thread must not compile (`from_cache_only`)."""


_CACHE_ONLY = threading.local()


@contextlib.contextmanager
def from_cache_only() -> Iterator[None]:
    """What this thread builds meanwhile comes from the build cache; NotBuilt where it would have to be compiled."""
    before = getattr(_CACHE_ONLY, "on", False)
    _CACHE_ONLY.on = True
    try:
        yield
    finally:
        _CACHE_ONLY.on = before


def may_run(compiler: str) -> None:
    """NotBuilt where this thread must not compile."""
    if getattr(_CACHE_ONLY, "on", False):
        raise NotBuilt(f"{Path(compiler).name} would have to run")


class NotThere(MachineFault):
    """What a compiler's own script runs is not installed (any more)."""


class Turns:
    """Any number of compilers at once, or one alone. For the threads of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._alone = 0  #: Those that run alone or are about to: nobody else begins meanwhile

    @contextlib.contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        with self._changed:
            self._alone += alone
            self._changed.wait_for(lambda: not (self._running if alone else self._alone))
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._alone -= alone
                self._changed.notify_all()


_TURNS = Turns()


def run(command: Sequence[str], work: Path, timeout_secs: float) -> subprocess.CompletedProcess[str]:
    """Run a compiler in the folder `work`, where its temporary files go as well. One that wanted memory is run alone
    the next time.

    A negative `returncode` is a signal of its own doing (SIGSEGV and the like), which came every time. Raises UsedUp
    when it used up the memory by itself; MachineFault when it was killed from outside, cannot be started, or lacks
    space, memory or descriptors, time after time; subprocess.TimeoutExpired when it does not end."""
    may_run(command[0])
    return _again(command, work, timeout_secs)


def _again(command: Sequence[str], work: Path, timeout_secs: float) -> subprocess.CompletedProcess[str]:
    alone, strikes = False, 0
    for pause_secs in (*PAUSES_SECS, None):
        done, fault, wanted_memory = _once(command, work, timeout_secs, alone=alone)
        if done is not None and (fault is None and done.returncode >= 0):
            return done
        strikes += alone and wanted_memory and memory.mostly_free()
        if strikes == STRIKES:
            raise UsedUp(f"{Path(command[0]).name} used up the memory, {strikes} times, alone: {fault}")
        alone = alone or wanted_memory
        if pause_secs is None:
            break
        log.info("%s; trying once more", fault or f"{Path(command[0]).name} ended by signal")
        time.sleep(pause_secs)
    if fault is not None:
        raise fault
    assert done is not None
    return done


@dataclass(frozen=True, slots=True)
class Retriable:
    """A failure that may not come again (it ran out of time or memory): never kept."""

    failed: BuildFailed


def attempt(command: Sequence[str], work: Path, timeout_secs: float) -> subprocess.CompletedProcess[str] | Retriable:
    """`run`, of a compiler that may need more time or memory than there is."""
    try:
        return run(command, work, timeout_secs)
    except subprocess.TimeoutExpired:
        return Retriable(BuildFailed(reason=f"{Path(command[0]).name} took longer than {timeout_secs:.0f} s"))
    except UsedUp as fault:  # another day there may be more
        return Retriable(BuildFailed(reason=str(fault)))


def readable(messages: str, work: Path) -> str:
    """Without the folder of this run, so that equal sources give equal messages."""
    return messages.replace(f"{work}/", "").strip()


def refused(
    done: subprocess.CompletedProcess[str], messages: str, reason: Callable[[Iterable[str]], str | None]
) -> BuildFailed | Retriable:
    """Why a compiler has built nothing; `reason` finds the line of its messages that says so."""
    tool = Path(done.args[0]).name
    line = reason(messages.splitlines())
    if line is not None:
        return BuildFailed(reason=line, log=messages)
    if done.returncode < 0:  # every time
        return BuildFailed(reason=f"{tool} dies of {faults.signal_name(-done.returncode)} on it", log=messages)
    # No message that looks like an error: its next version may say more.
    first = next((each for each in messages.splitlines() if each.strip()), "")
    return Retriable(BuildFailed(reason=f"{tool} ended with status {done.returncode} {first}".strip(), log=messages))


def ask(command: Sequence[str]) -> str:
    """What a compiler prints about itself; empty when it is none, or not there. Raises MachineFault as `run` does:
    an answer that was cut short would be taken for another compiler's."""
    try:
        done = _again(command, Path(tempfile.gettempdir()), ASK_SECS)
    except (subprocess.TimeoutExpired, NotThere):
        return ""
    return done.stdout + done.stderr


def _once(
    command: Sequence[str], work: Path, timeout_secs: float, *, alone: bool
) -> tuple[subprocess.CompletedProcess[str] | None, MachineFault | None, bool]:
    """What it did, the machine's part in that, and whether that was for want of memory."""
    # Messages are read here, so they must be English; temporary files go where they are deleted.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(work)}
    tool = Path(command[0]).name
    with _TURNS.taken(alone=alone):
        killed_before = memory.out_of_memory_kills()
        try:
            done = children.run(command, timeout_secs=timeout_secs, cwd=work, environment=environment)
        except OSError as problem:
            return None, MachineFault(f"{tool} cannot be run: {faults.lacks(problem)}"), False
        kills = 0 if killed_before is None else (memory.out_of_memory_kills() or 0) - killed_before
    text = done.stderr + done.stdout
    fault = faults.of_end(done.returncode, tool)
    if fault is None and done.returncode in _NOT_RUN:
        kind = NotThere if done.returncode == _NOT_FOUND else MachineFault
        fault = kind(f"{tool} cannot be run: {done.stderr.strip()[:300]}")
    if fault is None and done.returncode > 0:
        fault = faults.of_compiler(text, tool)
    return done, fault, fault is not None and faults.out_of_memory(done.returncode, text, kills)


def installed(tool: str, path: str, homes: Iterable[str]) -> list[str]:
    """Where a tool of the toolkit may be: what is on PATH, then in CUDA_HOME and its like and /usr/local/cuda."""
    found = [shutil.which(tool, path=path) or ""]
    return [each for each in (*found, *(f"{home}/bin/{tool}" for home in (*homes, "/usr/local/cuda") if home)) if each]


def in_wheel(package: str, *patterns: str) -> list[str]:
    """Files of a package that pip has installed (which is not imported), those of the newest folder first."""
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations or ()) if spec else ()
    return [str(each) for at in places for one in patterns for each in sorted(Path(at).glob(one), reverse=True)]
