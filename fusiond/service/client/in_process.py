"""Tunes a job in this process and reports its progress to a listener; `fusiond.tune`, `run` and `verify` share it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from fusiond import __version__
from fusiond.devices.cuda.nvml import busy
from fusiond.model.english import counted
from fusiond.model.errors import (
    DeviceSick,
    FusiondError,
    Interrupted,
    MachineFault,
    NothingKnown,
    StoreError,
    StoreUnavailable,
)
from fusiond.model.events import Event, Events, RecordChanged
from fusiond.model.nouns import Job
from fusiond.model.outcomes import JobState, Record
from fusiond.model.system import driver, faults, files
from fusiond.requests.planning import Prepared, devices_for, prepare, refuse_hopeless
from fusiond.requests.registry import Registry
from fusiond.service.client.client import Client
from fusiond.service.daemon import lock
from fusiond.service.progress import Progress, of_event
from fusiond.service.wire import time_of
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.jobs import MOST_WAIT_SECS, JobRow
from fusiond.store.process_identity import this_process
from fusiond.tuning import tuner
from fusiond.tuning.contention import Policy
from fusiond.tuning.tuner import Tuner


def checked(registry: Registry, wanted: Iterable[Job]) -> tuple[Prepared, ...]:
    """The jobs to store, each parsed once, a job for `all` devices as one for each; what is wrong with any of them is
    refused before any of them is stored.

    RequestError for the user's mistakes, DeviceError for a device that is not here (such a job would wait for ever)."""
    found: list[Prepared] = []
    for job in wanted:
        prepared = prepare(registry, job)
        names = devices_for(registry, job.device, where=job.device_where)
        found += [dataclasses.replace(prepared, job=dataclasses.replace(prepared.job, device=name)) for name in names]
    for each in found:
        refuse_hopeless(registry, each)
    return tuple(found)


class Listener(Protocol):
    """Who hears of a job that runs here."""

    def show(self, progress: Progress) -> None: ...

    def say(self, line: str) -> None:
        """A line for people, beside the progress."""


class JobFailed(FusiondError):
    """A job that ended without an answer; the text is its problem."""


def tune(
    store: Store,
    registry: Registry,
    row: JobRow,
    listener: Listener,
    *,
    again: str,
    when_busy: str = "wait",
    prepared: Prepared | None = None,
) -> dict[str, Any]:
    """Run one job here, or follow it where the daemon runs it already; the document of its answer.

    `prepared`: the job, where it was parsed here. `again` is the command that goes on after an interruption. Raises
    JobFailed, and Interrupted after Ctrl-C."""
    records: list[Record] = []

    def note(event: Event) -> None:
        listener.show(of_event(event))
        if isinstance(event, RecordChanged) and event.record.workload_key == row.workload_key:
            records.append(event.record)

    with _logged(listener), _stoppable(listener) as asked:
        made = Tuner(store, registry, Events(note, registry.notify), policy=Policy(when_busy), busy=busy)
        state = _to_its_end(store, row.id, made, listener, asked, prepared)
    files.discard_left()
    ended = store.named_job(row.id)
    if state is JobState.QUEUED or not ended.state.ended:
        stopped = _interrupted(store, ended, again)
        stopped.by_signal = asked.by_signal
        raise stopped
    if state is not JobState.DONE:
        raise JobFailed(f"job {row.id} {state.value}: {ended.problem or 'no reason was recorded'}")
    return {**answer(store, ended, records[-1] if records else None), "job": {"id": ended.id, **time_of(ended)}}


def _to_its_end(
    store: Store, job: str, made: Tuner, listener: Listener, asked: _Asked, prepared: Prepared | None
) -> JobState:
    """Run a job, again and again where it has to wait for the machine, or follow it where somebody else runs it."""
    faulty, ours = 0, False
    while True:
        try:
            ours = store.claim(this_process(), job=job) is not None or (faulty > 0 and _is_ours(store, job))
            if not ours:  # a daemon has taken it up, perhaps meanwhile, or somebody has cancelled it
                asked.following = True
                return _follow(store, job, listener, asked.stop)
            state = made.run(job, asked.stop.is_set, finish=asked.finish.is_set, prepared=prepared)
            row = store.named_job(job)
            if state is not JobState.WAITING:
                return state
            reason, secs = "", tuner.FIRST_WAIT_SECS * 2 ** min(max(row.retries - 1, 0), 10)
            faulty = 0
        except MachineFault as fault:  # the store takes no word of it: what is ours stays so
            reason, secs = f"waiting: {fault}; ", tuner.FIRST_WAIT_SECS * 2 ** min(faulty, 10)
            faulty += 1
            _reopen(store, job)
        except BaseException as problem:
            if ours:
                _let_go(store, job, problem)
            raise
        secs = min(secs, MOST_WAIT_SECS)
        listener.say(f"{reason}trying again in {secs:.0f} s (Ctrl-C stops, and keeps what is measured)")
        asked.waiting, until = True, time.monotonic() + secs
        while time.monotonic() < until and not asked.stop.wait(min(secs, 0.5)):
            pass  # a signal that another thread was given is handled here, between two of these
        asked.waiting = False
        if asked.stop.is_set():
            return JobState.QUEUED


