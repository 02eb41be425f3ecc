// Floating-point types of 16 bits: what cuda_fp16.h and cuda_bf16.h share. Arithmetic is done in float and rounded once,
// to nearest even, which for + - * / and sqrt gives the same bits as an operation of that width: float has more than
// twice the digits, and two to spare. fma goes through double, rounded to odd on the way.
#pragma once

#include <stdint.h>

#include "arithmetic.h"
#include "atomics.h"
#include "bits.h"
#include "rounding.h"
#include "warp.h"

namespace fusiond_detail {

inline float float_of(uint32_t bits) { return same_bits<float>(bits); }
inline uint32_t bits_of(float x) { return same_bits<uint32_t>(x); }

// The double as the float that an exact value would be rounded from: its last bit says that something was cut off.
inline float to_odd(double x) {
    const float nearest = (float)x;
    const uint32_t bits = bits_of(nearest);
    if (x != x || (double)nearest == x || bits & 1) return nearest;
    return float_of(fabs((double)nearest) < fabs(x) ? bits + 1 : bits - 1);
}
template <class Integer> inline double integer_to_odd(Integer x) {
    const double nearest = (double)x;
    const __int128 back = (__int128)nearest;
    const uint64_t bits = same_bits<uint64_t>(nearest);
    if (back == (__int128)x || bits & 1) return nearest;
    return same_bits<double>((x > 0) == (back < (__int128)x) ? bits + 1 : bits - 1);
}

// a * b + c, rounded to odd. The product of two narrow numbers is exact in double.
inline double fused(double a, double b, double c) {
    const double product = a * b;
    const double sum = product + c;
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (c - part);  // exactly what the sum lacks
    if (!(lost != 0) || sum - sum != 0) return sum;
    const uint64_t bits = same_bits<uint64_t>(sum);
    if (bits & 1) return sum;
    return same_bits<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// IEEE binary16.
struct HalfFormat {
    static constexpr uint16_t infinity = 0x7c00;

    static float widen(uint16_t half) {
        const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
        const uint32_t exponent = half & 0x7c00u;
        uint32_t bits = (uint32_t)(half & 0x7fffu) << 13;
        if (exponent == 0x7c00u) return float_of(sign | 0x7f800000u | bits);
        if (exponent) return float_of(sign | (bits + (112u << 23)));
        return float_of(sign | bits_of(float_of(bits + (113u << 23)) - float_of(113u << 23)));  // zero and subnormals
    }
    static uint16_t nearest(float x) {
        uint32_t bits = bits_of(x);
        const uint32_t sign = bits >> 16 & 0x8000u;
        bits &= 0x7fffffffu;
        if (bits > 0x7f800000u) return 0x7fff;  // NaN, as the GPU writes it
        if (bits >= 143u << 23) return (uint16_t)(sign | 0x7c00u);
        if (bits < 113u << 23)  // subnormal: adding this number leaves the digits where they belong
            return (uint16_t)(sign | (bits_of(float_of(bits) + float_of(126u << 23)) - (126u << 23)));
        bits += 0xfffu + (bits >> 13 & 1u) - (112u << 23);
        return (uint16_t)(sign | bits >> 13);
    }
};

// The upper half of a float.
struct BrainFormat {
    static constexpr uint16_t infinity = 0x7f80;

    static float widen(uint16_t half) { return float_of((uint32_t)half << 16); }
    static uint16_t nearest(float x) {
        const uint32_t bits = bits_of(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

template <class Format> inline uint16_t narrow(double x) { return Format::nearest(to_odd(x)); }
// Towards zero, up and down: the nearest one, or its neighbour on the right side.
template <class Format> inline uint16_t narrow_to_zero(double x) {
    const uint16_t near = narrow<Format>(x);
    return fabs((double)Format::widen(near)) > fabs(x) ? (uint16_t)(near - 1) : near;
}
template <class Format> inline uint16_t narrow_up(double x) {
    const uint16_t near = narrow<Format>(x);
    if (!((double)Format::widen(near) < x)) return near;
    return near & 0x8000u ? (uint16_t)(near - 1) : (uint16_t)(near + 1);
}
template <class Format> inline uint16_t narrow_down(double x) { return (uint16_t)(narrow_up<Format>(-x) ^ 0x8000u); }

}  // namespace fusiond_detail

// The scalar type and its pair. T, T2: CUDA's names of the types; F: the format; L, S: how functions spell the long and
// the short name (float2half, hexp).
#define FUSIOND_NARROW_TYPES(T, T2, F)                                                                                  \
    struct __attribute__((aligned(2))) T {                                                                              \
        uint16_t fusiond_bits;                                                                                          \
        T() = default;                                                                                                  \
        T(float x) : fusiond_bits(::fusiond_detail::F::nearest(x)) {}                                                   \
        T(double x) : fusiond_bits(::fusiond_detail::narrow<::fusiond_detail::F>(x)) {}                                 \
        T(int x) : T((double)x) {}                                                                                      \
        T(unsigned x) : T((double)x) {}                                                                                 \
        T(short x) : T((double)x) {}                                                                                    \
        T(unsigned short x) : T((double)x) {}                                                                           \
        T(long x) : T(::fusiond_detail::integer_to_odd(x)) {}                                                           \
        T(unsigned long x) : T(::fusiond_detail::integer_to_odd(x)) {}                                                  \
        T(long long x) : T(::fusiond_detail::integer_to_odd(x)) {}                                                      \
        T(unsigned long long x) : T(::fusiond_detail::integer_to_odd(x)) {}                                             \
        operator float() const { return ::fusiond_detail::F::widen(fusiond_bits); }                                     \
        operator bool() const { return (fusiond_bits & 0x7fffu) != 0; }                                                 \
        operator char() const { return (char)::__float2int_rz(*this); }                                                 \
        operator signed char() const { return (signed char)::__float2int_rz(*this); }                                   \
        operator unsigned char() const { return (unsigned char)::__float2int_rz(*this); }                               \
        operator short() const { return (short)::__float2int_rz(*this); }                                               \
        operator unsigned short() const { return (unsigned short)::__float2int_rz(*this); }                             \
        operator int() const { return ::__float2int_rz(*this); }                                                        \
        operator unsigned() const { return ::__float2uint_rz(*this); }                                                  \
        operator long() const { return (long)::__float2ll_rz(*this); }                                                  \
        operator unsigned long() const { return (unsigned long)::__float2ull_rz(*this); }                               \
        operator long long() const { return ::__float2ll_rz(*this); }                                                   \
        operator unsigned long long() const { return ::__float2ull_rz(*this); }                                         \
        T& operator=(float x) { return *this = T(x); }                                                                  \
        T& operator=(double x) { return *this = T(x); }                                                                 \
    };                                                                                                                  \
    struct __attribute__((aligned(4))) T2 {                                                                             \
        T x, y;                                                                                                         \
        T2() = default;                                                                                                 \
        T2(T x, T y) : x(x), y(y) {}                                                                                    \
    };                                                                                                                  \
    struct T##_raw { unsigned short x; };                                                                               \
    inline T fusiond_##T(uint16_t bits) { T made; made.fusiond_bits = bits; return made; }                              \
    FUSIOND_NARROW_OPERATORS(T)                                                                                         \
    FUSIOND_NARROW_PAIR_OPERATORS(T, T2)

#define FUSIOND_NARROW_OPERATOR(T, sign)                                                                                \
    inline T operator sign(const T& a, const T& b) { return T((float)a sign (float)b); }                                \
    inline T& operator sign##=(T& a, const T& b) { return a = a sign b; }
#define FUSIOND_NARROW_RELATION(T, sign) \
    inline bool operator sign(const T& a, const T& b) { return (float)a sign (float)b; }
#define FUSIOND_NARROW_OPERATORS(T)                                                                                     \
    FUSIOND_NARROW_OPERATOR(T, +) FUSIOND_NARROW_OPERATOR(T, -) FUSIOND_NARROW_OPERATOR(T, *) FUSIOND_NARROW_OPERATOR(T, /) \
    FUSIOND_NARROW_RELATION(T, ==) FUSIOND_NARROW_RELATION(T, !=) FUSIOND_NARROW_RELATION(T, <)                         \
    FUSIOND_NARROW_RELATION(T, <=) FUSIOND_NARROW_RELATION(T, >) FUSIOND_NARROW_RELATION(T, >=)                         \
    inline T operator+(const T& a) { return a; }                                                                        \
    inline T operator-(const T& a) { return fusiond_##T((uint16_t)(a.fusiond_bits ^ 0x8000u)); }                        \
    inline T& operator++(T& a) { return a = a + T(1.0f); }                                                              \
    inline T& operator--(T& a) { return a = a - T(1.0f); }                                                              \
    inline T operator++(T& a, int) { const T old = a; ++a; return old; }                                                \
    inline T operator--(T& a, int) { const T old = a; --a; return old; }
#define FUSIOND_NARROW_PAIR_OPERATOR(T, T2, sign)                                                                       \
    inline T2 operator sign(const T2& a, const T2& b) { return T2(a.x sign b.x, a.y sign b.y); }                        \
    inline T2& operator sign##=(T2& a, const T2& b) { return a = a sign b; }
#define FUSIOND_NARROW_PAIR_OPERATORS(T, T2)                                                                            \
    FUSIOND_NARROW_PAIR_OPERATOR(T, T2, +) FUSIOND_NARROW_PAIR_OPERATOR(T, T2, -)                                       \
    FUSIOND_NARROW_PAIR_OPERATOR(T, T2, *) FUSIOND_NARROW_PAIR_OPERATOR(T, T2, /)                                       \
    inline T2 operator-(const T2& a) { return T2(-a.x, -a.y); }                                                         \
    inline bool operator==(const T2& a, const T2& b) { return a.x == b.x && a.y == b.y; }                               \
    inline bool operator!=(const T2& a, const T2& b) { return !(a == b); }

#define FUSIOND_NARROW_ROUNDED(T, F, name, From)                                                                        \
    inline T name##_rn(From x) { return fusiond_##T(::fusiond_detail::narrow<::fusiond_detail::F>((double)x)); }        \
    inline T name##_rz(From x) { return fusiond_##T(::fusiond_detail::narrow_to_zero<::fusiond_detail::F>((double)x)); } \
    inline T name##_ru(From x) { return fusiond_##T(::fusiond_detail::narrow_up<::fusiond_detail::F>((double)x)); }     \
    inline T name##_rd(From x) { return fusiond_##T(::fusiond_detail::narrow_down<::fusiond_detail::F>((double)x)); }
#define FUSIOND_NARROW_INTEGERS(T, L, suffix)                                                                           \
    inline int __##L##2int_##suffix(T x) { return ::__float2int_##suffix(x); }                                          \
    inline unsigned __##L##2uint_##suffix(T x) { return ::__float2uint_##suffix(x); }                                   \
    inline long long __##L##2ll_##suffix(T x) { return ::__float2ll_##suffix(x); }                                      \
    inline unsigned long long __##L##2ull_##suffix(T x) { return ::__float2ull_##suffix(x); }
#define FUSIOND_NARROW_FUNCTION(T, T2, name, expression)                                                                \
    inline T h##name(T a) { const float x = a; return T((float)(expression)); }                                         \
    inline T2 h2##name(T2 a) { return T2(h##name(a.x), h##name(a.y)); }
#define FUSIOND_NARROW_BINARY(T, T2, name, expression)                                                                  \
    inline T name(T a, T b) { return expression; }                                                                      \
    inline T2 name##2(T2 a, T2 b) { return T2(name(a.x, b.x), name(a.y, b.y)); }
#define FUSIOND_NARROW_COMPARE(T, T2, name, sign)                                                                       \
    inline bool __h##name(T a, T b) { return (float)a sign (float)b; }                                                  \
    inline bool __h##name##u(T a, T b) { return __hisnan(a) || __hisnan(b) || (float)a sign (float)b; }                 \
    inline bool __hb##name##2(T2 a, T2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }                        \
    inline bool __hb##name##u2(T2 a, T2 b) { return __h##name##u(a.x, b.x) && __h##name##u(a.y, b.y); }                 \
    inline T2 __h##name##2(T2 a, T2 b) { return T2(T(__h##name(a.x, b.x) ? 1.0f : 0.0f), T(__h##name(a.y, b.y) ? 1.0f : 0.0f)); }

#define FUSIOND_NARROW_FUNCTIONS(T, T2, F, L)                                                                           \
    FUSIOND_NARROW_ROUNDED(T, F, __float2##L, float)                                                                    \
    FUSIOND_NARROW_ROUNDED(T, F, __int2##L, int)                                                                        \
    FUSIOND_NARROW_ROUNDED(T, F, __uint2##L, unsigned)                                                                  \
    FUSIOND_NARROW_ROUNDED(T, F, __short2##L, short)                                                                    \
    FUSIOND_NARROW_ROUNDED(T, F, __ushort2##L, unsigned short)                                                          \
    FUSIOND_NARROW_INTEGERS(T, L, rn) FUSIOND_NARROW_INTEGERS(T, L, rz)                                                 \
    FUSIOND_NARROW_INTEGERS(T, L, ru) FUSIOND_NARROW_INTEGERS(T, L, rd)                                                 \
    inline T __float2##L(float x) { return T(x); }                                                                      \
    inline T __double2##L(double x) { return T(x); }                                                                    \
    inline float __##L##2float(T x) { return (float)x; }                                                                \
    inline unsigned short __##L##_as_ushort(T x) { return x.fusiond_bits; }                                             \
    inline short __##L##_as_short(T x) { return (short)x.fusiond_bits; }                                                \
    inline T __ushort_as_##L(unsigned short x) { return fusiond_##T(x); }                                               \
    inline T __short_as_##L(short x) { return fusiond_##T((uint16_t)x); }                                               \
    inline T2 __##L##2##L##2(T x) { return T2(x, x); }                                                                  \
    inline T2 __halves2##L##2(T x, T y) { return T2(x, y); }                                                            \
    inline T2 __float2##L##2_rn(float x) { return T2(T(x), T(x)); }                                                     \
    inline T2 __floats2##L##2_rn(float x, float y) { return T2(T(x), T(y)); }                                           \
    inline T2 __float22##L##2_rn(float2 x) { return T2(T(x.x), T(x.y)); }                                               \
    inline float2 __##L##22float2(T2 x) { return make_float2(x.x, x.y); }                                               \
    inline T __low2##L(T2 x) { return x.x; }                                                                            \
    inline T __high2##L(T2 x) { return x.y; }                                                                           \
    inline float __low2float(T2 x) { return x.x; }                                                                      \
    inline float __high2float(T2 x) { return x.y; }                                                                     \
    inline T2 __low2##L##2(T2 x) { return T2(x.x, x.x); }                                                               \
    inline T2 __high2##L##2(T2 x) { return T2(x.y, x.y); }                                                              \
    inline T2 __lowhigh2highlow(T2 x) { return T2(x.y, x.x); }                                                          \
    inline T2 __lows2##L##2(T2 a, T2 b) { return T2(a.x, b.x); }                                                        \
    inline T2 __highs2##L##2(T2 a, T2 b) { return T2(a.y, b.y); }                                                       \
    inline T __hneg(T a) { return -a; }                                                                                 \
    inline T __habs(T a) { return fusiond_##T(a.fusiond_bits & 0x7fffu); }                                              \
    inline T2 __hneg2(T2 a) { return -a; }                                                                              \
    inline T2 __habs2(T2 a) { return T2(__habs(a.x), __habs(a.y)); }                                                    \
    inline bool __hisnan(T a) { return (a.fusiond_bits & 0x7fffu) > ::fusiond_detail::F::infinity; }                    \
    inline int __hisinf(T a) {                                                                                          \
        return (a.fusiond_bits & 0x7fffu) == ::fusiond_detail::F::infinity ? (a.fusiond_bits >> 15 ? -1 : 1) : 0;       \
    }                                                                                                                   \
    FUSIOND_NARROW_BINARY(T, T2, __hadd, a + b) FUSIOND_NARROW_BINARY(T, T2, __hsub, a - b)                             \
    FUSIOND_NARROW_BINARY(T, T2, __hmul, a * b)                                                                         \
    inline T __hdiv(T a, T b) { return a / b; }                                                                         \
    inline T2 __h2div(T2 a, T2 b) { return a / b; }                                                                     \
    inline T __hadd_rn(T a, T b) { return a + b; }                                                                      \
    inline T __hsub_rn(T a, T b) { return a - b; }                                                                      \
    inline T __hmul_rn(T a, T b) { return a * b; }                                                                      \
    inline T2 __hadd2_rn(T2 a, T2 b) { return a + b; }                                                                  \
    inline T2 __hsub2_rn(T2 a, T2 b) { return a - b; }                                                                  \
    inline T2 __hmul2_rn(T2 a, T2 b) { return a * b; }                                                                  \
    inline T __hadd_sat(T a, T b) { return T(__saturatef(a + b)); }                                                     \
    inline T __hsub_sat(T a, T b) { return T(__saturatef(a - b)); }                                                     \
    inline T __hmul_sat(T a, T b) { return T(__saturatef(a * b)); }                                                     \
    inline T __hfma(T a, T b, T c) { return T(::fusiond_detail::fused((float)a, (float)b, (float)c)); }                 \
    inline T __hfma_sat(T a, T b, T c) { return T(__saturatef(__hfma(a, b, c))); }                                      \
    inline T __hfma_relu(T a, T b, T c) {                                                                               \
        const T x = __hfma(a, b, c);                                                                                    \
        return (float)x < 0 ? T(0.0f) : x;                                                                              \
    }                                                                                                                   \
    inline T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }                    \
    inline T2 __hfma2_relu(T2 a, T2 b, T2 c) { return T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)); }     \
    FUSIOND_NARROW_BINARY(T, T2, __hmax, __hisnan(a) ? (__hisnan(b) ? fusiond_##T(0x7fff) : b)                          \
                          : __hisnan(b) || (float)a > (float)b || ((float)a == (float)b && !(a.fusiond_bits >> 15)) ? a : b) \
    FUSIOND_NARROW_BINARY(T, T2, __hmin, __hisnan(a) ? (__hisnan(b) ? fusiond_##T(0x7fff) : b)                          \
                          : __hisnan(b) || (float)a < (float)b || ((float)a == (float)b && a.fusiond_bits >> 15) ? a : b) \
    inline T __hmax_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? fusiond_##T(0x7fff) : __hmax(a, b); }           \
    inline T __hmin_nan(T a, T b) { return __hisnan(a) || __hisnan(b) ? fusiond_##T(0x7fff) : __hmin(a, b); }           \
    FUSIOND_NARROW_COMPARE(T, T2, eq, ==) FUSIOND_NARROW_COMPARE(T, T2, ne, !=) FUSIOND_NARROW_COMPARE(T, T2, lt, <)    \
    FUSIOND_NARROW_COMPARE(T, T2, le, <=) FUSIOND_NARROW_COMPARE(T, T2, gt, >) FUSIOND_NARROW_COMPARE(T, T2, ge, >=)    \
    FUSIOND_NARROW_FUNCTION(T, T2, exp, expf(x)) FUSIOND_NARROW_FUNCTION(T, T2, exp2, exp2f(x))                         \
    FUSIOND_NARROW_FUNCTION(T, T2, exp10, exp10f(x)) FUSIOND_NARROW_FUNCTION(T, T2, log, logf(x))                       \
    FUSIOND_NARROW_FUNCTION(T, T2, log2, log2f(x)) FUSIOND_NARROW_FUNCTION(T, T2, log10, log10f(x))                     \
    FUSIOND_NARROW_FUNCTION(T, T2, sqrt, sqrtf(x)) FUSIOND_NARROW_FUNCTION(T, T2, rsqrt, 1.0 / sqrt((double)x))         \
    FUSIOND_NARROW_FUNCTION(T, T2, rcp, 1.0f / x) FUSIOND_NARROW_FUNCTION(T, T2, sin, sinf(x))                          \
    FUSIOND_NARROW_FUNCTION(T, T2, cos, cosf(x)) FUSIOND_NARROW_FUNCTION(T, T2, tanh, tanhf(x))                         \
    FUSIOND_NARROW_FUNCTION(T, T2, floor, floorf(x)) FUSIOND_NARROW_FUNCTION(T, T2, ceil, ceilf(x))                     \
    FUSIOND_NARROW_FUNCTION(T, T2, trunc, truncf(x)) FUSIOND_NARROW_FUNCTION(T, T2, rint, rintf(x))                     \
    inline T atomicAdd(T* address, T value) {                                                                           \
        return ::fusiond_detail::update(address, [value](T old) -> T { return old + value; });                          \
    }                                                                                                                   \
    inline T2 atomicAdd(T2* address, T2 value) {                                                                        \
        return ::fusiond_detail::update(address, [value](T2 old) -> T2 { return old + value; });                        \
    }                                                                                                                   \
    FUSIOND_NARROW_SHUFFLES(T, unsigned short)                                                                          \
    FUSIOND_NARROW_SHUFFLES(T2, unsigned)

// As words: warp operations carry 4 or 8 bytes.
#define FUSIOND_NARROW_SHUFFLE(T, Bits, name, Operand)                                                                  \
    inline T name(unsigned mask, T value, Operand operand, int width = 32) {                                            \
        return ::fusiond_detail::same_bits<T>((Bits)name(mask, (unsigned)::fusiond_detail::same_bits<Bits>(value), operand, width)); \
    }
#define FUSIOND_NARROW_SHUFFLES(T, Bits)                                                                                \
    FUSIOND_NARROW_SHUFFLE(T, Bits, __shfl_sync, int) FUSIOND_NARROW_SHUFFLE(T, Bits, __shfl_up_sync, unsigned)         \
    FUSIOND_NARROW_SHUFFLE(T, Bits, __shfl_down_sync, unsigned) FUSIOND_NARROW_SHUFFLE(T, Bits, __shfl_xor_sync, int)
