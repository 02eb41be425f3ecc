"""A Program's steps issued by a loop in C and timed on the wall clock: what a host program that calls the driver
would see.

Python issues a step in 5 to 10 us, as long as a small copy takes; where host work is inside the span that cost
cannot be hidden behind a gate, so it is avoided. The loop calls the driver through a table of addresses and host
functions through trampolines, which the compiler makes from the functions' own types:

    fusiond_call_N(void** values)      calls the N-th entry of a host source
    fusiond_sizes_N()                  the bytes of each of its parameters, ended by 0

Where the loop cannot be built (no g++), or a host library has no trampolines, `fusiond.devices.cuda.loaded` times
the steps as Python issues them.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

from fusiond.build import gxx
from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda import arguments
from fusiond.devices.cuda.driver import THE_HOST, Driver
from fusiond.devices.cuda.failures import outcome_of
from fusiond.devices.cuda.memory import ProgramMemory, arenas
from fusiond.errors import DeviceError
from fusiond.model import BuildFailed
from fusiond.program import (
    Alloc,
    Argument,
    Buffer,
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
    Source,
    SourceKind,
    Step,
    pooled_frees,
)

_TRAMPOLINES = """
#include <utility>
namespace fusiond_host {
template <class... A> constexpr unsigned all_sizes[] = {unsigned(sizeof(A))..., 0u};
template <class R, class... A> const unsigned* sizes(R (*)(A...)) { return all_sizes<A...>; }
template <class R, class... A, std::size_t... I>
void call(R (*function)(A...), void** values, std::index_sequence<I...>) {
    function(*static_cast<A*>(values[I])...);
}
template <class R, class... A> void call(R (*function)(A...), void** values) {
    call(function, values, std::index_sequence_for<A...>{});
}
}  // namespace fusiond_host
"""

LOOP = r"""
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

// Device pointers are 64-bit integers, handles are void*; every function of the driver returns 0 or an error code.
struct Driver {
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    int (*to_device)(uint64_t, const void*, size_t, void*);
    int (*to_host)(void*, uint64_t, size_t, void*);
    int (*within_device)(uint64_t, uint64_t, size_t, void*);
    int (*fill)(uint64_t, unsigned char, size_t, void*);
    int (*synchronize)(void*);
    int (*record)(void*, void*);
    int (*stream_waits)(void*, void*, unsigned);
    int (*host_waits)(void*);
    int (*allocate)(uint64_t*, size_t, void*);
    int (*free)(uint64_t, void*);
    int (*allocate_pinned)(void**, size_t, unsigned);
    int (*free_pinned)(void*);
    int (*allocate_now)(uint64_t*, size_t);
    int (*free_now)(uint64_t);
    int (*launch_together)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**);
    // Copies in a batch: as drivers of CUDA 13 have it, and as those of 12.8 do. Either may be null.
    int (*batch)(uint64_t*, uint64_t*, size_t*, size_t, void*, size_t*, size_t, void*);
    int (*batch_12)(uint64_t*, uint64_t*, size_t*, size_t, void*, size_t*, size_t, size_t*, void*);
    int (*allocate_managed)(uint64_t*, size_t, unsigned);
    int (*prefetch)(uint64_t, size_t, int, void*);
};
enum Kind {
    LAUNCH, TO_DEVICE, TO_HOST, WITHIN_DEVICE, WITHIN_HOST, FILL, FILL_HOST, HOST, ALLOC, FREE, TOGETHER, BATCH,
    PREFETCH
};
enum Where { DEVICE, PAGEABLE, PINNED, POOL, MANAGED };
struct Step {
    int kind, where, stream, value;
    unsigned shape[7];  // grid, block, shared bytes
    int waits;
    void** events;      // what it waits for, on other streams
    void* done;         // recorded after it, for those who wait for it; null when nobody does
    void* function;     // a kernel, or a trampoline
    void** values;
    uint64_t* target;   // slots that hold addresses: an allocation changes them
    uint64_t* source;
    size_t bytes;
    int slots;          // of an allocation: the buffers in it; of a batch: its copies
    uint64_t** slot;
    uint64_t* offset;   // of a batch: the bytes of each copy
    uint64_t** from;    // of a batch
    uint64_t* work;     // of a batch: room for two addresses and a size for each copy
};

