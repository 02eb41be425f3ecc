"""One kernel by several rulers: `python -m benchmarks.agreement [--device cuda:0] [--out DIR]`.

    warm        fusiond, its data in the cache as the run before left it; torch's profiler (CUPTI); ncu
    cold        fusiond, the cache flushed before each sample; triton's do_bench, which does the same

The kernel streams three vectors, in four sizes from one that is shorter than a launch to one of a gigabyte. All rulers
time the same machine code with the same launch. Figures of a GPU are shown on the pages only where the rulers agree
there, with the driver at hand (`agrees`): within 5 %, or two microseconds where that is more.

A ruler that is not here is named with the reason. Raw samples are kept.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import benches, commands, runs
from benchmarks.commands import say
from fusiond.cuda.entries import read_table
from fusiond.devices.timing import Sampling
from fusiond.errors import DeviceError
from fusiond.exporting.bundle import read_bundle
from fusiond.keys import plain
from fusiond.model import MeasureFailed, Purpose
from fusiond.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source

ELEMENTS = (1 << 14, 1 << 20, 1 << 24, 1 << 27)
THREADS = 256
KERNEL = """
extern "C" __global__ void stream(float* z, const float* x, const float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + 3.0f * y[i];
}
"""
ENTRY = "stream"
RULERS = {"fusiond warm": "warm", "profiler": "warm", "ncu": "warm", "fusiond cold": "cold", "do_bench": "cold"}
"""Ruler -> what it finds in the cache."""
CLOSE, CLOSE_US = 0.05, 2.0
CALLS = 60
METRIC = "gpu__time_duration.sum"


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 measured, 1 measured and they differ, 2 the request was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", help="cuda:0; default: this machine's GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the JSON goes; default: benchmarks/results")
    parser.add_argument("--others", type=Path, metavar="BUNDLE", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.others is not None:  # a process of its own: torch's context is another one
        print(json.dumps(others(given.others)))
        return 0
    agreed: list[bool] = []

    def do() -> None:
        place = commands.place("agreement", given, without="docs/measuring.md")
        if place.emulated:
            raise DeviceError(f"{place.device.name}: rulers are compared on a GPU")
        run = runs.new("agreement", "", "python -m benchmarks.agreement", "measured", place.described())
        run["rows"] = []
        where = runs.path(place.folder, run)
        bench = benches.Bench(provider=place.provider, device=place.device, say=say)
        for elements in ELEMENTS:
            run["rows"].append(row(bench, elements))
            run["agrees"] = all(agrees(each["times_us"]) for each in run["rows"])
            runs.write(where, run)
            times = run["rows"][-1]["times_us"]
            say(f"{elements} elements: " + ", ".join(f"{name} {shown(each)}" for name, each in times.items()))
        agreed.append(run["agrees"])

    return commands.status(do) or int(agreed != [True])


def program(elements: int) -> Program:
    """z = x + 3 y, one launch."""

    def vector(name: str, role: Role) -> Buffer:
        return Buffer(name=name, dtype="float32", elements=elements, role=role, fill=Fill(kind="uniform", high=1.0))

    return Program(
        name=f"stream {elements}",
        buffers=(vector("x", Role.INPUT), vector("y", Role.INPUT), vector("z", Role.OUTPUT)),
        sources=(Source(name="stream", text=KERNEL, entries=(ENTRY,)),),
        steps=(
            Launch(
                name="stream",
                source="stream",
                entry=ENTRY,
                grid=(-(-elements // THREADS), 1, 1),
                block=(THREADS, 1, 1),
                arguments=(*(Pointer(buffer=name) for name in "zxy"), Scalar(dtype="int32", value=elements)),
            ),
        ),
    )


def row(bench: benches.Bench, elements: int) -> dict[str, Any]:
    """What each ruler says of one size: microseconds, or why it says nothing."""
    made = bench.provider.normalise(program(elements))
    times: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    with bench.measurer() as measurer:
        references = measurer.references(made, f"stream-{elements}")
        if isinstance(references, MeasureFailed):
            return {"elements": elements, "times_us": {"fusiond warm": benches.problem(references)}, "samples": {}}
        for name, cold in (("fusiond warm", False), ("fusiond cold", True)):
            measured = measurer.sample(made, None, Sampling(purpose=Purpose.PROBE, cold=cold, pairs=20), references)
            if isinstance(measured, MeasureFailed):
                times[name] = benches.problem(measured)
            else:
                times[name], samples[name] = round(measured.time_us, 3), plain(measured)
        bundle = measurer.bundle_now(made)
        assert isinstance(bundle, Path)
        times |= asked(bundle)
        times["ncu"] = by_ncu(bundle, bench.device.name)
    samples |= {name: each for name, each in times.items() if isinstance(each, list)}
    medians = {
        name: round(statistics.median(each), 3) if isinstance(each, list) else each for name, each in times.items()
    }
    return {"elements": elements, "times_us": {name: medians[name] for name in RULERS}, "samples": samples}


def shown(time_us: float | str) -> str:
    return time_us if isinstance(time_us, str) else f"{time_us:.2f} us"


def agrees(times_us: dict[str, float | str]) -> bool:
    """Whether fusiond's times are those of the others, warm and cold, with one other ruler at least."""
    compared = 0
    for name, state in RULERS.items():
        ours, theirs = times_us.get(f"fusiond {state}"), times_us.get(name)
        if not isinstance(ours, float):
            return False
        if name.startswith("fusiond") or not isinstance(theirs, float):
            continue
        compared += 1
        if abs(ours - theirs) > max(CLOSE * theirs, CLOSE_US):
            return False
    return compared > 0


