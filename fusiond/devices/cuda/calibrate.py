"""Measures what timing itself costs on a GPU, and the GPU's ceilings: `fusiond calibrate`.

Everything runs in the executor's own context, behind its gate, with kernels of PTX; it takes a few seconds. The names
of the figures are those of `fusiond.devices.calibration`.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fusiond.devices.cuda.canary import Canary
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.gate import Gate
from fusiond.devices.cuda.spans import Spans
from fusiond.devices.timing import WarmUp, warm_up
from fusiond.model.outcomes import median

PAUSE_SECS = 1.0  #: So long the device rests before its clock is watched
MOST_RAMP_SECS = 5.0
SPANS = 101
MANY = 101  #: Kernels in one span, or in one graph
COPY_BYTES = 256 << 20
TIMES = 5  #: A ceiling is the best of so many
CHAINS, UNROLLED = 8, 8
ROUNDS = 1 << 15  #: Multiply-adds of each chain: some 10 ms on a large board
BLOCKS_PER_SM, THREADS = 8, 256


def _fma_ptx() -> str:
    chains = [f"%f{1 + chain}" for chain in range(CHAINS)]
    steps = "".join(f"    fma.rn.f32 {each}, {each}, %f0, %f0;\n" for _ in range(UNROLLED) for each in chains)
    begin = "".join(f"    add.f32 {each}, %f9, 0f{0x3F800000 + index:08X};\n" for index, each in enumerate(chains))
    end = "".join(f"    add.f32 {chains[0]}, {chains[0]}, {each};\n" for each in chains[1:])
    return f"""\
.version 6.4
.target sm_75
.address_size 64

.visible .entry fusiond_empty()
{{
    ret;
}}

