// Functions of real numbers that CUDA has and C++ lacks, minima and maxima. What is an approximation on a GPU (__expf)
// is computed exactly here: a GPU's results differ in the last places.
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

namespace fusiond_detail {

// sin(pi x) for 0 <= x < 2, with an argument of at most pi/4 for sin and cos.
inline double sine_of_half_turns(double x) {
    if (x >= 1) return -sine_of_half_turns(x - 1);
    if (x > 0.5) x = 1 - x;
    return x <= 0.25 ? sin(x * CUDART_PI) : cos((0.5 - x) * CUDART_PI);
}

// The inverse of erfc, by Newton's method on its logarithm; y lies between 0 and 1.
inline double inverse_erfc(double y) {
    const double log_y = log(y);
    double x = y > 0.5 ? (1 - y) * 0.886 : sqrt(fmax(0.0, -log_y - 0.5 * log(fmax(1.0, -3 * log_y))));
    for (int i = 0; i < 12; ++i) {
        const double at = erfc(x);
        const double step = (log(at) - log_y) * at / (1.1283791670955126 * exp(-x * x));
        if (!(fabs(step) > 0)) break;
        x += step;
        if (fabs(step) < 1e-15 * x) break;
    }
    return x;
}
inline double inverse_erf_near_zero(double y) {
    double x = y * 0.8862269254527580;
    for (int i = 0; i < 8; ++i) x -= (erf(x) - y) / (1.1283791670955126 * exp(-x * x));
    return x;
}

// The modified Bessel function of the first kind; all terms of its series are positive.
inline double bessel_i(int order, double x) {
    double term = order ? x / 2 : 1, sum = term;
    for (int k = 1; fabs(term) > fabs(sum) * 1e-17; ++k) {
        term *= x * x / 4 / k / (k + order);
        sum += term;
    }
    return sum;
}

inline double scaled_norm(int count, const double* x) {
    double largest = 0, sum = 0;
    bool infinite = false;
    for (int i = 0; i < count; ++i) infinite |= isinf(x[i]) != 0, largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
    if (infinite) return CUDART_INF;
    const int exponent = largest > 0 ? ilogb(largest) : 0;
    for (int i = 0; i < count; ++i) sum += scalbn(x[i], -exponent) * scalbn(x[i], -exponent);
    return scalbn(sqrt(sum), exponent);
}

}  // namespace fusiond_detail

inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline double sinpi(double x) { return copysign(1.0, x) * fusiond_detail::sine_of_half_turns(fabs(fmod(x, 2.0))); }
inline double cospi(double x) { return fusiond_detail::sine_of_half_turns(fmod(fabs(fmod(x, 2.0)) + 0.5, 2.0)); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
inline double erfcinv(double y) {
    if (!(y > 0 && y < 2)) return y == 0 ? CUDART_INF : y == 2 ? -CUDART_INF : CUDART_NAN;
    if (y > 0.5 && y < 1.5) return fusiond_detail::inverse_erf_near_zero(1 - y);
    return y < 1 ? fusiond_detail::inverse_erfc(y) : -fusiond_detail::inverse_erfc(2 - y);
}
inline double erfinv(double y) {
    if (!(fabs(y) < 1)) return fabs(y) == 1 ? y * CUDART_INF : CUDART_NAN;
    if (fabs(y) < 0.5) return y == 0 ? y : fusiond_detail::inverse_erf_near_zero(y);
    return copysign(fusiond_detail::inverse_erfc(1 - fabs(y)), y);
}
inline double erfcx(double x) {  // exp(x * x) * erfc(x)
    if (x < 25) return exp(x * x) * erfc(x);
    const double s = 1 / (2 * x * x);
    return 0.5641895835477563 / x * (1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s * (1 - 9 * s)))));
}
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
inline double normcdfinv(double p) { return -1.4142135623730950488 * erfcinv(2 * p); }
inline double cyl_bessel_i0(double x) { return fusiond_detail::bessel_i(0, x); }
inline double cyl_bessel_i1(double x) { return fusiond_detail::bessel_i(1, x); }
inline double rhypot(double a, double b) { return 1 / hypot(a, b); }
inline double norm(int count, const double* x) { return fusiond_detail::scaled_norm(count, x); }
inline double norm3d(double a, double b, double c) { const double x[] = {a, b, c}; return norm(3, x); }
inline double norm4d(double a, double b, double c, double d) { const double x[] = {a, b, c, d}; return norm(4, x); }
inline double rnorm(int count, const double* x) { return 1 / norm(count, x); }
inline double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
inline double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }

// The same for float, computed in double; each also under the name without f.
#define FUSIOND_FLOAT(name)                                                    inline float name##f(float x) { return (float)name((double)x); }           inline float name(float x) { return name##f(x); }
FUSIOND_FLOAT(rcbrt) FUSIOND_FLOAT(sinpi) FUSIOND_FLOAT(cospi) FUSIOND_FLOAT(erfinv) FUSIOND_FLOAT(erfcinv) FUSIOND_FLOAT(erfcx)
FUSIOND_FLOAT(normcdf) FUSIOND_FLOAT(normcdfinv) FUSIOND_FLOAT(cyl_bessel_i0) FUSIOND_FLOAT(cyl_bessel_i1)
#undef FUSIOND_FLOAT
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
inline float rhypotf(float a, float b) { return (float)rhypot((double)a, (double)b); }
inline float rhypot(float a, float b) { return rhypotf(a, b); }
inline float norm3df(float a, float b, float c) { return (float)norm3d(a, b, c); }
inline float norm4df(float a, float b, float c, float d) { return (float)norm4d(a, b, c, d); }
inline float rnorm3df(float a, float b, float c) { return (float)rnorm3d(a, b, c); }
inline float rnorm4df(float a, float b, float c, float d) { return (float)rnorm4d(a, b, c, d); }
inline float normf(int count, const float* x) {
    double sum = 0;  // a square of a float is no more than 1e77
    bool infinite = false;
    for (int i = 0; i < count; ++i) sum += (double)x[i] * x[i], infinite |= isinf(x[i]) != 0;
    return infinite ? CUDART_INF_F : (float)sqrt(sum);
}
inline float norm(int count, const float* x) { return normf(count, x); }
inline float rnormf(int count, const float* x) { return 1 / normf(count, x); }
inline float rnorm(int count, const float* x) { return rnormf(count, x); }

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

inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }
