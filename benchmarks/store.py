"""What the store costs: `python -m benchmarks.store [--records 100000] [--folder DIR]`, JSON on standard output.

- a lookup (open, answer, close) among many records: exact, without sizes, nearest, and of an unknown name
- the same in one family of a thousand sizes
- starting Python with what `fusiond best` imports, against a bare `import sqlite3, json`
- an acknowledged trial: the transaction and its fsync, on the disk of `--folder`
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusiond.model.nouns import Config, DeviceInfo, DeviceLimits, Job, Workload
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Record, Trial, Verdict
from fusiond.store import lookup
from fusiond.store.database import Store

SIZES_PER_NAME = 20
LARGE_FAMILY = 1000
TODAY = {"driver": "580.1", "version": "0.1.0"}
DEVICE = DeviceInfo(
    name="cuda:0",
    model="NVIDIA H200",
    arch="sm_90",
    memory_bytes=140 << 30,
    env={"driver": "580.1", "fusiond": "0.1.0"},
    limits=DeviceLimits(
        multiprocessors=132,
        shared_bytes_per_sm=228 << 10,
        shared_bytes_per_block=227 << 10,
        threads_per_sm=2048,
        blocks_per_sm=32,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where to put the file (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "fusiond.sqlite"
        began = time.perf_counter()
        names = fill(path, arguments.records)
        filled_secs = time.perf_counter() - began
        result = {
            "machine": {"python": platform.python_version(), "processor": platform.machine()},
            "records": arguments.records,
            "file_bytes": path.stat().st_size,
            "fill_secs": round(filled_secs, 1),
            "lookup_us": lookups(path, names),
            "start_ms": starts(),
            "acknowledged_trial_us": trials(Path(folder) / "trials.sqlite"),
        }
    starts_ms = result["start_ms"]
    result["ratios"] = {
        "start_lookup_to_bare": round(starts_ms["fusiond.store.lookup"] / starts_ms["sqlite3, json"], 2),
        "start_store_to_bare": round(starts_ms["fusiond.store.database"] / starts_ms["sqlite3, json"], 2),
        "lookup_exact_to_1_ms": round(result["lookup_us"]["exact"]["median"] / 1000, 3),
    }
    print(json.dumps(result, indent=1))


def fill(path: Path, records: int) -> list[str]:
    """A file with that many records, most of them of small families, the last name's of a large one."""
    names = [f"kernel{index:05d},other{index:05d}" for index in range((records - LARGE_FAMILY) // SIZES_PER_NAME)]
    with Store.open(path) as store, store._transaction():  # one fsync for all: how it got there is not the question
        store.save_device(DEVICE)
        for name in names:
            for step in range(SIZES_PER_NAME):
                save(store, name, {"a.n": 1000 << step, "b.n": 5_000_000})
        for step in range(records - len(names) * SIZES_PER_NAME):
            save(store, "large,family", {"a.n": 1000 + step, "b.n": 5_000_000})
    return names


def save(store: Store, name: str, sizes: dict[str, int]) -> None:
    workload = Workload(
        strategy="hfuse",
        strategy_version=1,
        name=name,
        members=tuple(name.split(",")),
        sizes=sizes,
        content=name,
        payload=None,
    )
    store.save_workload(workload)
    record = Record(
        strategy=workload.strategy,
        workload_name=name,
        workload_key=workload.key,
        sizes=sizes,
        device_name=DEVICE.name,
        device_key=DEVICE.key,
        env_key=DEVICE.env_key,
        verdict=Verdict.FUSE,
        config=Config.of({"a.block": 256, "b.block": 512, "cap": 40, "partition": "paper"}),
        program_key=workload.key,
        time_us=100.0,
        baseline="streams",
        baseline_us=130.0,
        speedup=1.3,
        ci95=(1.25, 1.35),
        verified=True,
        checks=("seeds 0 and 1, float32 within 1e-4, worst 2e-7",),
        evidence=DEVICE.evidence,
        trials=64,
        found_at="2026-01-01T00:00:00.000+00:00",
    )
    store.save_record(record, job=None, source_hashes={})


def lookups(path: Path, names: list[str]) -> dict[str, dict[str, float]]:
    some = [names[index * 7919 % len(names)] for index in range(1000)]
    turned = [",".join(reversed(name.split(","))) for name in some]

    def ask(name: str, **options: Any) -> Any:
        return lookup.best(path, name=name, **TODAY, **options)

    cases: dict[str, Callable[[str], Any]] = {
        "exact": lambda name: ask(name, sizes={"a.n": 1000 << 7}),
        "exact_on_device": lambda name: ask(name, sizes={"a.n": 1000 << 7}, device="cuda:0"),
        "without_sizes": ask,
        "nearest": lambda name: ask(name, sizes={"a.n": 999}),
        "unknown": lambda name: ask(f"{name},x"),
        "exact_in_large_family": lambda _: ask("large,family", sizes={"a.n": 1500}),
        "nearest_in_large_family": lambda _: ask("large,family", sizes={"a.n": 1}),
    }
    return {case: timed_us(call, turned[:100] if "large" in case else turned) for case, call in cases.items()}


def timed_us(call: Callable[[str], Any], inputs: list[str]) -> dict[str, float]:
    call(inputs[0])
    samples = []
    for each in inputs:
        began = time.perf_counter()
        call(each)
        samples.append((time.perf_counter() - began) * 1e6)
    ordered = sorted(samples)
    return {"median": round(statistics.median(samples)), "p99": round(ordered[int(len(ordered) * 0.99)])}


def starts(rounds: int = 30) -> dict[str, float]:
    """Milliseconds to start Python and import, the least of all rounds: what else the machine does only adds to it."""
    modules = ("sqlite3, json", "fusiond.store.lookup", "fusiond.store.database")
    samples: dict[str, list[float]] = {each: [] for each in modules}
    for _ in range(rounds):
        for each in modules:
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {each}"], check=True)
            samples[each].append((time.perf_counter() - began) * 1e3)
    return {each: round(min(times), 1) for each, times in samples.items()}


def trials(path: Path, count: int = 500) -> dict[str, float]:
    with Store.open(path) as store:
        workload = Workload(strategy="s", strategy_version=1, name="n", members=(), sizes={}, content=0, payload=None)
        job = store.submit(Job(strategy="s", request={}, sizes={}), workload).id
        measurement = Measurement(
            span_us=(100.0,) * 20, baseline_us=(130.0,) * 20, clock="device", purpose=Purpose.SEARCH
        )

        def add(sequence: str) -> None:
            trial = Trial(
                sequence=int(sequence),
                config=Config.of({"cap": int(sequence)}),
                origin="sampler",
                outcome=Outcome.MEASURED,
                ratio=1.3,
                time_us=100.0,
                measurement=measurement,
            )
            store.add_trial(job, trial, device_key="d", gpu_uuid="", env_key="e", against=None)

        add(str(count))
        return timed_us(
            lambda sequence: None if sequence == "first" else add(sequence), ["first", *map(str, range(count))]
        )


if __name__ == "__main__":
    main()
