"""What goes wrong again and again is logged once, and then once a minute for as long as it lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY_SECS = 60.0


class Complaints:
    """Of one thread."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said_at: float | None = None
        self._unsaid = 0

    def add(self, text: str, problem: BaseException | None = None) -> None:
        """Something went wrong; `problem` is logged with its traceback, for it is a bug."""
        now = self._clock()
        if self._said_at is not None and now - self._said_at < EVERY_SECS:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} times since this was said last)" if self._unsaid else ""
        self._log.error("%s%s", text, more, exc_info=problem)
        self._said_at, self._unsaid = now, 0
