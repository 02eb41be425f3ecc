"""The declarations of a file, as units that stay or go when a kernel is cut out of it (slicing.py): name, words, and
whether only the host can call them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fusiond_hfuse.frontend import clang_tree, cursors, directives
from fusiond_hfuse.frontend.cursors import RECORDS, CursorKind, cindex

_OF_DEVICES = (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR)
_LINKAGES = (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)


@dataclass(slots=True)
class SourceDeclaration:
    """What stands or goes as one: `start` to `end` in bytes. `names`: those that reach it; `words`: those in it."""

    start: int
    end: int
    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    host: bool = False  #: Only the host can call it
    kernels: set[str] = field(default_factory=set)  #: With their namespaces
    always: bool = False  #: It is called without being named: `using namespace`


_BEHIND = re.compile(r"\s*(?:=\s*(?:delete|default|0)\s*)?;")
"""Clang ends a template at its head, though it is deleted."""


class DeclarationWalk:
    """The declarations of a tree, those in namespaces too."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.frame: set[tuple[int, int]] = set()  #: The heads and ends of namespaces

    def declarations(self, cursor: cindex.Cursor) -> Iterator[SourceDeclaration]:
        """One for each text, whatever it declares."""
        for each in cursors.written_in(cursor, clang_tree.MAIN):
            if each.kind.is_declaration():
                yield from self._of(each, "")

    def _of(self, cursor: cindex.Cursor, scope: str) -> Iterator[SourceDeclaration]:
        start, end = self._extent(cursor)
        opened = self.code.find("{", start, end) + 1
        if cursor.kind is CursorKind.NAMESPACE or (
            cursor.kind in _LINKAGES and re.match(r'extern\s*"[^"]*"\s*\{', self.code[start:end])
        ):
            inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
            self.frame |= {(start, opened), (end - 1, end)}
            for child in cursors.children(cursor):
                if child.kind.is_declaration():
                    yield from self._of(child, inner)
        elif end > start:
            yield self._declaration(cursor, start, end, scope)

    def _declaration(self, cursor: cindex.Cursor, start: int, end: int, scope: str) -> SourceDeclaration:
        found = SourceDeclaration(start, end, words=set(directives.words(self.code[start:end])))
        found.always = cursor.kind is CursorKind.USING_DIRECTIVE
        if cursor.kind is CursorKind.USING_DECLARATION:
            found.names.add(self.code[start:end].rstrip("; \n").rpartition("::")[2].strip())
        for each in (cursor, *self._below(cursor)):
            self._name(found, each, scope)
        functions = [each for each in (cursor, *self._below(cursor)) if each.kind in cursors.FUNCTIONS]
        found.host = bool(functions) and all(self._host(each) for each in functions)
        return found

    def _below(self, cursor: cindex.Cursor) -> Iterator[cindex.Cursor]:
        """Whatever else one text declares: enumerators, what stands behind `extern "C"`. Those of a class are named
        with it, or in it."""
        for each in () if cursor.kind in RECORDS else cursors.children(cursor):
            if each.kind in (CursorKind.ENUM_CONSTANT_DECL, CursorKind.ENUM_DECL):
                yield each
                yield from self._below(each)
            elif cursor.kind in _LINKAGES and each.kind.is_declaration():
                yield each

    def _name(self, found: SourceDeclaration, cursor: cindex.Cursor, scope: str) -> None:
        name = cursor.spelling.partition("<")[0].strip()
        if not name:
            return
        parent = cursor.semantic_parent
        if name.startswith("operator"):  # it is called without being named, where there is what it takes
            for each in cursors.children(cursor):
                if each.kind is CursorKind.PARM_DECL:
                    found.names |= set(directives.words(self.code[each.extent.start.offset : each.location.offset]))
        elif parent is not None and parent.kind in RECORDS:
            found.names.add(parent.spelling.partition("<")[0])  # written outside of its class
        else:
            found.names.add(name)
            if cursors.has(cursor, CursorKind.CUDAGLOBAL_ATTR):
                found.kernels.add(scope + name)

    def _host(self, function: cindex.Cursor) -> bool:
        if cursors.has(function, *_OF_DEVICES) or cursors.has(function.canonical, *_OF_DEVICES):
            return False
        head = self.code[function.extent.start.offset : function.location.offset]
        return not re.search(r"\bconst(expr|eval)\b", head)

    def _extent(self, cursor: cindex.Cursor) -> tuple[int, int]:
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        # clang ends `int n(4)` at its 4; what is never closed ends with the file
        while end < len(self.code) and self.code.count("(", start, end) > self.code.count(")", start, end):
            end = self.code.find(")", end) + 1 or len(self.code)
        behind = _BEHIND.match(self.code, end)
        return start, behind.end() if behind is not None else end


def grouped(declarations: Iterable[SourceDeclaration]) -> list[SourceDeclaration]:
    """One for all that overlap: `struct { int a; } x, y;`."""
    found: list[SourceDeclaration] = []
    for each in sorted(declarations, key=lambda each: (each.start, -each.end)):
        last = found[-1] if found else None
        if last is None or each.start >= last.end:
            found.append(each)
            continue
        last.end = max(last.end, each.end)
        last.names |= each.names
        last.words |= each.words
        last.kernels |= each.kernels
        last.always |= each.always
        last.host &= each.host
    return found
