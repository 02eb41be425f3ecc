"""The CUDA declarations that the front end needs to read kernels without a toolkit.

Only what shapes the tree must be right here: qualifiers, built-in variables, barriers, vector types. A function that
is missing does no harm: the front end goes on, and the compiler that builds the kernel has the last word.
"""

from collections.abc import Collection

from fusiond.model.language import dtypes

DTYPES = {
    **{each.cuda: name for name, each in dtypes.DTYPES.items()},
    **{"char": "int8", "long": "int64", "unsigned long": "uint64"},
}
"""C++ type -> the Program's name of it."""
_VECTORS = {
    "char": "signed char", "uchar": "unsigned char", "short": "short", "ushort": "unsigned short", "int": "int",
    "uint": "unsigned int", "long": "long", "ulong": "unsigned long", "longlong": "long long",
    "ulonglong": "unsigned long long", "float": "float", "double": "double",
}  # fmt: skip

VECTOR_OF = {f"{name}{lanes}": scalar for name, scalar in _VECTORS.items() for lanes in "1234"}
"""CUDA's vector types, and what they are vectors of."""


def _alignment(scalar: str, lanes: int) -> str:
    """Vectors of two and four are aligned as a whole, up to 16 bytes."""
    size = f"{lanes} * sizeof({scalar})"
    return f"__attribute__((aligned({size} < 16 ? {size} : 16))) " if lanes in (2, 4) else ""


def _vectors() -> str:
    lines = []
    for name, scalar in _VECTORS.items():
        for lanes in range(1, 5):
            axes = ", ".join("xyzw"[:lanes])
            taken = ", ".join([scalar] * lanes)
            lines.append(f"struct {_alignment(scalar, lanes)}{name}{lanes} {{ {scalar} {axes}; }};")
            lines.append(f"__host__ __device__ {name}{lanes} make_{name}{lanes}({taken});")
    return "\n".join(lines)


_ONE = """
sqrt rsqrt exp exp2 exp10 log log2 log10 sin cos tan asin acos atan sinh cosh tanh fabs floor ceil round trunc rint erf
erfc cbrt expm1 log1p asinh acosh atanh sinpi cospi rcbrt erfinv erfcinv erfcx normcdf logb normcdfinv lgamma tgamma
nearbyint j0 j1 y0 y1"""
_TWO = "pow fmod atan2 fmin fmax fdim hypot rhypot copysign remainder nextafter"
_HALVES = "sqrt rsqrt rcp exp exp2 exp10 log log2 log10 sin cos tanh floor ceil trunc rint"
_WHOLE = ("int", "unsigned", "long", "unsigned long", "long long", "unsigned long long")


def _functions() -> str:
    """Functions by their types; those of CUDA's that begin with `__` need none (clang_tree.py)."""
    names = ["Add", "Sub", "Exch", "Min", "Max", "Inc", "Dec", "And", "Or", "Xor", "Add_block", "Add_system"]
    lines = [f"template <class T, class U> __device__ T atomic{name}(T*, U);" for name in names]
    lines += ["template <class T, class U, class V> __device__ T atomicCAS(T*, U, V);"]
    real: list[str] = []
    for kind, suffix in (("double", ""), ("float", "f"), ("float", "")):
        real += [f"{kind} {name}{suffix}({kind})" for name in _ONE.split()]
        real += [f"{kind} {name}{suffix}({kind}, {kind})" for name in _TWO.split()]
        real += [f"{kind} {name}{suffix}({kind}, int)" for name in ("ldexp", "scalbn")]
        real += [f"{kind} fma{suffix}({kind}, {kind}, {kind})", f"{kind} frexp{suffix}({kind}, int*)",
                 f"{kind} modf{suffix}({kind}, {kind}*)", f"void sincos{suffix}({kind}, {kind}*, {kind}*)",
                 f"void sincospi{suffix}({kind}, {kind}*, {kind}*)", f"long lrint{suffix}({kind})",
                 f"long lround{suffix}({kind})", f"int ilogb{suffix}({kind})"]  # fmt: skip
    for kind in ("double", "float"):
        real += [f"bool {name}({kind})" for name in ("isnan", "isinf", "isfinite", "signbit")]
    for kind in (*_WHOLE, "float", "double"):
        real += [f"{kind} min({kind}, {kind})", f"{kind} max({kind}, {kind})"]
    for name, kind in (("u", "unsigned"), ("ll", "long long"), ("ull", "unsigned long long")):
        real += [f"{kind} {name}min({kind}, {kind})", f"{kind} {name}max({kind}, {kind})"]
    real += ["int abs(int)", "long long llabs(long long)", "int printf(const char*, ...)",
             "void* memcpy(void*, const void*, unsigned long)", "void* memset(void*, int, unsigned long)",
             "int clock()", "long long clock64()"]  # fmt: skip
    lines += [f"__host__ __device__ {each};" for each in dict.fromkeys(real)]
    for kind in (*_WHOLE, "float", "double"):
        lines.append(f"__device__ {kind} __ldg(const {kind}*);")
        for name in ("", "_up", "_down", "_xor"):
            lines.append(f"__device__ {kind} __shfl{name}_sync(unsigned, {kind}, int, int = 32);")
    return "\n".join(lines)


