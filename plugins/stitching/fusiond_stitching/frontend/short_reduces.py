"""What was put side by side and is reduced again, as it was before: the two best experts of a row, say.

    sum(f(concatenate(a, b)), along the parts)   -->   f(a) + f(b)

`top_k` puts its values side by side; a router normalises them, and adds up their one-hot rows. Taken apart, everything
is a number for each row or as wide as the rows, which stay in registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fusiond.model import frozen
from fusiond_stitching.frontend.constant_numbers import kept_dimension
from fusiond_stitching.frontend.graph import HloInstruction, topological

MOST_PARTS = 8
MOST_STEPS = 32
"""Instructions between the parts and their reduction."""


def taken_apart(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with such reductions as steps over their parts."""
    found: dict[str, HloInstruction] = {}
    for each in topological(given.values()):
        steps = None
        if each.opcode == "reduce" and each.name not in foreign and len(each.operands) == 2:
            steps = _Parts(given, foreign, each).steps()
        for step in steps or [each]:
            found[step.name] = step
    return found


class _Parts:
    def __init__(self, given: Mapping[str, HloInstruction], foreign: Mapping[str, str], reduce: HloInstruction) -> None:
        self.given = given
        self.foreign = foreign
        self.reduce = reduce
        self.made: dict[str, HloInstruction] = {}
        self.single: dict[tuple[str, int, int], str] = {}

    def steps(self) -> list[HloInstruction] | None:
        """The instructions that stand for the reduction; None where it reduces something else."""
        source, init = (self.given[name] for name in self.reduce.operands)
        large = [at for at in self.reduce.attributes["dimensions"] if source.dims[at] > 1]
        simple = self.reduce.attributes["computation"].simple
        if len(large) != 1 or simple is None or not 1 < source.dims[large[0]] <= MOST_PARTS:
            return None
        if not self._leads_to_parts(source.name, large[0]):
            return None
        dims = self.reduce.dims
        total = self._make("broadcast", init.dtype, dims, (init.name,), {"dimensions": ()})
        for number in range(source.dims[large[0]]):
            one = self._make("reshape", source.dtype, dims, (self._at(source.name, large[0], number),))
            total = self._make(simple, self.reduce.dtype, dims, (total, one))
        last = dataclasses.replace(self.made.pop(total), name=self.reduce.name)
        return [*self.made.values(), last]

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
        if each.opcode == "broadcast":
            order = each.attributes["dimensions"]
            return [(each.operands[0], order.index(at) if at in order else None)]
        if each.opcode == "transpose":
            return [(each.operands[0], each.attributes["dimensions"][at])]
        if each.opcode == "slice":
            return [(each.operands[0], at)] if dims[each.operands[0]][at] == each.dims[at] else None
        if each.opcode == "reshape":
            own = kept_dimension(each.dims, at, dims[each.operands[0]])
            return None if own is None else [(each.operands[0], own)]
        return None

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
            value = self._make("constant", each.dtype, (), (), {"values": (number,)})
            return self._make("broadcast", each.dtype, dims, (value,), {"dimensions": ()})
        operands = self._operands(name, at)
        if each.opcode == "constant" or operands is None:
            starts = tuple(number if place == at else 0 for place in range(len(dims)))
            limits = tuple(start + dim for start, dim in zip(starts, dims, strict=True))
            cut = {"starts": starts, "limits": limits, "strides": (1,) * len(dims)}
            return self._make("slice", each.dtype, dims, (name,), cut)
        own = tuple(operand if place is None else self._at(operand, place, number) for operand, place in operands)
        attributes = dict(each.attributes)
        if each.opcode == "slice":
            attributes["limits"] = (*attributes["limits"][:at], 1, *attributes["limits"][at + 1 :])
        return self._make(each.opcode, each.dtype, dims, own, attributes)

    def _make(
        self, opcode: str, kind: str, dims: tuple[int, ...], operands: tuple[str, ...],
        attributes: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        name = f"{self.reduce.name}~part{len(self.made)}"
        self.made[name] = HloInstruction(
            name=name, opcode=opcode, dtype=kind, dims=dims, operands=operands, attributes=frozen(attributes or {}),
            where=self.reduce.where,
        )  # fmt: skip
        return name
