"""A kernel's parameters with their types in the instance; of structs by value, every number and pointer with its place.

struct Row { float* data; int size[2]; };   -->   data at 0 (points to float32), size[0] at 8, size[1] at 12
"""

import re
from collections.abc import Iterator

from fusiond.model.errors import RequestError
from fusiond.model.language import dtypes
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.clang_tree import ClangTree
from fusiond_hfuse.frontend.cuda_declarations import DTYPES, VECTOR_OF
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.source_kernel import KernelParameter, StructField

_MOST_FIELDS = 4096
_TEMPLATES = (CursorKind.CLASS_TEMPLATE, CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)


def of_kernel(tree: ClangTree, body: cindex.Cursor, where: str) -> tuple[KernelParameter, ...]:
    """The kernel's parameters, with their types in the instance. RequestError where these cannot be told."""
    written = [child for child in cursors.children(body) if child.kind is CursorKind.PARM_DECL]
    signature = next((each for each in cursors.children(tree.cursor) if each.spelling == "fusiond_signature"), None)
    kind = signature.underlying_typedef_type.get_canonical() if signature is not None else None
    if kind is None or kind.kind is not cindex.TypeKind.FUNCTIONPROTO:
        after = [message for line, _, message in tree.errors() if line > tree.lines]
        reason = after[0] if after else "its type cannot be told"
        raise RequestError(f"{tree.reading.function}: {reason}", where=where)
    kinds = list(kind.argument_types())
    if len(kinds) != len(written):
        raise RequestError(f"{tree.reading.function} takes a list of parameters of any length", where=where)
    return tuple(_parameter(tree, cursor, each) for cursor, each in zip(written, kinds, strict=True))


def _parameter(tree: ClangTree, cursor: cindex.Cursor, kind: cindex.Type) -> KernelParameter:
    """A kernel's parameter, with its type in the instance."""
    written = cursor.type
    kind = kind.get_canonical()
    restrict = kind.is_restrict_qualified() or written.get_canonical().is_restrict_qualified()
    pointer = kind.kind is cindex.TypeKind.POINTER
    target = kind.get_pointee() if pointer else kind
    bare = bare_name(target).removeprefix("struct ")
    vector = bare if pointer and bare in VECTOR_OF else None
    record = not pointer and kind.kind is cindex.TypeKind.RECORD and bare not in DTYPES
    rows = pointer and vector is None and target.kind is cindex.TypeKind.RECORD and bare not in DTYPES
    return KernelParameter(
        name=cursor.spelling, pointer=pointer,
        dtype=DTYPES.get(VECTOR_OF[bare] if vector else bare) or _enumeration(kind), spelling=written.spelling,
        target=bare, constant=pointer and target.is_const_qualified(),
        volatile=pointer and target.is_volatile_qualified(), restrict=restrict,
        void=pointer and bare == "void", enumeration=_enumeration(kind) is not None,
        records=target.get_size() if rows else 0, holds_pointers=rows and has_pointer(target),
        fields=tuple(fields(tree, kind)) if record else (), bytes=kind.get_size() if record else 0,
    )  # fmt: skip


def fields(tree: ClangTree, kind: cindex.Type, path: str = "", offset: int = 0) -> Iterator[StructField]:
    """Every number and pointer of a struct, or another variable, with its place; anything else is listed without a
    dtype. The path of one that is a pointer itself is empty."""
    kind = kind.get_canonical()
    if kind.kind is cindex.TypeKind.CONSTANTARRAY:
        yield from _elements(tree, kind, path, offset)
    elif kind.kind is cindex.TypeKind.RECORD and bare_name(kind) not in DTYPES:
        yield from _members(tree, kind, path, offset)
    elif kind.kind is cindex.TypeKind.POINTER:
        yield _pointer_field(kind.get_pointee(), path, offset)
    else:
        dtype = DTYPES.get(bare_name(kind)) or _enumeration(kind)
        if dtype is not None and dtypes.DTYPES[dtype].packed is None:
            dtype = None  # a Program cannot write it into a struct's bytes
        yield StructField(path=path, dtype=dtype, offset=offset, kind=bare_name(kind))


def _elements(tree: ClangTree, array: cindex.Type, path: str, offset: int) -> Iterator[StructField]:
    if array.element_count > _MOST_FIELDS:
        yield StructField(path=path, dtype=None, offset=offset, kind=f"an array of {array.element_count}")
        return
    size = array.element_type.get_size()
    for index in range(array.element_count):
        yield from fields(tree, array.element_type, f"{path}[{index}]", offset + index * size)


