"""HTTP + JSON over the real socket: what each endpoint answers, and that nobody's mistake is a 500."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.events import JobEnded, JobStarted, PhaseStarted
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.daemon.stream import QUEUE_LINES, Broker
from fusiond.service.progress import Progress
from fusiond.store import lookup, sources
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from tests import fake_daemon as daemon


@pytest.fixture(scope="module")
def http(service_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One daemon for all tests here, each with workloads of its own."""
    with (
        Store.open(tmp_path_factory.mktemp("app") / "fusiond.sqlite") as store,
        service_of(store) as (_, client),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(client.socket)), base_url="http://fusiond") as found,
    ):
        yield found


def error(response: httpx.Response) -> dict[str, str]:
    found = response.json()
    assert set(found) == {"error"}
    assert set(found["error"]) == {"kind", "where", "problem"}
    inner: dict[str, str] = found["error"]
    return inner


def test_a_job_from_submission_to_answer(http: httpx.Client, job_file: Callable[..., Path]) -> None:
    path = job_file()
    response = http.post("/jobs", json={"path": str(path), "text": path.read_text(), "trials": 3})
    assert response.status_code == 201
    (job,) = response.json()["jobs"]
    assert (job["workload"], job["budget"]) == ("hist,maxpool", 3)
    lines = [json.loads(line) for line in http.get(f"/jobs/{job['id']}/events").text.splitlines() if line]
    assert lines[-1] == {"job": job["id"], "event": "ended", "state": "done"}
    shown = http.get(f"/jobs/{job['id']}").json()
    assert (shown["state"], shown["trials"]) == ("done", 3)
    assert [each["id"] for each in http.get("/jobs?state=done").json()["jobs"]] == [job["id"]]
    assert http.get("/jobs?state=queued").json() == {"jobs": []}
    best = http.get("/best", params={"pair": "maxpool,hist"}).json()
    assert best["verdict"] == "fuse"
    assert http.get("/best", params={"workload": "hist,maxpool", "size": "hist.n=600"}).json()["match"] == "nearest"


def test_a_job_file_is_answered_by_its_content(http: httpx.Client, job_file: Callable[..., Path]) -> None:
    path = job_file(trials=2)
    (job,) = http.post("/jobs", json={"path": str(path)}).json()["jobs"]
    assert http.get(f"/jobs/{job['id']}/events").status_code == 200  # until it has ended
    (found,) = http.post("/best", json={"path": str(path)}).json()["answers"]
    assert (found["match"], found["workload"]["name"]) == ("exact", "hist,maxpool")
    text = path.read_text() + "measure: {cache: both}\n"
    answers = http.post("/best", json={"path": str(path), "text": text}).json()["answers"]
    assert [each.get("cache", "unknown") for each in answers] == ["warm", "unknown"]
    response = http.post("/best", json={"path": str(path), "cache": "cold"})
    assert (response.status_code, error(response)["kind"]) == (404, "NothingKnown")