# --- the other rulers -----------------------------------------------------------------------------------


def asked(bundle: Path) -> dict[str, Any]:
    """`others` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.agreement", "--others", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return dict.fromkeys(("profiler", "do_bench"), said)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def others(bundle: Path) -> dict[str, Any]:
    """Ruler -> microseconds of each call, or why there are none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as problem:
        return dict.fromkeys(("profiler", "do_bench"), f"not installed: {problem.name or 'torch'}")
    launch = launched(bundle, torch)
    found: dict[str, Any] = {}
    for name, ruler in (("profiler", by_profiler), ("do_bench", by_do_bench)):
        try:
            found[name] = ruler(torch, launch)
        except Exception as problem:  # whatever another's library raises is its reason
            found[name] = f"{type(problem).__name__}: {problem}"[:300]
    return found


def launched(bundle: Path, torch: Any) -> Callable[[], None]:
    """The bundle's one launch on torch's stream, its machine code as fusiond runs it."""
    from fusiond.devices.cuda.driver import Driver

    made, binaries = read_bundle(bundle)
    (step,) = (each for each in made.steps if isinstance(each, Launch))
    vectors = {each.name: torch.rand(each.elements, device="cuda") for each in made.buffers}
    driver = Driver()
    entry = read_table(binaries[step.source]).entries[step.entry]
    function = driver.function(driver.load_module(binaries[step.source].read_bytes()), entry.mangled)
    values: list[Any] = [ctypes.c_uint64(vectors[name].data_ptr()) for name in "zxy"]
    values.append(ctypes.c_int(made.buffers[0].elements))

    def launch() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        driver.launch(
            function, step.grid, step.block, 0, stream, [ctypes.addressof(each) for each in values], cooperative=False
        )

    return launch


def by_profiler(torch: Any, launch: Callable[[], None]) -> list[float]:
    """CUPTI's durations of the kernel."""
    profiler = torch.profiler
    for _ in range(CALLS):
        launch()
    torch.cuda.synchronize()
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(CALLS):
            launch()
        torch.cuda.synchronize()
    found = [float(each.time_range.elapsed_us()) for each in profile.events() if each.name.startswith(ENTRY)]
    if not found:
        raise LookupError("it saw no such kernel")
    return found


def by_do_bench(torch: Any, launch: Callable[[], None]) -> list[float]:
    testing = importlib.import_module("triton.testing")
    return [1000 * float(each) for each in testing.do_bench(launch, warmup=50, rep=200, return_mode="all")]


def by_ncu(bundle: Path, device: str) -> list[float] | str:
    """ncu's duration of the kernel at the clock that the device has: its own clock control would lock another."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return "there is no ncu on PATH"
    command = [
        ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--cache-control", "none",
        "--target-processes", "all", "--kernel-name", ENTRY, "--metrics", METRIC,
        sys.executable, "-m", "fusiond.devices.cuda.run", str(bundle), "--device", device, "--samples", "10",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, errors="replace", timeout=300,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"ncu: {type(problem).__name__}"
    return durations(done.stdout) or f"ncu ended with status {done.returncode} and said nothing of the kernel"


def durations(output: str) -> list[float]:
    """Microseconds of each launch in what `ncu --csv --print-units base` prints (nanoseconds); the first, which loads
    the code, is left out where there are others."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    found = [
        float(each["Metric Value"].replace(",", "")) / 1000
        for each in csv.DictReader(lines)
        if each.get("Metric Name") == METRIC
    ]
    return found[1:] or found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
