"""Replaces scatters and look-ups of known windows by plain data movement.

    dynamic-slice(x, 3, 0), the numbers known           -->   slice(x)
    y = scatter(x, (1, 1), u), one window in all        -->   y = dynamic-update-slice(x, f(x[window], u), 1, 1)

jax writes `x.at[1:-1, 1:-1].set(u)` as such a scatter: a copy of x and a pass over u, where one pass does. A
dynamic-update-slice moves a window that does not fit, a scatter drops it: where the place is not known, that is a
select over both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend import constant_numbers
from fusiond_stitching.frontend.graph import HloInstruction, topological
from fusiond_stitching.frontend.selected_scatters import REACH, Expansion


def placed(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with such windows cut out and put in by their places."""
    found: dict[str, HloInstruction] = {}
    for each in topological(given.values()):
        steps: Sequence[HloInstruction] | None = None
        if each.name not in foreign and each.opcode == "scatter":
            operand, starts, updates = (given[name] for name in each.operands)
            steps = _Window(each, operand, starts, updates).steps(constant_numbers.elements(given, starts.name))
        elif each.name not in foreign and each.opcode == "dynamic-slice":
            steps = _cut(each, given)
        for step in steps or [each]:
            found[step.name] = step
    return found


def _cut(each: HloInstruction, given: Mapping[str, HloInstruction]) -> list[HloInstruction] | None:
    starts = [constant_numbers.elements(given, name) for name in each.operands[1:]]
    known = [start[0] for start in starts if start is not None]
    if len(known) < len(starts):
        return None
    dims = given[each.operands[0]].dims
    begin = tuple(min(max(at, 0), dim - size) for at, dim, size in zip(known, dims, each.dims, strict=True))
    attributes = {
        "starts": begin,
        "limits": tuple(at + size for at, size in zip(begin, each.dims, strict=True)),
        "strides": (1,) * len(dims),
    }
    return [
        dataclasses.replace(each, opcode="slice", operands=each.operands[:1], attributes=frozen(attributes))
    ]  # fmt: skip


class _Window(Expansion):
    def steps(self, known: Sequence[int] | None) -> list[HloInstruction] | None:
        """The instructions that stand for the scatter; None where it has more than one window. `known`: its place."""
        windows = self.numbers["update_window_dims"]
        if math.prod(dim for at, dim in enumerate(self.updates.dims) if at not in windows) != 1:
            return None
        if not self.operand.elements or not self.updates.elements or not self.operand.dims:
            return None
        if max(self.operand.dims) > REACH.get(self.starts.dtype, 0):
            return None
        gone = {*self.numbers["inserted_window_dims"], *self.numbers["input_batching_dims"]}
        sizes = iter(self.updates.dims[at] for at in windows)
        window = tuple(1 if at in gone else next(sizes) for at in range(len(self.operand.dims)))
        targets = self.numbers["scatter_dims_to_operand_dims"]
        zero = self.make("constant", self.starts.dtype, (), (), {"values": (0,)})
        starts = [zero] * len(window)
        for component, target in enumerate(targets):
            starts[target] = self._component(component, known)
        fits = self._fits(window, starts, known)
        if fits is False:  # the window is dropped
            return [
                dataclasses.replace(self.scatter, opcode="copy", operands=(self.operand.name,), attributes=frozen({}))
            ]
        update = self.make("reshape", self.updates.dtype, window, (self.updates.name,))
        if self.numbers["computation"].results != (self.numbers["computation"].parameters[1].name,):
            kind = self.operand.dtype
            before = self._before(kind, window, starts, known)
            update = self.applied(before, update, window)
        operands = (self.operand.name, update, *starts)
        if fits is True:
            last = dataclasses.replace(
                self.scatter, opcode="dynamic-update-slice", operands=operands, attributes=frozen({})
            )
        else:
            placed = self.make("dynamic-update-slice", self.operand.dtype, self.operand.dims, operands)
            last = dataclasses.replace(
                self.scatter, opcode="select", operands=(fits, placed, self.operand.name), attributes=frozen({})
            )
        return [*self.made, last]

    def _before(self, kind: str, window: tuple[int, ...], starts: Sequence[str], known: Sequence[int] | None) -> str:
        """What the operand holds where the window is."""
        if known is None:
            return self.make("dynamic-slice", kind, window, (self.operand.name, *starts), {"sizes": window})
        begin = [0] * len(window)
        for target, at in zip(self.numbers["scatter_dims_to_operand_dims"], known, strict=True):
            begin[target] = at
        limits = tuple(at + size for at, size in zip(begin, window, strict=True))
        cut = {"starts": tuple(begin), "limits": limits, "strides": (1,) * len(window)}
        return self.make("slice", kind, window, (self.operand.name,), cut)

    def _component(self, at: int, known: Sequence[int] | None) -> str:
        """The start along one dimension, a scalar."""
        kind = self.starts.dtype
        if known is not None:
            return self.make("constant", kind, (), (), {"values": (known[at],)})
        flat = self.make("reshape", kind, (self.starts.elements,), (self.starts.name,))
        one = self.make("slice", kind, (1,), (flat,), {"starts": (at,), "limits": (at + 1,), "strides": (1,)})
        return self.make("reshape", kind, (), (one,))

    def _fits(self, window: Sequence[int], starts: Sequence[str], known: Sequence[int] | None) -> bool | str:
        """Whether the window lies inside the operand: known, or the name of a truth value."""
        rooms = [dim - size for dim, size in zip(self.operand.dims, window, strict=True)]
        targets = self.numbers["scatter_dims_to_operand_dims"]
        if known is not None:
            return all(0 <= at <= rooms[target] for at, target in zip(known, targets, strict=True))
        kind, found = self.starts.dtype, ""
        for target in targets:
            for direction, limit in (("GE", 0), ("LE", rooms[target])):
                bound = self.make("constant", kind, (), (), {"values": (limit,)})
                compare = {"direction": direction, "total": False}
                inside = self.make("compare", "pred", (), (starts[target], bound), compare)
                found = self.make("and", "pred", (), (found, inside)) if found else inside
        return found or True
