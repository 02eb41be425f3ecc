// Halves on the processor: 16 bits in memory, float in between. Each of + - * / and the square root is rounded to the
// nearest once, as on a GPU, since a float has more than twice a half's digits; functions are those of float, rounded.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "arithmetic.h"
#include "atomics.h"
#include "warp.h"

namespace fusiond_detail {

inline float half_to_float(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = bits >> 10 & 31, digits = bits & 0x3ffu;
    if (exponent == 0) {
        const float value = float(digits) * 0x1p-24f;
        return sign ? -value : value;
    }
    const uint32_t wide = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | digits << 13;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// To the nearest, ties to even; NaN is CUDA's.
inline uint16_t half_from(double value) {
    if (value != value) return 0x7fff;
    const uint16_t sign = __builtin_signbit(value) ? 0x8000 : 0;
    value = fabs(value);
    if (value >= 65520.0) return sign | 0x7c00;
    if (value < 0x1p-14) return sign | uint16_t(nearbyint(value * 0x1p24));  // the least normal one comes out right too
    int exponent;
    const double digits = nearbyint(frexp(value, &exponent) * 0x1p11);  // 1024 ... 2048
    return sign + uint16_t((exponent + 13) << 10) + uint16_t(digits);
}

}  // namespace fusiond_detail

struct __half_raw { unsigned short x; };

struct __half {
    unsigned short __x;

