"""The ruler on a GPU that is not there: planted speed-ups are recovered while the clock does what clocks do.

The fake driver's time line (fake_timeline.h) has a clock that ramps and drops, kernels with noise, events that cost
something, a slow host and a coarse timer. Nothing of this says what a GPU does; it says that the logic is right.
"""

import dataclasses
import math
import random
import types
from collections.abc import Callable
from typing import Any

import pytest

from fusiond.devices import steadiness, timing
from fusiond.devices.base import Loaded
from fusiond.devices.calibration import fitted
from fusiond.devices.timing import Sampling, sample_pair
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import Measurement, Purpose, Verdict
from fusiond.model.program import Launch, Program
from fusiond.tuning.verdict import LEAST_PROCESSES, conclude, process_ratio
from tests.devices.cuda.stand_in import FakeGpu
from tests.devices.cuda.test_cuda_programs import launch, program

FULL_MHZ = 1980.0
LEAST_GAIN = 1.02
FINAL = Sampling(purpose=Purpose.FINAL, pairs=60, precision=0.0025)

Corners = list[tuple[float, float]]


def _steady(draw: random.Random) -> Corners:
    return [(0, FULL_MHZ)]


def _out_of_idle(draw: random.Random) -> Corners:
    """From the clock of an idle board to the full one, while the warm-up runs."""
    return [(0, 345.0), (draw.uniform(5e3, 50e3), FULL_MHZ)]


def _down(draw: random.Random) -> Corners:
    """A board that gets warm: it loses up to 4 % in the course of a batch."""
    return [(0, FULL_MHZ), (draw.uniform(20e3, 60e3), FULL_MHZ * draw.uniform(0.96, 1.0))]


def _waves(draw: random.Random) -> Corners:
    """Up and down by 2 % all the time, with a period of 3 to 12 ms."""
    period_us = draw.uniform(3e3, 12e3)
    return [(index * period_us / 2, FULL_MHZ * (0.98 if index % 2 else 1.0)) for index in range(400)]


def _two_states(draw: random.Random) -> Corners:
    """A clock that jumps by 4.5 % now and then."""
    corners, at = [], 0.0
    for index in range(200):
        mhz = FULL_MHZ * (0.955 if index % 2 else 1.0)
        corners += [(at, mhz), (at + (held := draw.uniform(4e3, 20e3)) - 1, mhz)]
        at += held
    return corners


def _saw(draw: random.Random) -> Corners:
    """Falls by 4.5 % within 2 ms, jumps back, falls again: whoever is always second is always slower."""
    teeth = [[(2e3 * index, FULL_MHZ), (2e3 * index + 1999, 0.955 * FULL_MHZ)] for index in range(300)]
    return [corner for tooth in teeth for corner in tooth]


CLOCKS: tuple[Callable[[random.Random], Corners], ...] = (_steady, _out_of_idle, _down, _waves, _two_states, _saw)


