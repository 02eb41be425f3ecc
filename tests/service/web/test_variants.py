"""The table of a job's variants: of a job that was really run."""

from pathlib import Path

import pytest

from fusiond.cli import main
from fusiond.service.web import variants
from fusiond.store.database import Store
from fusiond.tuning.judging import referee

KERNEL = """\
kernel: {name}
source: {name}.cu
entry: add
sizes: {{n: 2000}}
odd: {{n: 601}}
arguments:
  - {{name: x, dtype: float32, elements: n, role: input, fill: {{uniform: [0, 1]}}}}
  - {{name: y, dtype: float32, elements: n, role: output}}
  - {{name: n, dtype: int32, value: n}}
block: {{shapes: {shapes}}}
grid: ["ceil_div(n, block.x)"]
"""
SOURCE = """\
__global__ void add(const float* x, float* y, int n)
{{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if ({where}) y[i] = x[i] + 1.0f;
}}
"""
JOB = "strategy: variants\nvariants: [./plain.yaml, ./even.yaml, ./short.yaml]\ndevice: cpu\nsearch: {trials: 16}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("short_measuring")
def test_verdicts_times_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(referee, "inspect", lambda accused: ("", ()))  # what is looked for in the answer is no column
    for name, where, shapes in (
        ("plain", "i < n", "[[64]]"),
        ("even", "i < n", "[[64], [128], [256]]"),
        ("short", "i < n && blockDim.x != 128 && i != 77", "[[128], [256]]"),
    ):
        (tmp_path / f"{name}.yaml").write_text(KERNEL.format(name=name, shapes=shapes))
        (tmp_path / f"{name}.cu").write_text(SOURCE.format(where=where))
    (tmp_path / "job.yaml").write_text(JOB)
    assert main(["run", "job.yaml", "--db", str(tmp_path / "db.sqlite"), "--json"]) == 0
    with Store.open(tmp_path / "db.sqlite") as store:
        (row,) = store.jobs(None, 5)
        rows = {each.name: each for each in variants.table(store, row)}
        record = store.record(row.workload_key, row.device_key or "", "warm")
    assert set(rows) == {"plain", "even", "short"}
    assert rows["plain"].verdict == rows["even"].verdict == "right"
    assert float(rows["plain"].time.replace(",", "")) > 0
    assert rows["even"].trials == 3
    assert rows["short"].verdict == "wrong"
    assert rows["short"].ratio is None
    assert "y: " in rows["short"].why
    assert "instead of" in rows["short"].why
    assert list(rows)[-1] == "short"
    assert record is not None
    winner = record.baseline if record.config is None else str(record.config["variant"])
    assert [each.name for each in rows.values() if each.answer] == [winner]


def test_a_job_of_something_else_has_none(served: tuple[str, str, Store]) -> None:
    _, job, store = served
    assert store.trials(job)
    assert variants.table(store, store.named_job(job)) == []
