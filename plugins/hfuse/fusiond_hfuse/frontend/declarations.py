"""The declarations of a file, as they stay or go when a kernel is cut out of it (slicing.py): what each of them is
called, which words stand in it, whether only the host can call it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from fusiond_hfuse.frontend import clang_tree, cursors, directives, entries, shadows
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.instances import TemplateParameter

_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.UNION_DECL,
            CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)  # fmt: skip
_REFERENCES = (CursorKind.DECL_REF_EXPR, CursorKind.OVERLOADED_DECL_REF, CursorKind.TYPE_REF, CursorKind.TEMPLATE_REF)
_OF_DEVICES = (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR)
_MEMBERS = (*shadows.FUNCTIONS, CursorKind.VAR_DECL)
_NEEDED_METHODS = (CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR)


@dataclass(slots=True)
class SourceDeclaration:
    """What stands or goes as one: `start` to `end` in bytes. `names`: those that reach it; `words`: those in it."""

    start: int
    end: int
    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    """Those behind a point or an arrow alone: a macro may be called so, no declaration round it."""
    host: bool = False
    """Only the host can call it."""
    kernels: set[str] = field(default_factory=set)
    """With their namespaces."""
    signature: str | None = None
    """The types of a kernel's parameters; None for a template, and its instances."""
    defined: bool = False
    """That kernel is defined here."""
    slots: tuple[TemplateParameter, ...] = ()
    """The parameters of a kernel's template."""
    functors: set[str] = field(default_factory=set)
    """Classes, with their namespaces, that a template may take for a function or a view."""
    always: bool = False
    """It is called without being named: an operator, a `using namespace`."""
    takes: set[str] = field(default_factory=set)
    """The words in what such an operator takes."""
    repeats: bool = False
    """It declares once more what CUDA declares."""
    method: bool = False
    """It is one of a class, and stands in it."""
    member: str = ""
    """The method or static member of a class declared elsewhere that it defines."""


_FREE = re.compile(r"(?<!\w)(?<!->)(?<![^.]\.)[A-Za-z_]\w*")
"""A word of directives.WORD that names no member."""
_BEHIND = re.compile(r"\s*(?:=\s*(?:delete|default|0)\s*)?;")
"""Clang ends a template at its head, though it is deleted."""
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b|extern\b")
_CALL = re.compile(r"[A-Za-z_]\w*(?:[ \t]*\([^()\n]*\))?(?:\s*\{)?")
"""A macro with its arguments, and a brace behind it."""
_BUILT_IN = frozenset(shadows.SHADOWED)


