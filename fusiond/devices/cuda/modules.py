"""Modules and kernels of Programs, loaded through ctypes: PyCUDA has no cooperative launch and shows no handles; and
arguments as bytes, laid out as a kernel's entry table says. A mismatch is found here: the driver would read on."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from typing import Any

from fusiond.devices.base import LaunchRefused
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.host import value_bytes
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.program import HostCall, Launch


class DriverModule:
    """What is loaded of one source."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver, self._handle = driver, driver.asked(c_void_p, "cuModuleLoadData", image)

    def get_function(self, name: str) -> DriverFunction:
        found = self._driver.asked(c_void_p, "cuModuleGetFunction", self._handle, name.encode())
        return DriverFunction(self._driver, found)

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
        return self._driver.asked(c_int, "cuFuncGetAttribute", int(attribute), self.handle)

    def set_attribute(self, attribute: Any, value: int) -> None:
        self._driver.call("cuFuncSetAttribute", self.handle, int(attribute), value)

    def check_residency(self, step: Launch, multiprocessors: int) -> None:
        """A grid whose blocks wait for each other must fit as a whole: ExecutionError where it does not."""
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        each = self._driver.asked(c_int, ask, self.handle, math.prod(step.block), step.shared_bytes)
        most, blocks = each * multiprocessors, math.prod(step.grid)
        if blocks > most:
            raise LaunchRefused(
                f"step {step.name!r}: a cooperative grid of {blocks} blocks; {most} are resident at once"
                f" ({each} on each of {multiprocessors} multiprocessors)"
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


def check_arguments(step: Launch | HostCall, sizes: tuple[int, ...]) -> None:
    """Refuse a step whose arguments are not those of its function: number, and bytes of each."""
    given = [len(value_bytes(each, lambda _: 0)) for each in step.arguments]
    if len(given) != len(sizes):
        raise LaunchRefused(f"step {step.name!r} passes {len(given)} arguments, {step.entry} takes {len(sizes)}")
    for index, (have, want) in enumerate(zip(given, sizes, strict=True)):
        if have != want:
            raise LaunchRefused(
                f"step {step.name!r}: argument {index} has {have} bytes, {step.entry} takes {want} there"
            )


def pack(step: Launch, entry: EntryName, address: Callable[[str], int]) -> bytes:
    """The argument buffer of a launch."""
    packed = bytearray(entry.argument_bytes)
    for parameter, argument in zip(entry.parameters, step.arguments, strict=True):
        start = parameter.offset_bytes
        packed[start : start + parameter.size_bytes] = value_bytes(argument, address)
    return bytes(packed)
