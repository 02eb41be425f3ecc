"""The end of a child process's output."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import IO

KEPT_BYTES = 64 << 10
_JOIN_SECS = 1.0


class Tail:
    """Reads a pipe in a thread of its own and keeps its end: a kernel that prints for every thread must fill neither
    the disk nor the memory. Without a pipe there is nothing. `tell` hears of all of it, as it comes."""

    def __init__(self, pipe: IO[bytes] | None = None, tell: Callable[[str], None] | None = None) -> None:
        self._kept = bytearray()
        self._tell = tell
        self._reader: threading.Thread | None = None
        if pipe is not None:
            self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
            self._reader.start()

    def text(self) -> str:
        """What is known by now; all of it soon after the child's end."""
        if self._reader is not None:
            self._reader.join(_JOIN_SECS)
        return self._kept.decode(errors="replace")

    def _read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), pipe:  # closed under our feet
            while chunk := os.read(pipe.fileno(), 1 << 16):
                self._kept += chunk
                del self._kept[:-KEPT_BYTES]
                if self._tell is not None:
                    self._tell(chunk.decode(errors="replace").strip())


def last_line(text: str) -> str:
    """The last line that is not empty, 500 characters of it at most."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""
