"""A daemon for an hour: `python -m benchmarks.soak [--minutes 60] [--seed 1] [--folder DIR]`, JSON on standard output
and a table on standard error.

Jobs of the toy strategy on the fake device come all the time; meanwhile children are killed with SIGKILL, answers are
looked up, and what is not needed is pruned; in the first quarter the daemon itself is killed, too. What it needs at the
end (memory, descriptors, disk, the time of a look-up) is compared with what it needed at the beginning: the median of
the last quarter beside that of the second one. A ratio above its tolerance, a job that failed and an answer that is not
the right one make the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fusiond.client.client import Client
from fusiond.errors import DaemonError, FusiondError
from fusiond.model import JobState

LABELS = 12
"""Workloads; each is tuned again and again, with another seed, so that the store is about to stop growing in answers
and grows in trials only."""
QUEUED = 4
"""Jobs that wait for their turn at any time."""
TOLERANCES: Mapping[str, float] = {
    "memory_mb": 1.15,
    "descriptors": 1.25,
    "temporary_files": 1.5,
    "cache_mb": 1.5,
    "lookup_ms": 2.0,
    "disk_kb_per_trial": 1.3,
}
"""Last quarter to second one, at most. Look-ups share the cores with whatever else runs on this machine."""
TOY = "strategy: toy\nside: {side}\nlabel: soak{label}\nsearch: {{trials: {trials}, seed: {seed}}}\n"
CHILD_SECS = 10.0
"""How long a process that measures is waited for before none is killed."""
BEST = {"x": 3, "y": 5}
"""The toy strategy's best config, of a space that is searched whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the daemon needs at one moment."""

    at_secs: float
    memory_mb: float
    descriptors: int
    temporary_files: int
    cache_mb: float
    store_mb: float
    lookup_ms: float
    disk_kb_per_trial: float


@dataclass(slots=True)
class Counts:
    """What was done to it."""

    submitted: int = 0
    children_killed: int = 0
    daemons_killed: int = 0
    prunes: int = 0
    lookups: int = 0
    wrong_answers: list[str] = field(default_factory=list)


