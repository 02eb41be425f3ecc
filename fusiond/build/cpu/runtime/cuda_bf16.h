// bfloat16 on the processor: what <cuda_bf16.h> becomes. Rounding as on a GPU; functions such as hexp are computed in
// float and rounded, where a GPU approximates.
#pragma once

#include "narrow.h"

FUSIOND_NARROW_TYPES(__nv_bfloat16, __nv_bfloat162, BrainFormat)
FUSIOND_NARROW_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, BrainFormat, bfloat16)

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80)
#define CUDART_NAN_BF16 __ushort_as_bfloat16(0x7fff)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16(0x7f7f)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16(0x0001)
#define CUDART_ONE_BF16 __ushort_as_bfloat16(0x3f80)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16(0x0000)
