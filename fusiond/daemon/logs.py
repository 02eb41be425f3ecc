"""The daemon's log: `2026-01-31T12:00:00Z INFO worker cuda:0: fusiond.daemon.worker: ...` on standard error.

One message is one line, whatever names and compilers' texts are in it, so that none can pretend to be another message;
only a traceback takes more, and its lines are indented.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from fusiond.words import shown

FORMAT = "%(asctime)sZ %(levelname)s %(threadName)s: %(name)s: %(message)s"


class Lines(logging.Formatter):
    """Times in UTC, escaped lines."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(FORMAT, "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return shown(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(stack_info)


def to_stderr(level: str) -> None:
    """Log everything from `level` (a name of logging's) on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _indented(text: str) -> str:
    return "\n".join(f"    {shown(line)}" for line in text.split("\n"))
