"""Walks clang's trees. Results are kept with their unit: many passes look at a kernel, and each step through clang's
own interface costs ten microseconds."""

import ctypes
from collections.abc import Iterator

from clang import cindex as cindex
from clang.cindex import CursorKind as CursorKind

from fusiond_hfuse.frontend.shadows import SHADOWED

MAIN = "/fusiond/kernel.cu"
DECLARATIONS_FILE = "/fusiond/declarations.h"

SCOPES = (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)
RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.UNION_DECL,
           CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)  # fmt: skip

FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
             CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION)  # fmt: skip

_CHILDREN = "fusiond_children"
_FILE = "fusiond_file"
_MAX_DEPTH = 4000


def children(cursor: cindex.Cursor) -> tuple[cindex.Cursor, ...]:
    """What stands directly in a cursor, in the order of the text; the same objects each time, until `forget`."""
    known = cursor._tu.__dict__.setdefault(_CHILDREN, {})
    alike = known.setdefault(cursor.hash, [])  # two cursors may have one hash
    for each, found in alike:
        if each == cursor:
            return found  # type: ignore[no-any-return]
    found = tuple(cursor.get_children())
    alike.append((cursor, found))
    return found


def written_in(cursor: cindex.Cursor) -> list[cindex.Cursor]:
    """What stands directly in a unit's cursor and in its main file, which is read last: macros, then declarations."""
    everything = children(cursor)
    macros = next((at for at, each in enumerate(everything) if each.kind.is_declaration()), len(everything))
    found: list[cindex.Cursor] = []
    for part in (everything[macros:], everything[:macros]):
        for each in reversed(part):
            where = file_of(each)
            if where == MAIN:
                found.append(each)
            elif where is not None:
                break
    found.reverse()
    return found


def forget(unit: cindex.TranslationUnit) -> None:
    """Let go of what was kept of a unit: it and its cursors refer to each other, and clang's memory is large."""
    unit.__dict__.pop(_CHILDREN, None)


def preorder(cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]]:
    """A cursor and all below it, in the order of the text, each with those that it stands in.

    Without recursion, unlike clang's own: generated sources nest deeply. RecursionError beyond all reason."""
    stack: list[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]] = [(cursor, ())]
    while stack:
        each, inside = stack.pop()
        yield each, inside
        found = children(each)
        if found:
            if len(inside) > _MAX_DEPTH:
                raise RecursionError
            below = (*inside, each)
            stack += [(child, below) for child in reversed(found)]


def has(cursor: cindex.Cursor, *kinds: CursorKind) -> bool:
    """Whether an attribute, or whatever else of one of these kinds, stands directly in a cursor."""
    return any(child.kind in kinds for child in children(cursor))


def below(cursor: cindex.Cursor) -> Iterator[cindex.Cursor]:
    """A cursor and all below it, in the order of the text."""
    return (each for each, _ in preorder(cursor))


def body_of(function: cindex.Cursor) -> cindex.Cursor | None:
    """The braces of a function's definition."""
    return next((child for child in children(function) if child.kind is CursorKind.COMPOUND_STMT), None)


def called(call: cindex.Cursor) -> str:
    """What a call calls, also where that depends on a template argument."""
    cursor = call
    while not cursor.spelling:
        inner = children(cursor)
        if not inner:
            return ""
        cursor = inner[0]
    return str(cursor.spelling)


def file_of(cursor: cindex.Cursor | None) -> str | None:
    """The name of the file that a cursor stands in."""
    if cursor is None:
        return None
    kept = cursor.__dict__
    if _FILE not in kept:
        file = cursor.location.file
        kept[_FILE] = None if file is None else str(file.name)
    return kept[_FILE]  # type: ignore[no-any-return]


_BINARY = ("", ".*", "->*", "*", "/", "%", "+", "-", "<<", ">>", "<=>", "<", ">", "<=", ">=", "==", "!=", "&", "^", "|",
           "&&", "||", "=", "*=", "/=", "%=", "+=", "-=", "<<=", ">>=", "&=", "^=", "|=", ",")  # fmt: skip
_UNARY = ("", "++", "--", "++", "--", "&", "*", "+", "-", "~", "!")


def operator(cursor: cindex.Cursor) -> str:
    """What stands between two operands, or before or behind one, whatever macros hide; nothing where clang does not
    say. (The bindings do not name these calls.)"""
    binary = cursor.kind is not CursorKind.UNARY_OPERATOR
    library, names = cindex.conf.lib, _BINARY if binary else _UNARY
    ask = library.clang_getCursorBinaryOperatorKind if binary else library.clang_getCursorUnaryOperatorKind
    ask.argtypes, ask.restype = [cindex.Cursor], ctypes.c_int
    kind = ask(cursor)
    return names[kind] if 0 <= kind < len(names) else ""


class _Ranges(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint), ("ranges", ctypes.POINTER(cindex.SourceRange)))


def skipped(unit: cindex.TranslationUnit) -> list[tuple[int, int]]:
    """The parts of the main file, in bytes, that `#if` and its like leave out. (The bindings do not name this call.)"""
    library = cindex.conf.lib
    ask, done = library.clang_getAllSkippedRanges, library.clang_disposeSourceRangeList
    ask.argtypes, ask.restype = [ctypes.c_void_p], ctypes.POINTER(_Ranges)
    done.argtypes, done.restype = [ctypes.POINTER(_Ranges)], None
    found = ask(unit.obj)
    try:
        ranges = [found.contents.ranges[at] for at in range(found.contents.count)]
        return [
            (each.start.offset, each.end.offset)
            for each in ranges
            if each.start.file is not None and each.start.file.name == MAIN
        ]
    finally:
        done(found)


def initializer(variable: cindex.Cursor) -> cindex.Cursor | None:
    """What a variable is declared to begin with; None where that is nothing. (The bindings do not name this call.)"""
    ask = cindex.conf.lib.clang_Cursor_getVarDeclInitializer
    ask.argtypes, ask.restype = [cindex.Cursor], cindex.Cursor
    return cindex.Cursor.from_cursor_result(ask(variable), ask, (variable,))


def use(cursor: cindex.Cursor) -> bool:
    """Whether a cursor is a use of a built-in variable or of the barrier."""
    return (
        cursor.kind is CursorKind.DECL_REF_EXPR
        and cursor.spelling in SHADOWED
        and file_of(cursor.referenced) == DECLARATIONS_FILE
    )


def shared(cursor: cindex.Cursor) -> bool:
    """Whether a cursor declares a shared variable."""
    return cursor.kind is CursorKind.VAR_DECL and has(cursor, CursorKind.CUDASHARED_ATTR)


def dynamic_shared(cursor: cindex.Cursor) -> bool:
    """Whether a cursor declares, or refers to, a dynamic shared array."""
    target = cursor.referenced if cursor.kind is CursorKind.DECL_REF_EXPR else cursor
    return target is not None and shared(target) and target.storage_class is cindex.StorageClass.EXTERN
