"""Reductions over the rows of a block: threads sum the columns they hold, row after row; then groups of lanes meet."""

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis.indexing import delinear
from fusiond_stitching.analysis.plan import RowPlace, Stage
from fusiond_stitching.analysis.row_workspaces import Workspace
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import type_of
from fusiond_stitching.codegen.loop_nests import kept
from fusiond_stitching.codegen.reduction import BARRIER, groups
from fusiond_stitching.codegen.row_cursor import ALWAYS
from fusiond_stitching.codegen.row_reductions import RowParts, RowTotal
from fusiond_stitching.codegen.scope import Scope


@dataclass
class ColumnSums(RowParts):
    stages: Collection[Stage]  #: Those whose results are a number for each column and block, in order
    totals: dict[str, RowTotal] = field(default_factory=dict)

    def begin(self, scope: Scope) -> None:
        """Sums of all columns that a thread holds."""
        for stage in self.stages:
            for group in groups(self.module, stage) if stage.reduction is not None else ():
                self.totals[group.members[0].name] = self.array(scope, group, self.at.rows.per_thread)

    def _sums_at(self, scope: Scope, total: RowTotal) -> list[Code]:
        at = scope.index(self.at.held)
        return [cpp("{}[{}]", name, at) for name in total.names]

    def accumulate(self, scope: Scope, total: RowTotal, values: list[Code]) -> None:
        group = total.group
        with scope.when([self.at.inside]) if self.at.inside else nullcontext(scope) as inner:
            group.combine(self.elemental, inner, self._sums_at(inner, total), values)

    def _meet(self, scope: Scope, own: Code, total: RowTotal, space: Workspace) -> None:
        kinds = total.group.kinds
        pointers = [scope.shared(kind, "parts_of", at) for kind, at in zip(kinds, space.offsets, strict=True)]
        half = scope.function.fresh("half")
        header = cpp("for (int {} = {}; {} > 0; {} /= 2)", half, self.at.at_once // 2, half, half)
        columns = self.at.rows.columns_per_block
        with scope.block(header, conditional=False) as round_:
            with (
                round_.block(cpp("if ({} >= {} && {} < 2 * {})", own, half, own, half)) as giving,
                self.at.columns(giving, RowPlace.COLUMN) as (_, element),
            ):
                at = element.index(self.at.column)
                for kind, pointer, sum_ in zip(kinds, pointers, self._sums_at(element, total), strict=True):
                    value = element.stored(kind, sum_)
                    element.line(cpp("{}[({} - {}) * {} + {}] = {};", pointer, own, half, columns, at, value))
            round_.line(BARRIER)
            with (
                round_.block(cpp("if ({} < {})", own, half)) as taking,
                self.at.columns(taking, RowPlace.COLUMN) as (_, element),
            ):
                at = element.index(self.at.column)
                others = [
                    semantics.loaded(kind, cpp("{}[{} * {} + {}]", pointer, own, columns, at))
                    for kind, pointer in zip(kinds, pointers, strict=True)
                ]
                total.group.combine(self.elemental, element, self._sums_at(element, total), others)
            round_.line(BARRIER)

    def store(self, scope: Scope) -> None:
        """The sums of a block's groups of lanes meet, and the first group stores them."""
        if not self.totals:
            return
        scope.line(Code(""))
        self.at.inside = ALWAYS
        if self.at.at_once == 1:
            self._results(scope)
            return
        own = scope.constant("int", "own", cpp("threadIdx.x / {}", self.at.rows.lanes))
        for member, total in self.totals.items():
            self._meet(scope, own, total, self.workspaces[member])
        with scope.block(cpp("if ({} == 0)", own)) as first:
            self._results(first)

    def _results(self, scope: Scope) -> None:
        results = [result for stage in self.stages for result in stage.results]
        for result in results:
            scope.comment(f"{self.module[result.instruction]}{kept(result)}")
        with self.at.columns(scope, RowPlace.COLUMN) as (packing, element):
            for total in self.totals.values():
                names = self.with_init(element, total.group, self._sums_at(element, total))
                for each in total.group.members:
                    found = names[each.attributes["result"]]
                    element.remember(each.name, delinear(self.at.place, each.dims), found)
            for result in results:
                if result.stored is not None:
                    value = self.value(element, result.instruction)
                    written = element.stored(type_of(self.module[result.instruction]), value)
                    self.memory.store(packing, element, result, written)
