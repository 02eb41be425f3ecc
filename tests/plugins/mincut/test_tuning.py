"""A pipeline from its file to its record, on the cpu device: blocks, composition, answer."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.inputs import fills
from fusiond.model.outcomes import JobState
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy.hookspecs import hookimpl
from fusiond.tuning import baselines
from fusiond_mincut import plugin
from tests.conftest import run_job

JOB = """\
strategy: mincut
pipeline: ./two.yaml
sizes: {width: 61, height: 47}
blocks: 1
device: cpu
search: {trials: 2, timeout: 2m, seed: 1}
"""


class Devices:
    @hookimpl
    def register_devices(self, register) -> None:
        register(CpuProvider())


THREE = """\
pipeline: three
image: {width: 64, height: 32, dtype: int32}
inputs: [src]
outputs: [bright]
kernels:
  wide: {pattern: point, reads: [src], body: "src * src"}
  higher: {pattern: local, mask: [3, 1], border: clamp, reads: [wide], body: "wide[-1, 0] + wide[1, 0]"}
  bright: {pattern: point, reads: [higher], body: "higher > 40000"}
"""


@pytest.mark.campaign  # `make test` has the same of stitching
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("short_measuring", "gxx_here")
@pytest.mark.parametrize("most", [None, 0])
def test_a_part_reads_what_the_whole_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    """`bright` of inputs of its own, 0 to 255, would be 0 everywhere. Of a whole that is too large (`most`) it is, and
    its user, who wrote none of them, is asked for nothing."""
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    if most is not None:
        monkeypatch.setattr(baselines, "MOST_BETWEEN_BYTES", most)
    registry = Registry()
    registry.add(plugin, "mincut")
    registry.add(Devices(), "devices")
    (tmp_path / "two.yaml").write_text(THREE)
    (job,) = jobs.read(
        tmp_path / "job.yaml", JOB.replace("61, height: 47", "64, height: 32").replace("trials: 2", "trials: 1")
    )
    with Store.open(tmp_path / "store.sqlite") as store:
        row, state = run_job(store, registry, job, least_patience_secs=3)
        assert state is JobState.DONE
        parts = {each.workload_name.partition(":")[2]: each for each in store.parts(row.id)}
        assert {each.state for each in parts.values()} == {JobState.DONE}
        assert {"wide", "higher", "bright"} < set(parts)
        source = next(each for each in _emitted(store, parts["wide"].id).buffers if each.name == "src")
        src = fills.fill(source, 0).reshape(32, 64).astype(np.int64)
        wide = np.pad(src * src, ((0, 0), (1, 1)), mode="edge")
        expected = {"higher": ("wide", src * src), "bright": ("higher", wide[:, :-2] + wide[:, 2:])}
        for part, (name, values) in expected.items():
            given = next(each for each in _emitted(store, parts[part].id).buffers if each.name == name)
            if most is None:
                assert (fills.fill(given, 0).reshape(32, 64) == values).all()
            else:
                assert given.fill.kind == "integers"
        assert 0 < (expected["bright"][1] > 40000).mean() < 1


def _emitted(store: Store, job: str) -> Program:
    """The unfused program of a part."""
    (found,) = [
        store.emitted(job, row["config_key"])
        for row in store._rows("SELECT config_key FROM emitted WHERE job_id = ? AND config_key LIKE 'given:%'", [job])
    ][:1]
    assert isinstance(found, Program)
    return found
