"""One kernel by several rulers: `python -m benchmarks.agreement [--device cuda:0] [--out DIR]`.

    warm        fusiond, its data in the cache as the run before left it; CUDA events round a launch; torch's profiler
                (CUPTI); ncu
    cold        fusiond, the cache flushed before each sample; triton's do_bench, which does the same

The kernel streams three vectors, in four sizes from one that is shorter than a launch to one of a gigabyte. All rulers
time the same machine code with the same launch. Figures of a GPU are shown on the pages only where the rulers agree
there, with the driver at hand (`agrees`): within 5 %, or two microseconds where that is more. Events round a launch by
themselves hold the launch's own cost, so they are shown, and not asked whether they agree.

A ruler that is not here is named with the reason. Raw samples are kept. With --minutes it ends in time, the size first
that tells most; with --go-on it goes on (exit status 75: there is more to do).
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import benches, commands, runs
from benchmarks.commands import say
from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.base import MORE, DeviceProvider
from fusiond.devices.timing import Sampling
from fusiond.model.errors import DeviceError
from fusiond.model.gpu.entry_table import read_table
from fusiond.model.keys import plain
from fusiond.model.outcomes import MeasureFailed, Purpose
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source
from fusiond.tuning.measuring import Measurer

ELEMENTS = (1 << 24, 1 << 20, 1 << 27, 1 << 14)  #: The one that tells most first
THREADS = 256
KERNEL = """
extern "C" __global__ void stream(float* z, const float* x, const float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + 3.0f * y[i];
}
"""
ENTRY = "stream"
RULERS = {
    "fusiond warm": "warm", "events": "warm", "profiler": "warm", "ncu": "warm", "fusiond cold": "cold",
    "do_bench": "cold",
}  # fmt: skip
"""Ruler -> what it finds in the cache."""
OF_TORCH = ("events", "profiler", "do_bench")
NOT_ASKED = "not asked"
SIDE = 8192  #: Of a product of bfloat16 matrices, for the ceiling of the tensor cores
CLOSE, CLOSE_US = 0.05, 2.0
CALLS = 60
METRIC = "gpu__time_duration.sum"


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 measured, 1 measured and they differ, 2 the request was wrong, 75 there is more to do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", help="cuda:0; default: this machine's GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the JSON goes; default: benchmarks/results")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no size after so long")
    parser.add_argument("--go-on", action="store_true", help="with the last run of this device in --out")
    parser.add_argument("--others", type=Path, nargs="+", metavar="BUNDLE", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.others is not None:  # a process of its own: torch's context is another one
        for bundle in given.others:
            print(json.dumps(others(bundle)), flush=True)
        print(json.dumps({"tensor_tflops": tensor_tflops()}), flush=True)
        return 0
    ended: list[int] = []
    return commands.status(lambda: ended.append(_measure(given, time.monotonic() + 60 * given.minutes))) or ended[0]


def _measure(given: argparse.Namespace, until: float) -> int:
    place = commands.place("agreement", given, without="docs/measuring.md")
    if place.emulated:
        raise DeviceError(f"{place.device.name}: rulers are compared on a GPU")
    command = "python -m benchmarks.agreement"
    run = runs.new("agreement", "", command, "measured", place.described()) | {"rows": [], "ceilings": {}}
    run, where = commands.begun(place.folder, given, run)
    bench = benches.Bench(provider=place.provider, device=place.device, say=say)
    done = {each["elements"] for each in run["rows"] if each["times_us"]["ncu"] != NOT_ASKED}
    wanted = [each for each in ELEMENTS if each not in done]

    def kept(elements: int, times: dict[str, Any], samples: dict[str, Any]) -> None:
        row = tabulated(elements, times, samples)
        commands.put(run["rows"], row, "elements")
        run["agrees"] = all(agrees(each["times_us"]) for each in run["rows"])
        runs.write(where, run)
        say(f"{elements} elements: " + ", ".join(f"{name} {shown(each)}" for name, each in row["times_us"].items()))

    with bench.measurer() as measurer:
        begun = time.monotonic()
        ours, bundles = {}, {}
        for elements in wanted:
            ours[elements], bundles[elements] = by_fusiond(measurer, bench.provider, elements)
            run["ceilings"].setdefault("first_answer_secs", round(time.monotonic() - begun, 3))
            kept(elements, *ours[elements])
        measurer.fresh()  # the others have the device for themselves
        theirs, run["ceilings"]["tensor_tflops"] = asked([each for each in bundles.values() if each])
        for elements, found in zip([each for each in wanted if bundles[each]], theirs, strict=False):
            ours[elements][0].update(found)
            kept(elements, *ours[elements])
        for elements in wanted:
            if time.monotonic() > until:
                return MORE
            times, samples = ours[elements]
            bundle = bundles[elements]
            times["ncu"] = by_ncu(bundle, bench.device.name) if bundle else "there is no bundle"
            kept(elements, times, samples)
    return int(not run["agrees"])


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


def by_fusiond(
    measurer: Measurer, provider: DeviceProvider, elements: int
) -> tuple[tuple[dict[str, Any], dict[str, Any]], Path | None]:
    """((microseconds or why there are none, samples) of our own rulers, the kernel's bundle)."""
    made = provider.normalise(program(elements))
    times: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    references = measurer.references(made, f"stream-{elements}")
    if isinstance(references, MeasureFailed):
        return (dict.fromkeys(("fusiond warm", "fusiond cold"), benches.problem(references)), samples), None
    for name, cold in (("fusiond warm", False), ("fusiond cold", True)):
        measured = measurer.sample(made, None, Sampling(purpose=Purpose.PROBE, cold=cold, pairs=20), references)
        if isinstance(measured, MeasureFailed):
            times[name] = benches.problem(measured)
        else:
            times[name], samples[name] = round(measured.time_us, 3), plain(measured)
    bundle = measurer.bundle_now(made)
    return (times, samples), bundle if isinstance(bundle, Path) else None


def tabulated(elements: int, times: dict[str, Any], samples: dict[str, Any]) -> dict[str, Any]:
    """A row: the median of each ruler in microseconds, or why it says nothing."""
    samples = samples | {name: each for name, each in times.items() if isinstance(each, list)}
    medians = {
        name: round(statistics.median(each), 3) if isinstance(each, list) else each for name, each in times.items()
    }
    return {
        "elements": elements,
        "times_us": {name: medians.get(name, NOT_ASKED) for name in RULERS},
        "samples": samples,
    }


def shown(time_us: float | str) -> str:
    return time_us if isinstance(time_us, str) else f"{time_us:.2f} us"


def agrees(times_us: dict[str, float | str]) -> bool:
    """Whether fusiond's times are those of the others, warm and cold, with one other ruler at least."""
    compared = 0
    for name, state in RULERS.items():
        ours, theirs = times_us.get(f"fusiond {state}"), times_us.get(name)
        if not isinstance(ours, float):
            return False
        if name.startswith("fusiond") or name == "events" or not isinstance(theirs, float):
            continue
        compared += 1
        if abs(ours - theirs) > max(CLOSE * theirs, CLOSE_US):
            return False
    return compared > 0


# --- the other rulers -----------------------------------------------------------------------------------


def asked(bundles: Sequence[Path]) -> tuple[list[dict[str, Any]], float | str]:
    """`others` of each bundle, and the ceiling of the tensor cores, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.agreement", "--others", *map(str, bundles)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        lines, why = done.stdout.splitlines(), (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as problem:
        lines, why = (problem.stdout or b"").decode(errors="replace").splitlines(), "did not end in time"
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    tensor = found.pop()["tensor_tflops"] if found and "tensor_tflops" in found[-1] else why
    return found + [dict.fromkeys(OF_TORCH, why)] * (len(bundles) - len(found)), tensor


def others(bundle: Path) -> dict[str, Any]:
    """Ruler -> microseconds of each call, or why there are none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as problem:
        return dict.fromkeys(OF_TORCH, f"not installed: {problem.name or 'torch'}")
    found: dict[str, Any] = {}
    try:
        launch = launched(bundle, torch)
    except Exception as problem:  # whatever another's library raises is its reason
        return dict.fromkeys(OF_TORCH, _reason(problem))
    for name, ruler in (("events", by_events), ("profiler", by_profiler), ("do_bench", by_do_bench)):
        try:
            found[name] = ruler(torch, launch)
        except Exception as problem:
            found[name] = _reason(problem)
    return found


def _reason(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


def tensor_tflops() -> float | str:
    """1e12 operations a second of torch's product of two large matrices of random bfloat16, the best of ten; or why
    there is none. Zeros would be faster."""
    try:
        torch = importlib.import_module("torch")
        a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        times = by_events(torch, lambda: torch.matmul(a, b))[-10:]
    except Exception as problem:
        return _reason(problem)
    return round(2 * SIDE**3 / min(times) / 1e6, 1)


def by_events(torch: Any, launch: Callable[[], object]) -> list[float]:
    """Two events round a launch, and a wait for them: what one writes first."""
    found = []
    for _ in range(CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        found.append(1000 * float(begin.elapsed_time(end)))
    return found


def launched(bundle: Path, torch: Any) -> Callable[[], None]:
    """The bundle's one launch on torch's stream, its machine code as fusiond runs it."""
    from fusiond.devices.cuda.driver import Driver
    from fusiond.devices.cuda.modules import DriverModule

    made, binaries = read_bundle(bundle)
    (step,) = (each for each in made.steps if isinstance(each, Launch))
    vectors = {each.name: torch.rand(each.elements, device="cuda") for each in made.buffers}
    entry = read_table(binaries[step.source]).entries[step.entry]
    function = DriverModule(Driver(), binaries[step.source].read_bytes()).get_function(entry.mangled)
    packed = struct.pack("3Qi", *(vectors[name].data_ptr() for name in "zxy"), made.buffers[0].elements)

    def launch() -> None:
        function.launch(step, entry, packed, torch.cuda.current_stream().cuda_stream)

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
