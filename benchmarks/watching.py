"""What `fusiond capture` costs a launch on a GPU: `python -m benchmarks.watching [--launches N]`, JSON on standard
output.

A program calls the driver without a GPU that the tests have: as it is, under the library that notes launches, and
under it when it has noted enough (`--launches 1`). Processes in turns, the median of their batches' processor time;
the goal is less than 2 us.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from fusiond.build import gxx
from fusiond.cuda.capture import driver_watcher

LIMIT_US = 2.0
TURNS = 5
BATCH = 1000
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <dlfcn.h>
template <class... A> using Call = int (*)(A...);
static double now_us() {
    timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}
int main(int, char** words) {
    int launches = atoi(words[1]), batch = atoi(words[2]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    auto of = [&](const char* name) { return dlsym(driver, name); };
    unsigned long long x, y;
    int n = 0;
    ((Call<void**, unsigned, int>)of("cuCtxCreate_v2"))(&context, 0, 0);
    ((Call<void**, const void*>)of("cuModuleLoadData"))(&module, "a module");
    ((Call<void**, void*, const char*>)of("cuModuleGetFunction"))(&function, module, "add");
    auto allocate = (Call<unsigned long long*, size_t>)of("cuMemAlloc_v2");
    allocate(&x, 4096), allocate(&y, 4096);
    for (int i = 0; i < 1000; i++) { unsigned long long other; allocate(&other, 4096); }
    void* values[] = {&x, &y, &n};
    using U = unsigned;
    auto launch = (Call<void*, U, U, U, U, U, U, U, void*, void**, void**>)of("cuLaunchKernel");
    auto wait = (Call<>)of("cuCtxSynchronize");
    auto clear = (void (*)())of("fake_clear");
    for (int i = 0; i < launches; i += batch) {
        double begin = now_us();
        for (int k = 0; k < batch; k++) launch(function, 8, 1, 1, 128, 1, 1, 0, nullptr, values, nullptr);
        printf("%f\n", (now_us() - begin) / batch);
        wait(), clear();
    }
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launches", type=int, default=50_000, help="of each process; default: 50000")
    print(json.dumps(measured(parser.parse_args().launches)))


def measured(launches: int) -> dict[str, object]:
    from tests.devices.cuda import stand_in  # only here: a GPU box has no g++

    with tempfile.TemporaryDirectory(prefix="fusiond-watching-") as place:
        folder = Path(place)
        driver = stand_in.built(folder)
        (folder / "program.cpp").write_text(PROGRAM)
        command = [gxx.find() or "", "-std=c++20", "-O2", "-w", str(folder / "program.cpp"), "-ldl"]
        subprocess.run([*command, "-o", str(folder / "program")], check=True)
        plain = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent)}
        watched = driver_watcher.environment({**plain, "FUSIOND_CAPTURE_OUT": str(folder / "run")}, folder / "run")
        ways = {"plain": plain, "noted": watched, "noted enough": {**watched, "FUSIOND_CAPTURE_LAUNCHES": "1"}}
        batches: dict[str, list[float]] = {each: [] for each in ways}
        for _ in range(TURNS):
            for name, environment in ways.items():
                words = [str(folder / "program"), str(launches), str(BATCH)]
                done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                batches[name] += map(float, done.stdout.split())
        traced = sum(each.stat().st_size for each in (folder / "run").glob("*.trace"))
    launch_us = {name: round(statistics.median(each), 3) for name, each in batches.items()}
    return {
        "launches": TURNS * launches,
        "launch_us": launch_us,
        "more_us": {name: round(us - launch_us["plain"], 3) for name, us in launch_us.items() if name != "plain"},
        "trace_bytes": round(traced / (TURNS * launches)),
        "limit_us": LIMIT_US,
    }


if __name__ == "__main__":
    main()
