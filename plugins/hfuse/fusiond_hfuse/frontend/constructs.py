"""Constructs of C++ in clang's tree, as the divergence analysis asks for them: variables, references, calls, jumps."""

from __future__ import annotations

from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cursors import CursorKind, cindex

LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT, CursorKind.CXX_FOR_RANGE_STMT)
REFERENCES = (cindex.TypeKind.LVALUEREFERENCE, cindex.TypeKind.RVALUEREFERENCE)
ARRAYS = (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.DEPENDENTSIZEDARRAY)
_UNIFORM_OF_GROUPS = ("sync", "size", "num_threads", "group_index", "group_dim", "dim_threads", "meta_group_size",
                    "block_rank", "block_index", "num_blocks", "dim_blocks")  # fmt: skip

Inside = tuple[cindex.Cursor, ...]
"""The constructs that something stands in, the outermost first."""


def body_of(function: cindex.Cursor) -> cindex.Cursor | None:
    """The braces of a function's definition."""
    return next((child for child in cursors.children(function) if child.kind is CursorKind.COMPOUND_STMT), None)


def nearest(cursor: cindex.Cursor, inside: Inside) -> int | None:
    """Which construct a `break` or `continue` belongs to, as a place in `inside`."""
    kinds = LOOPS if cursor.kind is CursorKind.CONTINUE_STMT else (*LOOPS, CursorKind.SWITCH_STMT)
    return next((at for at in reversed(range(len(inside))) if inside[at].kind in kinds), None)


def variable(cursor: cindex.Cursor, *, elements: bool = False) -> cindex.Cursor | None:
    """The variable that an expression names, conversions, members and parentheses left aside; with `elements` also the
    array that it names an element of."""
    while True:
        inner = list(cursors.children(cursor))
        if cursor.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.MEMBER_REF_EXPR):
            if len(inner) != 1:
                return None
            cursor = inner[0]
        elif elements and cursor.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR:
            target = variable(inner[0], elements=True)
            return target if target is not None and target.type.kind in ARRAYS else None
        else:
            break
    if cursor.kind is not CursorKind.DECL_REF_EXPR:
        return None
    target = cursor.referenced
    kinds = (CursorKind.VAR_DECL, CursorKind.PARM_DECL)
    return target if target is not None and target.kind in kinds else None


def by_reference(kind: cindex.Type) -> bool:
    return kind.kind in REFERENCES and not constant_reference(kind)


def constant_reference(kind: cindex.Type) -> bool:
    return bool(kind.get_canonical().get_pointee().is_const_qualified())


def constant_memory(cursor: cindex.Cursor) -> bool:
    base = variable(cursor)
    return base is not None and any(child.kind is CursorKind.CUDACONSTANT_ATTR for child in cursors.children(base))


def parameter_types(function: cindex.Cursor) -> list[cindex.Type]:
    return [child.type for child in cursors.children(function) if child.kind is CursorKind.PARM_DECL]


def pointed_to(argument: cindex.Cursor) -> cindex.Cursor:
    """The element that `&p[i]` is the address of; anything else is itself, and no element."""
    found = argument
    while found.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.UNARY_OPERATOR):
        inner = list(cursors.children(found))
        if len(inner) != 1:
            return argument
        found = inner[0]
    return found if found.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR else argument


def uniform_of_groups(call: cindex.Cursor, name: str) -> bool:
    """Whether a method of a group is the same for all of the block; of coalesced threads none is."""
    return name in _UNIFORM_OF_GROUPS and bool(call.referenced.semantic_parent.spelling != "coalesced_group")


def of_groups(call: cindex.Cursor) -> bool:
    target = call.referenced
    parent = target.semantic_parent if target is not None else None
    while parent is not None and parent.kind is not CursorKind.TRANSLATION_UNIT:
        if parent.spelling == "cooperative_groups":
            return True
        parent = parent.semantic_parent
    return False


def called(call: cindex.Cursor) -> str:
    """What a call calls, also where that depends on a template argument."""
    cursor = call
    while not cursor.spelling:
        inner = list(cursors.children(cursor))
        if not inner:
            return ""
        cursor = inner[0]
    return str(cursor.spelling)


def sign(cursor: cindex.Cursor) -> str:
    """What a unary operator does: `&`, `*`, `++` (or `--`, or what may be that), or nothing of these."""
    found = cursors.unary_operator(cursor)
    return "" if found in ("-", "+", "!", "~") else found if found in ("&", "*") else "++"


def assigns(cursor: cindex.Cursor) -> bool:
    """Whether a binary operator writes to its left side."""
    return cursor.kind is CursorKind.COMPOUND_ASSIGNMENT_OPERATOR or cursors.binary_operator(cursor) in ("=", "")
