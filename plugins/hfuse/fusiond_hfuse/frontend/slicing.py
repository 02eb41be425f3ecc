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

import contextlib
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from clang import cindex

from fusiond.errors import RequestError, UnknownName
from fusiond_hfuse.frontend import (
    blanking,
    brought_headers,
    clang_tree,
    cursors,
    directives,
    name_resolution,
    overloads,
)
from fusiond_hfuse.frontend.declarations import DeclarationWalk, SourceDeclaration, grouped
from fusiond_hfuse.frontend.includes import without_comments
from fusiond_hfuse.frontend.instances import TemplateParameter
from fusiond_hfuse.frontend.source_kernel import TranslationUnit


def sliced(
    unit: TranslationUnit,
    entry: str,
    *,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    where: str,
    flags: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
    broken: bool = True,
    resolved: bool = False,
) -> TranslationUnit:
    """The unit with all text blank that the kernel does not reach. The arguments are those of
    `kernel_parser.parse_unit`. Without `broken`, declarations in which something is wrong go too, as far as no other
    could be taken for them. `resolved`: words that clang resolves to something else reach no declaration
    (name_resolution.py), which takes longer to find out. Raises UnknownName where there is no such kernel."""
    system = brought_headers.headers(unit)
    asked = (entry, instance, defines, flags, variables)
    read = (unit.text, system, unit.host_headers)
    found = _found(read, *asked, frozenset(), resolved) if broken else _without_broken(read, *asked, resolved)
    if found.error is not None and not found.kernels:
        line, message = found.error
        raise RequestError(f"not CUDA C++ as libclang reads it: {message}", where=unit.where(line))
    if entry not in found.kernels:
        left_out = condition_round(unit, entry, defines, flags)
        if left_out is not None:
            line, condition = left_out
            raise RequestError(f"`{condition}` leaves out {entry}", where=unit.where(line))
        raise UnknownName("kernel", entry, found.kernels or {"none"}, where=where)
    missing = brought_headers.asked_for(unit, found.unread)
    for line, name in found.undecided:
        own = [each for each, lines in missing.items() if brought_headers.may_define(each) and min(lines) + 1 < line]
        if not own:
            continue  # nothing that may define it stands before it
        raise RequestError(
            f"a condition asks for `{name}`, which {' or '.join(own)} may define; give the header's folder under "
            f"`include:`, or the value under `defines:`",
            where=unit.where(line),
        )
    wanted = brought_headers.wanted(found.text) if unit.missing else ()
    more = tuple(each for each in wanted if each not in unit.system)
    unit = brought_headers.without_idle_headers(unit, found.text)
    full = [at for at, line in unit.includes.items() if not re.match(r"\s*(?:#|%:)\s*include\b", line)]
    text = directives.without_idle_conditions(found.text, without_comments(found.text), full)
    return dataclasses.replace(unit, text=text, system=(*unit.system, *more), brought=more, missing=missing)


def condition_round(
    unit: TranslationUnit,
    entry: str,
    defines: tuple[tuple[str, str], ...] = (),
    flags: tuple[str, ...] = (),
) -> tuple[int, str] | None:
    """Line and text of the condition that leaves out the kernel of that name; None where none does."""
    name = re.escape(entry.rpartition("::")[2])
    return condition_of(unit, rf"\b__global__\b[^;{{}}]*\b{name}\s*\(", defines, flags)


