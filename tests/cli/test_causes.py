"""`explain --count`: whose issue slots are how full, what the rest waits for, and which programs are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusiond.cli import causes
from fusiond.counting.model import H100
from fusiond.cuda.limits import limits
from fusiond.devices.cuda import counters
from fusiond.model import Config, DeviceInfo, Outcome, Trial

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


def test_issue_slots_are_those_of_the_bound() -> None:
    """Four schedulers a multiprocessor, an instruction of a warp a clock each."""
    assert causes.slots_pct(row("native", "k", 0.23, "dram")) == pytest.approx(23, abs=0.01)
    assert causes.slots_pct(row("native", "k", 0.23, "dram", bound_us=20.0)) == pytest.approx(11.5, abs=0.01)
    for gone in ({"failed": "why"}, {"warp_instructions": None}, {"bound_us": None}):
        assert causes.slots_pct(row("native", "k", 0.5, "dram", **gone)) is None


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


class Plans:
    """A store of which nothing but plans is asked; one is gone."""

    def program(self, key: str) -> str | None:
        return None if key == "gone" else f"plan of {key}"


def trial(sequence: int, time_us: float | None, key: str | None, role: str = "candidate") -> Trial:
    outcome = Outcome.REFUSED if time_us is None else Outcome.MEASURED
    return Trial(
        sequence=sequence, config=Config.of({"x": sequence}), role=role, origin="sampler", outcome=outcome,
        time_us=time_us, program_key=key,
    )  # fmt: skip


def test_the_best_and_the_fastest_unfused_way_are_chosen_once_each() -> None:
    store: Any = Plans()
    trials = [
        trial(0, 9.0, "s", "baseline:sequential"), trial(0, 7.0, "t", "baseline:streams_ab"), trial(0, 8.0, "k0"),
        trial(1, 5.0, "k1"), trial(2, 6.0, "k1"), trial(3, None, None), trial(4, 4.0, "gone"),
        *(trial(number, 10.0 + number, f"k{number}") for number in range(5, 12)),
    ]  # fmt: skip
    found = causes.chosen(store, trials)
    assert found == {
        "native": "plan of t", "trial 1": "plan of k1", "trial 0": "plan of k0", "trial 5": "plan of k5",
        "trial 6": "plan of k6",
    }  # fmt: skip
    assert causes.chosen(store, [trial(3, None, None)]) == {}


def test_a_gpu_s_counters_are_told_or_the_reason_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[Any, Any] = {
        "one": {"issue_slot_pct": 61.4, "memory_stall_pct": 35.0, "occupancy_pct": None, "cycles": 9.0, "reason": None},
        "two": counters.nothing("there is no ncu"),
    }
    monkeypatch.setattr(counters, "of_program", lambda provider, device, program: said[program])
    programs: Any = {"native": "one", "trial 1": "one"}
    assert list(causes.hardware(GPU, programs)) == [
        f"{name}, measured: 61 % of the issue slots used, 35 % of the stalled warps wait for memory"
        for name in ("native", "trial 1")
    ]
    lacking: Any = {"native": "two", "trial 1": "one"}
    assert list(causes.hardware(GPU, lacking)) == ["hardware counters: none (there is no ncu)"]


def test_explain_counts_only_when_asked(
    fusiond: Callable[..., Any], done_job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is tested in tests/counting; here only that its rows arrive."""
    asked: list[Any] = []

    def counted(programs: Any, device: Any) -> list[dict[str, Any]]:
        asked.append((sorted(programs), device))
        return [row("trial 1", "fused", 0.5, "dram")]

    monkeypatch.setattr(causes, "chosen", lambda store, trials: {"trial 1": None})
    monkeypatch.setattr(causes, "counted", counted)
    assert "counted" not in fusiond("explain", done_job, "--json").json
    assert asked == []
    assert fusiond("explain", done_job, "--json", "--count").json["counted"][0]["binding"] == "dram"
    assert asked[0][0] == ["trial 1"]
