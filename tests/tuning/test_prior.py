"""Bounds that were counted, on a GPU of that kind: what is tried first, what is not measured, and what is said of it.

The fake device stands in for both: `counted` ones say the toy's cost as a bound, boards take the same time or less.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import main
from fusiond.devices.base import Executor
from fusiond.devices.counting.model import H100
from fusiond.model.errors import Interrupted
from fusiond.model.events import Event, Events, PhaseStarted
from fusiond.model.nouns import Config, DeviceInfo
from fusiond.model.outcomes import Outcome, Record, Trial
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.tuning import counts, prior, search_phase, tuner
from fusiond.tuning.search.study import Study
from tests.fakes import FakeExecutor, FakeLoaded, FakePlugin, FakeProvider, InProcess, ToyStrategy

BOARD = "NVIDIA H100 80GB HBM3"
SIDE = 12  #: The toy's costs go from 10 to 86 us: far beyond what a whole L2 makes of a bound
JOB = f"strategy: toy\nside: {SIDE}\nunfused: 300\n"

pytestmark = pytest.mark.slow


class _Faster(FakeExecutor):
    def __init__(self, share: Callable[[float], float]) -> None:
        super().__init__()
        self._share = share

    def load(self, program: Program, binaries: Mapping[str, Path]) -> FakeLoaded:
        loaded = super().load(program, binaries)
        for each in loaded._directives:
            each["cost_us"] = str(self._share(float(each["cost_us"])))
        return loaded


class Device(FakeProvider):
    """The fake device under another name; `share` makes another time of the toy's."""

    def __init__(
        self, name: str, model: str, arch: str = "sm_90", share: Callable[[float], float] = lambda cost: cost
    ) -> None:
        self.kind, self._share = name.partition(":")[0], share
        self._fields = {
            "name": name, "model": model, "arch": arch, "evidence": "counted" if self.kind == "counted" else "measured",
        }  # fmt: skip

    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(dataclasses.replace(each, **self._fields) for each in super().devices())  # type: ignore[arg-type]

    def executor(self, name: str) -> Executor:
        return _Faster(self._share)


COUNTED = Device("counted:h100", f"{BOARD} (counted)")
HERE = Device("cuda:0", BOARD)


@dataclasses.dataclass(frozen=True)
class Ran:
    row: JobRow
    trials: list[Trial]
    record: Record
    said: list[Event]
    store: Store

    def of(self, outcome: Outcome) -> list[Trial]:
        return [each for each in self.trials if each.outcome is outcome]

    @property
    def phases(self) -> dict[str, str]:
        return {each.phase: each.detail for each in self.said if isinstance(each, PhaseStarted)}