// {CHAINS} independent chains of multiply-adds a thread, `rounds` long each.
.visible .entry fusiond_fma(.param .u64 out, .param .u32 rounds)
{{
    .reg .pred %p<2>;
    .reg .f32 %f<10>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;

    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f9, %r2;
    mov.f32 %f0, 0f3F7FFFF0;
{begin}    mov.u32 %r3, 0;
LOOP:
{steps}    add.u32 %r3, %r3, {UNROLLED};
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra LOOP;
{end}    st.global.f32 [%rd1], {chains[0]};
    ret;
}}
"""


PTX = _fma_ptx()


class Calibrator:
    """Of one executor."""

    def __init__(
        self, cuda: Any, driver: Driver, gate: Gate, spans: Spans, canary: Canary, multiprocessors: int
    ) -> None:
        self._cuda, self._driver, self._gate, self._spans, self._canary = cuda, driver, gate, spans, canary
        self._module = cuda.module_from_buffer(PTX.encode())
        self._empty = self._module.get_function("fusiond_empty")
        self._fma = self._module.get_function("fusiond_fma")
        self._blocks = BLOCKS_PER_SM * multiprocessors
        self._out = cuda.mem_alloc(4)
        self._stream = cuda.Stream()

    def figures(self) -> dict[str, float]:
        """All figures, by their names."""
        found = self._clock()
        found |= self._spread()
        one, many = self._kernels(1), self._kernels(MANY)
        found["empty_kernel_us"] = one
        found["kernel_gap_us"] = (many - one) / (MANY - 1)
        found["graph_node_us"] = (self._graph_us(MANY) - self._graph_us(1)) / (MANY - 1)
        found["release_us"] = self._release_us()
        found["flush_us"] = median(self._gated_us(lambda: self._spans.flush(self._stream), TIMES))
        found |= self._copies()
        self._settle()  # copies need no clock, and may have let it fall
        seconds = min(self._gated_us(self._launch_fma, TIMES)) / 1e6
        found["fp32_tflops"] = 2 * CHAINS * ROUNDS * THREADS * self._blocks / seconds / 1e12
        return found

    # --- the clock ---

    def _clock(self) -> dict[str, float]:
        """From rest to a steady clock, under work."""
        time.sleep(PAUSE_SECS)
        rested = self._canary.clocked()
        if rested is None:
            return {}
        settled = self._settle()
        steady = self._canary.clocked() or rested
        found = {"rested_mhz": rested.mhz, "steady_mhz": steady.mhz, "settle_secs": settled.secs}
        return {**found, "globaltimer_ns": float(rested.step_ns)}

    def _settle(self) -> WarmUp:
        """Work until the clock is steady."""

        def work() -> None:
            self._launch_fma()
            self._stream.synchronize()

        return warm_up(work, self._canary.mhz, least=1, most_secs=MOST_RAMP_SECS)

    # --- what the ruler costs ---

    def _spread(self) -> dict[str, float]:
        spans = sorted(self._spans.empty_us() for _ in range(SPANS))
        tenth = len(spans) // 10
        different = sorted({round(each, 3) for each in spans})
        step_us = min((more - less for less, more in itertools.pairwise(different)), default=0.0)
        low_us, high_us = spans[tenth], spans[-1 - tenth]
        found = {"event_us": median(tuple(spans)), "event_low_us": low_us, "event_high_us": high_us}
        return {**found, "event_step_us": step_us}

    def _kernels(self, count: int) -> float:
        def enqueue() -> None:
            for _ in range(count):
                self._launch_empty()

        return median(self._gated_us(enqueue, SPANS // 4, count))

    def _graph_us(self, count: int) -> float:
        self._driver.begin_capture(self._stream.handle)
        for _ in range(count):
            self._launch_empty()
        graph = self._driver.end_capture(self._stream.handle)
        try:
            return median(self._gated_us(lambda: self._driver.launch_graph(graph, self._stream.handle), SPANS // 4))
        finally:
            self._driver.destroy_graph(graph)

    def _release_us(self) -> float:
        """From the gate's opening until the host sees that the stream has ended."""
        found = []
        for _ in range(SPANS):
            self._gate.close(self._stream, commands=0)
            begun = time.perf_counter_ns()
            self._gate.open()
            self._stream.synchronize()
            found.append((time.perf_counter_ns() - begun) / 1000)
        return median(tuple(found))

    # --- ceilings ---

    def _copies(self) -> dict[str, float]:
        """In 1e9 bytes per second; within the device, bytes read and bytes written both count."""
        size = min(COPY_BYTES, self._cuda.mem_get_info()[0] // 8)
        one, other = self._cuda.mem_alloc(size), self._cuda.mem_alloc(size)
        pinned = self._cuda.pagelocked_empty(size, np.uint8)
        ways: dict[str, tuple[int, Callable[[], None]]] = {
            "copy_gbs": (2, lambda: self._cuda.memcpy_dtod_async(int(other), int(one), size, self._stream)),
            "to_device_gbs": (1, lambda: self._cuda.memcpy_htod_async(int(one), pinned, self._stream)),
            "to_host_gbs": (1, lambda: self._cuda.memcpy_dtoh_async(pinned, int(one), self._stream)),
        }
        try:
            return {name: times * size / min(self._gated_us(copy, TIMES)) / 1e3 for name, (times, copy) in ways.items()}
        finally:
            one.free()
            other.free()

    # --- enqueuing ---

    def _gated_us(self, enqueue: Callable[[], None], times: int, commands: int = 1) -> tuple[float, ...]:
        enqueue()  # code is loaded, a graph uploaded: behind the gate that would wait for the gate
        self._stream.synchronize()
        return tuple(self._spans.between_us(self._stream, enqueue, commands) for _ in range(times))

    def _launch_empty(self) -> None:
        self._empty(grid=(1, 1), block=(1, 1, 1), stream=self._stream)

    def _launch_fma(self) -> None:
        shape = {"grid": (self._blocks, 1), "block": (THREADS, 1, 1)}
        self._fma(np.uint64(int(self._out)), np.uint32(ROUNDS), **shape, stream=self._stream)
