"""Reductions over rows in registers, as statements: a total in each lane, shuffles, shared memory between warps.

Afterwards every lane of a row has the totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp, joined
from fusiond_stitching.analysis.indexing import delinear
from fusiond_stitching.analysis.plan import WARP
from fusiond_stitching.analysis.row_workspaces import Workspace
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Elemental, combine
from fusiond_stitching.codegen.reduction import BARRIER, ReduceGroup, shared_pointer, shuffled
from fusiond_stitching.codegen.row_cursor import RowCursor, unrolled
from fusiond_stitching.codegen.scope import Scope

_ZERO = Code("0")


@dataclass(frozen=True, slots=True)
class RowTotal:
    """A reduce (or the results of a variadic one) and its variables; of columns, the array of its sums."""

    group: ReduceGroup
    names: list[Code]


class RowReductions:
    def __init__(self, elemental: Elemental, at: RowCursor, workspaces: Mapping[str, Workspace]) -> None:
        self.elemental = elemental
        self.module = elemental.module
        self.at = at
        self.workspaces = workspaces

    def value(self, scope: Scope, name: str) -> Code:
        """The value of an instruction at the present column."""
        return self.elemental.value(scope, name, delinear(self.at.place, self.module[name].dims))

    def begin(self, scope: Scope, group: ReduceGroup) -> RowTotal:
        names = []
        for kind in group.kinds:
            names.append(scope.function.fresh("total"))
            scope.line(cpp("{} {} = {};", kind.value, names[-1], group.identity or semantics.literal(kind, 0)))
        return RowTotal(group, names)

    def accumulate(self, scope: Scope, total: RowTotal, values: list[Code]) -> None:
        group = total.group
        first = [each for each in (self.at.step, self.at.element) if each.fixed is None]
        if group.identity is not None:
            combine(self.elemental, scope, group.computation, total.names, values, group.kinds)
            return
        if not first:
            for name, value in zip(total.names, values, strict=True):
                scope.line(cpp("{} = {};", name, value))
            return
        condition = joined(" && ", (cpp("{} == 0", scope.index(each)) for each in first))
        with scope.block(cpp("if ({})", condition), end=None) as begin:
            for name, value in zip(total.names, values, strict=True):
                begin.line(cpp("{} = {};", name, value))
        with scope.block(Code("} else")) as go_on:
            combine(self.elemental, go_on, group.computation, total.names, values, group.kinds)

    def exchange(self, scope: Scope, totals: list[RowTotal]) -> None:
        """Every lane of a row gets the totals, the init values among them."""
        width = min(self.at.rows.lanes, WARP)
        if width > 1 and totals:
            self._butterfly(scope, totals, width)
        if self.at.rows.lanes > WARP and totals:
            self._across_warps(scope, totals)
        for total in totals:
            names = self.with_init(scope, total.group, total.names)
            for each in total.group.members:
                scope.remember(each.name, delinear(self.at.row, each.dims), names[each.attributes["result"]])

    def _butterfly(self, scope: Scope, totals: list[RowTotal], width: int) -> None:
        step = scope.function.fresh("step")
        head = cpp('_Pragma("unroll") for (int {} = {}; {} > 0; {} /= 2)', step, width // 2, step, step)
        with scope.block(head) as inner:
            for total in totals:
                kinds = total.group.kinds
                others = [
                    inner.declare(kind, "other", shuffled(kind, name, step, width, "xor"))
                    for kind, name in zip(kinds, total.names, strict=True)
                ]
                combine(self.elemental, inner, total.group.computation, total.names, others, kinds)
        for total in totals:
            if total.group.computation.simple is None:  # the order of the lanes may matter: all take one of them
                for kind, name in zip(total.group.kinds, total.names, strict=True):
                    scope.line(cpp("{} = {};", name, shuffled(kind, name, _ZERO, width, "")))

    def _across_warps(self, scope: Scope, totals: list[RowTotal]) -> None:
        warps = self.at.threads // WARP
        spaces = [self._space(scope, total, warps) for total in totals]
        with scope.block(cpp("if (threadIdx.x % {} == 0)", WARP)) as inner:
            for total, own in zip(totals, spaces, strict=True):
                for kind, name, space in zip(total.group.kinds, total.names, own, strict=True):
                    inner.line(cpp("{}[threadIdx.x / {}] = {};", space, WARP, inner.stored(kind, name)))
        scope.line(BARRIER)
        mine = self.at.rows.lanes // WARP
        first = scope.variable("first", cpp("threadIdx.x / {} * {}", self.at.rows.lanes, mine), warps - mine + 1)
        for total, own in zip(totals, spaces, strict=True):
            for kind, name, space in zip(total.group.kinds, total.names, own, strict=True):
                scope.line(cpp("{} = {};", name, semantics.loaded(kind, cpp("{}[{}]", space, scope.index(first)))))
        name = scope.function.fresh("warp")
        with scope.block(unrolled(name, "1", mine)) as inner:
            place = inner.index(inner.known(name, mine - 1, low=1) + first)
            for total, own in zip(totals, spaces, strict=True):
                kinds = total.group.kinds
                others = [
                    inner.declare(kind, "other", semantics.loaded(kind, cpp("{}[{}]", space, place)))
                    for kind, space in zip(kinds, own, strict=True)
                ]
                combine(self.elemental, inner, total.group.computation, total.names, others, kinds)

    def _space(self, scope: Scope, total: RowTotal, warps: int) -> list[Code]:
        """Pointers to where the warps' parts meet, one per value; every other round has another place."""
        found = []
        offsets = self.workspaces[total.group.members[0].name].offsets
        for kind, offset in zip(total.group.kinds, offsets, strict=True):
            name = scope.function.fresh("parts_of")
            scope.line(shared_pointer(kind, name, offset))
            if self.at.rounds > 1:
                parity = scope.index(self.at.turn % 2 * warps)
                whole, name = name, scope.function.fresh("parts_of")
                scope.line(cpp("{}* const {} = {} + {};", kind.memory, name, whole, parity))
            found.append(name)
        return found

    def with_init(self, scope: Scope, group: ReduceGroup, names: list[Code]) -> list[Code]:
        """The totals with the init values, which count once."""
        if all(self._neutral(group, init.name) for init in group.inits):
            return names
        started = []
        for kind, init in zip(group.kinds, group.inits, strict=True):
            value = self.elemental.value(scope, init.name, ())
            started.append(scope.function.fresh("reduce"))
            scope.line(cpp("{} {} = {};", kind.value, started[-1], value))
        combine(self.elemental, scope, group.computation, started, names, group.kinds)
        return started

    def _neutral(self, group: ReduceGroup, init: str) -> bool:
        instruction = self.module[init]
        if instruction.opcode != "constant" or group.identity is None:
            return False
        return semantics.literal(group.kinds[0], instruction.attributes["values"][0]) == group.identity

    def array(self, scope: Scope, group: ReduceGroup, count: int) -> RowTotal:
        """An array of what so many columns are reduced to, for each value."""
        for member in group.members:
            scope.comment(f"{member}")
        arrays = [scope.function.fresh("sums") for _ in group.kinds]
        for kind, array in zip(group.kinds, arrays, strict=True):
            scope.line(cpp("{} {}[{}];", kind.value, array, count))
        assert group.neutral is not None
        name = scope.function.fresh("i")
        with scope.block(unrolled(name, "0", count)) as inner:
            for array, neutral in zip(arrays, group.neutral, strict=True):
                inner.line(cpp("{}[{}] = {};", array, name, neutral))
        return RowTotal(group, arrays)
