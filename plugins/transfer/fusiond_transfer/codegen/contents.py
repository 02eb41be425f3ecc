"""Memory of the simulator: ranges of elements, each of a named value.

    x[0:512] holds elements 0 to 511 of `input x`; y, of which two kernels made a half each, holds 512 of the one's
    result and then 512 of the other's

A kernel makes new values out of what it reads, whose names are hashes of that. What works row by row makes row r of
row r: so its result is named for each range of rows over which its operands are of one value each, and comes out alike
whether it is made at once or in chunks.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from fusiond.model.keys import text_key

POISON = "poison"


class Elements(NamedTuple):
    """Elements of a value, from the first to before the end."""

    of: str
    first: int
    end: int


Content: TypeAlias = tuple[Elements, ...]  #: What lies side by side; neighbours that continue each other are one


def joined(parts: Iterable[Elements]) -> Content:
    found: list[Elements] = []
    for each in parts:
        if found and found[-1].of == each.of and found[-1].end == each.first:
            found[-1] = Elements(each.of, found[-1].first, each.end)
        else:
            found.append(each)
    return tuple(found)


def sliced(content: Content, first: int, end: int) -> Content:
    """Some elements of a content, counted from its own first; poison beyond its end."""
    found, at = [], 0
    for each in content:
        size = each.end - each.first
        a, b = max(first, at), min(end, at + size)
        if a < b:
            found.append(Elements(each.of, each.first + a - at, each.first + b - at))
        at += size
    if max(first, at) < end:
        found.append(poison(max(first, at), end)[0])
    return joined(found)


def put(content: Content, at: int, new: Content) -> Content:
    """A content with others in the place of some elements, from `at` on."""
    end = at + length(new)
    return joined((*sliced(content, 0, at), *new, *sliced(content, end, max(end, length(content)))))


def length(content: Content) -> int:
    return sum(each.end - each.first for each in content)


def poison(first: int, end: int) -> Content:
    return (Elements(POISON, first, end),)


def poisoned(content: Content) -> bool:
    return any(each.of == POISON for each in content)


def made(identity: str, operands: Sequence[Content], lengths: Sequence[int]) -> list[Content]:
    """What a kernel writes that reads all of its operands; `lengths` are those of its outputs."""
    value = _hashed(identity, operands)
    return [(Elements(f"{value}.{position}", 0, int(each)),) for position, each in enumerate(lengths)]


def made_by_rows(
    identity: str,
    split: Sequence[tuple[Content, int]],
    whole: Sequence[object],
    widths: Sequence[int],
    rows: tuple[int, int],
) -> list[Content]:
    """What a kernel writes in some rows. `split`: what it reads of these rows, and the elements of a row; `whole`: what
    it reads all of; `widths`: elements of a row of each output."""
    first, end = rows
    bounds = {first, end}
    for content, width in split:
        at = first * width
        for each in content:
            bounds |= {at // width, -(-at // width)}
            at += each.end - each.first
    found: list[list[Elements]] = [[] for _ in widths]
    for a, b in itertools.pairwise(sorted(each for each in bounds if first <= each <= end)):
        seen = [tuple(_shifts(content, width, first, a, b)) for content, width in split]
        value = _hashed(identity, [seen, whole])
        for position, width in enumerate(widths):
            found[position].append(Elements(f"{value}.{position}", a * width, b * width))
    return [joined(each) for each in found]


def _shifts(content: Content, width: int, first: int, a: int, b: int) -> Iterator[tuple[object, ...]]:
    """Which values rows `a` to `b` of an operand are of, and how far they are shifted; where a row is of several, also
    from which element on."""
    own = sliced(content, (a - first) * width, (b - first) * width)
    at = a * width
    for each in own:
        shift = "poison" if each.of == POISON else each.first - at
        yield (each.of, shift) if len(own) == 1 else (each.of, shift, at)
        at += each.end - each.first


def _hashed(identity: str, operands: Sequence[object]) -> str:
    return text_key(f"{identity}{operands!r}")[:24]
