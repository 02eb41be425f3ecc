"""A job that the machine fails waits and goes on by itself: never failed, never the blame of a kernel."""

import errno
import logging
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fusiond.cli.render import ProgressLines
from fusiond.devices import protocol
from fusiond.model.errors import Interrupted, MachineFault, StoreUnavailable
from fusiond.model.events import Event, Events
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState, MeasureFailed, Outcome
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.service.client import in_process
from fusiond.service.daemon.logs import Complaints
from fusiond.service.daemon.worker import DeviceWorker
from fusiond.service.progress import of_event, of_row
from fusiond.service.wire import job_entry
from fusiond.store import format as formats
from fusiond.store import jobs as store_jobs
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.process_identity import this_process
from fusiond.tuning import tuner
from tests.fakes import FakeProvider, InProcess

JOB = "strategy: toy\nside: 4\nsearch: {trials: 8}\n"


@pytest.fixture
def row(store: Store, fakes: Registry) -> JobRow:
    (job,) = jobs.read("toy.yaml", JOB)
    return tuner.submit(store, fakes, job)


def run(store: Store, registry: Registry, row: JobRow, **options: Any) -> tuple[JobState, list[Event]]:
    seen: list[Event] = []
    options.setdefault("runner", InProcess)
    assert store.claim(this_process(), job=row.id) is not None
    return tuner.Tuner(store, registry, Events(seen.append), **options).run(row.id, lambda: False), seen


class Flaky:
    """Raises `problem` at the calls whose numbers are named, and does what it should at the others."""

    def __init__(self, work: Callable[..., Any], problem: BaseException, at: set[int]) -> None:
        self.work, self.problem, self.at, self.calls = work, problem, at, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls in self.at:
            raise self.problem
        return self.work(*arguments, **options)


FAULTS = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EMFILE, "Too many open files"),
    MemoryError(),
    RuntimeError("can't start new thread"),
    MachineFault("g++ was killed by SIGKILL"),
    StoreUnavailable("the disk is full"),
]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", FAULTS, ids=repr)
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_job_that_lacks_something_waits_and_ends_as_if_nothing_had_happened(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch, problem: Exception, at: int
) -> None:
    monkeypatch.setattr(FakeProvider, "build", Flaky(FakeProvider().build, problem, {at}))
    state, seen = run(store, fakes, row)
    waiting = store._known(row.id)
    assert (state, waiting.state, waiting.problem) == (JobState.WAITING, JobState.WAITING, None)
    assert waiting.waiting_for
    assert waiting.retries == 1
    assert (job_entry(waiting)["waiting_for"], job_entry(waiting)["retry_at"]) == (
        waiting.waiting_for,
        waiting.retry_at,
    )
    last = of_event(seen[-1])
    assert (last.event, last.state, last.problem) == ("job", "waiting", waiting.waiting_for)
    assert of_row(waiting).problem == waiting.waiting_for
    state, _ = run(store, fakes, row)
    assert state is JobState.DONE
    done = store._known(row.id)
    assert (done.trials, job_entry(done)["waiting_for"], job_entry(done)["retry_at"]) == (8, None, None)
    trials = store.trials(row.id, None)
    assert {each.outcome for each in trials} == {Outcome.MEASURED}


