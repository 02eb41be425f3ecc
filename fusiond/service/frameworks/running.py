"""A plan as steps on a machine: the cpu device's runtime in this process, or the CUDA driver.

Whoever runs a plan hands in all addresses and the stream. Nothing is allocated here, no stream is waited for, and
nothing is loaded after a machine is made: a launch can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fusiond.build.exporting import launch as exported
from fusiond.devices.cpu import native
from fusiond.service.frameworks.launching import LaunchPlan, Step, Unusable

_DYNAMIC_SHARED_BYTES, _CARVEOUT = 8, 9


class LaunchFailed(Exception):
    """A kernel could not be launched, or ended with a fault; the text is why, in one line."""

    step: int = 0  #: Of the plan: those before it are enqueued


class Machine(Protocol):
    """Where a plan runs."""

    def start(self, step: Step, values: Sequence[bytes], stream: int) -> None:
        """Enqueue a launch with the bytes of its arguments. LaunchFailed."""

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        """Enqueue a fill. LaunchFailed."""


class StepPlan:
    """A plan on a machine."""

    def __init__(self, plan: LaunchPlan, machine: Machine) -> None:
        self.scratch, self.steps, self.machine = plan.scratch, plan.steps, machine

    def run(
        self, addresses: Sequence[int], stream: int = 0, values: Mapping[tuple[int, int], bytes] | None = None
    ) -> None:
        """Enqueue all steps; `addresses` of the inputs, the outputs, and the scratch buffers. `values`: (step,
        argument) -> its bytes, in the place of the plan's own. LaunchFailed, with the number of the step."""
        own = values or {}

        def start(number: int, step: Step) -> None:
            given = [own.get((number, at)) or each.filled(addresses) for at, each in enumerate(step.arguments)]
            self.machine.start(step, given, stream)

        self.enqueue(addresses, stream, start)

    def enqueue(self, addresses: Sequence[int], stream: int, start: Callable[[int, Step], None]) -> None:
        """As `run`; `start` enqueues a launch by its number."""
        for number, step in enumerate(self.steps):
            try:
                if isinstance(step, Step):
                    start(number, step)
                else:
                    self.machine.fill(addresses[step.buffer] + step.offset, step.size_bytes, step.byte, stream)
            except LaunchFailed as problem:
                problem.step = number
                raise


class LaidOutPlan:
    """A plan on a CudaMachine whose arguments lie ready, but for the addresses: to be run often, by one at a time."""

    def __init__(self, plan: StepPlan, buffers: int, values: Mapping[tuple[int, int], bytes | int]) -> None:
        """`values`: (step, argument) -> its bytes, or the number of the buffer whose address it is. Unusable."""
        count = buffers + len(plan.scratch)
        self._addresses = (ctypes.c_uint64 * count)()
        self._pack = struct.Struct(f"<{count}Q").pack_into
        self._plan, self._held = plan, []
        self._pointers = []
        for number, step in enumerate(plan.steps):
            arguments = step.arguments if isinstance(step, Step) else ()
            pointers = (ctypes.c_void_p * len(arguments))()
            for at, each in enumerate(arguments):
                value = values.get((number, at))
                if value is None and each.places:
                    if not each.is_address or each.places[0][2]:
                        raise Unusable("an address stands in a struct, or begins within a buffer")
                    value = each.places[0][1]
                if isinstance(value, int):
                    pointers[at] = ctypes.addressof(self._addresses) + 8 * value
                else:
                    held = ctypes.create_string_buffer(value or each.data, len(value or each.data))
                    self._held.append(held)
                    pointers[at] = ctypes.addressof(held)
            self._pointers.append(pointers)

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """As `StepPlan.run`."""
        machine: Any = self._plan.machine
        self._pack(self._addresses, 0, *addresses)
        self._plan.enqueue(
            addresses, stream, lambda number, step: machine.start_at(step, self._pointers[number], stream)
        )


class Processor:
    """The cpu device's runtime, in this process. A launch has ended when `start` returns."""

    def __init__(self, runtime: Path, images: Sequence[Path], entries: Sequence[str], plan: LaunchPlan) -> None:
        """Unusable where something cannot be loaded."""
        try:
            self._runtime = native.Runtime(runtime)
            modules = [self._runtime.load(each) for each in images]
            launches = (each for each in plan.steps if isinstance(each, Step))
            self._entries = {each.entry: modules[each.image].entry(entries[each.entry]) for each in launches}
        except (native.NativeError, OSError) as problem:
            raise Unusable(str(problem)) from None

    def start(self, step: Step, values: Sequence[bytes], stream: int) -> None:
        shape = native.NativeLaunch(
            grid=step.grid, block=step.block, shared_bytes=step.shared_bytes, cooperative=step.cooperative
        )
        done = self._runtime.launch(self._entries[step.entry], shape, list(values))
        if isinstance(done, native.Fault):
            raise LaunchFailed(f"{done.kind.name.lower()}: {done.text}")

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        ctypes.memset(address, byte, size_bytes)


class CudaMachine:
    """The CUDA driver, in the context that is current where this is made: what is loaded stays."""

    def __init__(self, images: Sequence[bytes], entries: Sequence[str], plan: LaunchPlan, library: Any = None) -> None:
        """`library`: in the place of libcuda. Unusable where something cannot be loaded."""
        try:
            self._driver = exported._Driver(library)
            modules = [self._driver.handle("cuModuleLoadData", each) for each in images]
            self._functions: dict[int, int] = {}
            launches = [each for each in plan.steps if isinstance(each, Step)]
            for each in launches:
                if each.entry not in self._functions:
                    symbol = entries[each.entry].encode()
                    found = self._driver.handle("cuModuleGetFunction", modules[each.image], symbol)
                    self._functions[each.entry] = found
            for entry, function in self._functions.items():
                mine = [each for each in launches if each.entry == entry]
                shared, carveout = max(each.shared_bytes for each in mine), max(each.carveout_pct for each in mine)
                if shared:  # with what the kernel has itself it may be more than 48 KiB
                    self._driver("cuFuncSetAttribute", function, _DYNAMIC_SHARED_BYTES, shared)
                if carveout >= 0:
                    self._driver("cuFuncSetAttribute", function, _CARVEOUT, carveout)
        except exported.LaunchError as problem:
            raise Unusable(str(problem)) from None

    def start(self, step: Step, values: Sequence[bytes], stream: int) -> None:
        held = [ctypes.create_string_buffer(each, len(each)) for each in values]
        self.start_at(step, (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)), stream)

    def start_at(self, step: Step, pointers: Any, stream: int) -> None:
        """Enqueue a launch whose arguments lie where an array of pointers says. LaunchFailed."""
        shape = (*step.grid, *step.block, step.shared_bytes)
        try:
            if step.cooperative:
                self._driver("cuLaunchCooperativeKernel", self._functions[step.entry], *shape, stream, pointers)
            else:
                self._driver("cuLaunchKernel", self._functions[step.entry], *shape, stream, pointers, None)
        except exported.LaunchError as problem:
            raise LaunchFailed(str(problem)) from None

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        try:
            self._driver("cuMemsetD8Async", address, byte, size_bytes, stream)
        except exported.LaunchError as problem:
            raise LaunchFailed(str(problem)) from None
