"""A kernel's parameters with their types in the instance; of structs by value, every number and pointer with its place.

    struct Row { float* data; int size[2]; };   -->   data at 0 (points to float32), size[0] at 8, size[1] at 12

A struct may have one base, whose members lie before its own. The members of a template's base are found by their
names in the template; what they are and where, a second reading tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clang import cindex
from clang.cindex import CursorKind

from fusiond.language import dtypes
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.clang_tree import ClangTree
from fusiond_hfuse.frontend.cuda_declarations import VECTOR_OF
from fusiond_hfuse.frontend.source_kernel import KernelParameter, StructField

DTYPES = {
    **{each.cuda: name for name, each in dtypes.DTYPES.items()},
    **{"char": "int8", "long": "int64", "unsigned long": "uint64"},
}
"""C++ type -> the Program's name of it."""
_MOST_FIELDS = 4096
_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL)
_TEMPLATES = (CursorKind.CLASS_TEMPLATE, CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)


class Parameters:
    """Of the kernels of one tree."""

    def __init__(self, tree: ClangTree) -> None:
        self.tree = tree

    def of(self, cursor: cindex.Cursor, kind: cindex.Type) -> KernelParameter:
        """A kernel's parameter, with its type in the instance."""
        written = cursor.type
        kind = kind.get_canonical()
        restrict = kind.is_restrict_qualified() or written.get_canonical().is_restrict_qualified()
        pointer = kind.kind is cindex.TypeKind.POINTER
        target = kind.get_pointee() if pointer else kind
        bare = re.sub(r"^(const |volatile )+", "", target.spelling).removeprefix("struct ")
        vector = bare if pointer and bare in VECTOR_OF else None
        record = not pointer and kind.kind is cindex.TypeKind.RECORD and bare not in DTYPES
        rows = pointer and vector is None and target.kind is cindex.TypeKind.RECORD and bare not in DTYPES
        return KernelParameter(
            name=cursor.spelling,
            pointer=pointer,
            dtype=DTYPES.get(VECTOR_OF[bare] if vector else bare) or _enumeration(kind),
            spelling=written.spelling,
            target=bare,
            constant=pointer and target.is_const_qualified(),
            volatile=pointer and target.is_volatile_qualified(),
            restrict=restrict,
            dependent=_dependent(cursor),
            void=pointer and bare == "void",
            enumeration=_enumeration(kind) is not None,
            records=target.get_size() if rows else 0,
            holds_pointers=rows and has_pointer(target),
            fields=tuple(self._fields(kind, "", 0)) if record else (),
            bytes=kind.get_size() if record else 0,
            alignment=kind.get_align() if record else 0,
        )

    def fields(self, kind: cindex.Type) -> tuple[StructField, ...]:
        """Every number and pointer of a variable, with its place; the path of one that is a pointer itself is empty."""
        return tuple(self._fields(kind, "", 0))

    def _fields(self, kind: cindex.Type, path: str, offset: int) -> Iterator[StructField]:
        """The numbers inside a struct, with their places; anything else is listed without a dtype."""
        kind = kind.get_canonical()
        if kind.kind is cindex.TypeKind.CONSTANTARRAY:
            yield from self._elements(kind, path, offset)
        elif kind.kind is cindex.TypeKind.RECORD and _bare(kind) not in DTYPES:
            yield from self._members(kind, path, offset)
        elif kind.kind is cindex.TypeKind.POINTER:
            yield self._pointer_field(kind.get_pointee(), path, offset)
        else:
            dtype = DTYPES.get(_bare(kind)) or _enumeration(kind)
            if dtype is not None and dtypes.DTYPES[dtype].packed is None:
                dtype = None  # a Program cannot write it into a struct's bytes
            yield StructField(path=path, dtype=dtype, offset=offset, kind=_bare(kind))

    def _elements(self, array: cindex.Type, path: str, offset: int) -> Iterator[StructField]:
        if array.element_count > _MOST_FIELDS:
            yield StructField(path=path, dtype=None, offset=offset, kind=f"an array of {array.element_count}")
            return
        size = array.element_type.get_size()
        for index in range(array.element_count):
            yield from self._fields(array.element_type, f"{path}[{index}]", offset + index * size)

    def _members(self, record: cindex.Type, path: str, offset: int) -> Iterator[StructField]:
        """Those of its bases first, the farthest base's before the others."""
        declaration = record.get_declaration()
        pattern = _pattern(declaration)
        unknown = _unknown_places(declaration, pattern)
        if unknown:
            yield StructField(path=path or _bare(record), dtype=None, offset=offset, kind=unknown)
            return
        before = f"{path}." if path else ""
        names = [name for each in _ancestors(pattern) for name in _fields_of(each)]
        for name, found in zip(names, self.tree.located(record.spelling, names), strict=True):
            if found is None:
                what = "a member of a base, which cannot be told"
                yield StructField(path=before + name, dtype=None, offset=offset, kind=what)
            else:
                yield from self._fields(found[0], before + name, offset + found[1])
        for field in record.get_fields():
            if field.is_bitfield():
                yield StructField(path=field.spelling, dtype=None, offset=offset, kind="a bit field")
            else:
                yield from self._fields(field.type, before + field.spelling, offset + field.get_field_offsetof() // 8)

    def _pointer_field(self, target: cindex.Type, path: str, offset: int) -> StructField:
        bare = re.sub(r"^(const |volatile )+", "", target.get_canonical().spelling)
        dtype = DTYPES.get(VECTOR_OF.get(bare, bare)) or _enumeration(target.get_canonical())
        rows = target.get_canonical().kind is cindex.TypeKind.RECORD and bare not in (*VECTOR_OF, *DTYPES)
        held = rows and has_pointer(target)
        if dtype is None and (not rows or held) and bare != "void":
            return StructField(path=path, dtype=None, offset=offset, kind=f"a pointer to {bare}")
        return StructField(path=path, dtype=None, offset=offset, kind="a pointer", pointer=True, pointee=dtype)


def _bare(kind: cindex.Type) -> str:
    return re.sub(r"^(const |volatile )+", "", kind.spelling)


def _unknown_places(declaration: cindex.Cursor, pattern: cindex.Cursor) -> str:
    """What a record is whose members' places cannot be told; empty where they can."""
    if len(_bases(pattern)) > 1 or any(len(_bases(each)) > 1 for each in _ancestors(pattern)):
        return "a struct with several bases"
    if any(child.is_virtual_method() for child in cursors.children(pattern)):
        return "one with virtual methods"
    return "a union" if declaration.kind is CursorKind.UNION_DECL else ""


def _enumeration(kind: cindex.Type) -> str | None:
    """What an enumeration is passed as: 32 bits as `int`, others as what the source says that they are."""
    if kind.kind is not cindex.TypeKind.ENUM:
        return None
    whole = kind.get_declaration().enum_type.get_canonical().spelling
    return "int32" if kind.get_size() == 4 else DTYPES.get(whole)


def _dependent(cursor: cindex.Cursor) -> bool:
    """Whether a parameter's type mentions a template parameter."""
    return any(
        child.kind is CursorKind.TYPE_REF
        and child.referenced is not None
        and child.referenced.kind is CursorKind.TEMPLATE_TYPE_PARAMETER
        for child in cursors.below(cursor)
    )


def _pattern(declaration: cindex.Cursor) -> cindex.Cursor:
    """The template that a class is an instance of, or the class itself."""
    found = cindex.conf.lib.clang_getSpecializedCursorTemplate(declaration)
    return found if found is not None and found.kind in _TEMPLATES else declaration


def _bases(record: cindex.Cursor) -> list[cindex.Cursor]:
    """The bases that a class or a template names, as classes or templates."""
    found = []
    for base in cursors.children(record):
        if base.kind is CursorKind.CXX_BASE_SPECIFIER:
            named = [child.referenced for child in cursors.children(base) if child.referenced is not None]
            records = [each for each in named if each.kind in (*_TEMPLATES, *_RECORDS)]
            found.append(_pattern(records[0]) if records else base)
    return found


def _ancestors(record: cindex.Cursor) -> list[cindex.Cursor]:
    """The base of a class, its base, and so on, the farthest first."""
    bases = _bases(record)
    return [*_ancestors(bases[0]), bases[0]] if bases else []


def _fields_of(record: cindex.Cursor) -> list[str]:
    return [child.spelling for child in cursors.children(record) if child.kind is CursorKind.FIELD_DECL]


def has_pointer(kind: cindex.Type) -> bool:
    """Whether a type has an address in it, which would mean nothing in a buffer."""
    kind = kind.get_canonical()
    while kind.kind is cindex.TypeKind.CONSTANTARRAY:
        kind = kind.element_type
    if kind.kind is not cindex.TypeKind.RECORD:
        return kind.kind in (cindex.TypeKind.POINTER, cindex.TypeKind.LVALUEREFERENCE)
    own = any(has_pointer(field.type) for field in kind.get_fields())
    return own or any(
        child.type.kind is cindex.TypeKind.POINTER
        for each in _ancestors(_pattern(kind.get_declaration()))
        for child in cursors.children(each)
        if child.kind is CursorKind.FIELD_DECL
    )
