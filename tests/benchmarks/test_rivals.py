"""Rivals on a GPU that is not there: planted durations are found in the pairs, and whatever goes wrong is a row."""

import dataclasses
import importlib.util
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import child, rival_rows, ways
from benchmarks.rivals.called import Called
from benchmarks.rivals.frameworks import NumPy, lacks
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import timing
from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.modules import DriverFunction
from fusiond.devices.timing import Sampling
from fusiond.model.outcomes import DeviceState, Measurement, Outcome, Purpose
from fusiond.model.program import Launch, Program
from tests.devices.cuda.stand_in import FakeGpu
from tests.devices.cuda.test_cuda_programs import buffer, launch, program

SPAN_US = 5000.0  #: Beside which the events between streams, 10 us each, are nothing
PLAN = Sampling(purpose=Purpose.BASELINE, pairs=6)


@pytest.fixture
def gpu(fake_libcuda: Path, tmp_path: Path) -> FakeGpu:
    """With a primary context, and kernels that take long enough to be sampled one by one."""
    gpu = FakeGpu(fake_libcuda, tmp_path, primary=True)
    gpu.set(us_double_it=SPAN_US, us_add=SPAN_US)
    return gpu


def two_kernels(**values: Any) -> Program:
    """x and y doubled, by a kernel each."""
    steps = (launch("a", on="x"), dataclasses.replace(launch("b", on="y"), **values))
    return program(steps, buffer("x"), buffer("y"))


def bundled(gpu: FakeGpu, folder: Path, of: Program) -> str:
    write_bundle(folder, of, gpu.binaries(of))
    return str(folder)


def measured(gpu: FakeGpu, rival: Any, of: Program, **bundles: str) -> dict[str, Any]:
    return child.measured(gpu.executor, of, gpu.binaries(of), rival, {"bundles": bundles}, plan=PLAN)


def named(name: str) -> Any:
    return rival_rows.named(f"hfuse:{name}")


# --- ways to issue kernels ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rival_that_takes_twice_as_long_is_found_so(gpu: FakeGpu, tmp_path: Path) -> None:
    gpu.set(us_double_it=SPAN_US)
    apart = two_kernels(stream=1)
    series = bundled(gpu, tmp_path / "series", two_kernels())
    found = measured(gpu, named("two streams"), apart, streams=series)
    assert found["ratio"] == pytest.approx(2.0, rel=0.02)
    assert found["clock"] == "device"
    assert found["difference"] == 0.0
    assert found["compared"] == ["x", "y"]
    assert len(found["samples"]["baseline_us"]) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["priorities", "priorities, turned", "green contexts"])
def test_kernels_on_streams_of_their_own_overlap(gpu: FakeGpu, tmp_path: Path, name: str) -> None:
    """Beside the same kernels one after the other they take half as long, and their outputs are the same."""
    unfused = bundled(gpu, tmp_path / "unfused", two_kernels())
    found = measured(gpu, named(name), two_kernels(), unfused=unfused)
    assert found["ratio"] == pytest.approx(0.5, rel=0.02)
    assert found["difference"] == 0.0


def test_streams_have_the_priorities_that_the_device_knows(gpu: FakeGpu, tmp_path: Path) -> None:
    unfused = bundled(gpu, tmp_path / "unfused", two_kernels())
    gpu.log()
    loaded = named("priorities").load(gpu.executor, two_kernels(), {"bundles": {"unfused": unfused}})
    made = [line.split() for line in gpu.log() if line.startswith("stream of priority")]
    assert [line[3] for line in made] == ["-5", "0"]
    loaded.run(seed=0, checked=False)
    launched = [line.split()[-1] for line in gpu.log() if line.startswith("launch")]
    assert launched == [line[-1] for line in made]
    turned = named("priorities, turned").load(gpu.executor, two_kernels(), {"bundles": {"unfused": unfused}})
    again = [line.split()[-1] for line in gpu.log() if line.startswith("stream of priority")]
    turned.run(seed=0, checked=False)
    assert [line.split()[-1] for line in gpu.log() if line.startswith("launch")] == again[::-1]


