"""Run the benchmarks and keep their figures: `python -m benchmarks [NAME ...]` (or `make bench`). Writes
docs/results-fusiond.md; `--page` does nothing else.

    best          `fusiond best` by name and of a job file from a cold shell, beside a bare Python
    store         look-ups among 100,000 records, and an acknowledged trial
    control       native against native on the cpu device: how often it is called faster
    watching      what noting a launch costs a program that is captured on a GPU

Each prints JSON and is kept as benchmarks/results/cpu/NAME.json with date, machine and command. Read the ratios, not
the times: these machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page

HERE = Path(__file__).parent
NAMES = ("best", "store", "control", "watching")
OPTIONS = {"control": ["--device", "cpu", "--most", "12"]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)}; without: all")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from what is kept")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    if not given.page:
        _run(given.names or NAMES)
    page.PAGE.write_text(page.render(page.read()), encoding="utf-8")
    print(f"wrote docs/{page.PAGE.name}")


def _run(names: Sequence[str]) -> None:
    for name in names:
        options = OPTIONS.get(name, [])
        load = round(os.getloadavg()[0], 1)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parent)
        print(f"{name}: {done.stdout}", flush=True)
        kept = {
            "benchmark": name,
            "command": " ".join([f"python -m benchmarks.{name}", *options]),
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
