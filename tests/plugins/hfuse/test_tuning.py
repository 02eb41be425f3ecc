"""A job of several kernels from its file to its record, on the cpu device: parts, matching, composition, answer."""

from pathlib import Path

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.outcomes import JobState, Outcome
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy.hookspecs import hookimpl
from fusiond.tuning import tuner
from fusiond_hfuse import plugin
from tests.conftest import run_job

JOB = """\
strategy: hfuse
kernels: [hist, maxpool, hist]
granularity: 512
sizes: {a.n: 3000, b.n: 5000, maxpool.channels: 1, maxpool.height: 120, maxpool.width: 100}
device: cpu
search: {trials: 10, timeout: 2m, seed: 1}
"""


class Devices:
    @hookimpl
    def register_devices(self, register) -> None:
        register(CpuProvider())


@pytest.fixture
def machine() -> Registry:
    registry = Registry()
    registry.add(plugin, "hfuse")
    registry.add(Devices(), "devices")
    return registry


def tuned(store: Store, registry: Registry, text: str):
    (job,) = jobs.read(Path("several.yaml"), text)
    row, state = run_job(store, registry, job, least_patience_secs=3)
    assert state is JobState.DONE, store.job(row.id).problem
    return row


@pytest.mark.timeout(900)
@pytest.mark.campaign
def test_three_kernels_from_the_job_to_the_record(tmp_path, machine):
    (device,) = CpuProvider().devices()
    with Store.open(tmp_path / "store.sqlite") as store:
        row = tuned(store, machine, JOB)
        record = store.record(row.workload_key, device.key)
        assert record is not None
        assert record.workload_name == "hist,hist,maxpool"
        assert record.baseline in ("sequential", "streams_abc", "streams_cba", "graph")
        trials = store.trials(row.id)
        # A busy machine may be too noisy for a time, and never makes one wrong.
        assert {each.outcome for each in trials} <= {Outcome.MEASURED, Outcome.TOO_NOISY}, [
            each.reason for each in trials
        ]
        groupings = {each.config.text("groups") for each in trials}
        assert {"a+b+c", "a|b|c"} <= groupings
        # Every pair has a record of its own, and the next job that asks for one of them finds it.
        parts = {each.workload_name for each in store.jobs() if each.parent == row.id}
        assert parts == {"hist,hist", "hist,maxpool"}
        before = len(store.jobs())
        pair = (
            JOB.replace("[hist, maxpool, hist]", "[maxpool, hist]").replace("a.n", "hist.n").replace("b.n: 5000, ", "")
        )
        (job,) = jobs.read(Path("pair.yaml"), pair)
        prepared = tuner.prepare(machine, job)
        assert store.record(prepared.workload.key, device.key) is not None
        tuned(store, machine, JOB.replace("trials: 10", "trials: 2"))
        assert len(store.jobs()) == before + 1  # no part was tuned again
