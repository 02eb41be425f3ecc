// Arithmetic that CUDA has and C++ lacks: bit operations, conversions, rounded operations, fast approximations.
// The approximations are computed exactly here: a GPU's differ in the last places.
#pragma once

#include <limits.h>
#include <math.h>
#include <stdint.h>

#include "builtins.h"

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_MAX_NORMAL_F 3.402823466e38f
#define CUDART_MIN_DENORM_F 1.401298464e-45f

// glibc declares some of these as C functions, and g++ calls others as library functions though one
// comparison would do; an always inlined definition of the same C function settles both.
#define FUSIOND_C extern "C" inline __attribute__((always_inline))

// NaN loses against a number, as in C.
FUSIOND_C float fmaxf(float a, float b) noexcept { return b > a || a != a ? b : a; }
FUSIOND_C float fminf(float a, float b) noexcept { return b < a || a != a ? b : a; }
FUSIOND_C double fmax(double a, double b) noexcept { return b > a || a != a ? b : a; }
FUSIOND_C double fmin(double a, double b) noexcept { return b < a || a != a ? b : a; }

FUSIOND_C float __expf(float x) noexcept { return expf(x); }
FUSIOND_C float __exp10f(float x) noexcept { return exp10f(x); }
FUSIOND_C float __logf(float x) noexcept { return logf(x); }
FUSIOND_C float __log2f(float x) noexcept { return log2f(x); }
FUSIOND_C float __log10f(float x) noexcept { return log10f(x); }
FUSIOND_C float __sinf(float x) noexcept { return sinf(x); }
FUSIOND_C float __cosf(float x) noexcept { return cosf(x); }
FUSIOND_C float __tanf(float x) noexcept { return tanf(x); }
FUSIOND_C float __powf(float x, float y) noexcept { return powf(x, y); }
FUSIOND_C void __sincosf(float x, float* s, float* c) noexcept { *s = sinf(x), *c = cosf(x); }
#undef FUSIOND_C

inline float __tanhf(float x) { return tanhf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }  // NaN gives 0, as on a GPU
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float sinpif(float x) { return (float)sin((double)x * CUDART_PI); }
inline float cospif(float x) { return (float)cos((double)x * CUDART_PI); }
inline float normcdff(float x) { return (float)(0.5 * erfc(-(double)x * 0.70710678118654752440)); }

#define FUSIOND_ROUNDED(T, prefix, suffix)                                       \
    inline T prefix##add_##suffix(T a, T b) { return a + b; }                    \
    inline T prefix##sub_##suffix(T a, T b) { return a - b; }                    \
    inline T prefix##mul_##suffix(T a, T b) { return a * b; }                    \
    inline T prefix##div_##suffix(T a, T b) { return a / b; }                    \
    inline T prefix##rcp_##suffix(T a) { return 1 / a; }
FUSIOND_ROUNDED(float, __f, rn)
FUSIOND_ROUNDED(double, __d, rn)
#undef FUSIOND_ROUNDED
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return (float)(1.0 / sqrt((double)a)); }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// min and max take any pair of arithmetic types that CUDA takes; floating ones prefer a number to NaN.
#define FUSIOND_MIN_MAX(R, A, B)                                                 \
    inline R min(A a, B b) { return (R)b < (R)a ? (R)b : (R)a; }                 \
    inline R max(A a, B b) { return (R)b > (R)a ? (R)b : (R)a; }
#define FUSIOND_MIN_MAX_INTEGERS(S, U)                                           \
    FUSIOND_MIN_MAX(S, S, S)                                                     \
    FUSIOND_MIN_MAX(U, U, U)                                                     \
    FUSIOND_MIN_MAX(U, S, U)                                                     \
    FUSIOND_MIN_MAX(U, U, S)
FUSIOND_MIN_MAX_INTEGERS(int, unsigned)
FUSIOND_MIN_MAX_INTEGERS(long, unsigned long)
FUSIOND_MIN_MAX_INTEGERS(long long, unsigned long long)
#undef FUSIOND_MIN_MAX_INTEGERS
#undef FUSIOND_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }

namespace fusiond_detail {
template <class To, class From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Conversions saturate and NaN becomes 0, as on a GPU; in C++ both are undefined.
template <class To> inline To saturated(double x, To least, To most) {
    if (x != x) return 0;
    if (x <= (double)least) return least;
    if (x >= (double)most) return most;
    return (To)x;
}
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

#define FUSIOND_CONVERT(suffix, rounded)                                                                             \
    inline int __float2int_##suffix(float x) { return fusiond_detail::saturated<int>(rounded((double)x), INT_MIN, INT_MAX); } \
    inline unsigned __float2uint_##suffix(float x) { return fusiond_detail::saturated<unsigned>(rounded((double)x), 0, UINT_MAX); } \
    inline int __double2int_##suffix(double x) { return fusiond_detail::saturated<int>(rounded(x), INT_MIN, INT_MAX); } \
    inline unsigned __double2uint_##suffix(double x) { return fusiond_detail::saturated<unsigned>(rounded(x), 0, UINT_MAX); }
FUSIOND_CONVERT(rn, nearbyint)
FUSIOND_CONVERT(rz, trunc)
FUSIOND_CONVERT(rd, floor)
FUSIOND_CONVERT(ru, ceil)
#undef FUSIOND_CONVERT
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline double __int2double_rn(int x) { return x; }
inline float __double2float_rn(double x) { return (float)x; }

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
inline int __mul24(int a, int b) {
    return (int)((int64_t)((int32_t)((uint32_t)a << 8) >> 8) * ((int32_t)((uint32_t)b << 8) >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __sad(int a, int b, unsigned c) { return (unsigned)(a < b ? (int64_t)b - a : (int64_t)a - b) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline int __hadd(int a, int b) { return (int)(((int64_t)a + b) >> 1); }
inline int __rhadd(int a, int b) { return (int)(((int64_t)a + b + 1) >> 1); }

// Loads and stores with a cache hint.
#define FUSIOND_LOAD(name) \
    template <class T> inline T name(const T* address) { return *address; }
#define FUSIOND_STORE(name) \
    template <class T> inline void name(T* address, T value) { *address = value; }
FUSIOND_LOAD(__ldg) FUSIOND_LOAD(__ldca) FUSIOND_LOAD(__ldcg) FUSIOND_LOAD(__ldcs) FUSIOND_LOAD(__ldlu) FUSIOND_LOAD(__ldcv)
FUSIOND_STORE(__stwb) FUSIOND_STORE(__stcg) FUSIOND_STORE(__stcs) FUSIOND_STORE(__stwt)
#undef FUSIOND_LOAD
#undef FUSIOND_STORE

#if defined(__x86_64__)
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
#else
inline long long clock64() { static long long ticks = 0; return ++ticks; }
#endif
