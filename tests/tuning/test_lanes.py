"""Several equal devices for one job: the same trials, as many at a time, and what a device that leaves costs."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.supervisor import Runner, RunnerLost
from fusiond.model.errors import DeviceSick
from fusiond.model.events import Events
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState, Purpose
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.testing.fakes import InProcess
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
