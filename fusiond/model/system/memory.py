"""The system's free memory, and its count of processes killed for want of it."""

import re
from pathlib import Path

_KILLS = Path("/proc/vmstat")
_AMOUNTS = Path("/proc/meminfo")


def out_of_memory_kills() -> int | None:
    """How many processes the system has killed for want of memory since it started; None where it does not say."""
    return _number(_KILLS, r"^oom_kill (\d+)$")


def mostly_free() -> bool:
    """Whether at least half of the machine's memory can be had; False where the system does not say."""
    total_kb = _number(_AMOUNTS, r"^MemTotal: +(\d+) kB$")
    available_kb = _number(_AMOUNTS, r"^MemAvailable: +(\d+) kB$")
    return total_kb is not None and available_kb is not None and 2 * available_kb >= total_kb


def _number(path: Path, line: str) -> int | None:
    try:
        found = re.search(line, path.read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) if found else None
