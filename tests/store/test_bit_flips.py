"""One flipped bit anywhere in the store or its log: what is read is what was written, or it is said that it is not."""

import contextlib
import dataclasses
import json
import logging
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusiond import __version__
from fusiond.model.errors import NothingKnown, RequestError, StoreError
from fusiond.model.nouns import Config, Rejection
from fusiond.model.outcomes import Ask, JobState, Outcome, Purpose
from fusiond.model.program import Program
from fusiond.store import lookup
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from tests.store.test_database import program
from tests.store.test_lookup import hfuse

FLIPS = 2000
SAMPLE = 30
SEED = 13
PLACE = {"device_key": "device", "gpu_uuid": "", "env_key": "env", "against": None}
NAMES = ("hist,maxpool", "maxpool,sum", "scale", "sum,sum", *(f"kernel{index},other" for index in range(12)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    folder: Path
    jobs: tuple[str, ...]
    families: tuple[str, ...]
    workloads: tuple[str, ...]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Written:
    """A store with its log: a part of what was acknowledged is in the one, a part in the other."""
    folder = tmp_path_factory.mktemp("written")
    with Store.open(folder / "live" / "fusiond.sqlite") as store:
        store.save_strategies([hfuse(version=2, wrong_versions=(7,), names={"kernel": "pair"})], [])
        store.save_program(program())
        jobs, families, workloads = [], [], []
        for index, name in enumerate(NAMES):
            if index == len(NAMES) // 2:
                store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            source = store.save_artifact(f"__global__ {name}".encode(), ".cu")
            for size in (1000, 3000, 8000):
                workload = make.workload(name, sizes={"n": size}, strategy_version=1 + index % 2)
                for device in (make.device(), make.device("cpu")):
                    make.known(
                        store, workload, device, program_key=program().key,
                        found_at=f"2026-01-{index + 1:02d}T00:00:00.{size // 10:03d}+00:00", source=str(source),
                        time_us=10.0 + index,
                    )  # fmt: skip
            families.append(workload.content_family_key)
            workloads.append(workload.key)
            row = store.submit(make.job(device="cpu" if index % 3 else "auto"), workload, priority=index % 4)
            jobs.append(row.id)
            if index % 2:
                store.claim(this_process(), job=row.id)
                for sequence in range(4):
                    store.add_trial(row.id, make.trial(sequence, ratio=1.0 + sequence / 10), **PLACE)
                store.add_trial(row.id, make.trial(4, role="baseline:plain"), **PLACE)
                study(store, row.id, make)
                store.add_finals(row.id, 0, {"program0": make.measurement(purpose=Purpose.FINAL)})
                store.lose_final(row.id, 1, "program0", Outcome.TIMED_OUT, "too slow")
                if index == 3:
                    store.requeue(row.id)
                else:
                    store.finish(row.id, JobState.DONE if index % 4 == 1 else JobState.FAILED)
        for each in store.path.parent.iterdir():
            copied = shutil.copytree if each.is_dir() else shutil.copy
            copied(each, folder / each.name)  # as a power cut leaves it: with its log
    (folder / "fusiond.sqlite-shm").unlink()
    assert (folder / "fusiond.sqlite-wal").stat().st_size > 100_000
    return Written(folder=folder, jobs=tuple(jobs), families=tuple(families), workloads=tuple(workloads))


def named(number: int) -> Program:
    return dataclasses.replace(program(), name=f"program{number}")


def study(store: Store, job: str, make: Any) -> None:
    """What a study writes down of its choices."""
    store.add_asks(job, [Ask(sequence=each, config=Config.of({"cap": each}), origin="sampler") for each in range(12)])
    store.add_rejections(job, [Rejection(rule="rule", nodes=(f"n{each}",), detail="no") for each in range(6)])
    for each in range(12):
        found = Rejection(rule="rule", nodes=("a",), detail="no") if each % 3 else named(each)
        store.save_emitted(job, f"config{each}", found)


def questions(path: Path, written: Written, make: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that is asked of a store, by name; a document's paths are those of its own folder."""
    today: dict[str, Any] = {"driver": "580.1", "version": __version__}

    def document(found: Any) -> Any:
        return json.loads(json.dumps(found).replace(str(path.parent), "FOLDER"))

    for index, name in enumerate((*NAMES, "unknown")):
        yield f"best {name}", lambda name=name: document(lookup.best(path, name=name, **today))
        sizes = {"n": (1000, 2000, 3000)[index % 3]}
        device = ("cpu", "cuda:0", "cuda", "NVIDIA H200", "cuda:7", None)[index % 6]
        options = {"sizes": sizes, "device": device}
        yield (
            f"best {name} {options}",
            lambda name=name, options=options: (
                None if name == "unknown" else document(lookup.best(path, name=name, **options, **today))
            ),
        )
    for family in written.families[::3]:
        yield (
            f"best of {family}",
            lambda family=family: document(lookup.best_of(path, family=family, sizes={"n": 3000}, name="x", **today)),
        )


def lists(store: Store, written: Written, make: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "jobs", store.jobs
    yield "next page", lambda: store.jobs(limit=5, before=9)
    for state in JobState:
        yield f"jobs {state}", lambda state=state: store.jobs([state])
        yield f"count {state}", lambda state=state: store.count_jobs([state])
    for job in written.jobs[::2]:
        yield f"show {job}", lambda job=job: store.job(job)
        yield f"load {job}", lambda job=job: store.load_job(job)
    for job in written.jobs[1::4]:
        yield f"trials {job}", lambda job=job: store.trials(job, None)
        yield f"environments {job}", lambda job=job: store.environments(job)
        yield f"finals {job}", lambda job=job: store.finals(job)
        yield f"lost finals {job}", lambda job=job: store.lost_finals(job)
        yield f"asks {job}", lambda job=job: store.asks(job)
        yield f"rejections {job}", lambda job=job: store.rejections(job)
        yield f"unfused {job}", lambda job=job: store.trial_of_work(job, "program4")
        yield f"against {job}", lambda job=job: store.against(job, "candidate", 2)
        for each in range(13):
            yield f"emitted {each} {job}", lambda job=job, each=each: store.emitted(job, f"config{each}")
    for device in (make.device(), make.device("cpu")):
        yield f"sick {device.name}", lambda device=device: store.sick(device.key, device.uuid)
    yield "program", lambda: store.program(program().key)
    yield "worked", lambda: store.worked("program0", PLACE["device_key"])
    yield "devices", store.devices
    for workload in written.workloads[::3]:
        yield f"family {workload}", lambda workload=workload: store.family(workload)
        yield f"history {workload}", lambda workload=workload: store.history(workload, make.device().key)
        yield f"record {workload}", lambda workload=workload: store.record(workload, make.device().key)
        yield f"incumbents {workload}", lambda workload=workload: store.incumbents(workload, make.device().key)
    resumed = make.workload(NAMES[3], sizes={"n": 8000}, strategy_version=2)
    yield "resume", lambda: store.resume(make.job(device="auto"), resumed)
    yield "claim", lambda: store.claim(this_process(), devices={"cpu"})


@dataclass(frozen=True, slots=True)
class Said:
    """What came instead of an answer, or with it."""

    text: str


def ask(question: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> Any:
    """The answer, or what was said of the damage."""
    caplog.clear()
    try:
        found = question()
    except (StoreError, NothingKnown, RequestError) as problem:
        assert isinstance(problem, StoreError) or "store check" in str(problem)
        return Said(str(problem))
    if isinstance(found, dict) and "notes" in found and any("store check" in note for note in found["notes"]):
        return Said(str(found["notes"]))
    return Said(caplog.text) if "store check" in caplog.text else found


def observe(path: Path, written: Written, make: Any, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    found = {name: ask(question, caplog) for name, question in questions(path, written, make)}
    caplog.clear()
    try:
        store = Store.open(path, create=False)
    except StoreError as problem:
        return {**found, "open": Said(str(problem))}
    with store:
        noticed = "acknowledged changes are missing" in caplog.text
        for name, question in lists(store, written, make):
            store._told.clear()  # each question is the first one
            answer = ask(question, caplog)
            if name in ("resume", "claim") and not isinstance(answer, Said):
                answer = answer and answer.id
            found[name] = Said("at the start") if noticed else answer
    return found


def flip(folder: Path, draw: random.Random) -> str:
    """Change one bit of the store or its log; which one."""
    file = draw.choice([folder / "fusiond.sqlite", folder / "fusiond.sqlite-wal"])
    return change(file, draw.randrange(8 * file.stat().st_size))


def change(file: Path, bit: int) -> str:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return f"{file.name} byte {bit // 8} bit {bit % 8}"


def run(
    written: Written,
    tmp_path: Path,
    make: Any,
    caplog: pytest.LogCaptureFixture,
    numbers: range,
    flip: Callable[[Path, random.Random], str] = flip,
) -> None:
    caplog.set_level(logging.WARNING)

    def copied() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(written.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("live"))

    right = observe(copied() / "fusiond.sqlite", written, make, caplog)
    assert not [name for name, answer in right.items() if isinstance(answer, Said)]
    unnoticed, said = [], 0
    for number in numbers:
        copy = copied()
        where = flip(copy, random.Random(f"{SEED} {number}"))
        found = observe(copy / "fusiond.sqlite", written, make, caplog)
        wrong = [name for name, it in found.items() if not isinstance(it, Said) and it != right[name]]
        said += any(isinstance(it, Said) for it in found.values())
        unnoticed += [f"{number}: {where}: {name}" for name in wrong]
    assert not unnoticed, "\n".join(unnoticed)
    assert said > len(numbers) // 20  # the campaign finds something at all


@pytest.mark.slow
def test_a_flipped_bit_is_noticed(written: Written, tmp_path: Path, make: Any, caplog: Any) -> None:
    run(written, tmp_path, make, caplog, range(SAMPLE))


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_flipped_bits_are_noticed(
    written: Written, tmp_path: Path, make: Any, caplog: Any, part: int
) -> None:
    rest = (FLIPS - SAMPLE) // 4
    run(written, tmp_path, make, caplog, range(SAMPLE + part * rest, SAMPLE + (part + 1) * rest))


OF_A_STUDY = ("asks", "rejections", "emitted", "programs", "finals_lost", "boards")


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [range(SAMPLE), pytest.param(range(SAMPLE, 1000), marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])],
)
def test_a_flipped_bit_in_what_a_study_reads_is_noticed(
    written: Written, tmp_path: Path, make: Any, caplog: Any, numbers: range
) -> None:
    """In the pages of its tables and of their indexes, of which a store has few."""
    folder = shutil.copytree(written.folder, tmp_path / "closed", ignore=shutil.ignore_patterns("live"))
    Store.open(folder / "fusiond.sqlite", create=False).close()  # nothing is left in the log
    places = pages(folder / "fusiond.sqlite")

    def flipped(copy: Path, draw: random.Random) -> str:
        return change(copy / "fusiond.sqlite", draw.choice(places) + draw.randrange(8))

    run(dataclasses.replace(written, folder=folder), tmp_path, make, caplog, numbers, flipped)


def pages(path: Path) -> list[int]:
    """The bits, by the eighth one of each byte, that the tables OF_A_STUDY and their indexes have in use."""
    data = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        marks = ", ".join("?" * len(OF_A_STUDY))
        roots = connection.execute(
            f"SELECT rootpage FROM sqlite_master WHERE tbl_name IN ({marks}) AND rootpage", OF_A_STUDY
        )
        found = [row[0] for row in roots]
    used = []
    for page in found:  # grows meanwhile
        start = (page - 1) * size
        interior, cells = data[start] in (2, 5), int.from_bytes(data[start + 3 : start + 5], "big")
        first = start + (12 if interior else 8)
        pointers = [int.from_bytes(data[at : at + 2], "big") for at in range(first, first + 2 * cells, 2)]
        if interior:
            children = [start + 8, *(start + each for each in pointers)]
            found += [int.from_bytes(data[at : at + 4], "big") for at in children]
        used += [*range(start, first + 2 * cells), *range(start + min(pointers, default=size), start + size)]
    return [8 * each for each in used]
