// Floats of 8 bits on the processor: of <cuda_fp8.h> the two types by themselves. They are rounded to nearest even once,
// and what is beyond the largest one becomes that, as CUDA's constructors have it; there is no arithmetic on them.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;

namespace fusiond_detail {

// `largest`: the code of the largest number; behind it infinity and what is not a number, as far as there are.
template <int Fraction, int Bias, int Largest> struct EightFormat {
    static float widen(uint8_t bits) {
        const int code = bits & 0x7f, exponent = code >> Fraction, rest = code & ((1 << Fraction) - 1);
        if (code > Largest) return Largest == 0x7b && code == 0x7c ? (bits & 0x80 ? -INFINITY : INFINITY) : (float)NAN;
        const int normal = exponent ? 1 << Fraction : 0;
        const float size = ldexpf((float)(normal + rest), (exponent ? exponent : 1) - Bias - Fraction);
        return bits & 0x80 ? -size : size;
    }
    static uint8_t nearest(double x) {
        if (x != x) return 0x7f;
        const int sign = same_bits<uint64_t>(x) >> 63 ? 0x80 : 0;
        const double size = fabs(x);
        if (size >= 1e9) return (uint8_t)(sign | Largest);
        int exponent = 1 - Bias;
        if (size >= ldexp(1.0, exponent)) exponent = ilogb(size);
        const int found = ((exponent + Bias - 1) << Fraction) + (int)nearbyint(ldexp(size, Fraction - exponent));
        return (uint8_t)(sign | (found <= Largest ? found : Largest));
    }
};

template <class Format> struct Eight {
    __nv_fp8_storage_t __x;
    Eight() = default;
    explicit Eight(double x) : __x(Format::nearest(x)) {}
    explicit Eight(float x) : Eight((double)x) {}
    explicit Eight(__half x) : Eight((float)x) {}
    explicit Eight(__nv_bfloat16 x) : Eight((float)x) {}
    explicit operator float() const { return Format::widen(__x); }
    explicit operator double() const { return (double)(float)*this; }
    explicit operator __half() const { return __half((float)*this); }
    explicit operator __nv_bfloat16() const { return __nv_bfloat16((float)*this); }
};

}  // namespace fusiond_detail

struct __nv_fp8_e4m3 : ::fusiond_detail::Eight<::fusiond_detail::EightFormat<3, 7, 0x7e>> { using Eight::Eight; };
struct __nv_fp8_e5m2 : ::fusiond_detail::Eight<::fusiond_detail::EightFormat<2, 15, 0x7b>> { using Eight::Eight; };
