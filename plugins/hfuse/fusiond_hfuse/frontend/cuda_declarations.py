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


_BYTES = {"char": 1, "short": 2, "int": 4, "long": 8, "longlong": 8, "float": 4, "double": 8}


def _alignment(name: str, lanes: int) -> str:
    """Vectors of two and four are aligned as a whole, up to 16 bytes."""
    size = _BYTES[name if name in _BYTES else name[1:]] * lanes
    return f"__attribute__((aligned({min(size, 16)}))) " if lanes in (2, 4) else ""


def _vectors() -> str:
    lines = []
    for name, scalar in _VECTORS.items():
        for lanes in range(1, 5):
            axes = ", ".join("xyzw"[:lanes])
            taken = ", ".join([scalar] * lanes)
            lines.append(f"struct {_alignment(name, lanes)}{name}{lanes} {{ {scalar} {axes}; }};")
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
        *(
            "log1p",
            "asinh",
            "acosh",
            "atanh",
            "sinpi",
            "cospi",
            "rcbrt",
            "erfinv",
            "erfcinv",
            "erfcx",
            "normcdf",
            "logb",
        ),
        *("normcdfinv", "lgamma", "tgamma", "nearbyint", "j0", "j1", "y0", "y1", "cyl_bessel_i0", "cyl_bessel_i1"),
    )
    two = ["pow", "fmod", "atan2", "fmin", "fmax", "fdim", "hypot", "rhypot", "copysign", "remainder", "nextafter"]
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
    lines += _more_real("double", "") + _more_real("float", "f")
    for name, kind in (("u", "unsigned"), ("ll", "long long"), ("ull", "unsigned long long")):
        lines += [f"__host__ __device__ {kind} {name}{which}({kind}, {kind});" for which in ("min", "max")]
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


def _textures() -> str:
    """Reads and writes of textures and surfaces: no Program can fill one, and the front end says so."""
    lines = []
    for name in ("1Dfetch", "1D", "2D", "3D", "1DLayered", "2DLayered", "Cubemap", "CubemapLayered"):
        for more in ("", "Lod", "Grad") if name != "1Dfetch" else ("",):
            lines.append(f"template <class T, class... A> __device__ T tex{name}{more}(cudaTextureObject_t, A...);")
            lines.append(
                f"template <class T, class... A> __device__ void tex{name}{more}(T*, cudaTextureObject_t, A...);"
            )
        of = "template <class T, int K, cudaTextureReadMode M, class... A> __device__ T"
        lines.append(f"{of} tex{name}(texture<T, K, M>, A...);")
    for name in ("1D", "2D", "3D", "1DLayered", "2DLayered", "Cubemap", "CubemapLayered"):
        lines.append(f"template <class T, class... A> __device__ T surf{name}read(cudaSurfaceObject_t, A...);")
        lines.append(f"template <class T, class... A> __device__ void surf{name}read(T*, cudaSurfaceObject_t, A...);")
        lines.append(f"template <class T, class... A> __device__ void surf{name}write(T, cudaSurfaceObject_t, A...);")
    modes = "cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap"
    return "\n".join([f"enum cudaSurfaceBoundaryMode {{ {modes} }};", *lines])


def _more_real(kind: str, suffix: str) -> list[str]:
    """Functions of reals that are neither of one nor of two of them."""
    declared = [
        *(f"{kind} {name}{suffix}({kind}, {kind}, {kind})" for name in ("fma", "norm3d", "rnorm3d")),
        *(f"{kind} {name}{suffix}({kind}, {kind}, {kind}, {kind})" for name in ("norm4d", "rnorm4d")),
        *(f"{kind} {name}{suffix}(int, const {kind}*)" for name in ("norm", "rnorm")),
        *(f"{kind} {name}{suffix}(int, {kind})" for name in ("jn", "yn")),
        *(f"{kind} {name}{suffix}({kind}, int)" for name in ("ldexp", "scalbn")),
        f"{kind} scalbln{suffix}({kind}, long)", f"{kind} frexp{suffix}({kind}, int*)",
        f"{kind} modf{suffix}({kind}, {kind}*)", f"{kind} remquo{suffix}({kind}, {kind}, int*)",
        f"{kind} nan{suffix}(const char*)", f"int ilogb{suffix}({kind})",
        *(f"{whole} {name}{suffix}({kind})" for whole, name in (("long", "lrint"), ("long", "lround"),
                                                                ("long long", "llrint"), ("long long", "llround"))),
        *(f"void {name}{suffix}({kind}, {kind}*, {kind}*)" for name in ("sincos", "sincospi")),
    ]  # fmt: skip
    return [f"__host__ __device__ {each};" for each in declared]


