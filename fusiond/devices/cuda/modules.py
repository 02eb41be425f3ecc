"""Modules and kernels of Programs, loaded through ctypes: PyCUDA has no cooperative launch and shows no handles."""

from __future__ import annotations

import ctypes
from typing import Any

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.driver import Driver
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Launch


class DriverModule:
    """What is loaded of one source."""

    def __init__(self, driver: Driver, image: bytes) -> None:
        self._driver = driver
        self._handle = driver.load_module(image)

    def get_function(self, name: str) -> DriverFunction:
        return DriverFunction(self._driver, self._driver.function(self._handle, name))

    def get_global(self, name: str) -> tuple[int, int]:
        return self._driver.variable(self._handle, name)

    def unload(self) -> None:
        self._driver.unload_module(self._handle)


class DriverFunction:
    """A kernel by its handle."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self.handle = handle

    def get_attribute(self, attribute: Any) -> int:
        return self._driver.function_attribute(self.handle, int(attribute))

    def set_attribute(self, attribute: Any, value: int) -> None:
        self._driver.set_function_attribute(self.handle, int(attribute), value)

    def check_residency(self, step: Launch, multiprocessors: int) -> None:
        """A grid whose blocks wait for each other must fit as a whole: ExecutionError where it does not."""
        threads = step.block[0] * step.block[1] * step.block[2]
        each = self._driver.resident_blocks(self.handle, threads, step.shared_bytes)
        most, blocks = each * multiprocessors, step.grid[0] * step.grid[1] * step.grid[2]
        if blocks > most:
            raise ExecutionError(
                Outcome.LAUNCH_REFUSED,
                f"step {step.name!r}: a cooperative grid of {blocks} blocks; {most} are resident at once"
                f" ({each} on each of {multiprocessors} multiprocessors)",
            )

    def launch(self, step: Launch, entry: EntryName, packed: bytes, stream: int) -> None:
        """`packed`: the argument buffer, laid out as `entry` says."""
        data = ctypes.create_string_buffer(packed, max(1, len(packed)))
        base = ctypes.addressof(data)
        values = [base + each.offset_bytes for each in entry.parameters]
        self._driver.launch(
            self.handle, step.grid, step.block, step.shared_bytes, stream, values, cooperative=step.cooperative
        )
