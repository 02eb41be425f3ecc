"""`fusiond best` and a second `fusiond submit` from a cold shell, beside a bare `python -c pass`: `python -m
benchmarks.best`, JSON on standard output. Processor time (user and system) of whole processes, interleaved: the least
and the median of each, and the ratios of the medians.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fusiond

ROUNDS = 20
JOB = "strategy: transfer\ngraph: fig2\ndevice: cpu\nsizes: {elements: 512}\nsearch: {trials: 3, seed: 1}\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIOND_CACHE"] = os.environ["FUSIOND_LOCKS"] = folder
        os.environ["FUSIOND_DB"] = str(Path(folder) / "store.sqlite")
        job = Path(folder) / "job.yaml"
        job.write_text(JOB)
        fusiond.tune(job)
        command = str(Path(sys.executable).with_name("fusiond"))
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "name": [command, "best", "--workload", "fig2"],
            "name_json": [sys.executable, "-m", "fusiond", "best", "--workload", "fig2", "--json"],
            "job": [command, "best", str(job)],
            "submit": [command, "submit", str(job), "--trials", "1000000"],
        }
        daemon = subprocess.Popen([command, "serve"], stderr=subprocess.DEVNULL)
        # The job is handed in once, before the clock; what the daemon does about it is none of ours.
        try:
            while subprocess.run(commands["submit"], capture_output=True).returncode:
                time.sleep(0.2)
            daemon.send_signal(signal.SIGSTOP)
            times: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(ROUNDS + 1):
                for name, words in commands.items():
                    times[name].append(1000 * processor_secs(words))
        finally:
            daemon.kill()
            daemon.wait()
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    shown = {
        f"{name}_ms": {"least": round(min(found[1:]), 1), "median": round(medians[name], 1)}
        for name, found in times.items()
    }
    ratios = {f"ratio_{name}_to_bare": round(medians[name] / medians["bare"], 2) for name in ("name", "job", "submit")}
    print(json.dumps({"rounds": ROUNDS, **shown, **ratios}, indent=1))


def processor_secs(command: list[str]) -> float:
    """Of a process of its own; CalledProcessError where it fails."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
