"""What the pages and lists cost: `python -m benchmarks.web [--trials 5000] [--records 100000]`, JSON on standard
output.

Milliseconds of processor time, medians of several runs in this process: the page of a job with so many trials, read and
written; the list of answers among so many records; the figures of /metrics. Beside them, as a ratio in the same run,
what reading the same trials with their samples takes, which is what the page does without.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.store import fill
from fusiond.daemon.metrics import Metrics, State
from fusiond.events import Events
from fusiond.model import Verdict
from fusiond.requests import jobs
from fusiond.store.database import Store
from fusiond.testing import daemon
from fusiond.web import pages, views

REPEATS = 7


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--records", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.trials, given.records)
    json.dump({"machine": platform.processor() or platform.machine(), "trials": given.trials,
               "records": given.records, **found}, sys.stdout, indent=2)  # fmt: skip
    sys.stdout.write("\n")
    return 0


def measured(folder: Path, trials: int, records: int) -> dict[str, float]:
    """Milliseconds by what they are for."""
    with Store.open(folder / "jobs.sqlite") as store:
        text = f"strategy: toy\npair: [a, b]\nsearch: {{trials: {trials}}}\n"
        row = daemon.submit(store, jobs.read("/job.yaml", text)[0])
        store.claim("nobody")
        daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
        template = pages.environment().get_template("job.html")
        read = _ms(lambda: views.job(store, row.id))
        page = _ms(lambda: template.render(views.job(store, row.id), alone=None))
        samples = _ms(lambda: store.trials(row.id, None))
    fill(folder / "answers.sqlite", records)
    with Store.open(folder / "answers.sqlite") as store:
        metrics = Metrics(lambda: State(jobs=store.jobs_by_state(), devices=[], store_bytes=store.size_bytes()))
        return {
            "page_of_a_job": page,
            "reading_for_it": read,
            "page_over_reading_samples": page / samples,
            "answers": _ms(lambda: store.answers(limit=50)),
            "answers_filtered": _ms(lambda: store.answers(limit=50, verdicts=[Verdict.KEEP], since="2026-01-01")),
            "metrics": _ms(metrics.text),
        }


def _ms(what: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        what()
        found.append(1e3 * (time.process_time() - began))
    return round(statistics.median(found), 2)


if __name__ == "__main__":
    sys.exit(main())
