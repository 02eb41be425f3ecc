"""The agreement of rulers: what counts as one, what ncu prints, a ruler that is missing, and what pages show."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement, benches, commands, runs
from fusiond.devices.cpu.provider import CpuProvider

ROOT = Path(__file__).parents[2]
TIMES: dict[str, float | str] = {
    "fusiond warm": 100.0, "events": 109.0, "profiler": 99.0, "ncu": 101.0, "fusiond cold": 140.0, "do_bench": 138.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [
        ({}, True),
        ({"profiler": 94.0}, False),
        ({"do_bench": 150.0}, False),
        ({"do_bench": "not installed: triton"}, True),
        (dict.fromkeys(("do_bench", "ncu", "profiler"), "not there"), False),  # nobody to agree with
        ({"fusiond cold": "too_noisy: the pairs scatter"}, False),
        ({"fusiond warm": 4.0, "profiler": 2.5, "ncu": 3.1}, True),  # an event is no finer
        ({"fusiond warm": 5.2, "profiler": 2.5, "ncu": 3.4}, False),
    ],
)
def test_rulers_agree_within_five_percent_or_two_microseconds(changed: dict[str, Any], agrees: bool) -> None:
    assert agreement.agrees(TIMES | changed) is agrees


def test_what_ncu_prints() -> None:
    lines = [
        "==PROF== Connected to process 1",
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
        '"0","stream","gpu__time_duration.sum","ns","9,504"',
        "stream 4096: ran on cuda:0",
        '"1","stream","gpu__time_duration.sum","ns","3,008"',
        '"2","stream","gpu__time_duration.sum","ns","2,976"',
        '"2","stream","sm__cycles_elapsed.max","","4"',
    ]
    assert agreement.durations("\n".join(lines)) == [3.008, 2.976]
    assert agreement.durations("\n".join(lines[:3])) == [9.504]
    assert agreement.durations("==ERROR== no") == []


@pytest.mark.slow
def test_what_a_broken_process_had_said_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two bundles the second one takes the process with it."""
    (tmp_path / "torch.py").write_text(
        "import os, sys\nif os.path.exists('once'): os._exit(9)\nopen('once', 'w')\nraise ImportError('no', name='it')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.chdir(tmp_path)
    found, tensor = agreement.asked([tmp_path, tmp_path])
    assert found == [dict.fromkeys(agreement.OF_TORCH, each) for each in ("not installed: it", "status 9")]
    assert tensor == "status 9"


@pytest.mark.slow
def test_the_kernel_is_what_it_is_said_to_be(gxx_here: None) -> None:
    """On the cpu device: the program runs, and fusiond's own columns are filled."""
    provider = CpuProvider()
    made = agreement.program(1000)
    bench = benches.Bench(provider=provider, device=provider.devices()[0])
    with bench.measurer() as measurer:
        (times, samples), bundle = agreement.by_fusiond(measurer, provider, 1000)
        assert bundle is not None
    found = agreement.tabulated(1000, times | {"ncu": [3.0, 1.0, 2.0]}, samples)
    assert sum(each.size_bytes for each in made.buffers) == 12_000
    assert isinstance(found["times_us"]["fusiond warm"], float)
    assert (found["times_us"]["ncu"], found["times_us"]["events"]) == (2.0, agreement.NOT_ASKED)
    assert len(found["samples"]["fusiond cold"]["span_us"]) >= 5


@pytest.mark.parametrize(
    ("driver", "agrees", "shown"), [("580", True, True), ("570", True, False), ("580", False, False)]
)
def test_pages_show_what_is_vouched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], driver: str, agrees: bool, shown: bool
) -> None:
    folder = tmp_path / "nvidia-h100"
    run = {"benchmark": "toy", "evidence": "measured", "date": "2026", "driver": "580", "device": {"model": "H100"}}
    other = run | {"benchmark": "agreement", "driver": driver, "agrees": agrees}
    runs.write(folder / "toy-1.json", run)
    assert [each["vouched"] for each in runs.kept("toy", tmp_path)] == [False]
    runs.write(folder / "agreement-1.json", other)
    kept = list(runs.kept("toy", tmp_path))
    assert [each["vouched"] for each in kept] == [shown]
    assert len(runs.newest(kept, "measured")) == int(shown)
    commands.page(tmp_path / "page.md", "text", kept)
    assert ("not shown" in capsys.readouterr().out) is not shown
    assert json.loads((folder / "toy-1.json").read_text()) == run
