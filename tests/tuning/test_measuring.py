"""Programs to outcomes: what fails on the way comes back as a value, and a throttled batch is thrown away once."""

import dataclasses
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices import protocol
from fusiond.devices.base import Binary
from fusiond.devices.timing import Sampling
from fusiond.model.errors import DeviceError, Interrupted, StoreError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed, DeviceState, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import Alloc, Program, Source
from fusiond.tuning.contention import Contention, Policy
from fusiond.tuning.measuring import SEEDS, Measurer, References
from tests.fakes import FakeProvider, InProcess, fake_program

PLAN = Sampling(purpose=Purpose.SEARCH)
DEVICE = FakeProvider().devices()[0]


def program(fault: str = "", cost_us: float = 10.0) -> Program:
    return fake_program("p", cost_us, fault)


class Counting(FakeProvider):
    def __init__(self) -> None:
        self.builds: list[str] = []
        self.gate: threading.Event | None = None

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        self.builds.append(source.text)
        if self.gate is not None:
            assert self.gate.wait(10)
        return super().build(source, arch)


class Throttling(InProcess):
    """Says that the device throttled, so many times."""

    times = 0
    asked = 0

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        reply = super().call(request, timeout_secs)
        if isinstance(reply, Measurement):
            self.asked += 1
            if self.asked <= self.times:
                return dataclasses.replace(reply, after=DeviceState(throttle="hot"))
        return reply


@pytest.fixture
def provider() -> Counting:
    return Counting()


@pytest.fixture
def runner(provider: Counting) -> Throttling:
    return Throttling(provider, provider.devices()[0])


@pytest.fixture
def measurer(provider: Counting, runner: Throttling, tmp_path: Path) -> Iterator[Measurer]:
    made = Measurer(provider, runner, tmp_path / "bundles", tmp_path / "work", jobs=2)
    yield made
    made.close()


@pytest.fixture
def references(measurer: Measurer) -> References:
    found = measurer.references(program(), "reference")
    assert isinstance(found, References)
    return found


def test_references_are_kept_for_every_seed(references: References, tmp_path: Path) -> None:
    assert tuple(seed for seed, _ in references.of) == SEEDS
    assert all(Path(path).parent == tmp_path / "work" and Path(path).is_file() for _, path in references.of)
    assert 0 < references.run_secs < 60


def test_right_programs_are_checked_and_sampled(measurer: Measurer, references: References) -> None:
    assert measurer.check(program(cost_us=5), references) == 0.0
    found = measurer.sample(program(cost_us=5), program(), PLAN, references)
    assert isinstance(found, Measurement)
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    alone = measurer.sample(program(), None, PLAN, references)
    assert isinstance(alone, Measurement)
    assert alone.ratio is None


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("nobuild", Outcome.BUILD_FAILED), ("wrong", Outcome.WRONG_RESULT), ("late", Outcome.WRONG_RESULT),
        ("crash", Outcome.CRASHED), ("outside", Outcome.CRASHED), ("refuse", Outcome.LAUNCH_REFUSED),
    ],
)  # fmt: skip
def test_what_fails_is_a_value(measurer: Measurer, references: References, fault: str, outcome: Outcome) -> None:
    found = measurer.check(program(fault), references)
    assert isinstance(found, MeasureFailed)
    assert found.outcome is outcome
    reference = measurer.references(program(fault), "other")
    if fault not in ("wrong", "late"):  # a reference is right by definition
        assert isinstance(reference, MeasureFailed)
    if fault in ("nobuild", "refuse"):
        for pair in ((program(fault), program()), (program(), program(fault))):
            sampled = measurer.sample(*pair, PLAN, references)
            assert isinstance(sampled, MeasureFailed)
            assert sampled.outcome is outcome


@pytest.mark.parametrize(("times", "measured", "asked"), [(0, True, 1), (1, True, 2), (2, False, 2)])
def test_a_throttled_batch_is_thrown_away_once(
    measurer: Measurer, runner: Throttling, references: References, times: int, measured: bool, asked: int
) -> None:
    runner.times = times
    found = measurer.sample(program(), program(), PLAN, references)
    assert isinstance(found, Measurement) is measured
    assert runner.asked == asked
    if isinstance(found, MeasureFailed):
        assert (found.outcome, found.reason) == (
            Outcome.TOO_NOISY,
            "two batches were thrown away: the device throttled (hot)",
        )


