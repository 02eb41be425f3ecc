"""Issues a Program's steps from a loop in C, timed on the wall clock, as a host program would see them.

Python issues a step in 5 to 10 us, as long as a small copy takes; where host work is inside the span that cost
cannot be hidden behind a gate, so it is avoided. The loop (`loop_code`) calls the driver through a table of addresses.

Where the loop cannot be built (no g++), or a host library has no trampolines, `fusiond.devices.cuda.loaded` times
the steps as Python issues them.
"""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int, c_size_t, c_uint, c_uint64, c_void_p

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.driver import THE_HOST, Driver
from fusiond.devices.cuda.failures import outcome_of
from fusiond.devices.cuda.loop_code import HostFunctions
from fusiond.devices.cuda.memory import ProgramMemory
from fusiond.devices.host import value_bytes
from fusiond.model.program import (
    Alloc,
    Argument,
    Copy,
    CopyBatch,
    FillStep,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Step,
    home_bytes,
    homes,
    pooled_frees,
)

_DRIVER_FUNCTIONS = (
    "cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",
    "cuStreamSynchronize", "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuMemAllocAsync",
    "cuMemFreeAsync", "cuMemHostAlloc", "cuMemFreeHost", "cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchCooperativeKernel",
    "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync", "cuMemAllocManaged", "cuMemPrefetchAsync",
)  # fmt: skip
"""In the order of `struct Driver`; a null pointer stands for what the driver does not have."""
_EVENT_WITHOUT_TIMING = 2
_LAUNCH, _TO_DEVICE, _TO_HOST, _WITHIN_DEVICE, _WITHIN_HOST, _FILL, _FILL_HOST, _HOST, _ALLOC, _FREE = range(10)
_TOGETHER, _BATCH, _PREFETCH = 10, 11, 12
_POOL = 3
_WHERE = {Memory.DEVICE: 0, Memory.PAGEABLE: 1, Memory.PINNED: 2, Memory.MANAGED: 4}


class _Step(Structure):
    _fields_ = (
        ("kind", c_int),
        ("where", c_int),
        ("stream", c_int),
        ("value", c_int),
        ("shape", c_uint * 7),
        ("waits", c_int),
        ("events", POINTER(c_void_p)),
        ("done", c_void_p),
        ("function", c_void_p),
        ("values", POINTER(c_void_p)),
        ("target", POINTER(c_uint64)),
        ("source", POINTER(c_uint64)),
        ("bytes", c_size_t),
        ("slots", c_int),
        ("slot", POINTER(c_void_p)),
        ("offset", POINTER(c_uint64)),
        ("from_", POINTER(c_void_p)),
        ("work", POINTER(c_uint64)),
    )


