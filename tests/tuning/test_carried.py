"""An answer is the program that was measured: from a job on the cpu device to the files that a user calls, whatever is
known, recorded or installed by then."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.outcomes import JobState, Measurement, Purpose
from fusiond.model.program import SourceKind, decode
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, target_of
from fusiond.requests.registry import Registry
from fusiond.service.client import exporting
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from tests.conftest import measure_shortly, run_job

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gxx_here"), pytest.mark.timeout(600)]

TWO = """\
pipeline: two
image: {width: 64, height: 64, dtype: int32}
inputs: [src]
outputs: [square]
kernels:
  edge: {pattern: local, mask: [3, 1], border: mirror, reads: [src], body: "src[1, 0] - src[-1, 0]"}
  square: {pattern: point, reads: [edge], body: "edge * edge"}
"""
JOBS = {
    "hfuse": "pair: [hist, maxpool]\n"
    "sizes: {hist.n: 3000, maxpool.channels: 1, maxpool.height: 120, maxpool.width: 90}",
    "mincut": "pipeline: ./two.yaml\nsizes: {width: 61, height: 47}\nblocks: 1",
    "stitching": "module: lr_step\ngroups: 0\nprobes: 0",
    "transfer": "graph: fig2\nsizes: {elements: 96}",
}


@pytest.fixture(
    scope="module",
    params=["hfuse", "transfer", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("mincut", "stitching"))],
)
def measured(request: Any, real: Registry, tmp_path_factory: Any) -> Iterator[tuple[Store, JobRow, str]]:
    """A job of each strategy, done."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "two.yaml").write_text(TWO)
    text = f"strategy: {request.param}\n{JOBS[request.param]}\ndevice: cpu\nsearch: {{trials: 5, seed: 1}}\n"
    (job,) = jobs.read(folder / "job.yaml", text)
    with Store.open(folder / "store.sqlite") as store:
        with pytest.MonkeyPatch.context() as patch:
            measure_shortly(patch)
            row, state = run_job(store, real, job, least_patience_secs=3)
        assert state is JobState.DONE, store.job(row.id)
        yield store, row, request.param


def exported(store: Store, row: JobRow, key: str, folder: Path) -> dict[str, bytes]:
    """What `best --export` writes for a program of a job's."""
    (device,) = store.devices()
    document = {
        "workload": {"name": row.workload_name, "strategy": row.strategy, "sizes": {}},
        "device": {"name": "cpu", "key": device.info.key}, "verdict": "fuse", "program_key": key,
    }  # fmt: skip
    files = exporting.export(store.path, document, folder)
    return {path.name: path.read_bytes() for path in files}


def test_every_program_of_a_job_is_exported_as_it_was_measured(
    measured: tuple[Store, JobRow, str], tmp_path: Path
) -> None:
    store, row, _ = measured
    trials = [each for each in store.trials(row.id, None) if each.program_key]
    assert len(trials) > 4
    for number, key in enumerate(dict.fromkeys(str(each.program_key) for each in trials)):
        program = store.program(key)
        assert program is not None
        assert program.key == key
        files = exported(store, row, key, tmp_path / str(number))
        plan = json.loads(files["plan.json"])
        assert plan["program_key"] == key
        assert decode(plan).key == key
        for source in program.sources:
            suffix = ".cu" if source.kind is SourceKind.DEVICE else ".cpp"
            assert files[f"{source.name}{suffix}"] == source.text.encode()


def test_nothing_that_comes_later_changes_it(
    measured: tuple[Store, JobRow, str], real: Registry, tmp_path: Path
) -> None:
    """More probes, records of parts and a newer catalogue: what is asked for by its key is what it was."""
    store, row, _ = measured
    record = store.incumbents(row.workload_key, store.devices()[0].info.key)[0]
    key = record.program_key or record.baseline_program_key
    assert key is not None
    before = exported(store, row, key, tmp_path / "before")
    prepared = prepare(real, store.load_job(row.id))
    provider = real.provider("cpu")
    (info,) = provider.devices()
    analysis = prepared.strategy.analyse(prepared.workload, target_of(provider, info))
    for number, probe in enumerate(prepared.strategy.probes(analysis)):
        alone = Measurement(span_us=(float(number % 7 + 1),), clock="emulated", purpose=Purpose.PROBE)
        store.add_probe(probe.key, info.key, prepared.strategy.version, alone)
    other = dataclasses.replace(record, program_key=None, config=None, speedup=None, ci95=None, verified=False)
    store.save_record(other, job=row.id, source_hashes={})
    real.catalogue.clear()
    try:
        assert exported(store, row, key, tmp_path / "after") == before
    finally:
        real.catalogue.update(Registry.load().catalogue)
        store.save_record(record, job=row.id, source_hashes={})


def test_the_same_texts_were_compared_at_odd_sizes(measured: tuple[Store, JobRow, str]) -> None:
    store, row, name = measured
    record = store.incumbents(row.workload_key, store.devices()[0].info.key)[0]
    if record.verified and name != "stitching":  # a module has no sizes
        assert len(record.checks) == 2
        assert "not compared" not in record.checks[1]
