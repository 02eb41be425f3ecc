// Operations and conversions with a stated rounding: nearest even (rn), to zero (rz), up (ru), down (rd).
#pragma once

#include <fenv.h>
#include <limits.h>
#include <math.h>

#include "builtins.h"

namespace fusiond_detail {

// `operation` under a rounding mode; what it reads and gives goes through memory, so that it stays between the changes.
template <int Mode, class R, class F, class... A> inline R rounded(F operation, A... operands) {
    const int before = fegetround();
    fesetround(Mode);
    volatile R result = operation(*const_cast<const volatile A*>(&operands)...);
    fesetround(before);
    return result;
}

// Conversions to integers saturate; in C++ that is undefined. What NaN becomes depends on both types.
template <class To> inline To saturated(double x, To least, To most, To of_nan) {
    if (x != x) return of_nan;
    if (x <= (double)least) return least;
    if (x >= (double)most) return most;
    return (To)x;
}

}  // namespace fusiond_detail

#define FUSIOND_NEAREST(T, f, fma_name)                                  \
    inline T __##f##add_rn(T a, T b) { return a + b; }                   \
    inline T __##f##sub_rn(T a, T b) { return a - b; }                   \
    inline T __##f##mul_rn(T a, T b) { return a * b; }                   \
    inline T __##f##div_rn(T a, T b) { return a / b; }                   \
    inline T __##f##rcp_rn(T a) { return 1 / a; }                        \
    inline T __##f##sqrt_rn(T a) { return (T)sqrt(a); }                  \
    inline T fma_name##_rn(T a, T b, T c) { return (T)fma(a, b, c); }
#define FUSIOND_DIRECTED_1(T, name, MODE, expression) \
    inline T name(T a) { return fusiond_detail::rounded<MODE, T>([](T a) { return (T)(expression); }, a); }
#define FUSIOND_DIRECTED_2(T, name, MODE, expression) \
    inline T name(T a, T b) { return fusiond_detail::rounded<MODE, T>([](T a, T b) { return expression; }, a, b); }
#define FUSIOND_DIRECTED(T, f, fma_name, suffix, MODE)                                                              \
    FUSIOND_DIRECTED_2(T, __##f##add_##suffix, MODE, a + b)                                                         \
    FUSIOND_DIRECTED_2(T, __##f##sub_##suffix, MODE, a - b)                                                         \
    FUSIOND_DIRECTED_2(T, __##f##mul_##suffix, MODE, a * b)                                                         \
    FUSIOND_DIRECTED_2(T, __##f##div_##suffix, MODE, a / b)                                                         \
    FUSIOND_DIRECTED_1(T, __##f##rcp_##suffix, MODE, 1 / a)                                                         \
    FUSIOND_DIRECTED_1(T, __##f##sqrt_##suffix, MODE, sqrt(a))                                                      \
    inline T fma_name##_##suffix(T a, T b, T c) {                                                                   \
        return fusiond_detail::rounded<MODE, T>([](T a, T b, T c) { return (T)fma(a, b, c); }, a, b, c);            \
    }
#define FUSIOND_OPERATIONS(T, f, fma_name)                   \
    FUSIOND_NEAREST(T, f, fma_name)                          \
    FUSIOND_DIRECTED(T, f, fma_name, rz, FE_TOWARDZERO)      \
    FUSIOND_DIRECTED(T, f, fma_name, ru, FE_UPWARD)          \
    FUSIOND_DIRECTED(T, f, fma_name, rd, FE_DOWNWARD)
FUSIOND_OPERATIONS(float, f, __fmaf)
FUSIOND_OPERATIONS(double, d, __fma)
#undef FUSIOND_OPERATIONS
#undef FUSIOND_DIRECTED
#undef FUSIOND_DIRECTED_1
#undef FUSIOND_DIRECTED_2
#undef FUSIOND_NEAREST
inline float __frsqrt_rn(float a) { return (float)(1.0 / sqrt((double)a)); }

// From integers, and from double to float.
#define FUSIOND_WIDEN(To, From, name)                                                                                       \
    inline To name##_rn(From x) { return (To)x; }                                                                           \
    inline To name##_rz(From x) { return fusiond_detail::rounded<FE_TOWARDZERO, To>([](From a) { return (To)a; }, x); }     \
    inline To name##_ru(From x) { return fusiond_detail::rounded<FE_UPWARD, To>([](From a) { return (To)a; }, x); }         \
    inline To name##_rd(From x) { return fusiond_detail::rounded<FE_DOWNWARD, To>([](From a) { return (To)a; }, x); }
FUSIOND_WIDEN(float, int, __int2float)
FUSIOND_WIDEN(float, unsigned, __uint2float)
FUSIOND_WIDEN(float, long long, __ll2float)
FUSIOND_WIDEN(float, unsigned long long, __ull2float)
FUSIOND_WIDEN(double, long long, __ll2double)
FUSIOND_WIDEN(double, unsigned long long, __ull2double)
FUSIOND_WIDEN(float, double, __double2float)
#undef FUSIOND_WIDEN
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

// To integers. PTX: NaN becomes 0 from float to 32 bits, else the integer whose highest bit alone is set.
#define FUSIOND_TO_INTEGER(From, To, name, suffix, rounding, least, most, of_nan) \
    inline To name##_##suffix(From x) { return fusiond_detail::saturated<To>(rounding((double)x), least, most, of_nan); }
#define FUSIOND_TO_INTEGERS(suffix, rounding)                                                                                       \
    FUSIOND_TO_INTEGER(float, int, __float2int, suffix, rounding, INT_MIN, INT_MAX, 0)                                              \
    FUSIOND_TO_INTEGER(float, unsigned, __float2uint, suffix, rounding, 0, UINT_MAX, 0)                                             \
    FUSIOND_TO_INTEGER(float, long long, __float2ll, suffix, rounding, LLONG_MIN, LLONG_MAX, LLONG_MIN)                             \
    FUSIOND_TO_INTEGER(float, unsigned long long, __float2ull, suffix, rounding, 0, ULLONG_MAX, 1ull << 63)                         \
    FUSIOND_TO_INTEGER(double, int, __double2int, suffix, rounding, INT_MIN, INT_MAX, INT_MIN)                                      \
    FUSIOND_TO_INTEGER(double, unsigned, __double2uint, suffix, rounding, 0, UINT_MAX, 1u << 31)                                    \
    FUSIOND_TO_INTEGER(double, long long, __double2ll, suffix, rounding, LLONG_MIN, LLONG_MAX, LLONG_MIN)                           \
    FUSIOND_TO_INTEGER(double, unsigned long long, __double2ull, suffix, rounding, 0, ULLONG_MAX, 1ull << 63)
FUSIOND_TO_INTEGERS(rn, nearbyint)
FUSIOND_TO_INTEGERS(rz, trunc)
FUSIOND_TO_INTEGERS(ru, ceil)
FUSIOND_TO_INTEGERS(rd, floor)
#undef FUSIOND_TO_INTEGERS
#undef FUSIOND_TO_INTEGER
