// CUDA's half precision on the processor: what <cuda_fp16.h> becomes. Rounding as on a GPU; functions such as hexp are
// computed in float and rounded, where a GPU approximates.
#pragma once

#include "narrow.h"

FUSIOND_NARROW_TYPES(__half, __half2, HalfFormat)
FUSIOND_NARROW_FUNCTIONS(__half, __half2, HalfFormat, half)

typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;

inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fff)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bff)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half(0x0001)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00)
#define CUDART_ZERO_FP16 __ushort_as_half(0x0000)
