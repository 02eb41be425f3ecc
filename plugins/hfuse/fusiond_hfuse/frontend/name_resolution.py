"""Which words of a declaration can name another one, as far as clang resolves them.

A slice goes by words (slicing.py), and a word like `size` may be a local variable here and a function elsewhere. Where
that brings in what cannot be read, the text that is left is parsed with its bodies: words that clang resolves to
something local, to a member, or to what stands in no file of the user's name nothing else. Of functions that is so only
where they are qualified (`std::max`): one of the user's that cannot be read might be meant otherwise.

    __device__ int sum(Row size) { return size.at(0); }      `size`: a parameter; `at`: a member

What a template leaves open clang does not resolve: such words stay. So do those that a macro puts together.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator

from fusiond_hfuse.frontend import clang_tree, cursors, directives
from fusiond_hfuse.frontend.cursors import RECORDS, CursorKind, cindex
from fusiond_hfuse.frontend.declarations import SourceDeclaration

_REFERENCES = (CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR, CursorKind.MEMBER_REF, CursorKind.TYPE_REF,
               CursorKind.TEMPLATE_REF, CursorKind.NAMESPACE_REF, CursorKind.VARIABLE_REF)  # fmt: skip
_INNER = (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)
_FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
              CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION, CursorKind.LAMBDA_EXPR)  # fmt: skip


class NameResolution:
    """Those of one tree, whose text has every declaration where `code` has it."""

    def __init__(self, tree: cindex.TranslationUnit, code: str) -> None:
        self.code = code
        self.macros = directives.macros(code).keys()
        self._tops = sorted(_tops(cursors.written_in(tree.cursor, clang_tree.MAIN)), key=lambda each: each[0])
        self._starts = [start for start, _ in self._tops]

    def words(self, declaration: SourceDeclaration) -> set[str]:
        """Those of its words that can name another declaration."""
        first = bisect.bisect_left(self._starts, declaration.start)
        last = bisect.bisect_left(self._starts, declaration.end)
        if first == last:  # clang made nothing of it
            return declaration.words
        settled: set[int] = set()
        for _, top in self._tops[first:last]:
            settled |= _settled(top)
        written: set[str] = set()
        left: set[str] = set()
        for each in directives.WORD.finditer(self.code, declaration.start, declaration.end):
            written.add(each.group())
            if each.start() not in settled or each.group() in self.macros:
                left.add(each.group())
        return declaration.words & left | declaration.words - written


def _tops(found: Collection[cindex.Cursor]) -> Iterator[tuple[int, cindex.Cursor]]:
    """(start, cursor) of what stands in no other declaration but namespaces."""
    for each in found:
        if each.kind in _INNER:
            yield from _tops(cursors.children(each))
        elif each.kind.is_declaration():
            yield each.extent.start.offset, each


def _settled(top: cindex.Cursor) -> set[int]:
    """Where names stand that name nothing at the level of a file, in arguments of macros too."""
    found: set[int] = set()
    others: set[int] = set()
    for cursor, inside in cursors.preorder(top):
        if cursor.kind.is_declaration():
            # Not what a friend or an `extern` in a body declares.
            if inside and cursor.kind is not CursorKind.FRIEND_DECL and _is_inner(cursor):
                found.add(cursors.written_at(cursor))
            continue
        if cursor.kind not in _REFERENCES:
            continue
        target = cursor.referenced
        if target is None or target.kind is CursorKind.OVERLOADED_DECL_REF:
            continue
        inner = _is_inner(target) or (_elsewhere(target) and _certain(cursor, target))
        (found if inner else others).add(cursors.written_at(cursor))
    return found - others  # a macro may say one argument twice


def _elsewhere(target: cindex.Cursor) -> bool:
    """Whether it is declared in no file of the user's."""
    return cursors.file_of(target) not in (clang_tree.MAIN, None)


def _certain(cursor: cindex.Cursor, target: cindex.Cursor) -> bool:
    """Whether no function of the user's can be meant by a name that clang takes for that of a header."""
    if target.kind not in _FUNCTIONS:
        return True
    return any(each.kind is CursorKind.NAMESPACE_REF for each in cursors.children(cursor))


def _is_inner(target: cindex.Cursor) -> bool:
    """Whether it is a parameter, a local variable, or a member of a class."""
    parent = target.semantic_parent
    return parent is not None and (parent.kind in _FUNCTIONS or parent.kind in RECORDS)
