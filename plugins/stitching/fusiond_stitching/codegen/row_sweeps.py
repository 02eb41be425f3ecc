"""Rows in registers as statements (`analysis.rows`): a loop per sweep over what a thread holds, shuffles behind it.

    for each round of rows (one, mostly)
        for k in steps                     lane l has pack k * lanes + l of the row
            load packs, compute `pack` columns, keep and accumulate, store packs
        the parts of a reduction meet      every lane has the total
    sums of columns meet, and are stored

Loops over what a thread holds are unrolled, so that arrays become registers. Memory is read and written in packs of up
to 16 bytes wherever the place of a value is `pack` times something, plus the column inside the pack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from fusiond.codegen.code import Code, cpp, hole, joined
from fusiond_stitching.analysis.indexing import Index, delinear, linear, number
from fusiond_stitching.analysis.plan import WARP, BlockProgram, Place, Registers, Result, Stage
from fusiond_stitching.analysis.row_shapes import interleaved
from fusiond_stitching.analysis.row_workspaces import Workspace, folds_pieces, held_bytes, workspaces
from fusiond_stitching.codegen import elemental, indexed, semantics
from fusiond_stitching.codegen.elemental import Elemental, Indices, combine, type_of
from fusiond_stitching.codegen.loop_nests import kept
from fusiond_stitching.codegen.reduction import BARRIER, Group, groups, shared_pointer, shuffled
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.graph import Module

STEPS = {**elemental.STEPS, **indexed.STEPS}
_ZERO = Code("0")
_ALWAYS = Code("")
_THREAD = Code("threadIdx.x")


@dataclass(slots=True)
class _Sweep:
    """What one loop over the rows does."""

    wide: list[Stage] = field(default_factory=list)
    reduces: list[Stage] = field(default_factory=list)
    pieces: list[Stage] = field(default_factory=list)
    folds: list[Stage] = field(default_factory=list)
    """Reductions of pieces to rows."""
    single: list[Stage] = field(default_factory=list)
    columns: list[Stage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Total:
    """A reduce (or the results of a variadic one) and its variables; of columns, the array of its sums."""

    group: Group
    names: list[Code]


class RowSweeps:
    """Writes a block program whose rows are in registers; the parameters are those of `loop_nests.LoopNests`."""

    def __init__(
        self, module: Module, program: BlockProgram, threads: int, available: Collection[str], pointers: dict[str, bool]
    ) -> None:
        assert program.rows is not None
        self._module = module
        self._program = program
        self._rows = program.rows
        self._threads = threads
        self._available = set(available)
        self._pointers = pointers
        self._elemental = Elemental(module, self, STEPS)
        self._workspaces = workspaces(module, program, threads)
        self._at_once = threads // self._rows.lanes
        self._rounds = -(-self._rows.rows_per_block // self._at_once)
        self._kept: dict[str, Code] = {}
        """Arrays of kept values and of held packs, by instruction."""
        self._filled: set[str] = set()
        """Those whose values are there by now."""
        self._loaded: dict[tuple[str, Index], Code] = {}
        """Packs that the present step has loaded."""
        self._place: Index = number(0)
        """The present column's place in the row-major order of what is as wide as the rows."""
        self._row: Index = number(0)
        self._column: Index = number(0)
        """The present column, counted from the block's first."""
        self._element: Index = number(0)
        self._step: Index = number(0)
        self._own: Index = number(0)
        """The row, counted from the block's first."""
        self._of_run: Index = number(0)
        """The present column, counted from its run's first."""
        self._piece_totals: dict[str, Code] = {}
        """Pointers to what the columns of runs were reduced to, in shared memory."""
        self._packing: Scope | None = None
        """The block in which packs are loaded; None outside of a loop over columns."""
        self._stores: list[Code] = []
        """What is stored when a pack is whole."""
        self._inside = _ALWAYS
        self._first_read: list[str] = []
        """What the sweeps so far have put into shared memory."""
        self._backwards = False
        self._lanes: Index = number(0)
        self._block: Index = number(0)
        self._lane = _THREAD

    # --- the program ---

    def write(self, scope: Scope, block: str) -> None:
        """All of it; `block` is the variable that holds the block's number inside the program."""
        self._block = scope.known(block, self._program.blocks)
        rows = self._rows
        lane = cpp("threadIdx.x % {}", rows.lanes) if rows.lanes < self._threads else _THREAD
        self._lane = scope.constant("int", "lane", lane)
        sweeps = self._sweeps()
        sums = self._column_sums(scope, sweeps)
        if self._rounds == 1:
            self._round(scope, sweeps, number(0), sums)
        else:
            turn = scope.function.fresh("round")
            header = cpp("for (int {} = 0; {} < {}; ++{})", turn, turn, self._rounds, turn)
            with scope.block(header, conditional=False) as body:
                self._round(body, sweeps, body.known(turn, self._rounds), sums)
        self._columns(scope, sweeps, sums)

    def _sweeps(self) -> list[_Sweep]:
        found: list[_Sweep] = []
        for stage in self._program.stages:
            while len(found) <= stage.sweep:
                found.append(_Sweep())
            here = found[stage.sweep]
            if stage.place is Place.WIDE:
                here.wide.append(stage)
            elif stage.place is Place.COLUMN:
                here.columns.append(stage)
            elif stage.place is Place.PIECE and stage.reduction is not None:
                here.pieces.append(stage)
            elif stage.reduction is not None and self._folds(stage):
                here.folds.append(stage)
            elif stage.reduction is not None:
                here.reduces.append(stage)
            else:
                here.single.append(stage)
        return found

    def _folds(self, stage: Stage) -> bool:
        return folds_pieces(self._module, self._module[stage.results[0].instruction], self._rows)

    def _round(self, scope: Scope, sweeps: list[_Sweep], turn: Index, sums: Mapping[str, _Total]) -> None:
        """One row for each group of lanes."""
        self._filled.clear()
        self._row, self._inside = self._own_row(scope, turn)
        self._declare_kept(scope)
        for number_, sweep in enumerate(sweeps):
            if number_:
                scope.line(Code(""))
            self._sweep(scope, sweep, turn, sums)

    def _own_row(self, scope: Scope, turn: Index) -> tuple[Index, Code]:
        """The row that a thread works on, and the condition that there is one (empty where there is for all); the
        others work on the last one, and store nothing."""
        rows = self._rows
        if self._flat:
            return number(0), _ALWAYS
        own = scope.variable("own", cpp("threadIdx.x / {}", rows.lanes), self._at_once)
        local = self._own = turn * self._at_once + own
        place = self._block // rows.slabs * rows.rows_per_block + local
        conditions = []
        if local.high >= rows.rows_per_block:
            conditions.append(cpp("{} < {}", scope.index(local), rows.rows_per_block))
        if place.high >= rows.count and self._program.blocks // rows.slabs * rows.rows_per_block > rows.count:
            conditions.append(cpp("{} < {}", scope.index(place), rows.count))
        if not conditions:
            return scope.variable("row", scope.index(place), rows.count), _ALWAYS
        inside = scope.constant("bool", "inside", joined(" && ", conditions))
        return scope.variable(
            "row", cpp("{} ? {} : {}", inside, scope.index(place), rows.count - 1), rows.count
        ), inside

    @property
    def _flat(self) -> bool:
        """The blocks share one row."""
        return self._rows.count == 1 and self._rows.rows_per_block == 1

    def _declare_kept(self, scope: Scope) -> None:
        """Arrays for what stays in registers, or in shared memory."""
        offset = sum(each.size_bytes for each in self._workspaces.values())
        for name in self._rows.held:
            kind = type_of(self._module[name])
            array = scope.function.fresh("held")
            scope.comment(f"{self._module[name]}")
            self._kept[name] = array
            if self._rows.streamed:
                pack = scope.function.unit.pack(kind, self._rows.pack)
                scope.line(cpp("{0}* const {1} = ({0}*)(arena + {2});", pack, array, offset))
                offset += held_bytes(self._module, self._rows, name)
                continue
            scope.line(cpp("{} {}[{}];", scope.function.unit.pack(kind, self._rows.pack), array, self._rows.steps))
        for result in self._program.results:
            instruction = self._module[result.instruction]
            if Registers() in result.homes and instruction.opcode != "reduce":
                kind = type_of(instruction)
                array = scope.function.fresh(f"kept_{instruction.opcode}")
                scope.line(cpp("{} {}[{}];", kind.memory, array, self._rows.per_thread).needing(*kind.headers))
                self._kept[result.instruction] = array

    # --- elemental.Reader ---

    def place(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        position = linear(indices, self._module[name].dims)
        if name in self._piece_totals and position == self._row * self._rows.run + self._of_run:
            return cpp("{}[{}]", self._piece_totals[name], scope.index(self._own * self._rows.run + self._of_run))
        if name in self._kept and self._packing is not None and position == self._place:
            if name not in self._rows.held:
                if name in self._filled:
                    at = scope.index(self._step * self._rows.pack + self._element)
                    return cpp("{}[{}]", self._kept[name], at)
                return None
            if self._rows.streamed:
                return cpp("{}.at[{}]", self._streamed_pack(name), scope.index(self._element))
            if name not in self._filled:
                packing, first = self._packing, self._place - self._element
                packing.line(
                    cpp(
                        "{}[{}] = {};", self._kept[name], packing.index(self._step), self._pack_at(packing, name, first)
                    )
                )
                self._filled.add(name)
            return cpp("{}[{}].at[{}]", self._kept[name], scope.index(self._step), scope.index(self._element))
        if name not in self._available:
            return None
        pack = self._pack_of(position)
        if pack is not None:
            return cpp("{}.at[{}]", self._loaded_pack(name, pack), scope.index(self._element))
        return cpp("{}[{}]", self._buffer(name), scope.index(position))

    def _streamed_pack(self, name: str) -> Code:
        """The present pack of a value whose first packs are in shared memory, from the second sweep on. (Sweeps change
        their direction: what the second begins with was read last, and is still in the second-level cache.)"""
        first = self._place - self._element
        found = self._loaded.get((name, first))
        if found is not None:
            return found
        assert self._packing is not None
        scope, rows = self._packing, self._rows
        kind = scope.function.unit.pack(type_of(self._module[name]), rows.pack)
        slot = cpp("{}[{}]", self._kept[name], scope.index(self._step * rows.lanes + self._lanes))
        inside = cpp("{} < {}", scope.index(self._step), rows.shared_steps)
        if name in self._filled:
            load = cpp("{} ? {} : {}", inside, slot, self._pack_at(scope, name, first))
            found = scope.constant(kind, "pack", load)
        else:
            found = scope.constant(kind, "pack", self._pack_at(scope, name, first))
            scope.line(cpp("if ({}) {} = {};", inside, slot, found))
            self._first_read.append(name)
        self._loaded[name, first] = found
        return found

    def _buffer(self, name: str) -> Code:
        buffer = self._module.buffer_of(name)
        self._pointers.setdefault(buffer, False)
        return hole(buffer)

    def _pack_of(self, position: Index) -> Index | None:
        """Where the pack begins that a place lies in, if it is the present column of one."""
        pack = self._rows.pack
        if pack == 1 or self._packing is None:
            return None
        first = position - self._element
        if self._element.symbols & first.symbols or first.symbols == position.symbols:
            return None
        if not all(self._packing.knows(name) for name in first.symbols):
            return None  # what stands behind a condition, or is found inside of the pack
        aligned = first.constant % pack == 0 and all(count % pack == 0 for _, count in first.terms)
        return first if aligned else None

    def _pack_at(self, scope: Scope, name: str, first: Index) -> Code:
        kind = scope.function.unit.pack(type_of(self._module[name]), self._rows.pack)
        return cpp("*(const {}*)({} + {})", kind, self._buffer(name), scope.index(first))

    def _loaded_pack(self, name: str, first: Index) -> Code:
        found = self._loaded.get((name, first))
        if found is None:
            assert self._packing is not None
            scope = self._packing
            kind = scope.function.unit.pack(type_of(self._module[name]), self._rows.pack)
            found = scope.constant(kind, "pack", self._pack_at(scope, name, first))
            self._loaded[name, first] = found
        return found

    # --- one sweep ---

    def _sweep(self, scope: Scope, sweep: _Sweep, turn: Index, sums: Mapping[str, _Total]) -> None:
        totals = [self._total(scope, group) for stage in sweep.reduces for group in groups(self._module, stage)]
        columns = [each for stage in sweep.columns for each in stage.results if each.instruction in sums]
        pieces = {
            group.members[0].name: self._sums_of(scope, group, self._rows.pack)
            for stage in sweep.pieces for group in groups(self._module, stage)
        }  # fmt: skip
        for stage in sweep.wide:
            for result in stage.results:
                scope.comment(f"{self._module[result.instruction]}{kept(result)}")
        if sweep.wide or totals or columns or pieces:
            with self._columns_of(scope, Place.WIDE) as (packing, element):
                for stage in sweep.wide:
                    for result in stage.results:
                        self._result(packing, element, stage, result)
                for total in totals:
                    values = [self._value(element, each.name) for each in total.group.operands]
                    self._accumulate(element, total, values)
                for result in columns:
                    total = sums[result.instruction]
                    self._add_to_column(
                        element, total, [self._value(element, each.name) for each in total.group.operands]
                    )
                for total in pieces.values():
                    values = [self._value(element, each.name) for each in total.group.operands]
                    those = [cpp("{}[{}]", name, element.index(self._element)) for name in total.names]
                    combine(self._elemental, element, total.group.computation, those, values, total.group.kinds)
            self._filled |= {each.instruction for stage in sweep.wide for each in stage.results}
            self._filled |= set(self._first_read)
            self._backwards = self._rows.streamed and not self._backwards
        self._exchange(scope, totals, turn)
        self._exchange_pieces(scope, pieces)
        folds = [group for stage in sweep.folds for group in groups(self._module, stage)]
        for group in sorted(folds, key=lambda each: self._module.number[each.members[0].name]):
            self._fold(scope, group)
        for stage in (*sweep.reduces, *sweep.folds, *sweep.pieces, *sweep.single):
            for result in stage.results:
                if result.stored is not None and stage.place is Place.PIECE:
                    self._store_pieces(scope, result)
                elif result.stored is not None:
                    self._store_single(scope, stage, result)

    @contextmanager
    def _columns_of(self, scope: Scope, place: Place) -> Iterator[tuple[Scope, Scope]]:
        """A loop over what a thread holds: (the block of a pack, the block of a column)."""
        rows = self._rows
        with ExitStack() as stack:
            packing = scope
            self._step = number(0)
            if rows.steps > 1:
                name = scope.function.fresh("k")
                header = _unrolled(name, "0", rows.steps, " 4" if rows.streamed else "")
                packing = stack.enter_context(scope.block(header, conditional=False))
                self._step = packing.known(name, rows.steps)
                if self._backwards:  # what was read last is still in the second-level cache
                    turned = self._step * -1 + (rows.steps - 1)
                    self._step = packing.variable("step", packing.index(turned), rows.steps)
            count = rows.columns // rows.pack
            lane = self._lanes = packing.known(self._lane, rows.lanes)
            part = self._block if self._flat else self._block % rows.slabs
            first = (part * rows.steps + self._step) * rows.lanes + lane
            vector = packing.constant(scope.function.index_type, "vector", packing.index(first))
            if first.high >= count:
                condition = cpp("if ({} < {})", vector, count)
                packing = stack.enter_context(packing.block(condition, conditional=False))
            self._packing, self._loaded, stores = packing, {}, self._stores
            start = packing.known(vector, count) * rows.pack
            self._element, element = number(0), packing
            with ExitStack() as columns:
                if rows.pack > 1:
                    name = scope.function.fresh("j")
                    header = _unrolled(name, "0", rows.pack)
                    element = columns.enter_context(packing.block(header, conditional=False))
                    self._element = element.known(name, rows.pack)
                self._column = (start + self._element) - part * (rows.steps * rows.lanes * rows.pack)
                outer = self._row if place is Place.WIDE else self._block // rows.slabs
                self._place = outer * rows.columns + start + self._element
                if rows.between > 1:
                    own, packs = packing.known(vector, count), rows.run // rows.pack
                    inside = self._of_run = own % packs * rows.pack + self._element
                    self._place = interleaved(self._row, own // packs, inside, rows)
                yield packing, element
            for line in stores:
                packing.line(line)
            stores.clear()
            self._packing = None

    def _value(self, scope: Scope, name: str) -> Code:
        return self._elemental.value(scope, name, delinear(self._place, self._module[name].dims))

    def _result(self, packing: Scope, element: Scope, stage: Stage, result: Result) -> None:
        name = result.instruction
        written = element.stored(type_of(self._module[name]), self._value(element, name))
        if Registers() in result.homes:
            at = element.index(self._step * self._rows.pack + self._element)
            element.line(cpp("{}[{}] = {};", self._kept[name], at, written))
        if result.stored is not None:
            self._store(packing, element, result, written)

    def _store(self, packing: Scope, element: Scope, result: Result, written: Code) -> None:
        """Into a pack, which is stored when all its columns are there."""
        assert result.stored is not None
        buffer = result.stored.buffer
        self._pointers[buffer] = True
        guard = cpp("if ({}) ", self._inside) if self._inside else _ALWAYS
        if self._rows.pack == 1:
            element.line(cpp("{}{}[{}] = {};", guard, hole(buffer), element.index(self._place), written))
            return
        kind = packing.function.unit.pack(type_of(self._module[result.instruction]), self._rows.pack)
        name = packing.function.fresh("result")
        packing.line(cpp("{} {};", kind, name))
        element.line(cpp("{}.at[{}] = {};", name, element.index(self._element), written))
        first = packing.index(self._place - self._element)
        self._stores.append(cpp("{}*({}*)({} + {}) = {};", guard, kind, hole(buffer), first, name))

    def _store_single(self, scope: Scope, stage: Stage, result: Result) -> None:
        """A number per row, or a few: its first lane stores them."""
        assert result.stored is not None
        instruction = self._module[result.instruction]
        self._pointers[result.stored.buffer] = True
        conditions = [cpp("{} == 0", self._lane)] if self._rows.lanes > 1 else []
        conditions += [self._inside] if self._inside else []
        guard = cpp("if ({}) ", joined(" && ", conditions)) if conditions else _ALWAYS
        few = instruction.elements // self._rows.count if stage.place is Place.FEW else 1
        for number_ in range(few):
            at = self._row * few + number_
            value = self._elemental.value(scope, instruction.name, delinear(at, instruction.dims))
            written = scope.stored(type_of(instruction), value)
            scope.line(cpp("{}{}[{}] = {};", guard, hole(result.stored.buffer), scope.index(at), written))

    # --- reductions over a row ---

    def _total(self, scope: Scope, group: Group) -> _Total:
        names = []
        for kind in group.kinds:
            names.append(scope.function.fresh("total"))
            scope.line(cpp("{} {} = {};", kind.value, names[-1], group.identity or semantics.literal(kind, 0)))
        return _Total(group, names)

    def _accumulate(self, scope: Scope, total: _Total, values: list[Code]) -> None:
        group = total.group
        first = [each for each in (self._step, self._element) if each.fixed is None]
        if group.identity is not None:
            combine(self._elemental, scope, group.computation, total.names, values, group.kinds)
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
            combine(self._elemental, go_on, group.computation, total.names, values, group.kinds)

    def _exchange(self, scope: Scope, totals: list[_Total], turn: Index) -> None:
        """Every lane of a row gets the totals, the init values among them."""
        width = min(self._rows.lanes, WARP)
        if width > 1 and totals:
            self._butterfly(scope, totals, width)
        if self._rows.lanes > WARP and totals:
            self._across_warps(scope, totals, turn)
        for total in totals:
            names = self._with_init(scope, total.group, total.names)
            for each in total.group.members:
                scope.remember(each.name, delinear(self._row, each.dims), names[each.attributes["result"]])

    def _butterfly(self, scope: Scope, totals: list[_Total], width: int) -> None:
        step = scope.function.fresh("step")
        head = cpp('_Pragma("unroll") for (int {} = {}; {} > 0; {} /= 2)', step, width // 2, step, step)
        with scope.block(head) as inner:
            for total in totals:
                kinds = total.group.kinds
                others = [
                    inner.declare(kind, "other", shuffled(kind, name, step, width, "xor"))
                    for kind, name in zip(kinds, total.names, strict=True)
                ]
                combine(self._elemental, inner, total.group.computation, total.names, others, kinds)
        for total in totals:
            if total.group.computation.simple is None:  # the order of the lanes may matter: all take one of them
                for kind, name in zip(total.group.kinds, total.names, strict=True):
                    scope.line(cpp("{} = {};", name, shuffled(kind, name, _ZERO, width, "")))

    def _across_warps(self, scope: Scope, totals: list[_Total], turn: Index) -> None:
        warps = self._threads // WARP
        spaces = [self._space(scope, total, warps, turn) for total in totals]
        with scope.block(cpp("if (threadIdx.x % {} == 0)", WARP)) as inner:
            for total, own in zip(totals, spaces, strict=True):
                for kind, name, space in zip(total.group.kinds, total.names, own, strict=True):
                    inner.line(cpp("{}[threadIdx.x / {}] = {};", space, WARP, inner.stored(kind, name)))
        scope.line(BARRIER)
        mine = self._rows.lanes // WARP
        first = scope.variable("first", cpp("threadIdx.x / {} * {}", self._rows.lanes, mine), warps - mine + 1)
        for total, own in zip(totals, spaces, strict=True):
            for kind, name, space in zip(total.group.kinds, total.names, own, strict=True):
                scope.line(cpp("{} = {};", name, semantics.loaded(kind, cpp("{}[{}]", space, scope.index(first)))))
        name = scope.function.fresh("warp")
        with scope.block(_unrolled(name, "1", mine)) as inner:
            place = inner.index(inner.known(name, mine - 1, low=1) + first)
            for total, own in zip(totals, spaces, strict=True):
                kinds = total.group.kinds
                others = [
                    inner.declare(kind, "other", semantics.loaded(kind, cpp("{}[{}]", space, place)))
                    for kind, space in zip(kinds, own, strict=True)
                ]
                combine(self._elemental, inner, total.group.computation, total.names, others, kinds)

    def _space(self, scope: Scope, total: _Total, warps: int, turn: Index) -> list[Code]:
        """Pointers to where the warps' parts meet, one per value; every other round has another place."""
        found = []
        offsets = self._workspaces[total.group.members[0].name].offsets
        for kind, offset in zip(total.group.kinds, offsets, strict=True):
            name = scope.function.fresh("parts_of")
            scope.line(shared_pointer(kind, name, offset))
            if self._rounds > 1:
                parity = scope.index(turn % 2 * warps)
                whole, name = name, scope.function.fresh("parts_of")
                scope.line(cpp("{}* const {} = {} + {};", kind.memory, name, whole, parity))
            found.append(name)
        return found

    def _with_init(self, scope: Scope, group: Group, names: list[Code]) -> list[Code]:
        """The totals with the init values, which count once."""
        if all(self._neutral(group, init.name) for init in group.inits):
            return names
        started = []
        for kind, init in zip(group.kinds, group.inits, strict=True):
            value = self._elemental.value(scope, init.name, ())
            started.append(scope.function.fresh("reduce"))
            scope.line(cpp("{} {} = {};", kind.value, started[-1], value))
        combine(self._elemental, scope, group.computation, started, names, group.kinds)
        return started

    def _neutral(self, group: Group, init: str) -> bool:
        instruction = self._module[init]
        if instruction.opcode != "constant" or group.identity is None:
            return False
        return semantics.literal(group.kinds[0], instruction.attributes["values"][0]) == group.identity

    # --- reductions over the runs of a row ---

    def _exchange_pieces(self, scope: Scope, pieces: Mapping[str, _Total]) -> None:
        """The sums of a run's columns meet in a warp, then those of a row's warps in shared memory, where all threads
        read them."""
        if not pieces:
            return
        rows = self._rows
        width, packs = min(rows.lanes, WARP), rows.run // rows.pack
        for total in pieces.values():
            (kind,), (array,) = total.group.kinds, total.names
            step, j = scope.function.fresh("step"), scope.function.fresh("j")
            head = cpp('_Pragma("unroll") for (int {} = {}; {} >= {}; {} /= 2)', step, width // 2, step, packs, step)
            with (
                scope.block(head, conditional=False) as inner,
                inner.block(_unrolled(j, "0", rows.pack), conditional=False) as each,
            ):
                mine = cpp("{}[{}]", array, j)
                other = each.declare(kind, "other", shuffled(kind, mine, step, width, "xor"))
                combine(self._elemental, each, total.group.computation, [mine], [other], [kind])
        warps = max(1, rows.lanes // WARP)
        spaces = {}
        for member, total in pieces.items():
            spaces[member] = scope.function.fresh("pieces_of")
            scope.line(shared_pointer(total.group.kinds[0], spaces[member], self._workspaces[member].offsets[0]))
        with scope.block(cpp("if (threadIdx.x % {} < {})", width, packs)) as first:
            for member, total in pieces.items():
                (kind,), (array,) = total.group.kinds, total.names
                j = first.function.fresh("j")
                with first.block(_unrolled(j, "0", rows.pack)) as each:
                    at = cpp("threadIdx.x / {} * {} + threadIdx.x % {} * {} + {}", width, rows.run, width, rows.pack, j)
                    value = each.stored(kind, cpp("{}[{}]", array, j))
                    each.line(cpp("{}[{}] = {};", spaces[member], at, value))
        scope.line(BARRIER)
        for member, total in pieces.items():
            self._piece_totals[member] = self._piece_sums(scope, total, spaces[member], warps)
        scope.line(BARRIER)

    def _piece_sums(self, scope: Scope, total: _Total, parts: Code, warps: int) -> Code:
        """The totals of all rows of the block, each by one thread; they lie behind the parts."""
        rows, (kind,) = self._rows, total.group.kinds
        count = rows.rows_per_block * rows.run
        found = parts
        if warps > 1:
            found = scope.function.fresh("totals_of")
            scope.line(cpp("{}* const {} = {} + {};", kind.memory, found, parts, count * warps))
        at = scope.function.fresh("at")
        head = cpp("for (int {} = threadIdx.x; {} < {}; {} += {})", at, at, count, at, self._threads)
        with scope.block(head) as each:
            place = cpp("{} / {} * {} + {} % {}", at, rows.run, rows.run * warps, at, rows.run)
            sum_ = each.function.fresh("sum")
            each.line(cpp("{} {} = {};", kind.value, sum_, semantics.loaded(kind, cpp("{}[{}]", parts, place))))
            if warps > 1:
                warp = each.function.fresh("warp")
                with each.block(cpp("for (int {} = 1; {} < {}; ++{})", warp, warp, warps, warp)) as inner:
                    next_ = cpp("{}[{} + {} * {}]", parts, place, warp, rows.run)
                    other = inner.declare(kind, "other", semantics.loaded(kind, next_))
                    combine(self._elemental, inner, total.group.computation, [sum_], [other], [kind])
            (whole,) = self._with_init(each, total.group, [sum_])
            each.line(cpp("{}[{}] = {};", found, at, each.stored(kind, whole)))
        return found

    def _fold(self, scope: Scope, group: Group) -> None:
        """A row's pieces become one number, in every thread: they are few."""
        total = self._total(scope, group)
        with self._pieces_of(scope, "0", 1) as inner:
            value = self._elemental.value(inner, group.operands[0].name, self._piece_indices(group.operands[0].name))
            combine(self._elemental, inner, group.computation, total.names, [value], group.kinds)
        (name,) = self._with_init(scope, group, total.names)
        scope.remember(group.members[0].name, delinear(self._row, group.members[0].dims), name)

    def _store_pieces(self, scope: Scope, result: Result) -> None:
        """A number for each column of a run, by a row's lanes."""
        assert result.stored is not None
        instruction, buffer = self._module[result.instruction], result.stored.buffer
        self._pointers[buffer] = True
        guard = cpp("if ({}) ", self._inside) if self._inside else _ALWAYS
        with self._pieces_of(scope, self._lane, self._rows.lanes) as inner:
            value = self._elemental.value(inner, instruction.name, self._piece_indices(instruction.name))
            at = inner.index(self._row * self._rows.run + self._of_run)
            inner.line(cpp("{}{}[{}] = {};", guard, hole(buffer), at, inner.stored(type_of(instruction), value)))

    @contextmanager
    def _pieces_of(self, scope: Scope, first: Code | str, step: int) -> Iterator[Scope]:
        j = scope.function.fresh("j")
        head = cpp("for (int {} = {}; {} < {}; {} += {})", j, first, j, self._rows.run, j, step)
        with scope.block(head, conditional=False) as inner:
            self._of_run = inner.known(j, self._rows.run)
            yield inner

    def _piece_indices(self, name: str) -> Indices:
        return delinear(self._row * self._rows.run + self._of_run, self._module[name].dims)

    # --- reductions over rows ---

    def _column_sums(self, scope: Scope, sweeps: list[_Sweep]) -> dict[str, _Total]:
        found: dict[str, _Total] = {}
        for stage in (stage for sweep in sweeps for stage in sweep.columns if stage.reduction is not None):
            for group in groups(self._module, stage):
                found[group.members[0].name] = self._sums_of(scope, group, self._rows.per_thread)
        return found

    def _sums_of(self, scope: Scope, group: Group, count: int) -> _Total:
        """An array of what so many columns are reduced to, for each value."""
        for member in group.members:
            scope.comment(f"{member}")
        arrays = [scope.function.fresh("sums") for _ in group.kinds]
        for kind, array in zip(group.kinds, arrays, strict=True):
            scope.line(cpp("{} {}[{}];", kind.value, array, count))
        assert group.neutral is not None
        name = scope.function.fresh("i")
        with scope.block(_unrolled(name, "0", count)) as inner:
            for array, neutral in zip(arrays, group.neutral, strict=True):
                inner.line(cpp("{}[{}] = {};", array, name, neutral))
        return _Total(group, arrays)

    def _sums_at(self, scope: Scope, total: _Total) -> list[Code]:
        at = scope.index(self._step * self._rows.pack + self._element)
        return [cpp("{}[{}]", name, at) for name in total.names]

    def _add_to_column(self, scope: Scope, total: _Total, values: list[Code]) -> None:
        group = total.group
        if not self._inside:
            combine(self._elemental, scope, group.computation, self._sums_at(scope, total), values, group.kinds)
            return
        with scope.block(cpp("if ({})", self._inside)) as inner:
            combine(self._elemental, inner, group.computation, self._sums_at(inner, total), values, group.kinds)

    def _columns(self, scope: Scope, sweeps: list[_Sweep], sums: Mapping[str, _Total]) -> None:
        """The sums of a block's groups of lanes meet, and the first group stores them."""
        if not sums:
            return
        scope.line(Code(""))
        self._inside = _ALWAYS
        if self._at_once > 1:
            own = scope.constant("int", "own", cpp("threadIdx.x / {}", self._rows.lanes))
            for member, total in sums.items():
                self._meet(scope, own, total, self._workspaces[member])
            with scope.block(cpp("if ({} == 0)", own)) as first:
                self._column_results(first, sweeps, sums)
        else:
            self._column_results(scope, sweeps, sums)

    def _meet(self, scope: Scope, own: Code, total: _Total, space: Workspace) -> None:
        kinds = total.group.kinds
        pointers = [scope.function.fresh("parts_of") for _ in kinds]
        for kind, pointer, offset in zip(kinds, pointers, space.offsets, strict=True):
            scope.line(shared_pointer(kind, pointer, offset))
        half = scope.function.fresh("half")
        header = cpp("for (int {} = {}; {} > 0; {} /= 2)", half, self._at_once // 2, half, half)
        columns = self._rows.columns_per_block
        with scope.block(header, conditional=False) as round_:
            with (
                round_.block(cpp("if ({} >= {} && {} < 2 * {})", own, half, own, half)) as giving,
                self._columns_of(giving, Place.COLUMN) as (_, element),
            ):
                at = element.index(self._column)
                for kind, pointer, sum_ in zip(kinds, pointers, self._sums_at(element, total), strict=True):
                    value = element.stored(kind, sum_)
                    element.line(cpp("{}[({} - {}) * {} + {}] = {};", pointer, own, half, columns, at, value))
            round_.line(BARRIER)
            with (
                round_.block(cpp("if ({} < {})", own, half)) as taking,
                self._columns_of(taking, Place.COLUMN) as (_, element),
            ):
                at = element.index(self._column)
                others = [
                    semantics.loaded(kind, cpp("{}[{} * {} + {}]", pointer, own, columns, at))
                    for kind, pointer in zip(kinds, pointers, strict=True)
                ]
                combine(self._elemental, element, total.group.computation, self._sums_at(element, total), others, kinds)
            round_.line(BARRIER)

    def _column_results(self, scope: Scope, sweeps: list[_Sweep], sums: Mapping[str, _Total]) -> None:
        stages = [stage for sweep in sweeps for stage in sweep.columns]
        for stage in stages:
            for result in stage.results:
                scope.comment(f"{self._module[result.instruction]}{kept(result)}")
        with self._columns_of(scope, Place.COLUMN) as (packing, element):
            for total in sums.values():
                names = self._with_init(element, total.group, self._sums_at(element, total))
                for each in total.group.members:
                    found = names[each.attributes["result"]]
                    element.remember(each.name, delinear(self._place, each.dims), found)
            for stage in stages:
                for result in stage.results:
                    if result.stored is not None:
                        value = self._value(element, result.instruction)
                        written = element.stored(type_of(self._module[result.instruction]), value)
                        self._store(packing, element, result, written)


def _unrolled(name: Code, first: str, count: int, times: str = "") -> Code:
    """The head of a loop that becomes straight code, so that what it indexes can be registers; or of one that does so
    many `times` of its rounds at once, so that their loads overlap."""
    return cpp('_Pragma("unroll{}") for (int {} = {}; {} < {}; ++{})', times, name, first, name, count, name)
