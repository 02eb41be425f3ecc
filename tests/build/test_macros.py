"""Macros of a kernel's own change nothing of what it is emulated with."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source

TEXT = """\
#include <cooperative_groups.h>
# include "cuda_fp16.h"
#include <cuda_bf16.h>
extern "C" __global__ void set(int* y) { y[threadIdx.x] = NAME + threadIdx.x; }
"""


@pytest.mark.parametrize("name", ["N", "T", "Thread", "result", "value", "SIZE"])
@pytest.mark.parametrize("races", [False, True])
def test_names_of_the_runtime_may_be_macros(name: str, races: bool) -> None:
    source = Source(name="s", text=TEXT.replace("NAME", name), entries=("set",), defines=((name, "48"),))
    built = gxx.build(source, races=races)
    assert isinstance(built, Path), built
    if not races:
        y = Buffer(name="y", dtype="int32", elements=32, role=Role.OUTPUT)
        step = Launch(name="a", source="s", entry="set", grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0,
                      arguments=(Pointer(buffer="y"),))  # fmt: skip
        loaded = CpuExecutor().load(Program(name="p", buffers=(y,), sources=(source,), steps=(step,)), {"s": built})
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), 48 + np.arange(32))
