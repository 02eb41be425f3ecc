"""Workers and queue, in this process; tests/acceptance has the signals."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fusiond.model.errors import DaemonError, DeviceError, DeviceSick, RequestError, StoreError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.client import client as client_module
from fusiond.service.client import connection
from fusiond.service.client.client import Client
from fusiond.service.daemon import judge
from fusiond.service.daemon import service as service_module
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.judge import Docket, JudgeRequest, kernel_texts
from fusiond.service.daemon.service import Service
from fusiond.store.database import Store
from tests import fake_daemon as daemon

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
    assert worker.hold() == "the device is sick: three deaths"
    assert len(answers) == 2  # not yet
    time.sleep(0.06)
    assert worker.hold() == "the device is sick: three deaths"
    assert len(answers) == 1
    time.sleep(0.06)
    assert worker.hold() is None
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
        assert worker.hold() == held


def test_who_accepts_which_request(store: Store) -> None:
    def device(name: str, evidence: str) -> DeviceInfo:
        return dataclasses.replace(daemon.DEVICE, name=name, evidence=evidence)

    gpus = [device("cpu", "emulated"), device("cuda:0", "measured"), device("cuda:1", "measured")]

    def accepted(devices: list[DeviceInfo]) -> dict[str, list[str]]:
        service = Service(store, DaemonConfig(), daemon.work(store, 0.01))
        requests = ("auto", "cpu", "cuda", "cuda:1")
        workers = service._make_workers(devices)
        return {each.device.name: [request for request in requests if request in each.accepts] for each in workers}

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


# --- POST /judge, with a stand-in for the command that judges -------------------------------------------


COMMAND = (sys.executable, str(Path(__file__).with_name("judge_command.py")))
Judging = Callable[..., AbstractContextManager[tuple[Service, Client]]]


@pytest.fixture
def judging(store: Store, service_of: Callable[..., Any]) -> Judging:
    """`with judging(judge_mb=...) as (service, client)`."""

    def made(**config: Any) -> AbstractContextManager[tuple[Service, Client]]:
        work = dataclasses.replace(daemon.work(store, 0.01), judge=COMMAND)
        found: AbstractContextManager[tuple[Service, Client]] = service_of(
            store, work=work, config=DaemonConfig(poll_secs=0.05, **config)
        )
        return found

    return made


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / f"{text.replace(' ', '-').replace('/', '')[:50]}.yaml"
        path.write_text(text + "\n")
        return path

    return write


def texts(word: str, **files: str) -> dict[str, Any]:
    return {"yaml": f"{word}\n", "files": files}


def http(client: Client) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(client.socket))
    return httpx.Client(transport=transport, base_url="http://fusiond", timeout=60)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)


def counted(service: Service) -> dict[str, float]:
    lines = [each for each in service.metrics.text().decode().splitlines() if each.startswith("fusiond_judged_total{")]
    return {each.split('"')[1]: float(each.split()[-1]) for each in lines}


def gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def test_right_and_wrong_are_rulings_alike(judging: Judging, kernel: Callable[[str], Path]) -> None:
    with judging() as (service, client):
        found = client.judge(kernel("right"), str(kernel("right")), device="cpu", trials=7, timeout_secs=9)
        assert (found.right, found.speedup, found.ci95, found.hints) == (True, 1.5, (1.4, 1.6), ("coalesce",))
        options = found.document["candidate"]["options"]
        assert options == ["--json", "--device=cpu", "--timeout=4.5", "--trials=7"]
        wrong = client.judge(kernel("right"), kernel("wrong"))
        assert (wrong.right, wrong.ci95) == (False, None)
        assert wrong.problem == f"y[3] is 1, not 2 ({kernel('wrong')})"
        assert wrong.document["candidate"]["options"] == ["--json", "--device=auto", "--timeout=60"]
        assert counted(service) == {"right": 1, "wrong": 1}


def test_texts_are_files_for_as_long_as_it_takes(
    judging: Judging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path))  # the session's is shared with other processes of tests
    with judging() as (_, client):
        candidate = {"yaml": "wrong\n", "files": {"a.cu": "// é\n", "sub/b.h": "1"}}
        found = client.judge(texts("right"), candidate)
    assert found.problem == "y[3] is 1, not 2 (candidate/candidate.yaml)"  # and not where that lay
    beside = found.document["candidate"]["beside"]
    assert beside == {"candidate.yaml": "wrong\n", "a.cu": "// é\n", "sub/b.h": "1"}
    assert found.document["reference"]["text"] == "right\n"
    assert (tmp_path / "work").is_dir()
    assert not [*(tmp_path / "work").glob("judge*")]


def test_a_process_is_ready_for_the_next_one(judging: Judging) -> None:
    with judging() as (service, client):
        assert client.judge(texts("right"), texts("right")).right
        until(lambda: len(service.docket._spares) == 1)
        spare = service.docket._spares[0].pid
        assert client.judge(texts("right"), texts("right")).document["candidate"]["pid"] == spare
        until(lambda: len(service.docket._spares) == 1)
        service.docket._spares[0].kill()
        assert client.judge(texts("right"), texts("right")).right
        until(lambda: len(service.docket._spares) == 1)
        spare = service.docket._spares[0].pid
    assert gone(spare)


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("bad", RequestError, "^candidate/candidate.yaml:1: is no kernel$"),
        ("device", DeviceError, "^no such device$"),
        ("crash", DaemonError, "the judge ended with 70: it fell over"),
        ("silent", DaemonError, "the judge ended with 0"),
        ("busy", DaemonError, "auto is not to be had: cuda:0: waiting for pid 4711"),
    ],
)
def test_what_is_no_ruling_is_an_error(judging: Judging, word: str, kind: type[Exception], says: str) -> None:
    with judging() as (_, client), pytest.raises(kind, match=says):
        client.judge(texts("right"), texts(word), timeout_secs=1 if word == "busy" else 20)


@pytest.fixture(scope="module")
def shared(service_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with Store.open(tmp_path_factory.mktemp("judge") / "fusiond.sqlite") as store:
        work = dataclasses.replace(daemon.work(store, 0.01), judge=COMMAND)
        with service_of(store, work=work) as (_, client), http(client) as found:
            yield found


@pytest.mark.parametrize("name", ["a", "a.cu", "sub/x-1_2.h", "..a", "a..b/c", "reference.yaml"])
def test_names_that_stay_in_their_folder(name: str) -> None:
    assert kernel_texts({"yaml": "x", "files": {name: "y"}}, where="candidate").files == {
        name: "y",
        "candidate.yaml": "x",
    }


def test_what_does_not_end_is_wrong_and_leaves_nobody_behind(judging: Judging, tmp_path: Path) -> None:
    with judging() as (_, client):
        found = client.judge(texts("right"), texts(f"family {tmp_path / 'pid'}"), timeout_secs=1.5)
        assert (found.right, found.problem, found.evidence) == (False, "no end after 1.5 s", None)
        until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_what_takes_too_much_memory_is_wrong(judging: Judging) -> None:
    with judging(judge_mb=200) as (_, client):
        assert client.judge(texts("right"), texts("memory 20")).right
        found = client.judge(texts("right"), texts("memory 400"))
    assert not found.right
    assert found.problem == "no end within 200 MiB of memory: MemoryError"


def test_a_client_that_goes_away_takes_its_request_along(judging: Judging, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    with judging() as (service, client), http(client) as asking:
        asking.timeout = httpx.Timeout(2.0)
        with ThreadPoolExecutor(cores + 1) as pool:
            bodies = [{"reference": texts("right"), "candidate": texts(f"family {tmp_path / str(number)}")}
                      for number in range(cores + 1)]  # fmt: skip
            asked = [pool.submit(asking.post, "/judge", json=body) for body in bodies]
            until(lambda: service.docket.state() == {"running": cores, "waiting": 1})
            for each in asked:
                with pytest.raises(httpx.ReadTimeout):
                    each.result()
        until(lambda: service.docket.state() == {"running": 0, "waiting": 0})
        begun = [int(each.read_text()) for each in tmp_path.glob("[0-9]*") if each.read_text()]
        assert len(begun) <= cores
        until(lambda: all(map(gone, begun)))
        until(lambda: counted(service) == {"gone": cores + 1})


def test_a_full_queue_says_when_to_come_again(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(judge, "MOST_WAITING", 2)
    with judging() as (service, client), http(client) as asking, ThreadPoolExecutor(cores + 2) as pool:
        body = {"reference": texts("right"), "candidate": texts("sleep 2")}
        asked = [pool.submit(asking.post, "/judge", json=body) for _ in range(cores + 2)]
        until(lambda: service.docket.state() == {"running": cores, "waiting": 2})
        refused = asking.post("/judge", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        with pytest.raises(DaemonError, match="the daemon refused: 2 candidates wait to be judged"):
            client.judge(texts("right"), texts("right"))
        assert 'fusiond_judging{state="waiting"} 2.0' in service.metrics.text().decode()
        assert [each.result().json()["right"] for each in asked] == [True] * (cores + 2)
        assert counted(service) == {"full": 2, "right": cores + 2}


def test_the_end_of_the_daemon_ends_them(judging: Judging) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        with judging() as (service, client):
            asked = pool.submit(client.judge, texts("right"), texts("sleep 60"))
            until(lambda: service.docket.state()["running"] == 1)
        with pytest.raises(DaemonError):
            asked.result()
        assert time.monotonic() - begun < 30


def test_one_at_a_time_where_time_is_measured(tmp_path: Path) -> None:
    docket = Docket(COMMAND, ["cuda:0"], 1 << 30, lambda result: None)
    path = tmp_path / "k.yaml"
    path.write_text("sleep 0.3\n")
    try:
        begun = time.monotonic()
        for devices, most in ((["auto", "cuda:0", "cuda"], 1), (["cpu", "counted:h100"], 2)):
            wanted = [JudgeRequest(reference=str(path), candidate=str(path), device=each) for each in devices]
            cases = [docket.enter(each) for each in wanted]
            until(lambda: docket.state()["running"] > 0)
            assert docket.state()["running"] <= most
            assert all(each.ruling.result()["right"] for each in cases)
            if most == 1:
                assert time.monotonic() - begun >= 0.9
    finally:
        docket.close()
    with pytest.raises(DaemonError, match="stops"):
        docket.enter(wanted[0])
