from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from fusiond.model.system import memory


def test_what_this_machine_says() -> None:
    found = psutil.virtual_memory()
    assert memory._number(memory._AMOUNTS, r"^MemTotal: +(\d+) kB$") == found.total >> 10
    kills = memory.out_of_memory_kills()
    assert kills is None or kills >= 0


@pytest.mark.parametrize(("available_kb", "free"), [(500, True), (499, False), (None, False)])
def test_half_of_it_is_mostly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_kb: int | None, free: bool
) -> None:
    amounts = tmp_path / "meminfo"
    amounts.write_text(
        "MemTotal:  1000 kB\nMemFree: 900 kB\n" + f"MemAvailable: {available_kb} kB\n" * bool(available_kb)
    )
    monkeypatch.setattr(memory, "_AMOUNTS", amounts)
    assert memory.mostly_free() is free


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KILLS", tmp_path / "vmstat")
    monkeypatch.setattr(memory, "_AMOUNTS", tmp_path / "meminfo")
    assert memory.out_of_memory_kills() is None
    assert not memory.mostly_free()
    memory._KILLS.write_text("oom_kill_elsewhere 3\n")
    assert memory.out_of_memory_kills() is None
    memory._KILLS.write_text("pgfault 1\noom_kill 17\n")
    assert memory.out_of_memory_kills() == 17
