// Warp shuffles, votes, matches and reductions.
//
// The threads named in the mask that have not returned take part, as CUDA says. A shuffle that reads a lane
// which is not in the mask, or beyond the block, is undefined in CUDA and gives poison here (programs often
// read such a lane and drop the value); a lane in the mask whose thread has returned is an error.
#pragma once

#include "builtins.h"

namespace fusiond_detail {

template <class T> inline uint64_t to_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp operations take values of 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T> inline T from_bits(uint64_t bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> inline T shuffle(uint32_t kind, unsigned mask, T value, unsigned operand, int width) {
    return from_bits<T>(::fusiond_calls->collective(kind, mask, to_bits(value), operand, (uint32_t)width));
}
inline uint64_t vote(uint32_t kind, unsigned mask, uint64_t value) {
    return ::fusiond_calls->collective(kind, mask, value, 0, 32);
}

}  // namespace fusiond_detail

inline void __syncwarp(unsigned mask = 0xffffffffu) { fusiond_detail::vote(FUSIOND_SYNCWARP, mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int p) { return (unsigned)fusiond_detail::vote(FUSIOND_BALLOT, mask, p != 0); }
inline int __any_sync(unsigned mask, int p) { return (int)fusiond_detail::vote(FUSIOND_ANY, mask, p != 0); }
inline int __all_sync(unsigned mask, int p) { return (int)fusiond_detail::vote(FUSIOND_ALL, mask, p != 0); }

// The lanes that wait at this very call when nothing else can go on: convergence as late as is legal.
__attribute__((always_inline)) inline unsigned __activemask() { return ::fusiond_calls->activemask(); }

#define FUSIOND_SHUFFLES(T)                                                                               \
    inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {                              \
        return fusiond_detail::shuffle(FUSIOND_SHFL, mask, value, (unsigned)lane, width);                 \
    }                                                                                                     \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {                     \
        return fusiond_detail::shuffle(FUSIOND_SHFL_UP, mask, value, delta, width);                       \
    }                                                                                                     \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {                   \
        return fusiond_detail::shuffle(FUSIOND_SHFL_DOWN, mask, value, delta, width);                     \
    }                                                                                                     \
    inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {                         \
        return fusiond_detail::shuffle(FUSIOND_SHFL_XOR, mask, value, (unsigned)lanes, width);            \
    }                                                                                                     \
    inline unsigned __match_any_sync(unsigned mask, T value) {                                            \
        return (unsigned)fusiond_detail::vote(FUSIOND_MATCH_ANY, mask, fusiond_detail::to_bits(value));   \
    }                                                                                                     \
    inline unsigned __match_all_sync(unsigned mask, T value, int* all) {                                  \
        unsigned same = (unsigned)fusiond_detail::vote(FUSIOND_MATCH_ALL, mask, fusiond_detail::to_bits(value)); \
        *all = same != 0;                                                                                 \
        return same;                                                                                      \
    }
FUSIOND_SHUFFLES(int)
FUSIOND_SHUFFLES(unsigned)
FUSIOND_SHUFFLES(long)
FUSIOND_SHUFFLES(unsigned long)
FUSIOND_SHUFFLES(long long)
FUSIOND_SHUFFLES(unsigned long long)
FUSIOND_SHUFFLES(float)
FUSIOND_SHUFFLES(double)
#undef FUSIOND_SHUFFLES

#define FUSIOND_REDUCE(name, T, KIND) \
    inline T name(unsigned mask, T value) { return (T)fusiond_detail::vote(KIND, mask, (unsigned)value); }
FUSIOND_REDUCE(__reduce_add_sync, unsigned, FUSIOND_REDUCE_ADD)
FUSIOND_REDUCE(__reduce_add_sync, int, FUSIOND_REDUCE_ADD)
FUSIOND_REDUCE(__reduce_min_sync, unsigned, FUSIOND_REDUCE_MIN)
FUSIOND_REDUCE(__reduce_min_sync, int, FUSIOND_REDUCE_MIN_SIGNED)
FUSIOND_REDUCE(__reduce_max_sync, unsigned, FUSIOND_REDUCE_MAX)
FUSIOND_REDUCE(__reduce_max_sync, int, FUSIOND_REDUCE_MAX_SIGNED)
FUSIOND_REDUCE(__reduce_and_sync, unsigned, FUSIOND_REDUCE_AND)
FUSIOND_REDUCE(__reduce_or_sync, unsigned, FUSIOND_REDUCE_OR)
FUSIOND_REDUCE(__reduce_xor_sync, unsigned, FUSIOND_REDUCE_XOR)
#undef FUSIOND_REDUCE
