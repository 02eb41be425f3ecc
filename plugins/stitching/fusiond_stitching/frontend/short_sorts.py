"""`sort` of short rows by counting: an element's place is how many come before it.

    place[i]  = number of j with  x[j] before x[i],  or  neither before the other and j < i
    y[r]      = x[i] where place[i] = r

All pairs are compared, which n threads do in n steps without a word to each other: of a router's 64 experts, a median
of 9, a beam. Longer rows are left to a library's sort. The order is the module's own comparison, whatever it compares;
elements that are neither before nor behind each other keep their order, as a stable sort has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusiond_stitching.frontend.graph import DTYPES, Computation, HloInstruction, least
from fusiond_stitching.frontend.hlo import ArrayShape, Raw
from fusiond_stitching.frontend.windows import Add

LONGEST = 128  #: Elements of a row
MOST_PAIRS = 1 << 31  #: Comparisons in all


def possible(raw: Raw, sources: Sequence[HloInstruction]) -> bool:
    """Whether rows are short enough, and of types that code is written for."""
    if not sources or any(each.dtype not in DTYPES or each.dims != sources[0].dims for each in sources):
        return False
    at, dims = raw.integers("dimensions"), sources[0].dims
    if len(at) != 1 or not 0 <= at[0] < len(dims) or math.prod(dims) == 0:
        return False
    return dims[at[0]] <= LONGEST and math.prod(dims) * dims[at[0]] <= MOST_PAIRS


def expanded(raw: Raw, name: str, sources: Sequence[HloInstruction], before: Computation, add: Add) -> list[str]:
    """The names of the sorted values. `before`: of (x0, y0, x1, y1, ...) whether the x come before the y."""
    return _Sort(name, sources, raw.integers("dimensions")[0], before, add).found()


class _Sort:
    def __init__(self, name: str, sources: Sequence[HloInstruction], at: int, before: Computation, add: Add) -> None:
        self.name = name
        self.sources = sources
        self.at = at
        self.before = before
        self.add = add
        self.dims = sources[0].dims
        self.pairs = (*self.dims[: at + 1], self.dims[at], *self.dims[at + 1 :])
        """Each element (dimension `at`) beside each other one, or each place (the next)."""
        self.count = 0

    def found(self) -> list[str]:
        first = [self._along(each.name, each.dtype, self.at + 1) for each in self.sources]
        second = [self._along(each.name, each.dtype, self.at) for each in self.sources]
        behind = self._compared(second, first)
        equal = self._add("not", "pred", self.pairs, self._compared(first, second))
        earlier = self._ordered("LT")
        counts = self._add("or", "pred", self.pairs, behind, self._add("and", "pred", self.pairs, equal, earlier))
        ones = self._add("convert", "s32", self.pairs, counts)
        place = self._reduced(ones, "s32", "add", 0, self.at + 1)
        here = self._along(place, "s32", self.at + 1)
        wanted = self._add("iota", "s32", self.pairs, dimension=self.at + 1)
        chosen = self._add("compare", "pred", self.pairs, here, wanted, direction="EQ", total=False)
        return [self._taken(chosen, value, each.dtype) for value, each in zip(first, self.sources, strict=True)]

    def _taken(self, chosen: str, value: str, kind: str) -> str:
        """The one that is chosen: all others count as the least there is."""
        operation, lowest = ("or", 0) if kind == "pred" else ("maximum", least(kind))
        others = self._number(lowest, kind)
        return self._reduced(
            self._add("select", kind, self.pairs, chosen, value, others), kind, operation, lowest, self.at
        )

    def _reduced(self, values: str, kind: str, operation: str, init: float, at: int) -> str:
        start = self._add("constant", kind, (), values=(init,))
        computation = Computation.of_two(operation, kind)
        return self._add("reduce", kind, self.dims, values, start, dimensions=(at,), computation=computation, result=0)

    def _along(self, value: str, kind: str, new: int) -> str:
        """A value of the row's dims, the same along a new dimension."""
        return self._add(
            "broadcast", kind, self.pairs, value, dimensions=tuple(at for at in range(len(self.pairs)) if at != new)
        )

    def _number(self, value: float, kind: str) -> str:
        return self._add("broadcast", kind, self.pairs, self._add("constant", kind, (), values=(value,)), dimensions=())

    def _ordered(self, direction: str) -> str:
        """Of two elements, whether the second one's index is below (LT) the first one's."""
        own, other = (self._add("iota", "s32", self.pairs, dimension=at) for at in (self.at, self.at + 1))
        return self._add("compare", "pred", self.pairs, other, own, direction=direction, total=False)

    def _compared(self, xs: Sequence[str], ys: Sequence[str]) -> str:
        """The module's comparison, of all pairs at once."""
        names = {
            each.name: given
            for each, given in zip(
                self.before.parameters, (value for pair in zip(xs, ys, strict=True) for value in pair), strict=True
            )
        }
        for each in self.before.instructions:
            if each.opcode == "constant":
                names[each.name] = self._number(each.attributes["values"][0], each.dtype)
                continue
            operands = [names[operand] for operand in each.operands]
            names[each.name] = self._add(each.opcode, each.dtype, self.pairs, *operands, **each.attributes)
        return names[self.before.results[0]]

    def _add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **given: object) -> str:
        self.count += 1
        return self.add(f"{self.name}.{opcode}{self.count}", opcode, ArrayShape(dtype, tuple(dims)), operands, given)
