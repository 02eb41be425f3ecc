"""Writes instructions one after the other: what a larger operation is made of."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fusiond_stitching.frontend.graph import Computation, HloInstruction, topological
from fusiond_stitching.frontend.hlo import ArrayShape

Add: TypeAlias = Callable[[str, str, ArrayShape, Sequence[str], Mapping[str, Any]], str]
"""(name, opcode, shape, operands, attributes) -> the name it got."""


class Builder(ABC):
    """Every method gives the name of what it wrote last."""

    @abstractmethod
    def add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **attributes: Any) -> str:
        """One more instruction."""

    def constant(self, value: float, dtype: str) -> str:
        return self.add("constant", dtype, (), values=(value,))

    def number(self, value: float, dtype: str, dims: Sequence[int]) -> str:
        """A tensor of equal numbers."""
        return self.add("broadcast", dtype, dims, self.constant(value, dtype), dimensions=())

    def iota(self, dims: Sequence[int], at: int) -> str:
        return self.add("iota", "s32", dims, dimension=at)

    def cut(self, value: str, dtype: str, begin: Sequence[int], sizes: Sequence[int]) -> str:
        return self.add("slice", dtype, sizes, value, **box(begin, sizes))

    def compared(self, one: str, other: str, dims: Sequence[int], direction: str) -> str:
        return self.add("compare", "pred", dims, one, other, direction=direction, total=False)

    def reduced(self, value: str, dtype: str, dims: Sequence[int], at: int, operation: str, init: float) -> str:
        """A value of these dims, reduced along one of them by one operation."""
        rest = [dim for place, dim in enumerate(dims) if place != at]
        start, computation = self.constant(init, dtype), Computation.of_two(operation, dtype)
        return self.add("reduce", dtype, rest, value, start, dimensions=(at,), computation=computation, result=0)

    def applied(self, computation: Computation, dims: Sequence[int], *operands: str) -> str:
        """The first result of a computation, element by element."""
        names = {each.name: given for each, given in zip(computation.parameters, operands, strict=True)}
        for each in computation.instructions:
            if each.opcode == "constant":
                names[each.name] = self.number(each.attributes["values"][0], each.dtype, dims)
            else:
                given = (names[name] for name in each.operands)
                names[each.name] = self.add(each.opcode, each.dtype, dims, *given, **each.attributes)
        return names[computation.results[0]]


def box(begin: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """A slice's attributes."""
    limits = tuple(at + size for at, size in zip(begin, sizes, strict=True))
    return {"starts": tuple(begin), "limits": limits, "strides": (1,) * len(sizes)}


def rewritten(
    given: Mapping[str, HloInstruction],
    foreign: Mapping[str, str],
    steps: Callable[[HloInstruction], list[HloInstruction] | None],
) -> dict[str, HloInstruction]:
    """A graph with other steps in place of some instructions, the last of each under its name."""
    found: dict[str, HloInstruction] = {}
    for each in topological(given.values()):
        made = None if each.name in foreign else steps(each)
        found |= {step.name: step for step in made or [each]}
    return found


class Expansion(Builder):
    """Of an instruction of a text: what it is made of is called NAME.OPCODE7."""

    def __init__(self, name: str, put: Add) -> None:
        self.name = name
        self.put = put
        self.count = 0

    def add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **attributes: Any) -> str:
        self.count += 1
        shape = ArrayShape(dtype, tuple(dims))
        return self.put(f"{self.name}.{opcode}{self.count}", opcode, shape, operands, attributes)


class Rewriting(Builder):
    """Of an instruction of a graph: `made` is called NAME~WORD7."""

    def __init__(self, of: HloInstruction, word: str) -> None:
        self.of = of
        self.word = word
        self.made: list[HloInstruction] = []

    def add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **attributes: Any) -> str:
        name = f"{self.of.name}~{self.word}{len(self.made)}"
        self.made.append(self.of.becoming(opcode, *operands, name=name, dtype=dtype, dims=tuple(dims), **attributes))
        return name
