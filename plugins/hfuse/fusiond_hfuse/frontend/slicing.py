"""Cuts a kernel out of the file that it stands in: with all that it reaches, without the rest.

    #include <cublas_v2.h>                        (a header that is not read: see includes.py)
    __global__ void scan(int*) { ... }       -->
    __device__ float f(float x) { ... }           __device__ float f(float x) { ... }
    __global__ void k(float* p) { f(p[0]) }       __global__ void k(float* p) { f(p[0]) }
    int main() { cublasCreate(&handle); }    -->

A declaration is reached when what is reached names it, by any word of its text, or by a macro's: more than is called,
but never less, whatever templates and conditions decide later. A device cannot call what is the host's alone. The rest
becomes blank: places of all that stays are as they were, and so are the lines of preprocessor directives.

What is left has no more reason to be wrong than the kernel itself: unknown headers, host code and the constructs of
other kernels are not read any more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from clang import cindex
from clang.cindex import CursorKind

from fusiond.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import cursors, directives, recheck, shadows
from fusiond_hfuse.frontend.graph import Unit
from fusiond_hfuse.frontend.includes import without_comments

_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.UNION_DECL,
            CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)  # fmt: skip
_REFERENCES = (CursorKind.DECL_REF_EXPR, CursorKind.OVERLOADED_DECL_REF, CursorKind.TYPE_REF, CursorKind.TEMPLATE_REF)
_OF_DEVICES = (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR)
_NEEDED_METHODS = (CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR)

STANDARD = {
    "cfloat": "FLT_|DBL_|LDBL_", "climits": "(?:S?CHAR|U?CHAR|SHRT|USHRT|INT|UINT|LONG|ULONG|LLONG|ULLONG)_(?:MAX|MIN)",
    "cstdint": "U?INT(?:8|16|32|64)_(?:MAX|MIN|C)|u?int(?:8|16|32|64|ptr|max)_t", "cmath": "M_[A-Z0-9_]+|INFINITY|NAN",
    "cassert": "assert", "math_constants.h": "CUDART_[A-Z0-9_]+", "limits": "numeric_limits", "cstdio": "printf",
}  # fmt: skip
"""Headers that many others bring, and how names of theirs begin: a header that is not read may have brought them."""
CUDA = {
    "cuda_bf16.h": "__nv_bfloat16|nv_bfloat16", "cuda_fp16.h": "__half|half2|__float2half|__half2float",
    "cuda_fp8.h": "__nv_fp8", "cooperative_groups.h": "cooperative_groups",
}  # fmt: skip
"""Those of CUDA that are so."""


@dataclass(slots=True)
class _Declaration:
    """What stands or goes as one: `start` to `end` in bytes. `names`: those that reach it; `words`: those in it."""

    start: int
    end: int
    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    host: bool = False
    """Only the host can call it."""
    kernels: set[str] = field(default_factory=set)
    """With their namespaces."""
    always: bool = False
    repeats: bool = False
    """It declares once more what CUDA declares."""


def sliced(
    unit: Unit,
    entry: str,
    *,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    where: str,
    flags: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
) -> Unit:
    """The unit with all text blank that the kernel does not reach. The arguments are those of `parse.parse_unit`.
    Raises UnknownName where there is no such kernel."""
    system = headers(unit)
    found = _found((unit.text, system, unit.host_headers), entry, instance, defines, flags, variables)
    if found.error is not None and not found.kernels:
        line, message = found.error
        raise RequestError(f"not CUDA C++ as libclang reads it: {message}", where=unit.where(line))
    if entry not in found.kernels:
        left_out = condition_round(unit, entry, defines, flags)
        if left_out is not None:
            line, condition = left_out
            raise RequestError(f"{entry} stands in what `{condition}` leaves out", where=unit.where(line))
        raise UnknownName("kernel", entry, found.kernels or {"none"}, where=where)
    missing = _asked_for(unit, found.unread)
    for line, name in found.undecided:
        own = [each for each, lines in missing.items() if _may_define(each) and min(lines) + 1 < line]
        if not own:
            continue  # nothing that may define it stands before it
        raise RequestError(
            f"a condition asks for `{name}`, which {' or '.join(own)} may define; give the header's folder under "
            f"`include:`, or the value under `defines:`",
            where=unit.where(line),
        )
    wanted = (*_brought(found.text, CUDA), *_brought(found.text, STANDARD)) if unit.missing else ()
    brought = tuple(each for each in wanted if each not in unit.system)
    unit = _without_idle_headers(unit, found.text)
    return dataclasses.replace(unit, text=found.text, system=(*unit.system, *brought), brought=brought, missing=missing)


def _may_define(header: str) -> bool:
    """Whether a header that was not read may decide what the kernel does: a project's, and none of CUDA's libraries."""
    return header.startswith('"') and re.match(r'"cu[a-z]+(?:Lt|_v2|_kernel)?\.h"', header) is None


def _asked_for(unit: Unit, unread: Iterable[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """Of the headers that were not read, those that a compiler would ask for: no condition leaves them out."""
    starts = [0]
    for line in unit.text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    left_out = sorted(unread)
    found: dict[str, tuple[int, ...]] = {}
    for header, lines in unit.missing.items():
        here = [each for each in lines if not any(first <= starts[each] < last for first, last in left_out)]
        if here:
            found[header] = tuple(here)
    return found


_LARGE = {"cuda.h": "CUDA_VERSION|CU[a-z]|cu[A-Z]", "curand_kernel.h": "curand", "mma.h": "nvcuda|wmma"}
"""Headers that are large, or not in every toolkit, and how names of theirs begin."""


def _without_idle_headers(unit: Unit, text: str) -> Unit:
    """The unit without those that only what is gone has asked for."""
    idle = {each for each in _LARGE if each in unit.system}.difference(_brought(text, _LARGE))
    if not idle:
        return unit
    named = re.compile(rf"\s*#\s*include\s*[<\"]({'|'.join(map(re.escape, idle))})[>\"]")
    return dataclasses.replace(
        unit,
        system=tuple(each for each in unit.system if each not in idle),
        includes={at: line for at, line in unit.includes.items() if not named.match(line)},
    )


def condition_round(
    unit: Unit,
    entry: str,
    defines: tuple[tuple[str, str], ...] = (),
    flags: tuple[str, ...] = (),
) -> tuple[int, str] | None:
    """Line and text of the condition that leaves out the kernel of that name; None where none does."""
    walked = _walked(unit.text, headers(unit), unit.host_headers, defines, flags)
    name = re.escape(entry.rpartition("::")[2])
    for start, end in walked.unread:
        if re.search(rf"\b__global__\b[^;{{}}]*\b{name}\s*\(", walked.code[start:end]):
            line = walked.code.count("\n", 0, start) + 1
            return line, " ".join(walked.code.splitlines()[line - 1].split())
    return None


def kernels(unit: Unit) -> frozenset[str]:
    """The kernels of a unit, with their namespaces."""
    return _found((unit.text, headers(unit), unit.host_headers), "", None, (), (), ()).kernels


def headers(unit: Unit) -> tuple[str, ...]:
    """Those that a unit includes, and those of CUDA that others may have brought whose names it uses."""
    return tuple(dict.fromkeys([*unit.system, *(_brought(unit.text, CUDA) if unit.missing else ())]))


@dataclass(frozen=True, slots=True)
class _Found:
    text: str
    kernels: frozenset[str]
    error: tuple[int, str] | None
    """Line and message of the first of them."""
    undecided: tuple[tuple[int, str], ...]
    """Line and name of each condition, in what is reached or round it, that asks for a macro of no file here."""
    unread: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Walked:
    """A text's declarations, whichever of its kernels is asked for."""

    code: str
    groups: tuple[_Declaration, ...]
    frame: frozenset[tuple[int, int]]
    """Heads and ends of namespaces."""
    unread: tuple[tuple[int, int], ...]
    """What `#if` and its like leave out for every architecture."""
    error: tuple[int, str] | None


