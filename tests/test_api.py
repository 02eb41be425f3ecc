"""What programs may rely on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fusiond

NAMES = [
    "Ambiguous", "Answer", "AsyncClient", "Client", "DaemonError", "DeviceError", "DeviceName", "FusiondError", "Job",
    "JobRow", "JobState", "Judgement", "MachineFault", "NothingKnown", "Plan", "Progress", "RequestError", "StoreError",
    "Unfused", "WorkloadName", "__version__", "best", "export", "plan", "tune",
]  # fmt: skip


def test_the_names_are_these() -> None:
    assert fusiond.__all__ == NAMES
    assert all(getattr(fusiond, name) is not None for name in NAMES)
    assert set(NAMES) <= set(dir(fusiond))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fusiond.Nothing


JOB = """
strategy: transfer
graph: fig2
device: cpu
sizes: {elements: 512}
search: {trials: 3, seed: 1}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_from_a_job_to_a_folder_in_one_program(tmp_path: Path) -> None:
    db, path = tmp_path / "store.sqlite", tmp_path / "job.yaml"
    (plan,) = fusiond.plan(path, JOB, db=db)
    assert (plan.workload.name, plan.device, plan.refused) == ("fig2", "cpu", "")
    assert plan.points > 1
    assert not db.exists()
    assert fusiond.best("fig2", db=db) is None
    heard: list[fusiond.Progress] = []
    (answer,) = fusiond.tune(path, JOB, db=db, listen=heard.append)
    assert (answer.workload.name, answer.device.name, answer.trials) == ("fig2", "cpu", 3)
    assert sum(each.event == "trial" for each in heard) == 3
    assert fusiond.best("fig2", device="cpu", db=db) == answer
    written = fusiond.export(answer, tmp_path / "answer", db=db)
    assert {tmp_path / "answer" / name for name in ("README.txt", "launch.py")} <= set(written)
    (again,) = fusiond.tune(path, JOB, db=db)
    assert again.trials == 3, "what is done is not done again"
    with pytest.raises(fusiond.RequestError, match=r"job\.yaml:3"):
        fusiond.plan(path, JOB.replace("fig2", "fig9"), db=db)


def test_the_twins_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}

    assert methods(fusiond.AsyncClient) == methods(fusiond.Client)


def test_an_answer_keeps_what_is_newer_than_itself() -> None:
    document = {each.name: None for each in dataclasses.fields(fusiond.Answer) if each.name != "document"}
    document |= {
        "workload": {"strategy": "toy", "name": "t", "key": "k", "sizes": {"n": 3}},
        "device": {"name": "cpu", "key": "d"},
        "unfused": {"name": "plain", "config": None, "time_us": 3.0, "program_key": None},
        "source": "/x/y.cu", "ci95": [1.0, 2.0], "changed": [], "counted": [], "notes": ["one"], "newer": 7,
    }  # fmt: skip
    answer = fusiond.Answer.of(document)
    assert (answer.workload.sizes, str(answer.source), answer.ci95, answer.notes) == (
        {"n": 3},
        "/x/y.cu",
        (1.0, 2.0),
        ("one",),
    )
    assert answer.document["newer"] == 7
