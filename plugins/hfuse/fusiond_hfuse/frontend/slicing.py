"""Cuts a kernel out of the file that it stands in: with all that it reaches, without the rest.

    #include <cublas_v2.h>                   -->  (a header of which nothing is known: see includes.py)
    __global__ void scan(int*) { ... }       -->
    __device__ float f(float x) { ... }           __device__ float f(float x) { ... }
    __global__ void k(float* p) { f(p[0]) }       __global__ void k(float* p) { f(p[0]) }
    int main() { cublasCreate(&handle); }    -->

A declaration is reached when what is reached names it, by any word of its text, or by a macro's: more than is called,
but never less, whatever templates and conditions decide later. A device cannot call what is the host's alone. The rest
becomes blank: places of all that stays are as they were, and so are the lines of preprocessor directives.
"""

import bisect
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fusiond.model.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import clang_tree, cursors, directives
from fusiond_hfuse.frontend.clang_tree import Reading
from fusiond_hfuse.frontend.cursors import RECORDS, CursorKind, cindex
from fusiond_hfuse.frontend.includes import HOISTED, without_comments
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

Macros = tuple[tuple[str, str], ...]


def sliced(unit: TranslationUnit, reading: Reading) -> TranslationUnit:
    """The unit with all text blank that the kernel does not reach. Raises UnknownName where there is no such kernel,
    and RequestError where a condition leaves it out, or asks for what a header may define of which nothing is known."""
    entry, defines = reading.entry, reading.defines
    walked = _walked(unit.text, unit.system, defines, reading.flags)
    known = walked.kernels
    if entry not in known:
        left_out = condition_round(unit, entry, defines, reading.flags)
        if left_out is not None:
            line, condition = left_out
            raise RequestError(f"`{condition}` leaves out {entry}", where=unit.where(line))
        if walked.error and not known:
            line, message = walked.error
            raise RequestError(f"not CUDA C++ as libclang reads it: {message}", where=unit.where(line))
        raise UnknownName("kernel", entry, known or {"none"}, where=reading.where)
    texts = (reading.instance or "", *reading.variables, *(value for _, value in defines))
    begin = {word for text in texts for word in directives.WORD.findall(text)}
    reached, named = _reached(walked.groups, entry, begin, directives.macros(walked.code))
    kept = [(each.start, each.end) for each in walked.groups if id(each) in reached]
    for line, name in directives.undecided(walked.code, kept, {name for name, _ in defines}) if unit.unread else ():
        raise RequestError(
            f"a condition asks for `{name}`, which {' or '.join(unit.unread[:4])} may define", where=unit.where(line)
        )
    named |= {word for start, end in walked.frame for word in directives.WORD.findall(walked.code[start:end])}
    text = _without(unit.text.encode(), walked, reached, named)
    return dataclasses.replace(
        unit,
        text=directives.without_idle_conditions(text, without_comments(text)),
        includes={at: line for at, line in unit.includes.items() if re.search(r'[<"](.*)[>"]', line)[1] in HOISTED},  # type: ignore[index]
    )


def kernels(unit: TranslationUnit, defines: Macros = (), flags: tuple[str, ...] = ()) -> frozenset[str]:
    """The kernels of a unit, with their namespaces."""
    return _walked(unit.text, unit.system, defines, flags).kernels


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


@dataclass(frozen=True, slots=True)
class _Walked:
    """A text's declarations, whichever of its kernels is asked for."""

    code: str
    groups: tuple[SourceDeclaration, ...]
    frame: frozenset[tuple[int, int]]  #: Heads and ends of namespaces
    unread: tuple[tuple[int, int], ...]  #: What `#if` and its like leave out
    error: tuple[int, str] | None  #: Line and message of the first

    @property
    def kernels(self) -> frozenset[str]:
        return frozenset(name for each in self.groups for name in each.kernels)


@functools.lru_cache(maxsize=8)  # `init` asks for a file's kernels, and then for one of them
def _walked(text: str, system: tuple[str, ...], defines: Macros, flags: tuple[str, ...]) -> _Walked:
    code = clang_tree.blanked(text.encode())
    try:
        tree = clang_tree.tolerant(text, system, defines, flags)
    except cindex.TranslationUnitLoadError as problem:
        raise RequestError(f"libclang cannot read it: {problem}") from None
    try:
        walk = _DeclarationWalk(code)
        groups = tuple(grouped(walk.declarations(tree.cursor)))
        unread = tuple(cursors.skipped(tree))
        wrong = (each for each in tree.diagnostics if each.severity >= cindex.Diagnostic.Error)
        error = next(((each.location.line, each.spelling) for each in wrong), None)
        return _Walked(code=code, groups=groups, frame=frozenset(walk.frame), unread=unread, error=error)
    finally:
        cursors.forget(tree)


