"""Workers and queue, in this process; tests/acceptance has the signals."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import DaemonError, DeviceSick, RequestError, StoreError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.client import client as client_module
from fusiond.service.client import connection
from fusiond.service.client.client import Client
from fusiond.service.daemon import service as service_module
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.service import Service
from fusiond.store.database import Store
from fusiond.testing import daemon

JobFile = Callable[..., Path]


def finished(client: Client, job: str) -> JobState:
    """Wait for the end of a job."""
    for _ in client.watch(job):
        pass
    return client.show(job).state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("crash", "a bug in fusiond or a plugin: RuntimeError: the strategy fell over"),
        ("exit", "a bug in fusiond or a plugin: SystemExit: 3"),
        ("fail", "the device is not to be trusted"),
    ],
)
def test_a_job_that_falls_over_fails_and_the_next_one_runs(
    serving: Callable[..., Any], job_file: JobFile, end: str, problem: str
) -> None:
    with serving() as (_, client):
        (bad,) = client.submit(job_file("bad.yaml", end=end))
        (good,) = client.submit(job_file("good.yaml"))
        assert finished(client, bad) is JobState.FAILED
        assert client.show(bad).problem == problem
        assert finished(client, good) is JobState.DONE


def test_a_store_that_fails_does_not_end_the_worker(
    serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.Event()
    claim = Store.claim

    def sometimes(self: Store, *arguments: Any, **options: Any) -> Any:
        if failing.is_set():
            raise OSError("the disk went away")
        return claim(self, *arguments, **options)

    monkeypatch.setattr(Store, "claim", sometimes)
    with serving() as (_, client):
        failing.set()
        (job,) = client.submit(job_file())
        time.sleep(0.2)
        assert client.show(job).state is JobState.QUEUED
        failing.clear()
        assert finished(client, job) is JobState.DONE


def test_a_job_whose_end_could_not_be_written_is_ended_later(
    serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon lives, so nobody else would take it for lost: it would be running for ever."""
    full = threading.Event()
    full.set()
    finish = Store.finish

    def sometimes(self: Store, *arguments: Any, **options: Any) -> None:
        if full.is_set():
            raise StoreError("the disk is full")
        finish(self, *arguments, **options)

    monkeypatch.setattr(Store, "finish", sometimes)
    with serving() as (_, client):
        (job,) = client.submit(job_file(end="fail"))
        time.sleep(0.3)
        assert client.show(job).state is JobState.RUNNING
        full.clear()
        assert finished(client, job) is JobState.FAILED
        assert client.show(job).problem == "the device is not to be trusted"


def test_cancelling_a_running_and_a_queued_job(serving: Callable[..., Any], job_file: JobFile) -> None:
    with serving(trial_secs=0.05) as (_, client):
        (running,) = client.submit(job_file(trials=1000))
        (queued,) = client.submit(job_file("other.yaml", trials=999))
        while client.show(running).trials < 2:
            time.sleep(0.02)
        assert client.cancel(queued).state is JobState.CANCELLED
        client.cancel(running)
        assert finished(client, running) is JobState.CANCELLED
        assert client.show(running).trials >= 2


def test_stopping_puts_the_job_back_with_what_it_measured(
    store: Store, serving: Callable[..., Any], job_file: JobFile
) -> None:
    with serving(trial_secs=0.05) as (_, client):
        (job,) = client.submit(job_file(trials=8))
        while client.show(job).trials < 3:
            time.sleep(0.02)
    first = store._known(job)
    assert first.state is JobState.QUEUED
    assert 3 <= first.trials < 8
    with serving() as (_, client):
        assert finished(client, job) is JobState.DONE
    assert store._known(job).trials == 8


def test_a_sick_device_gets_no_job(store: Store, serving: Callable[..., Any], job_file: JobFile) -> None:
    store.save_device(daemon.DEVICE)
    store.set_sick(daemon.DEVICE.key, daemon.DEVICE.uuid, "before this start")
    with serving() as (service, client):
        assert store.sick(daemon.DEVICE.key, daemon.DEVICE.uuid) is None
        store.set_sick(daemon.DEVICE.key, daemon.DEVICE.uuid, "three deaths")
        time.sleep(0.1)
        (job,) = client.submit(job_file())
        time.sleep(0.2)
        assert client.show(job).state is JobState.QUEUED
        assert service.workers[0].held == "the device is sick: three deaths"
        store.set_sick(daemon.DEVICE.key, daemon.DEVICE.uuid, None)
        assert finished(client, job) is JobState.DONE


