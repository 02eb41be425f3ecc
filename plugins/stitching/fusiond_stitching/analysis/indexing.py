"""Index algebra: whole-number expressions with known bounds, kept simple enough to read in generated code.

    Index    := constant + coefficient * Atom + ...       a linear form; the atoms differ, largest coefficients first
    Atom     := Symbol | Quotient(Index, d) | Remainder(Index, d)

A Symbol is a variable of the generated code with its least and greatest value. Quotients and remainders are of indices
that are never negative (where their bounds are too wide to show that, the condition they stand behind does), so that
C's `/` and `%` say the same as the floor. What `linear` and `delinear` make of each other (a reshape is one after the
other) cancels out: `d * (x / d) + x % d` becomes `x` again, and `(10 * r + c) / 10` is `r` where 0 <= c < 10.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond_stitching.frontend.graph import HloInstruction, HloModule


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable of the generated code; `low` and `high` are both possible values."""

    name: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Quotient:
    of: Index
    divisor: int

    @property
    def low(self) -> int:
        return max(0, self.of.low) // self.divisor

    @property
    def high(self) -> int:
        return max(0, self.of.high) // self.divisor


@dataclass(frozen=True, slots=True)
class Remainder:
    of: Index
    divisor: int

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return min(self.divisor - 1, self.of.high)


Atom: TypeAlias = Symbol | Quotient | Remainder