class TimedLoop:
    """The steps of one Program as the C loop takes them. Close it before the memory is freed."""

    def __init__(
        self,
        library: ctypes.CDLL,
        driver: Driver,
        program: Program,
        memory: ProgramMemory,
        kernels: Mapping[str, int],
        hosts: Mapping[str, HostFunctions],
        streams: Mapping[int, int],
    ) -> None:
        """`kernels`: step name -> function handle; `streams`: a step's stream -> its handle."""
        self._driver, self._program, self._memory = driver, program, memory
        self._kernels, self._hosts = kernels, hosts
        self._run = library.fusiond_run
        self._run.restype = c_int
        self._table = (c_void_p * len(_DRIVER_FUNCTIONS))(*(driver.address(each) for each in _DRIVER_FUNCTIONS))
        self._numbers = {stream: index for index, stream in enumerate(streams)}
        self._streams = (c_void_p * len(streams))(*streams.values())
        self._keep: list[object] = []
        """What the C side points to."""
        self._pooled = pooled_frees(program)
        self._in_pool = {step.arena for step in program.steps if isinstance(step, Alloc) and step.pooled}
        self._slots = {each.name: c_uint64(memory.address(each.name)) for each in program.buffers}
        self._homes = homes(program)
        self._bases = {step.arena: c_uint64(0) for step in program.steps if isinstance(step, Alloc | Free)}
        counted = [index for index, step in enumerate(program.steps) if step.counted]
        self._counted = counted[0], counted[-1]
        streams_of = {step.name: step.stream for step in program.steps}
        self._waits = {
            step.name: [name for name in step.after if streams_of[name] != step.stream] for step in program.steps
        }
        self._events = {
            name: driver.asked(c_void_p, "cuEventCreate", _EVENT_WITHOUT_TIMING)
            for name in {name for names in self._waits.values() for name in names}
        }
        made = [self._step(each) for each in program.steps]
        self._steps = (_Step * len(made))(*made)

    def span_us(self) -> float:
        """One run; the counted span in microseconds. What the plan allocates is allocated in this very run."""
        for name, slot in self._slots.items():
            slot.value = self._memory.address(name)
        span, failed = c_double(), c_int()
        steps, streams = self._steps, self._streams
        ends = byref(span), byref(failed)
        status = self._run(self._table, steps, len(steps), *self._counted, streams, len(streams), *ends)
        if status != 0:
            name, text = self._driver.error(status)
            step = self._program.steps[failed.value].name
            raise ExecutionError(outcome_of(text), f"step {step!r}: {text} ({name})")
        self._release()
        return span.value

    def close(self) -> None:
        for event in self._events.values():
            self._driver.call("cuEventDestroy_v2", event)
        self._events.clear()

    def _release(self) -> None:
        """Free what the plan allocated and did not free."""
        libc = ctypes.CDLL(None)
        for arena, base in self._bases.items():
            if base.value == 0:
                continue
            memory = self._homes[arena][0].memory
            if arena in self._in_pool:
                self._driver.free(base.value, self._streams[0] or 0)
            elif memory in (Memory.DEVICE, Memory.MANAGED):
                self._driver.call("cuMemFree_v2", base.value)
            elif memory is Memory.PINNED:
                self._driver.call("cuMemFreeHost", base.value)
            else:
                libc.free(c_void_p(base.value))
            base.value = 0

    def _step(self, step: Step) -> _Step:
        made = _Step(stream=self._numbers[step.stream], done=self._events.get(step.name))
        waits = [self._events[name] for name in self._waits[step.name]]
        made.waits, made.events = len(waits), self._array(waits)
        if isinstance(step, Launch):
            made.kind, made.function = _TOGETHER if step.cooperative else _LAUNCH, self._kernels[step.name]
            made.shape = (*step.grid, *step.block, step.shared_bytes)
            made.values = self._values(step.arguments)
        elif isinstance(step, HostCall):
            made.kind, made.function = _HOST, self._hosts[step.source].address(step.entry)
            made.values = self._values(step.arguments)
        elif isinstance(step, Copy):
            self._copy(made, step)
        elif isinstance(step, CopyBatch):
            self._batch(made, step)
        elif isinstance(step, Prefetch):
            _, _, made.bytes = self._memory.span(step.buffers)
            made.kind, made.value = _PREFETCH, self._driver.current() if step.to_device else THE_HOST
            made.target = ctypes.pointer(self._slots[step.buffers[0]])
        elif isinstance(step, FillStep):
            block, _, made.bytes = self._memory.span((step.buffer,))
            made.kind, made.value = _FILL if block.array is None else _FILL_HOST, step.byte
            made.target = ctypes.pointer(self._slots[step.buffer])
        else:
            self._allocation(made, step)
        return made

    def _copy(self, made: _Step, step: Copy) -> None:
        source, _, made.bytes = self._memory.span(step.source)
        target, _, _ = self._memory.span(step.target)
        kinds = (_WITHIN_DEVICE, _TO_HOST), (_TO_DEVICE, _WITHIN_HOST)
        made.kind = kinds[source.array is not None][target.array is not None]
        made.source = ctypes.pointer(self._slots[step.source[0]])
        made.target = ctypes.pointer(self._slots[step.target[0]])

    def _batch(self, made: _Step, step: CopyBatch) -> None:
        made.kind, made.slots = _BATCH, len(step.copies)
        made.from_ = self._array([ctypes.addressof(self._slots[source]) for source, _ in step.copies])
        made.slot = self._array([ctypes.addressof(self._slots[target]) for _, target in step.copies])
        sizes = [self._program.buffer(source).size_bytes for source, _ in step.copies]
        made.offset = (c_uint64 * len(sizes))(*sizes)
        made.work = (c_uint64 * (3 * len(sizes)))()
        self._keep += [made.offset, made.work]

    def _allocation(self, made: _Step, step: Alloc | Free) -> None:
        members = self._homes[step.arena]
        made.kind = _ALLOC if isinstance(step, Alloc) else _FREE
        pooled = step.pooled if isinstance(step, Alloc) else step.name in self._pooled
        made.where = _POOL if pooled else _WHERE[members[0].memory]
        made.bytes = home_bytes(members)
        made.target = ctypes.pointer(self._bases[step.arena])
        made.slots = len(members)
        made.slot = self._array([ctypes.addressof(self._slots[each.name]) for each in members])
        made.offset = (c_uint64 * len(members))(*(each.offset_bytes for each in members))
        self._keep.append(made.offset)

    def _values(self, given: Sequence[Argument]) -> ctypes.Array[c_void_p]:
        """Pointers to the values: a buffer's is the slot of its address, so that an allocation is seen."""
        places = []
        for argument in given:
            if isinstance(argument, Pointer):
                places.append(ctypes.addressof(self._slots[argument.buffer]))
                continue
            data = ctypes.create_string_buffer(value_bytes(argument, self._memory.address))
            self._keep.append(data)
            places.append(ctypes.addressof(data))
        return self._array(places)

    def _array(self, values: Sequence[int]) -> ctypes.Array[c_void_p]:
        array = (c_void_p * max(1, len(values)))(*values)
        self._keep.append(array)
        return array
