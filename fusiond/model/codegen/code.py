"""Pieces of generated C++.

    x = name("x")                               reads x
    y = cpp("{} * {}", x, 3)                    x * 3, reads x
    half = cpp("__half2float({})", x).needing("cuda_fp16.h")

A template's braces are its places; braces of the text are doubled, as in `str.format`. A plain `str` is text that reads
no declared name (`threadIdx.x`, a parameter): whoever wants a name to be counted passes the Code that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Code(str):
    """Text of C++ that knows which declared names it reads and which headers it needs."""

    __slots__ = ("headers", "reads")

    reads: frozenset[str]
    headers: frozenset[str]

    def __new__(cls, text: str, reads: Iterable[str] = (), headers: Iterable[str] = ()) -> Code:
        made = super().__new__(cls, text)
        made.reads = frozenset(reads)
        made.headers = frozenset(headers)
        return made

    def needing(self, *headers: str) -> Code:
        """The same, with more headers."""
        return Code(self, self.reads, self.headers.union(headers))


_NONE: frozenset[str] = frozenset()

Piece = str | int  #: Code, or plain text that reads nothing


def name(text: str) -> Code:
    """A declared name, as whoever reads it writes it."""
    return Code(text, (text,))


_MARK = "\x1a"  #: No text of C++ holds it


def hole(key: str) -> Code:
    """A place that is filled when the text is complete: a name that is settled later, or that differs between texts."""
    return Code(f"{_MARK}{key}{_MARK}", (key,))


def filled(text: str, value: Callable[[str], str]) -> str:
    """The text with `value(KEY)` in each hole."""
    pieces = text.split(_MARK)
    pieces[1::2] = [value(each) for each in pieces[1::2]]
    return "".join(pieces)


def cpp(template: str, *pieces: Piece) -> Code:
    """The template with the pieces in its places: `{}` in order, or `{0}`. IndexError where one is missing."""
    return Code(template.format(*pieces), *_gathered(pieces))


def joined(separator: str, pieces: Iterable[Piece]) -> Code:
    """The pieces with a separator between them."""
    given = tuple(pieces)
    return Code(separator.join(str(each) for each in given), *_gathered(given))


def call(function: str, *arguments: Piece) -> Code:
    return cpp("{}({})", function, joined(", ", arguments))


def bare(value: Code) -> Code:
    """Without the parentheses that enclose all of it."""
    if not (value.startswith("(") and value.endswith(")")):
        return value
    depth = 0
    for place, letter in enumerate(value):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and place < len(value) - 1:
            return value
    return Code(value[1:-1], value.reads, value.headers)


def _gathered(pieces: Iterable[Piece]) -> tuple[frozenset[str], frozenset[str]]:
    reads = headers = _NONE
    for each in pieces:
        if isinstance(each, Code):  # most read nothing: no set is made for them
            reads = reads | each.reads if each.reads else reads
            headers = headers | each.headers if each.headers else headers
    return reads, headers
