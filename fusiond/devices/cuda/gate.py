"""A kernel that holds a stream until the host has enqueued all the rest, so that Python's launch cost is in no
sample.

    host:    close | enqueue start event, steps, end event              | open | wait
    device:        | spin . . . . . . . . . . . . . . . . . . . . . . . . | start, steps back to back, end

The kernel is PTX that the driver compiles when it is loaded: no nvcc is needed where a bundle runs. It gives up by
itself, because a full launch queue would block the host, and the host is who opens the gate.
"""

from typing import Any

import numpy as np

LEAST_LIMIT_US = 20_000  #: What a busy machine may take a process off its core for
LIMIT_US_A_COMMAND = 100  #: Ten times what Python takes to enqueue one
MOST_LIMIT_US = 1_000_000  #: A board that also draws a screen ends kernels after two seconds

PTX = """\
.version 6.4
.target sm_75
.address_size 64

// flags[0]: the host opens the gate; flags[1]: the kernel says that it gave up waiting.
.visible .entry fusiond_gate(.param .u64 flags, .param .u64 limit_ns)
{
    .reg .pred %p<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<6>;

    ld.param.u64 %rd1, [flags];
    ld.param.u64 %rd2, [limit_ns];
    mov.u64 %rd3, %globaltimer;
WAIT:
    ld.volatile.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra OPEN;
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p2, %rd5, %rd2;
    @%p2 bra WAIT;
    mov.u32 %r2, 1;
    st.volatile.u32 [%rd1+4], %r2;
OPEN:
    ret;
}
"""


class Gate:
    """One gate per executor. The flags lie in pinned host memory that the device sees."""

    def __init__(self, cuda: Any) -> None:
        self._module = cuda.module_from_buffer(PTX.encode())
        self._kernel = self._module.get_function("fusiond_gate")
        self._flags = cuda.pagelocked_empty(2, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
        self._address = np.uint64(int(self._flags.base.get_device_pointer()))
        self._flags[:] = (1, 0)

    def close(self, stream: Any, *, commands: int, patience: int = 1) -> None:
        """Hold the stream from here on, until so many commands are enqueued; `patience` times as long as that should
        take at most. The stream must be idle."""
        self.hold(stream, min(MOST_LIMIT_US, patience * (LEAST_LIMIT_US + LIMIT_US_A_COMMAND * commands)))

    def hold(self, stream: Any, limit_us: int) -> None:
        """Hold the stream until `open`, or for so long."""
        self._flags[:] = 0
        self._kernel(self._address, np.uint64(limit_us * 1000), grid=(1, 1), block=(1, 1, 1), stream=stream)

    def open(self) -> None:
        self._flags[0] = 1

    @property
    def gave_up(self) -> bool:
        """Whether the kernel stopped waiting before `open`. Ask after the stream has ended."""
        return bool(self._flags[1])
