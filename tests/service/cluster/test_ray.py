"""One job on a Ray cluster of this machine: the same trials, and nodes that are killed while they measure."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.events import Event, TrialFinished
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.service.cluster.provider import ClusterProvider, others, runner
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.testing.fakes import InProcess
from tests.conftest import run_job
from tests.service.cluster.conftest import SPEC, Nodes

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),  # Ray's own
]

WHOLE = "strategy: toy\nside: 5\ndevice: cluster\nsearch: {trials: 25}\n"


def run(
    store: Store, registry: Registry, text: str, heard: Callable[[Event], None] = lambda event: None, **more: Any
) -> JobRow:
    (job,) = jobs.read("/toy.yaml", text)
    row, _ = run_job(store, registry, job, heard, **more)
    return store.named_job(row.id)


def test_one_job_on_several_nodes_and_two_that_are_killed(
    nodes: Nodes, connect: Callable[[], Any], fakes: Registry, store: Store, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One test, since a cluster takes a quarter of a minute to start."""
    monkeypatch.setenv("FUSIOND_FAKE_LOAD_SECS", "0.1")
    with Store.open(tmp_path / "alone.sqlite") as other:
        alone = run(other, fakes, WHOLE.replace("cluster", "fake"), runner=InProcess)
        expected = {each.config.key: each.outcome for each in other.trials(alone.id)}
    nodes.add(3)
    cluster = connect()
    assert list(cluster.devices()) == ["cluster:0", "cluster:1", "cluster:2"]
    fakes.providers["cluster"] = provider = ClusterProvider(cluster, SPEC)
    assert [each.name for each in provider.devices()] == ["cluster:0"]  # which stands for all of them
    where = {"runner": runner, "others": others}

    row = run(store, fakes, WHOLE, **where)
    assert row.state is JobState.DONE, row.problem
    assert {each.config.key: each.outcome for each in store.trials(row.id)} == expected
    found = store._rows("SELECT DISTINCT gpu_uuid FROM trials WHERE job_id = ? AND role = 'candidate'", [row.id])
    assert len(found) == 3  # each node measured some
    assert store.record(row.workload_key, provider.devices()[0].key) is not None

    killed = threading.Event()

    def kill(event: Event) -> None:
        """After some trials: two of the three nodes, while they measure."""
        if isinstance(event, TrialFinished) and event.done == 6 and not killed.is_set():
            killed.set()
            nodes.kill(0)
            nodes.kill(0)

    row = run(store, fakes, WHOLE.replace("device:", "label: again\ndevice:"), kill, **where)
    assert killed.is_set()
    assert row.state is JobState.DONE, row.problem
    assert len(store.trials(row.id)) == 25
    assert {each.config.key: each.outcome for each in store.trials(row.id)} == expected
    assert len(cluster.devices()) == 1

    nodes.add(1)  # one that comes later helps the next job
    assert len(cluster.devices()) == 2


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_are_killed_at_random_times(
    nodes: Nodes, connect: Callable[[], Any], fakes: Registry, store: Store, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, seed: int,
) -> None:  # fmt: skip
    """All but one of five, whichever and whenever: in the search and in the finals. The set of trials, and the winner,
    are those of one device."""
    monkeypatch.setenv("FUSIOND_FAKE_LOAD_SECS", "0.1")
    with Store.open(tmp_path / "alone.sqlite") as other:
        alone = run(other, fakes, WHOLE.replace("cluster", "fake"), runner=InProcess)
        expected = {each.config.key: each.outcome for each in other.trials(alone.id)}
        best = other.record(alone.workload_key, alone.device_key or "")
    nodes.add(5 - len(nodes.nodes))
    cluster = connect()
    assert len(cluster.devices()) == 5
    fakes.providers["cluster"] = ClusterProvider(cluster, SPEC)
    chance = random.Random(seed)
    ended, begun = threading.Event(), threading.Event()
    killed: list[float] = []

    def kill() -> None:
        begun.wait(60)
        while len(nodes.nodes) > 1 and not ended.wait(chance.uniform(0.05, 1.5)):
            nodes.kill(chance.randrange(len(nodes.nodes)))
            killed.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        row = run(store, fakes, WHOLE, lambda event: begun.set(), runner=runner, others=others)
    finally:
        ended.set()
        begun.set()
        killer.join()
    assert killed, "the job was done before a node could be killed"
    assert row.state is JobState.DONE, row.problem
    assert {each.config.key: each.outcome for each in store.trials(row.id)} == expected
    record = store.record(row.workload_key, row.device_key or "")
    assert record is not None
    assert best is not None
    assert (record.verdict, record.config) == (best.verdict, best.config)