@pytest.fixture
def bench(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU whose host takes 6 us for a call, and on which time is the fake's."""
    clock = types.SimpleNamespace(monotonic=lambda: gpu.now_us / 1e6)
    for module in (steadiness, timing):
        monkeypatch.setattr(module, "time", clock)
    gpu.set(mhz=FULL_MHZ, launch_us=6, load_us=900, gap_us=0.7, noise=0.004, step_ns=1000, copy_gbs=50)
    return gpu


def _loaded(gpu: Any, entry: str) -> Loaded:
    found = filled(gpu, program((_launch(entry),)))
    found.snapshot()
    return found


def _launch(entry: str) -> Launch:
    if entry == "double_it":
        return launch("k")
    step = launch("k", entry=entry)
    return dataclasses.replace(step, arguments=(step.arguments[0], *step.arguments))


def filled(gpu: Any, of: Program) -> Loaded:
    found: Loaded = gpu.load(of)
    for each in of.buffers:
        found.write(each.name, initial(each, 0))
    return found


def finals(
    gpu: Any,
    planted: float,
    span_us: float,
    seed: int,
    clocks: Callable[[random.Random], Corners],
    plan: Sampling = FINAL,
) -> Any:
    """What the processes of the finals measure: a candidate that is so much faster than its baseline."""
    draw = random.Random(seed)
    gpu.set(us_double_it=span_us - 0.7, us_add=span_us * planted - 0.7, seed=seed)  # with the gap before a kernel
    candidate, baseline = _loaded(gpu, "double_it"), _loaded(gpu, "add")
    found: list[Measurement] = []
    for _ in range(LEAST_PROCESSES):
        gpu.clock(*clocks(draw))
        measured = sample_pair(gpu.executor, candidate, baseline, plan)
        if measured.after.throttle:  # as the daemon does: such a batch is taken again once
            measured = sample_pair(gpu.executor, candidate, baseline, plan)
        found.append(measured)
    candidate.close()
    baseline.close()
    gpu.log()
    return found


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("clocks", CLOCKS, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("planted", [1.00, 1.02, 1.05])
@pytest.mark.parametrize("span_us", [6.0, 150.0])
def test_a_planted_gain_is_recovered(bench: Any, span_us: float, planted: float, clocks: Any) -> None:
    """Within 0.5 % by the five processes of the finals, for a span of several runs to a sample and for a long one."""
    measured = finals(bench, planted, span_us, 7, clocks)
    answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
    assert answer is not None
    assert answer.estimate.speedup == pytest.approx(planted, rel=0.005)
    assert {each.effort.gate_failures for each in measured} == {0}
    if clocks not in (_waves, _saw):
        assert all(each.effort.steady for each in measured)


@pytest.mark.slow
@pytest.mark.parametrize("step_us", [0.5, 1.024])
@pytest.mark.parametrize("span_us", [22.3, 31.0, 60.0])
def test_a_gain_of_less_than_a_step_of_the_events_is_recovered(bench: Any, span_us: float, step_us: float) -> None:
    """`cuEventElapsedTime` promises 0.5 us, and some boards have steps of 1.024 us; 2 % of 22 us are less."""
    bench.set(event_us=1.7, event_step_us=step_us)
    figures = {"event_step_us": bench.executor.calibrate()["event_step_us"]}
    assert figures["event_step_us"] == pytest.approx(step_us, abs=0.002)
    measured = finals(bench, 1.02, span_us, 7, _steady, fitted(FINAL, figures))
    answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
    assert answer is not None
    assert answer.estimate.speedup == pytest.approx(1.02, abs=0.002)


RESTED = (
    "mhz=1980 idle_mhz=345 idle_after_us=1e6 plateau_us=60000 ramp_us=30000 event_us=1.7 event_cycles=1 launch_us=6"
)
"""A board whose clock only begins to rise after 60 ms of work; until then it looks steady."""


def test_a_board_that_rested_is_awake_before_anything_is_timed(
    fake_libcuda: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_FAKE_GPU", RESTED)
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(us_double_it=5, us_add=10)
    measured = sample_pair(gpu.executor, _loaded(gpu, "double_it"), _loaded(gpu, "add"), FINAL)
    assert measured.before.canary_mhz == pytest.approx(1980, rel=1e-3)
    assert measured.after.throttle == ""
    assert measured.ratio == pytest.approx(2, rel=1e-3)


def test_a_clock_that_rises_within_a_batch_spoils_it(
    fake_libcuda: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host built something for seconds, the board rested; three equal readings seemed a steady clock."""
    monkeypatch.setenv("FUSIOND_FAKE_GPU", RESTED)
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(us_double_it=600, us_add=1200)
    candidate, baseline = _loaded(gpu, "double_it"), _loaded(gpu, "add")
    gpu.wait(5e6)
    measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
    assert (measured.effort.steady, measured.after.throttle) == (True, "clock_rose")
    measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
    assert measured.after.throttle == ""
    assert measured.ratio == pytest.approx(2, rel=1e-3)


def _verdicts(gpu: Any, runs: range) -> list[Verdict]:
    found = []
    for run in runs:
        span_us = (6.0, 40.0, 150.0)[run % 3]
        measured = finals(gpu, 1.00, span_us, run, CLOCKS[run % len(CLOCKS)])
        answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
        assert answer is not None
        assert math.isfinite(answer.estimate.high)
        found.append(answer.verdict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("runs", [range(10), pytest.param(range(10, 200), marks=pytest.mark.campaign)], ids=len)
def test_what_is_as_fast_is_never_called_faster(bench: Any, runs: range) -> None:
    found = _verdicts(bench, runs)
    assert Verdict.FUSE not in found
    assert found.count(Verdict.KEEP) > 0.9 * len(found)
