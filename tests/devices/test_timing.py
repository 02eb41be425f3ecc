"""Paired sampling on a device whose samples are written down beforehand."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import scipy.stats

from fusiond.devices import timing
from fusiond.devices.base import Array, DataPlane, ExecutionError
from fusiond.devices.data import HostData
from fusiond.devices.timing import Sampling, Session, half_width, sample_pair, throttled
from fusiond.model.outcomes import DeviceState, Outcome, Purpose
from fusiond.model.program import Buffer, Launch, Program, Role, Source

PROGRAM = Program(
    name="p",
    buffers=(Buffer(name="y", dtype="int32", elements=1, role=Role.OUTPUT),),
    sources=(Source(name="s", text="", entries=("f",)),),
    steps=(Launch(name="f", source="s", entry="f", grid=(1, 1, 1), block=(1, 1, 1), arguments=()),),
)
PLAN = Sampling(purpose=Purpose.SEARCH)


class Scripted:
    """A `Loaded` that takes as long as its script says, and writes down what was done to it."""

    def __init__(self, name: str, script: Iterable[float], log: list[str], program: Program = PROGRAM) -> None:
        self.program = program
        self.clock = "device"
        self.gate_failures = 0
        self.cold: set[bool] = set()
        self.repeats: list[int] = []
        self._name = name
        self._script: Iterator[float] = iter(script)
        self._log = log

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        self.cold.add(cold)
        self._log.append(f"sample {self._name}")
        self.repeats.append(repeats)
        return next(self._script)

    def restore(self) -> None:
        self._log.append(f"restore {self._name}")

    def write(self, buffer: str, data: Array) -> None: ...
    def read(self, buffer: str) -> Array:
        return np.zeros(1)

    def snapshot(self, *, outputs: bool = False) -> None: ...
    def run(self, *, seed: int, checked: bool) -> None: ...
    def broken_guards(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None: ...


class ScriptedExecutor:
    def __init__(self, log: list[str], *states: DeviceState) -> None:
        self.data: DataPlane = HostData()
        self.clocks: Iterator[float] = iter(())  #: What `clock_mhz` answers; nothing when there are none left
        self._states = iter(states or (DeviceState(), DeviceState()))

    def load(self, program: Program, binaries: object) -> Scripted:
        raise NotImplementedError

    def state(self) -> DeviceState:
        return next(self._states)

    def clock_mhz(self) -> float | None:
        return next(self.clocks, None)

    def calibrate(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


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
    assert samples == ["A", "B"] * 3 + ["A", "B", "B", "A"] * 3
    assert log.count("restore A") == 9
    assert (found.span_us, found.baseline_us) == ((100.0,) * 6, (120.0,) * 6)
    assert found.ratio == 1.2
    assert (found.clock, found.cache, found.dropped) == ("device", "warm", False)


@pytest.mark.parametrize("who", ["A", "B"])
def test_a_pair_has_one_clock(who: str) -> None:
    executor, a, b, _ = pair(forever(100.0), forever(100.0))
    (a if who == "A" else b).clock = "wall"
    sampled_with: list[tuple[str, str]] = []
    real = a.sample_us
    a.sample_us = lambda repeats, cold: sampled_with.append((a.clock, b.clock)) or real(repeats)  # type: ignore[method-assign]
    assert sample_pair(executor, a, b, PLAN).clock == "wall"
    assert set(sampled_with) == {("wall", "wall")}
    # The baseline stays loaded, and the next candidate may be one for the device's own clock.
    assert (a.clock, b.clock) == (("wall", "device") if who == "A" else ("device", "wall"))


def test_every_sample_comes_right_behind_a_restore() -> None:
    executor, a, b, log = pair(forever(100.0), forever(100.0))
    sample_pair(executor, a, b, PLAN)
    for before, line in itertools.pairwise(["", *log]):
        if line.startswith("sample"):
            assert before == line.replace("sample", "restore")


@pytest.mark.parametrize(
    ("span_us", "repeats"), [(250.0, 1), (240.0, 2), (50.0, 5), (10.0, 25), (2.0, 125), (0.05, 1000), (0.0, 1000)]
)
def test_short_programs_run_several_times_in_a_sample(span_us: float, repeats: int) -> None:
    executor, a, b, _ = pair([span_us] * 3 + [1.0] * 6, forever(250.0))
    assert sample_pair(executor, a, b, PLAN).effort.runs == repeats
    assert a.repeats == [1] * 3 + [repeats] * 6
    assert b.repeats == [1] * 3 + [repeats] * 6  # the same on both sides, or the cost of a sample looks like a gain


@pytest.mark.parametrize(
    ("ratio", "incumbent", "pairs"),
    [
        (0.80, 1.0, 2),  # 10 % behind: two pairs are enough
        (0.95, 1.0, 5),  # 3 % behind: five
        (0.98, 1.0, 6),  # as good as the best so far: all
        (1.50, 1.0, 6),
        (1.50, 2.0, 2),
        (0.10, None, 6),  # the first of a search has nothing to be behind
    ],
)
def test_who_is_clearly_behind_is_dropped_early(ratio: float, incumbent: float | None, pairs: int) -> None:
    executor, a, b, _ = pair(forever(100.0 / ratio), forever(100.0))
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, incumbent=incumbent))
    assert len(found.span_us) == len(found.baseline_us) == pairs
    assert found.dropped is (pairs < 6)
    assert found.ratio == pytest.approx(ratio)


def test_scatter_is_refused() -> None:
    executor, a, b, _ = pair(forever(100.0, 250.0), forever(100.0))
    with pytest.raises(ExecutionError, match="scatter by") as caught:
        sample_pair(executor, a, b, PLAN)
    assert caught.value.outcome is Outcome.TOO_NOISY


def test_time_ends_the_pairs_but_not_before_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 10)
    monkeypatch.setattr(timing.time, "monotonic", lambda: float(next(clock)))
    executor, a, b, _ = pair(forever(100.0, 120.0, 110.0), forever(100.0))
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, pairs=50, least_pairs=8, budget_secs=5.0))
    assert len(found.span_us) == 8


@pytest.mark.parametrize(("scatter", "pairs"), [(0.0, 6), (0.004, 6), (0.02, 30)])
def test_pairs_are_taken_until_the_median_is_known(scatter: float, pairs: int) -> None:
    """A true ratio of 1 whose pairs are up to so much off."""
    rng = np.random.default_rng(0)
    spans = (float(100 * np.exp(rng.uniform(-scatter, scatter))) for _ in itertools.count())
    executor, a, b, _ = pair(spans, forever(100.0))
    found = sample_pair(executor, a, b, PLAN)
    assert len(found.span_us) == pairs
    assert found.effort.half_width is not None
    assert (found.effort.half_width <= PLAN.precision) is (pairs < PLAN.pairs)


def test_samples_begin_when_the_clock_is_steady() -> None:
    executor, a, b, log = pair(forever(100.0), forever(100.0))
    executor.clocks = iter([345.0, 700.0, 1400.0, 1900.0, 1975.0, 1980.0, 1980.0])
    found = sample_pair(executor, a, b, PLAN)
    assert [line[-1] for line in log if line.startswith("sample")][: 2 * 7] == ["A", "B"] * 7
    assert len([line for line in log if line == "sample A"]) == 7 + 6
    assert found.effort.steady is True


def test_a_clock_that_is_never_steady_is_not_waited_for_for_ever() -> None:
    executor, a, b, _ = pair(forever(100.0), forever(100.0))
    executor.clocks = itertools.cycle([1000.0, 1100.0])
    found = sample_pair(executor, a, b, dataclasses.replace(PLAN, warm_up_secs=0.0))
    assert found.effort.steady is False


@pytest.mark.parametrize("count", [2, 5, 6, 10, 11, 30])
def test_the_interval_of_a_median_holds_it(count: int) -> None:
    """Of samples from a skew distribution, at least 95 % of the intervals hold its median (SciPy has the ranks)."""
    rank = int(scipy.stats.binom.ppf(0.025, count, 0.5))
    values = list(np.random.default_rng(count).exponential(size=count))
    ordered = sorted(values)
    expected = (ordered[count - rank] - ordered[rank - 1]) / 2 if rank else float("inf")
    assert half_width(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("before", "after", "throttle"),
    [
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=960), ""),
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=940, temperature_c=80, others=1), "clock_fell"),
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=500, throttle="hot"), "hot,clock_fell"),
        (DeviceState(clock_mhz=1000), DeviceState(clock_mhz=990, throttle="hot"), "hot"),
        (DeviceState(), DeviceState(clock_mhz=500), ""),
        (DeviceState(clock_mhz=1000), DeviceState(), ""),
        (DeviceState(clock_mhz=345), DeviceState(clock_mhz=1980), "clock_rose"),  # it rested when it began
        (DeviceState(clock_mhz=960), DeviceState(clock_mhz=1000), ""),
        (DeviceState(canary_mhz=1000), DeviceState(canary_mhz=960), ""),
        (DeviceState(canary_mhz=1000), DeviceState(canary_mhz=940), "clock_fell"),
        (DeviceState(canary_mhz=1000), DeviceState(canary_mhz=1100), "clock_rose"),
        (DeviceState(canary_mhz=1980), DeviceState(canary_mhz=1700, throttle="power_cap"), "power_cap"),
        # The driver's number may lag behind: what is counted is what counts.
        (DeviceState(clock_mhz=1980, canary_mhz=1000), DeviceState(clock_mhz=345, canary_mhz=1000), ""),
        (DeviceState(clock_mhz=1000, canary_mhz=1000), DeviceState(clock_mhz=1000, canary_mhz=900), "clock_fell"),
    ],
)
def test_a_clock_that_changed_is_flagged(before: DeviceState, after: DeviceState, throttle: str) -> None:
    executor, a, b, _ = pair(forever(100.0), forever(100.0), before, after)
    found = sample_pair(executor, a, b, PLAN)
    assert found.before == before
    assert found.after == dataclasses.replace(after, throttle=throttle)


def test_what_a_driver_always_says_spoils_no_batch() -> None:
    """In a virtual machine a brake that nobody wired may be on for ever, at the full clock."""
    braked = DeviceState(throttle="hw_power_brake", canary_mhz=1980)
    assert throttled(braked, braked) == ""
    assert "hw_power_brake" in throttled(braked, DeviceState(canary_mhz=1980))
    fell = dataclasses.replace(braked, canary_mhz=1500, throttle="hw_power_brake,clock_fell")
    assert "clock_fell" in throttled(fell, braked)
    blind = DeviceState(throttle="hw_power_brake", clock_mhz=1980)  # no canary: the driver is all there is
    assert "hw_power_brake" in throttled(blind, blind)
    session = Session()
    assert [session.off(DeviceState(canary_mhz=1980)) for _ in range(5)] == [""] * 5
    assert session.off(dataclasses.replace(braked, canary_mhz=1500)) == "clock 1500 MHz, usually 1980"


def test_one_sample_of_no_time_is_taken_again() -> None:
    executor, a, b, _ = pair([100.0] * 3 + [0.0, 0.0] + [100.0] * 6, forever(100.0))
    assert sample_pair(executor, a, b, PLAN).effort.retries == 2
