"""A pipeline from its file to its record, on the cpu device: blocks, composition, answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.events import Events
from fusiond.hookspecs import hookimpl
from fusiond.model import JobState, Outcome, Record
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import target_of
from fusiond.store.database import Store
from fusiond.tuning import tuner
from fusiond_mincut import plugin

JOB = """\
strategy: mincut
pipeline: ./two.yaml
sizes: {width: 61, height: 47}
blocks: 1
device: cpu
search: {trials: 2, timeout: 2m, seed: 1}
"""


TWO = """\
pipeline: two
image: {width: 64, height: 64, dtype: int32}
inputs: [src]
outputs: [square]
kernels:
  edge: {pattern: local, mask: [3, 1], border: mirror, reads: [src], body: "src[1, 0] - src[-1, 0]"}
  square: {pattern: point, reads: [edge], body: "edge * edge"}
"""


class Devices:
    @hookimpl
    def register_devices(self, register) -> None:
        register(CpuProvider())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.campaign
def test_a_pipeline_from_the_job_to_the_record(tmp_path: Path, gxx_here: None) -> None:
    registry = Registry()
    registry.add(plugin, "mincut")
    registry.add(Devices(), "devices")
    (device,) = CpuProvider().devices()
    (tmp_path / "two.yaml").write_text(TWO)
    (job,) = jobs.read(tmp_path / "job.yaml", JOB)
    with Store.open(tmp_path / "store.sqlite") as store:
        row = tuner.submit(store, registry, job)
        store.claim("test", job=row.id)
        state = tuner.Tuner(store, registry, Events(), least_patience_secs=3).run(row.id, lambda: False)
        assert state is JobState.DONE, store.job(row.id).problem
        record = store.record(row.workload_key, device.key)
        assert isinstance(record, Record)
        assert record.workload_name == "two"
        assert record.evidence == "emulated"
        parts = {each.workload_name for each in store.jobs() if each.parent == row.id}
        assert parts == {"two:edge", "two:square", "two:edge+square"}
        trials = store.trials(row.id)
        assert {each.outcome for each in trials} <= {Outcome.MEASURED, Outcome.TOO_NOISY}, [
            each.reason for each in trials
        ]
        assert {each.origin for each in trials} == {"seed:algorithm1", "seed:unfused"}
        # Every block was measured alone, so the next job composes them.
        known = {row.workload_key: store.record(row.workload_key, device.key) for row in store.jobs()}
        prepared = tuner.prepare(registry, job)
        analysis = prepared.strategy.analyse(prepared.workload, target_of(CpuProvider(), device))
        space = prepared.strategy.space(analysis, known)
        assert "measured" in next(each.values for each in space.parameters if each.name == "shapes")
