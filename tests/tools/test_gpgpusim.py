"""Counts beside GPGPU-Sim's. FUSIOND_GPGPUSIM names a simulator; the figures that one gave are kept with the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusiond.counting.library import CountingLibrary
from tools.gpgpusim import __main__ as command
from tools.gpgpusim import compare, simulator

from ..counting.conftest import counting

__all__ = ["counting"]  # a fixture

KEPT = json.loads(command.KEPT.read_text())["rows"]
EXACT = ("warp_instructions", "read_sectors", "write_sectors", "atomic_sectors", "bank_conflicts", "dram_reads")
KNOWN = {
    ("histogram, one key", "atomic_sectors"): "the simulator sends each lane's addition by itself",
    ("histogram in shared memory, one key", "bank_conflicts"): "it has no conflicts of atomic operations",
    ("32 KiB of rows three times, L2 of 32 KiB", "dram_reads"): "it replaces in each slice by itself",
}
OTHER_RESULTS = {"sum rows": "its shfl with two results does not exchange values"}
CASES = {each.name: each for each in compare.cases()}


def check(counted: dict[str, int], simulated: dict[str, int], name: str) -> None:
    for key in EXACT:
        assert (counted[key] == simulated[key]) == ((name, key) not in KNOWN), (name, key)
    # The simulator leaves out instructions whose predicate does not hold.
    assert simulated["thread_instructions"] <= counted["thread_instructions"] <= 1.1 * simulated["thread_instructions"]


@pytest.mark.parametrize("row", KEPT, ids=lambda row: row["name"])
def test_what_is_kept_is_the_same_but_for_what_is_known(row: dict[str, object]) -> None:
    counted, simulated = row["counted"], row["simulated"]
    assert isinstance(counted, dict)
    assert isinstance(simulated, dict)
    check(counted, simulated, str(row["name"]))
    assert row["same_results"] == (row["name"] not in OTHER_RESULTS)


@pytest.mark.parametrize("name", CASES)
def test_counts_are_still_those_that_were_compared(counting: CountingLibrary, name: str) -> None:
    """Without the simulator."""
    (row,) = (each for each in KEPT if each["name"] == name)
    assert compare.count(CASES[name], counting)[0] == row["counted"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_against_the_simulator(counting: CountingLibrary, tmp_path: Path, name: str) -> None:
    line = simulator.missing()
    if line is not None:
        pytest.skip(line)
    found = compare.compare(CASES[name], counting, simulator.Simulator(tmp_path))
    check(found.counted, found.simulated, name)
    assert found.same_results == (name not in OTHER_RESULTS)


def test_the_page_shows_what_is_kept() -> None:
    page = command.PAGE.read_text()
    assert command.BEGIN in page
    assert command.END in page
    assert command.with_table(page, KEPT) == page


def test_statistics_are_read() -> None:
    text = """
gpu_sim_insn = 4352
\tTotal_core_cache_stats_breakdown[GLOBAL_ACC_R][MISS] = 8
\tTotal_core_cache_stats_breakdown[GLOBAL_ACC_R][SECTOR_MISS] = 24
\tTotal_core_cache_stats_breakdown[GLOBAL_ACC_R][TOTAL_ACCESS] = 40
\tL2_cache_stats_breakdown[GLOBAL_ACC_R][TOTAL_ACCESS] = 288
total dram reads = 33
"""
    found = simulator.statistics(text)
    assert (found["thread_instructions"], found["read_sectors"], found["dram_reads"]) == (4352, 40, 33)
    assert found["atomic_sectors"] == 288 - 32
    assert found["bank_conflicts"] == 0
    found = simulator.statistics(text, l1=False)
    assert (found["read_sectors"], found["write_sectors"], found["atomic_sectors"]) == (288, 0, 0)


@pytest.mark.parametrize("named", [None, "/nowhere"])
def test_a_simulator_that_is_missing_is_said(
    named: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(simulator.VARIABLE, raising=False)
    if named is not None:
        monkeypatch.setenv(simulator.VARIABLE, named)
    assert command.main([]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (named or "tools/gpgpusim/build.sh") in said