STANDARD = """\
namespace std {
template <class T, T V> struct integral_constant {
    static constexpr T value = V; typedef T value_type; typedef integral_constant type;
    constexpr operator T() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <class T, class U> struct is_same : false_type {};
template <class A, class R> struct unary_function { typedef A argument_type; typedef R result_type; };
template <class A, class B, class R> struct binary_function {
    typedef A first_argument_type; typedef B second_argument_type; typedef R result_type;
};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class...> using void_t = void;
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef typename remove_const<typename remove_volatile<T>::type>::type type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct decay { typedef remove_cv_t<remove_reference_t<T>> type; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct is_floating_point
    : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <class T> struct is_arithmetic : bool_constant<__is_arithmetic(T)> {};
template <class T> struct is_integral : bool_constant<__is_arithmetic(T) && !is_floating_point<T>::value> {};
template <class T> struct is_signed : bool_constant<__is_signed(T)> {};
template <class T> struct is_unsigned : bool_constant<__is_unsigned(T)> {};
template <class T> struct is_pointer : bool_constant<__is_pointer(T)> {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> inline constexpr bool is_pointer_v = is_pointer<T>::value;
template <class T> struct make_unsigned { typedef __make_unsigned(T) type; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct make_signed { typedef __make_signed(T) type; };
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> T&& declval() noexcept;
template <class T> __host__ __device__ constexpr remove_reference_t<T>&& move(T&& v) {
    return (remove_reference_t<T>&&)v;
}
template <class T> __host__ __device__ constexpr T&& forward(remove_reference_t<T>& v) { return (T&&)v; }
template <class T> __host__ __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }
template <class T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> struct numeric_limits {
    static constexpr bool is_integer = is_integral_v<T>;
    __host__ __device__ static constexpr T max() { return T(); }
    __host__ __device__ static constexpr T min() { return T(); }
    __host__ __device__ static constexpr T lowest() { return T(); }
    __host__ __device__ static constexpr T epsilon() { return T(); }
    __host__ __device__ static constexpr T infinity() { return T(); }
    __host__ __device__ static constexpr T quiet_NaN() { return T(); }
};
template <class A, class B> struct pair { A first; B second; };
template <class T, decltype(sizeof(0)) N> struct array {
    T _[N];
    __host__ __device__ constexpr T& operator[](decltype(sizeof(0)) i) { return _[i]; }
    __host__ __device__ constexpr const T& operator[](decltype(sizeof(0)) i) const { return _[i]; }
    __host__ __device__ constexpr decltype(sizeof(0)) size() const { return N; }
    __host__ __device__ constexpr T* begin() { return _; }
    __host__ __device__ constexpr T* end() { return _ + N; }
};
template <class T> struct tuple_size;
template <decltype(sizeof(0)) I, class T> struct tuple_element;
using ::sqrt; using ::exp; using ::log; using ::sin; using ::cos; using ::fabs; using ::abs; using ::pow;
using ::floor; using ::ceil; using ::isnan; using ::isinf; using ::isfinite; using ::fmin; using ::fmax;
using ::tanh; using ::memcpy;
}
"""
"""What kernels take from C++'s own headers, as far as the tree is concerned."""

GUARDS = (
    "CHANNEL_DESCRIPTOR", "COMMON_FUNCTIONS", "CUDA_DEVICE_RUNTIME_API", "CUDA_RUNTIME_API", "CUDA_RUNTIME",
    "DEVICE_ATOMIC_FUNCTIONS", "DEVICE_DOUBLE_FUNCTIONS", "DEVICE_FUNCTIONS", "DEVICE_LAUNCH_PARAMETERS",
    "DEVICE_TYPES", "DRIVER_FUNCTIONS", "DRIVER_TYPES", "HOST_CONFIG", "HOST_DEFINES", "LIBRARY_TYPES",
    "MATH_FUNCTIONS", "SM_20_INTRINSICS", "SM_30_INTRINSICS", "SURFACE_TYPES", "TEXTURE_TYPES", "VECTOR_FUNCTIONS",
    "VECTOR_TYPES",
)  # fmt: skip
"""The headers that nvcc includes by itself define `__CUDA_RUNTIME_H__` and its like: what a header of the user's has
for that case (`helper_cuda.h`) must be read, or it would stay in what is compiled."""

