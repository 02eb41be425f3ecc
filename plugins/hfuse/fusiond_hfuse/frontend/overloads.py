"""CUDA's own functions that a kernel's file may overload: `atomicMax(float*, float)`, `max` of three, `fminf(float4)`.

    __device__ float atomicMax(float* p, float v) { ... atomicCAS(...) ... }      of the user's, beside CUDA's

At file scope such a function stands beside CUDA's of the same name. In the namespace that a slot's text is put into it
would hide them, so the namespace begins with `using ::atomicMax;`. What the list lacks is hidden, and the compiler
says so. All of these names are known to nvcc's headers and to the cpu device's (a test asks both).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusiond_hfuse.frontend.cuda_declarations import VECTOR_OF

_REAL = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcinv
erfcx erfinv exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma llrint
llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow
rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d round rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt
tan tanh tgamma trunc y0 y1 yn
"""
"""Each also with an f behind it."""

_OTHERS = """
abs labs llabs min max umin umax llmin llmax ullmin ullmax isfinite isinf isnan signbit fdividef
clock clock64 memcpy memset printf
__activemask __all_sync __any_sync __ballot_sync __match_all_sync __match_any_sync __shfl_sync __shfl_up_sync
__shfl_down_sync __shfl_xor_sync __syncwarp __threadfence __threadfence_block __threadfence_system __nanosleep __trap
__ldca __ldcg __ldcs __ldcv __ldg __ldlu __stcg __stcs __stwb __stwt
__brev __brevll __byte_perm __clz __clzll __ffs __ffsll __fns __popc __popcll __funnelshift_l __funnelshift_lc
__funnelshift_r __funnelshift_rc __dp2a_hi __dp2a_lo __dp4a __hadd __rhadd __uhadd __urhadd __sad __usad
__mul24 __umul24 __mulhi __umulhi __mul64hi __umul64hi
__float_as_int __float_as_uint __int_as_float __uint_as_float __double_as_longlong __longlong_as_double
__double2hiint __double2loint __hiloint2double
__cosf __exp10f __expf __fdividef __log10f __log2f __logf __powf __saturatef __sincosf __sinf __tanf __frsqrt_rn
"""


def _names() -> Iterator[str]:
    for name in _REAL.split():
        yield from (name, f"{name}f")
    yield from _OTHERS.split()
    for name in ("Add", "Sub", "Exch", "Min", "Max", "Inc", "Dec", "And", "Or", "Xor", "CAS"):
        yield from (f"atomic{name}{scope}" for scope in ("", "_block", "_system"))
    yield from (f"make_{vector}" for vector in VECTOR_OF)


NAMES = frozenset(_names())

_USED = re.compile(r"\busing\s+(?:\w+\s*)?(?:::\s*\w+\s*)*::\s*(\w+)\s*;")


def declared(names: set[str], code: str) -> tuple[str, ...]:
    """The names of CUDA's functions among those that a text declares: in `names`, or by `using ops::max;`."""
    return tuple(sorted(NAMES & (names | set(_USED.findall(code)))))


def kept(names: tuple[str, ...]) -> str:
    """Declarations, for the head of a namespace, that keep CUDA's functions of these names beside the text's own."""
    return "".join(f"using ::{name};\n" for name in names)
