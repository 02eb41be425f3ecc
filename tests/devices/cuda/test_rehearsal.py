"""The ruler on a GPU that is not there: planted speed-ups are recovered while the clock does what clocks do.

The fake driver's time line (fake_timeline.h) has a clock that ramps and drops, kernels with noise, events that cost
something, a slow host and a coarse timer. Nothing of this says what a GPU does; it says that the logic is right.
"""

from __future__ import annotations

import dataclasses
import math
import random
import types
from collections.abc import Callable
from typing import Any

import pytest

from fusiond.devices import steadiness, timing
from fusiond.devices.base import Loaded
from fusiond.devices.timing import Sampling, sample_pair
from fusiond.inputs.fills import initial
from fusiond.model import Measurement, Purpose, Verdict
from fusiond.program import Launch, Program
from fusiond.tuning.verdict import LEAST_PROCESSES, conclude, process_ratio
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


def finals(gpu: Any, planted: float, span_us: float, seed: int, clocks: Callable[[random.Random], Corners]) -> Any:
    """What the processes of the finals measure: a candidate that is so much faster than its baseline."""
    draw = random.Random(seed)
    gpu.set(us_double_it=span_us - 0.7, us_add=span_us * planted - 0.7, seed=seed)  # with the gap before a kernel
    candidate, baseline = _loaded(gpu, "double_it"), _loaded(gpu, "add")
    found: list[Measurement] = []
    for _ in range(LEAST_PROCESSES):
        gpu.clock(*clocks(draw))
        measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
        if measured.after.throttle:  # as the daemon does: such a batch is taken again once
            measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
        found.append(measured)
    candidate.close()
    baseline.close()
    gpu.log()
    return found


@pytest.mark.slow
@pytest.mark.sampled(4)
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
@pytest.mark.parametrize("runs", [range(20), pytest.param(range(20, 200), marks=pytest.mark.campaign)], ids=len)
def test_what_is_as_fast_is_never_called_faster(bench: Any, runs: range) -> None:
    found = _verdicts(bench, runs)
    assert Verdict.FUSE not in found
    assert found.count(Verdict.KEEP) > 0.9 * len(found)
