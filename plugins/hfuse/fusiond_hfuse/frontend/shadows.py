"""Finds the functions that need shadow parameters: those that see the block, directly or through a call.

    __device__ int lane() { return threadIdx.x % 32; }   -->   __device__ int lane(FUSIOND_SHADOWS) { ... }
    ... lane() ... row<4>(1) ...                         -->   ... lane(FUSIOND_PASSED) ... row<4>(FUSIOND_PASSED, 1)

The paper inlines all calls instead (Li et al., CGO 2022, section III-C). Functions are known by their names, so that
calls that depend on a template argument are found too; overloads of one name are treated alike.
"""

import re
from collections.abc import Iterable, Mapping, Set

SHADOWED = ("threadIdx", "blockIdx", "blockDim", "gridDim", "__syncthreads")  #: What a body sees its own version of
SHADOWS = "FUSIOND_SHADOWS"  #: The macro that stands for the shadow parameters in a fused source
PASSED = "FUSIOND_PASSED"  #: The macro that hands them on
FIRST_ID = 1  #: Barrier 0 is what `__syncthreads` means to the hardware; nothing in a fused kernel may use it
SHARED = "fusiond_shared"  #: The shadow parameter that holds the side's part of the arena
MACROS = (
    f"#define {SHADOWS} \\\n"
    "    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \\\n"
    f"    const fusiond_barrier __syncthreads, void* const {SHARED}\n"
    f"#define {PASSED} {', '.join((*SHADOWED, SHARED))}\n"
)
"""The macros that stand for the shadow parameters and hand them on."""
POISON = """\
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;
"""
"""Declarations that hide the built-ins, for the head of a namespace: what no shadow reaches does not compile."""


def closure(called: Mapping[str, Set[str]], begin: Iterable[str]) -> frozenset[str]:
    """The names of all functions that reach one of `begin`. `called`: by function, what it calls."""
    found = set(begin)
    while more := {name for name, inner in called.items() if name not in found and inner & found}:
        found |= more
    return frozenset(found)


def behind_parenthesis(code: str, start: int, name: str) -> int | None:
    """The offset behind the parenthesis that opens the list of a function named at `start`, template arguments skipped.

    None when the name does not stand there (a macro hides it) or no parenthesis follows (its address is taken)."""
    if not code.startswith(name, start):
        return None
    position = start + len(name)
    match = _OPENING.match(code, position)
    if match and match.group(1) == "<":
        depth, nested, position = 1, 0, match.end()
        while depth and position < len(code):
            mark = code[position]
            nested += {"(": 1, ")": -1}.get(mark, 0)
            depth += 0 if nested else {"<": 1, ">": -1}.get(mark, 0)
            position += 1
            if mark in ";{":
                return None
        match = _OPENING.match(code, position)
    return match.end() if match and match.group(1) == "(" else None


_OPENING = re.compile(r"\s*([(<])")
