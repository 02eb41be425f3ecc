"""The declarations of CUDA that the front end needs, so that kernels can be read where no toolkit is installed.

Only what shapes the tree must be right here: qualifiers, built-in variables, barriers, vector types. A function that
is missing does no harm: the front end goes on, and the compiler that builds the kernel has the last word.
"""

from __future__ import annotations

_VECTORS = {
    "char": "signed char", "uchar": "unsigned char", "short": "short", "ushort": "unsigned short", "int": "int",
    "uint": "unsigned int", "long": "long", "ulong": "unsigned long", "longlong": "long long",
    "ulonglong": "unsigned long long", "float": "float", "double": "double",
}  # fmt: skip

VECTOR_OF = {f"{name}{lanes}": scalar for name, scalar in _VECTORS.items() for lanes in "1234"}
"""CUDA's vector types, and what they are vectors of."""


def _vectors() -> str:
    lines = []
    for name, scalar in _VECTORS.items():
        for lanes in range(1, 5):
            axes = ", ".join("xyzw"[:lanes])
            taken = ", ".join([scalar] * lanes)
            lines.append(f"struct {name}{lanes} {{ {scalar} {axes}; }};")
            lines.append(f"__host__ __device__ {name}{lanes} make_{name}{lanes}({taken});")
    return "\n".join(lines)


def _functions() -> str:
    lines = []
    for names, result in (
        ("atomicAdd atomicSub atomicExch atomicMin atomicMax atomicInc atomicDec atomicAnd atomicOr atomicXor", "T"),
        ("atomicAdd_block atomicAdd_system", "T"),
    ):
        lines += [f"template <class T, class U> __device__ {result} {name}(T*, U);" for name in names.split()]
    lines += ["template <class T, class U, class V> __device__ T atomicCAS(T*, U, V);"]
    one = (
        *("sqrt", "rsqrt", "exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
        *("sinh", "cosh", "tanh", "fabs", "floor", "ceil", "round", "trunc", "rint", "erf", "erfc", "cbrt", "expm1"),
        "log1p",
    )
    two = ["pow", "fmod", "atan2", "fmin", "fmax", "fdim", "hypot", "copysign"]
    for name in one:
        lines.append(f"__host__ __device__ double {name}(double); __host__ __device__ float {name}f(float);")
        lines.append(f"__host__ __device__ float {name}(float);")
    for name in two:
        lines.append(
            f"__host__ __device__ double {name}(double, double); __host__ __device__ float {name}f(float, float);"
        )
        lines.append(f"__host__ __device__ float {name}(float, float);")
    for name in ("__expf", "__logf", "__log2f", "__sinf", "__cosf", "__tanf", "__frsqrt_rn", "__saturatef"):
        lines.append(f"__device__ float {name}(float);")
    for name in ("min", "max"):
        for kind in ("int", "unsigned", "long", "unsigned long", "long long", "unsigned long long", "float", "double"):
            lines.append(f"__host__ __device__ {kind} {name}({kind}, {kind});")
    for name in ("isnan", "isinf", "isfinite", "signbit"):
        lines.append(f"__host__ __device__ bool {name}(double); __host__ __device__ bool {name}(float);")
    for kind in ("float", "double"):
        suffix = "f" if kind == "float" else ""
        lines.append(f"__host__ __device__ {kind} fma{suffix}({kind}, {kind}, {kind});")
    for kind in ("int", "unsigned", "long long", "unsigned long long", "float", "double"):
        lines.append(f"__device__ {kind} __ldg(const {kind}*);")
        for name in ("__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"):
            lines.append(f"__device__ {kind} {name}(unsigned, {kind}, int, int = 32);")
    lines += [
        "__host__ __device__ int abs(int); __host__ __device__ long long llabs(long long);",
        "__device__ void __syncwarp(unsigned = 0xffffffff);",
        "__device__ int __any_sync(unsigned, int); __device__ int __all_sync(unsigned, int);",
        "__device__ unsigned __ballot_sync(unsigned, int); __device__ unsigned __activemask();",
        "__device__ int __popc(unsigned); __device__ int __popcll(unsigned long long);",
        "__device__ int __clz(int); __device__ int __clzll(long long); __device__ int __ffs(int);",
        "__device__ int __ffsll(long long); __device__ unsigned __brev(unsigned);",
        "__device__ int __mul24(int, int); __device__ unsigned __umul24(unsigned, unsigned);",
        "__device__ int __mulhi(int, int); __device__ unsigned __umulhi(unsigned, unsigned);",
        "__device__ unsigned __byte_perm(unsigned, unsigned, unsigned);",
        "__device__ unsigned __funnelshift_l(unsigned, unsigned, unsigned);",
        "__device__ unsigned __funnelshift_r(unsigned, unsigned, unsigned);",
        "__device__ int __float_as_int(float); __device__ unsigned __float_as_uint(float);",
        "__device__ float __int_as_float(int); __device__ float __uint_as_float(unsigned);",
        "__device__ float __fdividef(float, float); __device__ float __fmaf_rn(float, float, float);",
        "__device__ void __threadfence(); __device__ void __threadfence_block();",
        "__device__ void __threadfence_system();",
        "__device__ void __trap(); __device__ void __nanosleep(unsigned); __device__ long long clock64();",
        "__device__ int clock();",
        "__host__ __device__ int printf(const char*, ...);",
        "__host__ __device__ void* memcpy(void*, const void*, unsigned long);",
        "__host__ __device__ void* memset(void*, int, unsigned long);",
    ]
    return "\n".join(lines)


STUB = f"""\
#pragma once
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __grid_constant__ __attribute__((annotate("grid_constant")))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __maxnreg__(count) __attribute__((annotate("maxnreg")))
#define __cluster_dims__(...) __attribute__((annotate("cluster_dims")))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.19209290e-7f
#define DBL_MAX 1.7976931348623157e+308
#define UINT32_MAX 4294967295u
#define INT32_MAX 2147483647
#define CUDART_INF_F __builtin_inff()
#define M_PI 3.14159265358979323846
#define NULL 0
#define assert(condition) ((void)0)
typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
namespace std {{
using ::size_t; using ::ptrdiff_t; using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t;
using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t;
}}
{_vectors()}
struct dim3 {{
    unsigned x, y, z;
    __host__ __device__ constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {{}}
}};
extern const __device__ uint3 threadIdx;
extern const __device__ uint3 blockIdx;
extern const __device__ dim3 blockDim;
extern const __device__ dim3 gridDim;
constexpr int warpSize = 32;
__device__ void __syncthreads();
__device__ int __syncthreads_count(int);
__device__ int __syncthreads_and(int);
__device__ int __syncthreads_or(int);
{_functions()}
"""