DECLARATIONS = f"""\
#pragma once
{"".join(f"#define __{name}_H__{chr(10)}" for name in GUARDS)}\
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#undef __CUDA_ARCH__
#ifdef FUSIOND_ARCH
#define __CUDA_ARCH__ FUSIOND_ARCH
#endif
#define FUSIOND_STUB_TEXT_OF(...) #__VA_ARGS__
#define FUSIOND_STUB_TEXT(...) FUSIOND_STUB_TEXT_OF(__VA_ARGS__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((device))
#define __grid_constant__ __attribute__((annotate("grid_constant")))
#define __launch_bounds__(...) __attribute__((annotate(FUSIOND_STUB_TEXT(launch_bounds __VA_ARGS__))))
#define __maxnreg__(count) __attribute__((annotate("maxnreg")))
#define __cluster_dims__(...) __attribute__((annotate("cluster_dims")))
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __inline_hint__
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
#define CUDART_INF __builtin_inf()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_PIO2_F 1.570796327f
#define CUDART_2PI_F 6.283185307f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
#define CUDART_MAX_NORMAL_F 3.402823466e38f
#define CUDART_MIN_DENORM_F 1.401298464e-45f
#define M_PI 3.14159265358979323846
#define NULL 0
#define assert(...) ((void)((__VA_ARGS__) ? 1 : 0))
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
typedef long intmax_t;
typedef unsigned long uintmax_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef long clock_t;
typedef struct CUstream_st* cudaStream_t;
typedef enum cudaError {{
    cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotSupported = 801, cudaErrorUnknown = 999
}} cudaError_t;
typedef struct CUevent_st* cudaEvent_t;
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
struct cudaExtent {{ size_t width, height, depth; }};
enum cudaTextureReadMode {{ cudaReadModeElementType, cudaReadModeNormalizedFloat }};
enum {{ cudaTextureType1D = 1, cudaTextureType2D, cudaTextureType3D, cudaTextureType2DLayered = 0xF2 }};
template <class T, int Kind = 1, cudaTextureReadMode Mode = cudaReadModeElementType> struct texture {{}};
template <class T, int Kind = 1> struct surface {{}};
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
__device__ int __syncthreads_count(int);
__device__ int __syncthreads_and(int);
__device__ int __syncthreads_or(int);
{_functions()}
{_textures()}
"""
"""CUDA's, without what C++'s own headers declare (`STANDARD`)."""


def _arithmetic(kind: str, pair: str) -> str:
    """What both headers of floats of 16 bits declare under the same names."""
    one = [
        *("hsqrt", "hrsqrt", "hrcp", "hexp", "hexp2", "hexp10", "hlog", "hlog2", "hlog10", "hsin", "hcos", "htanh"),
        *("hfloor", "hceil", "htrunc", "hrint", "__hneg", "__habs"),
    ]
    two = ("__hadd", "__hsub", "__hmul", "__hdiv", "__hmax", "__hmin")
    pairs = ("__hadd2", "__hsub2", "__hmul2", "__h2div", "__hmax2", "__hmin2")
    lines = [f"__host__ __device__ {kind} {name}({kind});" for name in one]
    lines += [f"__host__ __device__ {pair} h2{name[1:]}({pair});" for name in one if name.startswith("h")]
    lines += [f"__host__ __device__ {kind} {name}({kind}, {kind});" for name in two]
    lines += [f"__host__ __device__ {pair} {name}({pair}, {pair});" for name in pairs]
    lines += [f"__device__ bool __h{name}({kind}, {kind});" for name in ("eq", "ne", "lt", "le", "gt", "ge")]
    for each in (kind, pair):
        for sign in "+-*/":
            lines.append(f"__host__ __device__ {each} operator{sign}(const {each}&, const {each}&);")
            lines.append(f"__host__ __device__ {each}& operator{sign}=({each}&, const {each}&);")
        lines.append(f"__host__ __device__ {each} operator-(const {each}&);")
        for name in ("__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"):
            lines.append(f"__device__ {each} {name}(unsigned, {each}, int, int = 32);")
        lines.append(f"__device__ {each} __ldg(const {each}*);")
    return "\n".join(lines)


