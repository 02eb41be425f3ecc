"""Identifies the process that runs a job: its id with the boot and its start time."""

import functools
import os
from pathlib import Path

_PROC = Path("/proc")


def this_process() -> str:
    """`pid:boot_id:start_time` of the calling process."""
    pid = os.getpid()
    return f"{pid}:{_boot_id()}:{_start_time(pid)}"


def is_alive(owner: str) -> bool:
    """Whether that very process still runs. What is not an owner's text belongs to nobody.

    OSError where the system does not say: a job must not be taken from one who runs it for want of descriptors. Where
    the owner is in another container of the same machine it cannot be seen, and counts as gone."""
    pid, _, rest = owner.partition(":")
    boot, _, started = rest.rpartition(":")
    if not (pid.isascii() and pid.isdigit()) or not boot or boot != _boot_id():
        return False
    return _start_time(int(pid)) == started


@functools.cache
def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _start_time(pid: int) -> str | None:
    """In clock ticks since boot; None when there is no such process, or only what is left of one."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None  # any other error says nothing of that process
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    return None if fields[0] in "ZX" else fields[19]