class DeclarationWalk:
    """The declarations of a tree, those in namespaces too."""

    def __init__(self, code: str, frame: set[tuple[int, int]], unread: list[tuple[int, int]] | None = None) -> None:
        """`unread`: where bodies of functions are not in the tree, what the preprocessor leaves out of the text."""
        self.code = code
        self.marks = None if unread is None else _without_characters(code, unread)
        self.pasting = directives.pasting(code)
        self.frame = frame
        """Gets the heads and ends of namespaces."""

    def declarations(self, cursor: cindex.Cursor) -> Iterator[SourceDeclaration]:
        for each in cursors.written_in(cursor, clang_tree.MAIN):
            if each.kind.is_declaration():
                yield from self._of(each, "")

    def _of(self, cursor: cindex.Cursor, scope: str) -> Iterator[SourceDeclaration]:
        if cursor.kind is CursorKind.NAMESPACE or self._braced_linkage(cursor):
            yield from self._inner(cursor, scope)
            return
        start, end = self._extent(cursor)
        if end > start:
            yield self._declaration(cursor, start, end, scope)
            if cursor.kind in _RECORDS:
                yield from self._methods(cursor)

    def _inner(self, cursor: cindex.Cursor, scope: str) -> Iterator[SourceDeclaration]:
        """Those of a namespace, or of `extern "C" { }`."""
        inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
        self.frame |= self._brackets(cursor.extent.start.offset, cursor.extent.end.offset)
        for child in cursors.children(cursor):
            if child.kind.is_declaration():
                yield from self._of(child, inner)

    def _declaration(self, cursor: cindex.Cursor, start: int, end: int, scope: str) -> SourceDeclaration:
        found = SourceDeclaration(start, end, words=set(_FREE.findall(self.code[start:end])))
        found.members = set(directives.WORD.findall(self.code[start:end])) - found.words
        if not self.pasting.isdisjoint(found.words):  # names that stand in no text
            found.words |= {each.spelling for each in cursors.below(cursor) if each.kind in _REFERENCES}
        if cursor.kind is CursorKind.USING_DIRECTIVE:
            found.always = True
        if cursor.kind is CursorKind.USING_DECLARATION:
            found.names.add(self.code[start:end].rstrip("; \n").rpartition("::")[2].strip())
        for each in (cursor, *self._below(cursor)):
            self._name(found, each, scope)
        if _is_functor(cursor):
            found.functors.add(scope + cursor.spelling)
        found.host = self._host(cursor)
        found.repeats = found.names <= _BUILT_IN or (
            cursor.kind is CursorKind.FUNCTION_DECL
            and not self._defines(cursor)
            and cursors.file_of(cursor.canonical) == clang_tree.DECLARATIONS_FILE
        )
        return found

    def _brackets(self, start: int, end: int) -> set[tuple[int, int]]:
        """The head and the end of a namespace; macros may stand for them, `BEGIN_NAMESPACE` and `END_NAMESPACE`."""
        if _SCOPE.match(self.code, start):
            opened = self.code.index("{", start) + 1
        else:
            call = _CALL.match(self.code, start)
            opened = call.end() if call is not None else start
        closed = end - 1
        if self.code[closed] != "}":
            calls = list(_CALL.finditer(self.code, self.code.rfind("\n", 0, end) + 1, end))
            closed = calls[-1].start() if calls else closed
        return {(start, opened), (closed, end)}

    def _methods(self, record: cindex.Cursor) -> Iterator[SourceDeclaration]:
        """Those of a record that are the host's: they go though it stays, unless one that stays names them."""
        methods = [each for each in cursors.children(record) if each.kind in shadows.FUNCTIONS]
        friends = any(each.kind is CursorKind.FRIEND_DECL for each in cursors.children(record))
        needed = [each for each in methods if self._needed(each, friends)]
        named: set[str] = set()
        while needed:
            named.update(*(directives.words(self.code[slice(*self._extent(each))]) for each in needed))
            methods = [each for each in methods if each not in needed]
            needed = [each for each in methods if each.spelling in named]
        for each in methods:
            start, end = self._extent(each)
            if end > start:  # whether it is the host's for every architecture, the caller sees
                yield SourceDeclaration(start, end, host=self._host(each), method=True)

    @staticmethod
    def _needed(method: cindex.Cursor, friends: bool) -> bool:
        """Whether it stays whoever can call it. What a friend does by a macro names no operator."""
        if method.kind in _NEEDED_METHODS or (friends and method.spelling.startswith("operator")):
            return True
        return method.kind is CursorKind.CXX_METHOD and bool(method.is_virtual_method())

    def _below(self, cursor: cindex.Cursor) -> Iterator[cindex.Cursor]:
        """Whatever else one text declares: enumerators, what stands behind `extern "C"`. Those of a class are named
        with it, or in it."""
        for each in () if cursor.kind in _RECORDS else cursors.children(cursor):
            if each.kind in (CursorKind.ENUM_CONSTANT_DECL, CursorKind.ENUM_DECL):
                yield each
                yield from self._below(each)
            elif cursor.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL) and each.kind.is_declaration():
                yield each

    def _name(self, found: SourceDeclaration, cursor: cindex.Cursor, scope: str) -> None:
        name = cursor.spelling.partition("<")[0].strip()
        if not name:
            return
        if name.startswith("operator"):
            found.always = found.always or not self._host(cursor)
            for each in cursors.children(cursor):
                if each.kind is CursorKind.PARM_DECL:
                    found.takes |= set(directives.words(self.code[each.extent.start.offset : each.location.offset]))
        parent = cursor.semantic_parent
        if cursor.kind in _MEMBERS and parent is not None and parent.kind in _RECORDS:
            found.names.add(parent.spelling.partition("<")[0])  # written outside of its class
            found.member = name
            return
        found.names.add(name)
        if _has(cursor, (CursorKind.CUDAGLOBAL_ATTR,)):
            found.kernels.add(scope + name)
            head = self.code[cursor.extent.start.offset : cursor.location.offset]
            found.slots = found.slots or entries.slots(cursor)
            if cursor.kind is CursorKind.FUNCTION_DECL and "template" not in head:
                kinds = cursor.type.get_canonical().argument_types()
                found.signature = ", ".join(str(each.spelling) for each in kinds)
                found.defined = self._defines(cursor)

    def _host(self, cursor: cindex.Cursor) -> bool:
        if cursor.kind not in shadows.FUNCTIONS:
            inner = self._linked(cursor)
            return bool(inner) and all(self._host(each) for each in inner)
        if _has(cursor, _OF_DEVICES) or _has(cursor.canonical, _OF_DEVICES):
            return False
        head = self.code[cursor.extent.start.offset : cursor.location.offset]
        return not re.search(r"\bconst(expr|eval)\b", head)

    def _linked(self, cursor: cindex.Cursor) -> list[cindex.Cursor]:
        """The functions behind an `extern "C"`."""
        if cursor.kind not in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            return []
        return [each for each in self._below(cursor) if each.kind in shadows.FUNCTIONS]

    def _braced_linkage(self, cursor: cindex.Cursor) -> bool:
        if cursor.kind not in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            return False
        text = self.code[cursor.extent.start.offset : cursor.extent.end.offset]
        return re.match(r'extern\s*"[^"]*"\s*\{', text) is not None

    def _defines(self, function: cindex.Cursor) -> bool:
        end = function.extent.end.offset
        return bool(function.is_definition()) or (self.marks is not None and _behind_body(self.marks, end) > end)

    def _extent(self, cursor: cindex.Cursor) -> tuple[int, int]:
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        # clang ends `int n(4)` at its 4; what is never closed ends with the file
        while end < len(self.code) and self.code.count("(", start, end) > self.code.count(")", start, end):
            end = self.code.find(")", end) + 1 or len(self.code)
        if self.marks is not None and (cursor.kind in shadows.FUNCTIONS or self._linked(cursor)):
            end = _behind_body(self.marks, end)
        behind = _BEHIND.match(self.code, end)
        return self._with_heads(start), behind.end() if behind is not None else end

    def _with_heads(self, start: int) -> int:
        """Where the first `template <...>` of a declaration begins: clang begins a member's template of a template at
        the second."""
        while True:
            at = start - 1
            while at > 0 and self.code[at].isspace():
                at -= 1
            if at <= 0 or self.code[at] != ">":
                return start
            depth = 1
            while 0 < depth < _NEVER and at > 0:
                at -= 1
                depth += {">": 1, "<": -1, ";": _NEVER, "{": _NEVER, "}": _NEVER}.get(self.code[at], 0)
            head = _HEAD.search(self.code, max(0, at - _MOST_BLANK), at)
            if depth or head is None:
                return start
            start = head.start()


