"""Native against native, as a benchmark: the same rules as for finalists, and nothing but NumPy is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import control
from fusiond.model import MeasureFailed, Measurement, Outcome, Purpose
from fusiond.tuning import finals
from fusiond.tuning.verdict import LEAST_PROCESSES

NOISY = MeasureFailed(outcome=Outcome.TOO_NOISY, reason="it scatters")


class Runner:
    def __init__(self, *replies: Any) -> None:
        self.replies, self.processes = list(replies), 0

    def fresh(self) -> None:
        self.processes += 1

    def call(self, request: Any, timeout_secs: float) -> Any:
        return self.replies.pop(0)


def measured(ratio: float) -> Measurement:
    return Measurement(span_us=(10.0,) * 5, baseline_us=(10.0 * ratio,) * 5, clock="device", purpose=Purpose.FINAL)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "plan.json").write_text("{}")
    return tmp_path / "bundle"


@pytest.mark.parametrize(("ratios", "found"), [((1.001, 0.999) * 3, "keep"), ((1.05, 1.051) * 3, "fuse")])
def test_a_control_has_a_verdict(bundle: Path, tmp_path: Path, ratios: tuple[float, ...], found: str) -> None:
    runner = Runner(*map(measured, ratios))
    assert control.control(runner, bundle, tmp_path, "it")["verdict"] == found  # type: ignore[arg-type]
    assert runner.processes == LEAST_PROCESSES


def test_a_noisy_process_gets_another_as_for_a_finalist(bundle: Path, tmp_path: Path) -> None:
    assert control.MOST_LOST == finals.MOST_LOST
    runner = Runner(NOISY, *map(measured, (1.0, 1.001, 0.999)), NOISY, measured(1.0), measured(1.001))
    assert control.control(runner, bundle, tmp_path, "it")["verdict"] == "keep"  # type: ignore[arg-type]
    runner = Runner(*[NOISY] * 15)
    failed = control.control(runner, bundle, tmp_path, "it")  # type: ignore[arg-type]
    assert (failed["verdict"], failed["reason"], runner.processes) == ("failed", "too_noisy: it scatters", 15)


def test_every_part_of_the_catalogue_has_its_share() -> None:
    entries = [{"name": str(number)} for number in range(64)]
    assert [each["name"] for each in control.spread(entries, 4)] == ["0", "16", "32", "48"]
    assert control.spread(entries[:2], 12) == entries[:2]


@pytest.mark.slow
def test_it_needs_no_yaml() -> None:
    code = "import sys; sys.modules['yaml'] = sys.modules['pluggy'] = None; import benchmarks.control"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(control.__file__).parent.parent)
