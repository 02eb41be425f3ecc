"""How much slower the cpu device is than a plain loop: `python -m benchmarks.cpu_device`, JSON on standard output.

For hist (16 M values) and maxpool (32 x 64 planes of 112 x 112, a window of 5 x 5 that moves by 1): the CUDA kernel
of the catalogue on the cpu device, beside two serial C++ loops with the same arithmetic, compiled by the same
compiler at the same level: one in the order of memory (what one would write for a processor), one in the order in
which the threads of the grid visit the data. Each figure is the least of several interleaved runs, in processor time.

`scatter`: how far the ratios of equal launches, taken in pairs, are from one another (robust standard deviation of the
log ratios, in percent) by the device's clock and by the wall's, of the same launches, on idle cores and beside two
busy loops a core.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fusiond_hfuse
from fusiond.build import gxx
from fusiond.devices.cpu import native
from fusiond.program import Source

ROUNDS = 5
PAIRS = 40
KERNELS = Path(fusiond_hfuse.__file__).parent / "kernels"
LOOPS = r"""
#include <algorithm>
#include <time.h>
static long long now() {
    timespec found;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &found);
    return found.tv_sec * 1000000000ll + found.tv_nsec;
}
template <typename Body> static long long nanoseconds(Body body) {
    const long long begun = now();
    body();
    return now() - begun;
}
static inline void count(unsigned* counts, float value, int bins) {
    if (value >= 0.0f && value < 1.0f) ++counts[std::min(static_cast<int>(value * static_cast<float>(bins)), bins - 1)];
}
extern "C" long long hist_in_order(unsigned* counts, const float* x, int n, int bins, int) {
    return nanoseconds([&] { for (int i = 0; i < n; ++i) count(counts, x[i], bins); });
}
extern "C" long long hist_as_threads(unsigned* counts, const float* x, int n, int bins, int step) {
    return nanoseconds([&] {
        for (int start = 0; start < step; ++start)
            for (long long i = start; i < n; i += step) count(counts, x[i], bins);
    });
}
extern "C" long long maxpool_in_order(float* largest, long long* position, const float* image, int planes, int height,
                                      int width, int window, int pad) {
    return nanoseconds([&] {
        long long i = 0;
        for (int plane = 0; plane < planes; ++plane) {
            const float* cells = image + static_cast<long long>(plane) * height * width;
            for (int row = 0; row < height + 2 * pad - window + 1; ++row)
                for (int column = 0; column < width + 2 * pad - window + 1; ++column, ++i) {
                    int top = std::max(row - pad, 0), left = std::max(column - pad, 0);
                    int bottom = std::min(row - pad + window, height), right = std::min(column - pad + window, width);
                    int best_cell = top * width + left;
                    float best = cells[best_cell];
                    for (int y = top; y < bottom; ++y)
                        for (int x = left; x < right; ++x) {
                            float value = cells[y * width + x];
                            if (value > best || value != value) { best = value; best_cell = y * width + x; }
                        }
                    largest[i] = best;
                    position[i] = best_cell;
                }
        }
    });
}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        loops = compiled_loops(Path(folder))
        runtime = native.Runtime(gxx.scheduler())
        result = {
            "compiler": gxx.version(gxx.find() or ""),
            "hist_16M_grid_512": hist(runtime, loops, 512),
            "hist_16M_grid_10000": hist(runtime, loops, 10_000),
            "maxpool_32x64x112x112": maxpool(runtime, loops),
            "scatter": {"idle": scatter(runtime, busy=0), "busy": scatter(runtime, busy=2 * (os.cpu_count() or 1))},
        }
    print(json.dumps(result, indent=1))


def compiled_loops(folder: Path) -> ctypes.CDLL:
    (folder / "loops.cpp").write_text(LOOPS)
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off"]
    subprocess.run([*command, str(folder / "loops.cpp"), "-o", str(folder / "loops.so")], check=True)
    library = ctypes.CDLL(str(folder / "loops.so"))
    for name in ("hist_in_order", "hist_as_threads", "maxpool_in_order"):
        library[name].restype = ctypes.c_longlong
    return library


def entry(runtime: native.Runtime, file: str, name: str) -> native.NativeEntry:
    source = Source(name=file, text=(KERNELS / f"{file}.cu").read_text(), entries=(name,))
    built = gxx.build(source)
    if not isinstance(built, Path):
        raise SystemExit(built.reason)
    return runtime.load(built).entry(gxx.exported(source, name))


