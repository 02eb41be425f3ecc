// What ThreadSanitizer must be told, in the variant of the library that is built with -DFUSIOND_TSAN; nothing otherwise.
//
// Every CUDA thread is a fiber of ThreadSanitizer. Switching between fibers orders nothing; only barriers,
// __syncwarp and __threadfence do, so that two accesses not ordered by them are reported although they never
// overlap in time. Memory which the next block or thread takes over (shared arrays, stacks) is mapped
// afresh, which makes ThreadSanitizer forget who touched it.
#pragma once

#include "carrier.h"

#ifdef FUSIOND_TSAN

#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>

namespace fusiond::race {

constexpr bool enabled = true;

inline void release(void* at) { __tsan_release(at); }
inline void acquire(void* at) { __tsan_acquire(at); }

// The creator's past happens before the new fiber: only the scheduler may create them, or threads would be ordered.
// Fibers outlive their thread, so that a later report can still name it; ThreadSanitizer knows 8128 at a time.
inline void* new_fiber(const char* name) {
    constexpr unsigned kept = 6 * 1024;
    static void* fibers[kept];
    static unsigned made = 0;
    void*& fiber = fibers[made++ % kept];
    if (fiber) __tsan_destroy_fiber(fiber);
    fiber = __tsan_create_fiber(0);
    __tsan_set_fiber_name(fiber, name);
    return fiber;
}
inline void* this_fiber() { return __tsan_get_current_fiber(); }
inline void switch_to(Carrier& carrier) { __tsan_switch_to_fiber(carrier.race_fiber, __tsan_switch_to_fiber_no_sync); }

inline void forget(void* memory, size_t bytes) {
    if (bytes) mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Room for the clocks of one block: its own, but for blocks that are thousands apart. (Mapping memory afresh makes
// ThreadSanitizer forget accesses to it, and not the clocks that stand for its addresses.)
inline char* clocks_of(unsigned number, size_t bytes) {
    constexpr unsigned most = 6 * 1024;
    static char* const room = static_cast<char*>(mmap(nullptr, most * bytes, PROT_READ | PROT_WRITE,
                                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return room + number % most * bytes;
}

}  // namespace fusiond::race

#else

namespace fusiond::race {

constexpr bool enabled = false;

inline void release(void*) {}
inline void acquire(void*) {}
inline void* new_fiber(const char*) { return nullptr; }
inline void* this_fiber() { return nullptr; }
inline void switch_to(Carrier&) {}
inline void forget(void*, size_t) {}
inline char* clocks_of(unsigned, size_t) { return nullptr; }

}  // namespace fusiond::race

#endif