def test_green_contexts_part_the_multiprocessors(gpu: FakeGpu, tmp_path: Path) -> None:
    """132 of them into 72 and what is left over, since a group is a multiple of eight."""
    unfused = bundled(gpu, tmp_path / "unfused", two_kernels())
    gpu.log()
    named("green contexts").load(gpu.executor, two_kernels(), {"bundles": {"unfused": unfused}})
    assert [line for line in gpu.log() if line.startswith("green")] == ["green context of 72", "green context of 60"]


def test_only_the_later_of_dependent_launches_may_overlap(gpu: FakeGpu, tmp_path: Path) -> None:
    unfused = bundled(gpu, tmp_path / "unfused", two_kernels())
    loaded = named("programmatic dependent launch").load(gpu.executor, two_kernels(), {"bundles": {"unfused": unfused}})
    gpu.log()
    loaded.run(seed=0, checked=False)
    said = [line.partition(" on ")[0] for line in gpu.log() if line.startswith(("launch", "attribute"))]
    kernel = "launch double_it 2x1x1 32x1x1 0"
    assert said == [kernel, "attribute 6 1", kernel]


# --- what goes wrong ------------------------------------------------------------------------------------


def test_a_rival_that_computes_something_else_is_a_row(gpu: FakeGpu, tmp_path: Path) -> None:
    wrong = program((launch("a", on="x"),), buffer("x"), buffer("y"))
    found = measured(gpu, named("two streams"), two_kernels(), streams=bundled(gpu, tmp_path / "wrong", wrong))
    assert found["problem"].startswith("computes something else: the elements of y")
    assert "ratio" not in found


def test_a_missing_rival_is_a_row_with_the_remedy() -> None:
    found = rival_rows.row(named("MPS"), ["/bin/false"])
    assert found["name"] == "MPS"
    assert "no stream and no event in common" in found["problem"]
    assert lacks("no_such_module", "pip install it") == "no_such_module is not installed: pip install it"
    assert lacks("json", "") == ""


def test_every_rival_has_a_row_without_a_gpu() -> None:
    for strategy in rival_rows.STRATEGIES:
        rows = rival_rows.without(strategy, rival_rows.NO_GPU)
        assert [each["name"] for each in rows] == [each.name for each in rival_rows.of(strategy)]
        assert {each["problem"] for each in rows} == {rival_rows.NO_GPU}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os; os.abort()", "ended by SIGABRT: it said nothing"),
        ("import sys; sys.exit('no such thing')", "ended with status 1: no such thing"),
        ("print('not JSON')", "ended with status 0: it said nothing"),
    ],
)
def test_a_crash_of_the_child_is_a_row(text: str, problem: str) -> None:
    found = rival_rows.row(named("two streams"), [sys.executable, "-c", text])
    assert found["problem"] == problem


def test_a_hang_of_the_child_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    assert rival_rows.row(named("two streams"), command, timeout_secs=0.5)["problem"] == "did not end within 0.5 s"


@pytest.mark.skipif(
    importlib.util.find_spec("pycuda") is None,
    reason="PyCUDA is not installed: python -m tools.pycuda_wheel builds it where nvcc is",
)
@pytest.mark.parametrize(("name", "ratio"), [("graph branches", 1.0), ("priorities", 0.5), ("green contexts", 0.5)])
def test_the_child_measures_with_real_pycuda(
    gpu: FakeGpu, fake_libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ratio: float
) -> None:
    """From the command to the row, over the fake driver in place of libcuda.so.1."""
    shutil.copy(fake_libcuda, tmp_path / "libcuda.so.1")
    paths = [str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(paths))
    monkeypatch.setenv("FUSIOND_FAKE_GPU", "event_us=1.7 launch_us=6 noise=0.003 step_ns=1000 us:double_it=400")
    folder = bundled(gpu, tmp_path / "ours", two_kernels())
    about = json.dumps({"bundles": {"unfused": folder, "graph": folder}})
    command = [sys.executable, "-m", "benchmarks.rivals.child", folder, "--rival", f"hfuse:{name}", "--about", about]
    found = rival_rows.row(named(name), command)
    assert found.get("problem") is None
    assert found["ratio"] == pytest.approx(ratio, rel=0.02)


