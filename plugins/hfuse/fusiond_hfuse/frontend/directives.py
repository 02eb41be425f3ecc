"""What a file's preprocessor directives decide and name: conditions, macros, `#error`."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator

WORD = re.compile(r"(?<!\w)(?<!\d\.)[A-Za-z_]\w*")
_CONDITION = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*(if|ifdef|ifndef|elif|else|endif)\b((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE
)
_ERROR = re.compile(r"^[ \t]*(?:#|%:)[ \t]*error\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def idle_errors(code: str, kept: Collection[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The `#error`s in conditions of which nothing stays: what they complain of is the host's (`no such platform`).
    What is said of an architecture counts for the kernel."""
    open_: list[tuple[int, str]] = []
    errors = [each.span() for each in _ERROR.finditer(code)]
    for each in _CONDITION.finditer(code):
        if each.group(1).startswith("if"):
            open_.append((each.start(), each.group(2)))
        elif open_ and each.group(1) != "endif":
            open_[-1] = (open_[-1][0], open_[-1][1] + each.group(2))
        elif open_:
            start, asks = open_.pop()
            if "__CUDA" in asks or any(first < each.end() and start < last for first, last in kept):
                continue
            yield from (span for span in errors if start < span[0] < each.end())


_CALLED = re.compile(r"(?<!\w)([A-Za-z_]\w*)[ \t]*\(")
_ASKING = frozenset({"defined", "__has_include", "__has_attribute", "__has_builtin", "__has_feature", "__has_extension",
                     "__has_cpp_attribute"})  # fmt: skip


def idle_branches(
    code: str, kept: Collection[tuple[int, int]], unread: Collection[tuple[int, int]], *, decided: bool
) -> Iterator[tuple[int, int]]:
    """Of what is not read, that which stands in conditions that hold nothing that stays: another compiler would read
    it, without what it needs. Where macros may come to have other values (not `decided`), only that of conditions
    that call a macro of no file here: `#if LIBRARY_AT_LEAST(3, 4)`."""
    known = macros(code).keys() | _ASKING
    open_: list[tuple[int, bool]] = []
    for each in _CONDITION.finditer(code):
        calls = any(name not in known for name in _CALLED.findall(each.group(2)))
        if each.group(1).startswith("if"):
            open_.append((each.start(), calls))
        elif open_ and each.group(1) != "endif":
            open_[-1] = (open_[-1][0], open_[-1][1] or calls)
        elif open_:
            start, calls = open_.pop()
            if (calls or decided) and not any(first < each.end() and start < last for first, last in kept):
                yield from ((first, last) for first, last in unread if start <= first and last <= each.end())


_PREDEFINED = frozenset({"defined", "CUDART_VERSION", "CUDA_VERSION"})
"""What every text knows, as nvcc has it."""
_OF_OTHERS = re.compile(r"(USE_)?(HIP|ROCM)(_|$)")
"""What compilers for other processors know."""


def undecided(code: str, kept: Collection[tuple[int, int]], known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of what conditions in and round the places of `kept` ask for, and no file here defines."""
    known = known | macros(code).keys() | _PREDEFINED
    open_: list[tuple[int, list[tuple[int, str]]]] = []
    for each in _CONDITION.finditer(code):
        asks = [
            (each.start(), name)
            for name in words(each.group(2))
            if name not in known and not name.startswith("_") and not _OF_OTHERS.match(name)
        ]
        if each.group(1).startswith("if"):
            open_.append((each.start(), asks))
        elif open_ and each.group(1) == "endif":
            start, names = open_.pop()
            if names and any(first < each.end() and start < last for first, last in kept):
                for place, name in names:
                    yield code.count("\n", 0, place) + 1, name
        elif open_:
            open_[-1][1].extend(asks)


def without_idle_conditions(text: str, code: str, included: Collection[int]) -> str:
    """A text without the conditions that decide nothing any more: all between `#if` and `#endif` is blank. `code` is
    the text without comments, `included` are the lines, counted from 0, that are blank and stand for more than a
    header of CUDA's or C++'s."""
    lines = text.split("\n")
    bare = code.split("\n")
    open_: list[tuple[list[int], bool]] = []  # the lines of its directives, whether anything stands between them
    number = 0
    while number < len(bare):
        first = number
        while bare[number].endswith("\\") and number + 1 < len(bare):
            number += 1
        number += 1
        asks = _CONDITION.match(bare[first])
        here = list(range(first, number))
        if asks is None:
            if open_ and (first in included or any(bare[each].strip() for each in here)):
                open_[-1] = (open_[-1][0], True)
        elif asks.group(1).startswith("if"):
            open_.append((here, False))
        elif open_:
            open_[-1][0].extend(here)
            if asks.group(1) == "endif":
                of_it, full = open_.pop()
                if full and open_:
                    open_[-1] = (open_[-1][0], True)
                for each in () if full else of_it:
                    lines[each] = ""
    return "\n".join(lines)


@functools.lru_cache(maxsize=8)
def macros(code: str) -> dict[str, set[str]]:
    """The words in each macro's text."""
    found: dict[str, set[str]] = {}
    for match in _DEFINITION.finditer(code):
        found.setdefault(match.group(1), set()).update(WORD.findall(match.group(2)))
    return found


@functools.lru_cache(maxsize=8)
def pasting(code: str) -> frozenset[str]:
    """The macros that put names together (`##`), themselves or by other macros."""
    found = {each.group(1) for each in _DEFINITION.finditer(code) if "##" in each.group(2)}
    texts = macros(code)
    while more := {name for name, words in texts.items() if words & found} - found:
        found |= more
    return frozenset(found)


_DEFINITION = re.compile(r"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)


def idle_macros(code: str, named: set[str]) -> Iterator[tuple[int, int]]:
    """The definitions of macros that neither what stays names nor a condition: `#define RUN k<<<8, 256>>>(p)` is the
    host's. Where names are put together (`##`), only those that launch kernels are known not to be a kernel's."""
    texts = macros(code)
    waiting = [*named, *(name for each in _CONDITION.finditer(code) for name in words(each.group(2)))]
    used: set[str] = set()
    while waiting:
        word = waiting.pop()
        if word not in used:
            used.add(word)
            waiting.extend(texts.get(word, ()))
    pasted = "##" in code
    for each in _DEFINITION.finditer(code):
        if each.group(1) not in used and (not pasted or "<<<" in each.group()):
            yield each.span()


def words(text: str) -> list[str]:
    """The names in a text."""
    return WORD.findall(text)


LINE = re.compile(r"^[ \t]*(?:#|%:)(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
KEPT = re.compile(
    rb"^[ \t]*(?:#|%:)[ \t]*(?:define|undef|if|ifdef|ifndef|elif|else|endif)\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE
)
"""Those that stay where all round them goes."""
