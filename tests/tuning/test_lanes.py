"""Several equal devices for one job: the same trials, as many at a time, and what a device that leaves costs."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.supervisor import Runner, RunnerLost
from fusiond.model import events as say
from fusiond.model.errors import DeviceSick, StoreError
from fusiond.model.events import Event, Events
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState, Purpose, Trial
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.testing.fakes import FakeProvider, InProcess
from fusiond.tuning.measuring import Measurer
from fusiond.tuning.recording import TrialRecorder
from fusiond.tuning.tuner import Tuner
from tests.conftest import run_job


class Device(InProcess):
    """A fake device that says who measured what, takes its time, and may leave after some samples."""

    def __init__(self, provider: DeviceProvider, device: DeviceInfo, *, secs: float = 0.0, leaves: int = 10**9) -> None:
        super().__init__(provider, device)
        self.secs, self.leaves = secs, leaves
        self.samples: list[Purpose] = []
        self.at: set[int] = set()

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        if isinstance(request, protocol.SampleRequest):
            if len(self.samples) >= self.leaves:
                raise RunnerLost(f"{self.device.name}: its box has left")
            self.samples.append(request.plan.purpose)
            time.sleep(self.secs)
        return super().call(request, timeout_secs)


def fleet(count: int, secs: float = 0.0, leaves: Sequence[int] = ()) -> tuple[list[Device], dict[str, object]]:
    """What a Tuner is given so that it has so many equal devices; the list fills with them."""
    made: list[Device] = []
    leave = dict(enumerate(leaves))

    def one(provider: DeviceProvider, device: DeviceInfo, number: int) -> Device:
        named = device if number == 0 else dataclasses.replace(device, name=f"fake:{number}", uuid=f"FAKE-{number}")
        made.append(Device(provider, named, secs=secs, leaves=leave.get(number, 10**9)))
        return made[-1]

    def others(provider: DeviceProvider, device: DeviceInfo) -> list[Runner]:
        return [one(provider, device, number) for number in range(1, count)]

    return made, {"runner": lambda provider, device: one(provider, device, 0), "others": others}


def run(store: Store, fakes: Registry, text: str, **options: object) -> JobRow:
    (job,) = jobs.read("/toy.yaml", text)
    row, _ = run_job(store, fakes, job, **options)  # type: ignore[arg-type]
    return store.named_job(row.id)


WHOLE = "strategy: toy\nside: 5\nsearch: {trials: 25}\n"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_a_space_that_is_searched_whole_has_the_same_trials(
    store: Store, fakes: Registry, tmp_path: Path, count: int
) -> None:
    one, options = fleet(1)
    alone = run(store, fakes, WHOLE, **options)
    devices, options = fleet(count)
    with Store.open(tmp_path / "other.sqlite") as other:
        together = run(other, fakes, WHOLE, **options)
        assert together.state is JobState.DONE
        expected = {each.config.key: each.outcome for each in store.trials(alone.id)}
        assert {each.config.key: each.outcome for each in other.trials(together.id)} == expected
        assert len(expected) == 25
        found, before = (
            each.record(together.workload_key, devices[0].device.key) for each in (other, store)
        )  # fmt: skip
        assert found is not None
        assert before is not None
        assert (found.verdict, found.config) == (before.verdict, before.config)
        uuids = {
            row["gpu_uuid"] for row in other._rows("SELECT DISTINCT gpu_uuid FROM trials WHERE role = 'candidate'")
        }
    assert uuids == {f"FAKE-{number}" for number in range(count)}  # each trial says where it was measured
    assert all(Purpose.FINAL in each.samples for each in devices)  # and so the finals
    searched = [sum(each.samples.count(Purpose.SEARCH) for each in some) for some in (one, devices)]
    assert searched[0] == searched[1]  # equal programs are measured once, also where both would be at a time


def test_as_many_are_measured_at_a_time_as_there_are_devices(store: Store, fakes: Registry) -> None:
    """Each waits for the others: with fewer at a time this would never end."""
    count, met = 3, threading.Event()
    barrier = threading.Barrier(count, action=met.set)
    devices, options = fleet(count)

    class Waits(Device):
        def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
            if (
                isinstance(request, protocol.SampleRequest)
                and request.plan.purpose is Purpose.SEARCH
                and not met.is_set()
            ):
                barrier.wait(20)
            return super().call(request, timeout_secs)

    original = options["runner"], options["others"]
    options["runner"] = lambda provider, device: _as(Waits, original[0](provider, device))  # type: ignore[operator]
    options["others"] = lambda provider, device: [_as(Waits, each) for each in original[1](provider, device)]  # type: ignore[operator]
    row = run(store, fakes, "strategy: toy\nside: 4\nunfused: 20.0\nsearch: {trials: 16}\n", **options)
    assert row.state is JobState.DONE
    assert met.is_set()
    assert len(devices) == count


def test_a_device_that_turns_sick_in_the_finals_costs_its_lane(store: Store, fakes: Registry) -> None:
    class Sick(Device):
        def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.FINAL:
                raise DeviceSick(self.device.name, "its memory is worn out")
            return super().call(request, timeout_secs)

    devices, options = fleet(2)
    original = options["others"]
    options["others"] = lambda provider, device: [_as(Sick, each) for each in original(provider, device)]  # type: ignore[operator]
    assert run(store, fakes, "strategy: toy\nside: 3\n", **options).state is JobState.DONE
    assert Purpose.SEARCH in devices[1].samples
    assert Purpose.FINAL in devices[0].samples


def _as(kind: type[Device], device: Device) -> Device:
    device.__class__ = kind
    return device


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [(10**9, 0, 3), (4, 10**9, 10**9), (6, 3, 10**9), (30, 31, 10**9)])
def test_a_device_that_leaves_costs_what_it_was_at(
    store: Store, fakes: Registry, tmp_path: Path, leaves: tuple[int, ...]
) -> None:
    """In the search, in the finals, the job's own device too: every config is tried, none twice."""
    _, options = fleet(3, leaves=leaves)
    row = run(store, fakes, WHOLE, **options)
    assert row.state is JobState.DONE, row.problem
    assert len({each.config.key for each in store.trials(row.id)}) == len(store.trials(row.id)) == 25


