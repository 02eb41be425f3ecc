// Loads and stores with a cache hint, address spaces, clocks.
#pragma once

#include <time.h>

#include "builtins.h"

namespace fusiond_detail {
template <class T> struct plain { using type = T; };  // no argument of this type says what T is
}

#define FUSIOND_LOAD(name) \
    template <class T> inline T name(const T* address) { return *address; }
#define FUSIOND_STORE(name) \
    template <class T> inline void name(T* address, typename fusiond_detail::plain<T>::type value) { *address = value; }
FUSIOND_LOAD(__ldg) FUSIOND_LOAD(__ldca) FUSIOND_LOAD(__ldcg) FUSIOND_LOAD(__ldcs) FUSIOND_LOAD(__ldlu) FUSIOND_LOAD(__ldcv)
FUSIOND_STORE(__stwb) FUSIOND_STORE(__stcg) FUSIOND_STORE(__stcs) FUSIOND_STORE(__stwt)
#undef FUSIOND_LOAD
#undef FUSIOND_STORE

inline unsigned __isShared(const void* address) {
    const unsigned char* at = (const unsigned char*)address;
    return (at >= fusiond_static_begin && at < fusiond_static_end) ||
           (at >= fusiond_dynamic_shared && at < fusiond_dynamic_shared + FUSIOND_ARENA_BYTES);
}
inline unsigned __isLocal(const void* address) { return ::fusiond_calls->is_local(address); }
inline unsigned __isGlobal(const void* address) { return !__isShared(address) && !__isLocal(address); }

// All address spaces are one here: an address in one of them is the address itself.
#define FUSIOND_SPACE(name)                                                                    \
    inline size_t __cvta_generic_to_##name(const void* address) { return (size_t)address; }    \
    inline void* __cvta_##name##_to_generic(size_t address) { return (void*)address; }
FUSIOND_SPACE(shared) FUSIOND_SPACE(global) FUSIOND_SPACE(local) FUSIOND_SPACE(constant) FUSIOND_SPACE(grid_constant)
#undef FUSIOND_SPACE

#define __builtin_assume(condition) ((condition) ? (void)0 : __builtin_unreachable())
#define __assume(condition) __builtin_assume(condition)

#if defined(__x86_64__)
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
#else
inline long long clock64() { static long long ticks = 0; return ++ticks; }
#endif
extern "C" inline __attribute__((always_inline)) clock_t clock() noexcept { return (clock_t)clock64(); }