def _narrow(kind: str, pair: str, word: str, short: str) -> str:
    """A type of 16 bits, a pair of them, and their functions. `word` stands in the names of conversions."""
    return f"""\
struct {kind}_raw {{ unsigned short x; }};
struct {kind} {{
    unsigned short __x;
    {kind}() = default;
    __host__ __device__ {kind}(const {kind}_raw&);
    template <class T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0> __host__ __device__ {kind}(T);
    __host__ __device__ operator float() const;
    __host__ __device__ operator {kind}_raw() const;
}};
struct __attribute__((aligned(4))) {pair} {{
    {kind} x, y;
    {pair}() = default;
    __host__ __device__ {pair}(const {kind}&, const {kind}&);
}};
typedef {kind} {short};
typedef {pair} {short}2;
__host__ __device__ {kind} __float2{word}(float); __host__ __device__ {kind} __float2{word}_rn(float);
__host__ __device__ {kind} __double2{word}(double); __host__ __device__ float __{word}2float({kind});
__host__ __device__ {kind} __int2{word}_rn(int); __host__ __device__ int __{word}2int_rn({kind});
__host__ __device__ int __{word}2int_rz({kind}); __host__ __device__ {kind} __uint2{word}_rn(unsigned);
__host__ __device__ unsigned short __{word}_as_ushort({kind});
__host__ __device__ {kind} __ushort_as_{word}(unsigned short);
__host__ __device__ {pair} make_{word}2({kind}, {kind}); __host__ __device__ {pair} __halves2{word}2({kind}, {kind});
__host__ __device__ {pair} __{word}2{word}2({kind}); __host__ __device__ {pair} __float2{word}2_rn(float);
__host__ __device__ {pair} __floats2{word}2_rn(float, float); __host__ __device__ {pair} __float22{word}2_rn(float2);
__host__ __device__ float2 __{word}22float2({pair}); __host__ __device__ {kind} __low2{word}({pair});
__host__ __device__ {kind} __high2{word}({pair}); __host__ __device__ float __low2float({pair});
__host__ __device__ float __high2float({pair});
__host__ __device__ {kind} __hfma({kind}, {kind}, {kind});
__host__ __device__ {pair} __hfma2({pair}, {pair}, {pair});
__host__ __device__ bool __hisnan({kind}); __host__ __device__ int __hisinf({kind});
{_arithmetic(kind, pair)}
"""


def _eight() -> str:
    """Floats of 8 bits, alone, in pairs and in fours."""
    lines = ["enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };",
             "enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };",
             "typedef unsigned char __nv_fp8_storage_t; typedef unsigned short __nv_fp8x2_storage_t;",
             "typedef unsigned int __nv_fp8x4_storage_t;"]  # fmt: skip
    for source, result in (("float", ""), ("double", ""), ("float2", "x2")):
        kind = f"{source}_to_fp8{result}"
        lines.append(
            f"__host__ __device__ __nv_fp8{result}_storage_t __nv_cvt_{kind}({source}, __nv_saturation_t,"
            " __nv_fp8_interpretation_t);"
        )
    for name in ("e4m3", "e5m2"):
        lines.append(f"""struct __nv_fp8_{name} {{
    __nv_fp8_storage_t __x;
    __nv_fp8_{name}() = default;
    template <class T> explicit __host__ __device__ __nv_fp8_{name}(T);
    template <class T> explicit __host__ __device__ operator T() const;
}};""")
        for lanes, storage in (("2", "x2"), ("4", "x4")):
            kind = f"__nv_fp8{storage}_{name}"
            lines.append(f"""struct {kind} {{
    __nv_fp8{storage}_storage_t __x;
    {kind}() = default;
    explicit __host__ __device__ {kind}(float{lanes});
    explicit __host__ __device__ operator float{lanes}() const;
}};""")
    return "\n".join([*lines, ""])


def narrow_floats() -> dict[str, str]:
    """Header -> what kernels take from it, of floats narrower than 32 bits."""
    return {
        "cuda_fp16.h": _narrow("__half", "__half2", "half", "half"),
        "cuda_fp8.h": _eight(),
        "cuda_bf16.h": _narrow("__nv_bfloat16", "__nv_bfloat162", "bfloat16", "nv_bfloat16"),
    }
