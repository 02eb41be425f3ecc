"""What the benchmarks share: commands that are kept, the agreement of rulers, steps a second, the search."""

import functools
import gzip
import itertools
import json
import math
import os
import statistics
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__, agreement, benches, commands, page, runs, steps
from benchmarks.search import drive
from benchmarks.search.__main__ import main
from benchmarks.search.drive import Recorded, curve
from benchmarks.steps import LARGE
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.tuning.search.study import Study
from fusiond_replay import t4


def test_a_mistake_is_a_line_and_an_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise RequestError("no such thing", where="job.yaml:3")

    assert commands.status(wrong) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert commands.status(lambda: None) == 0


@pytest.mark.parametrize(("quick", "out", "said"), [
    ([], [], "What is known without one: --nothing"),
    (["--device", "cpu"], ["--out", str(runs.RESULTS / "x")], "emulated times are not results"),
])  # fmt: skip
def test_emulated_times_are_asked_for_and_no_results(
    quick: list[str], out: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = commands.choose_device
    monkeypatch.setattr(commands, "choose_device", lambda registry, name: choose(registry, "cpu"))  # no GPU here
    given = commands.parser("toy", "About.", quick="little").parse_args([*quick, *out])
    with pytest.raises(RequestError, match=said):
        commands.place("toy", given, without="--nothing")


def test_measurements_are_files_of_their_own(tmp_path: Path) -> None:
    run = runs.new("toy", "Nobody, 2000", "python -m benchmarks.toy", "measured", {"model": "NVIDIA H200"})
    other = {**run, "date": "2001-02-03T04:05:06+00:00"}
    static = {**run, "evidence": "static", "device": {"arch": "sm_90"}}
    for each in (run, other, static, {**static, "nvcc": "0"}):
        runs.write(runs.path(tmp_path / runs.slug("NVIDIA H200"), each), each)
    names = {"toy.json", "toy-20010203T040506.json", runs.path(tmp_path, run).name}
    assert {each.name for each in (tmp_path / "nvidia-h200").iterdir()} == names
    assert len(list(runs.kept("toy", tmp_path))) == 3
    assert list(runs.kept("to", tmp_path)) == []


def test_the_newest_run_of_each_device_on_each_evidence() -> None:
    def run(date: str, evidence: str, **device: str) -> dict[str, Any]:
        return {"date": date, "evidence": evidence, "device": device}

    kept = [
        run("2003", "measured", model="B"), run("2001", "measured", model="B"), run("2002", "measured", model="A"),
        run("2009", "emulated", model="A"), run("2004", "static", arch="sm_90"), run("2005", "planning"),
    ]  # fmt: skip
    assert [each["date"] for each in runs.newest(iter(kept), "measured")] == ["2002", "2003"]
    assert [each["date"] for each in runs.newest(kept, "static")] == ["2004"]
    assert [each["date"] for each in runs.newest(kept, "planning")] == ["2005"]


# --- docs/results-fusiond.md is what its generator makes of the files that are kept ---------------------


def test_the_page_is_the_one_of_the_kept_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(page.read())


def test_every_benchmark_has_its_section_and_every_section_its_benchmark() -> None:
    assert sorted(name for name, _, _ in page.SECTIONS) == sorted(__main__.NAMES)
    words = page.render({})
    assert all(f"Not measured yet: `python -m benchmarks {name}`." in words for name in __main__.NAMES)


def test_figures_come_from_the_file() -> None:
    run = json.loads((page.KEPT / "best.json").read_text())
    run["result"]["ratio_name_to_bare"] = 12.34
    assert "12.34 times" in page.render({"best": run})


# --- the agreement of rulers ----------------------------------------------------------------------------


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
        "==PROF== Connected to process 1", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
        '"0","stream","gpu__time_duration.sum","ns","9,504"', "stream 4096: ran on cuda:0",
        '"1","stream","gpu__time_duration.sum","ns","3,008"', '"2","stream","gpu__time_duration.sum","ns","2,976"',
        '"2","stream","sm__cycles_elapsed.max","","4"',
    ]  # fmt: skip
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


# --- steps a second of whole functions ------------------------------------------------------------------


