"""Run the benchmarks and keep their figures: `python -m benchmarks [NAME ...]` (or `make bench`). Writes
docs/results-fusiond.md; `--page` does nothing else.

    best          `fusiond best` from a cold shell, beside a bare Python that imports sqlite3 and json
    store         look-ups among 100,000 records, and an acknowledged trial
    tuner         what a trial costs beside building and running it, beside Optuna alone
    cpu_device    hist and maxpool on the cpu device, beside plain serial loops
    pipeline      compiling and measuring at once, recorded times replayed, beside the ideal of the same work
    worker        what a lost child process costs, beside a call to one that is there
    verdict       how often the verdict is right, on simulated noise, beside pooled samples
    control       native against native on the cpu device: how often it is called faster

Each prints JSON and is kept as benchmarks/results/cpu/NAME.json with date, machine and command. Read the ratios, not
the times: these machines are shared and noisy.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks import page

HERE = Path(__file__).parent
NAMES = ("best", "store", "tuner", "cpu_device", "pipeline", "worker", "verdict", "control")
OPTIONS = {"control": ["--device", "cpu", "--most", "12"]}


def main(names: list[str]) -> None:
    if names != ["--page"]:
        _run(names)
    page.PAGE.write_text(page.render(page.read()), encoding="utf-8")
    print(f"wrote docs/{page.PAGE.name}")


def _run(names: list[str]) -> None:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise SystemExit(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    for name in names or NAMES:
        options = OPTIONS.get(name, [])
        load = round(os.getloadavg()[0], 1)
        command = [sys.executable, str(HERE / f"{name}.py"), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"{name}: {done.stdout}", flush=True)
        kept = {
            "benchmark": name,
            "command": " ".join([f"python benchmarks/{name}.py", *options]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": {
                "processor": _processor(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "load_at_start": load,
            },
            "result": json.loads(done.stdout),
        }
        folder = HERE / "results" / "cpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


if __name__ == "__main__":
    main(sys.argv[1:])