def _members(tree: ClangTree, record: cindex.Type, path: str, offset: int) -> Iterator[StructField]:
    """Those of its bases first, the farthest base's before the others."""
    ancestors = _ancestors(_pattern(record.get_declaration()))
    unknown = "a union" if record.get_declaration().kind is CursorKind.UNION_DECL else ""
    before = f"{path}." if path else ""
    names = [each.spelling for base in ancestors or () for each in cursors.children(base) if _is_field(each)]
    inherited = tree.located(record.spelling.replace("(anonymous namespace)::", ""), names) if names else []
    if ancestors is None or inherited is None:
        unknown = "a struct with several bases, or virtual methods"
    if unknown:
        yield StructField(path=path or bare_name(record), dtype=None, offset=offset, kind=unknown)
        return
    for name, (kind, place) in zip(names, inherited or (), strict=True):
        yield from fields(tree, kind, before + name, offset + place)
    for field in record.get_fields():
        if field.is_bitfield():
            yield StructField(path=field.spelling, dtype=None, offset=offset, kind="a bit field")
        else:
            yield from fields(tree, field.type, before + field.spelling, offset + field.get_field_offsetof() // 8)


def _is_field(cursor: cindex.Cursor) -> bool:
    return bool(cursor.kind is CursorKind.FIELD_DECL)


def _pattern(declaration: cindex.Cursor) -> cindex.Cursor:
    """The template that a class is an instance of, or the class itself."""
    found = cindex.conf.lib.clang_getSpecializedCursorTemplate(declaration)
    return found if found is not None and found.kind in _TEMPLATES else declaration


def _ancestors(record: cindex.Cursor) -> list[cindex.Cursor] | None:
    """The base of a class, its base, and so on, the farthest first; None where one has several, or virtual methods."""
    bases = [each for each in cursors.children(record) if each.kind is CursorKind.CXX_BASE_SPECIFIER]
    if len(bases) > 1 or any(each.is_virtual_method() for each in cursors.children(record)):
        return None
    if not bases:
        return []
    named = (each.referenced for each in cursors.children(bases[0]) if each.referenced is not None)
    base = next((_pattern(each) for each in named if each.kind in cursors.RECORDS), None)
    farther = None if base is None else _ancestors(base)
    return None if base is None or farther is None else [*farther, base]


def _pointer_field(target: cindex.Type, path: str, offset: int) -> StructField:
    bare = bare_name(target.get_canonical())
    dtype = DTYPES.get(VECTOR_OF.get(bare, bare)) or _enumeration(target.get_canonical())
    rows = target.get_canonical().kind is cindex.TypeKind.RECORD and bare not in (*VECTOR_OF, *DTYPES)
    held = rows and has_pointer(target)
    if dtype is None and (not rows or held) and bare != "void":
        return StructField(path=path, dtype=None, offset=offset, kind=f"a pointer to {bare}")
    return StructField(path=path, dtype=None, offset=offset, kind="a pointer", pointer=True, pointee=dtype)


def bare_name(kind: cindex.Type) -> str:
    """Without qualifiers."""
    return re.sub(r"^(const |volatile )+", "", kind.spelling)


def _enumeration(kind: cindex.Type) -> str | None:
    """What an enumeration is passed as: 32 bits as `int`, others as what the source says that they are."""
    if kind.kind is not cindex.TypeKind.ENUM:
        return None
    whole = kind.get_declaration().enum_type.get_canonical().spelling
    return "int32" if kind.get_size() == 4 else DTYPES.get(whole)


def has_pointer(kind: cindex.Type) -> bool:
    """Whether a type has an address in it, which would mean nothing in a buffer."""
    kind = kind.get_canonical()
    while kind.kind is cindex.TypeKind.CONSTANTARRAY:
        kind = kind.element_type
    if kind.kind is not cindex.TypeKind.RECORD:
        return kind.kind in (cindex.TypeKind.POINTER, cindex.TypeKind.LVALUEREFERENCE)
    own = any(has_pointer(field.type) for field in kind.get_fields())
    bases = _ancestors(_pattern(kind.get_declaration())) or ()
    inherited = (each.type.kind for base in bases for each in cursors.children(base) if _is_field(each))
    return own or cindex.TypeKind.POINTER in inherited
