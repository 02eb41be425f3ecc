"""Where a block's elements begin and end, as an integer function of its number b, 0 <= b < blocks.

    Digit   (b % end) // stride: what a chunk calls a coordinate. `stride` divides `end`, unless the digit is the `top`
            one: then `end` is the number of blocks, and the digit is b // stride
    Form    constant + sum of coefficient * digit

A digit can be cut in two at every number that its stride divides and that divides its end (at the top: that its stride
divides): (b % end) // s = (b % p) // s + p/s * (b % end) // p. So forms that were cut differently can be compared, as
long as the numbers divide each other, which they do in every mixed-radix numbering. `low` and `high` let each digit
take every value whatever the others are: bounds that hold always, and that are reached where the digits do not overlap
and the number of blocks is the product of their ranges.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Digit(NamedTuple):
    """See the module's docstring."""

    stride: int
    end: int
    top: bool

    @property
    def most(self) -> int:
        """Its largest value."""
        return (self.end - 1) // self.stride

    def cut(self, at: int) -> tuple[Digit, Digit] | None:
        """(the part below `at`, the part from `at` up), or None where the digit cannot be cut there."""
        if not self.stride < at < self.end or at % self.stride or (self.end % at and not self.top):
            return None
        return Digit(self.stride, at, False), Digit(at, self.end, self.top)


class Form(NamedTuple):
    """See the module's docstring. `terms` are (digit, coefficient) in ascending order, as `form` leaves them."""

    constant: int
    terms: tuple[tuple[Digit, int], ...] = ()

    @property
    def low(self) -> int:
        """A lower bound over all blocks."""
        return self.constant + sum(min(0, coefficient * digit.most) for digit, coefficient in self.terms)

    @property
    def high(self) -> int:
        """An upper bound over all blocks, reached like any value (not one more)."""
        return self.constant + sum(max(0, coefficient * digit.most) for digit, coefficient in self.terms)

    def at(self, block: int) -> int:
        """The value for one block."""
        return self.constant + sum(factor * ((block % each.end) // each.stride) for each, factor in self.terms)

    def plus(self, other: Form | int, factor: int = 1) -> Form:
        """self + factor * other."""
        if isinstance(other, int):
            return Form(self.constant + factor * other, self.terms)
        if not other.terms:
            return Form(self.constant + factor * other.constant, self.terms)
        return _plus(self, other, factor)

    def times(self, factor: int) -> Form:
        return Form(self.constant * factor, tuple((digit, factor * each) for digit, each in self.terms if factor))


ZERO = Form(0)


def coordinate(stride: int, parts: int, blocks: int) -> Form:
    """(b // stride) % parts."""
    if parts == 1 or stride >= blocks:
        return ZERO
    end = stride * parts
    digit = Digit(stride, blocks, True) if end >= blocks else Digit(stride, end, False)
    return Form(0, ((digit, 1),))


def number(blocks: int) -> Form:
    """b itself."""
    return coordinate(1, blocks, blocks)


@functools.lru_cache(maxsize=1 << 16)
def _plus(first: Form, second: Form, factor: int) -> Form:
    terms = (*first.terms, *((digit, factor * each) for digit, each in second.terms))
    return form(first.constant + factor * second.constant, terms)


def form(constant: int, terms: Iterable[tuple[Digit, int]]) -> Form:
    """The one way to write constant + terms: no digit twice, none that can be told as two others that are there, none
    with coefficient 0, and neighbours that together are one digit are one."""
    summed: dict[Digit, int] = {}
    for digit, coefficient in _aligned(terms):
        summed[digit] = summed.get(digit, 0) + coefficient
    fused: list[tuple[Digit, int]] = []
    for digit, coefficient in sorted(summed.items()):
        if not coefficient:
            continue
        if fused:
            below, factor = fused[-1]
            if below.end == digit.stride and not below.top and coefficient == factor * (below.end // below.stride):
                fused[-1] = (Digit(below.stride, digit.end, digit.top), factor)
                continue
        fused.append((digit, coefficient))
    return Form(constant, tuple(fused))


def _aligned(terms: Iterable[tuple[Digit, int]]) -> Iterator[tuple[Digit, int]]:
    """The same terms, cut where others begin and end."""
    given = list(terms)
    cuts = sorted({at for digit, _ in given for at in (digit.stride, digit.end)})
    for digit, coefficient in given:
        rest, factor = digit, coefficient
        for at in cuts:
            parts = rest.cut(at)
            if parts is not None:
                below, above = parts
                yield below, factor
                rest, factor = above, factor * (at // below.stride)
        yield rest, factor


@functools.lru_cache(maxsize=1 << 16)
def divided(dividend: Form, divisor: int) -> tuple[Form, Form]:
    """(quotient, rest): dividend = divisor * quotient + rest, rest.low in 0..divisor-1. The quotient is
    floor(dividend / divisor) for all blocks where rest.high < divisor, too."""
    quotient: list[tuple[Digit, int]] = []
    rest: list[tuple[Digit, int]] = []
    for digit, coefficient in dividend.terms:
        period = divisor // math.gcd(coefficient, divisor)
        if period == 1:
            quotient.append((digit, coefficient // divisor))
            continue
        parts = digit.cut(digit.stride * period)
        if parts is None:
            rest.append((digit, coefficient))
            continue
        below, above = parts
        rest.append((below, coefficient))
        quotient.append((above, coefficient * period // divisor))
    left = form(dividend.constant, rest)
    whole = left.low // divisor
    return form(whole, quotient), left.plus(-whole * divisor)


def lower(first: Form, second: Form) -> Form:
    """A form that is nowhere above either: what they have in common, and the least of the rest."""
    shared, mine, yours = _common(first, second)
    return shared.plus(min(mine.low, yours.low))


def upper(first: Form, second: Form) -> Form:
    """A form that is nowhere below either."""
    shared, mine, yours = _common(first, second)
    return shared.plus(max(mine.high, yours.high))


def _common(first: Form, second: Form) -> tuple[Form, Form, Form]:
    """(shared terms, first without them, second without them)."""
    cut = _aligned([*first.terms, *((digit, 0) for digit, _ in second.terms)])
    other = _aligned([*second.terms, *((digit, 0) for digit, _ in first.terms)])
    theirs = {(digit, each) for digit, each in other if each}
    shared = form(0, [(digit, each) for digit, each in cut if each and (digit, each) in theirs])
    return shared, first.plus(shared, -1), second.plus(shared, -1)
