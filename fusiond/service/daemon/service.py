"""The daemon as a whole: lock, socket, workers, HTTP, signals.

The first SIGTERM (or Ctrl-C) lets every worker finish and record its running measurement, puts the jobs back, and
ends with exit status 0. A second one kills at once; what was recorded is on disk, and the next start takes the jobs
up again.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from fusiond import __version__
from fusiond.model.errors import (
    DaemonError,
    DeviceError,
    FusiondError,
    NothingKnown,
    RequestError,
    StoreError,
    StoreUnavailable,
)
from fusiond.model.events import Events, JobEnded
from fusiond.model.nouns import NAMED_ONLY, DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.model.system import driver, faults
from fusiond.service.daemon import logs
from fusiond.service.daemon import socket as sockets
from fusiond.service.daemon.app import App, BestQuery, JobQuestion, Submission
from fusiond.service.daemon.config import AT_RUN_TIME, DaemonConfig
from fusiond.service.daemon.http import HttpServer, Tcp
from fusiond.service.daemon.judge import Docket
from fusiond.service.daemon.limits import HttpLimits
from fusiond.service.daemon.lock import StoreLock
from fusiond.service.daemon.logs import Complaints
from fusiond.service.daemon.metrics import Metrics, State
from fusiond.service.daemon.notify import Notifier
from fusiond.service.daemon.stream import Broker
from fusiond.service.daemon.upstream_server import Endpoints
from fusiond.service.daemon.upstream_sync import Between
from fusiond.service.daemon.worker import DeviceWorker, RunJob, Stop
from fusiond.service.progress import end_of_row
from fusiond.service.web.pages import Pages, unchanged
from fusiond.service.web.views import Now
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.process_identity import this_process

log = logging.getLogger(__name__)

BEAT_SECS = 0.5  #: How often the main thread looks after the others
SILENT_SECS = 10.0  #: An HTTP server whose loop has not turned for so long hangs

RECOVER_SECS = 10.0  #: How often it is looked whether a job is called running that nobody runs

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonWork:
    """What the daemon does for its users, in several threads; a parameter, so that tests do without a device."""

    run_job: RunJob
    submit: Callable[[Submission], tuple[JobRow, ...]]
    """Parse, check and store the jobs of one file. RequestError for a user's mistake."""
    best: Callable[[JobQuestion], tuple[dict[str, Any] | NothingKnown, ...]]
    """The answers for what the jobs of one file ask, by their content. RequestError for a user's mistake."""
    devices: Callable[[], tuple[DeviceInfo, ...]]  #: The devices that are there, best first
    plugins: Callable[[], list[dict[str, Any]]]
    busy: Callable[[DeviceInfo], str | None] = lambda device: None  #: Why a device should be left alone now, or None
    probe: Callable[[DeviceInfo], str | None] = lambda device: "nobody looked"
    """What is wrong with a sick device, or None when it works again."""
    again: Callable[[str], JobRow] = unchanged  #: Queue what an ended job asked once more
    elsewhere: Callable[[BestQuery], dict[str, Any] | None] = lambda question: None
    """What other boxes found about a name of which this one knows nothing."""
    judge: Sequence[str] = (sys.executable, "-m", "fusiond.cli.preloaded", "judge")
    """The command that judges a candidate (`fusiond.service.daemon.judge.Docket`)."""
    answered: Callable[[JobRow, DeviceInfo], str | None] = lambda row, device: None
    """By whom a job's question was answered meanwhile, on another box whose key is trusted; None: by nobody."""