# --- functions of a framework ---------------------------------------------------------------------------


class Doubling:
    """x and y doubled by NumPy, or what else is planted, after so many microseconds on the device's time line."""

    name = "doubling"
    what = "NumPy"
    close = 0.0

    def __init__(
        self, gpu: FakeGpu, *, clock: str = "device", factor: float = 2.0, kernel: Launch | None = None
    ) -> None:
        self.framework = NumPy()
        self.framework.clock = clock
        self.gpu, self.factor, self.kernel = gpu, factor, kernel
        self.streams: list[int] = []

    def missing(self) -> str:
        return ""

    def load(self, executor: Any, of: Program, about: Any) -> Called:
        self.work = executor.load(two_kernels(), self.gpu.binaries(two_kernels())) if self.kernel is None else None
        self.launches = ways.bare_launches(self.work) if self.work else ()  # now: loading waits for the device
        made = Called(executor.cuda, executor.spans, of, self.framework, self.function)
        self.framework.on = self.on  # type: ignore[method-assign]
        return made

    def on(self, stream: int) -> Any:
        self.streams.append(stream)
        return NumPy().on(stream)

    def function(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        assert set(given) == {"x", "y"}
        for each in self.launches:
            DriverFunction(self.gpu.driver, each.function).launch(each.step, each.entry, each.packed, self.streams[-1])
        return {name: (self.factor * array).astype(array.dtype) for name, array in given.items()}


def test_a_function_is_timed_by_events_on_our_stream(gpu: FakeGpu) -> None:
    """It enqueues two kernels of the same length where ours has two that overlap."""
    found = measured(gpu, Doubling(gpu), two_kernels(stream=1))
    assert found["ratio"] == pytest.approx(2.0, rel=0.02)
    assert found["clock"] == "device"


def test_a_function_that_takes_no_stream_is_timed_on_the_wall_clock_and_so_are_we(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample_pair(executor: Any, one: Any, two: Any, plan: Sampling) -> Any:  # the wall clock of a busy machine
        return timing.sample_pair(executor, one, two, dataclasses.replace(plan, noise_limit=math.inf))

    monkeypatch.setattr(child, "sample_pair", sample_pair)
    found = measured(gpu, Doubling(gpu, clock="wall"), two_kernels())
    assert found["clock"] == "wall"
    assert found["samples"]["clock"] == "wall"


def test_a_call_of_more_than_a_launch_queue_holds_is_left_to_the_wall_clock(gpu: FakeGpu) -> None:
    rival = Doubling(gpu)

    def sampled(executor: Any, ours: Any, theirs: Any, plan: Any) -> Any:
        clocks.append(theirs.clock)
        if theirs.clock == "device":
            raise ExecutionError(Outcome.TOO_NOISY, "the gate gave up")
        return Measurement(span_us=(1.0,), baseline_us=(3.0,), clock="wall", purpose=Purpose.BASELINE)

    clocks: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "sampled", sampled)
        found = measured(gpu, rival, two_kernels())
    assert clocks == ["device", "wall"]
    assert (found["ratio"], found["clock"], found["wall_because"]) == (3.0, "wall", "the gate gave up")


def test_a_batch_in_which_the_clock_fell_is_taken_again_once(gpu: FakeGpu, tmp_path: Path) -> None:
    series = bundled(gpu, tmp_path / "series", two_kernels())
    batches: list[str] = []

    def sample_pair(executor: Any, one: Any, two: Any, plan: Sampling) -> Any:
        batches.append("")
        state = DeviceState(throttle="clock_fell" if len(batches) < steady else "")
        measured = timing.sample_pair(executor, one, two, plan)
        return dataclasses.replace(measured, after=state)

    for steady in (2, 3):
        batches.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(child, "sample_pair", sample_pair)
            if steady == 2:
                assert measured(gpu, named("two streams"), two_kernels(), streams=series)["ratio"] == 1.0
            else:
                with pytest.raises(ExecutionError, match=r"throttled \(clock_fell\)"):
                    child.sampled(gpu.executor, gpu.load(two_kernels()), gpu.load(two_kernels()), PLAN)
        assert len(batches) == 2
