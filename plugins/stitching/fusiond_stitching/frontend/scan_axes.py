"""Which part of a loop's state is a thread's own.

Dimensions of values that only ever meet element by element are one axis, and each index of it is a thread's. What is
reduced, shifted or cut on the way stays inside a thread, and must be short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusiond_stitching.frontend.graph import ELEMENTWISE, Instruction, Module

MOST_HELD = 128
"""Numbers of the state that a thread holds."""
MOST_WORK = 512
"""Numbers that a thread goes through in a trip for what it reduces."""


class Axes:
    """Union of dimensions that are walked together: (instruction, dimension) -> class. A class that stays `inside` is
    no axis."""

    def __init__(
        self, body: Module, carries: Mapping[str, str], stacked: Sequence[Instruction], numbers: frozenset[str]
    ) -> None:
        self.body = body
        self.carried = tuple(carries)
        self.updates = [each.operands[1] for each in stacked]
        self.above: dict[tuple[str, int], tuple[str, int]] = {}
        self.inside: set[tuple[str, int]] = set()
        self.possible = True
        self.live = self._live([*carries.values(), *(name for each in stacked for name in each.operands[1:])])
        self.varying = self._varying(numbers)
        for each in body.instructions:
            if each.name in self.live and each.operands:
                self._instruction(each)
        for before, last in carries.items():
            self._same(before, last)

    def found(
        self, slices: Sequence[str]
    ) -> tuple[tuple[int, ...], Mapping[str, tuple[int | None, ...]], list[str]] | None:
        """(the axes, which of them each value's dimensions are, those of `slices` that are read of which a thread needs
        one element); None where threads cannot have parts of their own."""
        if not self.possible:
            return None
        values = dict.fromkeys((*self.carried, *self.updates))
        for name in (*values, *sorted(self.live & self.varying)):
            classes = [each for each in self._classes(name) if each is not None]
            # Two dimensions of one value along one axis: its elements meet crosswise.
            self.inside |= {each for each in classes if classes.count(each) > 1}
        inside = {self._class(each) for each in self.inside}
        own = {name: [None if each in inside else each for each in self._classes(name)] for name in values}
        widest = max(own.values(), key=lambda places: sum(each is not None for each in places), default=[])
        axes = [each for each in widest if each is not None]
        if any(each is not None and each not in axes for places in own.values() for each in places):
            return None
        sizes = tuple(self.body[name].dims[at] for name, at in axes)
        if self._held(own) > MOST_HELD or self._work(axes, math.prod(sizes)) > MOST_WORK:
            return None
        number = {each: at for at, each in enumerate(axes)}
        reads = {name: self._classes(name) for name in slices if name in self.live}
        reads = {name: classes for name, classes in reads.items() if all(one is None or one in axes for one in classes)}
        places = {
            name: tuple(None if each is None else number[each] for each in classes)
            for name, classes in (own | reads).items()
        }
        return sizes, places, list(reads)

    def _held(self, own: Mapping[str, Sequence[object]]) -> int:
        """Numbers of the state in a thread; those of an update count where they are more."""
        sizes = {
            name: math.prod(dim for dim, axis in zip(self.body[name].dims, places, strict=True) if axis is None)
            for name, places in own.items()
        }
        return max(sum(sizes[name] for name in self.carried), *(sizes[name] for name in self.updates), 0)

    def _work(self, axes: Sequence[tuple[str, int]], threads: int) -> int:
        """Elements that a thread goes through in a trip for what is reduced."""
        total = 0
        for each in self.body.instructions:
            if each.name not in self.live or each.opcode not in ("reduce", "dot"):
                continue
            source = self.body[each.operands[0]]
            key = "dimensions" if each.opcode == "reduce" else "lhs_contracting"
            length = math.prod(source.dims[at] for at in each.attributes[key])
            classes = [(self._class((each.name, at)), dim) for at, dim in enumerate(each.dims)]
            total += length * math.prod(dim for one, dim in classes if dim > 1 and one not in axes)
        return total

    def _live(self, roots: Sequence[str]) -> set[str]:
        found: set[str] = set()
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += self.body[name].operands
        return found

    def _varying(self, numbers: frozenset[str]) -> set[str]:
        """What depends on the state, but for what is known of it before: that is the same for all threads."""
        found = set(self.carried) - numbers
        for each in self.body.instructions:
            if any(name in found for name in each.operands):
                found.add(each.name)
        return found

    # --- classes ---

    def _class(self, key: tuple[str, int]) -> tuple[str, int]:
        while key in self.above:
            key = self.above[key]
        return key

    def _classes(self, name: str) -> list[tuple[str, int] | None]:
        """Of each dimension; None of those of size 1."""
        return [self._class((name, at)) if dim > 1 else None for at, dim in enumerate(self.body[name].dims)]

    def _join(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        one, other = self._class(one), self._class(other)
        if one != other:
            self.above[one] = other

    def _same(self, one: str, other: str) -> None:
        for at in range(len(self.body[one].dims)):
            self._join((one, at), (other, at))

    def _inside(self, name: str, dimensions: Iterable[int]) -> None:
        self.inside |= {(name, at) for at in dimensions}

    # --- operations ---

    def _instruction(self, each: Instruction) -> None:
        varies = [name in self.varying for name in each.operands]
        operands = self.body.operands(each)
        if each.opcode in ELEMENTWISE:
            for operand in operands:
                if operand.dims:
                    self._same(operand.name, each.name)
        elif each.opcode in ("broadcast", "transpose"):
            order = each.attributes["dimensions"]
            for at, other in enumerate(order):
                mine, its = (other, at) if each.opcode == "broadcast" else (at, other)
                self._join((each.name, mine), (operands[0].name, its))
        elif each.opcode == "reduce":
            self._reduced(each, operands, varies)
        elif each.opcode == "reshape":
            self._reshaped(each, operands[0], varies[0])
        elif any(varies):
            self._moved(each, operands, varies)

    def _reduced(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        dimensions = each.attributes["dimensions"]
        kept = [at for at in range(len(operands[0].dims)) if at not in dimensions]
        for operand, varying in zip(operands[: len(operands) // 2], varies, strict=False):
            for at, other in enumerate(kept):
                self._join((each.name, at), (operand.name, other))
            if varying:
                self._inside(operand.name, dimensions)

    def _reshaped(self, each: Instruction, operand: Instruction, varying: bool) -> None:
        """Dimensions of equal size behind equal products are the same; all others stay inside."""
        for mine, its in _groups(each.dims, operand.dims):
            large = [at for at in mine if each.dims[at] > 1]
            theirs = [at for at in its if operand.dims[at] > 1]
            if len(large) == len(theirs) == 1:
                self._join((each.name, large[0]), (operand.name, theirs[0]))
            elif varying:
                self._inside(each.name, large)
                self._inside(operand.name, theirs)

    def _moved(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        """What shifts, cuts or contracts: only along the dimensions that stay whole do threads keep to themselves."""
        first = operands[0]
        if each.opcode == "dot":
            self._contracted(each, operands, varies)
            return
        sources: Sequence[Instruction]
        if each.opcode == "concatenate":
            sources, cut = operands, {each.attributes["dimension"]}
        elif each.opcode == "reverse":
            sources, cut = operands, set(each.attributes["dimensions"])
        elif each.opcode == "slice":
            sources, cut = operands, {at for at, dim in enumerate(first.dims) if dim != each.dims[at]}
        elif each.opcode == "pad":
            sources = operands[:1]
            padded = (each.attributes[side] for side in ("low", "high", "interior"))
            cut = {at for at, amounts in enumerate(zip(*padded, strict=True)) if any(amounts)}
        elif each.opcode == "dynamic-slice":
            sources, cut = operands[:1], {at for at, dim in enumerate(first.dims) if dim != each.dims[at]}
        elif each.opcode == "dynamic-update-slice":
            update = operands[1]
            sources, cut = operands[:2], {at for at, dim in enumerate(first.dims) if dim != update.dims[at]}
        else:
            self.possible = False
            return
        for source in sources:
            self._inside(source.name, cut)
            for at in range(len(each.dims)):
                if at not in cut:
                    self._join((each.name, at), (source.name, at))
        self._inside(each.name, cut)

    def _contracted(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        numbers = each.attributes
        batch = len(numbers["lhs_batch"])
        free = batch
        for side, operand, varying in zip(("lhs", "rhs"), operands, varies, strict=True):
            for at, own in enumerate(numbers[f"{side}_batch"]):
                self._join((each.name, at), (operand.name, own))
            used = {*numbers[f"{side}_batch"], *numbers[f"{side}_contracting"]}
            for at in range(len(operand.dims)):
                if at not in used:
                    self._join((each.name, free), (operand.name, at))
                    free += 1
            if varying:
                self._inside(operand.name, numbers[f"{side}_contracting"])


def _groups(one: Sequence[int], other: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions of both with equal products, in order."""
    a = b = 0
    while a < len(one) or b < len(other):
        mine: list[int] = []
        its: list[int] = []
        left = right = 1
        while True:
            if left <= right and a < len(one) and (left < right or not mine):
                left *= one[a]
                mine.append(a)
                a += 1
            elif b < len(other) and (right < left or not its):
                right *= other[b]
                its.append(b)
                b += 1
            else:
                break
        yield mine, its