@dataclass(frozen=True, slots=True)
class Index:
    """`constant` + the sum of coefficient * atom over `terms` (no coefficient is 0). `low` and `high` bound it."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int
    low: int
    high: int

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other, self.low + other, self.high + other)
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        return _sum([*self.terms, *other.terms], self.constant + other.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1 if isinstance(other, Index) else -other)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return number(0)
        if factor == 1:
            return self
        low, high = sorted((self.low * factor, self.high * factor))
        return Index(tuple((atom, each * factor) for atom, each in self.terms), self.constant * factor, low, high)

    def __floordiv__(self, divisor: int) -> Index:
        """The floor of self / divisor. ValueError unless the divisor is positive."""
        return _divided(self, divisor)[0]

    def __mod__(self, divisor: int) -> Index:
        """self - divisor * (self // divisor); ValueError as for `//`."""
        return _divided(self, divisor)[1]

    @property
    def fixed(self) -> int | None:
        """Its value where that is known."""
        return self.constant if not self.terms else None

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all variables in it."""
        found: set[str] = set()
        for atom, _ in self.terms:
            found |= {atom.name} if isinstance(atom, Symbol) else atom.of.symbols
        return frozenset(found)


def number(value: int) -> Index:
    return Index((), value, value, value)


def symbol(name: str, count: int, *, low: int = 0) -> Index:
    """A variable that takes the `count` values from `low` on; a number where there is only one."""
    return number(low) if count <= 1 else _of(Symbol(name, low, low + count - 1))


def _of(atom: Atom, coefficient: int = 1) -> Index:
    if atom.low == atom.high:
        return number(atom.low * coefficient)
    low, high = sorted((atom.low * coefficient, atom.high * coefficient))
    return Index(((atom, coefficient),), 0, low, high)


def _sum(terms: Sequence[tuple[Atom, int]], constant: int) -> Index:
    collected: dict[Atom, int] = {}
    for atom, coefficient in terms:
        collected[atom] = collected.get(atom, 0) + coefficient
    # d * (x / d) + x % d is x.
    for atom in [each for each in collected if isinstance(each, Remainder)]:
        coefficient = collected[atom]
        whole = _quotient_atom(atom.of, atom.divisor)
        if coefficient and whole is not None and collected.get(whole, 0) == coefficient * atom.divisor:
            del collected[atom], collected[whole]
            rest = [(each, count) for each, count in collected.items() if count]
            restored = atom.of * coefficient
            return _sum([*rest, *restored.terms], constant + restored.constant)
    kept = [(atom, count) for atom, count in collected.items() if count]
    if len(kept) > 1:
        kept.sort(key=lambda each: (-abs(each[1]), each[0].name if isinstance(each[0], Symbol) else repr(each[0])))
    low = constant + sum(atom.low * count if count > 0 else atom.high * count for atom, count in kept)
    high = constant + sum(atom.high * count if count > 0 else atom.low * count for atom, count in kept)
    return Index(tuple(kept), constant, low, high)


def _quotient_atom(of: Index, divisor: int) -> Atom | None:
    """The atom that `of // divisor` would be, if it is one."""
    quotient = _divided(of, divisor)[0]
    if len(quotient.terms) == 1 and quotient.constant == 0 and quotient.terms[0][1] == 1:
        return quotient.terms[0][0]
    return None


def _divided(index: Index, divisor: int) -> tuple[Index, Index]:
    """(floor of index / divisor, what remains)."""
    if divisor < 1:
        raise ValueError(f"no division by {divisor}")
    if divisor == 1:
        return index, number(0)
    whole: list[tuple[Atom, int]] = []
    part: list[tuple[Atom, int]] = []
    for atom, coefficient in index.terms:
        if coefficient % divisor == 0:
            whole.append((atom, coefficient // divisor))
        else:
            part.append((atom, coefficient))
    quotient = _sum(whole, index.constant // divisor)
    rest = _sum(part, index.constant % divisor)
    if rest.low < 0:  # the multiples of the divisor were what kept it from being negative
        quotient, rest = number(0), index
    if rest.high < divisor:
        return quotient, rest
    common, smaller, extra = _common(rest, divisor)
    by = divisor // common
    if by == 1:
        return quotient + smaller, extra
    if smaller.high < by:
        return quotient, smaller * common + extra
    only = smaller.terms[0][0] if len(smaller.terms) == 1 and smaller.constant == 0 else None
    single = only if only is not None and smaller.terms[0][1] == 1 else None
    if isinstance(single, Quotient):
        above = single.of // (single.divisor * by)
    elif isinstance(single, Remainder) and single.divisor % by == 0:  # (x % (a * b)) / b is (x / b) % a
        above = (single.of // by) % (single.divisor // by)
    else:
        above = _of(Quotient(smaller, by))
    if isinstance(single, Remainder) and single.divisor % by == 0:
        below = single.of % by
    else:
        below = _of(Remainder(smaller, by))
    return quotient + above, below * common + extra


def _common(rest: Index, divisor: int) -> tuple[int, Index, Index]:
    """(g, a, e): rest is g * a + e, g divides the divisor and 0 <= e < g, so that rest / d is a / (d / g).
    The smallest terms make e; g is 1 where nothing else will do."""
    for cut in range(1, len(rest.terms) + 1):
        common = math.gcd(divisor, *(coefficient for _, coefficient in rest.terms[:cut]))
        if common == 1:
            continue
        extra = _sum(rest.terms[cut:], rest.constant % common)
        smaller = _sum([(atom, each // common) for atom, each in rest.terms[:cut]], rest.constant // common)
        if smaller.low >= 0 and extra.low >= 0 and extra.high < common:
            return common, smaller, extra
    return 1, rest, number(0)


# --- shapes ---------------------------------------------------------------------------------------------


def strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    found: list[int] = []
    step = 1
    for size in reversed(dims):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def linear(indices: Sequence[Index], dims: Sequence[int]) -> Index:
    """The row-major offset, in elements, of an element of a tensor."""
    total = number(0)
    for index, step in zip(indices, strides(dims), strict=True):
        total = total + index * step
    return total


def delinear(offset: Index, dims: Sequence[int]) -> tuple[Index, ...]:
    """The indices of the element at a row-major offset below the product of `dims`."""
    found: list[Index] = []
    rest = offset
    for step in strides(dims):
        if step <= 1:
            found.append(rest)
            rest = number(0)
        else:
            found.append(rest // step)
            rest = rest % step
    return tuple(number(0) if size == 1 else index for index, size in zip(found, dims, strict=True))


# --- what an instruction reads --------------------------------------------------------------------------


def read_at(
    module: HloModule, node: HloInstruction, indices: tuple[Index, ...]
) -> Iterator[tuple[str, tuple[Index, ...] | None]]:
    """What an instruction reads for its own element at `indices`, and where: of a concatenation whose part is known,
    that part alone. None for a place that is more than index arithmetic."""
    if node.opcode != "concatenate":
        for operand in module.operands(node):
            yield operand.name, operand_index(node, operand, indices)
        return
    at, begin = node.attributes["dimension"], 0
    for operand in module.operands(node):
        end = begin + operand.dims[at]
        if indices[at].low >= begin and indices[at].high < end:
            yield operand.name, (*indices[:at], indices[at] - begin, *indices[at + 1 :])
        elif indices[at].high >= begin and indices[at].low < end:
            yield operand.name, None
        begin = end


def operand_index(
    node: HloInstruction, operand: HloInstruction, indices: tuple[Index, ...]
) -> tuple[Index, ...] | None:
    """Where an instruction reads its operand for its own element at `indices`; None for what is more than index
    arithmetic."""
    attributes = node.attributes
    if node.elementwise:
        return indices if operand.dims else ()
    match node.opcode:
        case "reshape":
            return delinear(linear(indices, node.dims), operand.dims)
        case "broadcast":
            return tuple(indices[at] for at in attributes["dimensions"])
        case "transpose":
            order = attributes["dimensions"]
            return tuple(indices[order.index(at)] for at in range(len(order)))
        case "slice":
            runs = zip(indices, attributes["starts"], attributes["strides"], strict=True)
            return tuple(index * step + start for index, start, step in runs)
        case "reverse":
            turned = attributes["dimensions"]
            return tuple(
                index * -1 + (size - 1) if at in turned else index
                for at, (index, size) in enumerate(zip(indices, node.dims, strict=True))
            )
    return None
