"""Preprocessor directives of a file: conditions, macros, `#error`."""

import functools
import re
from collections.abc import Collection, Iterator

WORD = re.compile(r"(?<!\w)(?<!\d\.)[A-Za-z_]\w*")
_CONDITION = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*(if|ifdef|ifndef|elif|else|endif)\b((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE
)
_PREDEFINED = frozenset({"defined", "CUDART_VERSION", "CUDA_VERSION"})  #: What every text knows, as nvcc has it
_OF_OTHERS = re.compile(r"(USE_)?(HIP|ROCM)(_|$)")  #: What compilers for other processors know


def undecided(code: str, kept: Collection[tuple[int, int]], known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of what conditions in and round the places of `kept` ask for, and no file here defines."""
    known = known | macros(code).keys() | _PREDEFINED
    open_: list[tuple[int, list[tuple[int, str]]]] = []
    for each in _CONDITION.finditer(code):
        asks = [
            (each.start(), name)
            for name in WORD.findall(each.group(2))
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


def without_idle_conditions(text: str, code: str) -> str:
    """A text without the conditions that decide nothing any more: all between `#if` and `#endif` is blank. `code` is
    the text without comments."""
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
            if open_ and any(bare[each].strip() for each in here):
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


_DEFINITION = re.compile(r"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)


def idle_macros(code: str, named: set[str]) -> Iterator[tuple[int, int]]:
    """The definitions of macros that neither what stays names nor a condition: `#define RUN k<<<8, 256>>>(p)` is the
    host's. Where names are put together (`##`), only those that launch kernels are known not to be a kernel's."""
    texts = macros(code)
    waiting = [*named, *(name for each in _CONDITION.finditer(code) for name in WORD.findall(each.group(2)))]
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


LINE = re.compile(r"^[ \t]*(?:#|%:)(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
KEPT = re.compile(
    rb"^[ \t]*(?:#|%:)[ \t]*(?:define|undef|if|ifdef|ifndef|elif|else|endif)\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE
)
"""Those that stay where all round them goes."""