def condition_round(
    unit: TranslationUnit, entry: str, defines: Macros = (), flags: tuple[str, ...] = ()
) -> tuple[int, str] | None:
    """Line and text of the condition that leaves out the kernel of that name; None where none does."""
    walked = _walked(unit.text, unit.system, defines, flags)
    head = rf"\b__global__\b[^;{{}}]*\b{re.escape(entry.rpartition('::')[2])}\s*\("
    for start, end in walked.unread:
        if re.search(head, walked.code[start:end]):
            line = walked.code.count("\n", 0, start) + 1
            return line, " ".join(walked.code.splitlines()[line - 1].split())
    return None


def _reached(
    groups: Iterable[SourceDeclaration], entry: str, begin: set[str], macros: dict[str, set[str]]
) -> tuple[set[int], set[str]]:
    """Those that stay, by identity, and all that they name."""
    by_name: dict[str, list[SourceDeclaration]] = {}
    reached: set[int] = set()
    words = [*begin]

    def stay(each: SourceDeclaration) -> None:
        if id(each) not in reached:
            reached.add(id(each))
            words.extend(each.words)

    for each in groups:
        for name in each.names:
            by_name.setdefault(name, []).append(each)
        if entry in each.kernels or each.always:
            stay(each)
    seen: set[str] = set()
    while words:
        word = words.pop()
        if word not in seen:
            seen.add(word)
            words.extend(macros.get(word, ()))
            for each in by_name.get(word, ()):
                if not each.host and not each.kernels:
                    stay(each)
    return reached, seen


def _without(data: bytes, walked: _Walked, reached: set[int], named: set[str]) -> str:
    """The text without what the kernel does not reach: declarations, what stands between them, comments before them,
    macros that nothing names. No line ends in blanks."""
    code, found = walked.code, bytearray(data)
    gone = [(each.start, each.end) for each in walked.groups if id(each) not in reached]
    begins = {start for start, _ in gone}
    covered = sorted([*walked.frame, *((each.start, each.end) for each in walked.groups), *walked.unread])
    at = 0
    for start, end in [*covered, (len(data), len(data))]:
        if start > at and directives.LINE.sub("", code[at:start]).strip("; \n\t"):
            gone.append((at, start))  # clang made nothing of it: an explicit instantiation, an unknown type's variable
        elif start > at and start in begins:  # what stands first in a file, its licence, stays
            gone.append((at or max(code.rfind("\n\n", 0, start), 0), start))
        at = max(at, end)
    stay = [each for each in walked.groups if id(each) in reached]
    lost = {name for each in walked.groups for name in each.names}.difference(*(each.names for each in stay))
    for start, end in walked.unread:
        inside = any(each.start <= start and end <= each.end for each in stay)
        if "<<<" in code[start:end] or (not inside and lost.intersection(directives.WORD.findall(code[start:end]))):
            gone.append((start, end))  # the host's, or another compiler would read it without what it needs
    kept = [each.span() for each in directives.KEPT.finditer(code.encode("latin-1", "replace"))]
    firsts, lasts = [each[0] for each in kept], [each[1] for each in kept]
    for start, end in gone:
        at = start
        for first, last in [*kept[bisect.bisect_right(lasts, start) : bisect.bisect_left(firsts, end)], (end, end)]:
            found[at:first] = re.sub(rb"[^\n]", b" ", data[at:first])
            at = max(at, last)
    for start, end in directives.idle_macros(code, named):
        found[start:end] = re.sub(rb"[^\n]", b" ", data[start:end])
    return re.sub(rb"[ \t]+(?=\n)", b"", bytes(found)).decode()


# --- the declarations of a file, as units that stay or go -----------------------------------------------

_OF_DEVICES = (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR)
_LINKAGES = (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)


_BEHIND = re.compile(r"\s*(?:=\s*(?:delete|default|0)\s*)?;")
"""Clang ends a template at its head, though it is deleted."""


class _DeclarationWalk:
    """The declarations of a tree, those in namespaces too."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.frame: set[tuple[int, int]] = set()  #: The heads and ends of namespaces

    def declarations(self, cursor: cindex.Cursor) -> Iterator[SourceDeclaration]:
        """One for each text, whatever it declares."""
        for each in cursors.written_in(cursor):
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
        found = SourceDeclaration(start, end, words=set(directives.WORD.findall(self.code[start:end])))
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
                    taken = self.code[each.extent.start.offset : each.location.offset]
                    found.names |= set(directives.WORD.findall(taken))
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
        unclosed = self.code.count("(", start, end) - self.code.count(")", start, end)
        while end < len(self.code) and unclosed > 0:
            begin, end = end, self.code.find(")", end) + 1 or len(self.code)
            unclosed += self.code.count("(", begin, end) - 1
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
