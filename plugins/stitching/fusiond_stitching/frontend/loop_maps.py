"""Moves results that do not need the state out of a loop, as maps.

    ys = while(x), body: ys' = ys with sigmoid(x[i]) at i
      -->  ys = sigmoid(x)                     an ordinary value, computed where it is read

Where the state itself is stored, what depends on it and on nothing of other trips is a map of that. The residuals of
a loop's gradient are such maps in good part: they are computed again, not kept.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.building import Builder
from fusiond_stitching.frontend.constant_numbers import steps
from fusiond_stitching.frontend.graph import ELEMENTWISE, HloInstruction, HloModule, reached

MOVED = frozenset({"broadcast", "transpose", "reshape", "slice", "reverse", "concatenate", "iota", "dynamic-slice"})


@dataclass
class Maps(Builder):
    """Values of a loop's body for all trips at once, as instructions outside of it: dims are the trips, then the
    value's own. `made`: what was written so far."""

    prefix: str
    body: HloModule
    fixed: Mapping[str, HloInstruction]  #: Parameter that no trip changes -> the instruction outside that it is
    numbers: Mapping[str, Sequence[int]]
    trips: int
    laid: Mapping[str, tuple[HloInstruction, HloInstruction]]
    """States, before or after a trip -> (the dynamic-update-slice that stores them, the result outside)."""
    begin: Mapping[str, HloInstruction]  #: Parameter of the body -> what it is in the first trip, outside

    def __post_init__(self) -> None:
        self.made: dict[str, HloInstruction] = {}
        self._known: dict[str, str | None] = {}
        self._fresh = itertools.count()

    def result(self, last: HloInstruction, into: HloInstruction) -> bool:
        """Whether `into`, a result of the loop that `last` (a dynamic-update-slice) stores, is a map, and was made
        one."""
        update = self.body[last.operands[1]]
        place, order = self._piece(last, update, last.operands[2:])
        ancestors = self._ancestors(update.name)
        for each in self.body.instructions:  # operands before users: no recursion is deep
            if each.name in ancestors and each.operands and each.name not in self.numbers:
                self.value(each.name)
        whole = self.value(update.name)
        if not order or whole is None:
            return False
        rest = tuple(dim for at, dim in enumerate(update.dims) if at != place)
        found = self.add("reshape", into.dtype, (self.trips, *rest), whole)
        if order < 0:
            found = self.add("reverse", into.dtype, (self.trips, *rest), found, dimensions=(0,))
        inverse = (*range(1, place + 1), 0, *range(place + 1, len(rest) + 1))  # output dimension -> operand dimension
        found = self.add("transpose", into.dtype, into.dims, found, dimensions=inverse)
        self.made[into.name] = into.becoming("copy", found)
        return True

    def _piece(self, whole: HloInstruction, part: HloInstruction, starts: Sequence[str]) -> tuple[int, int]:
        """(the one dimension of which each trip has an index, 1 where the trips walk it from its first index to its
        last, -1 the other way round, 0 where neither is so)."""
        partial = [at for at, (size, dim) in enumerate(zip(part.dims, whole.dims, strict=True)) if size != dim]
        if len(partial) != 1 or part.dims[partial[0]] != 1 or whole.dims[partial[0]] != self.trips:
            return 0, 0
        found = [min(max(each, 0), self.trips - 1) for each in self.numbers.get(starts[partial[0]], ())]
        order = list(range(self.trips))
        return partial[0], 1 if found == order else -1 if found == order[::-1] else 0

    def _ancestors(self, name: str) -> set[str]:
        return reached([name], lambda each: () if each in self.numbers else self.body[each].operands)

    def value(self, name: str) -> str | None:
        """The value of all trips, outside; None where it is not a map."""
        if name not in self._known:
            self._known[name] = self._made(self.body[name])
        return self._known[name]

    def become(self, name: str, outside: str) -> None:
        """A value of all trips is known to be that."""
        self._known[name] = outside

    def _made(self, each: HloInstruction) -> str | None:
        dims = (self.trips, *each.dims)
        if each.name in self.numbers:
            return self._number(each)
        if each.name in self.laid:  # the states of all trips
            last, result = self.laid[each.name]
            return self._in_front(result, last, self.body[last.operands[1]], last.operands[2:], each.dims)
        if each.opcode == "constant":
            source = self.add("constant", each.dtype, each.dims, **each.attributes)
            return self._spread(source, each.dtype, each.dims)
        if each.opcode == "parameter":
            if each.name in self.fixed:
                return self._spread(self.fixed[each.name].name, each.dtype, each.dims)
            return self._before(each)
        if each.opcode == "dynamic-slice":  # a piece for each trip of what no trip changes
            given = self.fixed.get(each.operands[0])
            return self._in_front(given, given, each, each.operands[1:], each.dims) if given else None
        if each.opcode == "dot":
            return self._product(each)
        if each.opcode not in ELEMENTWISE and each.opcode not in MOVED:
            return None
        operands = []
        for name in each.operands:
            value = self.value(name)
            if value is None:
                return None
            if each.opcode in ELEMENTWISE and self.body[name].dims != each.dims:  # a predicate, a bound
                value = self.add("broadcast", self.body[name].dtype, dims, value, dimensions=(0,))
            operands.append(value)
        return self.add(each.opcode, each.dtype, dims, *operands, **_deeper(each, self.trips))

    def _product(self, each: HloInstruction) -> str | None:
        """A product with what no trip changes: of all trips' rows at once."""
        numbers = each.attributes
        left, right = each.operands
        matrix = None if numbers["lhs_batch"] or self.alike(left) else self.plain(right)
        rows = self.value(left) if matrix is not None else None
        if rows is None or matrix is None:
            return None
        contracting = tuple(at + 1 for at in numbers["lhs_contracting"])
        dims = (self.trips, *each.dims)
        return self.add("dot", each.dtype, dims, rows, matrix, **{**numbers, "lhs_contracting": contracting})

    def alike(self, name: str) -> bool:
        """Whether a value is the same in all trips."""
        ancestors = self._ancestors(name)
        given = {each for each in ancestors if not self.body[each].operands}
        return not ancestors & self.numbers.keys() and all(
            each in self.fixed or self.body[each].opcode != "parameter" for each in given
        )

    def plain(self, name: str) -> str | None:
        """A value that is the same in all trips, once, outside."""
        if not self.alike(name):
            return None
        found: dict[str, str] = {}
        for each in self.body.instructions:  # operands before users
            if each.name not in self._ancestors(name):
                continue
            if each.name in self.fixed:
                found[each.name] = self.fixed[each.name].name
                continue
            operands = [found[operand] for operand in each.operands]
            found[each.name] = self.add(each.opcode, each.dtype, each.dims, *operands, **each.attributes)
        return found[name]

    def _spread(self, source: str, dtype: str, dims: tuple[int, ...]) -> str:
        return self.add("broadcast", dtype, (self.trips, *dims), source, dimensions=tuple(range(1, len(dims) + 1)))

    def _number(self, each: HloInstruction) -> str | None:
        """A whole number that grows by the same amount from trip to trip."""
        found_steps = steps(self.numbers[each.name])
        if each.dtype == "pred" or found_steps is None:
            return None
        first, step = found_steps
        shape = (self.trips,)
        found = self.add("iota", each.dtype, shape, dimension=0)
        for opcode, amount in (("multiply", step), ("add", first)):
            found = self.add(opcode, each.dtype, shape, found, self.number(amount, each.dtype, shape))
        return self.add("reshape", each.dtype, (self.trips, *each.dims), found) if each.dims else found

    def _before(self, each: HloInstruction) -> str | None:
        """The states before all trips, where those behind them are stored: one trip later, but for the first."""
        after = self.body[self.body.outputs[self.body.parameters.index(each.name)]]
        whole = self.value(after.name) if after.name in self.laid else None
        if whole is None or self.trips == 1:
            return None
        dims = (self.trips - 1, *each.dims)
        earlier = self.cut(whole, each.dtype, (0,) * len(dims), dims)
        first = self.add("reshape", each.dtype, (1, *each.dims), self.begin[each.name].name)
        return self.add("concatenate", each.dtype, (self.trips, *each.dims), first, earlier, dimension=0)

    def _in_front(
        self,
        source: HloInstruction,
        whole: HloInstruction,
        part: HloInstruction,
        starts: Sequence[str],
        dims: tuple[int, ...],
    ) -> str | None:
        """All trips' pieces of a value, the trips' dimension in front. `dims`: of a piece; others as of `_piece`."""
        place, order = self._piece(whole, part, starts)
        if not order:
            return None
        rest = [at for at in range(len(source.dims)) if at != place]
        turned = tuple(source.dims[at] for at in (place, *rest))
        found = self.add("transpose", source.dtype, turned, source.name, dimensions=(place, *rest))
        if order < 0:
            found = self.add("reverse", source.dtype, turned, found, dimensions=(0,))
        return self.add("reshape", source.dtype, (self.trips, *dims), found)

    def add(self, opcode: str, dtype: str, dims: Sequence[int], *operands: str, **attributes: Any) -> str:
        """One more instruction outside of the loop."""
        name = f"{self.prefix}>{next(self._fresh)}"
        self.made[name] = HloInstruction(
            name=name, opcode=opcode, dtype=dtype, dims=tuple(dims), operands=operands, attributes=frozen(attributes)
        )
        return name


def _deeper(each: HloInstruction, trips: int) -> Mapping[str, Any]:
    """The attributes of the same operation one dimension further in."""
    found = dict(each.attributes)
    if each.opcode in ("broadcast", "transpose"):
        found["dimensions"] = (0, *(at + 1 for at in each.attributes["dimensions"]))
    elif each.opcode == "reverse":
        found["dimensions"] = tuple(at + 1 for at in each.attributes["dimensions"])
    elif each.opcode in ("concatenate", "iota"):
        found["dimension"] = each.attributes["dimension"] + 1
    elif each.opcode == "slice":
        for name, first in (("starts", 0), ("limits", trips), ("strides", 1)):
            found[name] = (first, *each.attributes[name])
    return found
