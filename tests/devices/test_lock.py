"""One fusiond at a time on a device, across processes and users, and nobody for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from fusiond.devices import lock, machine_lock, protocol
from fusiond.devices.lock import DeviceHold, device_lock, held_by, lock_name
from fusiond.devices.supervisor import Visiting
from fusiond.model.errors import Interrupted
from fusiond.model.events import Event, Events, TrialFinished
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.tuning import tuner
from tests.fakes import FakeProvider, InProcess

GPU = dataclasses.replace(FakeProvider().devices()[0], name="cuda:0", uuid="GPU-1", evidence="measured")

HOLDER = """
import dataclasses, os, sys
from fusiond.devices.lock import device_lock
from tests.fakes import FakeProvider
device = dataclasses.replace(FakeProvider().devices()[0], name="cuda:0", uuid="GPU-1", evidence="measured")
uid = int(sys.argv[1])
if uid != os.getuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
with device_lock(device, stop=lambda: False, waiting=lambda text: print(text, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POLL_SECS", 0.02)
    monkeypatch.setattr(lock, "YIELD_SECS", 0.2)


@contextmanager
def holder(uid: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the device."""
    command = [sys.executable, "-c", HOLDER, str(os.getuid() if uid is None else uid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def nobody_has_it(text: str) -> None:
    pytest.fail(f"it is free, and yet: {text}")


def test_a_board_has_one_lock_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lock_name(GPU) == lock_name(dataclasses.replace(GPU, name="cuda:3"))
    assert lock_name(GPU) != lock_name(dataclasses.replace(GPU, uuid="GPU-2"))
    assert len(lock_name(dataclasses.replace(GPU, uuid="MIG-" * 40))) < 100
    monkeypatch.delenv("FUSIOND_LOCKS")
    assert lock_name(GPU) == "fusiond-GPU-1"
    assert lock_name(dataclasses.replace(GPU, uuid="")) == "fusiond-cuda-0"
    assert lock_name(dataclasses.replace(GPU, evidence="emulated")) == f"fusiond-{os.geteuid()}-GPU-1"


def test_a_free_device_is_had_at_once_and_again() -> None:
    for _ in range(2):
        assert held_by(GPU) is None
        with device_lock(GPU, stop=lambda: True, waiting=nobody_has_it):
            found = held_by(GPU)
            assert found is not None
            assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
            assert abs((found.since or 0) - time.time()) < 60


def test_others_wait_and_are_told_once() -> None:
    told: list[str] = []
    order: list[str] = []
    waits = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        waits.set()

    def second() -> None:
        with device_lock(GPU, stop=lambda: False, waiting=tell):
            order.append("second")

    with device_lock(GPU, stop=lambda: False, waiting=nobody_has_it):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(20)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    assert len(told) == 1
    assert re.fullmatch(rf"waiting for pid {os.getpid()} of \S+ since \d\d:\d\d UTC", told[0])


def test_who_waits_can_be_stopped() -> None:
    calls = iter([False, False, True, True])
    with (
        device_lock(GPU, stop=lambda: False, waiting=nobody_has_it),
        pytest.raises(Interrupted, match="waiting for cuda:0"),
        device_lock(GPU, stop=lambda: next(calls), waiting=lambda text: None),
    ):
        pytest.fail("it is taken")


def test_a_holder_that_is_killed_leaves_nothing_locked() -> None:
    with holder() as process:
        waited: list[str] = []

        def kill(text: str) -> None:
            waited.append(text)
            process.kill()

        with device_lock(GPU, stop=lambda: False, waiting=kill):
            assert len(waited) == 1
            assert f"pid {process.pid} of" in waited[0]


def test_a_process_of_the_holder_does_not_hold_it() -> None:
    """A compiler or a child that outlives a killed fusiond keeps nobody from the device."""
    with device_lock(GPU, stop=lambda: False, waiting=nobody_has_it):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with child:
        with device_lock(GPU, stop=lambda: True, waiting=nobody_has_it):
            pass
        child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_takes_the_same_lock_and_is_named() -> None:
    with holder(uid=65534) as process:
        found = held_by(GPU)
        assert found is not None
        assert (found.pid, found.uid) == (process.pid, 65534)
        assert machine_lock.user_name(65534) in str(found)
        told: list[str] = []
        with pytest.raises(Interrupted), device_lock(GPU, stop=lambda: bool(told), waiting=told.append):
            pytest.fail("it is taken")
        assert told[0].startswith(f"waiting for pid {process.pid} of {machine_lock.user_name(65534)} since ")
    with device_lock(GPU, stop=lambda: False, waiting=lambda text: None), holder_that_waits(65534) as line:
        assert line.startswith(f"waiting for pid {os.getpid()} of {machine_lock.user_name(os.geteuid())} since ")


@contextmanager
def holder_that_waits(uid: int) -> Iterator[str]:
    """What another process is told while this one holds the device."""
    command = [sys.executable, "-c", HOLDER, str(uid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.kill()


def test_a_stopped_holder_is_named_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "ANSWER_SECS", 0.1)
    monkeypatch.setattr(lock, "SILENT_SECS", 0.5)
    told: list[str] = []
    with holder() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with device_lock(GPU, stop=lambda: False, waiting=told.append):
            assert [f"pid {process.pid} of" in each for each in told] == [True]
            assert caplog.messages == [
                f"cuda:0: going on without its lock: {told[0].removeprefix('waiting for ')} has it, "
                "and gave no sign of life for 0.5 s"
            ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mute", "chatty", "closing", "full"])
def test_who_squats_the_name_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It says nothing, or something else, hangs up at once, or never accepts."""
    monkeypatch.setattr(lock, "ANSWER_SECS", 0.1)
    monkeypatch.setattr(lock, "SILENT_SECS", 0.5)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(b"\0" + lock_name(GPU).encode())
        squatter.listen(0)
        squatter.settimeout(20)
        ended = threading.Event()
        kept: list[socket.socket] = []

        def serve() -> None:
            while not ended.is_set():
                connection, _ = squatter.accept()
                if kind == "chatty":
                    connection.sendall(b"HTTP/1.1 200 fusiond\n\n\n")
                if kind == "closing":
                    connection.close()
                else:
                    kept.append(connection)

        thread = threading.Thread(target=serve)
        if kind == "full":
            full = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
            for each in full:
                each.setblocking(False)
                each.connect_ex(b"\0" + lock_name(GPU).encode())
            kept += full
        else:
            thread.start()
        with device_lock(GPU, stop=lambda: False, waiting=lambda text: None):
            assert len(caplog.messages) == 1
            assert "gave no sign of life" in caplog.messages[0]
        ended.set()
        if kind != "full":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(b"\0" + lock_name(GPU).encode())
                thread.join(20)
        for each in kept:
            each.close()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_does_not_keep_it_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "LONGEST_SECS", 0.5)
    with (
        holder(uid=65534) as process,
        caplog.at_level(logging.WARNING),
        device_lock(GPU, stop=lambda: False, waiting=lambda text: None),
    ):
        assert f"pid {process.pid} of" in caplog.messages[0]
        assert "did not let go within" in caplog.messages[0]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_holder_that_was_passed_over_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def take() -> None:
        with device_lock(GPU, stop=lambda: False, waiting=lambda text: None):
            pass

    with holder(uid=65534):
        monkeypatch.setattr(lock, "LONGEST_SECS", 0.5)
        take()
        monkeypatch.setattr(lock, "LONGEST_SECS", 3600.0)
        take()  # at once, or the test's time is up
    told: list[str] = []
    with (
        holder(uid=65534),
        pytest.raises(Interrupted),  # another one is waited for
        device_lock(GPU, stop=lambda: bool(told), waiting=told.append),
    ):
        pytest.fail("it is taken")


# --- a process that needs a device for some seconds is let in -------------------------------------------


FAKE = FakeProvider().devices()[0]
VISITOR = """
import sys, time
from fusiond.devices.lock import device_lock
from tests.fakes import FakeProvider
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
