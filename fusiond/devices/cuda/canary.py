"""A kernel that measures the clock of the multiprocessors: cycles (`clock64`) over time (`globaltimer`), both read on
the device, so that nothing of a launch, of Python or of the driver is in it.

    globaltimer  ____|    |    |    |  ...  |    |____      steps of 32 ns to 1 us, by the board
    clock64          ^ first change           ^ the last of TICKS changes

One thread on each multiprocessor watches globaltimer change. The result is the median over the multiprocessors. It is
PTX that the driver compiles when it is loaded, as the gate is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusiond.model.outcomes import median

TICKS = 1000
"""Changes of globaltimer that are watched: either end is known to a fraction of one, so the clock to 0.1 %. Some 32 us
where a step is 32 ns, 1 ms where it is 1 us."""
LEAST_TICKS = 100  #: With fewer, the clock would be known to worse than 1 %: nothing is said
LIMIT_CYCLES = 1 << 25  #: The kernel ends after so many (some 20 ms), though globaltimer stood still

PTX = """\
.version 6.4
.target sm_75
.address_size 64

// out[4 * block]: cycles, nanoseconds, changes of globaltimer, its least step in nanoseconds
.visible .entry fusiond_canary(.param .u64 out, .param .u64 limit_cycles, .param .u32 ticks)
{
    .reg .pred %p<5>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<16>;

    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [ticks];
    ld.param.u64 %rd2, [limit_cycles];
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd3, %r2, 32;
    add.u64 %rd1, %rd1, %rd3;
    mov.u32 %r3, 0;                 // changes
    mov.u64 %rd9, -1;               // the least step
    mov.u64 %rd4, %clock64;
    mov.u64 %rd5, %rd4;
    mov.u64 %rd6, %globaltimer;
    mov.u64 %rd7, %rd6;
EDGE:
    mov.u64 %rd7, %globaltimer;
    mov.u64 %rd5, %clock64;
    sub.u64 %rd8, %rd5, %rd4;
    setp.gt.u64 %p1, %rd8, %rd2;
    @%p1 bra SAY;
    setp.eq.u64 %p2, %rd7, %rd6;
    @%p2 bra EDGE;
SAY:
    mov.u64 %rd4, %rd5;             // cycles and nanoseconds at the first change
    mov.u64 %rd6, %rd7;
    mov.u64 %rd10, %rd5;            // and at the last one so far
    mov.u64 %rd11, %rd7;
TICK:
    mov.u64 %rd12, %globaltimer;
    mov.u64 %rd13, %clock64;
    sub.u64 %rd8, %rd13, %rd4;
    setp.gt.u64 %p1, %rd8, %rd2;
    @%p1 bra DONE;
    setp.eq.u64 %p2, %rd12, %rd11;
    @%p2 bra TICK;
    sub.u64 %rd14, %rd12, %rd11;
    min.u64 %rd9, %rd9, %rd14;
    mov.u64 %rd10, %rd13;
    mov.u64 %rd11, %rd12;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r3, %r1;
    @%p3 bra TICK;
DONE:
    sub.u64 %rd14, %rd10, %rd4;
    st.global.u64 [%rd1], %rd14;
    sub.u64 %rd15, %rd11, %rd6;
    st.global.u64 [%rd1+8], %rd15;
    cvt.u64.u32 %rd14, %r3;
    st.global.u64 [%rd1+16], %rd14;
    st.global.u64 [%rd1+24], %rd9;
    ret;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocked:
    """What the canary saw."""

    mhz: float  #: The median over the multiprocessors
    step_ns: int  #: The least step of globaltimer that any of them saw


class Canary:
    """One per executor."""

    def __init__(self, cuda: Any, multiprocessors: int) -> None:
        self._cuda = cuda
        self._module = cuda.module_from_buffer(PTX.encode())
        self._kernel = self._module.get_function("fusiond_canary")
        self._blocks = multiprocessors
        self._seen = np.zeros((multiprocessors, 4), np.uint64)
        self._out = cuda.mem_alloc(self._seen.nbytes)
        self._stream = cuda.Stream()
        self.clocked()  # the first one loads the code

    def mhz(self) -> float | None:
        clocked = self.clocked()
        return clocked.mhz if clocked else None

    def clocked(self) -> Clocked | None:
        """The clock now; None where globaltimer steps too seldom to say. Takes TICKS of its steps."""
        given = np.uint64(int(self._out)), np.uint64(LIMIT_CYCLES), np.uint32(TICKS)
        self._kernel(*given, grid=(self._blocks, 1), block=(1, 1, 1), stream=self._stream)
        self._stream.synchronize()
        self._cuda.memcpy_dtoh(self._seen, int(self._out))
        sure = self._seen[self._seen[:, 2] >= LEAST_TICKS]
        if not len(sure):
            return None
        clocks = tuple(float(cycles) / float(nanoseconds) * 1000 for cycles, nanoseconds in sure[:, :2])
        return Clocked(mhz=median(clocks), step_ns=int(sure[:, 3].min()))
