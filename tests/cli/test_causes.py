"""`explain --count`: whose issue slots are how full, what the rest waits for, and which programs are looked at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusiond.cli import causes
from fusiond.devices.counting.model import H100
from fusiond.devices.cuda import counters
from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import COUNTED, Config, DeviceInfo
from fusiond.model.outcomes import Outcome, Trial
from fusiond.store.database import Store

GPU = DeviceInfo(name="cuda:0", model="NVIDIA H100 80GB HBM3", arch="sm_90", memory_bytes=1, limits=limits("sm_90"))


def row(program: str, kernel: str, slots: float, binding: str, **more: Any) -> dict[str, Any]:
    """A launch of 10 us, of which so much is what its instructions take."""
    cycles = 10 * H100.clock_mhz
    issued = round(slots * cycles * H100.issue_warps * H100.multiprocessors)
    counts = {"fp32": issued // 4, "integer": issued - issued // 4}
    return {
        "program": program, "launch": "a", "kernel": kernel, "failed": None, "warp_instructions": counts,
        "bound_us": 10.0, "binding": binding, "model": "h100", **more,
    }  # fmt: skip


def test_a_sentence_says_what_is_waited_for() -> None:
    rows = [
        row("native", "ops::hist", 1.0, "issue_integer"), row("native", "max_pool<float>", 0.23, "dram"),
        row("trial 3", "fused", 0.62, "shared"), row("trial 4", "fused", 0.5, "dram", failed="it is not"),
    ]  # fmt: skip
    assert list(causes.sentences(rows)) == [
        "native: hist can fill 100 % of its issue slots, at least 10 us: they are what it needs most",
        "native: max_pool<float> can fill 23 % of its issue slots, at least 10 us: it waits for DRAM",
        "trial 3: fused can fill 62 % of its issue slots, at least 10 us: it waits for shared memory",
    ]


def test_the_one_that_waits_and_those_that_would_fill_its_slots_are_named() -> None:
    """Slots of 10 us each: max_pool issues for 2.3 us of its own, hist for 4."""
    rows = [row("native", "ops::hist", 0.4, "issue_integer"), row("native", "max_pool<float>", 0.23, "dram")]
    said = ["max_pool<float> waits for DRAM in 77 % of its issue slots; hist beside it would fill 40 %"]
    assert list(causes.because(rows)) == said
    assert list(causes.because(rows[:1])) == []
    assert list(causes.because([rows[0], row("native", "k", 0.23, "dram", failed="it is not")])) == []


def test_what_was_counted_is_kept_and_not_counted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def count(programs: Any, *, model: str) -> list[dict[str, Any]]:
        asked.append(list(programs))
        return [row(name, f"kernel_of_{each.key}", 0.5, "dram") for name, each in programs.items() for _ in range(2)]

    monkeypatch.setattr(causes.child_process, "counted", count)
    first, second = SimpleNamespace(key="first"), SimpleNamespace(key="second")
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        one: Any = {"native": first}
        both: Any = {"trial 1": second, "native": first}
        before = causes.counted(store, one, GPU)
        rows = causes.counted(store, both, GPU)
        assert [(each["program"], each["kernel"]) for each in rows] == [
            *[("trial 1", "kernel_of_second")] * 2, *[("native", "kernel_of_first")] * 2,
        ]  # fmt: skip
        assert rows[2:] == before
        assert causes.counted(store, both, GPU) == rows
        assert asked == [["native"], ["trial 1"]]
        assert store.profiles(["first"], "a100", COUNTED) == {}  # another GPU's are none of these
        trials = [trial(0, 9.0, "first", "baseline:sequential"), trial(1, 5.0, "second"), trial(2, 6.0, "third")]
        kept = causes.profiles(store, trials, GPU)
    assert [(each["role"], each["sequence"]) for each in kept] == [("baseline:sequential", 0), ("candidate", 1)]
    again, read = causes.kept(kept, trials)
    assert [(each["program"], each["kernel"]) for each in again][::2] == [
        ("native", "kernel_of_first"), ("trial 1", "kernel_of_second"),
    ]  # fmt: skip
    assert read == []


def trial(sequence: int, time_us: float | None, key: str | None, role: str = "candidate") -> Trial:
    outcome = Outcome.REFUSED if time_us is None else Outcome.MEASURED
    return Trial(
        sequence=sequence, config=Config.of({"x": sequence}), role=role, origin="sampler", outcome=outcome,
        time_us=time_us, program_key=key,
    )  # fmt: skip


def test_a_gpu_s_counters_are_told_or_the_reason_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: dict[Any, Any] = {
        "one": {"issue_slot_pct": 61.4, "memory_stall_pct": 35.0, "occupancy_pct": None, "cycles": 9.0, "reason": None},
        "two": counters.nothing("there is no ncu"),
    }
    monkeypatch.setattr(counters, "of_program", lambda provider, device, program: said[program.key])
    one, two = SimpleNamespace(key="one"), SimpleNamespace(key="two")
    programs: Any = {"native": one, "trial 1": one}
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        lines = [
            f"{name}, measured: 61 % of the issue slots used, 35 % of the stalled warps wait for memory"
            for name in ("native", "trial 1")
        ]
        assert list(causes.hardware(store, GPU, programs)) == lines
        lacking: Any = {"native": two, "trial 1": one}
        assert list(causes.hardware(store, GPU, lacking)) == ["hardware counters: none (there is no ncu)"]
        said.clear()  # nobody is asked twice
        assert list(causes.hardware(store, GPU, programs)) == lines
