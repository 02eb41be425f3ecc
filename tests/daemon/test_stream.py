"""Progress, from a worker's thread to a watcher."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fusiond.model.events import JobEnded, JobStarted, PhaseStarted
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.daemon.stream import QUEUE_LINES, Broker
from fusiond.service.progress import Progress
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.testing import daemon

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