@functools.lru_cache(maxsize=8)  # `init` asks for a file's kernels, and then for one of them
def _walked(
    text: str, system: tuple[str, ...], host: bool, defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> _Walked:
    code = recheck.blanked(text.encode())
    declarations: dict[tuple[int, int], _Declaration] = {}
    frame: set[tuple[int, int]] = set()
    unread: list[tuple[int, int]] | None = None
    error: tuple[int, str] | None = None
    readings = recheck.Readings(text)
    for arch in recheck.architectures(text):
        if host and readings.repeated(text, system, defines, flags, arch):
            continue
        try:
            tree = recheck.tolerant(text, system, defines, flags, arch, host=host)
        except cindex.TranslationUnitLoadError as problem:
            raise RequestError(f"libclang cannot read it: {problem}") from None
        try:
            if not host and readings.repeats(tree):
                continue
            wrong = (
                each
                for each in tree.diagnostics
                if each.severity >= cindex.Diagnostic.Error
                and (each.location.file is None or each.location.file.name == recheck.MAIN)
            )
            error = error or next(((each.location.line, each.spelling) for each in wrong), None)
            walk = _Walk(code, frame)
            for each in walk.declarations(tree.cursor):
                known = declarations.setdefault((each.start, each.end), each)
                known.names |= each.names
                known.kernels |= each.kernels
                known.host = known.host and each.host
            skipped = cursors.skipped(tree, recheck.MAIN)
            unread = skipped if unread is None else _both(unread, skipped)
        finally:
            cursors.forget(tree)
    return _Walked(
        code=code,
        groups=tuple(_groups(declarations.values())),
        frame=frozenset(frame),
        unread=tuple(unread or ()),
        error=error,
    )


@functools.lru_cache(maxsize=64)
def _found(
    read: tuple[str, tuple[str, ...], bool],
    entry: str,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    variables: tuple[str, ...],
) -> _Found:
    data = read[0].encode()
    walked = _walked(*read, defines, flags)
    code, groups, unread = walked.code, walked.groups, walked.unread
    kernels = frozenset(name for each in groups for name in each.kernels)
    given = " ".join([instance or "", *variables, *(value for _, value in defines)])
    begin = set(directives.words(given))
    reached, named = _reached(groups, entry, begin, directives.macros(code))
    gone = [(each.start, each.end) for each in groups if id(each) not in reached]
    covered = [*walked.frame, *((each.start, each.end) for each in groups), *unread]
    gone += [
        each for each in _between(covered, len(data)) if directives.LINE.sub("", code[slice(*each)]).strip("; \n\t")
    ]
    gone += _comments(code, covered, gone)
    gone += [each for each in unread if "<<<" in code[slice(*each)]]  # host code, whatever is asked for
    kept = [(each.start, each.end) for each in groups if id(each) in reached]
    gone += directives.idle_errors(code, kept)
    undecided = tuple(directives.undecided(code, kept, {name for name, _ in defines}))
    named |= {word for start, end in walked.frame for word in directives.words(code[start:end])}
    text = _without(data, code, gone, directives.idle_macros(code, named))
    return _Found(text=text, kernels=kernels, error=walked.error, undecided=undecided, unread=unread)


def _between(covered: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """What lies between these places: text that clang made nothing of, an explicit instantiation, a variable of a type
    that is not known."""
    at = 0
    for first, last in sorted(covered):
        if first > at:
            yield at, first
        at = max(at, last)
    if end > at:
        yield at, end


def _comments(
    code: str, covered: Iterable[tuple[int, int]], gone: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What is said before a declaration that goes; what stands first in a file, its licence, stays."""
    begins = {start for start, _ in gone}
    for start, end in _between(covered, len(code)):
        if end not in begins or (start, end) in gone:
            continue
        if not start:  # what is set apart by an empty line is said of the file
            start = max(code.rfind("\n\n", 0, end), 0)
        yield start, end


def _both(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What both leave out."""
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a in first for b in second)
    return [(start, end) for start, end in pairs if start < end]


_BUILT_IN = frozenset(shadows.SHADOWED)


class _Walk:
    """The declarations of a tree, those in namespaces too."""

    def __init__(self, code: str, frame: set[tuple[int, int]]) -> None:
        self.code = code
        self.frame = frame
        """Gets the heads and ends of namespaces."""

    def declarations(self, cursor: cindex.Cursor) -> Iterator[_Declaration]:
        for each in cursors.written_in(cursor, recheck.MAIN):
            if each.kind.is_declaration():
                yield from self._of(each, "")

    def _of(self, cursor: cindex.Cursor, scope: str) -> Iterator[_Declaration]:
        if cursor.kind is CursorKind.NAMESPACE or self._braced_linkage(cursor):
            inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
            start, end = cursor.extent.start.offset, cursor.extent.end.offset
            self.frame |= {(start, self.code.index("{", start) + 1), (end - 1, end)}
            for child in cursors.children(cursor):
                if child.kind.is_declaration():
                    yield from self._of(child, inner)
            return
        start, end = self._extent(cursor)
        if end <= start:
            return
        found = _Declaration(start, end, words=set(directives.WORD.findall(self.code[start:end])))
        if "##" in self.code:  # names that stand in no text
            found.words |= {each.spelling for each in cursors.below(cursor) if each.kind in _REFERENCES}
        if cursor.kind is CursorKind.USING_DIRECTIVE:
            found.always = True
        if cursor.kind is CursorKind.USING_DECLARATION:
            found.names.add(self.code[start:end].rstrip("; \n").rpartition("::")[2].strip())
        for each in (cursor, *self._below(cursor)):
            self._name(found, each, scope)
        found.host = self._host(cursor)
        found.repeats = found.names <= _BUILT_IN or (
            cursor.kind is CursorKind.FUNCTION_DECL
            and not cursor.is_definition()
            and cursors.file_of(cursor.canonical) == recheck.DECLARATIONS_FILE
        )
        yield found
        if cursor.kind in _RECORDS:
            yield from self._methods(cursor)

    def _methods(self, record: cindex.Cursor) -> Iterator[_Declaration]:
        """Those of a record that are the host's: they go though it stays, unless a constructor names them."""
        methods = [each for each in cursors.children(record) if each.kind in shadows.FUNCTIONS]
        needed = [each for each in methods if each.kind in _NEEDED_METHODS]
        named = {word for each in needed for word in directives.words(self.code[slice(*self._extent(each))])}
        for each in methods:
            if each.kind in _NEEDED_METHODS or not self._host(each) or each.spelling in named:
                continue
            if each.kind is CursorKind.CXX_METHOD and each.is_virtual_method():
                continue
            start, end = self._extent(each)
            if end > start:
                yield _Declaration(start, end, host=True)

    def _below(self, cursor: cindex.Cursor) -> Iterator[cindex.Cursor]:
        """Whatever else one text declares: enumerators, what stands behind `extern "C"`."""
        for each in cursors.children(cursor):
            if each.kind in (CursorKind.ENUM_CONSTANT_DECL, CursorKind.ENUM_DECL):
                yield each
                yield from self._below(each)
            elif cursor.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL) and each.kind.is_declaration():
                yield each

    def _name(self, found: _Declaration, cursor: cindex.Cursor, scope: str) -> None:
        name = cursor.spelling.partition("<")[0].strip()
        if not name:
            return
        if name.startswith("operator"):
            found.always = found.always or not self._host(cursor)
        parent = cursor.semantic_parent
        if cursor.kind in shadows.FUNCTIONS and parent is not None and parent.kind in _RECORDS:
            found.names.add(parent.spelling.partition("<")[0])  # written outside of its class
            return
        found.names.add(name)
        if _has(cursor, (CursorKind.CUDAGLOBAL_ATTR,)):
            found.kernels.add(scope + name)

    def _host(self, cursor: cindex.Cursor) -> bool:
        inner = [each for each in self._below(cursor) if each.kind in shadows.FUNCTIONS]
        if cursor.kind not in shadows.FUNCTIONS:
            return bool(inner) and all(self._host(each) for each in inner)
        if _has(cursor, _OF_DEVICES) or _has(cursor.canonical, _OF_DEVICES):
            return False
        head = self.code[cursor.extent.start.offset : cursor.location.offset]
        return not re.search(r"\bconst(expr|eval)\b", head)

    def _braced_linkage(self, cursor: cindex.Cursor) -> bool:
        if cursor.kind not in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            return False
        text = self.code[cursor.extent.start.offset : cursor.extent.end.offset]
        return re.match(r'extern\s*"[^"]*"\s*\{', text) is not None

    def _extent(self, cursor: cindex.Cursor) -> tuple[int, int]:
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        # clang ends `int n(4)` at its 4; what is never closed ends with the file
        while end < len(self.code) and self.code.count("(", start, end) > self.code.count(")", start, end):
            end = self.code.find(")", end) + 1 or len(self.code)
        behind = re.compile(r"\s*;").match(self.code, end)
        return self._with_heads(start), behind.end() if behind is not None else end

    def _with_heads(self, start: int) -> int:
        """Where the first `template <...>` of a declaration begins: clang begins a member's template of a template at
        the second."""
        while True:
            before = self.code[:start].rstrip()
            if not before.endswith(">"):
                return start
            depth, at = 1, len(before) - 1
            while depth and at > 0:
                at -= 1
                depth += {">": 1, "<": -1, ";": 99, "{": 99, "}": 99}.get(before[at], 0)
            head = re.search(r"\btemplate\s*$", before[:at])
            if depth or head is None:
                return start
            start = head.start()


def _has(cursor: cindex.Cursor, kinds: Collection[CursorKind]) -> bool:
    return any(child.kind in kinds for child in cursors.children(cursor))


def _groups(declarations: Iterable[_Declaration]) -> list[_Declaration]:
    """One for all that overlap (`struct { int a; } x, y;`); a host's method inside of a record stays one by itself."""
    found: list[_Declaration] = []
    inner: list[_Declaration] = []
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
            last.kernels |= each.kernels
            last.always |= each.always
            last.host &= each.host
            last.repeats &= each.repeats
    return [*found, *inner]


def _reached(
    groups: Iterable[_Declaration], entry: str, begin: set[str], macros: dict[str, set[str]]
) -> tuple[set[int], set[str]]:
    """Those that stay, by identity, and all that they name."""
    by_name: dict[str, list[_Declaration]] = {}
    for each in groups:
        for name in each.names:
            by_name.setdefault(name, []).append(each)
    reached: set[int] = set()
    seen: set[str] = set()
    words = [*begin]

    def stay(each: _Declaration) -> None:
        if id(each) not in reached:
            reached.add(id(each))
            words.extend(each.words - seen)

    for each in groups:
        if each.always or entry in each.kernels:
            stay(each)
    while words:
        word = words.pop()
        if word in seen:
            continue
        seen.add(word)
        words.extend(macros.get(word, set()) - seen)
        for each in by_name.get(word, ()):
            if each.repeats:
                continue  # `extern const dim3 blockDim;`, for compilers of the host
            if not each.host and not each.kernels:
                stay(each)
    return reached, seen


def _without(data: bytes, code: str, gone: Iterable[tuple[int, int]], idle: Iterable[tuple[int, int]]) -> str:
    """The text with these places blank, but for preprocessor directives; those of `idle` go too."""
    kept = [each.span() for each in directives.KEPT.finditer(code.encode("latin-1", "replace"))]
    found = bytearray(data)
    for start, end in gone:
        at = start
        for first, last in [*(each for each in kept if each[0] < end and start < each[1]), (end, end)]:
            found[at:first] = re.sub(rb"[^\n]", b" ", data[at:first])
            at = max(at, last)
    for start, end in idle:
        found[start:end] = re.sub(rb"[^\n]", b" ", data[start:end])
    return re.sub(rb"[ \t]+(?=\n)", b"", bytes(found)).decode()


def _brought(text: str, headers: Mapping[str, str]) -> Iterator[str]:
    """Headers whose names the text uses."""
    words = set(directives.WORD.findall(without_comments(text)))
    for header, beginning in headers.items():
        if any(re.match(beginning, word) for word in words):
            yield header