def test_where_all_leave_the_job_waits_and_goes_on(store: Store, fakes: Registry) -> None:
    _, options = fleet(2, leaves=(6, 4))
    row = run(store, fakes, WHOLE, **options)
    assert row.state is JobState.WAITING
    assert "every device is lost" in row.waiting_for
    done = len(store.trials(row.id))
    assert 0 < done < 25
    store.requeue(row.id)
    store._database.execute("UPDATE jobs SET retry_at = NULL, state = 'queued' WHERE id = ?", [row.id])
    devices, options = fleet(2)
    store.claim("test", job=row.id)
    Tuner(store, fakes, Events(), **options).run(row.id, lambda: False)  # type: ignore[arg-type]
    assert len({each.config.key for each in store.trials(row.id)}) == 25
    searched = sum(each is Purpose.SEARCH for device in devices for each in device.samples)
    assert searched <= 25 - done  # equal programs are measured once


# --- what is left to do for a trial is done while the next one is measured ------------------------------


TRIALS = 24
JOB = f"strategy: toy\nside: 30\nsearch: {{trials: {TRIALS}}}\n"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[TrialRecorder]:
    provider = FakeProvider()
    (device,) = provider.devices()
    measurer = Measurer(provider, InProcess(provider, device), tmp_path / "b", tmp_path / "w")
    yield TrialRecorder(measurer)
    measurer.close()


def recorded_run(store: Store, registry: Registry, *subscribers: Any, runner: Any = InProcess, **options: Any) -> Any:
    (job,) = jobs.read("toy.yaml", JOB)
    row, state = run_job(store, registry, job, *subscribers, runner=runner, **options)
    return row.id, state


