"""Trials and answers for other programs: T4, read back by what reads the community's files, and CSV."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import export
from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Trial
from fusiond_replay import t4

Run = Callable[..., Any]
WORDS = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
"""What T4's results schema 1.0.0 allows for `invalidity`."""


class Row:
    id, workload_name, device = "k3f", "hist,maxpool", "cuda:0"


def trial(sequence: int, outcome: Outcome, *samples: float) -> Trial:
    measurement = Measurement(span_us=samples, clock="device", purpose=Purpose.SEARCH) if samples else None
    return Trial(
        sequence=sequence, config=Config.of({"threads": 32 * (1 + sequence), "map": "pad", "cap": None}),
        origin="sampler", outcome=outcome, reason="" if samples else "=it broke", ratio=1.25 if samples else None,
        time_us=samples[0] if samples else None, measurement=measurement,
    )  # fmt: skip


TRIALS = (
    trial(0, Outcome.MEASURED, 10.0, 11.0, 9.0),
    trial(1, Outcome.MEASURED, 20.0, 21.0, 19.0),
    *(trial(2 + at, outcome) for at, outcome in enumerate(Outcome) if outcome is not Outcome.MEASURED),
)


def test_t4_is_what_its_schema_says_and_reads_back(tmp_path: Path) -> None:
    found = export.t4(Row(), TRIALS, "measured")  # type: ignore[arg-type]
    assert len(found["results"]) == len(TRIALS) - 1  # what was pruned has no result
    for each in found["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(each)
        assert each["invalidity"] in WORDS
        assert (each["invalidity"] == "correct") == (each["correctness"] == 1) == bool(each["measurements"])
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(found))
    pack = t4.read(path)
    assert (pack.device, pack.kernel) == ("cuda:0", "hist,maxpool")
    assert [each.samples_us for each in pack.rows if each.samples_us] == [(10.0, 11.0, 9.0), (20.0, 21.0, 19.0)]
    assert {each.name for each in pack.parameters} == {"threads", "map", "cap"}
    assert sum(bool(each.failure) for each in pack.rows) == len(TRIALS) - 3


@pytest.mark.parametrize(("evidence", "name"), [("emulated", "emulated_time"), ("counted", "bound")])
def test_what_no_gpu_measured_is_no_time(evidence: str, name: str, tmp_path: Path) -> None:
    found = export.t4(Row(), TRIALS, evidence)  # type: ignore[arg-type]
    first = found["results"][0]
    assert (first["times"]["runtimes"], first["objectives"]) == ([], [name])
    assert first["measurements"][0] == {"name": name, "value": 0.01, "unit": "ms"}
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(found))
    with pytest.raises(RequestError, match="neither runtimes nor a measurement called 'time'"):
        t4.read(path)


def test_tables_hold_every_trial_and_answer(fusiond: Run, done_job: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    assert fusiond("export", done_job, "--csv", path).out == f"3 trials in {path}\n"
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [row["outcome"] for row in rows] == ["measured"] * 3
    assert all(float(row["emulated_time_us"]) > 0 for row in rows)
    (answer,) = csv.DictReader(io.StringIO(fusiond("export", "--csv", "-").out))
    assert (answer["workload"], json.loads(answer["sizes"])) == ("hist,maxpool", {"a.n": 500})
    assert fusiond("export", done_job, "--t4", tmp_path / "t4.json", "--json").json["trials"] == 3


def test_a_cell_is_no_formula() -> None:
    text = export._table(export._lines(TRIALS, "measured"))
    assert "'=it broke" in text
    assert "\n=" not in text
    assert ",=" not in text
