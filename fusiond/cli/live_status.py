"""The tables of `fusiond status --watch`: a row per device, and the waiting jobs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fusiond.cli import job_texts, render
from fusiond.model.english import counted, shortened
from fusiond.model.errors import NothingKnown
from fusiond.model.outcomes import JobState
from fusiond.service.client.client import Client
from fusiond.service.remaining import duration
from fusiond.store.jobs import JobRow

MOST_WAITING = 12
_OPEN = (JobState.RUNNING, JobState.WAITING, JobState.QUEUED)


def watch(client: Client, look: Callable[[], Mapping[str, Any]], secs: float) -> None:
    """Until Ctrl-C. `look` gives the document of `fusiond status`."""

    def draw() -> Sequence[job_texts.TableOf]:
        document = look()
        try:
            rows = client.jobs(_OPEN, 100)
        except NothingKnown:
            rows = ()
        return tables(document, rows)

    render.watching(draw, secs)


def tables(document: Mapping[str, Any], open_jobs: Sequence[JobRow]) -> Sequence[job_texts.TableOf]:
    """Devices, the queue, the latest answers; empty ones are left out."""
    daemon = document["daemon"]
    workers = daemon.get("workers", ())
    running = {each["job"] for each in workers}
    waiting = [each for each in open_jobs if each.state is not JobState.RUNNING and each.id not in running]
    title = f"fusiond {daemon['state']}" + ("" if daemon["state"] == "absent" else f", pid {daemon['pid']}")
    more = len(waiting) - MOST_WAITING
    found = [
        job_texts.TableOf(
            title=title,
            columns=("device", "job", "workload", "part", "now", "trials", "best", "left"),
            rows=_devices(workers, open_jobs, running),
        ),
        job_texts.TableOf(
            title=f"{counted(len(waiting), 'job')} to come" + (f", the first {MOST_WAITING}" if more > 0 else ""),
            columns=("job", "state", "workload", "device", "trials", "why"),
            rows=[
                (each.id, each.state.value, each.workload_name, each.device, f"{each.trials}/{each.budget}",
                 shortened(each.waiting_for or each.problem or "", 80))
                for each in waiting[::-1][:MOST_WAITING]
            ],
        ),
        job_texts.TableOf(
            title="the latest answers",
            columns=("found (UTC)", "workload", "device", "verdict", "gain"),
            rows=[
                (each["found_at"][:16].replace("T", " "), each["workload"], each["device"], each["verdict"],
                 job_texts.ratio(each["speedup"]))
                for each in document["answers"]
            ],
        ),
    ]  # fmt: skip
    return [each for each in found if each.rows]


def _devices(
    workers: Sequence[Mapping[str, Any]], open_jobs: Sequence[JobRow], running: Collection[str]
) -> list[tuple[object, ...]]:
    """What the daemon's workers do, what runs without it, and which devices are idle."""
    busy = [each for each in workers if each["job"] or each["waiting"]]
    # Of what runs without the daemon the store knows as much as this.
    elsewhere = [
        each for each in open_jobs
        if each.state is JobState.RUNNING and each.id not in running and each.parent not in running
    ]  # fmt: skip
    found = [*map(_device, busy), *map(_without_daemon, elsewhere)]
    idle = [each["device"] for each in workers if each not in busy]
    if idle:
        found.append((", ".join(idle), None, "idle", None, None, None, None, None))
    return found


def _device(each: Mapping[str, Any]) -> tuple[object, ...]:
    found = each.get("progress")
    if each["job"] is None or found is None:
        waits = f"waits: {shortened(each['waiting'], 60)}" if each["waiting"] else "begins"
        return each["device"], each["job"], None, None, waits, None, None, None
    part = f"{found['part']} of {found['parts']}: {shortened(found['part_name'], 24)}" if found["part"] else None
    now = f"final {found['final']} of {found['finals']}" if found["final"] else found["phase"]
    if each["waiting"]:
        now = f"waits: {shortened(each['waiting'], 60)}"
    left = None if found["left_secs"] is None else duration(found["left_secs"])
    best = job_texts.ratio(found["best"])
    trials = job_texts.bar(found["done"], found["budget"])
    return each["device"], each["job"], shortened(found["workload"], 32), part, now, trials, best, left


def _without_daemon(row: JobRow) -> tuple[object, ...]:
    trials = job_texts.bar(row.trials, row.budget)
    name = shortened(row.workload_name, 32)
    return row.device, row.id, name, None, "runs without the daemon", trials, job_texts.ratio(row.best_ratio), None