def test_what_is_made_ahead_is_built_before_what_is_made_behind_it(tmp_path: Path) -> None:
    """With one core: made, built, made, built; and not all of them made before the first is built."""
    provider, said = Counting(), []
    measurer = Measurer(provider, InProcess(provider, DEVICE), tmp_path / "b", tmp_path / "w", jobs=1)

    def make(cost: int) -> None:
        said.append(f"made {cost}")
        measurer.bundle_now(program(cost_us=cost))
        said.append(f"built {len(provider.builds)}")

    made = [measurer.ahead(functools.partial(make, cost)) for cost in (1, 2, 3)]
    for each in made:
        each.result()
    assert said == ["made 1", "built 1", "made 2", "built 2", "made 3", "built 3"]
    assert isinstance(measurer.bundle(program(cost_us=2)), Path)
    assert len(provider.builds) == 3
    measurer.close()


def test_a_build_that_raises_is_told_to_whoever_waits(tmp_path: Path) -> None:
    class Broken(FakeProvider):
        def build(self, source: Source, arch: str) -> Binary | BuildFailed:
            raise OSError("no space left")

    measurer = Measurer(Broken(), InProcess(Broken(), DEVICE), tmp_path / "b", tmp_path / "w")
    for ask in (measurer.bundle_now, measurer.bundle):
        with pytest.raises(StoreError, match=r"cannot build .*: no space left"):
            ask(program())
    measurer.close()


class Told(InProcess):
    """Measures in states that are written down beforehand; after the last one it is alone and quick."""

    def __init__(self, provider: FakeProvider, device: DeviceInfo, *states: DeviceState) -> None:
        super().__init__(provider, device)
        self.states = list(states)
        self.freshened = 0

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        reply = super().call(request, timeout_secs)
        if isinstance(reply, Measurement):
            return dataclasses.replace(reply, after=self.states.pop(0) if self.states else DeviceState())
        return reply

    def fresh(self) -> None:
        self.freshened += 1


def _sampled(tmp_path: Path, runner: Told, times: int, **options: Any) -> list[Measurement | MeasureFailed]:
    measurer = Measurer(FakeProvider(), runner, tmp_path / "b", tmp_path / "w", **options)
    references = measurer.references(program(), "r")
    assert isinstance(references, References)
    found = [measurer.sample(program(), None, PLAN, references) for _ in range(times)]
    measurer.close()
    return found


@pytest.mark.parametrize("sensor", ["clock_mhz", "canary_mhz"])
def test_a_batch_that_is_slower_than_the_session_is_thrown_away(tmp_path: Path, sensor: str) -> None:
    """After five batches at the usual speed one that is 6 % off is taken again; 4 % are within what is usual."""

    def at(speed: float) -> DeviceState:
        if sensor == "clock_mhz":
            return DeviceState(clock_mhz=1000 * speed)
        return DeviceState(clock_mhz=345.0, canary_mhz=1000 * speed)  # what is counted goes before what is said

    usual = [at(1.0)] * 5
    runner = Told(FakeProvider(), DEVICE, *usual, at(0.96), at(0.94), at(1.0), at(0.94), at(0.94))
    found = _sampled(tmp_path, runner, 8)
    assert [type(each) for each in found[:7]] == [Measurement] * 7
    last = found[7]
    assert isinstance(last, MeasureFailed)
    assert last.outcome is Outcome.TOO_NOISY
    assert "slower than it was" in last.reason
    assert runner.states == []


def test_a_device_that_stays_slower_is_the_new_normal(tmp_path: Path) -> None:
    slow = DeviceState(clock_mhz=800)
    runner = Told(FakeProvider(), DEVICE, *[DeviceState(clock_mhz=1000)] * 5, *[slow] * 40)
    found = _sampled(tmp_path, runner, 12)
    assert isinstance(found[-1], Measurement)
    assert sum(isinstance(each, MeasureFailed) for each in found) == 3


def test_a_board_at_its_power_limit_is_slower_with_some_programs(tmp_path: Path) -> None:
    """Which the driver says, so that it is no reason to throw away every batch of such a program."""
    fast, slow = DeviceState(clock_mhz=1980), DeviceState(clock_mhz=1500, throttle="power_cap")
    found = _sampled(tmp_path, Told(FakeProvider(), DEVICE, *[fast] * 6, *[slow] * 2), 8)
    assert [type(each) for each in found] == [Measurement] * 8


