"""The benchmark of the horizontal fusion paper: its pairs are jobs, its page is made of its files, it reads ncu."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hfuse import __main__ as command
from benchmarks.hfuse import measure, page, pairs, paper, static
from benchmarks.hfuse.pairs import PAIRS, Pair
from benchmarks.runs import Run
from fusiond.devices.base import Binary
from fusiond.devices.cuda import counters
from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import Config, DeviceInfo
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Trial
from fusiond.model.program import Launch, Program, Source
from fusiond.requests.planning import prepare, reference, sound, target_for_arch
from fusiond.requests.registry import Registry

EVERY = pytest.mark.parametrize("pair", PAIRS, ids=lambda each: each.name)


def catalogued(registry: Registry, pair: Pair) -> None:
    missing = {pair.first, pair.second} - set(registry.names("kernel"))
    if missing:
        pytest.skip(f"the catalogue has no {' and no '.join(sorted(missing))}")


# --- pairs ----------------------------------------------------------------------------------------------


def test_the_pairs_are_the_papers() -> None:
    assert {each.name for each in PAIRS} == set(paper.FIGURE_9)
    assert {name for each in PAIRS for name in (each.first, each.second)} == set(paper.FIGURE_8)
    assert all(each.varied in (each.first, each.second) for each in PAIRS)
    assert [each.name for each in pairs.chosen(["Maxpool,hist", "hist+maxpool"])] == ["hist+maxpool"]
    with pytest.raises(ValueError, match="unknown pair"):
        pairs.chosen(["hist+hist"])


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("tiny", [False, True])
def test_every_point_of_every_sweep_is_a_job(real: Registry, pair: Pair, tiny: bool) -> None:
    catalogued(real, pair)
    middle = pairs.base(pair, tiny=tiny)
    values = pairs.values(pair, pairs.FACTORS, middle=middle)
    swept = pairs.read(pair, values, tiny=tiny, device="cpu")
    assert [job.sizes[pair.size] for job in swept] == list(values)
    assert middle in values
    for job in (swept[0], swept[-1]):
        workload = prepare(real, job).workload
        assert workload.members == (pair.first, pair.second)
        assert workload.sizes[pair.size] == job.sizes[pair.size]


def test_a_sweep_is_moved_to_where_both_take_equally_long() -> None:
    (pair,) = pairs.chosen(["hist+maxpool"])
    assert pairs.balanced(pair, {"hist": 30.0, "maxpool": 10.0}, 40) == 120
    assert pairs.balanced(pair, {"hist": 1e6, "maxpool": 1.0}, 40) == 40 * pairs.MOST_SHIFT
    assert pairs.values(pair, (0.25, 1, 4), middle=600) == (150, 600, 800)


# --- counters -------------------------------------------------------------------------------------------

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def ncu_output(kernel: str, launches: list[Mapping[str, str]]) -> str:
    rows = [
        f'"{number}","4711","python3.11","127.0.0.1","{kernel}","1","7","(1024, 1, 1)","(10000, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{metric}","%","{value}"'
        for number, launch in enumerate(launches)
        for metric, value in launch.items()
    ]
    return "\n".join([
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
        f'==PROF== Profiling "{kernel}" - 0: 0%....50%....100% - 3 passes',
        "hist and maxpool, fused (horizontal): ran on cuda:0; a.counts uint32[20]",
        "==PROF== Disconnected from process 4711",
        HEADER,
        *rows,
    ])  # fmt: skip


VALUES = {
    counters.ISSUE: "36.25", counters.OCCUPANCY: "59.04", counters.CYCLES: "1,234,567", counters.WARPS: "11.0",
    counters.SELECTED: "1.0", counters.STALLED.format("long_scoreboard"): "4.0",
    counters.STALLED.format("lg_throttle"): "0.35", counters.STALLED.format("drain"): "n/a",
}  # fmt: skip


@pytest.mark.parametrize("shown", ["max_pool_2d", "void max_pool_2d<float>(float *, int)", "max_pool_2d<float>"])
def test_what_ncu_prints_is_read(shown: str) -> None:
    output = ncu_output(shown, [dict(VALUES, **{counters.ISSUE: "1.0"}), VALUES])
    assert counters.read(output, "", "max_pool_2d<float>", 0) == {
        "issue_slot_pct": 36.25, "memory_stall_pct": 43.5, "occupancy_pct": 59.04, "cycles": 1234567.0, "reason": None,
    }  # fmt: skip


def test_the_command_names_the_bundle_runner(tmp_path: Path) -> None:
    a, b = (counters.Launch(name=each, source="k", entry=each, grid=(1, 1, 1), block=(1, 1, 1), arguments=())
            for each in ("fused::pool<float, 5>", "hist"))  # fmt: skip
    words = counters.command("ncu", tmp_path, "cuda:1", (a, b, a))
    assert words[words.index("--kernel-name") + 1] == "regex:^(hist|pool)$"
    assert words[0] == "ncu"
    assert words[words.index("-m") : words.index("-m") + 3] == ["-m", "fusiond.devices.cuda.run", str(tmp_path)]
    assert words[words.index("--metrics") + 1].split(",") == list(counters.METRICS)


class Builds:
    """A provider of which nothing but the binary is asked."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def build(self, source: Source, arch: str) -> Binary:
        return Binary(source=source.name, path=self._binary)