static int batch(const Driver& cuda, Step& it, void* stream) {
    uint64_t *targets = it.work, *sources = it.work + it.slots;
    size_t* sizes = (size_t*)(it.work + 2 * it.slots);
    for (int i = 0; i < it.slots; i++) {
        targets[i] = *it.slot[i];
        sources[i] = *it.from[i];
        sizes[i] = it.offset[i];
    }
    struct { int order, source[2], target[2]; unsigned flags; } attributes = {1, {0, 0}, {0, 0}, 0};  // in stream order
    size_t first = 0, failed = 0;
    if (cuda.batch) return cuda.batch(targets, sources, sizes, it.slots, &attributes, &first, 1, stream);
    return cuda.batch_12(targets, sources, sizes, it.slots, &attributes, &first, 1, &failed, stream);
}

static int step(const Driver& cuda, Step& it, void* stream) {
    // Memory of the pool is allocated and freed in stream order; every other host action waits for its stream.
    bool memory = it.kind == ALLOC || it.kind == FREE;
    bool on_host = it.kind == HOST || it.kind == WITHIN_HOST || it.kind == FILL_HOST || (memory && it.where != POOL);
    int error = 0;
    for (int i = 0; i < it.waits && !error; i++)
        error = on_host ? cuda.host_waits(it.events[i]) : cuda.stream_waits(stream, it.events[i], 0);
    if (on_host && !error) error = cuda.synchronize(stream);
    if (error) return error;
    switch (it.kind) {
        case LAUNCH:
            error = cuda.launch(it.function, it.shape[0], it.shape[1], it.shape[2], it.shape[3], it.shape[4],
                                it.shape[5], it.shape[6], stream, it.values, nullptr);
            break;
        case TOGETHER:
            error = cuda.launch_together(it.function, it.shape[0], it.shape[1], it.shape[2], it.shape[3], it.shape[4],
                                         it.shape[5], it.shape[6], stream, it.values);
            break;
        case BATCH: error = batch(cuda, it, stream); break;
        case PREFETCH: error = cuda.prefetch(*it.target, it.bytes, it.value, stream); break;
        case TO_DEVICE: error = cuda.to_device(*it.target, (void*)*it.source, it.bytes, stream); break;
        case TO_HOST: error = cuda.to_host((void*)*it.target, *it.source, it.bytes, stream); break;
        case WITHIN_DEVICE: error = cuda.within_device(*it.target, *it.source, it.bytes, stream); break;
        case WITHIN_HOST: memmove((void*)*it.target, (void*)*it.source, it.bytes); break;
        case FILL: error = cuda.fill(*it.target, (unsigned char)it.value, it.bytes, stream); break;
        case FILL_HOST: memset((void*)*it.target, it.value, it.bytes); break;
        case HOST: ((void (*)(void**))it.function)(it.values); break;
        case ALLOC: {
            uint64_t base = 0;
            if (it.where == POOL) error = cuda.allocate(&base, it.bytes, stream);
            else if (it.where == DEVICE) error = cuda.allocate_now(&base, it.bytes);
            else if (it.where == PINNED) error = cuda.allocate_pinned((void**)&base, it.bytes, 0);
            else if (it.where == MANAGED) error = cuda.allocate_managed(&base, it.bytes, 1);
            else if (!(base = (uint64_t)aligned_alloc(4096, (it.bytes + 4095) / 4096 * 4096))) error = 2;
            if (!error) {
                *it.target = base;
                for (int i = 0; i < it.slots; i++) *it.slot[i] = base + it.offset[i];
            }
            break;
        }
        case FREE:
            if (it.where == POOL) error = cuda.free(*it.target, stream);
            else if (it.where == DEVICE || it.where == MANAGED) error = cuda.free_now(*it.target);
            else if (it.where == PINNED) error = cuda.free_pinned((void*)*it.target);
            else free((void*)*it.target);
            *it.target = 0;
            break;
    }
    if (!error && it.done) error = cuda.record(it.done, stream);
    return error;
}

