"""`python -m benchmarks.frameworks.triton_calls`: JSON on standard output, and results/cpu/triton_calls.json.

What a launch costs on the host, in turns: the kernel itself with the constants in the call (`fn[grid](...)`), under
`triton.autotune` with a known key, and under `fusiond.triton.autotune` with a known answer. Where no GPU is, the last
step of Triton's launcher, the driver's call, does nothing: all three are without it. And what the first call with a new
key takes, in a store that knows the times of 20 configs and which of them is the best.
"""

# ruff: noqa: N803
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.driver import driver

import fusiond.triton
from benchmarks import runs

ROUNDS, CALLS, STARTS = 200, 500, 9
folder = tempfile.TemporaryDirectory()
KEPT = runs.RESULTS / "cpu" / "triton_calls.json"


class NoDriver(DriverBase):  # type: ignore[misc]
    """Compiles for sm_90, and launches nothing."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (1, 1, 32, 0, 1024), get_device_properties=lambda _: {"max_shared_mem": 1 << 18},
            unload_module=lambda _: None,
        )  # fmt: skip
        self.get_current_device, self.get_current_stream = lambda: 0, lambda _: 0
        self.launcher_cls = lambda *_: lambda *_: None

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_benchmarker(self) -> Any:
        return lambda call, **_: [1.0] * 3

    is_active = classmethod(lambda _: True)
    get_active_torch_device = map_python_to_cpp_type = lambda *_: None


class DeviceArray:
    def __init__(self, *shape: int) -> None:
        self._array = np.zeros(shape, np.float32)
        self.dtype = "float32"
        self.__cuda_array_interface__ = {**self._array.__array_interface__, "version": 3}

    def data_ptr(self) -> int:
        return self._array.ctypes.data


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def tiles(a, b, c, m, n, k, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(c + rows[:, None] * scm + columns[None, :] * scn, tl.load(a + rows * sam)[:, None] + tl.load(b + columns))


def main() -> None:
    os.environ.update(TRITON_CACHE_DIR=folder.name, TRITON_DEFAULT_FP_FUSION="1", FUSIOND_CACHE=folder.name)
    driver.set_active(NoDriver())
    CUDABackend.make_cubin = lambda *_: b""
    x = DeviceArray(1 << 16)
    few, many = (x, x, x, 4096), (x, x, x, 512, 256, 128, 128, 1, 256, 1, 256, 1)
    result = {
        "date": time.strftime("%Y-%m-%d"), "command": "python -m benchmarks.frameworks.triton_calls",
        "triton": triton.__version__,
        "add_5_arguments_us": _calls(add, few, ["n"], {"BLOCK": 1024}, {"BLOCK": 512}),
        "tiles_14_arguments_us": _calls(tiles, many, ["m", "n", "k"], {"BM": 64, "BN": 64}, {"BM": 32, "BN": 64}),
        "first_call_of_a_key_with_20_configs_ms": _first(few),
        "gpu": "not yet measured on a GPU",
    }  # fmt: skip
    runs.write(KEPT, result)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


def _calls(kernel: Any, given: tuple[Any, ...], key: list[str], *constants: dict[str, int]) -> dict[str, float]:
    """Microseconds of a call, medians of rounds in turns; `more`: of the differences to the kernel itself."""
    grid, configs = (64, 1, 1), [triton.Config(each) for each in constants]
    theirs = triton.autotune(configs, key=key)(kernel)
    ours = fusiond.triton.autotune(configs, key=key, db=Path(folder.name) / "none.sqlite")(kernel)
    first = configs[0].all_kwargs()
    found: dict[str, list[float]] = {"kernel": [], "triton": [], "fusiond": []}
    for _ in range(ROUNDS):
        for name, one, more in (("kernel", kernel, first), ("triton", theirs, {}), ("fusiond", ours, {})):
            launch = one[grid]
            launch(*given, **more)
            began = time.perf_counter()
            for _ in range(CALLS):
                launch(*given, **more)
            found[name].append((time.perf_counter() - began) / CALLS * 1e6)
    medians = {name: round(statistics.median(each), 2) for name, each in found.items()}
    for name in ("triton", "fusiond"):
        more = [one - other for one, other in zip(found[name], found["kernel"], strict=True)]
        medians[f"{name}_more"] = round(statistics.median(more), 2)
    return {**medians, "ratio": round(medians["fusiond"] / medians["kernel"], 3)}


def _first(given: tuple[Any, ...]) -> dict[str, float]:
    """Milliseconds, medians, with all times and the best of the configs in the store."""
    configs = [triton.Config({"BLOCK": 1024}, num_warps=1 << each % 5, num_stages=1 + each // 5) for each in range(20)]
    options: dict[str, Any] = {"always": True, "device": "cpu", "db": Path(folder.name) / "store.sqlite"}
    fusiond.triton.autotune(configs, key=["n"], block=True, **options)(add)[64, 1, 1](*given)
    took: dict[str, list[float]] = {"kernel": [], "fusiond": []}
    for _ in range(STARTS):
        ours = fusiond.triton.autotune(configs, key=["n"], **options)(add)
        for name, one, more in (("fusiond", ours, {}), ("kernel", add, configs[0].all_kwargs())):
            began = time.perf_counter()
            one[64, 1, 1](*given, **more)
            took[name].append((time.perf_counter() - began) * 1e3)
        assert not any(each.lacks for each in ours.tuned.values())
    return {name: round(statistics.median(each), 3) for name, each in took.items()}


if __name__ == "__main__":
    main()
