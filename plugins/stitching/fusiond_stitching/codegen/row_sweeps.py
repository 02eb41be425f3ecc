"""Rows in registers as statements (`analysis.rows`): one loop per sweep, shuffles behind it.

    for each round of rows (one, mostly)
        for k in steps                     lane l has pack k * lanes + l of the row
            load packs, compute `pack` columns, keep and accumulate, store packs
        the parts of a reduction meet      every lane has the total
    sums of columns meet, and are stored

`row_cursor` writes the loops, `row_memory` finds values, `row_reductions`, `run_reductions` and `column_sums` put parts
together.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fusiond.model.codegen.code import Code, cpp, hole, joined
from fusiond_stitching.analysis.indexing import delinear, number
from fusiond_stitching.analysis.plan import BlockProgram, Registers, RowPlace, Rows, Stage, StageResult
from fusiond_stitching.analysis.row_workspaces import folds_pieces, workspaces
from fusiond_stitching.codegen.column_sums import ColumnSums
from fusiond_stitching.codegen.elemental import Elemental, type_of
from fusiond_stitching.codegen.loop_nests import STEPS, BlockWriter, kept
from fusiond_stitching.codegen.reduction import ReduceGroup, groups
from fusiond_stitching.codegen.row_cursor import ALWAYS, RowCursor
from fusiond_stitching.codegen.row_memory import RowMemory
from fusiond_stitching.codegen.row_reductions import RowReductions, RowTotal
from fusiond_stitching.codegen.run_reductions import RunReductions
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.graph import HloModule


@dataclass(slots=True)
class _Sweep:
    """What one loop over the rows does."""

    wide: list[Stage] = field(default_factory=list)
    reduces: list[Stage] = field(default_factory=list)
    pieces: list[Stage] = field(default_factory=list)
    folds: list[Stage] = field(default_factory=list)  #: Reductions of pieces to rows
    single: list[Stage] = field(default_factory=list)
    columns: list[Stage] = field(default_factory=list)

    @property
    def wide_results(self) -> list[StageResult]:
        return [result for stage in self.wide for result in stage.results]


def _sweeps(module: HloModule, program: BlockProgram, rows: Rows) -> list[_Sweep]:
    """The stages of a program by their sweeps and what they do there."""
    found: list[_Sweep] = []
    for stage in program.stages:
        while len(found) <= stage.sweep:
            found.append(_Sweep())
        here = found[stage.sweep]
        if stage.place is RowPlace.WIDE:
            here.wide.append(stage)
        elif stage.place is RowPlace.COLUMN:
            here.columns.append(stage)
        elif stage.reduction is None:
            here.single.append(stage)
        elif stage.place is RowPlace.PIECE:
            here.pieces.append(stage)
        elif folds_pieces(module, module[stage.results[0].instruction], rows):
            here.folds.append(stage)
        else:
            here.reduces.append(stage)
    return found


class RowSweeps(BlockWriter):
    """Of rows in registers."""

    def __post_init__(self) -> None:
        module, program, threads = self.module, self.program, self.threads
        assert program.rows is not None
        self._rows = program.rows
        self._at = RowCursor(program, threads)
        self._memory = RowMemory(module, program, self._at, self.available, self.pointers)
        self._elemental = Elemental(module, self._memory, STEPS)
        self._workspaces = workspaces(module, program, threads)
        parts = (self._elemental, self._memory, self._workspaces)
        self._reductions, self._runs = RowReductions(*parts), RunReductions(*parts)
        self._sweeps = _sweeps(module, program, self._rows)
        columns = [stage for sweep in self._sweeps for stage in sweep.columns]
        self._columns = ColumnSums(*parts, columns)

    def write(self, scope: Scope, block: str) -> None:
        """All of it; `block` is the variable that holds the block's number inside the program."""
        self._at.begin(scope, block)
        self._columns.begin(scope)
        if self._at.rounds == 1:
            self._at.go_to(scope, number(0))
            self._round(scope)
        else:
            turn = scope.function.fresh("round")
            header = cpp("for (int {} = 0; {} < {}; ++{})", turn, turn, self._at.rounds, turn)
            with scope.block(header, conditional=False) as body:
                self._at.go_to(body, body.known(turn, self._at.rounds))
                self._round(body)
        self._columns.store(scope)

    def _round(self, scope: Scope) -> None:
        """One row for each group of lanes."""
        self._memory.declare(scope, sum(each.size_bytes for each in self._workspaces.values()))
        for place, sweep in enumerate(self._sweeps):
            if place:
                scope.line(Code(""))
            self._sweep(scope, sweep)

    def _sweep(self, scope: Scope, sweep: _Sweep) -> None:
        """A loop over the row, and what comes behind it."""
        totals = [self._reductions.single(scope, group) for group in self._groups(sweep.reduces)]
        pieces = {group.members[0].name: self._runs.begin(scope, group) for group in self._groups(sweep.pieces)}
        self._loop(scope, sweep, totals, pieces)
        self._reductions.exchange(scope, totals)
        self._runs.exchange(scope, pieces)
        for group in sorted(self._groups(sweep.folds), key=lambda each: self.module.number[each.members[0].name]):
            self._runs.fold(scope, group)
        for stage in (*sweep.reduces, *sweep.folds, *sweep.pieces, *sweep.single):
            for result in stage.results:
                if result.stored is not None and stage.place is RowPlace.PIECE:
                    self._runs.store(scope, result)
                elif result.stored is not None:
                    self._store_single(scope, stage, result)

    def _groups(self, stages: Collection[Stage]) -> list[ReduceGroup]:
        return [group for stage in stages for group in groups(self.module, stage)]

    def _loop(self, scope: Scope, sweep: _Sweep, totals: Collection[RowTotal], pieces: Mapping[str, RowTotal]) -> None:
        """What is computed of each column: stored and kept values, and parts of reductions."""
        columns = [
            self._columns.totals[each.instruction]
            for stage in sweep.columns
            for each in stage.results
            if each.instruction in self._columns.totals
        ]
        for result in sweep.wide_results:
            scope.comment(f"{self.module[result.instruction]}{kept(result)}")
        if not (sweep.wide or totals or columns or pieces):
            return
        with self._at.columns(scope, RowPlace.WIDE) as (packing, element):
            for result in sweep.wide_results:
                self._result(packing, element, result)
            for accumulate, found in (
                (self._reductions.accumulate, totals),
                (self._columns.accumulate, columns),
                (self._runs.accumulate, pieces.values()),
            ):
                for total in found:
                    values = [self._reductions.value(element, each.name) for each in total.group.operands]
                    accumulate(element, total, values)
        self._memory.filled |= {result.instruction for result in sweep.wide_results}
        self._memory.filled |= set(self._memory.first_read)
        self._at.backwards = self._rows.streamed and not self._at.backwards

    def _result(self, packing: Scope, element: Scope, result: StageResult) -> None:
        name = result.instruction
        written = element.stored(type_of(self.module[name]), self._reductions.value(element, name))
        if Registers() in result.homes:
            element.line(cpp("{}[{}] = {};", self._memory.kept[name], element.index(self._at.held), written))
        if result.stored is not None:
            self._memory.store(packing, element, result, written)

    def _store_single(self, scope: Scope, stage: Stage, result: StageResult) -> None:
        """A number per row, or a few: its first lane stores them."""
        assert result.stored is not None
        instruction, at = self.module[result.instruction], self._at
        self._memory.pointers[result.stored.buffer] = True
        conditions = [cpp("{} == 0", at.lane)] if self._rows.lanes > 1 else []
        conditions += [at.inside] if at.inside else []
        guard = cpp("if ({}) ", joined(" && ", conditions)) if conditions else ALWAYS
        few = instruction.elements // self._rows.count if stage.place is RowPlace.FEW else 1
        for one in range(few):
            place = at.row * few + one
            value = self._elemental.value(scope, instruction.name, delinear(place, instruction.dims))
            written = scope.stored(type_of(instruction), value)
            scope.line(cpp("{}{}[{}] = {};", guard, hole(result.stored.buffer), scope.index(place), written))
