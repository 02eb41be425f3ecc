"""`fusiond best` from a cold shell, beside a bare `python -c "import sqlite3, json"`: `python -m benchmarks.best`,
JSON on standard output. Whole processes, interleaved; the least and the median of each, and the ratio of the medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fusiond.events import Events
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.store.database import Store
from fusiond.testing.fakes import FakePlugin, InProcess
from fusiond.tuning import tuner

ROUNDS = 30


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIOND_CACHE"] = os.environ["FUSIOND_LOCKS"] = folder
        store = Path(folder) / "store.sqlite"
        one_record(store)
        commands = {
            "bare": [sys.executable, "-c", "import sqlite3, json"],
            "best": [str(Path(sys.executable).with_name("fusiond")), "best", "--workload", "toy", "--db", str(store)],
            "best_json": [sys.executable, "-m", "fusiond", "best", "--workload", "toy", "--json", "--db", str(store)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS + 1):
            for name, command in commands.items():
                begun = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                times[name].append(1000 * (time.perf_counter() - begun))
    result: dict[str, object] = {
        f"{name}_ms": {"least": round(min(found[1:]), 1), "median": round(statistics.median(found[1:]), 1)}
        for name, found in times.items()
    }
    bare = statistics.median(times["bare"][1:])
    result["ratio_best_to_bare"] = round(statistics.median(times["best"][1:]) / bare, 2)
    print(json.dumps({"rounds": ROUNDS, **result}, indent=1))


def one_record(path: Path) -> None:
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    with Store.open(path) as store:
        (job,) = jobs.read("toy.yaml", "strategy: toy\nside: 4\n")
        row = tuner.submit(store, registry, job)
        store.claim("benchmark", job=row.id)
        tuner.Tuner(store, registry, Events(), runner=InProcess).run(row.id, lambda: False)


if __name__ == "__main__":
    main()
