"""Reduces values that were put side by side without putting them there: the two best experts of a row, say.

    reduce(f(concatenate(a, b)), along the parts)   -->   f(a) + f(b)

`top_k` puts its values side by side; a router normalises them, and adds up their one-hot rows. Taken apart, everything
is a number for each row or as wide as the rows, which stay in registers.
"""

import dataclasses
from collections.abc import Mapping

from fusiond_stitching.frontend.building import Rewriting, rewritten
from fusiond_stitching.frontend.constant_numbers import kept_dimension
from fusiond_stitching.frontend.graph import HloInstruction

MOST_PARTS = 8
MOST_STEPS = 32  #: Instructions between the parts and their reduction


def parted(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with such reductions as steps over their parts."""

    def steps(each: HloInstruction) -> list[HloInstruction] | None:
        single = each.opcode == "reduce" and len(each.operands) == 2
        return _Parted(each, given, foreign).steps() if single else None

    return rewritten(given, foreign, steps)


class _Parted(Rewriting):
    """A reduction, and the steps over parts that are made to stand for it."""

    def __init__(self, reduce: HloInstruction, given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> None:
        super().__init__(reduce, "part")
        self.given = given
        self.foreign = foreign
        self.single: dict[tuple[str, int, int], str] = {}

    def steps(self) -> list[HloInstruction] | None:
        """The instructions that stand for the reduction; None where it reduces something else."""
        source, init = (self.given[name] for name in self.of.operands)
        large = [at for at in self.of.attributes["dimensions"] if source.dims[at] > 1]
        simple = self.of.attributes["computation"].simple
        if len(large) != 1 or simple is None or source.dims[large[0]] > MOST_PARTS:
            return None
        if not self._leads_to_parts(source.name, large[0]):
            return None
        total = self.add("broadcast", init.dtype, self.of.dims, init.name, dimensions=())
        for number in range(source.dims[large[0]]):
            one = self.add("reshape", source.dtype, self.of.dims, self._at(source.name, large[0], number))
            total = self.add(simple, self.of.dtype, self.of.dims, total, one)
        return [*self.made[:-1], dataclasses.replace(self.made[-1], name=self.of.name)]

    def _leads_to_parts(self, name: str, at: int) -> bool:
        """Whether the elements along a dimension come, element by element, from values that were put side by side."""
        stack, seen = [(name, at)], {(name, at)}
        parts = False
        while stack:
            each, along = stack.pop()
            if len(seen) > MOST_STEPS or self.given[each].opcode == "parameter" or each in self.foreign:
                return False
            if self._part(each, along, 0) is not None:
                parts = True
                continue
            operands = self._operands(each, along)
            if operands is None:
                return False
            new = [(operand, own) for operand, own in operands if own is not None and (operand, own) not in seen]
            seen.update(new)
            stack += new
        return parts

    def _operands(self, name: str, at: int) -> list[tuple[str, int | None]] | None:
        """The operands, each with the dimension that the dimension `at` comes from (None: it has none of it); None of
        them where that is not to be said."""
        each = self.given[name]
        dims = {operand: self.given[operand].dims for operand in each.operands}
        if each.elementwise:
            return [(operand, at if dims[operand] else None) for operand in each.operands]
        if each.opcode in ("iota", "constant"):
            return []
        own: int | None = None
        if each.opcode == "broadcast":
            order = each.attributes["dimensions"]
            return [(each.operands[0], order.index(at) if at in order else None)]
        if each.opcode == "transpose":
            own = each.attributes["dimensions"][at]
        elif each.opcode == "slice" and dims[each.operands[0]][at] == each.dims[at]:
            own = at
        elif each.opcode == "reshape":
            own = kept_dimension(each.dims, at, dims[each.operands[0]])
        return None if own is None else [(each.operands[0], own)]

    def _part(self, name: str, at: int, number: int) -> str | None:
        each = self.given[name]
        if each.opcode != "concatenate" or each.attributes["dimension"] != at or name in self.foreign:
            return None
        return each.operands[number] if len(each.operands) == each.dims[at] else None

    def _at(self, name: str, at: int, number: int) -> str:
        """One index along a dimension of a value: the same dims, but for 1 there."""
        key = (name, at, number)
        if key not in self.single:
            self.single[key] = self._part(name, at, number) or self._computed(name, at, number)
        return self.single[key]

    def _computed(self, name: str, at: int, number: int) -> str:
        each = self.given[name]
        dims = (*each.dims[:at], 1, *each.dims[at + 1 :])
        if each.opcode == "iota" and each.attributes["dimension"] == at:
            return self.number(number, each.dtype, dims)
        operands = self._operands(name, at)
        if each.opcode == "constant" or operands is None:
            return self.cut(name, each.dtype, [number if place == at else 0 for place in range(len(dims))], dims)
        own = [operand if place is None else self._at(operand, place, number) for operand, place in operands]
        attributes = dict(each.attributes)
        if each.opcode == "slice":
            attributes["limits"] = (*attributes["limits"][:at], 1, *attributes["limits"][at + 1 :])
        return self.add(each.opcode, each.dtype, dims, *own, **attributes)