@pytest.fixture(autouse=True)
def no_counts_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both sides would pay is of no interest here, and costs a process each."""
    monkeypatch.setattr(counts, "of_answer", lambda *_: ())


def tuned(
    store: Store, device: Device, trials: int, *, more: str = "", text: str = JOB, killed_after: int | None = None
) -> Ran:
    here = Registry()
    here.add(FakePlugin(), "fakes")
    here.providers[device.kind] = device
    (info,) = device.devices()
    (job,) = jobs.read(
        "toy.yaml", f"{text}device: {info.name}\nmeasure: {{cache: cold}}\nsearch: {{trials: {trials}{more}}}\n"
    )
    row = tuner.submit(store, here, job, resume=True)
    store.claim("test", job=row.id)
    said: list[Event] = []

    def stop() -> bool:
        return killed_after is not None and len(store.trials(row.id)) >= killed_after

    tuner.Tuner(store, here, Events(said.append), runner=InProcess).run(row.id, stop)
    found = store.incumbents(row.workload_key, info.key, "cold")
    return Ran(row, store.trials(row.id), found[0] if found else None, said, store)  # type: ignore[arg-type]


def counted(store: Store, trials: int = 60) -> dict[Config, float]:
    """Bounds, as a job on the counted device finds them."""
    return {each.config: each.time_us or 0.0 for each in tuned(store, COUNTED, trials).of(Outcome.MEASURED)}


# --- what is tried first ---


def test_the_lowest_bounds_are_seeds_and_the_start_is_drawn_from_the_others_by_rank(store: Store) -> None:
    bounds = counted(store)
    ranked = sorted(bounds, key=lambda each: bounds[each])
    found = tuned(store, HERE, 20)
    origins = [each.origin for each in found.trials]
    assert origins[:4] == ["seed:plain", "seed:counted:h100", "seed:counted:h100:2", "seed:counted:h100:3"]
    levels = [
        round(10 + (each.config.integer("x") - 3) ** 2 + (each.config.integer("y") - 5) ** 2 / 4, 2)
        for each in found.trials
    ]
    assert levels[1:4] == sorted(levels[1:4])
    assert origins[4:10] == ["prior"] * 6
    assert set(origins[10:]) <= {"sampler"}
    drawn = [ranked.index(each.config) for each in found.trials[4:10]]
    assert len(set(drawn)) == 6
    assert sum(drawn) / 6 < len(ranked) / 3  # by chance alone: half
    assert found.phases["search"] == f"20 configs; bounds of {len(bounds)} configs are known"  # and no donors


# --- what other devices and sizes know ---


@pytest.mark.parametrize("more", [pytest.param("", marks=pytest.mark.campaign), "sizes: {n: 128}\n"])
def test_the_best_of_another_device_or_size_comes_first_and_an_interruption_changes_nothing(
    store: Store, tmp_path: Path, more: str
) -> None:
    first = tuned(store, HERE if more else Device("cuda:0", "NVIDIA A100-SXM4-80GB", "sm_80"), 40)
    costs = {each.config: each.time_us or 0.0 for each in first.of(Outcome.MEASURED)}
    found = tuned(store, HERE, 12, text=JOB + more)
    asked = [each.config for each in found.trials if each.origin == "sampler"]
    assert asked[0] == min((each for each in costs if each != found.trials[0].config), key=lambda each: costs[each])
    assert found.phases["search"] == "12 configs; 40 trials of other devices, sizes or workloads"
    assert all(config == Config.of({"x": 3, "y": 5}) for config in asked[:1])
    with Store.open(tmp_path / "again.sqlite") as again:
        tuned(again, HERE if more else Device("cuda:0", "NVIDIA A100-SXM4-80GB", "sm_80"), 40)
        with contextlib.suppress(Interrupted):
            tuned(again, HERE, 12, text=JOB + more, killed_after=9)
        resumed = tuned(again, HERE, 12, text=JOB + more)
        assert [each.config for each in resumed.trials] == [each.config for each in found.trials]


def test_facts_of_counted_programs_are_columns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are known and not the same for all; what an older profile lacks is left out."""
    trials = tuned(store, COUNTED, 60).of(Outcome.MEASURED)
    keys = sorted({each.program_key or "" for each in trials})
    for k, key in enumerate(keys):
        rows = [
            {"registers": registers, "occupancy": occupancy, "spill_bytes": 8 * k, "ptx_instructions": 100}
            for registers, occupancy in ((20 + k % 7, 1.0), (18, 0.5))
        ]
        if k == 5:
            del rows[0]["spill_bytes"]
        store.save_profile(key, H100.name, "counted", rows)
    given: dict[str, Any] = {}

    def study(*args: Any, **more: Any) -> Study:
        given.update(more)
        return Study(*args, **more)

    monkeypatch.setattr(search_phase, "Study", study)
    found = tuned(store, HERE, 20)
    registers, spills = (dict(each) for each in given["columns"])  # occupancy and instructions say nothing
    number = {each.config: keys.index(each.program_key or "") for each in trials}
    assert registers == {config: 20 + k % 7 for config, k in number.items()}
    assert spills == pytest.approx({config: math.log1p(16 * k) for config, k in number.items() if k != 5})
    assert {each.origin for each in found.trials} >= {"sampler"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("device", "has_prior", "prunes"),
    [
        (HERE, True, True),
        (Device("cuda:0", "NVIDIA H100 NVL"), True, False),  # more bandwidth than the table's: its bounds are others
        pytest.param(Device("cuda:0", "NVIDIA H200"), True, False, marks=pytest.mark.campaign),
        (Device("cuda:0", "NVIDIA A100-SXM4-80GB", "sm_80"), False, False),
        pytest.param(Device("counted:h200", "NVIDIA H200 (counted)"), False, False, marks=pytest.mark.campaign),
    ],
)
def test_bounds_give_an_order_on_the_architecture_and_rule_out_on_the_very_board(
    store: Store, device: Device, has_prior: bool, prunes: bool
) -> None:
    counted(store, SIDE * SIDE)
    found = tuned(store, device, SIDE * SIDE)
    assert any(each.origin.startswith("seed:counted") for each in found.trials) == has_prior
    assert bool(found.of(Outcome.PRUNED)) == prunes


# --- what is not measured ---


