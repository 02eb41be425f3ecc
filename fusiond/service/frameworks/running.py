"""A plan as steps on a machine: the cpu device's runtime in this process, or the CUDA driver.

Whoever runs a plan hands in all addresses and the stream. Nothing is allocated here, no stream is waited for, and
nothing is loaded after a machine is made: a launch can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fusiond.build.exporting import launch as exported
from fusiond.devices.cpu import native
from fusiond.service.frameworks.launching import ADDRESS, LAUNCH, STRUCT, LaunchPlan, Unusable

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


@dataclass(frozen=True, slots=True)
class Argument:
    """The bytes of an argument, and the addresses that stand in it: (offset in it, buffer, bytes into that)."""

    data: bytes
    places: tuple[tuple[int, int, int], ...] = ()

    def filled(self, addresses: Sequence[int]) -> bytes:
        if not self.places:
            return self.data
        found = bytearray(self.data)
        for at, buffer, inside in self.places:
            struct.pack_into("<Q", found, at, addresses[buffer] + inside)
        return bytes(found)


@dataclass(frozen=True, slots=True)
class Step:
    """A launch; or a fill, which has no arguments."""

    kind: int
    image: int = 0
    entry: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    cooperative: bool = False
    carveout_pct: int = -1
    arguments: tuple[Argument, ...] = field(default=(), repr=False)
    filled: tuple[int, int, int, int] = (0, 0, 0, 0)  #: Buffer, offset, bytes, byte


def steps_of(plan: LaunchPlan) -> tuple[tuple[int, ...], tuple[Step, ...]]:
    """(bytes of each scratch buffer, the steps) of a plan's words."""
    words = iter(plan.words.tolist())
    next(words), next(words), next(words)
    scratch = _several(words, next(words))
    return scratch, tuple(_step(words) for _ in range(next(words)))


def _several(words: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(words) for _ in range(count))


def _step(words: Iterator[int]) -> Step:
    kind = next(words)
    if kind != LAUNCH:
        buffer, offset, size, byte = _several(words, 4)
        return Step(kind, filled=(buffer, offset, size, byte))
    image, entry, *shape, shared, cooperative, carveout, count = _several(words, 12)
    grid, block = (shape[0], shape[1], shape[2]), (shape[3], shape[4], shape[5])
    arguments = tuple(_argument(words) for _ in range(count))
    return Step(kind, image, entry, grid, block, shared, bool(cooperative), carveout, arguments)


def _argument(words: Iterator[int]) -> Argument:
    kind = next(words)
    if kind == ADDRESS:
        buffer, offset = _several(words, 2)
        return Argument(bytes(8), ((0, buffer, offset),))
    size = next(words)
    data = b"".join(struct.pack("<q", next(words)) for _ in range(-(-size // 8)))[:size]
    if kind != STRUCT:
        return Argument(data)
    places = tuple((next(words), next(words), next(words)) for _ in range(next(words)))
    return Argument(data, places)


class StepPlan:
    """Steps on a machine."""

    def __init__(self, plan: LaunchPlan, machine: Machine) -> None:
        self.scratch, self.steps = steps_of(plan)
        self.machine = machine

    def run(
        self, addresses: Sequence[int], stream: int = 0, values: Mapping[tuple[int, int], bytes] | None = None
    ) -> None:
        """Enqueue all steps; `addresses` of the inputs, the outputs, and the scratch buffers. `values`: (step,
        argument) -> its bytes, in the place of the plan's own. LaunchFailed, with the number of the step."""
        for number, step in enumerate(self.steps):
            try:
                self._enqueue(number, step, addresses, stream, values or {})
            except LaunchFailed as problem:
                problem.step = number
                raise

    def _enqueue(
        self, number: int, step: Step, addresses: Sequence[int], stream: int, values: Mapping[tuple[int, int], bytes]
    ) -> None:
        if step.kind == LAUNCH:
            given = [values.get((number, at)) or each.filled(addresses) for at, each in enumerate(step.arguments)]
            self.machine.start(step, given, stream)
        else:
            buffer, offset, size, byte = step.filled
            self.machine.fill(addresses[buffer] + offset, size, byte, stream)


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
            pointers = (ctypes.c_void_p * len(step.arguments))()
            for at, each in enumerate(step.arguments):
                value = values.get((number, at))
                if value is None and each.places:
                    if len(each.data) != 8 or len(each.places) != 1 or each.places[0][2]:
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
        for number, (step, pointers) in enumerate(zip(self._plan.steps, self._pointers, strict=True)):
            try:
                if step.kind == LAUNCH:
                    machine.start_at(step, pointers, stream)
                else:
                    buffer, offset, size, byte = step.filled
                    machine.fill(addresses[buffer] + offset, size, byte, stream)
            except LaunchFailed as problem:
                problem.step = number
                raise


class Processor:
    """The cpu device's runtime, in this process. A launch has ended when `start` returns."""

    def __init__(self, runtime: Path, images: Sequence[Path], entries: Sequence[str], plan: LaunchPlan) -> None:
        """Unusable where something cannot be loaded."""
        try:
            self._runtime = native.Runtime(runtime)
            modules = [self._runtime.load(each) for each in images]
            launches = [each for each in steps_of(plan)[1] if each.kind == LAUNCH]
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
            for each in steps_of(plan)[1]:
                if each.kind == LAUNCH and each.entry not in self._functions:
                    symbol = entries[each.entry].encode()
                    found = self._driver.handle("cuModuleGetFunction", modules[each.image], symbol)
                    self._functions[each.entry] = found
            self._prepare(steps_of(plan)[1])
        except exported.LaunchError as problem:
            raise Unusable(str(problem)) from None

    def _prepare(self, steps: Sequence[Step]) -> None:
        for entry, function in self._functions.items():
            mine = [each for each in steps if each.kind == LAUNCH and each.entry == entry]
            shared = max(each.shared_bytes for each in mine)
            if shared:  # with what the kernel has itself it may be more than 48 KiB
                self._driver("cuFuncSetAttribute", function, _DYNAMIC_SHARED_BYTES, shared)
            carveout = max(each.carveout_pct for each in mine)
            if carveout >= 0:
                self._driver("cuFuncSetAttribute", function, _CARVEOUT, carveout)

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
