"""Puts a Program's steps onto streams, through PyCUDA. The order is the plan's; events stand where it waits across
streams.

Host steps (calls, allocations, copies within the host) are done by this thread, after what they wait for: the streams
go on meanwhile, as far as they were filled.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fusiond.devices.cuda import modules
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.memory import DeviceAllocation, PooledBlock, ProgramMemory
from fusiond.devices.cuda.modules import DriverFunction
from fusiond.devices.host import HostLibrary
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.program import (
    Alloc,
    Copy,
    CopyBatch,
    FillStep,
    Free,
    HostCall,
    Launch,
    Prefetch,
    Program,
    Step,
    homes,
    host_steps,
)

_FREED_BYTE = 0xA5  #: What an arena holds in a checked run before it is allocated and after it is freed


class Streams:
    """The streams of a Program; the first is the lead, on which spans begin and end."""

    def __init__(self, cuda: Any, numbers: Iterable[int]) -> None:
        """`numbers`: those of the Program's streams."""
        flags = cuda.event_flags.DISABLE_TIMING
        self.by_number = {number: cuda.Stream() for number in sorted(numbers)}
        self.lead, *self.others = self.by_number.values()
        self._forked = cuda.Event(flags)
        self._ended = [cuda.Event(flags) for _ in self.others]

    def fork(self) -> None:
        """Nothing that is enqueued from here on begins before what is on the lead."""
        if self.others:
            self._forked.record(self.lead)
        for stream in self.others:
            stream.wait_for_event(self._forked)

    def join(self) -> None:
        """Nothing that is enqueued on the lead from here on begins before what is on the others."""
        for stream, event in zip(self.others, self._ended, strict=True):
            event.record(stream)
            self.lead.wait_for_event(event)

    def synchronize(self) -> None:
        for stream in (self.lead, *self.others):
            stream.synchronize()


class Issuer:
    """Enqueues steps of one Program."""

    def __init__(
        self,
        cuda: Any,
        driver: Driver,
        program: Program,
        memory: ProgramMemory,
        streams: Streams,
        kernels: Mapping[tuple[str, str], tuple[DriverFunction, EntryName]],
        hosts: Mapping[str, HostLibrary],
        parts: Sequence[Sequence[Step]],
    ) -> None:
        """`kernels`: (source, entry) -> a kernel and its parameters. `parts`: runs of steps between
        which the caller joins all streams, so that no step need wait for one of another part (nor may, when one is a
        graph)."""
        self._cuda, self._driver = cuda, driver
        self._memory = memory
        self._streams = streams
        self._kernels = kernels
        self._hosts = hosts
        self._program = program
        self._on_host = host_steps(program)
        self._waits: dict[str, list[str]] = {}
        for part in parts:
            streams_of = {step.name: step.stream for step in part}
            for step in part:
                self._waits[step.name] = [
                    name for name in step.after if streams_of.get(name, step.stream) != step.stream
                ]
        awaited = {name for names in self._waits.values() for name in names}
        self._done = {name: cuda.Event(cuda.event_flags.DISABLE_TIMING) for name in awaited}
        self._packed: dict[str, bytes] = {}
        self._static: dict[str, DeviceAllocation] = {}
        """Blocks that an allocation of the plan's own has replaced for the moment."""

    def issue(self, steps: Sequence[Step], *, checked: bool = False) -> None:
        """Enqueue steps. `checked`: allocations are not made, their arenas are poisoned instead and keep their
        guards."""
        for step in steps:
            with named(f"step {step.name!r}"):
                stream = self._streams.by_number[step.stream]
                if step.name in self._on_host:
                    for name in self._waits[step.name]:
                        self._done[name].synchronize()
                    stream.synchronize()
                else:
                    for name in self._waits[step.name]:
                        stream.wait_for_event(self._done[name])
                self._one(step, stream, checked=checked)
                if step.name in self._done:
                    self._done[step.name].record(stream)

    def poison_unallocated(self) -> None:
        """Before a checked run: what the plan allocates itself holds nothing yet."""
        for step in self._program.steps:
            if step.allocates is not None:
                self._poison(step.allocates)

    def release(self) -> None:
        """Undo the plan's own allocations that it did not free."""
        for arena, static in self._static.items():
            self._memory.blocks[arena].free()
            self._memory.blocks[arena] = static
        self._static.clear()
        self._packed.clear()

    def _one(self, step: Step, stream: Any, *, checked: bool) -> None:
        if isinstance(step, Launch):
            self._launch(step, stream)
        elif isinstance(step, Copy):
            self._copy(step, stream)
        elif isinstance(step, CopyBatch):
            self._copy_batch(step, stream)
        elif isinstance(step, Prefetch):
            block, start, size = self._memory.span(step.buffers)
            self._driver.prefetch(block.address + start, size, stream.handle, to_device=step.to_device)
        elif isinstance(step, FillStep):
            block, start, size = self._memory.span((step.buffer,))
            if block.array is not None:
                block.array[start : start + size] = step.byte
            else:
                self._cuda.memset_d8_async(block.address + start, step.byte, size, stream)
        elif isinstance(step, HostCall):
            self._hosts[step.source].call(step.entry, step.arguments, self._memory.address)
        elif checked:
            self._poison(step.arena)
        elif isinstance(step, Alloc):
            self._allocate(step, stream)
        else:
            self._free(step, stream)

    def _launch(self, step: Launch, stream: Any) -> None:
        function, entry = self._kernels[step.source, step.entry]
        if step.name not in self._packed:
            self._packed[step.name] = modules.pack(step, entry, self._memory.address)
        function.launch(step, entry, self._packed[step.name], stream.handle)

    def _copy(self, step: Copy, stream: Any) -> None:
        source, start, size = self._memory.span(step.source)
        target, into, _ = self._memory.span(step.target)
        if source.array is not None and target.array is not None:
            target.array[into : into + size] = source.array[start : start + size]
        elif source.array is not None:
            self._cuda.memcpy_htod_async(target.address + into, source.array[start : start + size], stream)
        elif target.array is not None:
            self._cuda.memcpy_dtoh_async(target.array[into : into + size], source.address + start, stream)
        else:
            self._cuda.memcpy_dtod_async(target.address + into, source.address + start, size, stream)

    def _copy_batch(self, step: CopyBatch, stream: Any) -> None:
        sizes = [self._program.buffer(name).size_bytes for name, _ in step.copies]
        copies = [
            (self._memory.address(target), self._memory.address(source), size)
            for (source, target), size in zip(step.copies, sizes, strict=True)
        ]
        self._driver.copy_batch(copies, stream.handle)

    def _allocate(self, step: Alloc, stream: Any) -> None:
        static = self._memory.blocks[step.arena]
        self._static.setdefault(step.arena, static)
        if step.pooled:
            made: DeviceAllocation = PooledBlock(self._cuda, self._driver, static.size_bytes, stream.handle)
        else:
            made = DeviceAllocation(self._cuda, homes(self._program)[step.arena][0].memory, static.size_bytes)
        self._memory.blocks[step.arena] = made
        self._packed.clear()  # addresses have changed

    def _free(self, step: Free, stream: Any) -> None:
        static = self._static.pop(step.arena, None)
        if static is not None:
            block = self._memory.blocks[step.arena]
            if isinstance(block, PooledBlock):
                block.stream = stream.handle  # in the order of this stream
            block.free()
            self._memory.blocks[step.arena] = static
            self._packed.clear()

    def _poison(self, arena: str) -> None:
        block = self._memory.blocks[arena]
        block.write(0, np.full(block.size_bytes, _FREED_BYTE, np.uint8))
