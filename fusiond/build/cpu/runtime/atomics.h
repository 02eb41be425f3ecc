// Atomics. One host thread runs all CUDA threads and switches only where they block, so a plain
// read-modify-write is already atomic; under ThreadSanitizer real (relaxed) atomics tell them from races.
#pragma once

#include "builtins.h"

namespace fusiond_detail {

template <class T, class F> inline T update(T* address, F change) {
#ifdef __SANITIZE_THREAD__
    T old, changed;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do changed = change(old);
    while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
#else
    T old = *address;
    *address = change(old);
    return old;
#endif
}

}  // namespace fusiond_detail

// Each also as name_block and name_system: there is one processor and one block at a time.
#define FUSIOND_ATOMIC_AT(name, T, expression) \
    inline T name(T* address, T value) {       \
        return fusiond_detail::update(address, [value]([[maybe_unused]] T old) -> T { return expression; }); \
    }
#define FUSIOND_ATOMIC(name, T, expression)         \
    FUSIOND_ATOMIC_AT(name, T, expression)          \
    FUSIOND_ATOMIC_AT(name##_block, T, expression)  \
    FUSIOND_ATOMIC_AT(name##_system, T, expression)

FUSIOND_ATOMIC(atomicAdd, int, old + value)
FUSIOND_ATOMIC(atomicAdd, unsigned, old + value)
FUSIOND_ATOMIC(atomicAdd, unsigned long long, old + value)
FUSIOND_ATOMIC(atomicAdd, float, old + value)
FUSIOND_ATOMIC(atomicAdd, double, old + value)
FUSIOND_ATOMIC(atomicSub, int, old - value)
FUSIOND_ATOMIC(atomicSub, unsigned, old - value)
FUSIOND_ATOMIC(atomicExch, int, value)
FUSIOND_ATOMIC(atomicExch, unsigned, value)
FUSIOND_ATOMIC(atomicExch, unsigned long long, value)
FUSIOND_ATOMIC(atomicExch, float, value)
#define FUSIOND_ATOMIC_INTEGERS(name, expression)      \
    FUSIOND_ATOMIC(name, int, expression)              \
    FUSIOND_ATOMIC(name, unsigned, expression)         \
    FUSIOND_ATOMIC(name, long long, expression)        \
    FUSIOND_ATOMIC(name, unsigned long long, expression)
FUSIOND_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
FUSIOND_ATOMIC_INTEGERS(atomicMax, value > old ? value : old)
FUSIOND_ATOMIC_INTEGERS(atomicAnd, old & value)
FUSIOND_ATOMIC_INTEGERS(atomicOr, old | value)
FUSIOND_ATOMIC_INTEGERS(atomicXor, old ^ value)
FUSIOND_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1)
FUSIOND_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

#define FUSIOND_ATOMIC_CAS_AT(name, T)                                                                     \
    inline T name(T* address, T expected, T desired) {                                                     \
        return fusiond_detail::update(address, [=](T old) { return old == expected ? desired : old; });    \
    }
#define FUSIOND_ATOMIC_CAS(T)                  \
    FUSIOND_ATOMIC_CAS_AT(atomicCAS, T)        \
    FUSIOND_ATOMIC_CAS_AT(atomicCAS_block, T)  \
    FUSIOND_ATOMIC_CAS_AT(atomicCAS_system, T)
FUSIOND_ATOMIC_CAS(int)
FUSIOND_ATOMIC_CAS(unsigned)
FUSIOND_ATOMIC_CAS(unsigned short)
FUSIOND_ATOMIC_CAS(unsigned long long)

#undef FUSIOND_ATOMIC_CAS
#undef FUSIOND_ATOMIC_CAS_AT
#undef FUSIOND_ATOMIC_INTEGERS
#undef FUSIOND_ATOMIC
#undef FUSIOND_ATOMIC_AT
