"""Whole numbers that know how they follow from the sizes of a workload.

A strategy computes grids, lengths and scalars with ordinary arithmetic. Where the sizes that it starts from are
Extents, so are the results, and the Program that holds them can be moved to other sizes (`Program.at`) without it:

    n = size("hist.n", 60_000)
    ceil_div(4 * n, 256)              # 938, and "ceil_div(4 * hist.n, 256)"

An Extent is an int, so whatever runs a Program needs to know nothing of this. Two things an int can do lose the
expression or, worse, keep the wrong one: `min` and `max` hand out one of their arguments (use `least` and `most`), and
an `if` on a value chooses for one size only. Together with a float it is a plain number.
`fusiond.testing.strategies` compares `Program.at` with what a strategy emits at those sizes.

Only the standard library is imported here: bundles and exports need this file where nothing can be installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Terms: TypeAlias = tuple[tuple[str, int], ...]
"""Atom (a text that binds tighter than any operator) -> coefficient, in the order in which they came in."""


class Extent(int):
    """An int with an expression (of `language.expressions`), as a sum of multiples of atoms: so offsets of many equal
    buffers stay short texts."""

    terms: Terms
    constant: int

    def __new__(cls, value: int, terms: Terms, constant: int = 0) -> Extent:
        made = super().__new__(cls, value)
        made.terms = terms
        made.constant = constant
        return made

    @classmethod
    def of(cls, value: int, text: str) -> Extent:
        """The value of an expression that is known as text."""
        return cls(value, ((text if text.replace("_", "a").replace(".", "a").isalnum() else f"({text})", 1),))

    @property
    def text(self) -> str:
        """The expression."""
        parts: list[str] = []
        for atom, count in self.terms:
            sign = ("- " if count < 0 else "+ ") if parts else ("-" if count < 0 else "")
            parts.append(f"{sign}{atom if abs(count) == 1 else f'{abs(count)} * {atom}'}")
        if self.constant:
            parts.append(f"{'-' if self.constant < 0 else '+'} {abs(self.constant)}")
        text = " ".join(parts)
        return text[1:-1] if len(self.terms) == 1 and self._is_atom() and text.startswith("(") else text

    def _is_atom(self) -> bool:
        return not self.constant and len(self.terms) == 1 and self.terms[0][1] == 1

    @property
    def atom(self) -> str:
        """The expression as an operand."""
        return self.terms[0][0] if self._is_atom() else f"({self.text})"

    def __reduce__(self) -> tuple[type[Extent], tuple[int, Terms, int]]:
        return type(self), (int(self), self.terms, self.constant)

    # --- arithmetic ---

    def __add__(self, other: int) -> int:
        return _sum(self, other) if isinstance(other, int) else NotImplemented

    def __radd__(self, other: int) -> int:
        return _sum(other, self) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: int) -> int:
        return _sum(self, -other) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return _sum(other, -self) if isinstance(other, int) else NotImplemented

    def __neg__(self) -> int:
        return _scaled(self, -1)

    def __pos__(self) -> int:
        return self

    def __mul__(self, other: int) -> int:
        if not isinstance(other, Extent):
            return _scaled(self, int(other)) if isinstance(other, int) else NotImplemented
        return Extent(int(self) * int(other), ((f"({self.atom} * {other.atom})", 1),))

    def __rmul__(self, other: int) -> int:
        return self * other if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: int) -> int:
        return _operation("//", self, other) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        return _operation("//", other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: int) -> int:
        return _operation("%", self, other) if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: int) -> int:
        return _operation("%", other, self) if isinstance(other, int) else NotImplemented


def size(name: str, value: int) -> int:
    """A size of a workload under the name by which a job gives it."""
    return Extent(value, ((name, 1),))


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    value = -(-int(a) // int(b))
    return _call("ceil_div", (a, b), value) if _among((a, b)) else value


def quotient(a: int, b: int) -> int:
    """a / b, which must be a whole number."""
    return _operation("/", a, b) if _among((a, b)) else int(a) // int(b)


def least(*values: int) -> int:
    """The smallest."""
    return _extreme("min", values)


def most(*values: int) -> int:
    """The largest."""
    return _extreme("max", values)


def text_of(value: int) -> str:
    """A value as an expression: an Extent's own, else its digits."""
    return value.text if isinstance(value, Extent) else str(value)


def _atom_of(value: int) -> str:
    return value.atom if isinstance(value, Extent) else str(value) if value >= 0 else f"({value})"


def _among(values: Iterable[int]) -> bool:
    return any(isinstance(each, Extent) for each in values)


def _sum(a: int, b: int) -> int:
    counts: dict[str, int] = {}
    constant = 0
    for each in (a, b):
        if isinstance(each, Extent):
            constant += each.constant
            for atom, count in each.terms:
                counts[atom] = counts.get(atom, 0) + count
        else:
            constant += int(each)
    terms = tuple((atom, count) for atom, count in counts.items() if count)
    value = int(a) + int(b)
    return Extent(value, terms, constant) if terms else value


def _scaled(value: Extent, factor: int) -> int:
    if factor == 0:
        return 0
    terms = tuple((atom, count * factor) for atom, count in value.terms)
    return Extent(int(value) * factor, terms, value.constant * factor)


def _operation(operator: str, a: int, b: int) -> int:
    value = int(a) % int(b) if operator == "%" else int(a) // int(b)
    if operator in ("/", "//") and not isinstance(b, Extent) and b == 1:
        return a
    return Extent(value, ((f"({_atom_of(a)} {operator} {_atom_of(b)})", 1),))


def _call(function: str, values: Iterable[int], value: int) -> int:
    return Extent(value, ((f"{function}({', '.join(text_of(each) for each in values)})", 1),))


def _extreme(function: str, values: tuple[int, ...]) -> int:
    """Of equal expressions one is enough."""
    distinct = {text_of(each): each for each in values}
    value = min(map(int, values)) if function == "min" else max(map(int, values))
    if len(distinct) == 1:
        return values[0]
    return _call(function, distinct.values(), value) if _among(values) else value