def test_a_mistake_in_a_job_names_file_line_and_key_and_stores_nothing(http: httpx.Client) -> None:
    before = [job["id"] for job in http.get("/jobs").json()["jobs"]]
    response = http.post("/jobs", json={"path": "/x/job.yaml", "text": "strategy: toy\nsearch: {trails: 3}\n"})
    assert response.status_code == 400
    assert error(response) == {
        "kind": "UnknownName", "where": "/x/job.yaml:2", "problem": "unknown key 'trails'; did you mean 'trials'?",
    }  # fmt: skip
    assert [job["id"] for job in http.get("/jobs").json()["jobs"]] == before


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff\xfe", "is not JSON"), (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"), (b"{}", "the key 'path' is missing"), (b'{"path": 3}', "is not a text"),
        (b'{"path": "job.yaml"}', "is not an absolute path"), (b'{"path": "/a\\u0000b"}', "is not an absolute path"),
        (b'{"path": "/none/job.yaml"}', "there is no file"),
        (b'{"path": "/x", "trials": true}', "is not a whole number"),
        (b'{"path": "/x", "trials": 1.5}', "is not a whole number"),
        (b'{"path": "/x", "text": "strategy: toy", "trials": 0}', "must be from 1"),
        (b'{"path": "/x", "priority": 10000000000000000000000}', "must be from"),
        (b'{"path": "/x", "paht": 1}', "did you mean 'path'?"), (b'{"path": "/x", "text": "\\ud800"}', ""),
    ],
)  # fmt: skip
def test_a_malformed_body_is_a_400(http: httpx.Client, body: bytes, problem: str) -> None:
    response = http.post("/jobs", content=body)
    assert response.status_code == 400, response.text
    assert problem in error(response)["problem"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404), ("GET", "/job", 404), ("DELETE", "/jobs", 405), ("GET", "/jobs/none", 404),
        ("GET", "/jobs/none/events", 404), ("POST", "/jobs/none/cancel", 404), ("GET", "/jobs?state=asleep", 400),
        ("GET", "/jobs?limit=many", 400), ("GET", "/jobs?limit=-1", 400), ("GET", "/jobs?limit=0", 400),
        ("GET", "/jobs?limit=99999999999", 200), ("GET", "/best", 400), ("GET", "/best?pair=a", 400),
        ("GET", "/best?pair=a,b&workload=c", 400), ("GET", "/best?pair=a,b&size=n=x", 400),
        ("GET", "/best?pair=a,b&cache=hot", 400), ("GET", "/best?pair=hist,maxpool&cache=cold", 404),
        ("GET", "/best?pair=a,b", 404), ("GET", "/best?workload=%00", 404),
    ],
)  # fmt: skip
def test_what_is_wrong_or_unknown_is_a_4xx(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    assert response.status_code == status, response.text
    if status != 200:
        assert error(response)["problem"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    body=st.dictionaries(
        st.sampled_from(["path", "text", "device", "trials", "seed", "priority", "sizes", "cache", "x"]), JSON
    )
)
def test_no_body_is_a_500(http: httpx.Client, body: dict[str, Any]) -> None:
    assert http.post("/jobs", content=json.dumps(body)).status_code in (201, 400)
    asked = {name: value for name, value in body.items() if name not in ("trials", "seed", "priority")}
    assert http.post("/best", content=json.dumps(asked)).status_code in (200, 400, 404)


def test_the_check_of_a_stale_answer_does_not_hold_up_the_event_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is read in the loop's own thread; queueing its check writes, and may wait for others that do."""
    threads: dict[str, str] = {}

    def best(*arguments: Any, **options: Any) -> dict[str, Any]:
        threads["best"] = threading.current_thread().name
        return {"match": "stale", "name": options["name"]}

    def queue(*arguments: Any) -> bool:
        threads["recheck"] = threading.current_thread().name
        return False

    monkeypatch.setattr(lookup, "best", best)
    monkeypatch.setattr(lookup, "queue_recheck", queue)
    assert http.get("/best?pair=old,grown").json() == {"match": "stale", "name": "grown,old"}
    assert threads["best"] == "http"
    assert threads["recheck"] != "http"


def test_sources_on_a_dead_mount_hold_up_nobody_else(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at them hangs in the kernel; that is not the event loop's thread."""
    threads: list[str] = []

    def best(*arguments: Any, **options: Any) -> dict[str, Any]:
        assert options["later"]
        return {"match": "exact", "changed": [], "notes": [], "found_at": "", "to_compare": {"/dead/x.cu": "1"}}

    def changes(hashes: Any, found_at: str) -> tuple[list[str], bool]:
        threads.append(threading.current_thread().name)
        return ["source changed: /dead/x.cu"], True

    monkeypatch.setattr(lookup, "best", best)
    monkeypatch.setattr(lookup, "queue_recheck", lambda *arguments: False)
    monkeypatch.setattr(sources, "changes", changes)
    found = http.get("/best?pair=old,grown").json()
    assert (found["match"], found["changed"]) == ("stale", ["source"])
    assert "to_compare" not in found
    assert threads
    assert threads[0] != "http"


# --- progress, from a worker's thread to a watcher ------------------------------------------------------


JOB = "strategy: toy\npair: [hist, maxpool]\n"


@pytest.fixture
def row(store: Store) -> JobRow:
    return daemon.submit(store, jobs.read("/job.yaml", JOB)[0])


async def collect(broker: Broker, store: Store, job: str, *, limit: int = 100) -> list[Progress]:
    found = []
    async for progress in broker.follow(job, lambda id: store._known(id), tick_secs=0.02):
        if progress is not None:
            found.append(progress)
        if len(found) == limit:
            break
    return found


def test_what_is_published_in_another_thread_arrives_in_order(store: Store, row: JobRow) -> None:
    broker = Broker()

    def work() -> None:
        for name in ("baselines", "search", "final"):
            broker(PhaseStarted(job=row.id, phase=name))
        broker(PhaseStarted(job="another", phase="search"))
        broker(JobEnded(job=row.id, state="done"))

    async def watch() -> list[Progress]:
        threading.Timer(0.1, work).start()
        return await collect(broker, store, row.id)

    found = asyncio.run(watch())
    assert [each.phase or each.state for each in found] == ["queued", "baselines", "search", "final", "done"]


def test_an_end_that_another_process_wrote_is_seen(store: Store, row: JobRow) -> None:
    async def watch() -> list[Progress]:
        threading.Timer(0.1, lambda: store.finish(row.id, JobState.FAILED, "the disk is full")).start()
        return await collect(Broker(), store, row.id)

    found = asyncio.run(watch())
    assert found[-1] == Progress(job=row.id, event="ended", state="failed", problem="the disk is full")


def test_a_requeued_job_has_not_ended(store: Store, row: JobRow) -> None:
    broker = Broker()

    async def watch() -> list[Progress]:
        threading.Timer(0.05, lambda: broker(JobEnded(job=row.id, state="queued"))).start()
        return await collect(broker, store, row.id, limit=2)

    assert [(each.event, each.state) for each in asyncio.run(watch())] == [("job", "queued"), ("job", "queued")]


def test_a_slow_watcher_loses_the_oldest_lines_only(store: Store, row: JobRow) -> None:
    broker = Broker()

    async def watch() -> list[Progress]:
        found: list[Progress] = []
        async for progress in broker.follow(row.id, lambda id: store._known(id), tick_secs=0.02):
            if not found:  # slow: everything is published before it reads on
                for number in range(QUEUE_LINES + 500):
                    broker(PhaseStarted(job=row.id, phase=str(number)))
                broker(JobEnded(job=row.id, state="done"))
            if progress is not None:
                found.append(progress)
        return found

    found = asyncio.run(watch())
    assert len(found) == QUEUE_LINES + 1
    assert found[-1].event == "ended"
    assert found[-2].phase == str(QUEUE_LINES + 499)


def test_closing_ends_the_streams(store: Store, row: JobRow) -> None:
    broker = Broker()

    async def watch() -> list[Progress]:
        threading.Timer(0.05, broker.close).start()
        return await asyncio.wait_for(collect(broker, store, row.id), 5)

    assert [each.event for each in asyncio.run(watch())] == ["job"]


def test_a_part_is_told_to_those_who_watch_the_whole_and_its_end_is_not_theirs(store: Store, row: JobRow) -> None:
    broker = Broker()
    part = JobStarted(job="part", workload="a", device="cpu", budget=3, known=0, parent=row.id)

    def work() -> None:
        broker(PhaseStarted(job=row.id, phase="part", detail="a", number=2, of=3))
        broker(part)
        broker(PhaseStarted(job="part", phase="search", detail="3 configs"))
        broker(JobEnded(job="part", state="done"))
        broker(PhaseStarted(job="part", phase="search", detail="of nobody"))
        broker(PhaseStarted(job=row.id, phase="answer"))
        broker(JobEnded(job=row.id, state="done"))

    async def watch() -> list[Progress]:
        threading.Timer(0.1, work).start()
        return await collect(broker, store, row.id)

    found = asyncio.run(watch())[1:]
    assert [(each.job == row.id, each.phase or each.event) for each in found] == [
        (True, "part"), (False, "job"), (False, "search"), (True, "answer"), (True, "ended"),
    ]  # fmt: skip
    assert (found[0].number, found[0].of, found[1].parent) == (2, 3, row.id)
    assert broker.standings.of(row.id) is None
