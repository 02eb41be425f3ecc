"""Modules and kernels of Programs, loaded through ctypes: PyCUDA has no cooperative launch and shows no handles."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from typing import Any

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.driver import Driver
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Launch


class DriverModule:
    """What is loaded of one source."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver, handle = driver, c_void_p()
        driver.call("cuModuleLoadData", byref(handle), image)
        self._handle = handle.value or 0

    def get_function(self, name: str) -> DriverFunction:
        function = c_void_p()
        self._driver.call("cuModuleGetFunction", byref(function), self._handle, name.encode())
        return DriverFunction(self._driver, function.value or 0)

    def get_global(self, name: str) -> tuple[int, int]:
        """Address and size in bytes of a variable."""
        address, size = c_ulonglong(), c_size_t()
        self._driver.call("cuModuleGetGlobal_v2", byref(address), byref(size), self._handle, name.encode())
        return address.value, size.value

    def unload(self) -> None:
        self._driver.call("cuModuleUnload", self._handle)


class DriverFunction:
    """A kernel by its handle."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self.handle = handle

    def get_attribute(self, attribute: Any) -> int:
        value = c_int()
        self._driver.call("cuFuncGetAttribute", byref(value), int(attribute), self.handle)
        return value.value

    def set_attribute(self, attribute: Any, value: int) -> None:
        self._driver.call("cuFuncSetAttribute", self.handle, int(attribute), value)

    def check_residency(self, step: Launch, multiprocessors: int) -> None:
        """A grid whose blocks wait for each other must fit as a whole: ExecutionError where it does not."""
        threads, each = step.block[0] * step.block[1] * step.block[2], c_int()
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._driver.call(ask, byref(each), self.handle, threads, step.shared_bytes)
        most, blocks = each.value * multiprocessors, step.grid[0] * step.grid[1] * step.grid[2]
        if blocks > most:
            raise ExecutionError(
                Outcome.LAUNCH_REFUSED,
                f"step {step.name!r}: a cooperative grid of {blocks} blocks; {most} are resident at once"
                f" ({each.value} on each of {multiprocessors} multiprocessors)",
            )

    def launch(self, step: Launch, entry: EntryName, packed: bytes, stream: int) -> None:
        """`packed`: the argument buffer, laid out as `entry` says; it is read before this returns."""
        data = ctypes.create_string_buffer(packed, max(1, len(packed)))
        base, count = ctypes.addressof(data), len(entry.parameters)
        places = (c_void_p * max(1, count))(*(base + each.offset_bytes for each in entry.parameters))
        given = (self.handle, *step.grid, *step.block, step.shared_bytes, stream, places)
        if step.cooperative:
            self._driver.call("cuLaunchCooperativeKernel", *given)
        else:
            self._driver.call("cuLaunchKernel", *given, None)