static int join(const Driver& cuda, void** streams, int count) {
    for (int i = 0; i < count; i++)
        if (int error = cuda.synchronize(streams[i])) return error;
    return 0;
}

// One run of all steps. `span_us` is from the first to the end of the last counted step, `failed` the step of an error.
extern "C" int fusiond_run(const Driver* cuda, Step* steps, int count, int first, int last, void** streams, int width,
                           double* span_us, int* failed) {
    using clock = std::chrono::steady_clock;
    clock::time_point begun;
    for (int i = 0; i < count; i++) {
        *failed = i;
        if (i == first) {
            if (int error = join(*cuda, streams, width)) return error;
            begun = clock::now();
        }
        if (int error = step(*cuda, steps[i], streams[steps[i].stream])) return error;
        if (i == last) {
            if (int error = join(*cuda, streams, width)) return error;
            *span_us = std::chrono::duration<double, std::micro>(clock::now() - begun).count();
        }
    }
    return join(*cuda, streams, width);
}
"""

_DRIVER_FUNCTIONS = (
    "cuLaunchKernel",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamSynchronize",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuLaunchCooperativeKernel",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyBatchAsync",
    "cuMemAllocManaged",
    "cuMemPrefetchAsync",
)
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


def with_trampolines(source: Source) -> Source:
    """A host source that also exports a trampoline for each entry."""
    lines = [source.text.rstrip("\n"), _TRAMPOLINES]
    for index, entry in enumerate(source.entries):
        call, sizes = f"fusiond_call_{index}(void** values)", f"fusiond_sizes_{index}()"
        lines.append(f'#line 1 "entry {entry}"')
        lines.append(f'extern "C" void {call} {{ fusiond_host::call(&{entry}, values); }}')
        lines.append(f'extern "C" const unsigned* {sizes} {{ return fusiond_host::sizes(&{entry}); }}')
    return dataclasses.replace(source, text="\n".join(lines) + "\n")


def loop_library() -> ctypes.CDLL:
    """The loop, built on first use and kept in the build cache. LookupError with the reason where it cannot be
    built."""
    source = Source(name="fusiond_loop", kind=SourceKind.HOST, text=LOOP, entries=("fusiond_run",))
    try:
        path = gxx.build(source)
    except DeviceError as problem:
        raise LookupError(str(problem)) from None
    if isinstance(path, BuildFailed):
        raise LookupError(path.reason)
    return ctypes.CDLL(str(path))


class HostFunctions:
    """The trampolines of a host library. Raises LookupError when it has none (somebody else built it)."""

    def __init__(self, source: Source, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._source = source
        if not hasattr(self._library, "fusiond_call_0"):
            raise LookupError(f"{path.name} has no trampolines")

    def address(self, entry: str) -> int:
        function = getattr(self._library, f"fusiond_call_{self._source.entries.index(entry)}")
        return ctypes.cast(function, c_void_p).value or 0

    def sizes(self, entry: str) -> tuple[int, ...]:
        """The bytes of each parameter."""
        function = getattr(self._library, f"fusiond_sizes_{self._source.entries.index(entry)}")
        function.restype = POINTER(c_uint)
        sizes = function()
        found: list[int] = []
        while sizes[len(found)]:
            found.append(int(sizes[len(found)]))
        return tuple(found)


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
        streams: Sequence[int],
        numbers: Mapping[int, int],
    ) -> None:
        """`kernels`: step name -> function handle; `streams`: handles; `numbers`: a step's stream -> index in
        `streams`."""
        self._driver = driver
        self._program = program
        self._memory = memory
        self._run = library.fusiond_run
        self._run.restype = c_int
        self._table = (c_void_p * len(_DRIVER_FUNCTIONS))(*(driver.address(each) for each in _DRIVER_FUNCTIONS))
        self._streams = (c_void_p * len(streams))(*streams)
        self._keep: list[object] = []
        """What the C side points to."""
        self._events: dict[str, int] = {}
        self._pooled = pooled_frees(program)
        self._in_pool = {step.arena for step in program.steps if isinstance(step, Alloc) and step.pooled}
        self._slots = {each.name: c_uint64(memory.address(each.name)) for each in program.buffers}
        self._arenas = arenas(program)
        self._bases = {step.arena: c_uint64(0) for step in program.steps if isinstance(step, Alloc | Free)}
        counted = [index for index, step in enumerate(program.steps) if step.counted]
        self._first, self._last = counted[0], counted[-1]
        by_name = {step.name: step for step in program.steps}
        awaited = {name for step in program.steps for name in step.after if by_name[name].stream != step.stream}
        for name in awaited:
            event = c_void_p()
            driver.call("cuEventCreate", byref(event), _EVENT_WITHOUT_TIMING)
            self._events[name] = event.value or 0
        made = [self._step(each, kernels, hosts, numbers, by_name) for each in program.steps]
        self._steps = (_Step * len(made))(*made)

    def span_us(self) -> float:
        """One run; the counted span in microseconds. What the plan allocates is allocated in this very run."""
        for name, slot in self._slots.items():
            slot.value = self._memory.address(name)
        span, failed = c_double(), c_int()
        status = self._run(
            self._table, self._steps, len(self._steps), self._first, self._last,
            self._streams, len(self._streams), byref(span), byref(failed),
        )  # fmt: skip
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
            memory = self._members(arena)[0].memory
            if arena in self._in_pool:
                self._driver.free(base.value, self._streams[0] or 0)
            elif memory in (Memory.DEVICE, Memory.MANAGED):
                self._driver.call("cuMemFree_v2", base.value)
            elif memory is Memory.PINNED:
                self._driver.call("cuMemFreeHost", base.value)
            else:
                libc.free(c_void_p(base.value))
            base.value = 0

    def _members(self, arena: str) -> list[Buffer]:
        """The buffers that an Alloc or Free of this name is about."""
        return self._arenas.get(arena) or [self._program.buffer(arena)]

    def _step(
        self,
        step: Step,
        kernels: Mapping[str, int],
        hosts: Mapping[str, HostFunctions],
        numbers: Mapping[int, int],
        by_name: Mapping[str, Step],
    ) -> _Step:
        made = _Step(stream=numbers[step.stream], done=self._events.get(step.name))
        waits = [self._events[name] for name in step.after if by_name[name].stream != step.stream]
        made.waits, made.events = len(waits), self._array(waits)
        if isinstance(step, Launch):
            made.kind, made.function = _TOGETHER if step.cooperative else _LAUNCH, kernels[step.name]
            made.shape = (*step.grid, *step.block, step.shared_bytes)
            made.values = self._values(step.arguments)
        elif isinstance(step, HostCall):
            made.kind, made.function = _HOST, hosts[step.source].address(step.entry)
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
        made.kind = {
            (True, False): _TO_DEVICE,
            (False, True): _TO_HOST,
            (False, False): _WITHIN_DEVICE,
            (True, True): _WITHIN_HOST,
        }[source.array is not None, target.array is not None]
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
        members = self._members(step.arena)
        made.kind = _ALLOC if isinstance(step, Alloc) else _FREE
        pooled = step.pooled if isinstance(step, Alloc) else step.name in self._pooled
        made.where = _POOL if pooled else _WHERE[members[0].memory]
        made.bytes = max(each.offset_bytes + each.size_bytes for each in members)
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
            data = ctypes.create_string_buffer(arguments.value_bytes(argument, self._memory.address))
            self._keep.append(data)
            places.append(ctypes.addressof(data))
        return self._array(places)

    def _array(self, values: Sequence[int]) -> ctypes.Array[c_void_p]:
        array = (c_void_p * max(1, len(values)))(*values)
        self._keep.append(array)
        return array
