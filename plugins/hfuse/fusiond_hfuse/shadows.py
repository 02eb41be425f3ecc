"""Who must be handed the shadow parameters: every function that sees the block, directly or through another one.

    __device__ int lane() { return threadIdx.x % 32; }   -->   __device__ int lane(FUSIOND_SHADOWS) { ... }
    ... lane() ...                                       -->   ... lane(FUSIOND_PASSED) ...

The paper inlines all calls instead (Li et al., CGO 2022, section III-C). Functions are known by their names, so that
calls that depend on a template argument are found too; overloads of one name are treated alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clang import cindex
from clang.cindex import CursorKind

SHADOWED = ("threadIdx", "blockIdx", "blockDim", "gridDim", "__syncthreads")
"""What a body sees its own version of."""
SHADOWS = "FUSIOND_SHADOWS"
"""The macro that stands for the shadow parameters in a fused source."""
PASSED = "FUSIOND_PASSED"
"""The macro that hands them on."""
SHARED = "fusiond_shared"
"""The shadow parameter that holds the side's part of the arena."""

_REFERENCES = (CursorKind.DECL_REF_EXPR, CursorKind.OVERLOADED_DECL_REF, CursorKind.MEMBER_REF_EXPR)


_MAX_DEPTH = 4000


def preorder(cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]]:
    """A cursor and all below it, in the order of the text, each with those that it stands in.

    Without recursion, unlike clang's own: generated sources nest deeply. RecursionError beyond all reason.
    """
    stack: list[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]] = [(cursor, ())]
    while stack:
        each, inside = stack.pop()
        yield each, inside
        if len(inside) > _MAX_DEPTH:
            raise RecursionError
        below = (*inside, each)
        stack += [(child, below) for child in reversed(list(each.get_children()))]


def below(cursor: cindex.Cursor) -> Iterator[cindex.Cursor]:
    """A cursor and all below it, in the order of the text."""
    return (each for each, _ in preorder(cursor))


def seeing(functions: Iterable[cindex.Cursor], main: str, stub: str) -> frozenset[str]:
    """The names of all functions among `functions` that see the block."""
    return _closure(functions, main, lambda each: sees(each, stub))


def meeting(functions: Iterable[cindex.Cursor], main: str, barrier: str) -> frozenset[str]:
    """The names of all functions that reach a barrier, and the barrier's own."""
    return _closure(functions, main, lambda each: calls(each, barrier)) | {barrier}


def _closure(functions: Iterable[cindex.Cursor], main: str, begin: object) -> frozenset[str]:
    assert callable(begin)
    bodies = list(functions)
    names = {each.spelling for each in bodies if begin(each)}
    while True:
        more = {
            each.spelling
            for each in bodies
            if each.spelling not in names and any(True for _ in references(each, names, main))
        }
        if not more:
            return frozenset(names)
        names |= more


def sees(function: cindex.Cursor, stub: str) -> bool:
    """Whether a function itself uses a built-in variable, the barrier, or dynamic shared memory."""
    return any(use(each, stub) or dynamic_shared(each) for each in below(function))


def use(cursor: cindex.Cursor, stub: str) -> bool:
    """Whether a cursor is a use of a built-in variable or of the barrier."""
    return cursor.kind is CursorKind.DECL_REF_EXPR and cursor.spelling in SHADOWED and _file(cursor.referenced) == stub


def dynamic_shared(cursor: cindex.Cursor) -> bool:
    """Whether a cursor declares, or refers to, a dynamic shared array."""
    target = cursor.referenced if cursor.kind is CursorKind.DECL_REF_EXPR else cursor
    return (
        target is not None
        and target.kind is CursorKind.VAR_DECL
        and target.storage_class is cindex.StorageClass.EXTERN
        and any(child.kind is CursorKind.CUDASHARED_ATTR for child in target.get_children())
    )


def calls(function: cindex.Cursor, name: str) -> bool:
    """Whether a function calls another by its name."""
    return any(each.kind is CursorKind.CALL_EXPR and each.spelling == name for each in below(function))


def references(function: cindex.Cursor, names: Iterable[str], main: str) -> Iterator[cindex.Cursor]:
    """Every place in a function where one of the user's functions of these names is named."""
    wanted = set(names)
    places = set()
    for each in below(function):
        if each.kind not in _REFERENCES or each.spelling not in wanted:
            continue
        target = each.referenced
        if each.kind is CursorKind.DECL_REF_EXPR and (
            _file(target) != main or target.kind not in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE)
        ):
            continue
        if each.location.offset not in places:
            places.add(each.location.offset)
            yield each


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
        while depth and position < len(data):
            depth += {b"<": 1, b">": -1}.get(data[position : position + 1], 0)
            position += 1
        match = opening.match(data, position)
    return match.end() if match and match.group(1) == b"(" else None


def _file(cursor: cindex.Cursor | None) -> str | None:
    return None if cursor is None or cursor.location.file is None else str(cursor.location.file.name)
