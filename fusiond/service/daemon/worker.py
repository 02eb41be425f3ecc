"""One device's worker: claims the next job that this device may run, runs it, and so on until asked to stop.

Nothing that a job does may end the loop. A strategy that raises is logged and written into the job; what the machine
lacks makes the job wait. How a job ended is kept in memory for as long as the store takes no word of it, and the loop
goes on.
"""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.errors import DeviceSick, FusiondError, RequestError, StoreError
from fusiond.model.events import Events, JobEnded
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.model.system import faults
from fusiond.service.daemon.logs import Complaints
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow

log = logging.getLogger(__name__)

Stop: TypeAlias = Callable[[], bool]
RunJob: TypeAlias = Callable[[JobRow, DeviceInfo, Events, Stop], JobState]
"""(claimed job, device, events, stop) -> how it ended; QUEUED when `stop()` asked for it and it was put back."""


@dataclass(kw_only=True)
class DeviceWorker:
    """The loop of one device."""

    device: DeviceInfo
    owner: str
    accepts: Collection[str]  #: The device requests that it may serve
    store: Store
    run_job: RunJob
    events: Events
    stopping: threading.Event
    poll_secs: float
    hold: Callable[[], str | None] = lambda: None  #: Why the device must not be used now, or None
    job: str | None = field(default=None, init=False)  #: The job that runs now
    held: str | None = field(default=None, init=False)  #: Why the device is not used now
    _told: str | None = field(default=None, init=False)
    _bell: threading.Event = field(default_factory=threading.Event, init=False)
    _left: list[JobEnded] = field(default_factory=list, init=False)
    """What the store takes no word of yet: nobody else would ever end these jobs, or go on with them."""
    _complaints: Complaints = field(default_factory=lambda: Complaints(log), init=False)

    def wake(self) -> None:
        """There may be a job: look now."""
        self._bell.set()

    def loop(self) -> None:
        """Claim and run until asked to stop."""
        while not self.stopping.is_set():
            self._bell.clear()
            try:
                worked = self._turn()
            except Exception as problem:
                worked = False
                fault = faults.of(problem)
                self.held = str(fault or problem)
                text = f"{self.device.name}: {fault}; trying again" if fault else f"{self.device.name}: going on"
                self._complaints.add(text, None if fault else problem)
            if not worked:
                self._bell.wait(self.poll_secs)

    def _turn(self) -> bool:
        """Look for one job and run it; False when there was nothing to do, or it went wrong."""
        self._write_down()
        self.held = held = self.hold()
        if held != self._told:
            log.warning("%s: %s", self.device.name, f"waiting: {held}" if held else "in use again")
            self._told = held
        if held:
            return False
        row = self.store.claim(self.owner, devices=self.accepts)
        return row is not None and self._run(row)

    def _run(self, row: JobRow) -> bool:
        self.job = row.id
        log.info("%s: job %s begins: %s", self.device.name, row.id, row.workload_name)
        try:
            state = self.run_job(row, self.device, self.events, self.stopping.is_set)
        except DeviceSick as problem:  # the job is in the queue again, and waits
            log.error("%s: job %s waits: %s", self.device.name, row.id, problem)
            return False
        except (Exception, SystemExit) as problem:
            self._ran_into(row.id, problem)
            return False
        finally:
            self.job = None
        why = self.store.job(row.id) if state is JobState.WAITING else None
        reason = f" for the machine: {why.waiting_for}" if why is not None else ""
        log.log(
            logging.WARNING if reason else logging.INFO,
            "%s: job %s is %s%s", self.device.name, row.id, state.value, reason,
        )  # fmt: skip
        return True

    def _ran_into(self, job: str, problem: BaseException) -> None:
        """Log it, and write it into the job: one that fails, or that waits where the machine is to blame."""
        text = " ".join(str(problem).split())
        fault, state = faults.of(problem), JobState.FAILED
        if fault is not None:
            text, state = str(fault), JobState.WAITING
        elif isinstance(problem, FusiondError):
            log.error("%s: job %s failed: %s", self.device.name, job, text)
        else:
            log.error("%s: job %s failed", self.device.name, job, exc_info=problem)
            text = f"a bug in fusiond or a plugin: {type(problem).__name__}: {text}"
        self._left.append(JobEnded(job=job, state=state.value, problem=text))
        self._write_down()

    def _write_down(self) -> None:
        for left in list(self._left):
            try:
                if left.state == JobState.WAITING:  # it has waited for the store already
                    self.store.wait(left.job, str(left.problem), secs=0)
                else:
                    self.store.finish(left.job, JobState.FAILED, left.problem)
            except RequestError:
                log.warning("%s: job %s is not in the store any more", self.device.name, left.job)
            except StoreError as problem:
                if faults.of(problem) is not None:
                    raise
                self._complaints.add(f"{self.device.name}: how job {left.job} ended is not kept yet: {problem}")
                continue  # a damaged row, perhaps: no reason to leave the others
            self._left.remove(left)
            self.events.publish(left)