    __half() = default;
    __half(__half_raw raw) : __x(raw.x) {}
    __half(float v) : __x(fusiond_detail::half_from(v)) {}
    __half(double v) : __x(fusiond_detail::half_from(v)) {}
    __half(int v) : __x(fusiond_detail::half_from(v)) {}
    __half(unsigned v) : __x(fusiond_detail::half_from(v)) {}
    __half(short v) : __x(fusiond_detail::half_from(v)) {}
    __half(unsigned short v) : __x(fusiond_detail::half_from(v)) {}
    __half(long v) : __x(fusiond_detail::half_from(double(v > 65536 ? 65536 : v < -65536 ? -65536 : v))) {}
    __half(unsigned long v) : __x(fusiond_detail::half_from(double(v > 65536 ? 65536 : v))) {}
    __half(long long v) : __half(long(v)) {}
    __half(unsigned long long v) : __half((unsigned long)v) {}
    operator float() const { return fusiond_detail::half_to_float(__x); }
    operator __half_raw() const { return {__x}; }
};
typedef __half half;

#define FUSIOND_HALF(op)                                                               \
    inline __half operator op(const __half& a, const __half& b) { return float(a) op float(b); } \
    inline __half& operator op##=(__half& a, const __half& b) { return a = a op b; }
FUSIOND_HALF(+)
FUSIOND_HALF(-)
FUSIOND_HALF(*)
FUSIOND_HALF(/)
#undef FUSIOND_HALF
inline __half operator-(const __half& a) { return __half_raw{(unsigned short)(a.__x ^ 0x8000)}; }
inline __half operator+(const __half& a) { return a; }
inline __half& operator++(__half& a) { return a += __half(1.0f); }
inline __half& operator--(__half& a) { return a -= __half(1.0f); }
inline __half operator++(__half& a, int) { const __half old = a; ++a; return old; }
inline __half operator--(__half& a, int) { const __half old = a; --a; return old; }

// --- conversions ---

inline __half __float2half(float a) { return a; }
inline __half __float2half_rn(float a) { return a; }
inline __half __double2half(double a) { return a; }
inline float __half2float(__half a) { return a; }
inline __half __int2half_rn(int a) { return a; }
inline __half __uint2half_rn(unsigned a) { return a; }
inline __half __short2half_rn(short a) { return a; }
inline __half __ushort2half_rn(unsigned short a) { return a; }
inline int __half2int_rn(__half a) { return __float2int_rn(a); }
inline int __half2int_rz(__half a) { return __float2int_rz(a); }
inline int __half2int_rd(__half a) { return __float2int_rd(a); }
inline int __half2int_ru(__half a) { return __float2int_ru(a); }
inline unsigned __half2uint_rn(__half a) { return __float2uint_rn(a); }
inline unsigned __half2uint_rz(__half a) { return __float2uint_rz(a); }
inline unsigned short __half_as_ushort(__half a) { return a.__x; }
inline short __half_as_short(__half a) { return (short)a.__x; }
inline __half __ushort_as_half(unsigned short a) { return __half_raw{a}; }
inline __half __short_as_half(short a) { return __half_raw{(unsigned short)a}; }

// --- halves ---

#define FUSIOND_HALF_TWO(name, kind, expression) \
    inline kind name(__half x, __half y) { const float a = x, b = y; (void)a, (void)b; return expression; }
FUSIOND_HALF_TWO(__hadd, __half, a + b)
FUSIOND_HALF_TWO(__hsub, __half, a - b)
FUSIOND_HALF_TWO(__hmul, __half, a * b)
FUSIOND_HALF_TWO(__hdiv, __half, a / b)
FUSIOND_HALF_TWO(__hadd_rn, __half, a + b)
FUSIOND_HALF_TWO(__hsub_rn, __half, a - b)
FUSIOND_HALF_TWO(__hmul_rn, __half, a * b)
FUSIOND_HALF_TWO(__hadd_sat, __half, __saturatef(a + b))
FUSIOND_HALF_TWO(__hsub_sat, __half, __saturatef(a - b))
FUSIOND_HALF_TWO(__hmul_sat, __half, __saturatef(a * b))
FUSIOND_HALF_TWO(__hmax, __half, fmaxf(a, b))
FUSIOND_HALF_TWO(__hmin, __half, fminf(a, b))
FUSIOND_HALF_TWO(__heq, bool, a == b)
FUSIOND_HALF_TWO(__hne, bool, a < b || a > b)
FUSIOND_HALF_TWO(__hlt, bool, a < b)
FUSIOND_HALF_TWO(__hle, bool, a <= b)
FUSIOND_HALF_TWO(__hgt, bool, a > b)
FUSIOND_HALF_TWO(__hge, bool, a >= b)
#undef FUSIOND_HALF_TWO
// Exact in double: what one rounding would lose of the sum is far below the last place of a half.
inline __half __hfma(__half a, __half b, __half c) { return double(float(a)) * double(float(b)) + double(float(c)); }
inline __half __hneg(__half a) { return -a; }
inline __half __habs(__half a) { return __half_raw{(unsigned short)(a.__x & 0x7fff)}; }
inline bool __hisnan(__half a) { return (a.__x & 0x7fff) > 0x7c00; }
inline int __hisinf(__half a) { return (a.__x & 0x7fff) != 0x7c00 ? 0 : a.__x & 0x8000 ? -1 : 1; }

#define FUSIOND_HALF_ONE(name, expression) \
    inline __half name(__half x) { const float a = x; return expression; }
FUSIOND_HALF_ONE(hsqrt, sqrtf(a))
FUSIOND_HALF_ONE(hrsqrt, 1.0 / sqrt(double(a)))
FUSIOND_HALF_ONE(hrcp, 1.0f / a)
FUSIOND_HALF_ONE(hexp, exp(double(a)))
FUSIOND_HALF_ONE(hexp2, exp2(double(a)))
FUSIOND_HALF_ONE(hexp10, pow(10.0, double(a)))
FUSIOND_HALF_ONE(hlog, log(double(a)))
FUSIOND_HALF_ONE(hlog2, log2(double(a)))
FUSIOND_HALF_ONE(hlog10, log10(double(a)))
FUSIOND_HALF_ONE(hsin, sin(double(a)))
FUSIOND_HALF_ONE(hcos, cos(double(a)))
FUSIOND_HALF_ONE(htanh, tanh(double(a)))
FUSIOND_HALF_ONE(hfloor, floorf(a))
FUSIOND_HALF_ONE(hceil, ceilf(a))
FUSIOND_HALF_ONE(htrunc, truncf(a))
FUSIOND_HALF_ONE(hrint, rintf(a))
#undef FUSIOND_HALF_ONE

// --- pairs of halves ---

struct __attribute__((aligned(4))) __half2 {
    __half x, y;
    __half2() = default;
    __half2(const __half& a, const __half& b) : x(a), y(b) {}
};
typedef __half2 half2;
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
inline __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }

