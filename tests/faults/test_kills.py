"""Processes are killed: at every step of a child's life, at random, and the one that runs the job."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusiond.devices import supervisor as supervising
from fusiond.model.events import Events
from fusiond.model.outcomes import JobState, Trial
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from fusiond.tuning import tuner
from tests.fakes import FakePlugin, InProcess
from tests.faults.conftest import KINDS, Disturbed, Found
from tests.faults.mortal import STEPS, MortalPlugin
from tests.faults.test_daemon import ended, serving, until

JOB = "strategy: toy\nside: 3\nsearch: {trials: 5}\n"


@pytest.fixture
def mortals() -> Registry:
    class Toy(FakePlugin):
        register_devices = MortalPlugin.register_devices

    registry = Registry()
    registry.add(Toy(), "mortals")
    return registry


def run(store: Store, registry: Registry, **options: object) -> tuple[list[tuple[str, int, str, str]], object]:
    """Trials and answer of a job that is run until it has ended, waits included."""
    (job,) = jobs.read("toy.yaml", JOB)
    row = tuner.submit(store, registry, job)
    state = JobState.WAITING
    while state is JobState.WAITING:
        assert store.claim(this_process(), job=row.id) is not None
        state = tuner.Tuner(store, registry, Events(), **options).run(row.id, lambda: False)  # type: ignore[arg-type]
    assert state is JobState.DONE
    (info,) = registry.providers["fake"].devices()
    assert store.sick(info.key, info.uuid) is None
    assert store.lost_finals(row.id) == {}
    record = store.record(row.workload_key, info.key)
    assert record is not None
    assert not (store.artifacts / "work" / row.id).exists()
    return _told(store.trials(row.id, None)), (record.config, record.verdict, record.baseline, record.program_key)


def _told(trials: list[Trial]) -> list[tuple[str, int, str, str]]:
    return [(each.role, each.sequence, str(each.config), each.outcome.value) for each in trials]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> object:
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    with Store.open(tmp_path_factory.mktemp("calm") / "store.sqlite") as store:
        return run(store, registry, runner=InProcess)


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, pytest.param(3, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(8)
def test_children_that_die_at_one_step_change_nothing(
    store: Store, mortals: Registry, calm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, deaths: int
) -> None:
    count = tmp_path / "deaths"
    deaths = 5 if step == "starting" else deaths
    monkeypatch.setattr(supervising, "MOST_PAUSE_SECS", 0.0)
    for name, value in {"STEP": step, "DEATHS": str(deaths), "COUNT": str(count)}.items():
        monkeypatch.setenv(f"MORTAL_{name}", value)
    assert run(store, mortals) == calm
    assert len(count.read_bytes()) == deaths


class Killer:
    """Kills a child of this process again and again, at moments that a seed decides."""

    def __init__(self, seed: int, secs: float, most: int) -> None:
        self.kills = 0
        self._most = most
        self._random = random.Random(seed)
        self._secs = secs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _kill(self) -> None:
        this = psutil.Process()
        while self.kills < self._most and not self._over.wait(self._random.uniform(0, self._secs)):
            children = [each for each in this.children(recursive=True) if _is_worker(each)]
            if children:
                try:
                    self._random.choice(children).kill()
                    self.kills += 1
                except psutil.NoSuchProcess:
                    pass


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "fusiond.devices.worker" in process.cmdline()
    except psutil.Error:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(2, 22))])
def test_children_that_are_killed_at_random_change_nothing(
    store: Store, fakes: Registry, calm: object, monkeypatch: pytest.MonkeyPatch, seed: int, caplog: Any
) -> None:
    monkeypatch.setattr(supervising, "MOST_PAUSE_SECS", 0.0)
    with caplog.at_level(logging.ERROR), Killer(seed, 0.8, 8 if seed == 1 else 40) as killer:
        assert run(store, fakes) == calm
    assert killer.kills > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(2, 12))])
def test_nobody_outlives_the_process_that_is_killed(machine: Disturbed, undisturbed: Found, seed: int) -> None:
    """SIGKILL while children start, load and run; then the same command goes on to the same end."""
    drawn = random.Random(seed)
    machine.clear()
    kills = 0
    while kills < 4:
        dead = threading.Thread(target=_kill_the_command, args=(machine, drawn.uniform(0.1, 1.5)))
        dead.start()
        said = machine.fusiond("run", machine.job(), "--json", in_process=False)
        dead.join()
        machine.nobody_is_left()
        if said.status != -signal.SIGKILL:
            break
        kills += 1
    said = machine.fusiond("run", machine.job(), "--json", in_process=False)
    assert said.status == 0, said.err
    assert kills > 0
    found = machine.found()
    assert (found.trials, found.answer) == (undisturbed.trials, undisturbed.answer)


def _kill_the_command(machine: Disturbed, after_secs: float) -> None:
    """The server's fork that runs it."""
    time.sleep(after_secs)  # the moment is drawn, and any will do
    for child in psutil.Process(machine.server.pid).children():
        os.kill(child.pid, signal.SIGKILL)