def _without_characters(code: str, unread: Iterable[tuple[int, int]]) -> str:
    """A text whose braces are all brackets of what is read."""
    pieces, at = [], 0
    for start, end in sorted(unread):
        pieces += [code[at:start], " " * (end - start)]
        at = max(at, end)
    text = "".join([*pieces, code[at:]])
    text = re.sub(r"'(?:\\.|[^'\\\n])'", "' '", text) if "'{'" in text or "'}'" in text else text
    return _DIRECTIVE.sub(lambda each: re.sub(r"[^\n]", " ", each.group()), text)


_DIRECTIVE = directives.LINE
_BODY = re.compile(r"\s*(?P<tries>try\b\s*)?(?P<mark>[:{])")
_HANDLER = re.compile(r"\s*catch\s*\(")
_LIST = re.compile(r"\s*\(")
_RESULT = re.compile(r"[^;{}]*(?P<mark>[;{])")
_BRACKET = re.compile(r"[(){}]")
_FOLLOWS = re.compile(r"\s*(?:\.\.\.\s*)?([,{])")
_NEXT = re.compile(r"[^(){}]*(?P<mark>[({])")


def _behind_body(marks: str, end: int) -> int:
    """The place behind the body of a function whose head ends at `end`: there may be none."""
    later = _LIST.match(marks, end)
    if later is not None:  # clang ends `auto f(int) -> int` at its name
        result = _RESULT.match(marks, _closed(marks, later.end() - 1))
        end = result.start("mark") if result is not None else end
    begins = _BODY.match(marks, end)
    if begins is None or (begins.group("mark") == ":" and marks[begins.end() : begins.end() + 1] == ":"):
        return end
    at = begins.end() - 1
    while marks[at] == ":" or marks[at] == ",":  # a constructor's members: `: a(1), b{2} {`
        opens = _NEXT.match(marks, at + 1)
        if opens is None:
            return end
        at = _closed(marks, opens.end() - 1)
        follows = _FOLLOWS.match(marks, at)
        if follows is None:
            return end
        at = follows.end() - 1
    at = _closed(marks, at)
    while begins.group("tries") and (handler := _HANDLER.match(marks, at)) is not None:
        at = _closed(marks, marks.find("{", _closed(marks, handler.end() - 1)))
    return at


