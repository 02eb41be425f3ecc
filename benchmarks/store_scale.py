"""What grows with the store, and what does not: `python -m benchmarks.store_scale [--records 1000000] [--queued 10000]
[--folder DIR]`, JSON on standard output.

- `fusiond best` from a shell among that many records, beside among 1,000
- look-ups a second in the client library, beside opening the file for each
- suggesting a name, beside comparing every name there is
- a submission, a page of jobs, and a claim that finds nothing for its device, with that many queued, beside ten, and
  beside asking a predicate for each job
- bytes a trial, beside the same plans as text
"""

from __future__ import annotations

import argparse
import difflib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.store import DEVICE, SIZES_PER_NAME, TODAY, save
from fusiond.keys import canonical
from fusiond.model import Config, Job, Measurement, Outcome, Purpose, Search, Trial, Workload
from fusiond.program import Buffer, Launch, Pointer, Program, Role, Source, SourceKind, to_text
from fusiond.store import lookup, reading
from fusiond.store.database import Store
from fusiond.store.tables import COLUMNS

SMALL = 1000
KERNELS = Path(__file__).parents[1] / "plugins" / "hfuse" / "fusiond_hfuse" / "kernels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where to put the files (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        small, large = Path(folder) / "small.sqlite", Path(folder) / "large.sqlite"
        fill(small, SMALL)
        names = fill(large, arguments.records)
        result: dict[str, Any] = {
            "records": arguments.records,
            "queued": arguments.queued,
            "names": len(names),
            "best_from_a_shell_ms": shells(small, large, names[0]),
            "look_ups_per_sec": look_ups(large, names),
            "suggestion_ms": suggestions(large, names),
            "queue_us": queue(Path(folder), arguments.queued),
            "bytes_per_trial": trial_bytes(Path(folder) / "trials.sqlite"),
        }
    result["ratios"] = {
        f"{group}_{name}": round(values[name] / values[base], 3)
        for group, name, base in (
            ("best_from_a_shell_ms", "large", "small"),
            ("look_ups_per_sec", "kept_open", "opened_each_time"),
            ("look_ups_per_sec", "asked_before", "opened_each_time"),
            ("suggestion_ms", "neighbours", "every_name"),
            ("queue_us", "submit_many", "submit_few"),
            ("queue_us", "claim_nothing_many", "predicate_many"),
            ("bytes_per_trial", "compressed", "as_text"),
        )
        for values in [result[group]]
    }
    print(json.dumps(result, indent=1))


