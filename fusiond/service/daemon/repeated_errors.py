"""Logs a recurring error once, then once a minute while it lasts; other errors are logged as well."""

import logging
import time
from collections.abc import Callable

EVERY_SECS = 60.0
MOST_TEXTS = 32
"""Texts that are told apart; where a text is never the same twice, it is not logged more often than so in a minute."""
_OTHERS = "others"


class Complaints:
    """Of one thread."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}  #: Text -> when it was said last, and how often it was not since

    def add(self, text: str, problem: BaseException | None = None) -> None:
        """Something went wrong; `problem` is logged with its traceback, for it is a bug."""
        now = self._clock()
        if text not in self._said and len(self._said) >= MOST_TEXTS:
            self._forget(now)
        key = text if text in self._said or len(self._said) < MOST_TEXTS else _OTHERS
        said_at, unsaid = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < EVERY_SECS:
            self._said[key] = said_at, unsaid + 1
            return
        more = f" ({unsaid} times since this was said last)" if unsaid else ""
        self._log.error("%s%s", text, more, exc_info=problem)
        self._said[key] = now, 0

    def _forget(self, now: float) -> None:
        """What was said more than a minute ago."""
        self._said = {key: (at, unsaid) for key, (at, unsaid) in self._said.items() if now - at < EVERY_SECS}
