"""The ruler on a GPU that is not there: planted speed-ups are recovered while the clock does what clocks do.

The fake driver's time line (fake_timeline.h) has a clock that ramps and drops, kernels with noise, events that cost
something, a slow host and a coarse timer. Nothing of this says what a GPU does; it says that the logic is right.
"""

import dataclasses
import json
import math
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import run, timing
from fusiond.devices.base import Loaded
from fusiond.devices.calibration import fitted
from fusiond.devices.cuda import sanitize
from fusiond.devices.timing import Sampling, sample_pair
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import Measurement, Purpose, Verdict
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Scalar, Source
from fusiond.tuning.verdict import LEAST_PROCESSES, conclude, process_ratio
from tests.devices.cuda.stand_in import FakeGpu
from tests.devices.cuda.test_cuda_programs import launch, program

FULL_MHZ = 1980.0
LEAST_GAIN = 1.02
FINAL = Sampling(purpose=Purpose.FINAL, pairs=60, precision=0.0025)

Corners = list[tuple[float, float]]


def _steady(draw: random.Random) -> Corners:
    return [(0, FULL_MHZ)]


def _out_of_idle(draw: random.Random) -> Corners:
    """From the clock of an idle board to the full one, while the warm-up runs."""
    return [(0, 345.0), (draw.uniform(5e3, 50e3), FULL_MHZ)]


def _down(draw: random.Random) -> Corners:
    """A board that gets warm: it loses up to 4 % in the course of a batch."""
    return [(0, FULL_MHZ), (draw.uniform(20e3, 60e3), FULL_MHZ * draw.uniform(0.96, 1.0))]


def _waves(draw: random.Random) -> Corners:
    """Up and down by 2 % all the time, with a period of 3 to 12 ms."""
    period_us = draw.uniform(3e3, 12e3)
    return [(index * period_us / 2, FULL_MHZ * (0.98 if index % 2 else 1.0)) for index in range(400)]


def _two_states(draw: random.Random) -> Corners:
    """A clock that jumps by 4.5 % now and then."""
    corners, at = [], 0.0
    for index in range(200):
        mhz = FULL_MHZ * (0.955 if index % 2 else 1.0)
        corners += [(at, mhz), (at + (held := draw.uniform(4e3, 20e3)) - 1, mhz)]
        at += held
    return corners


def _saw(draw: random.Random) -> Corners:
    """Falls by 4.5 % within 2 ms, jumps back, falls again: whoever is always second is always slower."""
    teeth = [[(2e3 * index, FULL_MHZ), (2e3 * index + 1999, 0.955 * FULL_MHZ)] for index in range(300)]
    return [corner for tooth in teeth for corner in tooth]


CLOCKS: tuple[Callable[[random.Random], Corners], ...] = (_steady, _out_of_idle, _down, _waves, _two_states, _saw)