# --- the clock is moved in the middle of a job ----------------------------------------------------------


DAY_SECS = 86400
YEAR_SECS = 365 * DAY_SECS
MOVES = [
    (-YEAR_SECS, 0),
    pytest.param((YEAR_SECS, 0), marks=pytest.mark.campaign),
    pytest.param((-DAY_SECS, DAY_SECS), marks=pytest.mark.campaign),
    pytest.param((DAY_SECS, -DAY_SECS), marks=pytest.mark.campaign),
    pytest.param((-1, 1), marks=pytest.mark.campaign),
]


@pytest.mark.slow
@pytest.mark.parametrize("secs", MOVES)
@pytest.mark.parametrize("waits", [False, True], ids=["", "waits"])
def test_a_clock_that_is_moved_twice_changes_nothing(
    machine: Disturbed, undisturbed: Found, secs: tuple[int, int], waits: bool
) -> None:
    """After a third and after two thirds of what an undisturbed job reads of the clock; `waits`: the disk is full for
    a while, so that the job waits for a time that it takes from the clock."""
    machine.clear()
    assert machine.fusiond("run", machine.job(), "--json").status == 0
    readings = machine.readings
    assert readings > 10
    machine.clear()
    machine.move_clock((readings // 3, secs[0]), (readings * 2 // 3, secs[1]))
    if waits:
        machine.fail(errno.ENOSPC, KINDS["open"], first=20, count=12, under="fusiond.artifacts")
    said = machine.fusiond("run", machine.job(), "--json")
    assert said.status == 0, said.err
    assert machine.readings >= readings * 2 // 3
    assert machine.failed == (12 if waits else 0)
    found = machine.found()
    assert found == undisturbed


@pytest.mark.campaign
def test_what_was_recorded_last_is_last_however_the_clock_was_moved(machine: Disturbed) -> None:
    """A year back while the first job of a daemon waits; forward to the truth before its second, and back once more."""
    machine.clear()
    ids: list[str] = []

    def submit(n: int) -> None:
        ids.extend(client.submit(machine.job("toy", f"sizes: {{n: {n}}}\n")))

    def waits() -> bool:
        return client.show(ids[0]).state is JobState.WAITING

    def answered() -> int:
        row = ended(client, ids[-1], log, daemon)
        assert (row.state.value, row.problem) == ("done", None), log.read_text()
        answer = json.loads(machine.fusiond("best", "--workload", "toy", "--json").out)
        return int(answer["workload"]["sizes"]["n"])

    with serving(machine) as (daemon, client, log):
        machine.fail(errno.ENOSPC, KINDS["open"], first=1, count=sys.maxsize, under="fusiond.artifacts")
        submit(64)
        until(waits, log, daemon)
        machine.move_clock((1, -YEAR_SECS))
        machine.calm()
        assert answered() == 64
        machine.move_clock()
        submit(128)
        assert answered() == 128
        machine.move_clock((1, -YEAR_SECS))
        submit(256)
        assert answered() == 256
        assert [each.id for each in client.jobs()] == ids[::-1]
        assert "Traceback" not in log.read_text()
    listed = json.loads(machine.fusiond("jobs", "--json").out)
    assert [each["id"] for each in listed] == ids[::-1]
    years = [datetime.datetime.fromisoformat(each["created_at"]).year for each in listed[::-1]]
    assert years[0] == years[1] > years[2]


# --- a copy of the store and a pruning that the disk fails ----------------------------------------------


WRITING = KINDS["open"] | KINDS["write"] | KINDS["sync"] | KINDS["rename"]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("command", [("store", "backup"), ("prune",)], ids=" ".join)
def test_a_disk_that_fails_is_one_line_and_costs_nothing(
    machine: Disturbed, number: int, command: tuple[str, ...]
) -> None:
    machine.clear()
    assert machine.fusiond("run", machine.job(), "--json").status == 0
    before = machine.found()
    copy = machine.folder / "copy" / "store.sqlite"
    copy.parent.mkdir()
    words: tuple[str | Path, ...] = (*command, copy) if command[-1] == "backup" else command
    machine.count(WRITING)
    assert machine.fusiond(*words).status == 0
    calls = machine.calls
    assert calls
    refused = 0
    for first in sorted({1, 2, 3, calls // 2, calls}):
        shutil.rmtree(copy.parent)
        copy.parent.mkdir()
        machine.fail(number, WRITING, first=first, count=1000)
        said = machine.fusiond(*words)
        machine.calm()
        where = f"{errno.errorcode[number]} from call {first}: {said.err}"
        assert said.status in (0, 1), where
        if said.status:
            refused += 1
            assert len(said.err.splitlines()) == 1, where
            assert [each.name for each in copy.parent.iterdir()] == [], where
        assert machine.fusiond("store", "check").status == 0, where
        after = machine.found()
        assert (after.trials, after.answer) == (before.trials, before.answer), where
    assert refused
