"""Replaces scatters and look-ups of known windows by plain data movement.

    dynamic-slice(x, 3, 0), the numbers known           -->   slice(x)
    y = scatter(x, (1, 1), u), one window in all        -->   y = dynamic-update-slice(x, f(x[window], u), 1, 1)

jax writes `x.at[1:-1, 1:-1].set(u)` as such a scatter: a copy of x and a pass over u, where one pass does. A
dynamic-update-slice moves a window that does not fit, a scatter drops it: where the place is not known, that is a
select over both.
"""

import math
from collections.abc import Mapping, Sequence

from fusiond_stitching.frontend import constant_numbers
from fusiond_stitching.frontend.building import box, rewritten
from fusiond_stitching.frontend.graph import HloInstruction
from fusiond_stitching.frontend.selected_scatters import REACH, ScatterRewriting


def placed(given: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> dict[str, HloInstruction]:
    """The same instructions, with such windows cut out and put in by their places."""

    def steps(each: HloInstruction) -> list[HloInstruction] | None:
        if each.opcode == "scatter":
            return _Window(each, given).steps(constant_numbers.elements(given, each.operands[1]))
        return _cut(each, given) if each.opcode == "dynamic-slice" else None

    return rewritten(given, foreign, steps)


def _cut(each: HloInstruction, given: Mapping[str, HloInstruction]) -> list[HloInstruction] | None:
    starts = [constant_numbers.elements(given, name) for name in each.operands[1:]]
    known = [start[0] for start in starts if start is not None]
    if len(known) < len(starts):
        return None
    dims = given[each.operands[0]].dims
    begin = [min(max(at, 0), dim - size) for at, dim, size in zip(known, dims, each.dims, strict=True)]
    return [each.becoming("slice", each.operands[0], **box(begin, each.dims))]


class _Window(ScatterRewriting):
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
        starts = [self.constant(0, self.starts.dtype)] * len(window)
        for component, target in enumerate(self.numbers["scatter_dims_to_operand_dims"]):
            starts[target] = self._component(component, known)
        fits = self._fits(window, starts, known)
        if fits is False:  # the window is dropped
            return [self.scatter.becoming("copy", self.operand.name)]
        update = self.add("reshape", self.updates.dtype, window, self.updates.name)
        computation = self.numbers["computation"]
        if computation.results != (computation.parameters[1].name,):
            update = self.applied(computation, window, self._before(window, starts, known), update)
        operands = (self.operand.name, update, *starts)
        if fits is True:
            return [*self.made, self.scatter.becoming("dynamic-update-slice", *operands)]
        placed = self.add("dynamic-update-slice", self.operand.dtype, self.operand.dims, *operands)
        return [*self.made, self.scatter.becoming("select", fits, placed, self.operand.name)]

    def _before(self, window: tuple[int, ...], starts: Sequence[str], known: Sequence[int] | None) -> str:
        """What the operand holds where the window is."""
        kind = self.operand.dtype
        if known is None:
            return self.add("dynamic-slice", kind, window, self.operand.name, *starts, sizes=window)
        begin = [0] * len(window)
        for target, at in zip(self.numbers["scatter_dims_to_operand_dims"], known, strict=True):
            begin[target] = at
        return self.cut(self.operand.name, kind, begin, window)

    def _component(self, at: int, known: Sequence[int] | None) -> str:
        """The start along one dimension, a scalar."""
        kind = self.starts.dtype
        if known is not None:
            return self.constant(known[at], kind)
        flat = self.add("reshape", kind, (self.starts.elements,), self.starts.name)
        return self.add("reshape", kind, (), self.cut(flat, kind, (at,), (1,)))

    def _fits(self, window: Sequence[int], starts: Sequence[str], known: Sequence[int] | None) -> bool | str:
        """Whether the window lies inside the operand: known, or the name of a truth value."""
        rooms = [dim - size for dim, size in zip(self.operand.dims, window, strict=True)]
        targets = self.numbers["scatter_dims_to_operand_dims"]
        if known is not None:
            return all(0 <= at <= rooms[target] for at, target in zip(known, targets, strict=True))
        found = ""
        for target in targets:
            for direction, limit in (("GE", 0), ("LE", rooms[target])):
                bound = self.constant(limit, self.starts.dtype)
                inside = self.compared(starts[target], bound, (), direction)
                found = self.add("and", "pred", (), found, inside) if found else inside
        return found or True
