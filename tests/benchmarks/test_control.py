"""Native against native, as a benchmark: the same rules as for finalists, and nothing but NumPy is needed."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest, control
from benchmarks.contest import Match, Samples
from fusiond.model.outcomes import DeviceState, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.tuning import finals
from fusiond.tuning.verdict import LEAST_PROCESSES

NOISY = MeasureFailed(outcome=Outcome.TOO_NOISY, reason="it scatters")
WRONG = MeasureFailed(outcome=Outcome.CRASHED, reason="an illegal access")


class Runner:
    """Answers what is planted for each candidate, in turn."""

    def __init__(self, **replies: list[Any]) -> None:
        self.replies, self.processes = replies, 0
        self.asked: list[str] = []

    def fresh(self) -> None:
        self.processes += 1

    def call(self, request: Any, timeout_secs: float) -> Any:
        self.asked.append(Path(request.candidate).name)
        return self.replies[self.asked[-1]].pop(0)


def measured(ratio: float, throttle: str = "") -> Measurement:
    after = DeviceState(throttle=throttle)
    spans = {"span_us": (10.0,) * 5, "baseline_us": (10.0 * ratio,) * 5}
    return Measurement(**spans, clock="device", purpose=Purpose.FINAL, after=after)  # type: ignore[arg-type]


def ran(runner: Runner, *, together: bool = False, until: float = math.inf) -> tuple[bool, dict[str, Samples]]:
    """`together`: compared with each other; else each is a group of its own."""
    matches = {name: Match(candidate=Path(name), baseline=Path("base")) for name in runner.replies}
    groups = {"all": matches} if together else {name: {name: match} for name, match in matches.items()}
    found = {name: Samples() for name in groups}
    kept: dict[str, Any] = {}
    done = contest.measure(
        runner,  # type: ignore[arg-type]
        groups,
        found,
        until=until,
        keep=lambda name: kept.update({name: found[name].document()}),
    )
    assert {name: Samples.read(each) for name, each in kept.items()} == {
        name: each for name, each in found.items() if each.processes
    }
    return done, found


@pytest.mark.parametrize(("ratios", "verdict"), [((1.001, 0.999) * 3, "keep"), ((1.05, 1.051) * 3, "fuse")])
def test_a_control_has_a_verdict(ratios: tuple[float, ...], verdict: str) -> None:
    runner = Runner(it=list(map(measured, ratios)))
    done, found = ran(runner)
    assert done
    assert control.control("it", found["it"])["verdict"] == verdict
    assert runner.processes == LEAST_PROCESSES


def test_a_noisy_process_gets_another_as_for_a_finalist() -> None:
    assert contest.MOST_LOST == finals.MOST_LOST
    _, found = ran(Runner(it=[NOISY, *map(measured, (1.0, 1.001, 0.999)), NOISY, measured(1.0), measured(1.001)]))
    assert control.control("it", found["it"])["verdict"] == "keep"
    runner = Runner(it=[NOISY] * 15)
    done, found = ran(runner)
    failed = control.control("it", found["it"])
    assert (done, failed["verdict"], failed["reason"]) == (False, "failed", "too_noisy: it scatters")
    assert runner.processes == 15


def ratios(found: Samples, name: str) -> list[float]:
    return [each[name].baseline_us[0] / each[name].span_us[0] for each in found.shared([name])]


def test_groups_share_processes_and_only_those_that_lack_one_get_more() -> None:
    runner = Runner(a=[NOISY, *[measured(1.1)] * 5], b=[measured(1.0)] * 5)
    assert ran(runner)[0]
    assert (runner.processes, runner.asked.count("a"), runner.asked.count("b")) == (6, 6, 5)


def test_no_process_begins_when_the_time_is_over() -> None:
    assert ran(Runner(it=[]), until=-math.inf) == (False, {"it": Samples()})


def test_every_part_of_the_catalogue_has_its_share() -> None:
    entries = [{"name": str(number)} for number in range(64)]
    assert [each["name"] for each in contest.spread(entries, 4)] == ["0", "16", "32", "48"]
    assert contest.spread(entries[:2], 12) == entries[:2]


def test_warm_and_cold(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "plan.json").write_text("{}")
    found = dict(control.against_themselves(tmp_path, [{"name": "it", "native": "native"}], tmp_path, cold=True))
    assert [(name, each.cold) for name, each in found.items()] == [("it", False), ("it, cold", True)]
    assert all((each.candidate / "plan.json").is_file() for each in found.values())


@pytest.mark.slow
def test_it_needs_no_yaml() -> None:
    code = "import sys; sys.modules['yaml'] = sys.modules['pluggy'] = None; import benchmarks.control"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(control.__file__).parent.parent)
