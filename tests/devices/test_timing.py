"""Paired sampling on a device whose samples are written down beforehand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from fusiond.devices import timing
from fusiond.devices.base import Array, DataPlane, ExecutionError
from fusiond.devices.data import HostData
from fusiond.devices.timing import Sampling, sample_pair
from fusiond.model import DeviceState, Outcome, Purpose
from fusiond.program import Buffer, Launch, Program, Role, Source

PROGRAM = Program(
    name="p",
    buffers=(Buffer(name="y", dtype="int32", elements=1, role=Role.OUTPUT),),
    sources=(Source(name="s", text="", entries=("f",)),),
    steps=(Launch(name="f", source="s", entry="f", grid=(1, 1, 1), block=(1, 1, 1), arguments=()),),
)
ACCUMULATES = dataclasses.replace(PROGRAM, buffers=(dataclasses.replace(PROGRAM.buffers[0], role=Role.INOUT),))
PLAN = Sampling(purpose=Purpose.SEARCH)


class Scripted:
    """A `Loaded` that takes as long as its script says, and writes down what was done to it."""

    def __init__(self, name: str, script: Iterable[float], log: list[str], program: Program = PROGRAM) -> None:
        self.program = program
        self.clock = "device"
        self.repeats: list[int] = []
        self._name = name
        self._script: Iterator[float] = iter(script)
        self._log = log

    def sample_us(self, repeats: int) -> float:
        self._log.append(f"sample {self._name}")
        self.repeats.append(repeats)
        return next(self._script)

    def restore(self) -> None:
        self._log.append(f"restore {self._name}")

    def write(self, buffer: str, data: Array) -> None: ...
    def read(self, buffer: str) -> Array:
        return np.zeros(1)

    def snapshot(self) -> None: ...
    def run(self, *, seed: int, checked: bool) -> None: ...
    def broken_guards(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None: ...


class ScriptedExecutor:
    def __init__(self, log: list[str], *states: DeviceState) -> None:
        self.data: DataPlane = HostData()
        self._log = log
        self._states = iter(states or (DeviceState(), DeviceState()))

    def load(self, program: Program, binaries: object) -> Scripted:
        raise NotImplementedError

    def state(self) -> DeviceState:
        return next(self._states)

    def flush_cache(self) -> None:
        self._log.append("flush")

    def close(self) -> None: ...


Pair = Callable[..., tuple[ScriptedExecutor, Scripted, Scripted, list[str]]]


def pair(a: Iterable[float], b: Iterable[float], *states: DeviceState, program: Program = PROGRAM) -> tuple[
    ScriptedExecutor, Scripted, Scripted, list[str]
]:  # fmt: skip
    log: list[str] = []
    return ScriptedExecutor(log, *states), Scripted("A", a, log, program), Scripted("B", b, log, program), log


def forever(*values: float) -> Iterator[float]:
    return itertools.cycle(values)


def test_candidate_and_baseline_alternate_after_warming_up() -> None:
    executor, a, b, log = pair(forever(100.0), forever(120.0))
    found = sample_pair(executor, a, b, PLAN)
    samples = [line[-1] for line in log if line.startswith("sample")]
    assert samples == ["A"] * 3 + ["B"] * 3 + ["A", "B", "B", "A"] * 5
    assert log.count("restore A") == 13
    assert (found.span_us, found.baseline_us) == ((100.0,) * 10, (120.0,) * 10)
    assert found.ratio == 1.2
    assert (found.clock, found.cache, found.dropped) == ("device", "warm", False)


@pytest.mark.parametrize("who", ["A", "B"])
def test_a_pair_has_one_clock(who: str) -> None:
    executor, a, b, _ = pair(forever(100.0), forever(100.0))
    (a if who == "A" else b).clock = "wall"
    sampled_with: list[tuple[str, str]] = []
    real = a.sample_us
    a.sample_us = lambda repeats: sampled_with.append((a.clock, b.clock)) or real(repeats)  # type: ignore[method-assign]
    assert sample_pair(executor, a, b, PLAN).clock == "wall"
    assert set(sampled_with) == {("wall", "wall")}
    # The baseline stays loaded, and the next candidate may be one for the device's own clock.
    assert (a.clock, b.clock) == (("wall", "device") if who == "A" else ("device", "wall"))


def test_warm_ups_are_no_samples() -> None:
    executor, a, b, _ = pair([900.0] * 3 + [100.0] * 10, [800.0] * 3 + [100.0] * 10)
    assert sample_pair(executor, a, b, PLAN).ratio == 1.0


def test_every_sample_comes_right_behind_a_restore() -> None:
    executor, a, b, log = pair(forever(100.0), forever(100.0))
    sample_pair(executor, a, b, PLAN)
    for before, line in itertools.pairwise(["", *log]):
        if line.startswith("sample"):
            assert before == line.replace("sample", "restore")


def test_alone_there_is_no_baseline() -> None:
    executor, a, _, _ = pair(forever(50.0, 1.0, 5000.0), [])
    found = sample_pair(executor, a, None, PLAN)  # nothing to compare with, so noise is no reason to refuse
    assert found.baseline_us == ()
    assert found.ratio is None
    assert len(found.span_us) == 10


def test_cold_flushes_before_each_sample_and_never_repeats() -> None:
    executor, a, b, log = pair(forever(1.0), forever(1.0))
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, cold=True))
    assert found.cache == "cold"
    assert log.count("flush") == 20
    assert set(a.repeats) == {1}
    for before, line in itertools.pairwise(log[12:]):
        if line.startswith("sample"):
            assert before == "flush"


@pytest.mark.parametrize(
    ("span_us", "repeats"), [(50.0, 1), (20.0, 1), (10.0, 10), (2.0, 50), (0.05, 1000), (0.0, 1000)]
)
def test_short_programs_run_several_times_in_a_sample(span_us: float, repeats: int) -> None:
    executor, a, b, _ = pair([span_us] * 3 + [1.0] * 10, forever(50.0))
    sample_pair(executor, a, b, PLAN)
    assert a.repeats == [1] * 3 + [repeats] * 10
    assert b.repeats == [1] * 3 + [repeats] * 10  # the same on both sides, or the cost of a sample looks like a gain


def test_what_accumulates_is_never_repeated() -> None:
    executor, a, b, _ = pair(forever(1.0), forever(1.0), program=ACCUMULATES)
    sample_pair(executor, a, b, PLAN)
    assert set(a.repeats) == {1}


@pytest.mark.parametrize(
    ("ratio", "incumbent", "pairs"),
    [
        (0.80, 1.0, 2),  # 10 % behind: two pairs are enough
        (0.95, 1.0, 5),  # 3 % behind: five
        (0.98, 1.0, 10),  # as good as the best so far: all
        (1.50, 1.0, 10),
        (1.50, 2.0, 2),
        (0.10, None, 10),  # the first of a search has nothing to be behind
    ],
)
def test_who_is_clearly_behind_is_dropped_early(ratio: float, incumbent: float | None, pairs: int) -> None:
    executor, a, b, _ = pair(forever(100.0 / ratio), forever(100.0))
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, incumbent=incumbent))
    assert len(found.span_us) == len(found.baseline_us) == pairs
    assert found.dropped is (pairs < 10)
    assert found.ratio == pytest.approx(ratio)


def test_one_bad_sample_drops_nobody() -> None:
    executor, a, b, _ = pair([100.0] * 3 + [100.0, 100.0, 300.0] + [100.0] * 7, forever(110.0))
    assert not sample_pair(executor, a, b, dataclasses.replace(PLAN, incumbent=1.1)).dropped


def test_scatter_is_refused() -> None:
    executor, a, b, _ = pair(forever(100.0, 250.0), forever(100.0))
    with pytest.raises(ExecutionError, match="scatter by") as caught:
        sample_pair(executor, a, b, PLAN)
    assert caught.value.outcome is Outcome.TOO_NOISY


def test_scatter_that_hits_both_alike_is_no_scatter() -> None:
    swing = [100.0, 250.0, 170.0, 90.0, 400.0, 333.0, 120.0, 80.0, 95.0, 260.0]
    executor, a, b, _ = pair([1e2] * 3 + swing, [1e2] * 3 + [2 * each for each in swing])
    assert sample_pair(executor, a, b, PLAN).ratio == pytest.approx(2.0)


def test_a_few_outliers_are_no_scatter() -> None:
    executor, a, b, _ = pair([100.0] * 3 + [100.0] * 7 + [900.0] * 3, forever(100.0))
    assert sample_pair(executor, a, b, PLAN).ratio == 1.0


def test_who_is_dropped_may_be_noisy() -> None:
    executor, a, b, _ = pair([100.0] * 3 + [900.0, 200.0], forever(100.0))
    assert sample_pair(executor, a, b, dataclasses.replace(PLAN, incumbent=1.0)).dropped


def test_time_ends_the_pairs_but_not_before_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 10)
    monkeypatch.setattr(timing.time, "monotonic", lambda: float(next(clock)))
    executor, a, b, _ = pair(forever(100.0), forever(100.0))
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, pairs=50, least_pairs=5, budget_secs=5.0))
    assert len(found.span_us) == 5


@pytest.mark.parametrize(
    ("before", "after", "throttle"),
    [
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=960), ""),
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=940, temperature_c=80, others=1), "clock_fell"),
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=500, throttle="hot"), "hot"),
        (DeviceState(), DeviceState(clock_mhz=500), ""),
        (DeviceState(clock_mhz=1000), DeviceState(), ""),
        (DeviceState(clock_mhz=900), DeviceState(clock_mhz=1000), ""),
        (DeviceState(canary_us=10.0), DeviceState(canary_us=10.4), ""),
        (DeviceState(canary_us=10.0), DeviceState(canary_us=10.6), "canary_slowed"),
        (DeviceState(canary_us=10.0), DeviceState(canary_us=9.0), ""),
    ],
)
def test_a_clock_that_fell_is_flagged(before: DeviceState, after: DeviceState, throttle: str) -> None:
    executor, a, b, _ = pair(forever(100.0), forever(100.0), before, after)
    found = sample_pair(executor, a, b, PLAN)
    assert found.before == before
    assert found.after == dataclasses.replace(after, throttle=throttle)


@pytest.mark.parametrize("role", ["A", "B"])
def test_a_sample_of_no_time_is_not_divided_by(role: str) -> None:
    """A clock may answer 0; that is noise and not a crash of the worker."""
    zero, fine = forever(0.0), forever(100.0)
    executor, a, b, _ = pair(zero if role == "A" else fine, fine if role == "A" else zero)
    with pytest.raises(ExecutionError) as caught:
        sample_pair(executor, a, b, PLAN)
    assert caught.value.outcome is Outcome.TOO_NOISY
