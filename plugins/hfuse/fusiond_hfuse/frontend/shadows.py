"""Who must be handed the shadow parameters: every function that sees the block, directly or through another one.

    __device__ int lane() { return threadIdx.x % 32; }   -->   __device__ int lane(FUSIOND_SHADOWS) { ... }
    ... lane() ... tile.row(1) ...                       -->   ... lane(FUSIOND_PASSED) ... tile.row(FUSIOND_PASSED, 1)

The paper inlines all calls instead (Li et al., CGO 2022, section III-C). Functions and methods are known by their
names, so that calls that depend on a template argument are found too; overloads of one name are treated alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clang import cindex
from clang.cindex import CursorKind

from fusiond_hfuse.frontend import cooperative_groups, cursors

SHADOWED = ("threadIdx", "blockIdx", "blockDim", "gridDim", "__syncthreads")
"""What a body sees its own version of."""
COUNTED = ("__syncthreads_count", "__syncthreads_and", "__syncthreads_or")
"""These too, in a kernel that uses one of them."""
SHADOWS = "FUSIOND_SHADOWS"
"""The macro that stands for the shadow parameters in a fused source."""
PASSED = "FUSIOND_PASSED"
"""The macro that hands them on."""
SHARED = "fusiond_shared"
"""The shadow parameter that holds the side's part of the arena."""

FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
             CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION)  # fmt: skip
_CLASSES = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE,
            CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)  # fmt: skip


def macros(counted: bool) -> str:
    """The macros that stand for the shadow parameters and hand them on."""
    names = (*SHADOWED, *(COUNTED if counted else ()), SHARED)
    more = "".join(
        f", \\\n    const fusiond_barrier_{each.removeprefix('__syncthreads_')} {each}" for each in COUNTED if counted
    )
    return (
        f"#define {SHADOWS} \\\n"
        "    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \\\n"
        f"    const fusiond_barrier __syncthreads{more}, void* const {SHARED}\n"
        f"#define {PASSED} {', '.join(names)}\n"
    )


def poison(counted: bool) -> str:
    """Declarations that hide the built-ins, for the head of a namespace: what no shadow reaches does not compile."""
    return (
        "struct fusiond_leak;\nextern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;\n"
        "void __syncthreads() = delete;\n"
    ) + "".join(f"int {each}(int) = delete;\n" for each in COUNTED if counted)


def use(cursor: cindex.Cursor, declarations: str) -> bool:
    """Whether a cursor is a use of a built-in variable, of a barrier, or of the block's group."""
    return (
        cursor.kind is CursorKind.DECL_REF_EXPR
        and (cursor.spelling in SHADOWED or cursor.spelling in COUNTED or cursor.spelling in cooperative_groups.NAMES)
        and cursors.file_of(cursor.referenced) == declarations
    )


def shared(cursor: cindex.Cursor) -> bool:
    """Whether a cursor declares a shared variable."""
    return cursor.kind is CursorKind.VAR_DECL and any(
        child.kind is CursorKind.CUDASHARED_ATTR for child in cursors.children(cursor)
    )


def dynamic_shared(cursor: cindex.Cursor) -> bool:
    """Whether a cursor declares, or refers to, a dynamic shared array."""
    target = cursor.referenced if cursor.kind is CursorKind.DECL_REF_EXPR else cursor
    return target is not None and shared(target) and target.storage_class is cindex.StorageClass.EXTERN


def closure(called: Mapping[int, frozenset[str]], names: Mapping[int, str], begin: Iterable[str]) -> frozenset[str]:
    """The names of all functions that reach one of `begin`. `called`: by function, what it calls; `names`: its own."""
    found = set(begin)
    while True:
        more = {names[each] for each, inner in called.items() if names[each] not in found and inner & found}
        if not more:
            return frozenset(found)
        found |= more


def of_a_tile(cursor: cindex.Cursor) -> bool:
    """Whether a call is one of a tile of a warp or of coalesced threads, `tile.sync()` or `sync(tile)`, and not of the
    block."""
    target = cursor.referenced
    parent = target.semantic_parent if target is not None else None
    if parent is not None and parent.spelling.startswith(_OF_WARPS):
        return True
    kinds = (each.type.get_canonical().spelling for each in cursor.get_arguments())
    return any(kind.rpartition("::")[2].startswith(_OF_WARPS) or f"::{_OF_WARPS[0]}<" in kind for kind in kinds)


_OF_WARPS = ("thread_block_tile", "coalesced_group")


def named(function: cindex.Cursor) -> str:
    """What a function is called by: a constructor by its class, without template arguments."""
    return str(function.semantic_parent.spelling if constructs(function) else function.spelling)


def constructs(function: cindex.Cursor) -> bool:
    """Whether it is a constructor, or a template of one."""
    parent = function.semantic_parent
    template = function.kind is CursorKind.FUNCTION_TEMPLATE and parent is not None
    return function.kind is CursorKind.CONSTRUCTOR or (
        template and parent.kind in _CLASSES and bool(function.spelling.partition("<")[0] == parent.spelling)
    )


def callable_of(cursor: cindex.Cursor | None, main: str) -> bool:
    """Whether a cursor is a function or a method of the user's."""
    return cursor is not None and cursors.file_of(cursor) == main and cursor.kind in FUNCTIONS


def behind_parenthesis(data: bytes, start: int, name: str) -> int | None:
    """The offset behind the parenthesis that opens the list of a function named at `start`, template arguments skipped.

    None when the name does not stand there (a macro hides it) or no parenthesis follows (its address is taken).
    """
    spelled = name.encode()
    if data[start : start + len(spelled)] != spelled:
        return None
    position = start + len(spelled)
    opening = re.compile(rb"\s*([(<])")
    match = opening.match(data, position)
    if match and match.group(1) == b"<":
        depth = 1
        position = match.end()
        nested = 0
        while depth and position < len(data):
            mark = data[position : position + 1]
            nested += {b"(": 1, b")": -1}.get(mark, 0)
            depth += 0 if nested else {b"<": 1, b">": -1}.get(mark, 0)
            position += 1
            if mark in (b";", b"{"):
                return None
        match = opening.match(data, position)
    return match.end() if match and match.group(1) == b"(" else None