@pytest.mark.slow
def test_a_program_is_run_under_ncu(real: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,) = pairs.chosen(["hist+maxpool"])
    about = static.known(real, pair, target_for_arch("sm_90"))
    program = reference(about.prepared.strategy, about.analysis)
    (tmp_path / "x.cubin").write_bytes(b"cubin")
    provider: Any = Builds(tmp_path / "x.cubin")
    gpu = DeviceInfo(name="cuda:0", model="GPU", arch="sm_90", memory_bytes=1, limits=limits("sm_90"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no ncu on PATH" in counters.of_program(provider, gpu, program)["reason"]
    assert "emulated" in counters.of_program(provider, dataclasses.replace(gpu, evidence="emulated"), program)["reason"]
    (tmp_path / "said").write_text(ncu_output("max_pool_2d", [VALUES]) + "\n")
    script = f'#!/bin/sh\nfor each; do test -f "$each/plan.json" && exec /bin/cat {tmp_path}/said; done; exit 1\n'
    (tmp_path / "ncu").write_text(script)
    (tmp_path / "ncu").chmod(0o755)
    assert counters.of_program(provider, gpu, program)["issue_slot_pct"] == 36.25


# --- reading the trials ---------------------------------------------------------------------------------


def trial(origin: str, ratio: float | None, *, role: str = "candidate", dropped: bool = False, **config: Any) -> Trial:
    measurement = Measurement(
        span_us=(10.0,), baseline_us=(10.0,), clock="device", purpose=Purpose.SEARCH, dropped=dropped
    )
    return Trial(
        sequence=0, config=Config.of(config), role=role, origin=origin, outcome=Outcome.MEASURED, ratio=ratio,
        time_us=10.0, program_key="p", measurement=measurement,
    )  # fmt: skip


def test_the_papers_categories_are_read_off_the_trials() -> None:
    found = measure.categories([
        trial("given", None, role="baseline:sequential"),
        trial("tuned", 1.25, role="baseline:sequential", threads=1),
        trial("given", 1.0, role="baseline:streams_ab"),
        trial("given", 0.8, role="baseline:streams_ba"),
        trial("seed:paper_even_split", 1.1, kind="horizontal", cap="none"),
        trial("seed:paper_r0", 0.9, kind="horizontal", cap="paper"),
        trial("sampler", 1.3, kind="horizontal", cap="none", x=1),
        trial("sampler", 9.9, kind="horizontal", cap="none", x=2, dropped=True),
        trial("seed:block_ticket", 1.4, kind="horizontal", cap="none", level="block"),
        trial("sampler", 1.2, kind="horizontal", cap=40),
        trial("seed:vertical", 0.7, kind="vertical", cap="none"),
    ])  # fmt: skip
    assert found["over_streams"] == 1.25  # the fastest unfused way gains that much over two streams
    assert {name: found[name]["speedup"] for name in measure.CATEGORIES} == {
        "hfuse": 1.4, "hfuse_free": 1.3, "hfuse_capped": 1.2, "naive": 1.1, "naive_r0": 0.9, "vertical": 0.7,
    }  # fmt: skip
    assert found["naive"]["over_streams"] == pytest.approx(1.375)
    assert found["unfused_us"] == {"sequential": 10.0, "streams_ab": 10.0, "streams_ba": 10.0}
    assert measure.categories([])["hfuse"] is None


# --- static ---------------------------------------------------------------------------------------------


@pytest.mark.needs_nvcc
def test_static_columns(real: Registry) -> None:
    (pair,) = pairs.chosen(["hist+maxpool"])
    found = static.columns(real, pair, "sm_90", only=static.SHOWN)
    assert set(found["native"]) == {"hist", "maxpool"}
    assert found["paper_even_split"]["threads"] == 1024
    assert found["paper_r0"]["registers"] <= found["paper_r0"]["config"]["cap"]
    assert 0 < found["vertical"]["occupancy"] <= 1
    assert json.loads(json.dumps(found)) == found


@pytest.mark.needs_nvcc
def test_the_space_is_compiled_once_for_each_text(real: Registry) -> None:
    (pair,) = pairs.chosen(["hist+maxpool"])
    found = static.whole_space(real, pair, "sm_90", most_texts=2, say=lambda line: None)
    assert found["texts"] == found["ptxas_runs_without_a_cap"] == 2
    assert (
        2 < found["nvcc_runs"] <= found["ptxas_runs"]
    )  # launch bounds are part of a text, numbers of registers are not
    assert 2 < found["ptxas_runs"] == found["points"] - found["refused_by_a_static_limit"] - found["repeated"]
    assert found["failed"] == 0


# --- files, page ----------------------------------------------------------------------------------------


def measured_run(evidence: str = "measured") -> Run:
    run = command.new("python -m benchmarks.hfuse", evidence, {"model": "NVIDIA H200", "arch": "sm_90"})
    entry = {"over_streams": 1.25, "speedup": 1.2, "program": "p"}
    answer = {"verdict": "fuse", "speedup": 1.21, "ci95": [1.18, 1.24]}
    point = {"value": 40, "ratio": 1.1, "answer": answer, "hfuse": entry, "hfuse_free": entry, "hfuse_capped": None,
             "naive": entry, "naive_r0": None, "vertical": None}  # fmt: skip
    nothing = counters.nothing("there is no ncu on PATH")
    known = {**counters.figures({counters.ISSUE: 33.3, counters.OCCUPANCY: 50.0}), "reason": None}
    run["pairs"] = [{
        "pair": "hist+maxpool", "swept": "maxpool.channels", "points": [point],
        "rivals": [{"name": "green contexts", "ratio": 1.4, "clock": "device"},
                   {"name": "MPS", "problem": "needs a daemon"}],
        "representative": {
            "value": 40, "native": {"hist": known, "maxpool": known}, "native_issue_slot_pct": None,
            "hfuse_free": known, "hfuse_capped": nothing, "vertical": nothing,
        },
    }]  # fmt: skip
    return run


def test_the_page_shows_what_was_measured() -> None:
    text = page.render([measured_run()])
    assert "Not yet measured" not in text
    assert "| hist+maxpool | 1.10 | fuse | 1.210 | 1.180 to 1.240 | 1.40 (green contexts) | +25.0 |  | +25.0 |" in text
    assert "- MPS (hist+maxpool): needs a daemon" in text
    assert "33.3" in text


def test_the_page_that_is_kept_is_made_of_the_files_that_are_kept() -> None:
    assert page.PAGE.read_text() == page.render(command.kept())


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("gxx_here")
def test_the_whole_of_it_on_the_cpu_device(real: Registry, tmp_path: Path) -> None:
    """Emulated, and busy machines are noisy: what is tested is that all of it is there, not what it says."""
    arguments = ["--device", "cpu", "--quick", "--pairs", "hist+maxpool", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    (file,) = tmp_path.glob("hfuse-*.json")
    run = json.loads(file.read_text())
    assert run["evidence"] == "emulated"
    assert run["command"] == "python -m benchmarks.hfuse --device cpu --pairs hist+maxpool --quick"
    (pair,) = run["pairs"]
    assert len(pair["points"]) == len(pairs.QUICK_FACTORS)
    for each in pair["points"]:
        assert each["problem"] is None
        assert each["evidence"] == each["answer"]["evidence"] == "emulated"
        assert sum(each["outcomes"].values()) == command.QUICK_TRIALS
    assert page.render([run]) == page.render([])
    begun = file.stat().st_mtime_ns
    assert command.main(arguments) == 0  # every answer is in the store
    assert max(each.stat().st_mtime_ns for each in tmp_path.glob("hfuse-*.json")) > begun


@pytest.mark.slow
def test_a_candidate_of_a_single_kernel_is_a_sound_program(real: Registry) -> None:
    (pair,) = pairs.chosen(["hist+maxpool"])
    about = static.known(real, pair, target_for_arch("sm_90"))
    whole = reference(about.prepared.strategy, about.analysis)
    assert isinstance(whole, Program)
    for step in whole.steps:
        assert isinstance(step, Launch)
        single = measure._only(whole, step)
        assert sound("hfuse", single).steps[0].name == step.name
        assert {each.name.partition(".")[0] for each in single.buffers} == {step.name}