def declared_left_out(
    unit: TranslationUnit, name: str, defines: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> tuple[int, str] | None:
    """The same for the first text that is left out and declares a name, or may."""
    head = rf"(?:struct|class|enum|union|using|define|typedef\b[^;]*)\s{name}\b"
    return condition_of(unit, rf"\b{head}|\b\w+[\s*&>]+{name}\s*(?:\([^;{{}}()]*\)\s*\{{|=[^=])", defines, flags)


def condition_of(
    unit: TranslationUnit,
    pattern: str,
    defines: tuple[tuple[str, str], ...] = (),
    flags: tuple[str, ...] = (),
) -> tuple[int, str] | None:
    """The same for the first text that is left out and holds a pattern."""
    walked = _walked(unit.text, brought_headers.headers(unit), unit.host_headers, defines, flags)
    for start, end in walked.unread:
        if re.search(pattern, walked.code[start:end]):
            line = walked.code.count("\n", 0, start) + 1
            return line, " ".join(walked.code.splitlines()[line - 1].split())
    return None


def kernels(
    unit: TranslationUnit, defines: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> frozenset[str]:
    """The kernels of a unit, with their namespaces."""
    return frozenset(name for each in declarations(unit, defines, flags) for name in each.kernels)


def declarations(
    unit: TranslationUnit, defines: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> tuple[SourceDeclaration, ...]:
    """All of a unit."""
    return _walked(unit.text, brought_headers.headers(unit), unit.host_headers, defines, flags).groups


def template_of(
    unit: TranslationUnit, entry: str, defines: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> tuple[tuple[TemplateParameter, ...], tuple[str, ...], dict[str, bool]]:
    """The parameters of a kernel that is a template, none for another; the classes of the file; all names that it
    declares (True) or defines as macros."""
    walked = _walked(unit.text, brought_headers.headers(unit), unit.host_headers, defines, flags)
    slots = next((each.slots for each in walked.groups if entry in each.kernels and each.slots), ())
    functors = tuple(dict.fromkeys(name for each in walked.groups for name in each.functors))
    names = {name: True for each in walked.groups for name in each.names}
    return slots, functors, names | dict.fromkeys(directives.macros(walked.code), False)


@dataclass(frozen=True, slots=True)
class _Found:
    text: str
    kernels: frozenset[str]
    error: tuple[int, str] | None
    """Line and message of the first of them."""
    undecided: tuple[tuple[int, str], ...]
    """Line and name of each condition, in what is reached or round it, that asks for a macro of no file here."""
    unread: tuple[tuple[int, int], ...]
    kept: tuple[SourceDeclaration, ...]


@dataclass(frozen=True, slots=True)
class _Walked:
    """A text's declarations, whichever of its kernels is asked for."""

    code: str
    groups: tuple[SourceDeclaration, ...]
    frame: frozenset[tuple[int, int]]
    """Heads and ends of namespaces."""
    unread: tuple[tuple[int, int], ...]
    """What `#if` and its like leave out for every architecture."""
    error: tuple[int, str] | None
    distinct: tuple[str, ...]
    """The architectures that do not all leave out the same."""


@functools.lru_cache(maxsize=8)  # `init` asks for a file's kernels, and then for one of them
def _walked(
    text: str, system: tuple[str, ...], host: bool, defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> _Walked:
    code = clang_tree.blanked(text.encode())
    bodies = "##" in code or "<%" in code  # they name what stands in no text, or are bounded by no braces
    found = _Readings(code, bodies)
    readings = clang_tree.Readings(text)
    for arch in _walked(text, system, False, defines, flags).distinct if host else clang_tree.architectures(text):
        try:
            tree = clang_tree.tolerant(text, system, defines, flags, arch, host=host, bodies=bodies)
        except cindex.TranslationUnitLoadError as problem:
            raise RequestError(f"libclang cannot read it: {problem}") from None
        try:
            if host or not readings.repeats(tree):
                found.add(arch, tree)
        finally:
            cursors.forget(tree)
    return found.walked()


class _Readings:
    """A text's declarations over all architectures that are added."""

    def __init__(self, code: str, bodies: bool) -> None:
        """`bodies`: whether the trees have bodies of functions."""
        self.code = code
        self.bodies = bodies
        self.declarations: dict[tuple[int, int], SourceDeclaration] = {}
        self.frame: set[tuple[int, int]] = set()
        self.unread: list[tuple[int, int]] | None = None
        self.error: tuple[int, str] | None = None
        self.distinct: list[str] = []

    def add(self, arch: str, tree: cindex.TranslationUnit) -> None:
        self.distinct.append(arch)
        self.error = self.error or _first_error(tree)
        skipped = cursors.skipped(tree, clang_tree.MAIN)
        walk = DeclarationWalk(self.code, self.frame, None if self.bodies else skipped)
        for each in walk.declarations(tree.cursor):
            known = self.declarations.setdefault((each.start, each.end), each)
            known.names |= each.names
            known.kernels |= each.kernels
            known.host = known.host and each.host
        self.unread = skipped if self.unread is None else blanking.both(self.unread, skipped)

    def walked(self) -> _Walked:
        # Where a macro is `__device__` for some architectures, a method begins elsewhere for each.
        every = self.declarations.values()
        devices = {each.end for each in every if each.method and not each.host}
        kept = (each for each in every if not each.method or (each.host and each.end not in devices))
        return _Walked(
            code=self.code,
            groups=tuple(grouped(kept)),
            frame=frozenset(self.frame),
            unread=tuple(self.unread or ()),
            error=self.error,
            distinct=tuple(self.distinct),
        )


def _first_error(tree: cindex.TranslationUnit) -> tuple[int, str] | None:
    """Line and message of the first error in the text."""
    for each in tree.diagnostics:
        in_text = each.location.file is None or each.location.file.name == clang_tree.MAIN
        if each.severity >= cindex.Diagnostic.Error and in_text:
            return each.location.line, each.spelling
    return None


@functools.lru_cache(maxsize=64)
def _found(
    read: tuple[str, tuple[str, ...], bool],
    entry: str,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    variables: tuple[str, ...],
    without: frozenset[int],
    resolved: bool,
) -> _Found:
    """`without`: where declarations begin that go, whatever reaches them. `resolved`: see `sliced`."""
    data = read[0].encode()
    walked = _walked(*read, defines, flags)
    code, groups, unread = walked.code, walked.groups, walked.unread
    without |= _other_overloads(groups, entry, instance)
    begin = set(directives.words(" ".join([instance or "", *variables, *(value for _, value in defines)])))
    macros = directives.macros(code)
    reached, named = _reached([each for each in groups if each.start not in without], entry, begin, macros)
    if resolved:
        with _parsed(data, walked, reached, read, defines, flags) as tree:
            words = name_resolution.NameResolution(tree, code).words
            among = [each for each in groups if each.start not in without and id(each) in reached]
            reached, named = _reached(among, entry, begin, macros, words)
    declared = tuple(each for each in groups if id(each) in reached)
    kept = [(each.start, each.end) for each in declared]
    gone = _gone(data, walked, reached)
    gone += directives.idle_branches(code, kept, unread, decided=not defines)
    gone += directives.idle_errors(code, kept)
    named |= {word for start, end in walked.frame for word in directives.words(code[start:end])}
    return _Found(
        text=blanking.without(data, code, gone, directives.idle_macros(code, named)),
        kernels=frozenset(name for each in groups for name in each.kernels),
        error=walked.error,
        undecided=tuple(directives.undecided(code, kept, {name for name, _ in defines})),
        unread=unread,
        kept=declared,
    )


def _gone(data: bytes, walked: _Walked, reached: set[int]) -> list[tuple[int, int]]:
    """What the kernel does not reach: declarations, what stands between them, their comments, code of the host's."""
    code = walked.code
    gone = [(each.start, each.end) for each in walked.groups if id(each) not in reached]
    covered = [*walked.frame, *((each.start, each.end) for each in walked.groups), *walked.unread]
    gone += [
        each
        for each in blanking.between(covered, len(data))
        if directives.LINE.sub("", code[slice(*each)]).strip("; \n\t")
    ]
    gone += blanking.comments(code, covered, gone)
    gone += [each for each in walked.unread if "<<<" in code[slice(*each)]]  # host code, whatever is asked for
    return gone


@contextlib.contextmanager
def _parsed(
    data: bytes,
    walked: _Walked,
    reached: set[int],
    read: tuple[str, tuple[str, ...], bool],
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
) -> Iterator[cindex.TranslationUnit]:
    """The tree, with bodies, of what is reached, all of it where it was."""
    gone = [(each.start, each.end) for each in walked.groups if id(each) not in reached]
    text = blanking.blanked(data, walked.code, gone).decode()
    tree = clang_tree.tolerant(text, read[1], defines, flags, clang_tree.architectures(text)[0], host=read[2])
    try:
        yield tree
    finally:
        cursors.forget(tree)


_MOST_ROUNDS = 8
_OF_LIBRARIES = re.compile(
    r"use of undeclared identifier '(?:at|c10|torch|thrust|cub|cv|cute|cutlass|Eigen)'"
    r"|no (?:type|template) named '\w*(?<!_t)(?<!type)' in namespace '(?:std|at|c10|torch|cub)\b"
)
"""Types that are classes: no call with anything else would take a function of theirs for a better one."""


def _without_broken(
    read: tuple[str, tuple[str, ...], bool],
    entry: str,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    variables: tuple[str, ...],
    resolved: bool,
) -> _Found:
    """What is found without declarations in which something is wrong. A name goes as a whole, or not at all: with one
    of several functions gone, a call would take another one. A function for a type of a library that is not read
    goes by itself: whoever has no such type cannot call it."""
    code = clang_tree.blanked(read[0].encode())
    gone: set[int] = set()
    found = _found(read, entry, instance, defines, flags, variables, frozenset(), resolved)
    for _ in range(_MOST_ROUNDS):
        wrong = _errors(found.text, read, defines, flags)
        broken = {
            each.start: [(at, message) for at, message in wrong if each.start <= at < each.end]
            for each in found.kept
            if entry not in each.kernels
        }
        broken = {start: messages for start, messages in broken.items() if messages}
        sound = {name for each in found.kept if each.start not in broken for name in each.names}
        more = {
            each.start
            for each in found.kept
            if each.start in broken
            and (
                (each.member and not _called(each, found.kept))
                or not each.names & (sound | overloads.NAMES)
                or any(
                    _OF_LIBRARIES.match(message) and "{" not in code[each.start : at]  # in what it takes, or is for
                    for at, message in broken[each.start]
                )
            )
        }
        if not more:
            break
        gone |= more
        found = _found(read, entry, instance, defines, flags, variables, frozenset(gone), resolved)
    return found


def _called(method: SourceDeclaration, kept: Iterable[SourceDeclaration]) -> bool:
    """Whether anything but its class names a method."""
    return any(
        method.member in each.words | each.members
        for each in kept
        if each is not method and not method.names <= each.names
    )


def _errors(
    text: str, read: tuple[str, tuple[str, ...], bool], defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> list[tuple[int, str]]:
    """Place, in the text that it is cut out of, and message of what is wrong with a text by itself, whatever it is
    instantiated with. (Lines end sooner than there, and are the same.)"""
    try:
        tree = clang_tree.tolerant(text, read[1], defines, flags, clang_tree.architectures(text)[0], host=read[2])
    except cindex.TranslationUnitLoadError:
        return []
    starts = [0, *itertools.accumulate(len(line) + 1 for line in read[0].encode().split(b"\n"))]
    return [
        (starts[each.location.line - 1] + each.location.column - 1, each.spelling)
        for each in tree.diagnostics
        if each.severity >= cindex.Diagnostic.Error
        and each.location.file is not None
        and each.location.file.name == clang_tree.MAIN
        and not clang_tree.tolerable(each.spelling)
        and not any("in instantiation of" in note.spelling for note in each.children)
    ]


def _other_overloads(groups: Iterable[SourceDeclaration], entry: str, instance: str | None) -> frozenset[int]:
    """Where kernels begin that are called like the one that is meant, and take something else: those that `instance`
    does not name (`scan(int *, int)`), or that are only declared."""
    named = [each for each in groups if entry in each.kernels and each.signature is not None]
    meant = {each.signature for each in named if each.defined}
    if is_overload(instance):
        meant &= {
            each for each in meant if each is not None and _squeezed(f"{entry}({each})") == _squeezed(instance or "")
        }
    return frozenset(each.start for each in named if len(meant) == 1 and each.signature not in meant)


def is_overload(instance: str | None) -> bool:
    """Whether an instance is one of several functions of a name, with the types of its parameters."""
    return instance is not None and instance.endswith(")")


def overloads_of(
    unit: TranslationUnit, entry: str, defines: tuple[tuple[str, str], ...] = (), flags: tuple[str, ...] = ()
) -> list[str]:
    """The kernels of one name, as `instance:` tells them apart; empty for one, or a template."""
    groups = declarations(unit, defines, flags)
    found = [f"{entry}({each.signature})" for each in groups if entry in each.kernels and each.defined]
    return [] if len(set(found)) < 2 else list(dict.fromkeys(found))


def _squeezed(text: str) -> str:
    return re.sub(r"\s*([*&,()<>])\s*", r"\1", text.strip())


def _reached(
    groups: Iterable[SourceDeclaration],
    entry: str,
    begin: set[str],
    macros: dict[str, set[str]],
    words_of: Callable[[SourceDeclaration], set[str]] = operator.attrgetter("words"),
) -> tuple[set[int], set[str]]:
    """Those that stay, by identity, and all that they name."""
    by_name: dict[str, list[SourceDeclaration]] = {}
    for each in groups:
        for name in each.names:
            by_name.setdefault(name, []).append(each)
    reached: set[int] = set()
    seen: set[str] = set()
    words = [*begin]

    def stay(each: SourceDeclaration) -> None:
        if id(each) not in reached:
            reached.add(id(each))
            words.extend(words_of(each) - seen)
            for member in each.members:
                words.extend(macros.get(member, set()) - seen)

    waiting: list[SourceDeclaration] = []
    for each in groups:
        if entry in each.kernels or (each.always and not each.takes & by_name.keys()):
            stay(each)
        elif each.always:
            waiting.append(each)  # until something is reached that it takes: without an object of it, no call
    while words:
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
        for each in waiting:
            if each.takes & by_name.keys() & seen:
                stay(each)
    return reached, seen
