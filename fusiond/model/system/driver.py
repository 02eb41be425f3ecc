"""The NVIDIA driver's version, as the kernel tells it. Standard library only: `fusiond best` asks at every call."""

import re

_PROC = "/proc/driver/nvidia/version"
_VERSION = r"\b([0-9]{3,}\.[0-9]+(?:\.[0-9]+)?)\b"


def version(path: str = _PROC) -> str | None:
    """For example `580.95.05`; None where there is no driver."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            first = file.readline()
    except OSError:
        return None
    found = re.search(_VERSION, first)
    return found[1] if found else None
