"""Reductions of rows that lie in each other, over the pieces of a row: a number for each column of its runs.

The sums of a run's columns meet in a warp, then those of a row's warps in shared memory, where all threads read them.
"""

from collections.abc import Mapping

from fusiond.model.codegen.code import Code, cpp, hole
from fusiond_stitching.analysis.indexing import delinear
from fusiond_stitching.analysis.plan import WARP, StageResult
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Indices, type_of
from fusiond_stitching.codegen.reduction import BARRIER, ReduceGroup, loads, shuffles
from fusiond_stitching.codegen.row_cursor import unrolled
from fusiond_stitching.codegen.row_reductions import RowParts, RowTotal
from fusiond_stitching.codegen.scope import Scope


class RunReductions(RowParts):
    def begin(self, scope: Scope, group: ReduceGroup) -> RowTotal:
        """A sum for each column of a pack."""
        return self.array(scope, group, self.at.rows.pack)

    def accumulate(self, scope: Scope, total: RowTotal, values: list[Code]) -> None:
        sums = [cpp("{}[{}]", name, scope.index(self.at.element)) for name in total.names]
        total.group.combine(self.elemental, scope, sums, values)

    def exchange(self, scope: Scope, pieces: Mapping[str, RowTotal]) -> None:
        """The sums of a run's columns meet in a warp, then those of a row's warps in shared memory, where all threads
        read them."""
        if not pieces:
            return
        rows = self.at.rows
        width, packs = min(rows.lanes, WARP), rows.run // rows.pack
        for total in pieces.values():
            self._in_warp(scope, total, width, packs)
        spaces = {
            member: scope.shared(total.group.kinds[0], "pieces_of", self.workspaces[member].offsets[0])
            for member, total in pieces.items()
        }
        with scope.block(cpp("if (threadIdx.x % {} < {})", width, packs)) as first:
            for member, total in pieces.items():
                self._store_parts(first, total, spaces[member], width)
        scope.line(BARRIER)
        for member, total in pieces.items():
            self.memory.piece_totals[member] = self._sums(scope, total, spaces[member])
        scope.line(BARRIER)

    def _in_warp(self, scope: Scope, total: RowTotal, width: int, packs: int) -> None:
        """The lanes of a warp that have the same columns of a run put their sums together."""
        (kind,), (array,) = total.group.kinds, total.names
        step, j = scope.function.fresh("step"), scope.function.fresh("j")
        head = cpp('_Pragma("unroll") for (int {} = {}; {} >= {}; {} /= 2)', step, width // 2, step, packs, step)
        with (
            scope.block(head, conditional=False) as inner,
            inner.block(unrolled(j, "0", self.at.rows.pack), conditional=False) as each,
        ):
            mine = cpp("{}[{}]", array, j)
            others = shuffles(each, [kind], [mine], step, width, "xor")
            total.group.combine(self.elemental, each, [mine], others)

    def _store_parts(self, scope: Scope, total: RowTotal, space: Code, width: int) -> None:
        """A warp's sums go to shared memory."""
        (kind,), (array,), rows = total.group.kinds, total.names, self.at.rows
        j = scope.function.fresh("j")
        with scope.block(unrolled(j, "0", rows.pack)) as each:
            at = cpp("threadIdx.x / {} * {} + threadIdx.x % {} * {} + {}", width, rows.run, width, rows.pack, j)
            value = each.stored(kind, cpp("{}[{}]", array, j))
            each.line(cpp("{}[{}] = {};", space, at, value))

    def _sums(self, scope: Scope, total: RowTotal, parts: Code) -> Code:
        """The totals of all rows of the block, each by one thread; they lie behind the parts."""
        rows, (kind,) = self.at.rows, total.group.kinds
        count, warps = rows.rows_per_block * rows.run, max(1, rows.lanes // WARP)
        found = parts
        if warps > 1:
            found = scope.function.fresh("totals_of")
            scope.line(cpp("{}* const {} = {} + {};", kind.memory, found, parts, count * warps))
        at = scope.function.fresh("at")
        head = cpp("for (int {} = threadIdx.x; {} < {}; {} += {})", at, at, count, at, self.at.threads)
        with scope.block(head) as each:
            place = cpp("{} / {} * {} + {} % {}", at, rows.run, rows.run * warps, at, rows.run)
            sum_ = each.mutable(kind, "sum", semantics.loaded(kind, cpp("{}[{}]", parts, place)))
            if warps > 1:
                warp = each.function.fresh("warp")
                with each.block(cpp("for (int {} = 1; {} < {}; ++{})", warp, warp, warps, warp)) as inner:
                    others = loads(inner, [kind], [cpp("{}[{} + {} * {}]", parts, place, warp, rows.run)])
                    total.group.combine(self.elemental, inner, [sum_], others)
            (whole,) = self.with_init(each, total.group, [sum_])
            each.line(cpp("{}[{}] = {};", found, at, each.stored(kind, whole)))
        return found

    def fold(self, scope: Scope, group: ReduceGroup) -> None:
        """A row's pieces become one number, in every thread: they are few."""
        total = self.single(scope, group)
        with self.at.columns_of_run(scope, "0", 1) as inner:
            value = self.elemental.value(inner, group.operands[0].name, self._piece_indices(group.operands[0].name))
            group.combine(self.elemental, inner, total.names, [value])
        (name,) = self.with_init(scope, group, total.names)
        scope.remember(group.members[0].name, delinear(self.at.row, group.members[0].dims), name)

    def store(self, scope: Scope, result: StageResult) -> None:
        """A number for each column of a run, by a row's lanes."""
        assert result.stored is not None
        instruction, buffer = self.module[result.instruction], result.stored.buffer
        self.memory.pointers[buffer] = True
        guard = self.memory.guard()
        with self.at.columns_of_run(scope, self.at.lane, self.at.rows.lanes) as inner:
            value = self.elemental.value(inner, instruction.name, self._piece_indices(instruction.name))
            at = inner.index(self.at.piece)
            inner.line(cpp("{}{}[{}] = {};", guard, hole(buffer), at, inner.stored(type_of(instruction), value)))

    def _piece_indices(self, name: str) -> Indices:
        return delinear(self.at.piece, self.module[name].dims)