DECLARATIONS = f"""\
#pragma once
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#define CUDA_VERSION 13000
#undef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#define FUSIOND_STUB_TEXT_OF(...) #__VA_ARGS__
#define FUSIOND_STUB_TEXT(...) FUSIOND_STUB_TEXT_OF(__VA_ARGS__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __grid_constant__ __attribute__((annotate("grid_constant")))
#define __launch_bounds__(...) __attribute__((annotate(FUSIOND_STUB_TEXT(launch_bounds __VA_ARGS__))))
#define __managed__ __attribute__((device))
#define __cluster_dims__(...)
#define __maxnreg__(count) __attribute__((annotate("maxnreg")))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define NULL 0
#define assert(...) ((void)((__VA_ARGS__) ? 1 : 0))
typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;
typedef long intptr_t; typedef unsigned long uintptr_t; typedef long intmax_t; typedef unsigned long uintmax_t;
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
typedef struct CUstream_st* cudaStream_t;
typedef enum cudaError {{ cudaSuccess }} cudaError_t;
__host__ __device__ void* operator new(size_t, void* place) noexcept;
__host__ __device__ void* operator new[](size_t, void* place) noexcept;
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
{_functions()}
namespace std {{
using ::sqrt; using ::exp; using ::log; using ::sin; using ::cos; using ::fabs; using ::abs; using ::pow;
using ::floor; using ::ceil; using ::isnan; using ::isinf; using ::isfinite; using ::fmin; using ::fmax;
using ::tanh; using ::memcpy;
}}
"""
"""CUDA's, and C's. Of C++'s own headers nothing is here: a kernel that takes a name from them is left to nvcc."""


def _narrow(kind: str, pair: str, word: str, short: str) -> str:
    """A type of 16 bits, a pair of them, and what is done with them by signs. `word` stands in a conversion's name."""
    signs = "\n".join(
        f"__host__ __device__ {each} operator{sign}(const {each}&, const {each}&);\n"
        f"__host__ __device__ {each}& operator{sign}=({each}&, const {each}&);"
        for each in (kind, pair)
        for sign in "+-*/"
    )
    for name in _HALVES.split():
        signs += f"\n__host__ __device__ {kind} h{name}({kind}); __host__ __device__ {pair} h2{name}({pair});"
    return f"""\
struct {kind} {{
    unsigned short __x;
    {kind}() = default;
    template <class T, int (*)[__is_arithmetic(T) ? 1 : -1] = nullptr> __host__ __device__ {kind}(T);
    __host__ __device__ operator float() const;
}};
struct __attribute__((aligned(4))) {pair} {{
    {kind} x, y;
    {pair}() = default;
    __host__ __device__ {pair}(const {kind}&, const {kind}&);
}};
typedef {kind} {short};
typedef {pair} {short}2;
__host__ __device__ {kind} __float2{word}(float); __host__ __device__ float __{word}2float({kind});
__host__ __device__ {pair} make_{word}2({kind}, {kind});
{signs}
"""


_NARROW = {
    "cuda_fp16.h": _narrow("__half", "__half2", "half", "half"),
    "cuda_bf16.h": _narrow("__nv_bfloat16", "__nv_bfloat162", "bfloat16", "nv_bfloat16"),
}


def declarations(system: Collection[str]) -> str:
    """What stands before a text that includes these headers."""
    return DECLARATIONS + "".join(text for name, text in _NARROW.items() if name in system)