class Soak:
    """One store, one daemon after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._runtime = tempfile.TemporaryDirectory(prefix="soak-")  # a socket's path is short
        self.counts = Counts()
        self.samples: list[Sample] = []
        self._random = random.Random(seed)
        self._store = folder / "data" / "fusiond.sqlite"
        for name in ("data", "tmp", "locks", "run"):
            (folder / name).mkdir(mode=0o700)
        self._env = self._environment()
        self._daemon = self._start()
        self._begun = time.monotonic()

    def _environment(self) -> dict[str, str]:
        info = self.folder / "plugin" / "toyplugin-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyplugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[fusiond]\ntoy = toyplugin:plugin\n")
        plugin = "from fusiond.testing.fakes import FakePlugin\n\nplugin = FakePlugin()\n"
        (self.folder / "plugin" / "toyplugin.py").write_text(plugin)
        path = [
            str(self.folder / "plugin"),
            str(Path(__file__).parents[1]),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        return {name: value for name, value in os.environ.items() if not name.startswith("FUSIOND_")} | {
            "PYTHONPATH": os.pathsep.join(path),
            "FUSIOND_DB": str(self._store),
            "FUSIOND_CACHE": str(self.folder / "cache"),
            "FUSIOND_LOCKS": str(self.folder / "locks"),
            "XDG_RUNTIME_DIR": self._runtime.name,
            "TMPDIR": str(self.folder / "tmp"),
        }

    # --- the daemon ---

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self.folder / "serve.err", "a") as err:
            daemon = subprocess.Popen([sys.executable, "-m", "fusiond", "serve"], env=self._env, stderr=err)
        limit = time.monotonic() + 60
        while not self._answers():
            if daemon.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the daemon does not answer: {(self.folder / 'serve.err').read_text()[-2000:]}")
            time.sleep(0.05)
        return daemon

    def _answers(self) -> bool:
        with Client(db=self._store) as client:
            try:
                return bool(client.health())
            except FusiondError:
                return False

    def close(self) -> int:
        """Stop the daemon as a user would: its exit status."""
        self._runtime.cleanup()
        self._daemon.send_signal(signal.SIGTERM)
        try:
            return self._daemon.wait(60)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            return self._daemon.wait()

    def kill_daemon(self) -> None:
        self._daemon.kill()
        self._daemon.wait()
        self.counts.daemons_killed += 1
        self._daemon = self._start()

    def kill_child(self) -> None:
        """Kill one of the processes that measure; where none is there yet (the daemon has just begun), the first."""
        limit = time.monotonic() + CHILD_SECS
        while time.monotonic() < limit:
            found = [each for each in psutil.Process(self._daemon.pid).children(recursive=True) if _is_worker(each)]
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                self._random.choice(found).kill()
                self.counts.children_killed += 1
                return
            time.sleep(0.01)

    # --- its users ---

    def submit(self) -> None:
        """Keep some jobs in the queue."""
        with Client(db=self._store) as client:
            while client.count_jobs([JobState.QUEUED, JobState.WAITING]) < QUEUED:
                label, number = self.counts.submitted % LABELS, self.counts.submitted
                text = TOY.format(side=8, label=label, trials=64, seed=number)
                client.submit(self.folder / f"soak{label}.yaml", text=text)
                self.counts.submitted += 1

    def look_up(self) -> float:
        """Milliseconds for a look-up; an answer that is there must be the right one."""
        with Client(db=self._store) as client:
            name = f"soak{self._random.randrange(LABELS)}"
            began = time.perf_counter()
            found = client.best(name)
            elapsed_ms = (time.perf_counter() - began) * 1e3
        self.counts.lookups += 1
        if found is not None and (found.config, found.verdict) != (BEST, "fuse"):
            self.counts.wrong_answers.append(f"{name}: {found.verdict} {found.config}")
        return elapsed_ms

    def prune(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "fusiond", "prune", "--hours", "0"], env=self._env, capture_output=True, check=False
        )
        self.counts.prunes += done.returncode == 0

    # --- what it needs ---

    def sample(self) -> None:
        process = psutil.Process(self._daemon.pid)
        lookups = [self.look_up() for _ in range(20)]
        with Client(db=self._store) as client:
            rows = client.store._rows("SELECT count(*) AS found FROM trials")
        stored = sum(each.stat().st_size for each in self._store.parent.glob("fusiond.sqlite*") if each.is_file())
        self.samples.append(
            Sample(
                at_secs=round(time.monotonic() - self._begun, 1),
                memory_mb=round(process.memory_info().rss / 1e6, 1),
                descriptors=process.num_fds(),
                temporary_files=sum(1 for _ in (self.folder / "tmp").rglob("*")),
                cache_mb=round(_size(self.folder / "cache") / 1e6, 3),
                store_mb=round(stored / 1e6, 3),
                lookup_ms=round(statistics.median(lookups), 3),
                disk_kb_per_trial=round(stored / 1e3 / max(1, rows[0]["found"]), 2),
            )
        )

    def settled(self) -> None:
        """Wait until nothing is queued or running any more."""
        limit = time.monotonic() + 300
        active = [JobState.QUEUED, JobState.RUNNING, JobState.WAITING]
        with Client(db=self._store) as client:
            while client.count_jobs(active) and time.monotonic() < limit:
                time.sleep(0.2)

    def jobs(self) -> dict[str, int]:
        with Client(db=self._store) as client:
            return {state.value: found for state in JobState if (found := client.count_jobs([state]))}


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "fusiond.devices.worker" in process.cmdline()
    except psutil.Error:
        return False


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _moments(drawn: random.Random, every_secs: float, end_secs: float) -> Iterator[float]:
    at = 0.0
    while (at := at + drawn.uniform(0.5, 1.5) * every_secs) < end_secs:
        yield at


def soak(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Let everything happen at its moments; what came of it."""
    drawn, end_secs = random.Random(seed), 60 * minutes
    made = Soak(folder, seed)
    acts = {
        made.submit: _moments(drawn, 0.5, end_secs),
        made.kill_child: _moments(drawn, 2.0, end_secs),
        made.kill_daemon: _moments(drawn, end_secs / 16, end_secs / 4),
        made.prune: _moments(drawn, max(5.0, end_secs / 40), end_secs),
        made.sample: _moments(drawn, max(1.0, end_secs / 120), end_secs),
    }
    coming = sorted((at, number, act) for number, (act, moments) in enumerate(acts.items()) for at in moments)
    begun = time.monotonic()
    for at, _, act in coming:
        time.sleep(max(0.0, begun + at - time.monotonic()))
        with contextlib.suppress(DaemonError):  # it was killed a moment ago: the next one will do
            act()
    made.settled()
    jobs, status = made.jobs(), made.close()
    ratios = compared(made.samples)
    problems = [
        f"{name} is {ratios[name]:.2f}x what it was" for name, most in TOLERANCES.items() if ratios[name] > most
    ]
    problems += [f"{count} jobs are {state}" for state, count in jobs.items() if state != "done"]
    problems += made.counts.wrong_answers[:5]
    if status != 0:
        problems.append(f"the daemon ended with status {status}")
    if left := _left_behind(folder):
        problems.append(f"processes were left behind: {left}")
    return {
        "minutes": minutes,
        "seed": seed,
        "counts": {name: value for name in ("submitted", "children_killed", "daemons_killed", "prunes", "lookups")
                   if (value := getattr(made.counts, name)) is not None},
        "jobs": jobs,
        "ratios": ratios,
        "tolerances": dict(TOLERANCES),
        "problems": problems,
        "samples": [{name: getattr(each, name) for name in Sample.__slots__} for each in made.samples],
    }  # fmt: skip


def compared(samples: list[Sample]) -> dict[str, float]:
    """The median of the last quarter to that of the second; 1 where both are nothing."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    found = {}
    for name in TOLERANCES:
        before, after = (statistics.median(getattr(each, name) for each in part) for part in (early, late))
        found[name] = round((after + 1e-9) / (before + 1e-9), 3) if before or after <= 5 else float("inf")
        if not before and after <= 5:
            found[name] = 1.0  # a few files that are about to go
    return found


def _left_behind(folder: Path) -> list[int]:
    def ours(process: psutil.Process) -> bool:
        try:
            return process.environ().get("TMPDIR") == str(folder / "tmp")
        except psutil.Error:
            return False

    _, alive = psutil.wait_procs([each for each in psutil.process_iter() if ours(each)], timeout=10)
    return [each.pid for each in alive]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to put the store (default: the temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fusiond-soak-", dir=given.folder, ignore_cleanup_errors=True) as folder:
        found = soak(Path(folder), given.minutes, given.seed)
    print(json.dumps(found, indent=1))
    for name, most in TOLERANCES.items():
        sys.stderr.write(f"{name:<20} {found['ratios'][name]:>7.2f}x   (at most {most:.2f}x)\n")
    sys.stderr.write("".join(f"problem: {each}\n" for each in found["problems"]))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
