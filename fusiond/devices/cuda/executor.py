"""One GPU in the child process: its context (PyCUDA's), its sensors, and Programs on it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusiond.devices.base import DataPlane
from fusiond.devices.cuda.calibrate import Calibrator
from fusiond.devices.cuda.canary import Canary
from fusiond.devices.cuda.data import DeviceData
from fusiond.devices.cuda.description import NO_DRIVER, NO_PYCUDA, describe
from fusiond.devices.cuda.driver import Attribute, Driver, DriverError, DriverMissing
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.gate import Gate
from fusiond.devices.cuda.loaded import CudaProgram
from fusiond.devices.cuda.memory import device_bytes
from fusiond.devices.cuda.nvml import Sensors
from fusiond.devices.cuda.spans import Spans
from fusiond.model.errors import DeviceError
from fusiond.model.outcomes import DeviceState
from fusiond.model.program import Program, problems


class CudaExecutor:
    """`fusiond.devices.base.Executor` for one GPU. Its context is current from `open` to `close`."""

    def __init__(
        self, cuda: Any, driver: Driver, index: int, sensors: Sensors | None = None, *, primary: bool = False
    ) -> None:
        """`cuda` is the module `pycuda.driver`, started. `primary`: in the device's primary context, which other CUDA
        libraries of this process use, too. DeviceError when the device is not there."""
        if index >= driver.count():
            raise DeviceError(f"cuda:{index}: the driver shows {driver.count()} GPUs")
        info = describe(driver, index)
        if info is None:
            raise DeviceError(f"cuda:{index}: {driver.name(index)} is older than compute capability 7.5")
        self.cuda, self.driver, self.index = cuda, driver, index
        self._kept = DeviceData(cuda, info.limits.multiprocessors)
        self.data: DataPlane = self._kept
        self._limits = info.limits
        self._sensors = sensors or Sensors(info.uuid, own_context=True)
        # Twice the second-level cache, so that nothing of a Program stays in it.
        self._flush_bytes = max(1, 2 * driver.attribute(index, Attribute.L2_CACHE_BYTES))
        device = cuda.Device(index)
        self._context: Any = device.retain_primary_context() if primary else device.make_context()
        if primary:
            self._context.push()
        try:
            with named("loading the gate"):
                self._gate = Gate(cuda)
            with named("loading the canary"):
                self._canary = Canary(cuda, info.limits.multiprocessors)
            with named("allocating what flushes the cache"):  # now: an allocation may wait, and a gate may be closed
                self._flush = cuda.mem_alloc(self._flush_bytes)
            with named("timing nothing"):
                self.spans = Spans(cuda, self._gate, self._flush_on)  #: Also for whoever enqueues what is timed himself
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, index: int, *, primary: bool = False) -> CudaExecutor:
        """With the PyCUDA and the driver of this machine. DeviceError with the remedy when one is missing."""
        try:
            driver = Driver()
        except DriverMissing as problem:
            raise DeviceError(f"cuda:{index}: {problem}: {NO_DRIVER}") from None
        try:
            import pycuda.driver as cuda  # heavy, optional, and only ever here
        except ImportError as problem:
            raise DeviceError(f"cuda:{index}: {problem}; {NO_PYCUDA}") from None
        cuda.init()
        try:
            executor = cls(cuda, driver, index, primary=primary)
        except DriverError as problem:
            raise DeviceError(f"cuda:{index}: {problem}") from None
        atexit.register(executor.close)  # PyCUDA aborts a process that ends with a context on its stack
        return executor

    def load(self, program: Program, binaries: Mapping[str, Path]) -> CudaProgram:
        if not problems(program):
            with named("making room"):
                self._kept.make_room(device_bytes(program))
        return CudaProgram(self.cuda, self.driver, self._limits, self.spans, program, binaries)

    def state(self) -> DeviceState:
        """What events cost is measured then, too: at the clock of the batch that begins."""
        state = self._sensors.state()
        with named("timing nothing"):
            self.spans.measure_events()
        return dataclasses.replace(state, canary_mhz=self.clock_mhz())

    def clock_mhz(self) -> float | None:
        with named("running the canary"):
            return self._canary.mhz()

    def calibrate(self) -> dict[str, float]:
        with named("calibrating"):
            return Calibrator(
                self.cuda, self.driver, self._gate, self.spans, self._canary, self._limits.multiprocessors
            ).figures()

    def _flush_on(self, stream: Any) -> None:
        """Enqueue what leaves nothing of a Program in the cache."""
        self.cuda.memset_d8_async(int(self._flush), 0, self._flush_bytes, stream)

    def close(self) -> None:
        """Leave the context; may be called twice. After a crash the driver refuses, which is no news."""
        context, self._context = self._context, None
        if context is None:
            return
        for held in ("_flush", "spans", "_gate", "_canary"):  # none, where it could not be made
            self.__dict__.pop(held, None)
        self._kept.close()
        context.pop()
        with contextlib.suppress(self.cuda.Error):
            context.detach()
