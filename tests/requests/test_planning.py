"""From a job to its plan: devices, configs, bundles; and that a broken plugin is named as one."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.build.exporting.bundle import read_bundle
from fusiond.cli import main
from fusiond.model.errors import PluginError, RequestError
from fusiond.model.nouns import Analysis, Config, DeviceInfo, Job, Rejection
from fusiond.model.outcomes import BuildFailed, Measurement, Purpose, Record, Verdict
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.launch_facts import kernel_facts
from fusiond.requests.planning import Plan, choose_device, chosen_config, emit_bundles, plan, prepare, reference
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import NO_ANSWERS, Answers, Probe, description_of
from fusiond.strategy.hookspecs import hookimpl
from fusiond.strategy.space import Parameter, Space
from tests.fakes import FakeProvider, ToyStrategy


class Rich(ToyStrategy):
    """A toy with a condition, a restriction, a probe, a part, and seeds of every kind."""

    name = "rich"

    def describe(self, analysis: Analysis) -> str:
        side = analysis.report["side"]
        return f"  a valley,\n  {side} wide [bold]\n"

    def space(self, analysis: Analysis, answers: Answers) -> Space:
        plain = super().space(analysis, answers)
        tile = Parameter(name="tile", values=(8, 16), when="x == 1")
        return Space(parameters=(*plain.parameters, tile), restrictions=("x + y <= 9",))

    def seeds(self, analysis: Analysis, space: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        return (
            ("good", Config.of({"x": 1, "y": 2, "tile": 8})),
            ("outside", Config.of({"x": 99, "y": 2})),
            ("refused", Config.of({"x": 0, "y": 3})),
        )

    def probes(self, analysis: Analysis) -> tuple[Probe, ...]:
        return tuple(Probe(key=key, program=self._program(analysis, 5.0, "")) for key in ("p1", "p2"))

    def parts(self, analysis: Analysis) -> tuple[Job, ...]:
        return (Job(strategy="toy", request={}, sizes={}),)


class Sloppy(ToyStrategy):
    name = "sloppy"

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
        return dataclasses.replace(self._program(analysis, 5.0, ""), issue="eager")


@pytest.fixture
def registry(fakes: Registry) -> Registry:
    class Plugin:
        @hookimpl
        def register_strategies(self, register: Callable[[Any], None]) -> None:
            register(Rich())
            register(Sloppy())

    fakes.add(Plugin(), "more")
    return fakes


def job(text: str = "strategy: rich\nfaults: {'0,3': rejected}") -> Job:
    (found,) = jobs.read("j.yaml", text)
    return found


@pytest.fixture
def found(registry: Registry) -> Plan:
    return plan(registry, job(), known={"p1": 3.0})


class Told(Rich):
    def describe(self, analysis: Analysis, answers: Answers = NO_ANSWERS) -> str:
        return f"{len(answers)} answered"


def test_what_a_device_has_answered_is_told_to_those_who_take_it(found: Plan) -> None:
    """A strategy of an earlier release takes the analysis only."""
    assert description_of(Told(), found.analysis, {"p1": 3.0}) == "1 answered"
    assert description_of(Rich(), found.analysis, {"p1": 3.0}) == found.description


@pytest.mark.slow
def test_a_plan_knows_what_the_device_has_answered_for_parts_and_probes(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: registry)
    (tmp_path / "j.yaml").write_text("strategy: rich\ndevice: fake\n")
    words = ["plan", str(tmp_path / "j.yaml"), "--db", str(tmp_path / "store.sqlite")]

    def said(*more: str) -> tuple[int, str]:
        assert main([*words, *more, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        return document["probes_missing"], "; ".join(document["notes"])

    assert said()[0] == 2  # there is no such file, and none is made
    assert not (tmp_path / "store.sqlite").exists()
    (device,) = FakeProvider().devices()
    part = prepare(registry, Job(strategy="toy", request={}, sizes={}))
    with Store.open(tmp_path / "store.sqlite") as store:
        store.save_device(device)
        assert "parts have a record" not in said()[1]
        row = store.submit(part.job, part.workload)
        record = Record(
            strategy="toy", workload_name=part.workload.name, workload_key=part.workload.key,
            sizes=part.workload.sizes, device_name="fake", device_key=device.key, env_key=device.env_key,
            verdict=Verdict.KEEP, config=None, program_key=None, time_us=None, baseline="plain", baseline_us=100.0,
            speedup=None, ci95=None, verified=True, evidence=device.evidence, trials=1,
            found_at="2026-01-31T12:00:00+00:00",
        )  # fmt: skip
        store.save_record(record, job=row.id, source_hashes={})
        store.add_probe("p1", device.key, Rich.version, Measurement(span_us=(3.0,), clock="d", purpose=Purpose.PROBE))
    missing, notes = said()
    assert missing == 1
    assert "1 of 1 parts have a record on fake" in notes
    assert said("--arch", "sm_90")[0] == 2  # another device has answered nothing
    (tmp_path / "store.sqlite").write_text("no store")  # planning needs none
    assert said()[0] == 2


def test_the_description_is_printed_as_it_is_and_never_with_json(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: registry)
    (tmp_path / "j.yaml").write_text("strategy: rich\ndevice: fake\n")
    assert main(["plan", str(tmp_path / "j.yaml")]) == 0
    assert "\n  a valley,\n  8 wide [bold]\n\n" in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "j.yaml"), "--json"]) == 0
    assert "valley" not in capsys.readouterr().out
    (tmp_path / "j.yaml").write_text("strategy: toy\ndevice: fake\n")  # most have nothing more to say
    assert main(["plan", str(tmp_path / "j.yaml")]) == 0


def test_a_plan_for_a_gpu_that_is_not_there(registry: Registry) -> None:
    found = plan(registry, job(), arch="sm_90")
    assert (found.device, found.target.arch) == ("sm_90", "sm_90")
    assert found.target.limits.shared_bytes_per_sm == 233472
    with pytest.raises(RequestError):
        plan(registry, job(), arch="sm_1")


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({}, {"x": 1, "y": 2, "tile": 8}),
        ({"tile": "16"}, {"x": 1, "y": 2, "tile": 16}),
        ({"x": "2"}, {"x": 2, "y": 2}),  # what no longer applies falls away
        ({"x": "0", "y": "7"}, {"x": 0, "y": 7}),
    ],
)
def test_set_changes_the_first_seed(found: Plan, settings: dict[str, str], config: dict[str, int]) -> None:
    assert dict(chosen_config(found, settings)) == dict(sorted(config.items()))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"z": "1"}, "unknown parameter 'z'"),
        ({"x": "99"}, "x cannot be '99'; it can be 0, 1"),
        ({"x": "7", "y": "7"}, r"x \+ y <= 9 does not hold"),
    ],
)
def test_set_refuses_what_is_no_point(found: Plan, settings: dict[str, str], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        chosen_config(found, settings)


def test_what_does_not_build_is_a_row_with_the_compilers_first_line(registry: Registry) -> None:
    found = plan(registry, job(), arch="sm_90")
    target = dataclasses.replace(found.target, facts=lambda source: BuildFailed(reason='x.cu(3): error: expected ";"'))
    rows = kernel_facts(target, {"seed:first": reference(found.prepared.strategy, found.analysis)})
    assert rows
    for row in rows:
        document = row.as_json()
        assert document["problem"] == 'does not build: x.cu(3): error: expected ";"'
        assert document["candidate"] == "seed:first"
        assert document["threads"] > 0
        assert {document[name] for name in ("registers", "spill_bytes", "occupancy", "limited_by")} == {None}


def test_without_a_seed_set_must_say_it_all(found: Plan) -> None:
    bare = dataclasses.replace(found, seeds=())
    with pytest.raises(RequestError, match="no seed"):
        chosen_config(bare, {})
    assert dict(chosen_config(bare, {"y": "4"})) == {"x": 0, "y": 4}  # the first value of each, the plain one


def test_bundles_of_native_and_candidate(found: Plan, registry: Registry, tmp_path: Path) -> None:
    native, candidate = emit_bundles(registry, found, {"x": "3", "y": "5"}, tmp_path / "out")
    program, binaries = read_bundle(candidate)
    assert "cost_us 10" in program.sources[0].text
    assert binaries["toy"].read_text() == program.sources[0].text
    assert "cost_us 20" in read_bundle(native)[0].sources[0].text
    with pytest.raises(RequestError, match="exists already"):
        emit_bundles(registry, found, {}, tmp_path / "out")
    with pytest.raises(RequestError, match="is refused"):
        emit_bundles(registry, found, {"x": "0", "y": "3"}, tmp_path / "other")


def test_a_broken_plan_is_the_plugins_fault(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="sloppy emitted a broken plan for 'toy': issue is 'eager'"):
        emit_bundles(registry, plan(registry, job("strategy: sloppy")), {}, tmp_path / "out")


class Many(FakeProvider):
    """Two boards, and a note about a third."""

    kind = "many"

    def __init__(self, evidence: str, *names: str) -> None:
        self._evidence, self._names = evidence, names

    def devices(self) -> tuple[DeviceInfo, ...]:
        (plain,) = super().devices()
        return tuple(dataclasses.replace(plain, name=name, evidence=self._evidence) for name in self._names)

    def missing(self) -> tuple[str, ...]:
        return () if self._names else ("many: no driver; install one",)


def with_many(provider: FakeProvider, *, cpu: bool) -> Registry:
    registry = Registry()

    class Emulated(Many):
        kind = "emulated"

    class Plugin:
        @hookimpl
        def register_devices(self, register: Callable[[Any], None]) -> None:
            if cpu:
                register(Emulated("emulated", "emulated"))
            register(provider)

    registry.add(Plugin(), "devices")
    return registry


def test_a_device_that_measures_comes_before_one_that_emulates() -> None:
    registry = with_many(Many("measured", "many:0", "many:1"), cpu=True)
    assert choose_device(registry, "auto")[1].name == "many:0"
    assert choose_device(registry, "many")[1].name == "many:0"
    assert choose_device(registry, "many:1")[1].name == "many:1"
    assert choose_device(registry, "emulated")[1].name == "emulated"
    assert choose_device(with_many(Many("measured"), cpu=True), "auto")[1].name == "emulated"
