"""A process that needs a device for some seconds is let in by one that holds it for hours."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from fusiond.devices import lock, protocol
from fusiond.devices.borrowed import Visiting
from fusiond.devices.lock import DeviceHold, device_lock, held_by
from fusiond.model.events import Event, Events, TrialFinished
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.testing.fakes import FakeProvider, InProcess
from fusiond.tuning import tuner

FAKE = FakeProvider().devices()[0]
VISITOR = """
import sys, time
from fusiond.devices.lock import device_lock
from fusiond.testing.fakes import FakeProvider
(device,) = FakeProvider().devices()
print("asks", flush=True)
with device_lock(device, stop=lambda: False, waiting=lambda text: None, visit=True):
    print("in", flush=True)
    begun = time.monotonic()
    sys.stdin.readline()
    print(begun, time.monotonic(), flush=True)
"""


def never() -> bool:
    return False


def nothing(*given: object) -> None:
    pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL_SECS", 0.02)
    monkeypatch.setattr(lock, "YIELD_SECS", 0.1)


@contextmanager
def visitor() -> Iterator[subprocess.Popen[str]]:
    """Another process that wants the device until it is told to leave."""
    with subprocess.Popen(
        [sys.executable, "-c", VISITOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "asks\n"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leave(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def pauses(held: DeviceHold, until: Callable[[], bool], gone: Callable[[], None] = nothing) -> None:
    """What a tuner does, without anything to measure."""
    for _ in range(1000):
        held.let_in(gone, never)
        if until():
            return
        time.sleep(0.01)
    pytest.fail("nobody came")


def test_a_visitor_is_let_in_at_a_pause_alone_and_nobody_else_is() -> None:
    out: list[str] = []
    left: list[float] = []
    with contextlib.ExitStack() as waits:
        with device_lock(FAKE, stop=never, waiting=nothing) as held, visitor() as process:
            waits.enter_context(other := Queued())

            def follow() -> None:
                out.append(said(process))
                time.sleep(0.2)
                leave(process)

            watch = threading.Thread(target=follow)
            watch.start()
            time.sleep(0.2)
            assert out == []  # it is not a pause
            pauses(held, lambda: bool(left and out), lambda: left.append(time.monotonic()))
            begun, ended = map(float, said(process).split())
            assert left[0] <= begun
            assert ended <= time.monotonic()  # the holder was back after it had gone
            found = held_by(FAKE)
            assert found is not None
            assert found.pid == os.getpid()
            assert not other.has_it.is_set()
            watch.join(20)
        assert other.has_it.wait(20)


class Queued(contextlib.AbstractContextManager["Queued"]):
    """An ordinary one that waits for the lock."""

    def __init__(self) -> None:
        self.has_it = threading.Event()
        self.thread = threading.Thread(target=self._wait)

    def _wait(self) -> None:
        with device_lock(FAKE, stop=never, waiting=nothing):
            self.has_it.set()

    def __enter__(self) -> Queued:
        self.thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self.thread.join(20)


def test_a_visitor_that_dies_or_stays_too_long_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "VISIT_SECS", 0.5)
    with device_lock(FAKE, stop=never, waiting=nothing) as held:
        with visitor() as process:
            came: list[float] = []
            pauses(held, lambda: bool(came), lambda: came.append(time.monotonic()))
            assert 0.4 < time.monotonic() - came[0] < 5  # it was never told to leave
            assert said(process) == "in"
        with visitor() as process:

            def kill() -> None:
                came.append(time.monotonic())
                process.kill()

            pauses(held, lambda: len(came) > 1, kill)
    assert held_by(FAKE) is None


@pytest.mark.parametrize("evidence", ["emulated", "counted"])
def test_where_nothing_is_timed_nobody_waits(evidence: str) -> None:
    info = dataclasses.replace(FAKE, evidence=evidence)
    with (
        device_lock(info, stop=never, waiting=nothing),
        device_lock(info, stop=lambda: True, waiting=pytest.fail, visit=True) as held,
    ):
        held.let_in(pytest.fail, never)


class Noted(InProcess):
    """Notes when something runs on the device."""

    spans: ClassVar[list[tuple[float, float]]] = []

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        begun = time.monotonic()
        try:
            return super().call(request, timeout_secs)
        finally:
            Noted.spans.append((begun, time.monotonic()))


def test_each_child_process_is_a_visit() -> None:
    """Whoever builds something in between keeps nobody waiting."""
    asked: list[object] = []

    class Deaf:
        device = FAKE

        def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
            asked.append(request)
            return protocol.Checked(worst=0.0)

        def fresh(self) -> None:
            pass

        close = fresh

    told: list[str] = []
    runner = Visiting(Deaf(), told.append)
    request = protocol.CheckRequest(bundle="", references=())
    runner.fresh()
    assert held_by(FAKE) is None
    for end in (runner.fresh, runner.close):
        runner.call(request, 1)
        runner.call(request, 1)
        assert held_by(FAKE) is not None
        end()
        assert held_by(FAKE) is None
    with device_lock(FAKE, stop=never, waiting=nothing) as held:
        thread = threading.Thread(target=runner.call, args=(request, 1))
        thread.start()
        until = time.monotonic() + 20
        while not told and time.monotonic() < until:
            time.sleep(0.01)
        assert told[0].startswith(f"waiting for pid {os.getpid()}")
        assert len(asked) == 4
        leaves = threading.Timer(0.1, runner.close)
        pauses(held, lambda: len(asked) == 5, leaves.start)
        thread.join(20)
    assert told[-1] == "no more"
    assert held_by(FAKE) is None


@pytest.mark.slow
def test_visitors_beside_a_running_tuner(tmp_path: Path, fakes: Registry) -> None:
    """Ten of another process, each between two measurements; the job comes to the same answer."""
    visits: list[tuple[float, float]] = []
    ended = threading.Event()

    def come() -> None:
        while len(visits) < 10 and not ended.is_set():
            with visitor() as process:
                leave(process)
                assert said(process) == "in"
                begun, gone = map(float, said(process).split())
                visits.append((begun, gone))

    trials: list[Event] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialFinished):
            trials.append(event)
            time.sleep(0.1)  # else the job is done before the first one comes

    Noted.spans.clear()
    with Store.open(tmp_path / "store.sqlite") as store:
        (job,) = jobs.read("toy.yaml", "strategy: toy\nsearch: {trials: 64}\n")
        row = tuner.submit(store, fakes, job)
        store.claim("test", job=row.id)
        thread = threading.Thread(target=come)
        thread.start()
        state = tuner.Tuner(store, fakes, Events(note), runner=Noted).run(row.id, never)
        ended.set()
        thread.join(30)
        record = store.record(row.workload_key, device_of(fakes).key)
    assert (state, len(trials)) == (JobState.DONE, 64)
    assert record is not None
    assert record.config is not None
    assert dict(record.config) == {"x": 3, "y": 5}
    assert len(visits) >= 3
    for begun, gone in visits:
        assert all(gone <= other or end <= begun for other, end in Noted.spans)


def device_of(registry: Registry) -> DeviceInfo:
    (info,) = registry.providers["fake"].devices()
    return info