@pytest.fixture
def bench(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU whose host takes 6 us for a call, and on which time is the fake's."""
    monkeypatch.setattr(timing, "time", types.SimpleNamespace(monotonic=lambda: gpu.now_us / 1e6))
    gpu.set(mhz=FULL_MHZ, launch_us=6, load_us=900, gap_us=0.7, noise=0.004, step_ns=1000, copy_gbs=50)
    return gpu


def _loaded(gpu: Any, entry: str) -> Loaded:
    found = filled(gpu, program((_launch(entry),)))
    found.snapshot()
    return found


def _launch(entry: str) -> Launch:
    if entry == "double_it":
        return launch("k")
    step = launch("k", entry=entry)
    return dataclasses.replace(step, arguments=(step.arguments[0], *step.arguments))


def filled(gpu: Any, of: Program) -> Loaded:
    found: Loaded = gpu.load(of)
    for each in of.buffers:
        found.write(each.name, initial(each, 0))
    return found


def finals(
    gpu: Any, planted: float, span_us: float, seed: int, clocks: Callable[..., Corners], plan: Sampling = FINAL
) -> Any:
    """What the processes of the finals measure: a candidate that is so much faster than its baseline."""
    draw = random.Random(seed)
    gpu.set(us_double_it=span_us - 0.7, us_add=span_us * planted - 0.7, seed=seed)  # with the gap before a kernel
    candidate, baseline = _loaded(gpu, "double_it"), _loaded(gpu, "add")
    found: list[Measurement] = []
    for _ in range(LEAST_PROCESSES):
        gpu.clock(*clocks(draw))
        measured = sample_pair(gpu.executor, candidate, baseline, plan)
        if measured.after.throttle:  # as the daemon does: such a batch is taken again once
            measured = sample_pair(gpu.executor, candidate, baseline, plan)
        found.append(measured)
    candidate.close()
    baseline.close()
    gpu.log()
    return found


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("clocks", CLOCKS, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("planted", [1.00, 1.02, 1.05])
@pytest.mark.parametrize("span_us", [6.0, 150.0])
def test_a_planted_gain_is_recovered(bench: Any, span_us: float, planted: float, clocks: Any) -> None:
    """Within 0.5 % by the five processes of the finals, for a span of several runs to a sample and for a long one."""
    measured = finals(bench, planted, span_us, 7, clocks)
    answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
    assert answer is not None
    assert answer.estimate.speedup == pytest.approx(planted, rel=0.005)
    assert {each.effort.gate_failures for each in measured} == {0}
    if clocks not in (_waves, _saw):
        assert all(each.effort.steady for each in measured)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("step_us", [0.5, 1.024])
@pytest.mark.parametrize("span_us", [22.3, 31.0, 60.0])
def test_a_gain_of_less_than_a_step_of_the_events_is_recovered(bench: Any, span_us: float, step_us: float) -> None:
    """`cuEventElapsedTime` promises 0.5 us, and some boards have steps of 1.024 us; 2 % of 22 us are less."""
    bench.set(event_us=1.7, event_step_us=step_us)
    figures = {"event_step_us": bench.executor.calibrate()["event_step_us"]}
    assert figures["event_step_us"] == pytest.approx(step_us, abs=0.002)
    measured = finals(bench, 1.02, span_us, 7, _steady, fitted(FINAL, figures))
    answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
    assert answer is not None
    assert answer.estimate.speedup == pytest.approx(1.02, abs=0.002)


RESTED = (
    "mhz=1980 idle_mhz=345 idle_after_us=1e6 plateau_us=60000 ramp_us=30000 event_us=1.7 event_cycles=1 launch_us=6"
)
"""A board whose clock only begins to rise after 60 ms of work; until then it looks steady."""


def test_a_board_that_rested_is_awake_before_anything_is_timed(
    fake_libcuda: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_FAKE_GPU", RESTED)
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(us_double_it=5, us_add=10)
    measured = sample_pair(gpu.executor, _loaded(gpu, "double_it"), _loaded(gpu, "add"), FINAL)
    assert measured.before.canary_mhz == pytest.approx(1980, rel=1e-3)
    assert measured.after.throttle == ""
    assert measured.ratio == pytest.approx(2, rel=1e-3)


def test_a_clock_that_rises_within_a_batch_spoils_it(
    fake_libcuda: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host built something for seconds, the board rested; three equal readings seemed a steady clock."""
    monkeypatch.setenv("FUSIOND_FAKE_GPU", RESTED)
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(us_double_it=600, us_add=1200)
    candidate, baseline = _loaded(gpu, "double_it"), _loaded(gpu, "add")
    gpu.wait(5e6)
    measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
    assert (measured.effort.steady, measured.after.throttle) == (True, "clock_rose")
    measured = sample_pair(gpu.executor, candidate, baseline, FINAL)
    assert measured.after.throttle == ""
    assert measured.ratio == pytest.approx(2, rel=1e-3)


def _verdicts(gpu: Any, runs: range) -> list[Verdict]:
    found = []
    for number in runs:
        span_us = (6.0, 40.0, 150.0)[number % 3]
        measured = finals(gpu, 1.00, span_us, number, CLOCKS[number % len(CLOCKS)])
        answer = conclude({"c": [process_ratio(each) for each in measured]}, LEAST_GAIN)
        assert answer is not None
        assert math.isfinite(answer.estimate.high)
        found.append(answer.verdict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("runs", [range(10), pytest.param(range(10, 200), marks=pytest.mark.campaign)], ids=len)
def test_what_is_as_fast_is_never_called_faster(bench: Any, runs: range) -> None:
    found = _verdicts(bench, runs)
    assert Verdict.FUSE not in found
    assert found.count(Verdict.KEEP) > 0.9 * len(found)


# --- compute-sanitizer as the last check ----------------------------------------------------------------


FAKE = """\
#!{python}
import sys
tool = sys.argv[sys.argv.index("--tool") + 1]
code = int(sys.argv[sys.argv.index("--error-exitcode") + 1])
bundle = sys.argv[sys.argv.index("fusiond.devices.cuda.run") + 1]
with open({log!r}, "a") as log:
    log.write(f"{{tool}} {{bundle.rpartition('/')[2]}}\\n")
print("========= COMPUTE-SANITIZER")
said = {said!r}.get(tool, "")
print(said)
sys.exit(3 if said == "broken" else code if said.startswith("=====") else 0)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Installs a sanitizer; `said`: tool -> what it prints. Gives the file in which its runs are logged."""

    def install(**said: str) -> Path:
        log, path = tmp_path / "log", tmp_path / "compute-sanitizer"
        path.write_text(FAKE.format(python=sys.executable, log=str(log), said=said))
        path.chmod(0o755)
        monkeypatch.setenv(sanitize.ENVIRONMENT, str(path))
        return log

    return install


def test_each_tool_runs_the_bundle_once(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = fake()
    assert sanitize.sanitize(tmp_path / "bundle", "cuda:0") == ()
    assert log.read_text().splitlines() == ["memcheck bundle", "racecheck bundle", "synccheck bundle"]


def test_what_is_found_is_a_line_each(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wrong = "========= Invalid __global__ write of size 4 bytes\n=========     at add(float*)"
    race = "========= Error: Race reported between Write access at a and Read access at b [4 hazards]"
    fake(memcheck=f"{wrong}\n{wrong}", racecheck=race)
    assert sanitize.sanitize(tmp_path, "cuda:0") == (
        "memcheck: Invalid __global__ write of size 4 bytes",
        "racecheck: Race reported between Write access at a and Read access at b [4 hazards]",
    )


def test_a_run_that_fails_by_itself_is_told(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fake(synccheck="broken")
    assert sanitize.sanitize(tmp_path, "cuda:0") == ("synccheck: the run failed with status 3: broken",)


def test_where_there_is_none_the_reason_is_said(fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]  # fmt: skip
    fake(memcheck="========= Device not supported")
    with pytest.raises(LookupError, match="cannot look at this device"):
        sanitize.sanitize(tmp_path, "cuda:0")
    monkeypatch.setenv(sanitize.ENVIRONMENT, str(tmp_path / "nothing"))
    with pytest.raises(LookupError, match="compute-sanitizer is not on PATH"):
        sanitize.sanitize(tmp_path, "cuda:0")
    assert sanitize.main([str(tmp_path)]) == 2
    assert "compute-sanitizer is not on PATH" in capsys.readouterr().err


def test_a_folder_of_bundles(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The first candidate of each entry; questions may hang, so they are left out."""
    log = fake(memcheck="========= Invalid __shared__ read of size 8 bytes")
    entries = [
        {"name": "one", "candidates": [{"path": "one/a"}, {"path": "one/b"}]},
        {"name": "none", "candidates": []},
        {"name": "asked", "candidates": [{"path": "asked/a"}], "expect": "any"},
    ]
    (tmp_path / "index.json").write_text(json.dumps({"entries": entries}))
    assert sanitize.main([str(tmp_path), "--out", str(tmp_path / "out.json")]) == 1
    assert set(log.read_text().splitlines()) == {"memcheck a", "racecheck a", "synccheck a"}
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert found == {"one": ["memcheck: Invalid __shared__ read of size 8 bytes"]}


def test_several_at_once_are_kept_in_the_order_of_the_folder(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fake()
    names = [f"entry{number}" for number in range(6)]
    entries = [{"name": name, "candidates": [{"path": f"{name}/a"}]} for name in names]
    (tmp_path / "index.json").write_text(json.dumps({"entries": entries}))
    assert sanitize.main([str(tmp_path), "--jobs", "3", "--out", str(tmp_path / "out.json")]) == 0
    assert list(json.loads((tmp_path / "out.json").read_text())["results"]) == names


# --- a bundle with one's own inputs ---------------------------------------------------------------------


N = 16


def _bundle(gpu: Any, folder: Path, entry: str = "double_it") -> Path:
    arguments = (Pointer(buffer="out_0"), Scalar(dtype="int32", value=N))
    step = Launch(name="a", source="k", entry=entry, grid=(1, 1, 1), block=(32, 1, 1), arguments=arguments)
    program = Program(
        name="twice", buffers=(Buffer(name="out_0", dtype="float32", elements=N, role=Role.INOUT),),
        sources=(Source(name="k", text="", entries=(entry,)),), steps=(step,),
    )  # fmt: skip
    write_bundle(folder, program, gpu.binaries(program))
    return folder


def main(gpu: Any, *arguments: object) -> int:
    return run.main([str(each) for each in arguments], device="cuda:0", executor=lambda name: gpu.executor)


def test_own_inputs_and_outputs(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = _bundle(gpu, tmp_path / "bundle")
    np.savez(tmp_path / "x.npz", out_0=np.arange(N, dtype=np.float32))
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    assert main(gpu, bundle, "--inputs", inputs, "--outputs", outputs, "--samples", 2) == 0
    with np.load(outputs) as found:
        assert found.files == ["out_0"]
        assert np.array_equal(found["out_0"], 2 * np.arange(N, dtype=np.float32))
    said = capsys.readouterr().out
    assert "twice: ran on cuda:0; out_0 float32[16]" in said
    assert "device clock" in said


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"in_0": np.zeros(N, np.float32)}, "no buffer is called 'in_0'; there are out_0"),
        ({"out_0": np.zeros(3, np.float32)}, "out_0 holds 3 x float32; 16 x float32 are wanted"),
        ({"out_0": np.zeros(N, np.float64)}, "out_0 holds 16 x float64; 16 x float32 are wanted"),
    ],
)
def test_inputs_that_do_not_fit(
    gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: Any, problem: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    assert main(gpu, _bundle(gpu, tmp_path / "bundle"), "--inputs", tmp_path / "x.npz") == 2
    assert problem in capsys.readouterr().err


def test_writes_out_of_bounds_are_a_failure(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(gpu, _bundle(gpu, tmp_path / "bundle", "overrun")) == 1
    assert "crashed: out of bounds: out_0: " in capsys.readouterr().err


def test_a_folder_that_is_no_bundle(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(gpu, tmp_path) == 2
    assert "plan.json" in capsys.readouterr().err
