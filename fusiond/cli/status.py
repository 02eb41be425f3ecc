"""`fusiond status`: shows the daemon, its devices, the queue and the latest answers. Works without a daemon."""

import argparse
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fusiond.cli import job_texts, options, output, render
from fusiond.cli.counts import size
from fusiond.model.english import counted, shortened
from fusiond.model.errors import DaemonError, NothingKnown, RequestError
from fusiond.model.outcomes import JobState
from fusiond.service.client.client import Client
from fusiond.service.remaining import duration
from fusiond.service.wire import answer_entry
from fusiond.store.jobs import JobRow

LATEST = 5  #: Answers that are shown
MOST_WAITING = 12
_OPEN = (JobState.RUNNING, JobState.WAITING, JobState.QUEUED)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        metavar="SECS",
        nargs="?",
        type=float,
        const=1.0,
        help="show devices and queue until Ctrl-C, every SECS seconds (default 1)",
    )
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        if arguments.watch is not None:
            if arguments.json:
                raise RequestError("goes on for ever, and --json is one document", where="--watch")
            if not 0.1 <= arguments.watch <= 3600:
                raise RequestError(f"is {arguments.watch:g}; write 0.1 to 3600 seconds", where="--watch")
            with contextlib.suppress(KeyboardInterrupt):  # that is how one ends it
                render.watching(lambda: tables(_document(client), _open_jobs(client)), arguments.watch)
            return 0
        document, open_jobs = _document(client), () if arguments.json else _open_jobs(client)
    if arguments.json:
        options.say_json(document)
        return 0
    daemon, store = document["daemon"], document["store"]
    shown = tables(document, open_jobs)
    if not any(each.title == _daemon(daemon) for each in shown):
        output.say(_daemon(daemon))
    jobs = ", ".join(counted(count, f"{state} job") for state, count in store["jobs"].items() if count)
    output.say(f"store {store['path']} ({size(store['bytes'])}): {jobs or 'no jobs'}")
    for each in shown:
        render.table(each.title, each.columns, each.rows)
    return 0


def _document(client: Client) -> dict[str, Any]:
    try:
        daemon = client.health()
    except DaemonError as problem:
        daemon = {"state": "absent", "why": str(problem)}
    try:
        store = client.store
        known = {"path": str(store.path), "bytes": store.size_bytes(), "jobs": store.jobs_by_state()}
        answers = [answer_entry(each) for each in store.answers(limit=LATEST)]
    except NothingKnown:
        known, answers = {"path": str(client.db), "bytes": 0, "jobs": {}}, []
    return {"daemon": daemon, "store": known, "answers": answers}


def _open_jobs(client: Client) -> Sequence[JobRow]:
    try:
        return client.jobs(_OPEN, 100)
    except NothingKnown:
        return ()


def _daemon(found: Mapping[str, Any]) -> str:
    if found["state"] == "absent":
        return "no daemon answers (`fusiond serve` starts one)"
    about = f", version {found['version']}, up {duration(found['uptime_secs'])}"
    return f"fusiond {found['state']}, pid {found['pid']}{about}"


def tables(document: Mapping[str, Any], open_jobs: Sequence[JobRow]) -> Sequence[job_texts.TableOf]:
    """Devices, the queue, the latest answers; empty ones are left out."""
    workers = document["daemon"].get("workers", ())
    running = {each["job"] for each in workers}
    waiting = [each for each in open_jobs if each.state is not JobState.RUNNING and each.id not in running]
    more = len(waiting) - MOST_WAITING
    found = [
        job_texts.TableOf(
            title=_daemon(document["daemon"]),
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