def hist(runtime: native.Runtime, loops: ctypes.CDLL, blocks: int) -> dict[str, float]:
    n, bins, threads = 16_000_000, 20, 512
    x = np.random.default_rng(0).random(n, np.float32)
    counts = np.zeros(bins, np.uint32)
    kernel = entry(runtime, "hist", "histogram")
    launch = native.NativeLaunch(grid=(blocks, 1, 1), block=(threads, 1, 1), shared_bytes=4 * bins)
    expected = np.histogram(x, bins, (0, 1))[0]

    def loop(name: str) -> float:
        arguments = (counts.ctypes.data_as(ctypes.c_void_p), x.ctypes.data_as(ctypes.c_void_p))
        return float(loops[name](*arguments, n, bins, blocks * threads))

    def device() -> float:
        counts[:] = 0
        elapsed = run(runtime, kernel, launch, [counts, x, np.int32(n), np.int32(bins)])
        assert abs(counts.astype(np.int64) - expected).max() <= 2  # a value at the edge of a bin may round either way
        return elapsed

    return least(cpu_device=device, in_order=lambda: loop("hist_in_order"), as_threads=lambda: loop("hist_as_threads"))


def maxpool(runtime: native.Runtime, loops: ctypes.CDLL) -> dict[str, float]:
    planes, side, window, pad = 32 * 64, 112, 5, 2
    outputs = planes * side * side
    image = np.random.default_rng(0).standard_normal(planes * side * side, np.float32)
    largest, position = np.zeros(outputs, np.float32), np.zeros(outputs, np.int64)
    kernel = entry(runtime, "maxpool", "max_pool_2d<float>")
    launch = native.NativeLaunch(grid=(10_000, 1, 1), block=(256, 1, 1))
    sizes = [np.int32(value) for value in (outputs, side, side, side, side, window, 1, pad)]

    def loop() -> float:
        arrays = (each.ctypes.data_as(ctypes.c_void_p) for each in (largest, position, image))
        return float(loops.maxpool_in_order(*arrays, planes, side, side, window, pad))

    def device() -> float:
        return run(runtime, kernel, launch, [largest, position, image, *sizes])

    loop()
    expected = largest.copy()
    device()
    assert np.array_equal(largest, expected)
    return least(cpu_device=device, in_order=loop)


def scatter(runtime: native.Runtime, *, busy: int) -> dict[str, float]:
    """By both clocks, beside so many processes that never rest."""
    n, bins = 1_000_000, 20
    arguments = [np.zeros(bins, np.uint32), np.random.default_rng(0).random(n, np.float32), np.int32(n), np.int32(bins)]
    kernel = entry(runtime, "hist", "histogram")
    launch = native.NativeLaunch(grid=(64, 1, 1), block=(512, 1, 1), shared_bytes=4 * bins)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        times: dict[str, list[float]] = {"device": [], "wall": []}
        for _ in range(2 * PAIRS):
            begun = time.perf_counter_ns()
            times["device"].append(run(runtime, kernel, launch, arguments))
            times["wall"].append(time.perf_counter_ns() - begun)
    finally:
        for each in others:
            each.kill()
            each.wait()
    return {f"{name}_percent": _scatter(np.array(found)) for name, found in times.items()}


def _scatter(times: np.ndarray) -> float:
    logs = np.log(times[::2] / times[1::2])
    return round(100 * 1.4826 * float(np.median(np.abs(logs - np.median(logs)))), 2)


def run(
    runtime: native.Runtime, kernel: native.NativeEntry, launch: native.NativeLaunch, arguments: list[native.Argument]
) -> float:
    done = runtime.launch(kernel, launch, arguments)
    if isinstance(done, native.Fault):
        raise SystemExit(done.text)
    return float(done.elapsed_ns)


def least(**runs: Callable[[], float]) -> dict[str, float]:
    """The least of several interleaved runs of each, in milliseconds, and the ratios to the device's."""
    found = {name: min(times) / 1e6 for name, times in _interleaved(runs).items()}
    result = {f"{name}_ms": round(value, 2) for name, value in found.items()}
    device = found.pop("cpu_device")
    return {**result, **{f"ratio_to_{name}": round(device / value, 2) for name, value in found.items()}}


def _interleaved(runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, body in runs.items():
            times[name].append(body())
    return times


if __name__ == "__main__":
    main()