def test_only_a_trial_of_the_same_program_is_waited_for(recorder: TrialRecorder) -> None:
    gate, done = threading.Event(), threading.Event()

    def first() -> None:
        gate.wait(5)
        done.set()

    recorder.hand_over("a", first)
    recorder.wait_for("b")
    assert not done.is_set()
    gate.set()
    recorder.wait_for("a")
    assert done.is_set()


def test_what_fails_is_raised_once_and_hides_no_other_failure(
    recorder: TrialRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="disk is full"), recorder:
        recorder.hand_over(None, fail)
    recorder.wait()
    with pytest.raises(KeyError), recorder:
        raise KeyError(recorder.hand_over(None, fail))
    assert "could not be written down" in caplog.text


def test_a_trial_is_on_disk_before_anybody_hears_of_it(store: Store, fakes: Registry) -> None:
    heard: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, say.TrialFinished):
            found = {each.sequence for each in store.trials(event.job)}
            assert event.trial.sequence in found
            heard.append(len(found))

    _, state = recorded_run(store, fakes, note)
    assert state is JobState.DONE
    assert heard == list(range(1, TRIALS + 1))


def test_the_next_one_is_measured_meanwhile(store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit ends only when another measurement has begun; done one after the other, that would never be."""
    second = threading.Event()
    sampled: list[str] = []
    waited: list[bool] = []
    real = Store.add_trial

    class Runner(InProcess):
        def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
            if sampled:
                second.set()
            if isinstance(request, protocol.SampleRequest) and request.plan.purpose is Purpose.SEARCH:
                sampled.append(request.candidate)
            return super().call(request, timeout_secs)

    def add_trial(self: Store, job: str, trial: Trial, **fields: Any) -> None:
        if trial.role == "candidate" and not waited:
            waited.append(second.wait(10))
        real(self, job, trial, **fields)

    monkeypatch.setattr(Store, "add_trial", add_trial)
    _, state = recorded_run(store, fakes, runner=Runner)
    assert state is JobState.DONE
    assert waited == [True]


def test_a_full_disk_ends_the_job_with_all_that_was_written(
    store: Store, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.add_trial

    def add_trial(self: Store, job: str, trial: Trial, **fields: Any) -> None:
        if trial.role == "candidate" and len(self.trials(job)) == 5:
            raise StoreError("the disk is full")
        real(self, job, trial, **fields)

    monkeypatch.setattr(Store, "add_trial", add_trial)
    name, state = recorded_run(store, fakes)
    row = store.job(name)
    assert row is not None
    assert (state, row.problem, row.trials) == (JobState.FAILED, "the disk is full", 5)


@pytest.mark.slow
def test_the_order_of_asks_is_that_of_one_thread(
    tmp_path: Path, fakes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the threads do, trial for trial the study chooses what it chose when everything was done in turn."""
    found = []
    for label in ("beside", "in turn"):
        if label == "in turn":
            beside = Measurer.meanwhile

            def meanwhile(self: Measurer, work: Any, beside: Any = beside) -> Any:
                future = beside(self, work)
                future.exception()
                return future

            monkeypatch.setattr(Measurer, "meanwhile", meanwhile)
        with Store.open(tmp_path / f"{label}.sqlite") as store:
            name, _ = recorded_run(store, fakes, build_jobs=2)
            found.append([(each.sequence, str(each.config)) for each in store.trials(name)])
    assert found[0] == found[1]
    assert len(found[0]) == TRIALS


def test_how_long_it_took_and_for_how_much_of_that_the_device_measured(store: Store, fakes: Registry) -> None:
    ended: list[say.JobEnded] = []
    name, _ = recorded_run(store, fakes, lambda event: ended.append(event) if isinstance(event, say.JobEnded) else None)
    row = store.job(name)
    assert row is not None
    assert 0 < row.device_secs < row.wall_secs
    assert (ended[0].wall_secs, ended[0].device_share) == (row.wall_secs, row.device_secs / row.wall_secs)
    store.add_time(name, wall_secs=row.wall_secs, device_secs=0.0)  # another session, in which it measured nothing
    again = store.job(name)
    assert again is not None
    assert again.device_share == pytest.approx(row.device_secs / row.wall_secs / 2)
