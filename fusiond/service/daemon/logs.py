"""The daemon's log: `2026-01-31T12:00:00Z INFO worker cuda:0: fusiond.service.daemon.worker: ...` on standard error.

One message is one line, whatever names and compilers' texts are in it, so that none can pretend to be another message;
only a traceback takes more, and its lines are indented. As JSON (`--log json`) every message is one object on one line,
with the device, job and trial that its thread works on. Messages of one kind are written at most 60 times a minute.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fusiond.model.english import shown
from fusiond.model.events import Event, JobEnded, JobStarted, TrialFinished

FORMAT = "%(asctime)sZ %(levelname)s %(threadName)s: %(name)s: %(message)s"


class LogLines(logging.Formatter):
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


class _About(threading.local):
    """What a thread works on, for the fields of its messages: `device`, `job`, `trial`."""

    def __init__(self) -> None:
        self.fields: dict[str, object] = {}


_about = _About()


def follow(event: Event) -> None:
    """Keep that for the thread in which a job runs; events are published there."""
    if isinstance(event, JobStarted):
        _about.fields = {"device": event.device, "job": event.job}
    elif isinstance(event, TrialFinished):
        _about.fields["trial"] = event.done
    elif isinstance(event, JobEnded):
        _about.fields = {}


class Objects(logging.Formatter):
    """A JSON object a line: `time`, `level`, `thread`, `module`, `message`; `device`, `job`, `trial` where the thread
    works on one; `traceback` where there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"),
            "level": record.levelname.lower(),
            "thread": record.threadName,
            "module": record.name,
            "message": record.getMessage(),
        }
        found |= _about.fields
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


class Limit(logging.Filter):
    """Lets a kind of message (a module's, of one template) pass `most` times a minute, and counts the others."""

    def __init__(self, most: int = 60, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """Kind -> when its minute began, and how many there were in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.CRITICAL:
            return True
        key, now = (record.name, str(record.msg)), self._clock()
        with self._lock:
            if len(self._seen) > 1000:
                self._seen = {kind: each for kind, each in self._seen.items() if now - each[0] < 60}
            began, count = self._seen.get(key, (now, 0))
            left_out = max(0, count - self._most)
            if now - began >= 60:
                began, count = now, 0
            else:
                left_out = 0
            self._seen[key] = began, count + 1
        if left_out:
            record.msg = f"{record.msg} ({left_out} such messages were left out in the minute before)"
        return count < self._most


COMPLAINT_SECS = 60.0
MOST_TEXTS = 32
"""Texts that are told apart; where a text is never the same twice, it is not logged more often than so in a minute."""


class Complaints:
    """Logs a recurring error of one thread once, then once a minute while it lasts; other errors are logged as well."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}  #: Text -> when it was said last, and how often it was not since

    def add(self, text: str, problem: BaseException | None = None) -> None:
        """Something went wrong; `problem` is logged with its traceback, for it is a bug."""
        now = self._clock()
        if text not in self._said and len(self._said) >= MOST_TEXTS:
            self._forget(now)
        key = text if text in self._said or len(self._said) < MOST_TEXTS else "others"
        said_at, unsaid = self._said.get(key, (None, 0))
        if said_at is not None and now - said_at < COMPLAINT_SECS:
            self._said[key] = said_at, unsaid + 1
            return
        more = f" ({unsaid} times since this was said last)" if unsaid else ""
        self._log.error("%s%s", text, more, exc_info=problem)
        self._said[key] = now, 0

    def _forget(self, now: float) -> None:
        """What was said more than a minute ago."""
        self._said = {key: (at, unsaid) for key, (at, unsaid) in self._said.items() if now - at < COMPLAINT_SECS}


def to_stderr(level: str, form: str = "text") -> None:
    """Log everything from `level` (a name of logging's) on, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Objects() if form == "json" else LogLines())
    handler.addFilter(Limit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _indented(text: str) -> str:
    return "\n".join(f"    {shown(line)}" for line in text.split("\n"))
