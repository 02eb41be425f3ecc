"""What is counted for a GPU that is not here: its verdicts, who is given them, and what they are good for on a GPU."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.counting import cached
from fusiond.devices.cuda import counters
from fusiond.model.errors import DeviceError
from fusiond.model.nouns import COUNTED, MEASURED, Config, DeviceInfo
from fusiond.model.outcomes import Record, Verdict
from fusiond.requests import jobs
from fusiond.requests.planning import choose_device, devices_for
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.tuning import counts
from tests.conftest import run_job
from tests.fakes import FakePlugin, FakeProvider, InProcess

BOUNDS = ("counted:h100", "counted")

pytestmark = pytest.mark.slow


class AsIf(FakeProvider):
    """The fake device as if its times were of this evidence, on hardware of this architecture."""

    def __init__(self, name: str, evidence: str, arch: str = "sm_90") -> None:
        self.kind = name.partition(":")[0]
        self._fields = {"name": name, "evidence": evidence, "arch": arch, "model": f"{name} of {arch}"}

    def devices(self) -> tuple[DeviceInfo, ...]:
        return tuple(dataclasses.replace(each, **self._fields) for each in super().devices())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What both sides would pay is counted in processes of their own, and tested elsewhere."""
    monkeypatch.setattr(counts, "of_answer", lambda context, native, fused: ())


def registry(*providers: FakeProvider) -> Registry:
    made = Registry()
    made.add(FakePlugin(), "fakes")
    made.providers.clear()
    made.providers.update({each.kind: each for each in providers})
    return made


def tuned(store: Store, here: Registry, device: str, text: str = "strategy: toy\n") -> Record:
    (job,) = jobs.read("toy.yaml", f"{text}device: {device}\n")
    row, _ = run_job(store, here, job, runner=InProcess)
    (_, info) = choose_device(here, device)
    return store.incumbents(row.workload_key, info.key)[0]


@pytest.mark.parametrize(
    ("unfused", "verdict"),
    [pytest.param(20, Verdict.PROMISING, marks=pytest.mark.campaign), (12.2, Verdict.UNPROMISING)],
)
def test_a_bound_below_the_other_by_more_than_the_margin_is_promising(
    store: Store, unfused: float, verdict: Verdict
) -> None:
    """The best fused one takes 10 us, the unfused one 0.95 of `unfused` once it is tuned."""
    found = tuned(store, registry(AsIf(*BOUNDS)), BOUNDS[0], f"strategy: toy\nunfused: {unfused}\n")
    assert (found.verdict, found.evidence) == (verdict, "counted")
    assert (0.95 * unfused / 10 > counts.MARGIN) == (verdict is Verdict.PROMISING)
    measured = tuned(store, registry(AsIf("cuda:0", "measured")), "cuda:0", f"strategy: toy\nunfused: {unfused}\n")
    assert (measured.verdict is Verdict.FUSE) == (0.95 * unfused / 10 > 1.02)


def test_it_has_to_be_named() -> None:
    absent, board = AsIf(*BOUNDS), AsIf("cuda:0", "measured")
    both = registry(absent, board)
    assert choose_device(both, "auto")[1].name == "cuda:0"
    assert devices_for(both, "all") == ("cuda:0",)
    assert choose_device(both, "counted")[1].name == "counted:h100"
    assert choose_device(both, "counted:h100")[1].evidence == "counted"
    with pytest.raises(DeviceError, match="no device for 'auto'"):
        choose_device(registry(absent), "auto")


@pytest.mark.parametrize(("arch", "tried"), [("sm_90", True), pytest.param("sm_80", False, marks=pytest.mark.campaign)])
def test_what_won_by_bounds_is_among_the_first_that_a_gpu_of_that_kind_tries(
    store: Store, arch: str, tried: bool
) -> None:
    tuned(store, registry(AsIf(*BOUNDS)), BOUNDS[0])
    board = AsIf("cuda:0", "measured", arch)
    found = tuned(store, registry(board), "cuda:0", "strategy: toy\nsearch: {trials: 3}\n")
    (row,) = [each for each in store.jobs() if each.device == "cuda:0"]
    origins = {each.origin: each.config for each in store.trials(row.id)}
    best = Config.of({"x": 3, "y": 5})
    assert (origins.get("seed:counted:h100") == best) == tried
    assert (found.config == best) == tried


def test_a_device_is_the_gpu_of_its_name_else_of_its_architecture() -> None:
    def named(model: str, arch: str) -> str | None:
        found = counts.like(model, arch)
        return found and found.name

    assert named("NVIDIA H200", "sm_90") == "h200"
    assert named("NVIDIA GeForce RTX 4090", "sm_89") == "rtx4090"
    assert named("NVIDIA L4", "sm_89") == "l4"
    assert named("NVIDIA H100 80GB HBM3", "sm_90") == named("NVIDIA GH200 96GB", "sm_90") == "h100"
    assert named("Tesla T4", "sm_75") is None
    assert named("AMD EPYC", "cpu") is None