#define FUSIOND_HALF2(name, of) \
    inline __half2 name(__half2 a, __half2 b) { return {of(a.x, b.x), of(a.y, b.y)}; }
FUSIOND_HALF2(__hadd2, __hadd)
FUSIOND_HALF2(__hsub2, __hsub)
FUSIOND_HALF2(__hmul2, __hmul)
FUSIOND_HALF2(__h2div, __hdiv)
FUSIOND_HALF2(__hmax2, __hmax)
FUSIOND_HALF2(__hmin2, __hmin)
#undef FUSIOND_HALF2
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __hneg2(__half2 a) { return {-a.x, -a.y}; }
inline __half2 __habs2(__half2 a) { return {__habs(a.x), __habs(a.y)}; }
inline __half2 h2sqrt(__half2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }
inline __half2 h2rsqrt(__half2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }
inline __half2 h2rcp(__half2 a) { return {hrcp(a.x), hrcp(a.y)}; }
inline __half2 h2exp(__half2 a) { return {hexp(a.x), hexp(a.y)}; }
inline __half2 h2exp2(__half2 a) { return {hexp2(a.x), hexp2(a.y)}; }
inline __half2 h2log(__half2 a) { return {hlog(a.x), hlog(a.y)}; }
inline __half2 operator+(const __half2& a, const __half2& b) { return __hadd2(a, b); }
inline __half2 operator-(const __half2& a, const __half2& b) { return __hsub2(a, b); }
inline __half2 operator*(const __half2& a, const __half2& b) { return __hmul2(a, b); }
inline __half2 operator/(const __half2& a, const __half2& b) { return __h2div(a, b); }
inline __half2 operator-(const __half2& a) { return __hneg2(a); }
inline __half2& operator+=(__half2& a, const __half2& b) { return a = a + b; }
inline __half2& operator-=(__half2& a, const __half2& b) { return a = a - b; }
inline __half2& operator*=(__half2& a, const __half2& b) { return a = a * b; }
inline __half2& operator/=(__half2& a, const __half2& b) { return a = a / b; }

// --- memory and warps ---

inline __half __ldg(const __half* place) { return *place; }
inline __half2 __ldg(const __half2* place) { return *place; }
inline __half atomicAdd(__half* place, __half value) {
    return fusiond_detail::update(place, [value](__half old) -> __half { return old + value; });
}
inline __half2 atomicAdd(__half2* place, __half2 value) {
    return {atomicAdd(&place->x, value.x), atomicAdd(&place->y, value.y)};
}
#define FUSIOND_HALF_SHUFFLE(name, operand)                                                            \
    inline __half name(unsigned mask, __half value, operand lanes, int width = 32) {                   \
        return __half_raw{(unsigned short)name(mask, (unsigned)value.__x, lanes, width)};              \
    }                                                                                                  \
    inline __half2 name(unsigned mask, __half2 value, operand lanes, int width = 32) {                 \
        const unsigned both = name(mask, value.x.__x | (unsigned)value.y.__x << 16, lanes, width);     \
        return {__half_raw{(unsigned short)both}, __half_raw{(unsigned short)(both >> 16)}};           \
    }
FUSIOND_HALF_SHUFFLE(__shfl_sync, int)
FUSIOND_HALF_SHUFFLE(__shfl_up_sync, unsigned)
FUSIOND_HALF_SHUFFLE(__shfl_down_sync, unsigned)
FUSIOND_HALF_SHUFFLE(__shfl_xor_sync, int)
#undef FUSIOND_HALF_SHUFFLE
