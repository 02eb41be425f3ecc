"""One device's worker: claims the next job that this device may run, runs it, and so on until asked to stop.

Nothing that a job does may end the loop. A strategy that raises, a full disk, a lost store: logged, written into the
job where that is possible, and the loop goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import TypeAlias

from fusiond.errors import DeviceSick, FusiondError
from fusiond.events import Events, JobEnded
from fusiond.model import DeviceInfo, JobState
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow

log = logging.getLogger(__name__)

Stop: TypeAlias = Callable[[], bool]
RunJob: TypeAlias = Callable[[JobRow, DeviceInfo, Events, Stop], JobState]
"""(claimed job, device, events, stop) -> how it ended; QUEUED when `stop()` asked for it and it was put back."""


class Worker:
    """`accepts` are the device requests that it may serve; `hold` says why the
    device must not be used now, or None."""

    def __init__(
        self,
        *,
        device: DeviceInfo,
        owner: str,
        accepts: Collection[str],
        store: Store,
        run_job: RunJob,
        events: Events,
        stopping: threading.Event,
        poll_secs: float,
        hold: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.device = device
        self.job: str | None = None
        """The job that runs now."""
        self.held: str | None = None
        """Why the device is not used now."""
        self._owner = owner
        self._accepts = accepts
        self._store = store
        self._run_job = run_job
        self._events = events
        self._stopping = stopping
        self._poll_secs = poll_secs
        self._hold = hold
        self._bell = threading.Event()
        self._to_end: list[tuple[str, str]] = []
        """Jobs that failed and why, as long as the store takes no word of it: nobody else would ever end them."""

    def wake(self) -> None:
        """There may be a job: look now."""
        self._bell.set()

    def loop(self) -> None:
        """Claim and run until asked to stop."""
        while not self._stopping.is_set():
            self._bell.clear()
            try:
                worked = self._turn()
            except Exception as problem:
                log.exception("%s: %s; going on", self.device.name, type(problem).__name__)
                worked = False
            if not worked:
                self._bell.wait(self._poll_secs)

    def _turn(self) -> bool:
        """Look for one job and run it; False when there was nothing to do, or it went wrong."""
        self._write_ends()
        held = self._hold()
        if held != self.held:
            log.warning("%s: %s", self.device.name, f"waiting: {held}" if held else "in use again")
            self.held = held
        if held:
            return False
        row = self._store.claim(self._owner, devices=self._accepts)
        return row is not None and self._run(row)

    def _run(self, row: JobRow) -> bool:
        self.job = row.id
        log.info("%s: job %s begins: %s", self.device.name, row.id, row.workload_name)
        try:
            state = self._run_job(row, self.device, self._events, self._stopping.is_set)
        except DeviceSick as problem:  # the job is in the queue again, and waits
            log.error("%s: job %s waits: %s", self.device.name, row.id, problem)
            return False
        except (Exception, SystemExit) as problem:
            self._failed(row.id, problem)
            return False
        finally:
            self.job = None
        log.info("%s: job %s is %s", self.device.name, row.id, state.value)
        return True

    def _failed(self, job: str, problem: BaseException) -> None:
        """Log it, and write it into the job."""
        text = " ".join(str(problem).split())
        if isinstance(problem, FusiondError):
            log.error("%s: job %s failed: %s", self.device.name, job, text)
        else:
            text = f"a bug in fusiond or a plugin: {type(problem).__name__}: {text}"
            log.error("%s: job %s failed", self.device.name, job, exc_info=problem)
        self._to_end.append((job, text))
        self._write_ends()

    def _write_ends(self) -> None:
        while self._to_end:
            job, problem = self._to_end[0]
            self._store.finish(job, JobState.FAILED, problem)
            del self._to_end[0]
            self._events.publish(JobEnded(job=job, state=JobState.FAILED.value, problem=problem))