# --- what programs ask of a GPU is kept with them -------------------------------------------------------


Patch = pytest.MonkeyPatch
FEW = "strategy: toy\nsearch: {trials: 2}\n"
READ = {"issue_slot_pct": 61.0, "memory_stall_pct": 30.0, "occupancy_pct": 70.0, "cycles": 9.0}


def row(**more: Any) -> dict[str, Any]:
    return {"program": "native", "launch": "a", "bound_us": 1.0, **more}


def keys(store: Store, record: Record) -> set[str]:
    (job,) = store.jobs()
    found = {each.program_key for each in store.trials(job.id, None)} - {None}
    assert {record.program_key, record.baseline_program_key} < found
    return {each for each in found if each is not None}


def test_a_search_by_counts_keeps_those_of_every_candidate(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cached, "known", lambda program, gpu: [row(kernel=program.key, model=gpu.name)])
    monkeypatch.setattr(counts, "of_answer", lambda *programs: ())
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record = tuned(store, registry(AsIf(*BOUNDS)), BOUNDS[0], FEW)
        tried = keys(store, record)
        found = store.profiles(tried, "h100", COUNTED)
        measured = {
            each.program_key
            for job in store.jobs()
            for each in store.trials(job.id, None)
            if each.outcome.value == "measured"
        }
        assert found.keys() == measured
        assert all(rows == [row(kernel=key, model="h100")] for key, rows in found.items())
        assert store.profiles(tried, "h100", MEASURED) == {}


def on_a_gpu(store: Store, monkeypatch: Patch, asked: Callable[..., Any]) -> tuple[Record, str]:
    rows = (row(kernel="apart"), row(program="fused", kernel="together"))
    monkeypatch.setattr(counts, "of_answer", lambda *programs: rows)
    monkeypatch.setattr(counters, "missing", lambda: None)
    monkeypatch.setattr(counters, "of_program", asked)
    record = tuned(store, registry(AsIf("cuda:0", "measured")), "cuda:0", FEW)
    return record, record.device_key


def test_a_gpu_keeps_both_sides_of_its_answer_and_what_its_counters_say(tmp_path: Path, monkeypatch: Patch) -> None:
    asked: list[str] = []

    def of_program(provider: Any, device: Any, program: Any) -> dict[str, Any]:
        asked.append(program.key)
        return {**READ, "reason": None}

    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record, device = on_a_gpu(store, monkeypatch, of_program)
        assert record.program_key is not None
        assert record.baseline_program_key is not None
        sides = [record.baseline_program_key, record.program_key]
        counted = store.profiles(keys(store, record), "h100", COUNTED)
        assert {key: rows[0]["kernel"] for key, rows in counted.items()} == dict(
            zip(sides, ("apart", "together"), strict=True)
        )
        assert store.profiles(sides, device, MEASURED) == {key: [{**READ, "reason": None}] for key in sides}
        assert asked == sides


@pytest.mark.parametrize("how", ["no permission", "raises"])
def test_counters_that_cannot_be_read_cost_no_answer(tmp_path: Path, monkeypatch: Patch, how: str) -> None:
    def of_program(provider: Any, device: Any, program: Any) -> dict[str, Any]:
        if how == "raises":
            raise DeviceError("it is gone")
        return counters.nothing("this user may not")

    with Store.open(tmp_path / "fusiond.sqlite") as store:
        record, device = on_a_gpu(store, monkeypatch, of_program)
        assert record.verified
        assert store.profiles(keys(store, record), device, MEASURED) == {}


def test_profiles_go_with_their_programs_and_damage_is_no_value(tmp_path: Path) -> None:
    path = tmp_path / "fusiond.sqlite"
    with Store.open(path) as store:
        store.save_profile("one", "h100", COUNTED, [row()])
        store.save_profile("one", "h100", COUNTED, [row(launch="b")])
        store.save_profile("two", "h100", COUNTED, [row()])
        assert store.profiles(["one"], "h100", COUNTED) == {"one": [row(launch="b")]}
        with pytest.raises(ValueError, match="a profile is counted or measured, not 'emulated'"):
            store.save_profile("one", "h100", "emulated", [])
        with store._transaction() as database:
            database.execute("DROP TRIGGER profiles_changed")
            database.execute("UPDATE profiles SET rows = '[]' WHERE program_key = 'one'")
        assert store.profiles(["one", "two"], "h100", COUNTED) == {"two": [row()]}