def test_what_a_process_had_said_before_it_was_cut_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"state": "unknown", "ratio": 1.0}) + '\n{"state": "tu'

    def cut(command: Any, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout, output=said.encode())

    monkeypatch.setattr(subprocess, "run", cut)
    found = steps.asked("llama_layer", Path("store"), "cuda:0", 30.0)
    assert found["unknown"] == {"ratio": 1.0}
    assert found["tune"] == found["known"] == {"problem": "did not end within its 30 s"}
    ended = SimpleNamespace(stdout="", stderr="Traceback\nImportError: no jax\n", returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert steps.asked("llama_layer", Path("store"), "cuda:0", 30.0)["known"] == {
        "problem": "ended with status 1: ImportError: no jax"
    }


def test_a_tuning_is_stopped_in_time_and_one_that_ends_before_is_not() -> None:
    begun = time.monotonic()
    with steps.stopped_at(begun + 0.2):
        time.sleep(60)
    assert time.monotonic() - begun < 30
    done = []
    with steps.stopped_at(time.monotonic() + 600):
        done.append(True)
    assert done


@pytest.mark.parametrize("name", LARGE)
def test_results_are_compared(name: str) -> None:
    jax = pytest.importorskip("jax")
    function, given, static = steps.functions(name, tiny=True)
    results = jax.jit(function, **static)(*given)
    assert steps.difference(jax, results, results) == 0.0
    worse = jax.tree.map(lambda each: each * 1.5, results)
    assert steps.difference(jax, worse, results) == pytest.approx(0.5, rel=1e-3)
    assert steps.difference(jax, jax.tree.map(lambda each: each * math.nan, results), results) == math.inf


# --- the benchmark of the search ------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Twelve configs, two of which fail; the first samples are warm-ups."""
    lines: list[Any] = [{"replay": 1, "name": "small", "parameters": {"x": [0, 1, 2, 3], "y": ["a", "b", "c"]}}]
    for x, y in itertools.product(range(4), range(3)):
        time = 1.0 + x + 3 * y
        lines.append([[x, y], "runtime" if (x, y) in ((0, 0), (3, 2)) else [99, 99, 99, time, time, time], 0.5])
    path = tmp_path / "small.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


@pytest.mark.parametrize("sampler", ["gp", "random", "optuna:tpe"])
def test_a_line_for_each_search(small: Path, sampler: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(small), "--trials", "8", "--seeds", "2", "--sampler", sampler, "--json", "--ahead", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["pack"], each["seed"], each["sampler"]) for each in found] == [("small", k, sampler) for k in (0, 1)]
    assert all(each["share"] == {"25": None, "50": None, "100": None} for each in found)
    assert all(each["trials_to_95"] is None or 1 <= each["trials_to_95"] <= 8 for each in found)


def test_random_choice_exactly(small: Path) -> None:
    """The mean over every way to draw three of the twelve."""
    recorded = Recorded(t4.read(small))
    best = [
        max((recorded.best_us / recorded.true_us[each] for each in drawn if each in recorded.true_us), default=0.0)
        for drawn in itertools.combinations(recorded.rows, 3)
    ]
    expected, near = drive.at_random(recorded, 3)
    assert expected == pytest.approx(statistics.mean(best))
    assert near == pytest.approx(statistics.mean(share >= drive.NEAR for share in best))
    assert drive.at_random(recorded, 12) == pytest.approx((1.0, 1.0))


def test_the_answer_is_the_best_of_the_finalists(small: Path) -> None:
    recorded = Recorded(t4.read(small))
    order = [Config.of({"x": x, "y": "abc"[y]}) for x, y in ((3, 2), (3, 1), (1, 1), (2, 0), (1, 0))]
    found = curve(recorded, order, 7)
    assert found.shares == pytest.approx((0, 2 / 7, 2 / 5, 2 / 3, 1, 1, 1))
    assert found.trials_to_near == 5
    recorded.told_us[order[4]] = 10**9  # told wrong, and no finalist
    assert curve(recorded, order, 5).shares[-1] == pytest.approx(2 / 3)


def test_asks_ahead_are_out_at_once(small: Path) -> None:
    recorded = Recorded(t4.read(small))
    seen: list[int] = []

    class Watched(Study):
        def next(self) -> Any:
            ask = super().next()
            seen.append(len(self._out))
            return ask

    tried = list(drive.study(recorded, functools.partial(Watched, seed=0), trials=9, ahead=4))
    assert len(set(tried)) == 9
    assert max(seen) == 4
