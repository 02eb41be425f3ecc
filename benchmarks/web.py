"""What the pages and lists cost: `python -m benchmarks.web [--trials 5000] [--records 100000]`, JSON on standard
output.

In this process, milliseconds of processor time, medians of several runs: the page of a job with so many trials, read
and written; what it fetches while the job runs; the list of answers among so many records; the figures of /metrics.
Beside them, as a ratio in the same run, what reading the same trials with their samples takes, which is what the page
does without.

Over HTTP, milliseconds on the clock: the page and /metrics of a daemon that serves both.

`share`: the part of its time in which a sleeping fake device measured, of jobs that nobody watches and of jobs while a
browser's worth of requests goes on: what the pages of the running job and of the queue fetch every three seconds, and
every fifteen the whole page of the job with so many trials, and /metrics. Watched and unwatched alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.store import fill
from fusiond.cli.serve import work
from fusiond.daemon.app import Submission
from fusiond.daemon.config import DaemonConfig
from fusiond.daemon.metrics import Metrics, State
from fusiond.daemon.service import Service
from fusiond.events import Events
from fusiond.model import Verdict
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.trials import TrialLine
from fusiond.testing import daemon
from fusiond.testing.fakes import FakePlugin
from fusiond.testing.sleeping import SleepingProvider
from fusiond.web import pages, views

REPEATS = 7
LOAD_SECS = "0.3"
"""What a program costs the sleeping device."""
VIEW = "FUSIOND_BENCHMARK_VIEW"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3, help="of a job that is watched and one that is not; 0: none")
    given = parser.parse_args()
    if VIEW in os.environ:  # the process of one who looks
        view(*json.loads(os.environ[VIEW]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = measured(Path(folder), given.trials, given.records)
        found |= beside(Path(folder) / "jobs.sqlite", given.pairs)
    json.dump({"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "trials": given.trials,
               "records": given.records, **found}, sys.stdout, indent=2)  # fmt: skip
    sys.stdout.write("\n")
    return 0


def beside(path: Path, pairs: int) -> dict[str, Any]:
    """What a daemon answers on the clock, and what that does to its device's share."""
    os.environ["FUSIOND_FAKE_LOAD_SECS"] = LOAD_SECS
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    registry.providers["fake"] = SleepingProvider()
    urls: list[str] = []
    with Store.open(path) as store:
        (large,) = store.jobs(None, 1)
        service = Service(store, DaemonConfig(poll_secs=0.1, web=("127.0.0.1", 0)), work(store, registry))
        service.announce = urls.append
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            while not urls:
                time.sleep(0.05)
            base, _, token = urls[0].partition("/?token=")
            with httpx.Client(base_url=base, headers={"authorization": f"Bearer {token}"}) as http:
                found: dict[str, Any] = {
                    "http_page_of_a_job": _clock_ms(lambda: http.get(f"/page/jobs/{large.id}").raise_for_status()),
                    "http_metrics": _clock_ms(lambda: http.get("/metrics").raise_for_status()),
                }
            if pairs:
                _share(service, store, -1, [])  # the first job finds nothing built, and is another one than the others
            shares: dict[str, list[float]] = {"unwatched": [], "watched": []}
            for number in range(2 * pairs):
                which = "watched" if number % 4 in (1, 2) else "unwatched"
                shares[which].append(_share(service, store, number, [base, token, large.id] * (which == "watched")))
            found["share"] = {name: [round(each, 4) for each in values] for name, values in shares.items()}
            if pairs:
                watched, alone = (statistics.mean(shares[name]) for name in ("watched", "unwatched"))
                found["share_lost"] = round(alone - watched, 4)
        finally:
            service.stopping.set()
            thread.join()
    return found


def _share(service: Service, store: Store, number: int, watch: list[str]) -> float:
    """The device's share of one job; `watch`: while somebody looks."""
    text = f"strategy: toy\nside: 6\nlabel: job{number}\ndevice: fake\nsearch: {{trials: 36}}\n"
    (row,) = service._submit(Submission(path="/job.yaml", text=text, device=None, trials=None, seed=None, priority=0))
    viewer = None
    if watch:
        base, token, large = watch
        asked = {**os.environ, VIEW: json.dumps([base, token, large, row.id])}
        viewer = subprocess.Popen([sys.executable, "-m", "benchmarks.web"], env=asked)
    try:
        while not store.named_job(row.id).state.ended:
            time.sleep(0.2)
            assert viewer is None or viewer.poll() is None, "nobody looks"
    finally:
        if viewer is not None:
            viewer.terminate()
            viewer.wait()
    share = store.named_job(row.id).device_share
    assert share is not None
    return share


def view(base: str, token: str, large: str, running: str) -> None:
    """What two tabs, a third one with the overview, and Prometheus ask of a daemon."""
    with httpx.Client(base_url=base, headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        number, last = 0, -1
        while True:
            page = http.get(f"/page/jobs/{running}", params={"after": last} if number else {}).text
            rows = re.findall(r"data-number=(\d+)", page)
            last = int(rows[-1]) if rows else last
            http.get("/")
            if number % 5 == 0:  # a job that has ended is a page that does not change: it is opened now and then
                http.get(f"/page/jobs/{large}")
                http.get("/metrics")
            number += 1
            time.sleep(3)


def measured(folder: Path, trials: int, records: int) -> dict[str, float]:
    """Milliseconds by what they are for."""
    with Store.open(folder / "jobs.sqlite") as store:
        text = f"strategy: toy\npair: [a, b]\nsearch: {{trials: {trials}}}\n"
        row = daemon.submit(store, jobs.read("/job.yaml", text)[0])
        store.claim("nobody")
        daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
        template = pages.environment().get_template("job.html")
        read = _ms(lambda: views.job(store, row.id))
        known = store.trial_lines(row.id)

        def newest(of: JobRow) -> list[TrialLine]:  # what `pages.Pages` does for a job that runs
            store.trial_lines(of.id, after=known[-2].id)
            return known

        refresh = _ms(lambda: template.render(views.job(store, row.id, after=trials - 2, read=newest), alone=None))
        page = _ms(lambda: template.render(views.job(store, row.id), alone=None))
        samples = _ms(lambda: store.trials(row.id, None))
    fill(folder / "answers.sqlite", records)
    with Store.open(folder / "answers.sqlite") as store:
        metrics = Metrics(lambda: State(jobs=store.jobs_by_state(), devices=[], store_bytes=store.size_bytes()))
        return {
            "page_of_a_job": page,
            "reading_for_it": read,
            "refreshing_it": refresh,
            "page_over_reading_samples": page / samples,
            "answers": _ms(lambda: store.answers(limit=50)),
            "answers_filtered": _ms(lambda: store.answers(limit=50, verdicts=[Verdict.KEEP], since="2026-01-01")),
            "metrics": _ms(metrics.text),
            "answers_command": _command_ms("answers", "--limit", "50", "--db", str(store.path)),
        }


def _command_ms(*words: str) -> float:
    """Processor time of a command as one types it, from the start of Python."""
    found = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fusiond", *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return round(statistics.median(found), 1)


def _clock_ms(what: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        what()
        found.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(found), 2)


def _ms(what: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        what()
        found.append(1e3 * (time.process_time() - began))
    return round(statistics.median(found), 2)


if __name__ == "__main__":
    sys.exit(main())
