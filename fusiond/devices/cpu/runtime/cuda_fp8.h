// Floats of 8 bits on the processor: what <cuda_fp8.h> becomes. They are rounded to nearest even once, and what is beyond
// the largest one becomes that, as CUDA's constructors have it; there is no arithmetic on them.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace fusiond_detail {

// `largest`: the code of the largest number; `beyond`: where infinity ends without saturation (a NaN, where there is none).
struct EightFormat {
    int fraction, bias, largest, beyond;

    float widen(uint8_t bits) const {
        const int code = bits & 0x7f, exponent = code >> fraction, rest = code & ((1 << fraction) - 1);
        if (code > largest) return beyond == 0x7c && code == beyond ? (bits & 0x80 ? -INFINITY : INFINITY) : (float)NAN;
        const int normal = exponent ? 1 << fraction : 0;
        const float size = ldexpf((float)(normal + rest), (exponent ? exponent : 1) - bias - fraction);
        return bits & 0x80 ? -size : size;
    }
    uint8_t nearest(double x, bool finite) const {
        if (x != x) return 0x7f;
        const int sign = same_bits<uint64_t>(x) >> 63 ? 0x80 : 0;
        const double size = fabs(x);
        const int end = finite ? largest : beyond;
        if (size >= 1e9) return (uint8_t)(sign | end);
        int exponent = 1 - bias;
        if (size >= ldexp(1.0, exponent)) exponent = ilogb(size);
        const int found = ((exponent + bias - 1) << fraction) + (int)nearbyint(ldexp(size, fraction - exponent));
        return (uint8_t)(sign | (found <= largest ? found : end));
    }
};
constexpr EightFormat e4m3 = {3, 7, 0x7e, 0x7f}, e5m2 = {2, 15, 0x7b, 0x7c};
inline const EightFormat& eight(__nv_fp8_interpretation_t kind) { return kind == __NV_E4M3 ? e4m3 : e5m2; }

}  // namespace fusiond_detail

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    return ::fusiond_detail::eight(kind).nearest(x, saturate == __NV_SATFINITE);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    return __nv_cvt_double_to_fp8(x, saturate, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(x.x, saturate, kind) | __nv_cvt_float_to_fp8(x.y, saturate, kind) << 8);
}

// T: CUDA's name, F: the format. Pairs and fours hold the first in the lowest byte.
#define FUSIOND_EIGHT(T, T2, T4, F)                                                                                      \
    struct T {                                                                                                           \
        __nv_fp8_storage_t __x;                                                                                          \
        T() = default;                                                                                                   \
        explicit T(double x) : __x(::fusiond_detail::F.nearest(x, true)) {}                                              \
        explicit T(float x) : T((double)x) {}                                                                            \
        explicit T(__half x) : T((float)x) {}                                                                            \
        explicit T(__nv_bfloat16 x) : T((float)x) {}                                                                     \
        template <class N, typename std::enable_if<std::is_integral<N>::value, int>::type = 0>                           \
        explicit T(N x) : T((float)x) {}                                                                                 \
        explicit operator float() const { return ::fusiond_detail::F.widen(__x); }                                       \
        explicit operator double() const { return (double)(float)*this; }                                                \
        explicit operator __half() const { return __half((float)*this); }                                                \
        explicit operator __nv_bfloat16() const { return __nv_bfloat16((float)*this); }                                  \
        explicit operator bool() const { return (__x & 0x7f) != 0; }                                                     \
        explicit operator int() const { return ::__float2int_rz((float)*this); }                                         \
        explicit operator unsigned() const { return ::__float2uint_rz((float)*this); }                                   \
    };                                                                                                                   \
    struct T2 {                                                                                                          \
        __nv_fp8x2_storage_t __x;                                                                                        \
        T2() = default;                                                                                                  \
        explicit T2(float2 v) : __x((__nv_fp8x2_storage_t)(T(v.x).__x | T(v.y).__x << 8)) {}                             \
        explicit operator float2() const {                                                                               \
            return make_float2(::fusiond_detail::F.widen(__x & 0xff), ::fusiond_detail::F.widen(__x >> 8));              \
        }                                                                                                                \
    };                                                                                                                   \
    struct T4 {                                                                                                          \
        __nv_fp8x4_storage_t __x;                                                                                        \
        T4() = default;                                                                                                  \
        explicit T4(float4 v)                                                                                            \
            : __x(T(v.x).__x | T(v.y).__x << 8 | T(v.z).__x << 16 | (unsigned)T(v.w).__x << 24) {}                       \
        explicit operator float4() const {                                                                               \
            const auto& f = ::fusiond_detail::F;                                                                         \
            return make_float4(f.widen(__x & 0xff), f.widen(__x >> 8 & 0xff), f.widen(__x >> 16 & 0xff), f.widen(__x >> 24)); \
        }                                                                                                                \
    };
FUSIOND_EIGHT(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, e4m3)
FUSIOND_EIGHT(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, e5m2)
#undef FUSIOND_EIGHT
