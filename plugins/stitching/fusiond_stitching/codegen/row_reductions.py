"""Reductions over rows in registers, as statements: a total in each lane, shuffles, shared memory between warps.

Afterwards every lane of a row has the totals.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis.indexing import delinear
from fusiond_stitching.analysis.plan import WARP
from fusiond_stitching.analysis.row_workspaces import Workspace
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Elemental
from fusiond_stitching.codegen.reduction import ReduceGroup, loads, shuffled, shuffles, store_of_warps
from fusiond_stitching.codegen.row_cursor import unrolled
from fusiond_stitching.codegen.row_memory import RowMemory
from fusiond_stitching.codegen.scope import Scope

_ZERO = Code("0")


@dataclass(frozen=True, slots=True)
class RowTotal:
    """A reduce (or the results of a variadic one) and its variables; of columns, the array of its sums."""

    group: ReduceGroup
    names: list[Code]


@dataclass
class RowParts:
    """What all ways to put parts together share."""

    elemental: Elemental
    memory: RowMemory
    workspaces: Mapping[str, Workspace]

    def __post_init__(self) -> None:
        self.module = self.elemental.module
        self.at = self.memory.at

    def value(self, scope: Scope, name: str) -> Code:
        """The value of an instruction at the present column."""
        return self.elemental.value(scope, name, delinear(self.at.place, self.module[name].dims))

    def single(self, scope: Scope, group: ReduceGroup) -> RowTotal:
        """A variable for each value."""
        first = [group.identity or semantics.literal(kind, 0) for kind in group.kinds]
        names = [scope.mutable(kind, "total", value) for kind, value in zip(group.kinds, first, strict=True)]
        return RowTotal(group, names)

    def with_init(self, scope: Scope, group: ReduceGroup, names: list[Code]) -> list[Code]:
        """The totals with the init values, which count once."""
        if all(self._neutral(group, init.name) for init in group.inits):
            return names
        started = []
        for kind, init in zip(group.kinds, group.inits, strict=True):
            started.append(scope.mutable(kind, "reduce", self.elemental.value(scope, init.name, ())))
        group.combine(self.elemental, scope, started, names)
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


class RowReductions(RowParts):
    def accumulate(self, scope: Scope, total: RowTotal, values: list[Code]) -> None:
        group = total.group
        first = [each for each in (self.at.step, self.at.element) if each.fixed is None]
        if group.identity is not None:
            group.combine(self.elemental, scope, total.names, values)
        else:
            conditions = [cpp("{} == 0", scope.index(each)) for each in first]
            group.accumulate(self.elemental, scope, total.names, values, conditions)

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
                others = shuffles(inner, kinds, total.names, step, width, "xor")
                total.group.combine(self.elemental, inner, total.names, others)
        for total in totals:
            if total.group.computation.simple is None:  # the order of the lanes may matter: all take one of them
                for kind, name in zip(total.group.kinds, total.names, strict=True):
                    scope.line(cpp("{} = {};", name, shuffled(kind, name, _ZERO, width, "")))

    def _across_warps(self, scope: Scope, totals: list[RowTotal]) -> None:
        warps = self.at.threads // WARP
        spaces = [self._space(scope, total, warps) for total in totals]
        parts = [
            part
            for total, own in zip(totals, spaces, strict=True)
            for part in zip(total.group.kinds, total.names, own, strict=True)
        ]
        store_of_warps(scope, parts)
        mine = self.at.rows.lanes // WARP
        first = scope.variable("first", cpp("threadIdx.x / {} * {}", self.at.rows.lanes, mine), warps - mine + 1)
        for kind, name, space in parts:
            scope.line(cpp("{} = {};", name, semantics.loaded(kind, cpp("{}[{}]", space, scope.index(first)))))
        name = scope.function.fresh("warp")
        with scope.block(unrolled(name, "1", mine)) as inner:
            place = inner.index(inner.known(name, mine - 1, low=1) + first)
            for total, own in zip(totals, spaces, strict=True):
                kinds = total.group.kinds
                others = loads(inner, kinds, [cpp("{}[{}]", space, place) for space in own])
                total.group.combine(self.elemental, inner, total.names, others)

    def _space(self, scope: Scope, total: RowTotal, warps: int) -> list[Code]:
        """Pointers to where the warps' parts meet, one per value; every other round has another place."""
        found = []
        offsets = self.workspaces[total.group.members[0].name].offsets
        for kind, offset in zip(total.group.kinds, offsets, strict=True):
            name = scope.shared(kind, "parts_of", offset)
            if self.at.rounds > 1:
                parity = scope.index(self.at.turn % 2 * warps)
                whole, name = name, scope.function.fresh("parts_of")
                scope.line(cpp("{}* const {} = {} + {};", kind.memory, name, whole, parity))
            found.append(name)
        return found