def test_what_cannot_win_is_not_measured_but_one_in_ten(store: Store) -> None:
    bounds = counted(store, SIDE * SIDE)
    found = tuned(store, HERE, SIDE * SIDE)
    slack = prior.slack_us(H100, cold=True)
    fastest, hopeless, pruned = 300.0 * 0.95, 0, 0
    for each in found.trials:
        could_win = bounds[each.config] - slack <= fastest * 1.01  # samples scatter
        surely_not = bounds[each.config] - slack > fastest * 1.01
        if each.outcome is Outcome.PRUNED:
            pruned += 1
            assert surely_not or bounds[each.config] - slack > fastest * 0.99
            assert each.measurement is each.time_us is each.ratio is None
            assert "us, as counted for h100, and the fastest so far" in each.reason
        hopeless += not could_win
        fastest = min(fastest, each.time_us or fastest)
    assert pruned > 40
    assert 0.02 < 1 - pruned / hopeless < 0.2
    assert found.record.config == Config.of({"x": 3, "y": 5})
    assert {name: found.record.figures[name] for name in prior.FIGURES} == {
        "bounds": SIDE * SIDE, "pruned": pruned, "bounds_broken": 0,
    }  # fmt: skip
    assert found.phases["pruned"] == f"{pruned} candidates not measured, for a bound that was counted"


def test_a_config_that_is_another_program_here_is_measured(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is that of the program which was counted, and of no other one."""
    counted(store, SIDE * SIDE)

    def otherwise(self: ToyStrategy, analysis: object, cost_us: float, fault: str) -> Program:
        return program(self, analysis, cost_us + 0.5, fault)  # type: ignore[arg-type]

    program = ToyStrategy._program
    monkeypatch.setattr(ToyStrategy, "_program", otherwise)
    assert not tuned(store, HERE, SIDE * SIDE).of(Outcome.PRUNED)


# --- a bound that is wrong ---


def test_a_time_below_its_bound_is_said_loudly_and_ends_the_pruning(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The third of the best takes a tenth of what it was to take at least; the seeds come first, so nothing is pruned
    but what was before it."""
    bounds = counted(store, SIDE * SIDE)
    third = sorted(bounds.values())[40]
    board = Device("cuda:0", BOARD, share=lambda cost: cost / 10 if cost > third else cost)
    found = tuned(store, board, SIDE * SIDE)
    (wrong,) = [each for each in store.rejections(found.row.id) if each.rule == prior.BROKEN]
    at = next(
        each.sequence
        for each in found.trials
        if each.time_us is not None and each.time_us < bounds[each.config] - prior.slack_us(H100, cold=True)
    )
    assert wrong.detail.startswith(f"trial {at} takes ")
    assert wrong.detail.endswith("as counted for h100: the bound is wrong")
    assert not [each for each in found.of(Outcome.PRUNED) if each.sequence > at]
    assert wrong.detail in caplog.text
    assert found.phases["bounds"] == f"{wrong.detail}; this job leaves nothing out for its bounds any more"
    assert found.record.figures["bounds_broken"] == 1
    assert found.record.figures["pruned"] == len(found.of(Outcome.PRUNED))


# --- an interruption ---


@pytest.mark.parametrize("killed_after", [7, *(pytest.param(each, marks=pytest.mark.campaign) for each in (1, 60))])
def test_an_interrupted_job_goes_on_as_if_it_had_not_been(store: Store, tmp_path: Path, killed_after: int) -> None:
    """Also where something more is counted meanwhile."""
    counted(store, 80)
    with Store.open(tmp_path / "other.sqlite") as other:
        counted(other, 80)
        expected = tuned(other, HERE, 100)
    first = tuned(store, HERE, 100, killed_after=killed_after)
    assert killed_after <= len(first.trials) < 100
    tuned(store, COUNTED, 90, more=", seed: 3")
    found = tuned(store, HERE, 100)
    assert found.row.id == first.row.id
    assert [(each.config, each.origin) for each in found.trials] == [
        (each.config, each.origin) for each in expected.trials
    ]
    assert found.record.figures["bounds"] == expected.record.figures["bounds"]


def test_explain_says_what_was_pruned_and_which_bound_was_wrong(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(store, SIDE * SIDE)
    board = Device("cuda:0", BOARD, share=lambda cost: cost / 10 if cost > 40 else cost)
    found = tuned(store, board, SIDE * SIDE)
    store.close()
    pruned = len(found.of(Outcome.PRUNED))
    assert main(["explain", found.row.id, "--db", str(tmp_path / "store.sqlite"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pruned"] == pruned > 0
    assert [each["outcome"] for each in document["trials"]].count("pruned") == pruned
    (broken,) = document["bounds_broken"]
    assert document["answer"]["figures"]["pruned"] == pruned
    assert main(["explain", found.row.id, "--db", str(tmp_path / "store.sqlite")]) == 0
    said = capsys.readouterr().out
    assert f", {pruned} pruned" in said
    assert f"A BOUND WAS WRONG: {broken}; nothing was left out for its bound from there on" in said
    assert "what was rejected before anything ran" not in said