@pytest.mark.parametrize("policy", list(Policy))
def test_a_batch_beside_others(tmp_path: Path, policy: Policy) -> None:
    """Shared: marked. Wait: thrown away, and taken again when they are gone. Exclusive: the job is put back."""
    beside, told = DeviceState(others=1), []
    there = ["1 other process uses fake"] * 3

    def busy() -> str | None:
        return there.pop() if there else None

    runner = Told(FakeProvider(), DEVICE, beside)
    contention = Contention(policy=policy, busy=busy, waiting=told.append, poll_secs=0.001)
    if policy is Policy.EXCLUSIVE:
        with pytest.raises(Interrupted, match="put back, since 1 other process uses fake"):
            _sampled(tmp_path, runner, 1, contention=contention)
        return
    (found,) = _sampled(tmp_path, runner, 1, contention=contention)
    assert isinstance(found, Measurement)
    assert found.after.others == (1 if policy is Policy.SHARE else 0)
    assert told == ([] if policy is Policy.SHARE else ["1 other process uses fake"])
    assert len(there) == (3 if policy is Policy.SHARE else 0)
    assert runner.freshened == (0 if policy is Policy.SHARE else 1)  # nothing of ours is on the device meanwhile


@pytest.mark.parametrize("quiet", ["shares_cores", "host_sensitive", ""])
def test_nothing_builds_beside_a_measurement_that_needs_the_cores(
    measurer: Measurer, provider: Counting, runner: Throttling, references: References, quiet: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    candidate = program(cost_us=5)
    if quiet == "host_sensitive":
        candidate = dataclasses.replace(candidate, steps=(Alloc(name="a", arena="y"), *candidate.steps))
    monkeypatch.setattr(provider, "shares_cores", quiet == "shares_cores")
    measurer.check(candidate, references)
    provider.gate = threading.Event()
    measurer.build_ahead(program(cost_us=7))
    building_while_measured: list[bool] = []
    real = runner.call

    def call(request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        assert provider.gate is not None
        building_while_measured.append(not provider.gate.is_set())
        return real(request, timeout_secs)

    monkeypatch.setattr(runner, "call", call)
    opened = threading.Timer(0.2, provider.gate.set)
    opened.start()
    # What is written down meanwhile asks for another build, which is waited for as well.
    measurer.meanwhile(lambda: measurer.ahead(lambda: measurer.bundle_now(program(cost_us=9))) and None)
    assert isinstance(measurer.sample(candidate, program(), PLAN, references), Measurement)
    assert building_while_measured == [quiet == ""]
    assert quiet == "" or len(provider.builds) == 4
    opened.join()


def test_answers_of_another_kind_are_the_devices_fault(
    measurer: Measurer, runner: Throttling, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measurer.sample(program(), None, PLAN, references)
    monkeypatch.setattr(runner, "call", lambda request, secs: measured)
    with pytest.raises(DeviceError, match="a check with a Measurement"):
        measurer.check(program(), references)
    monkeypatch.setattr(runner, "call", lambda request, secs: protocol.Checked(worst=0.0))
    with pytest.raises(DeviceError, match="a measurement with a Checked"):
        measurer.sample(program(), None, PLAN, references)


def test_a_disk_that_is_full_is_the_stores_trouble(measurer: Measurer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fusiond.tuning.measuring.write_bundle", full)
    with pytest.raises(StoreError, match="no space left"):
        measurer.bundle(program())


def test_another_compiler_makes_another_bundle(provider: Counting, runner: Throttling, tmp_path: Path) -> None:
    """The same plan, built for another device or by a newer compiler, is never answered by the old binary."""

    class Newer(Counting):
        def build(self, source: Source, arch: str) -> Binary | BuildFailed:
            built = super().build(source, arch)
            assert isinstance(built, Binary)
            path = built.path.with_name(f"newer-{built.path.name}")
            path.write_text(source.text)
            return Binary(source=built.source, path=path)

    folders = []
    for each in (provider, Newer()):
        measurer = Measurer(each, runner, tmp_path / "bundles", tmp_path / "work", jobs=1)
        folders.append(measurer.bundle(program()))
        measurer.close()
    assert folders[0] != folders[1]
