"""What programs may rely on."""

import dataclasses

import pytest

import fusiond

NAMES = [
    "Ambiguous", "Answer", "Client", "DaemonError", "DeviceError", "DeviceName", "FusiondError", "Job",
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
        {"n": 3}, "/x/y.cu", (1.0, 2.0), ("one",),
    )  # fmt: skip
    assert answer.document["newer"] == 7