class Service:
    """`run` serves until `stopping` is set, which is what a signal does."""

    def __init__(
        self,
        store: Store,
        config: DaemonConfig,
        work: DaemonWork,
        limits: HttpLimits | None = None,
        notifier: Notifier | None = None,
        reread: Callable[[], DaemonConfig] | None = None,
        between: Between | None = None,
    ) -> None:
        """`reread` gives the configuration of now, and applies what the service itself does not use; with it, SIGHUP
        reads the configuration again, without it SIGHUP ends the service as SIGTERM does."""
        self.store = store
        self.limits = limits or HttpLimits()
        self.database = store.path.absolute()
        self.config = config
        self.work = work
        self.socket = (config.socket or sockets.default_path(self.database)).absolute()
        self.broker = Broker()
        self.metrics = Metrics(self._state)
        self.events = Events(self.broker, logs.follow, functools.partial(log.debug, "%s"), self.metrics)
        self.stopping = threading.Event()
        self._reread = reread
        self._between = between
        if between is not None:
            self.events.subscribe(between.heard)
            for each in between.upstreams:
                each.heard = self.metrics.called
        self._to_reread = threading.Event()
        self.started = time.monotonic()
        self.workers: list[DeviceWorker] = []
        self._threads: list[threading.Thread] = []
        self._lost = False
        self._tcp: Tcp | None = None
        self._complaints = Complaints(log)
        self._notifier = notifier or Notifier({})
        self._fed_at = -math.inf
        self._recovered_at = time.monotonic()
        self._lock = StoreLock(store)
        self.announce: Callable[[str], None] = lambda url: log.info("pages at %s", url)
        """What is done with the URL of the pages."""

    # --- life ---

    def run(self) -> int:
        """Serve; the exit status."""
        with contextlib.ExitStack() as held:
            self._lock.acquire()
            held.callback(self._lock.release)
            self.store.recover()
            self.workers = self._make_workers(self.work.devices())
            timed = [each.device.name for each in self.workers if each.device.evidence == "measured"]
            self.docket = Docket(self.work.judge, timed, self.config.judge_mb << 20, self.metrics.judged)
            listener = sockets.listen(self.socket)
            held.callback(sockets.remove, self.socket)
            held.callback(listener.close)
            self._lock.announce(self.socket)
            return self._serve(listener)

    def _serve(self, listener: sockets.Listener) -> int:
        where = self.config.web
        self._tcp = Tcp(where, self.config.tls_cert, self.config.tls_key) if where is not None else None
        pages = Pages(self.store, self._now, self._buttons(), self.broker.standings.of)
        exchange = Endpoints(self._between.exchange, self.metrics.served).routes() if self._between is not None else []
        app = App(self, pages.routes(), exchange).starlette()
        server = HttpServer(app, self.limits)
        http = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
        http.start()
        if self._tcp is not None:
            rights = self._between.rights if self._between is not None else (lambda token: None)
            self.announce(self._tcp.serve(app, rights, self.limits))
        self._threads = [self._start(worker) for worker in self.workers]
        names = ", ".join(each.device.name for each in self.workers)
        log.info("serving %s on %s: %s", self.database, self.socket, names)
        if self._between is not None:
            self._between.start()
        self._notifier.ready(f"serving {self.database}")
        while http.is_alive() and not self.stopping.wait(BEAT_SECS):
            for each in (self._revive, self._same_store, self._still_ours, self._recover, self._reconfigure):
                try:
                    each()
                except Exception as problem:  # whatever it is, the daemon goes on
                    fault = faults.of(problem)
                    known = fault or isinstance(problem, FusiondError)
                    self._complaints.add(str(fault or problem), None if known else problem)
            self._feed_watchdog(server)
        status = 1 if self._lost else 0
        self._notifier.stopping()
        log.info("stopping; running measurements are finished and recorded (a second signal kills)")
        if not self.stopping.is_set():
            log.error("the HTTP server ended by itself")
            self.stopping.set()
            status = 1
        self._wake()
        while any(thread.is_alive() for thread in self._threads):
            time.sleep(0.02)
            self._feed_watchdog(server)
        self.broker.close()
        self.docket.close()
        if self._between is not None:
            self._between.close()
        if self._tcp is not None:
            self._tcp.stop()
        server.should_exit = True
        http.join(5)
        log.info("stopped")
        return status

    def _now(self) -> Now:
        """What the pages show beside the store."""
        return Now(workers=self.devices(), upstreams=self._between.state()[1] if self._between is not None else ())

    def _buttons(self) -> dict[str, Callable[[str], JobRow]]:
        """What the pages may change."""

        def again(job: str) -> JobRow:
            row = self.work.again(job)
            self._wake()
            return row

        return {"cancel": self.cancel, "finish": self.store.finish_early, "again": again}

    def _feed_watchdog(self, server: HttpServer) -> None:
        """Only as long as the workers' threads and the loop of the HTTP server live. A device that hangs is the
        business of its worker, which measures in a child process that it kills."""
        due = time.monotonic() >= self._fed_at + self._notifier.watchdog_secs / 4
        if not self._notifier.watchdog_secs or not due:
            return
        if server.silent_secs > SILENT_SECS or not (
            self.stopping.is_set() or all(each.is_alive() for each in self._threads)
        ):
            return
        self._fed_at = time.monotonic()
        self._notifier.alive()

    def _start(self, worker: DeviceWorker) -> threading.Thread:
        thread = threading.Thread(target=worker.loop, name=f"worker {worker.device.name}", daemon=True)
        thread.start()
        return thread

    def _revive(self) -> None:
        """A worker's thread that ended although its loop lets nothing out: start another."""
        for index, thread in enumerate(self._threads):
            if not thread.is_alive() and not self.stopping.is_set():
                log.error("%s ended unexpectedly and is started again", thread.name)
                self._threads[index] = self._start(self.workers[index])

    def _same_store(self) -> None:
        """When another file has taken the store's place, go on with that one; while there is none, say so now and
        then. What is asked meanwhile is refused, and not acknowledged."""
        try:
            self.store.check_identity()
        except StoreUnavailable:
            queued = self.store.reopen(running=[each.job for each in self.workers if each.job])
            text = "%s was replaced; going on with the file that is there now, of whose jobs %d were running"
            log.warning(text, self.database, len(queued))
            self._wake()

    def _reconfigure(self) -> None:
        """After a SIGHUP: read the configuration again. What is wrong with it is said, and changes nothing."""
        if not self._to_reread.is_set() or self._reread is None:
            return
        self._to_reread.clear()
        try:
            found = self._reread()
            if self._tcp is not None:
                self._tcp.renew()
        except RequestError as problem:
            log.error("%s; the configuration stays as it was", problem)
            return
        names = [each.name for each in dataclasses.fields(DaemonConfig)]
        others = [name for name in names if getattr(found, name) != getattr(self.config, name)]
        changed = [name for name in others if name in AT_RUN_TIME]
        self.config = dataclasses.replace(self.config, **{name: getattr(found, name) for name in changed})
        for worker in self.workers:
            worker.poll_secs = self.config.poll_secs
        log.warning("configuration read again; changed: %s", ", ".join(changed) or "nothing")
        if later := [name for name in others if name not in AT_RUN_TIME]:
            log.warning("these keys ask for a new start: %s", ", ".join(later))

    def _recover(self) -> None:
        """Now and then: what a process that is gone ran, and what a worker claimed without ever learning of it."""
        if time.monotonic() < self._recovered_at + RECOVER_SECS:
            return
        self._recovered_at = time.monotonic()
        if found := self.store.recover(own=this_process()):
            log.warning("queued again, since no process runs them: %s", ", ".join(found))
            self._wake()

    def _still_ours(self) -> bool:
        """Whether this daemon serves its store; asked before each claim. When another one does, this one ends."""
        if not self._lost:
            try:
                self._lock.keep()
            except DaemonError as problem:
                log.error("%s; this one ends", problem)
                self._lost = True
                self.stopping.set()
            except (OSError, StoreError) as problem:  # who claims will meet it too, and says so
                log.debug("the lock cannot be looked at: %s", problem)
        return not self._lost

    def handle_signals(self) -> None:
        """Take SIGTERM, SIGINT and SIGHUP; to be called in the main thread, before `run`."""
        for each in SIGNALS:
            signal.signal(each, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._reread is not None:
            self._to_reread.set()
            return
        if self.stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        # No logging in here: the signal may have come while a handler's lock is held.
        self.stopping.set()

    # --- workers ---

    def _make_workers(self, found: Iterable[DeviceInfo]) -> list[DeviceWorker]:
        devices = [each for each in found if self.config.names(each.name)]
        if not devices:
            raise DeviceError("no device that the configuration names is here; `fusiond doctor` says what is missing")
        for each in devices:  # a new start is a new chance for a sick one: somebody looked after it
            if reason := self.store.sick(each.key, each.uuid):
                log.warning("%s was sick (%s) and is tried again", each.name, reason)
                self.store.set_sick(each.key, each.uuid, None)
        here = [each for each in devices if each.evidence not in NAMED_ONLY]
        best = {each.name for each in here if each.evidence == "measured"} or {each.name for each in here}
        return [self._make_worker(each, best) for each in devices]

    def _make_worker(self, info: DeviceInfo, best: set[str]) -> DeviceWorker:
        name = info.name

        accepts = {name, name.partition(":")[0]} | ({"auto"} if name in best else set())

        looked_at = time.monotonic()

        def hold() -> str | None:
            nonlocal looked_at
            if not self._still_ours():
                return "this daemon serves no longer"
            sick = self.store.sick(info.key, info.uuid)
            if sick and time.monotonic() - looked_at >= self.config.probe_secs:
                looked_at = time.monotonic()
                wrong = self.work.probe(info)
                if wrong is None:
                    log.warning("%s works again", info.name)
                    self.store.set_sick(info.key, info.uuid, None)
                    sick = None
            if sick:
                return f"the device is sick: {sick}"
            return self.work.busy(info) if self.config.when_busy != "share" else None

        def run_job(row: JobRow, device: DeviceInfo, events: Events, stop: Stop) -> JobState:
            self.metrics.runs(row.id, device.name)
            if self._between is None or row.kind != "tune":
                return self.work.run_job(row, device, events, stop)
            with self._between.alone(row, device, self.work.answered) as state:
                if state is None:
                    return self.work.run_job(row, device, events, stop)
            events.publish(JobEnded(job=row.id, state=state.value))
            return state

        return DeviceWorker(
            device=info,
            owner=this_process(),
            accepts=accepts,
            store=self.store,
            run_job=run_job,
            events=self.events,
            stopping=self.stopping,
            poll_secs=self.config.poll_secs,
            hold=hold,
        )

    # --- what the endpoints do ---

    def _state(self) -> State:
        kept, upstreams = self._between.state() if self._between is not None else (None, [])
        return State(
            exchange=kept,
            upstreams=upstreams,
            jobs=self.store.jobs_by_state(),
            judging=self.docket.state(),
            devices=[
                {**entry, "sick": self.store.sick(worker.device.key, worker.device.uuid)}
                for entry, worker in zip(self.devices(), self.workers, strict=True)
            ],
            store_bytes=self.store.size_bytes(),
        )

    def health(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "store": str(self.database),
            "state": "stopping" if self.stopping.is_set() else "serving",
            "uptime_secs": round(time.monotonic() - self.started, 1),
            "workers": self.devices(),
        }

    def submit(self, submission: Submission) -> tuple[JobRow, ...]:
        rows = self.work.submit(submission)
        self._wake()
        return rows

    def _wake(self) -> None:
        for worker in self.workers:
            worker.wake()

    def jobs(self, states: tuple[str, ...], limit: int, before: str | None) -> tuple[JobRow, ...]:
        known = [state.value for state in JobState]
        if unknown := set(states).difference(known):
            raise RequestError(f"{min(unknown)[:40]!r} is none of {', '.join(known)}", where="state")
        number = None if before is None else self.store.named_job(before).number
        return tuple(self.store.jobs([JobState(each) for each in states] or None, limit, before=number))

    def cancel(self, job: str) -> JobRow:
        row = self.store.cancel(job)
        if row.state.ended:
            self.broker.publish(end_of_row(row))
        return row

    def best(self, question: BestQuery) -> dict[str, Any]:
        found = lookup.best(
            self.database,
            name=question.name,
            device=question.device,
            sizes=question.sizes,
            driver=driver.version(),
            version=__version__,
            cache=question.cache,
            later=True,
        )
        if found is None:
            raise NothingKnown(f"nothing is known about {question.name} yet")
        return found

    def best_of_job(self, question: JobQuestion) -> tuple[dict[str, Any] | NothingKnown, ...]:
        found = self.work.best(question)
        for each in found:
            if isinstance(each, dict):
                self.recheck(each)
        return found

    def recheck(self, document: dict[str, Any]) -> None:
        """A stale answer is measured again when the device is free."""
        if document["match"] == "stale" and lookup.queue_recheck(self.database, document):
            self._wake()

    def devices(self) -> list[dict[str, Any]]:
        return [
            {
                "device": each.device.name,
                "job": each.job,
                "waiting": each.held or self.broker.waiting(each.job),
                "progress": self.broker.standings.shown(each.job),
            }
            for each in self.workers
        ]
