"""Which places of a text become blank when a kernel is cut out of it (slicing.py), and the text without them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Iterable, Iterator

from fusiond_hfuse.frontend import directives


def between(covered: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """What lies between these places: text that clang made nothing of, an explicit instantiation, a variable of a type
    that is not known."""
    at = 0
    for first, last in sorted(covered):
        if first > at:
            yield at, first
        at = max(at, last)
    if end > at:
        yield at, end


def comments(
    code: str, covered: Iterable[tuple[int, int]], gone: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What is said before a declaration that goes; what stands first in a file, its licence, stays."""
    begins = {start for start, _ in gone}
    places = set(gone)
    for start, end in between(covered, len(code)):
        if end not in begins or (start, end) in places:
            continue
        if not start:  # what is set apart by an empty line is said of the file
            start = max(code.rfind("\n\n", 0, end), 0)
        yield start, end


def both(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What both leave out."""
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a in first for b in second)
    return [(start, end) for start, end in pairs if start < end]


def without(data: bytes, code: str, gone: Iterable[tuple[int, int]], idle: Iterable[tuple[int, int]]) -> str:
    """The text with these places blank, but for preprocessor directives; those of `idle` go too. No line ends in
    blanks."""
    found = blanked(data, code, gone)
    for start, end in idle:
        found[start:end] = re.sub(rb"[^\n]", b" ", data[start:end])
    return re.sub(rb"[ \t]+(?=\n)", b"", bytes(found)).decode()


def blanked(data: bytes, code: str, gone: Iterable[tuple[int, int]]) -> bytearray:
    """The text with these places blank, but for preprocessor directives, all that stays where it was."""
    kept = [each.span() for each in directives.KEPT.finditer(code.encode("latin-1", "replace"))]
    begins, ends = [each[0] for each in kept], [each[1] for each in kept]
    found = bytearray(data)
    for start, end in gone:
        at = start
        between = kept[bisect.bisect_right(ends, start) : bisect.bisect_left(begins, end)]
        for first, last in [*between, (end, end)]:
            found[at:first] = re.sub(rb"[^\n]", b" ", data[at:first])
            at = max(at, last)
    return found