def test_a_sick_device_is_looked_at_again(store: Store) -> None:
    store.save_device(daemon.DEVICE)
    answers: list[str | None] = ["crashed: still broken", None]
    made = dataclasses.replace(daemon.work(store, 0.01), probe=lambda device: answers.pop(0))
    service = Service(store, DaemonConfig(probe_secs=0.05), made)
    (worker,) = service._make_workers([daemon.DEVICE])
    store.set_sick(daemon.DEVICE.key, daemon.DEVICE.uuid, "three deaths")
    assert worker._hold() == "the device is sick: three deaths"
    assert len(answers) == 2  # not yet
    time.sleep(0.06)
    assert worker._hold() == "the device is sick: three deaths"
    assert len(answers) == 1
    time.sleep(0.06)
    assert worker._hold() is None
    assert store.sick(daemon.DEVICE.key, daemon.DEVICE.uuid) is None


def test_a_job_waits_when_its_device_falls_sick(
    store: Store, serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back into the queue; with the device well again it is gone on with."""
    ran = daemon.MakeBelieve.run

    def falls_sick(self: daemon.MakeBelieve, row: Any, device: DeviceInfo, *rest: Any) -> JobState:
        if not fallen:
            fallen.append(row.id)
            store.save_device(device)
            store.set_device(row.id, device.key)
            store.set_sick(device.key, device.uuid, "three deaths")
            store.requeue(row.id)
            raise DeviceSick(device.name, "three deaths")
        return ran(self, row, device, *rest)

    fallen: list[str] = []
    monkeypatch.setattr(daemon.MakeBelieve, "run", falls_sick)
    with serving() as (_, client):
        (job,) = client.submit(job_file())
        time.sleep(0.3)
        assert fallen == [job]
        assert client.show(job).state is JobState.QUEUED
        assert store.claim("another worker") is None  # its device is sick
        store.set_sick(daemon.DEVICE.key, daemon.DEVICE.uuid, None)
        assert finished(client, job) is JobState.DONE


def test_a_busy_device_waits_or_is_shared(store: Store) -> None:
    busy = dataclasses.replace(daemon.work(store, 0.01), busy=lambda device: f"{device.name} is used by pid 7")
    for when_busy, held in (("wait", "cpu is used by pid 7"), ("exclusive", "cpu is used by pid 7"), ("share", None)):
        service = Service(store, DaemonConfig(when_busy=when_busy), busy)
        (worker,) = service._make_workers([daemon.DEVICE])
        assert worker._hold() == held


def test_who_accepts_which_request(store: Store) -> None:
    def device(name: str, evidence: str) -> DeviceInfo:
        return dataclasses.replace(daemon.DEVICE, name=name, evidence=evidence)

    gpus = [device("cpu", "emulated"), device("cuda:0", "measured"), device("cuda:1", "measured")]

    def accepted(devices: list[DeviceInfo]) -> dict[str, list[str]]:
        service = Service(store, DaemonConfig(), daemon.work(store, 0.01))
        requests = ("auto", "cpu", "cuda", "cuda:1")
        workers = service._make_workers(devices)
        return {each.device.name: [request for request in requests if request in each._accepts] for each in workers}

    assert accepted(gpus) == {"cpu": ["cpu"], "cuda:0": ["auto", "cuda"], "cuda:1": ["auto", "cuda", "cuda:1"]}
    assert accepted(gpus[:1]) == {"cpu": ["auto", "cpu"]}


def test_a_dead_worker_thread_is_started_again(
    serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusiond.service.daemon.worker import DeviceWorker

    loop, deaths = DeviceWorker.loop, []

    def mortal(self: DeviceWorker) -> None:
        if not deaths:
            deaths.append(1)
            return
        loop(self)

    monkeypatch.setattr(DeviceWorker, "loop", mortal)
    with serving() as (_, client):
        (job,) = client.submit(job_file())
        assert finished(client, job) is JobState.DONE


def test_a_submission_may_take_longer_than_other_requests(
    serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of a hundred is parsed and checked before the daemon answers."""
    asked: list[float] = []
    made = connection.http

    def http(socket: Path, timeout_secs: float = connection.TIMEOUT_SECS) -> Any:
        asked.append(timeout_secs)
        return made(socket, timeout_secs)

    monkeypatch.setattr(connection, "http", http)
    with serving() as (_, client):
        asked.clear()
        client.submit(job_file())
        client.health()
    assert asked[:2] == [client_module.SUBMIT_SECS, connection.TIMEOUT_SECS]


def test_the_client_without_a_daemon(store: Store, job_file: JobFile) -> None:
    from fusiond.requests import jobs

    row = daemon.submit(store, jobs.read(job_file())[0])
    with Client(db=store.path) as client:
        with pytest.raises(DaemonError, match=r"no daemon answers on .*; start one with `fusiond serve`"):
            client.submit(job_file())
        assert [each.id for each in client.jobs()] == [row.id]
        assert client.show(row.id[:4]).id == row.id
        assert client.best("hist,maxpool") is None
        assert client.cancel(row.id).state is JobState.CANCELLED
        assert [each.event for each in client.watch(row.id)] == ["job", "ended"]
        with pytest.raises(RequestError, match="there is no job 'zzz'"):
            client.show("zzz")


# --- a store that is taken away ---


def _moved(store: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal", "-shm", ".acknowledged"):
        with contextlib.suppress(FileNotFoundError):
            store.with_name(store.name + suffix).rename(folder / (store.name + suffix))


def test_nothing_is_acknowledged_while_the_store_is_gone_and_all_goes_on_when_it_is_back(
    store: Store, serving: Callable[..., Any], job_file: JobFile, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    with serving() as (service, client):
        (before,) = client.submit(job_file(trials=2))
        assert [*client.watch(before)][-1].state == "done"
        _moved(store.path, aside)
        with pytest.raises(DaemonError, match="deleted or moved away"):
            Client(socket=service.socket, db=store.path).submit(job_file(trials=3))
        assert not store.path.exists(), "nobody makes an empty one in its place"
        for each in aside.iterdir():
            each.rename(store.path.with_name(each.name))
        (after,) = client.submit(job_file(trials=3))
        assert [*client.watch(after)][-1].state == "done"
    assert {row.id for row in store.jobs()} == {before, after}


@pytest.mark.slow
def test_a_store_that_takes_the_place_of_another_is_served_and_its_running_jobs_are_run(
    store: Store, serving: Callable[..., Any], job_file: JobFile, tmp_path: Path
) -> None:
    (other,) = jobs.read(job_file(trials=4))
    with Store.open(tmp_path / "other" / store.path.name) as made:
        row = daemon.submit(made, other)
        made.claim("1:nobody:1", job=row.id)
    with serving(trial_secs=0.01) as (_, client):
        (here,) = client.submit(job_file(trials=1000))
        while not store.trials(here):
            time.sleep(0.01)
        _moved(store.path, tmp_path / "aside")
        for each in (tmp_path / "other").iterdir():
            if each.is_file():
                each.rename(store.path.with_name(each.name))
        with Client(db=store.path) as asks:
            while asks.show(row.id).state is not JobState.DONE:
                time.sleep(0.01)
            (next_one,) = asks.submit(job_file(trials=2))
            assert [*asks.watch(next_one)][-1].state == "done", "the worker is free of the job that went away"


def test_a_job_that_was_claimed_without_the_worker_learning_of_it_is_run_later(
    store: Store, serving: Callable[..., Any], job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "RECOVER_SECS", 0.05)
    claim, failed = Store._claim, threading.Event()

    def once(self: Store, *arguments: Any) -> Any:
        row = claim(self, *arguments)
        if row is not None and not failed.is_set():
            failed.set()
            raise StoreError("the last step fails")
        return row

    monkeypatch.setattr(Store, "_claim", once)
    with serving() as (_, client):
        (job,) = client.submit(job_file())
        assert finished(client, job) is JobState.DONE
    assert failed.is_set()


@pytest.mark.slow
def test_a_log_that_is_taken_away_under_the_daemon_costs_no_job(
    store: Store, serving: Callable[..., Any], job_file: JobFile
) -> None:
    with serving(trial_secs=0.01) as (_, client):
        (running,) = client.submit(job_file(trials=100))
        (queued,) = client.submit(job_file("next.yaml", trials=2))
        while not store.trials(running):
            time.sleep(0.01)
        before = store.path.stat().st_ino
        for beside in ("-wal", "-shm"):
            store.path.with_name(store.path.name + beside).unlink()
        while store.path.stat().st_ino == before:  # written anew; this process, too, cannot open it until then
            time.sleep(0.01)
        assert finished(client, queued) is JobState.DONE
        assert finished(client, running) is JobState.DONE
    assert {row.id for row in store.jobs()} == {running, queued}
