"""A kernel that is always the same: when it takes longer, the device has become slower, whatever its sensors say.

One block of 256 threads on each multiprocessor does a chain of multiply-adds in registers: its time is that of the
clock, and of whoever else computes there. It is PTX that the driver compiles when it is loaded, as the gate is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 4096
"""Some 10 us at 1.8 GHz: a chain of this many dependent operations, 4 cycles each."""
SAMPLES = 3

PTX = """\
.version 6.4
.target sm_75
.address_size 64

.visible .entry fusiond_canary(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;

    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, 0f3F7FFFF0;
    mov.u32 %r3, 0;
LOOP:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra LOOP;
    st.global.f32 [%rd1], %f1;
    ret;
}
"""


class Canary:
    """One per executor."""

    def __init__(self, cuda: Any, multiprocessors: int) -> None:
        self._cuda = cuda
        self._module = cuda.module_from_buffer(PTX.encode())
        self._kernel = self._module.get_function("fusiond_canary")
        self._out = cuda.mem_alloc(4)
        self._stream = cuda.Stream()
        self._grid = (multiprocessors, 1)
        self._run()  # the first one loads the code

    def time_us(self) -> float:
        """The least of a few runs, in microseconds: what disturbs it only makes it longer."""
        return min(self._run() for _ in range(SAMPLES))

    def _run(self) -> float:
        begin, end = self._cuda.Event(), self._cuda.Event()
        begin.record(self._stream)
        self._kernel(
            np.uint64(int(self._out)), np.uint32(ROUNDS), grid=self._grid, block=(256, 1, 1), stream=self._stream
        )
        end.record(self._stream)
        end.synchronize()
        return float(end.time_since(begin)) * 1000