def _closed(marks: str, opening: int) -> int:
    """The place behind the bracket that closes the one at `opening`."""
    depth = 0
    for each in _BRACKET.finditer(marks, opening):
        depth += 1 if each.group() in "({" else -1
        if depth == 0:
            return each.end()
    return len(marks)


_HEAD = re.compile(r"\btemplate\s*\Z")
_MOST_BLANK = 200
_NEVER = 1000
"""More brackets than a head has: `;` and braces stand in none."""


def _has(cursor: cindex.Cursor, kinds: Collection[CursorKind]) -> bool:
    return any(child.kind in kinds for child in cursors.children(cursor))


def grouped(declarations: Iterable[SourceDeclaration]) -> list[SourceDeclaration]:
    """One for all that overlap (`struct { int a; } x, y;`); a host's method inside of a record stays one by itself."""
    found: list[SourceDeclaration] = []
    inner: list[SourceDeclaration] = []
    for each in sorted(declarations, key=lambda each: (each.start, -each.end)):
        last = found[-1] if found else None
        if last is None or each.start >= last.end:
            found.append(each)
        elif each.host and not each.names and each.end <= last.end:
            inner.append(each)
        else:
            last.end = max(last.end, each.end)
            last.names |= each.names
            last.words |= each.words
            last.members |= each.members
            last.kernels |= each.kernels
            last.functors |= each.functors
            last.slots = last.slots or each.slots
            last.signature = each.signature if last.signature is None else last.signature
            last.defined |= each.defined
            last.takes = last.takes | each.takes if last.always and each.always else last.takes or each.takes
            last.always |= each.always
            last.host &= each.host
            last.repeats &= each.repeats
            last.member = last.member if last.member == each.member else ""
    return [*found, *inner]


def _is_functor(cursor: cindex.Cursor) -> bool:
    """Whether a class has functions for the device, so that a template may be of it."""
    if cursor.kind not in (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL):
        return False
    if not cursor.is_definition() or not cursor.spelling:
        return False
    return any(_has(each, _OF_DEVICES) for each in cursors.children(cursor) if each.kind in shadows.FUNCTIONS)
