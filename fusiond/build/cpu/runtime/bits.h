// Bit operations and integer arithmetic that CUDA has and C++ lacks.
#pragma once

#include <stdint.h>

#include "builtins.h"

namespace fusiond_detail {
template <class To, class From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Byte or half-word `i` of a word, with the sign of T.
template <class T> inline T lane(unsigned word, int i) { return (T)(word >> 8 * (int)sizeof(T) * i); }
}  // namespace fusiond_detail

inline int __float_as_int(float x) { return fusiond_detail::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return fusiond_detail::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return fusiond_detail::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return fusiond_detail::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return fusiond_detail::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return fusiond_detail::same_bits<double>(x); }
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int hi, int lo) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)hi << 32 | (unsigned)lo));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
// Where the |offset|-th set bit of `mask` is, upwards (or downwards) from bit `base` on; 0xffffffff: nowhere.
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
    int left = offset < 0 ? -offset : offset;
    if (left == 0) return base < 32 && mask >> base & 1 ? base : 0xffffffffu;
    for (unsigned at = base; at < 32; at += offset < 0 ? -1u : 1u)
        if (mask >> at & 1 && --left == 0) return at;
    return 0xffffffffu;
}

inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned pick = selector >> (4 * i) & 15u;
        unsigned byte = (unsigned)(bytes >> (8 * (pick & 7u))) & 255u;
        if (pick & 8u) byte = byte & 128u ? 255u : 0u;  // PTX prmt: replicate the sign
        result |= byte << (8 * i);
    }
    return result;
}

inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int mulhi(int a, int b) { return __mulhi(a, b); }
inline unsigned mulhi(unsigned a, unsigned b) { return __umulhi(a, b); }
inline long long mul64hi(long long a, long long b) { return __mul64hi(a, b); }
inline unsigned long long mul64hi(unsigned long long a, unsigned long long b) { return __umul64hi(a, b); }
inline int __mul24(int a, int b) {
    return (int)((int64_t)((int32_t)((uint32_t)a << 8) >> 8) * ((int32_t)((uint32_t)b << 8) >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __sad(int a, int b, unsigned c) { return (unsigned)(a < b ? (int64_t)b - a : (int64_t)a - b) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline int __hadd(int a, int b) { return (int)(((int64_t)a + b) >> 1); }
inline int __rhadd(int a, int b) { return (int)(((int64_t)a + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a + b + 1) >> 1); }

namespace fusiond_detail {
template <class T> inline unsigned dot4(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (unsigned)((int)lane<T>(a, i) * (int)lane<T>(b, i));
    return c;
}
template <class Half, class Byte> inline unsigned dot2(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 2; ++i) c += (unsigned)((int)lane<Half>(a, i) * (int)lane<Byte>(b, i));
    return c;
}
}  // namespace fusiond_detail

inline int __dp4a(int a, int b, int c) { return (int)fusiond_detail::dot4<int8_t>((unsigned)a, (unsigned)b, (unsigned)c); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) { return fusiond_detail::dot4<uint8_t>(a, b, c); }
inline int __dp4a(char4 a, char4 b, int c) {
    return __dp4a(fusiond_detail::same_bits<int>(a), fusiond_detail::same_bits<int>(b), c);
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return __dp4a(fusiond_detail::same_bits<unsigned>(a), fusiond_detail::same_bits<unsigned>(b), c);
}
#define FUSIOND_DP2A(name, bytes)                                                                               \
    inline int name(int a, int b, int c) {                                                                      \
        return (int)fusiond_detail::dot2<int16_t, int8_t>((unsigned)a, (unsigned)b bytes, (unsigned)c);         \
    }                                                                                                           \
    inline unsigned name(unsigned a, unsigned b, unsigned c) {                                                  \
        return fusiond_detail::dot2<uint16_t, uint8_t>(a, b bytes, c);                                          \
    }                                                                                                           \
    inline int name(short2 a, char4 b, int c) {                                                                 \
        return name(fusiond_detail::same_bits<int>(a), fusiond_detail::same_bits<int>(b), c);                   \
    }                                                                                                           \
    inline unsigned name(ushort2 a, uchar4 b, unsigned c) {                                                     \
        return name(fusiond_detail::same_bits<unsigned>(a), fusiond_detail::same_bits<unsigned>(b), c);         \
    }
FUSIOND_DP2A(__dp2a_lo, )
FUSIOND_DP2A(__dp2a_hi, >> 16)
#undef FUSIOND_DP2A