def test_each_wait_is_longer_until_the_job_gets_on(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    wait = Store.wait

    def noted(self: Store, id: str, reason: str, *, secs: float) -> JobState:
        waits.append(secs)
        return wait(self, id, reason, secs=secs)

    monkeypatch.setattr(Store, "wait", noted)
    built = FakeProvider().build
    for _ in range(3):
        monkeypatch.setattr(FakeProvider, "build", Flaky(built, FAULTS[0], {1}))
        run(store, fakes, row)
    monkeypatch.setattr(FakeProvider, "build", Flaky(built, FAULTS[0], {9}))
    run(store, fakes, row)
    assert store.trials(row.id, None)
    assert waits == [2.0, 4.0, 8.0, 2.0]
    for _ in range(12):
        store.claim("owner", job=row.id)
        wait(store, row.id, "x", secs=1e9)
        assert store._known(row.id).retry_at <= formats.now(ago_secs=-store_jobs.MOST_WAIT_SECS)  # type: ignore[operator]


def test_a_waiting_job_is_taken_when_its_time_has_come_whatever_the_clock_did(
    store: Store, row: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [2e9]
    moment = formats.now

    def at(*, at: float | None = None, ago_secs: float = 0.0) -> str:
        return moment(at=now[0] if at is None else at, ago_secs=ago_secs)

    monkeypatch.setattr(store_jobs, "now", at)
    for moved, taken in ((10, False), (31, True), (-200, False), (-400, True), (-1e9, True), (1e9, True)):
        now[0] = 2e9
        assert store.claim("owner", job=row.id) is not None
        assert store.wait(row.id, "space", secs=30) is JobState.WAITING
        now[0] += moved
        assert (store.claim("owner") is not None) is taken, moved
        now[0] = 2e9
        if taken:
            store.requeue(row.id)
    assert [each.id for each in store.jobs()] == [row.id]


def test_a_waiting_job_can_be_cancelled_and_finished_early(store: Store, fakes: Registry, row: JobRow) -> None:
    store.claim("owner", job=row.id)
    store.wait(row.id, "space", secs=100)
    assert store.finish_early(row.id).state is JobState.WAITING
    assert store.finish_requested(row.id)
    state, _ = run(store, fakes, row)
    assert state is JobState.DONE
    assert store._known(row.id).trials == 0
    (again,) = jobs.read("toy.yaml", JOB + "label: other\n")
    other = tuner.submit(store, fakes, again)
    store.claim("owner", job=other.id)
    store.wait(other.id, "space", secs=100)
    assert store.cancel(other.id).state is JobState.CANCELLED
    store.claim("owner", job=other.id)
    assert store._known(other.id).state is JobState.CANCELLED


class Killed:
    """A runner whose children are killed from outside whenever they run what is known to be good."""

    def __init__(self, provider: FakeProvider, device: DeviceInfo) -> None:
        self.device, self._real, self._checks = device, InProcess(provider, device), 0

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        if isinstance(request, protocol.CheckRequest):
            self._checks += 1
            if self._checks > 3:
                return MeasureFailed(outcome=Outcome.WORKER_DIED, reason="the worker was lost (SIGKILL)")
        return self._real.call(request, timeout_secs)

    def fresh(self) -> None:
        pass

    def close(self) -> None:
        self._real.close()


def test_a_device_is_not_sick_because_somebody_kills_its_workers(store: Store, fakes: Registry, row: JobRow) -> None:
    state, _ = run(store, fakes, row, runner=Killed)
    (info,) = fakes.providers["fake"].devices()
    assert state is JobState.WAITING
    assert store._known(row.id).waiting_for.startswith("fake: workers are killed from outside")
    assert store.sick(info.key, info.uuid) is None
    assert run(store, fakes, row)[0] is JobState.DONE
    assert {each.outcome for each in store.trials(row.id, None)} == {Outcome.MEASURED}


def test_artifacts_that_are_removed_meanwhile_are_made_again(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = FakeProvider().build
    calls: list[int] = []

    def build(self: FakeProvider, source: Any, arch: str) -> Any:
        calls.append(1)
        if len(calls) in (3, 7):
            shutil.rmtree(store.artifacts)
        return built(source, arch)

    monkeypatch.setattr(FakeProvider, "build", build)
    states = [run(store, fakes, row)[0]]
    while states[-1] is not JobState.DONE:
        states.append(run(store, fakes, row)[0])
    assert set(states) <= {JobState.WAITING, JobState.DONE}
    assert len(states) <= 3
    assert {each.outcome for each in store.trials(row.id, None)} == {Outcome.MEASURED}


# --- in the foreground ---


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "FIRST_WAIT_SECS", 0.01)


@pytest.mark.slow  # each of its finals starts a child
@pytest.mark.usefixtures("quick")
def test_run_waits_and_goes_on(store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProvider, "build", Flaky(FakeProvider().build, FAULTS[0], {1, 3}))
    said: list[str] = []
    found = in_process.tune(
        store, fakes, row, ProgressLines(said.append), again="fusiond run job.yaml", when_busy="share"
    )
    assert found["verdict"]
    assert store._known(row.id).state is JobState.DONE
    reasons = [line for line in said if " is waiting: " in line]
    assert len(reasons) == 2
    assert reasons[0].endswith("no space left on the disk")
    assert sum(line.startswith("trying again in 0 s (Ctrl-C stops") for line in said) == 2


def test_ctrl_c_ends_the_waiting(store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProvider, "build", Flaky(FakeProvider().build, FAULTS[0], {1}))
    monkeypatch.setattr(tuner, "FIRST_WAIT_SECS", 250.0)
    said: list[str] = []

    class Says(ProgressLines):
        def say(self, text: str) -> None:
            said.append(text)
            if text.startswith("trying again in 250 s"):
                # From now on it waits; the signal is for this very thread.
                threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with pytest.raises(Interrupted, match=r"stopped after 0 trials; `fusiond run job\.yaml` goes on from there"):
        in_process.tune(store, fakes, row, Says(), again="fusiond run job.yaml", when_busy="share")
    assert store._known(row.id).state is JobState.WAITING
    (job,) = jobs.read("toy.yaml", JOB)
    assert tuner.submit(store, fakes, job, resume=True).id == row.id


# --- in the daemon ---


def worker(store: Store, run_job: Callable[..., JobState], info: DeviceInfo) -> DeviceWorker:
    return DeviceWorker(
        device=info, owner=this_process(), accepts=("auto", "fake", info.name), store=store, run_job=run_job,
        events=Events(), stopping=threading.Event(), poll_secs=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("fault", [StoreUnavailable("the disk is full"), OSError(errno.EMFILE, "Too many open files")])
def test_what_the_store_takes_no_word_of_is_kept(
    store: Store, fakes: Registry, row: JobRow, monkeypatch: pytest.MonkeyPatch, caplog: Any, fault: Exception
) -> None:
    (info,) = fakes.providers["fake"].devices()

    def run_job(*_: object) -> JobState:
        raise fault

    made = worker(store, run_job, info)
    full = sqlite3.OperationalError("database or disk is full")
    monkeypatch.setattr(Store, "wait", Flaky(store.wait, StoreUnavailable(str(full)), set(range(1, 30))))
    turns = []

    class Stops(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            turns.append(made.held)
            if len(turns) == 40:
                made.stopping.set()
            return True

    made._bell = Stops()
    run_once = iter([True])
    made.run_job = lambda *_: run_job() if next(run_once, False) else JobState.DONE
    claim = store.claim
    monkeypatch.setattr(Store, "claim", lambda self, *a, **o: claim(*a, **o) if not turns else None)
    with caplog.at_level(logging.WARNING):
        made.loop()
    waiting = store._known(row.id)
    assert (waiting.state, bool(waiting.waiting_for), waiting.problem) == (JobState.WAITING, True, None)
    assert waiting.retry_at is not None
    assert waiting.retry_at <= formats.now()
    assert turns[5] == "database or disk is full"
    assert turns[-1] is None
    complaints = [each for each in caplog.records if each.name == "fusiond.service.daemon.worker"]
    assert [each.getMessage() for each in complaints] == ["fake: database or disk is full; trying again"]


def test_complaints_come_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(logging.getLogger("test"), lambda: now[0])
    for second in range(150):
        now[0] = second
        complaints.add("no descriptors left")
    assert [each.getMessage() for each in caplog.records] == [
        "no descriptors left",
        "no descriptors left (59 times since this was said last)",
        "no descriptors left (59 times since this was said last)",
    ]