def _reopen(store: Store, job: str) -> None:
    """Where another file has taken the store's place, go on with that one; whether it knows the job shows soon."""
    with contextlib.suppress(StoreError):
        try:
            store.check_identity()
        except StoreUnavailable:
            store.reopen(running=[job])


def _is_ours(store: Store, job: str) -> bool:
    """Whether a job is this process's to run from before a fault that could not be written down."""
    row = store.named_job(job)
    return row.state is JobState.RUNNING and row.owner == this_process()


def answer(store: Store, row: JobRow, record: Record | None) -> dict[str, Any]:
    """The document of `best --json` for what a job found."""
    family, sizes = store.family(row.workload_key)
    found = lookup.best_of(
        store.path,
        family=family,
        sizes=sizes,
        name=row.workload_name,
        device=record.device_name if record else row.device,
        driver=driver.version(),
        version=__version__,
        cache=row.search.cache,
    )
    if found is None:
        raise NothingKnown(f"job {row.id} is done, but left no answer for {row.workload_name}")
    return found


def recorded_job(store: Store, workload_key: str) -> Job:
    """The job that tuned a workload last, with the files that it was tuned with."""
    for row in store.jobs(limit=1_000_000):
        if row.workload_key == workload_key:
            return store.load_job(row.id)
    raise NothingKnown("the job that found this answer is no longer in the store; `fusiond run` it again")


def _let_go(store: Store, job: str, problem: BaseException) -> None:
    """The job ends, or goes back to the queue: after a request to stop, on a sick device, for the machine's fault."""
    if isinstance(problem, KeyboardInterrupt | Interrupted | DeviceSick) or faults.of(problem) is not None:
        store.requeue(job)
    else:
        store.finish(job, JobState.FAILED, " ".join(str(problem).split()) or type(problem).__name__)


def _follow(store: Store, job: str, listener: Listener, stop: threading.Event) -> JobState:
    """Ctrl-C ends the following, and not the job: that is somebody else's."""
    listener.say(f"job {job} is run by another process; following it")
    with Client(db=store.path) as client:
        for progress in client.watch(job):
            listener.show(progress)
            if stop.is_set():
                break
    return store.named_job(job).state


def _interrupted(store: Store, row: JobRow, again: str) -> Interrupted:
    serving = lock.holder(store.path) is not None
    stopped = f"stopped after {counted(row.trials, 'trial')}"
    if serving or row.state is JobState.RUNNING:
        return Interrupted(f"{stopped}; the daemon goes on with it (`fusiond cancel {row.id}` ends it)")
    return Interrupted(f"{stopped}; `{again}` goes on from there")


@contextmanager
def _logged(listener: Listener) -> Iterator[None]:
    """Warnings go through the listener, so that they do not tear its bar."""
    handler = _Said(listener)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Said(logging.Handler):
    def __init__(self, listener: Listener) -> None:
        super().__init__(logging.WARNING)
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self._listener.say(f"{record.levelname.lower()}: {record.getMessage()}")


@dataclasses.dataclass(slots=True)
class _Asked:
    """What Ctrl-C and SIGTERM have asked for so far."""

    stop: threading.Event
    finish: threading.Event
    following: bool = False  #: The job is somebody else's, and only watched here
    waiting: bool = False  #: Nothing runs: the machine lacks something
    by_signal: int | None = None  #: Which of them came last


@contextmanager
def _stoppable(listener: Listener) -> Iterator[_Asked]:
    """The first Ctrl-C asks for the finals of what is measured, the second (or SIGTERM) stops and keeps what is
    measured, one more interrupts at once."""
    asked = _Asked(stop=threading.Event(), finish=threading.Event())

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.stop.is_set():
            raise KeyboardInterrupt
        asked.by_signal = number
        if asked.following:
            asked.stop.set()
            listener.say("no longer following; the job goes on where it runs")
        elif asked.waiting:
            asked.stop.set()
        elif number == signal.SIGINT and not asked.finish.is_set():
            asked.finish.set()
            listener.say(
                "ending the search: the finals of what is measured come next; Ctrl-C again to stop and keep it"
            )
        else:
            asked.stop.set()
            listener.say("stopping after the running measurement; once more to stop at once")

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
