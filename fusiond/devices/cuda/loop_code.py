"""The loop in C++ that issues a Program's steps, what is built of it, and the trampolines through which it calls host
functions, which the compiler makes from the functions' own types:

    fusiond_call_N(void** values)      calls the N-th entry of a host source
    fusiond_sizes_N()                  the bytes of each of its parameters, ended by 0
"""

import ctypes
import dataclasses
import itertools
from ctypes import POINTER, c_uint, c_void_p
from pathlib import Path
from typing import Any

from fusiond.build import gxx
from fusiond.model.errors import DeviceError
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind

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
        return ctypes.cast(self._function("call", entry), c_void_p).value or 0

    def sizes(self, entry: str) -> tuple[int, ...]:
        """The bytes of each parameter."""
        function = self._function("sizes", entry)
        function.restype = POINTER(c_uint)
        sizes = function()
        return tuple(itertools.takewhile(bool, (int(sizes[k]) for k in itertools.count())))

    def _function(self, what: str, entry: str) -> Any:
        return getattr(self._library, f"fusiond_{what}_{self._source.entries.index(entry)}")