def fill(path: Path, records: int) -> list[str]:
    """A store with that many records of families of SIZES_PER_NAME; the names. The first thousand by the front door,
    the others as their copies."""
    first = [f"kernel{index:06d},other{index:06d}" for index in range(SMALL // SIZES_PER_NAME)]
    names = list(first)
    with Store.open(path) as store, store.transaction():
        store.save_device(DEVICE)
        for name in first:
            for step in range(SIZES_PER_NAME):
                save(store, name, {"a.n": 1000 << step, "b.n": 5_000_000})
        for number in range(1, records // SMALL):
            copies = [_renamed(name, number) for name in first]
            _copy(store, number, copies)
            names += copies
    return names


def _renamed(name: str, number: int) -> str:
    return ",".join(f"{part}x{number}" for part in name.split(","))


def _copy(store: Store, number: int, names: list[str]) -> None:
    """The first thousand records once more, each under another name."""
    database = store._database
    name = f"replace({{}}, ',', 'x{number},') || 'x{number}'"
    changed = {
        "workload_key": f"{{}} || '-{number}'",
        "lookup_name": name,
        "name": name,
        "content_family_key": f"{{}} || '-{number}'",
        "family_key": f"{{}} || '-{number}'",
        "content_key": f"{{}} || '-{number}'",
    }
    for table, first in (("workloads", f"rowid <= {SMALL}"), ("records", f"id <= {SMALL}")):
        columns = [each for each in COLUMNS[table] if each != "id"]
        values = ", ".join(changed.get(each, "{}").format(each) for each in columns)
        database.execute(f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE {first}")
    for each in names:
        database.execute("INSERT INTO names VALUES (?, ?)", [each, each[::-1]])


def shells(small: Path, large: Path, name: str, rounds: int = 20) -> dict[str, float]:
    """Medians, whole processes in turns."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(rounds):
        for which, path in (("small", small), ("large", large)):
            command = [sys.executable, "-m", "fusiond", "best", "--pair", name, "--db", str(path)]
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[which].append(1000 * (time.perf_counter() - began))
    return {which: round(statistics.median(found), 1) for which, found in times.items()}


def look_ups(path: Path, names: list[str], count: int = 2000) -> dict[str, float]:
    some = [names[index * 7919 % len(names)] for index in range(count)]

    def rate(ask: Callable[[str], object]) -> float:
        ask(some[0])
        began = time.perf_counter()
        for name in some:
            assert ask(name) is not None
        return round(count / (time.perf_counter() - began))

    def opened(name: str) -> object:
        reading._open_files.readers.clear()
        return lookup.best(path, name=name, **TODAY)

    def kept(name: str) -> object:
        return lookup.best(path, name=name, **TODAY)

    found = {"opened_each_time": rate(opened), "kept_open": rate(kept)}
    some = [names[index % 50] for index in range(count)]
    return {**found, "asked_before": rate(kept)}


def suggestions(path: Path, names: list[str]) -> dict[str, float]:
    asked = [name[:3] + name[4:] for name in names[:: max(1, len(names) // 20)]]  # a letter is missing

    def median_ms(ask: Callable[[str], object], some: list[str]) -> float:
        times = []
        for each in some:
            began = time.perf_counter()
            ask(each)
            times.append(1000 * (time.perf_counter() - began))
        return round(statistics.median(times), 2)

    return {
        "neighbours": median_ms(lambda name: lookup.suggestions(path, name), asked),
        "every_name": median_ms(lambda name: difflib.get_close_matches(name, names, n=8, cutoff=0.5), asked[:1]),
    }


def queue(folder: Path, queued: int) -> dict[str, float]:
    result = {}
    for which, count in (("few", 10), ("many", queued)):
        with Store.open(folder / f"queue-{which}.sqlite") as store:
            _queue(store, count)
            ways: dict[str, Callable[[int], object]] = {
                "submit": lambda index, store=store: _submit(store, 1_000_000 + index),
                "claim_nothing": lambda _, store=store: store.claim("nobody", devices={"cpu", "auto"}),
                "page": lambda _, store=store: store.jobs(limit=50),
                "predicate": lambda _, store=store: _by_predicate(store),
            }
            for name, ask in ways.items():
                ask(-1)
                times = []
                for index in range(50):
                    began = time.perf_counter()
                    ask(index)
                    times.append(1e6 * (time.perf_counter() - began))
                result[f"{name}_{which}"] = round(statistics.median(times))
    return result


def _submit(store: Store, number: int) -> None:
    workload = Workload(
        strategy="s", strategy_version=1, name="n", members=("n",), sizes={"n": number % 50}, content=0, payload=None
    )
    job = Job(strategy="s", request={}, sizes={}, device="cuda:7", search=Search(seed=number % (1 << 30)))
    store.submit(job, workload)


def _queue(store: Store, count: int) -> None:
    """That many copies of a job with other seeds, in one transaction: how they got there is not the question."""
    _submit(store, 0)
    columns = ", ".join(each for each in COLUMNS["jobs"] if each not in ("number", "id", "search"))
    with store._transaction() as database:
        for index in range(1, count):
            database.execute(
                f"INSERT INTO jobs (id, search, {columns}) SELECT ?, ?, {columns} FROM jobs WHERE number = 1",
                [f"job{index}", canonical(Search(seed=index))],
            )


def _by_predicate(store: Store) -> None:
    """The way of before: each queued job is asked about, inside a transaction that writes."""
    with store._transaction() as database:
        for row in database.query("SELECT id, device FROM jobs WHERE state = 'queued' ORDER BY priority DESC, number"):
            if row["device"] in ("cpu", "auto"):
                break


def trial_bytes(path: Path, count: int = 400) -> dict[str, float]:
    """Trials of programs that are a catalogue kernel's source with a line of its own each, as candidates are."""
    texts = [file.read_text() for file in sorted(KERNELS.glob("*.cu"))[:2]]
    plain = 0
    with Store.open(path) as store:
        workload = Workload(strategy="s", strategy_version=1, name="n", members=(), sizes={}, content=0, payload=None)
        job = store.submit(Job(strategy="s", request={}, sizes={}), workload).id
        for sequence in range(count):
            program = _program(texts, sequence)
            plain += len(to_text(program))
            store.save_emitted(job, str(sequence), program)
            measured = Measurement(
                span_us=tuple(100.0 + (index * 37 + sequence) % 100 / 7 for index in range(30)),
                baseline_us=tuple(130.0 + (index * 53 + sequence) % 100 / 7 for index in range(30)),
                clock="device",
                purpose=Purpose.SEARCH,
            )
            trial = Trial(
                sequence=sequence,
                config=Config.of({"a.block": 256, "b.block": 512, "cap": sequence}),
                origin="sampler",
                outcome=Outcome.MEASURED,
                ratio=1.3,
                time_us=100.0,
                program_key=program.key,
                measurement=measured,
            )
            store.add_trial(job, trial, device_key="d", gpu_uuid="", env_key="e", against=None)
        store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        packed = store._database.execute("SELECT sum(length(plan)) FROM programs").fetchone()[0]
    size = path.stat().st_size
    return {"compressed": round(size / count), "as_text": round((size - packed + plain) / count)}


def _program(texts: list[str], number: int) -> Program:
    source = Source(
        name="fused",
        kind=SourceKind.DEVICE,
        text="\n".join([f"#define CAP {number}", *texts]),
        entries=("k",),
    )
    pointer = Pointer(buffer="x")
    launch = Launch(name="k", source="fused", entry="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=(pointer,))
    buffer = Buffer(name="x", dtype="int32", elements=1, role=Role.OUTPUT)
    return Program(name="fused", buffers=(buffer,), sources=(source,), steps=(launch,))


if __name__ == "__main__":
    main()
