"""A loop whose state lies in a block's shared memory, as statements.

    for (trip = 0; trip < 1000; ++trip)
        z[row][n] = sum of h[row][k] * w[k][n]           what is kept, each behind the barriers that it needs
        h'[row][j] = f(z[row], c[row][j], x[trip])       the next state, beside the one that is still read

A block has some rows. Long reductions to few numbers are the warps'. In a product each thread has some columns of some
rows, so that what it reads of the matrix serves all of these rows; neighbouring threads have neighbouring columns.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis.indexing import Index, delinear, linear, number
from fusiond_stitching.analysis.plan import Stage
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Indices, added, combine, contracted, exact, loop, merged, type_of
from fusiond_stitching.codegen.reduction import BARRIER, WARP, shuffles
from fusiond_stitching.codegen.scans import Scans, Trips
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.graph import HloInstruction, reached

ACCUMULATORS = 32  #: Sums of a product that a thread has at once
LONG = 64  #: Numbers of a reduction from which on it is a warp's, where there are few of them
READ_AHEAD = 32  #: Numbers of a matrix that a thread has under way: what they wait for is the second-level cache


class BlockScans(Scans):
    """Writes the block program of a loop that blocks run."""

    def _stage(self, scope: Scope, stage: Stage) -> None:
        loop = self.module[stage.results[0].instruction].attributes["loop"]
        scope.comment(f"{loop.name}: {loop.trips} trips of {loop.body.name}, {stage.chunk.size} rows to a block")
        _Block(self, stage, scope).write()

    @contextmanager
    def elements(self, scope: Scope, size: int) -> Iterator[tuple[Scope, Index]]:
        """So many elements shared out among the threads. Nothing moves out of the phase that this is."""
        with scope.block(Code("")) as phase, self._loop(phase, size) as (inner, element):
            yield inner, element


class _Block(Trips):
    """What a block does for its rows."""

    def __init__(self, writer: BlockScans, stage: Stage, scope: Scope) -> None:
        super().__init__(writer, {each.instruction: writer.module[each.instruction] for each in stage.results}, scope)
        self.blocks = writer
        self.rows = stage.chunk.size
        self.count = math.prod(self.loop.axes)
        self.shared: dict[str, Code] = {}  #: The state before the trip, and what has been kept of it -> pointer
        self.places: list[tuple[Indices, Index]] = []
        """Of the rows that are computed at the moment: the axes' index, and which of the block's rows it is."""

    # --- where values are ---

    def held(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        return self._loaded(scope, name, indices) if name in self.shared else None

    def _loaded(self, scope: Scope, name: str, indices: Indices) -> Code:
        kind = type_of(self.loop.body[name])
        place = cpp("{}[{}]", self.shared[name], scope.index(self._place(name, indices)))
        return scope.declare(kind, "kept", semantics.loaded(kind, place))

    def _place(self, name: str, indices: Indices) -> Index:
        """Where an element lies behind its pointer."""
        places, dims = self.loop.axis_of[name], self.loop.body[name].dims
        own = {axis: index for axis, index in zip(places, indices, strict=True) if axis is not None}
        rows = (row for axes, row in self.places if all(axes[axis] == index for axis, index in own.items()))
        row = next(rows) if own else number(0)  # what all rows have alike may stand where no row is known
        inside = [at for at, axis in enumerate(places) if axis is None]
        within = linear(tuple(indices[at] for at in inside), tuple(dims[at] for at in inside))
        return row * self.loop.inside(name) + within

    def _indices(self, name: str, axes: Indices, within: Index) -> Indices:
        """The index of a value's element: of these axes, and of so many inside."""
        places, dims = self.loop.axis_of[name], self.loop.body[name].dims
        inside = iter(delinear(within, [dim for dim, axis in zip(dims, places, strict=True) if axis is None]))
        return tuple(next(inside) if axis is None else axes[axis] for axis in places)

    def _axes(self, scope: Scope, row: Index) -> Indices:
        """The axes' index of one of the block's rows. Behind the last row the last one is computed again."""
        position = self.blocks.block * self.rows + row
        whole = scope.index(position)
        if position.high >= self.count:
            whole = cpp("{} < {} ? {} : {}", whole, self.count - 1, whole, self.count - 1)
        found = scope.variable("own", whole, self.count)
        return tuple(
            scope.variable("axis", scope.index(each), dim)
            for each, dim in zip(delinear(found, self.loop.axes), self.loop.axes, strict=True)
        )

    # --- the loop ---

    def write(self) -> None:
        body, loop = self.loop.body, self.loop
        homes = {
            name: self.scope.shared(type_of(body[name]), "state" if name in loop.carries else "kept", offset)
            for name, offset in self.loop.offsets(self.rows)[0].items()
        }
        for name in loop.carries:
            with self._each(self.scope, loop.inside(name)) as (scope, row, axes, within):
                value = self.writer.operand(scope, self.outside[name], self._indices(name, axes, within))
                self._kept(scope, name, homes[name], row, within, value)
        self.scope.line(BARRIER)
        trip = self.scope.function.fresh("trip")
        with self.scope.block(cpp("for (int {} = 0; {} < {}; ++{})", trip, trip, loop.trips, trip)) as scope:
            self.trip = scope.known(trip, loop.trips)
            after = {name: self._halves(scope, name, homes[name], trip) for name in loop.carries}
            self._trip(scope, homes, after)
        self.shared = {}
        for name in loop.carries:
            size = self.rows * loop.inside(name)
            self.shared[name] = self.scope.function.fresh("last")
            kind = type_of(body[name]).memory
            half = cpp("{} + {}", homes[name], size) if loop.trips % 2 else homes[name]
            self.scope.line(cpp("const {}* const {} = {};", kind, self.shared[name], half))
        for name in [each for each in loop.carries if each in self.results]:
            with self._each(self.scope, loop.inside(name)) as (scope, row, axes, within):
                indices = self._indices(name, axes, within)
                with self._written(scope, name, row, axes) as inner:
                    self.writer.put(inner, self.results[name], indices, self._loaded(inner, name, indices))

    def _halves(self, scope: Scope, name: str, home: Code, trip: Code) -> Code:
        """The state that a trip reads becomes known; where it puts the next one."""
        size = self.rows * self.loop.inside(name)
        kind = type_of(self.loop.body[name]).memory
        now, after = scope.function.fresh("now"), scope.function.fresh("after")
        scope.line(cpp("const {}* const {} = {} + ({} & 1) * {};", kind, now, home, trip, size))
        scope.line(cpp("{}* const {} = {} + (~{} & 1) * {};", kind, after, home, trip, size))
        self.shared[name] = now
        return after

    def _trip(self, scope: Scope, homes: dict[str, Code], after: dict[str, Code]) -> None:
        loop = self.loop
        fresh: set[str] = set()  #: What has been written since the last barrier
        for name in loop.kept:
            if fresh & self._read(name):
                scope.line(BARRIER)
                fresh = set()
            if loop.body[name].opcode == "dot":
                self._product(scope, name, homes[name])
            elif self._folds(name):
                self._fold(scope, name, homes[name])
            else:
                with self._each(scope, loop.inside(name)) as (inner, row, axes, within):
                    value = self.body.value(inner, name, self._indices(name, axes, within))
                    self._kept(inner, name, homes[name], row, within, value)
            self.shared[name] = homes[name]
            fresh.add(name)
        if fresh:
            scope.line(BARRIER)
        for inside, names in self._together().items():
            with self._each(scope, inside) as (inner, row, axes, within):
                for name in names:
                    if name in loop.carries:
                        last = self._indices(name, axes, within)
                        value = self.body.value(inner, loop.carries[name], last)
                        self._kept(inner, name, after[name], row, within, value)
                    else:
                        self._stacked(inner, name, row, axes, within)
        scope.line(BARRIER)
        for name in loop.kept:
            del self.shared[name]

    def _together(self) -> dict[int, list[str]]:
        """Elements for each row -> the states and the stacked results of so many: they are computed side by side."""
        found: dict[int, list[str]] = {}
        for name in self.loop.carries:
            found.setdefault(self.loop.inside(name), []).append(name)
        for name in self.loop.stacked:
            if name in self.results:  # else nobody reads it any more
                update = self.loop.body[name].operands[1]
                found.setdefault(self.loop.inside(update), []).append(name)
        return found

    def _read(self, name: str) -> set[str]:
        """What is kept by now that a value is computed of."""
        kept = {each for each in self.loop.kept if each in self.shared}
        ends = kept | self.loop.carries.keys()
        body = self.loop.body
        found = reached(body[name].operands, lambda each: () if each in ends else body[each].operands)
        return kept & found

    @contextmanager
    def _each(self, scope: Scope, inside: int) -> Iterator[tuple[Scope, Index, Indices, Index]]:
        """The elements of all rows: (the block, the row, its axes' index, the element inside)."""
        with self.blocks.elements(scope, self.rows * inside) as (inner, element):
            yield inner, *self._at(inner, element, inside)

    def _at(self, scope: Scope, element: Index, inside: int) -> tuple[Index, Indices, Index]:
        """Of an element of all rows the row, its axes' index, the element inside."""
        row, within = delinear(element, (self.rows, inside))
        row = scope.variable("row", scope.index(row), self.rows)
        within = scope.variable("within", scope.index(within), inside)
        axes = self._axes(scope, row)
        self.places = [(axes, row)]
        return row, axes, within

    def _kept(self, scope: Scope, name: str, home: Code, row: Index, within: Index, value: Code) -> None:
        place = scope.index(row * self.loop.inside(name) + within)
        scope.line(cpp("{}[{}] = {};", home, place, scope.stored(type_of(self.loop.body[name]), value)))

    @contextmanager
    def _written(self, scope: Scope, name: str, row: Index, axes: Indices) -> Iterator[Scope]:
        """Behind the condition that there is such a row, and that of all rows with the same element it is the first."""
        conditions = []
        position = self.blocks.block * self.rows + row
        if position.high >= self.count:
            conditions.append(cpp("{} < {}", scope.index(position), self.count))
        own = set(self.loop.axis_of[name])
        conditions += [cpp("{} == 0", scope.index(each)) for axis, each in enumerate(axes) if axis not in own]
        with scope.when(conditions) as inner:
            yield inner

    def _stacked(self, scope: Scope, name: str, row: Index, axes: Indices, within: Index) -> None:
        """A trip's part of a result, at its place."""
        update = self.loop.body[name].operands[1]
        indices = self._indices(update, axes, within)
        value = self.body.value(scope, update, indices)
        with self._written(scope, update, row, axes) as inner:
            self.writer.put(inner, self.results[name], self.laid(inner, name, indices), value)

    # --- long reductions ---

    def _folds(self, name: str) -> bool:
        """Whether it is a reduction of many numbers to fewer than there are threads."""
        each = self.loop.body[name]
        if each.opcode != "reduce":
            return False
        return self.loop.body.inputs(each) >= LONG and self.rows * self.loop.inside(name) < self.blocks.threads

    def _fold(self, scope: Scope, name: str, home: Code) -> None:
        """A warp for each result: its lanes begin with an element each, and the initial value joins at the end."""
        each = self.loop.body[name]
        dimensions, computation = each.attributes["dimensions"], each.attributes["computation"]
        operands = self.loop.body.operands(each)
        values, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        kinds = [type_of(one) for one in values]
        reduced = tuple(values[0].dims[at] for at in dimensions)
        inside, count = self.loop.inside(name), math.prod(reduced)
        with scope.block(Code("")) as phase:
            lane = phase.variable("lane", cpp("threadIdx.x % {}", WARP), WARP)
            result, warps = phase.function.fresh("result"), self.blocks.threads // WARP
            header = cpp("for (int {0} = threadIdx.x / {1}; {0} < {2}; {0} += {3})",
                         result, WARP, self.rows * inside, warps)  # fmt: skip
            with phase.block(header) as inner:
                row, axes, within = self._at(inner, inner.known(result, self.rows * inside), inside)
                indices = self._indices(name, axes, within)

                def element(scope: Scope, step: Index) -> list[Code]:
                    place = merged(indices, dimensions, delinear(step, reduced))
                    return [self.body.value(scope, one.name, place) for one in values]

                totals = [inner.function.fresh("total") for _ in values]
                for kind, total, value in zip(kinds, totals, element(inner, lane), strict=True):
                    inner.line(cpp("{} {} = {};", kind.value, total, value))
                with loop(inner, count, "r", first=inner.index(lane + WARP), step=WARP) as (body, step):
                    combine(self.body, body, computation, totals, element(body, step), kinds)
                distance = WARP // 2
                while distance:
                    others = shuffles(inner, kinds, totals, Code(str(distance)), WARP, "xor")
                    combine(self.body, inner, computation, totals, others, kinds)
                    distance //= 2
                begin = [self.body.value(inner, one.name, ()) for one in inits]
                combine(self.body, inner, computation, totals, begin, kinds)
                with inner.block(cpp("if ({} == 0)", inner.index(lane))) as body:
                    self._kept(body, name, home, row, within, totals[each.attributes["result"]])

    # --- products ---

    def _product(self, scope: Scope, name: str, home: Code) -> None:
        """All elements of a dot: some columns of some rows for each thread, the contracted dimensions outermost."""
        dot = self.loop.body[name]
        columns = self.loop.inside(name)
        across = min(self.blocks.threads, -(-columns // WARP) * WARP)
        groups = min(self.rows, self.blocks.threads // across)
        rows = -(-self.rows // groups)
        wide = min(-(-columns // across), max(1, ACCUMULATORS // rows))
        turns = -(-columns // (across * wide))
        busy = across * groups
        header = cpp("if (threadIdx.x < {})", busy) if busy < self.blocks.threads else Code("")
        with scope.block(header) as phase:
            lane = phase.variable("lane", cpp("threadIdx.x % {}", across), across)
            group = phase.variable("group", cpp("threadIdx.x / {}", across), groups)
            turn = phase.function.fresh("turn")
            loop = cpp("for (int {} = 0; {} < {}; ++{})", turn, turn, turns, turn) if turns > 1 else Code("")
            with phase.block(loop) as inner:
                first = inner.known(turn, turns) if turns > 1 else number(0)
                mine = [self._some(inner, "row", group * rows + at, self.rows) for at in range(rows)]
                theirs = [
                    self._some(inner, "column", (first * wide + at) * across + lane, columns) for at in range(wide)
                ]
                self._sums(inner, dot, home, mine, theirs)

    def _some(self, scope: Scope, hint: str, index: Index, count: int) -> tuple[Index, Code | None]:
        """(an index below `count`, the condition that it is the one that was asked for)."""
        text = scope.index(index)
        if index.high < count:
            return scope.variable(hint, text, count), None
        bounded = scope.variable(hint, cpp("{} < {} ? {} : {}", text, count - 1, text, count - 1), count)
        return bounded, cpp("{} < {}", text, count)

    def _sums(
        self,
        scope: Scope,
        dot: HloInstruction,
        home: Code,
        rows: Sequence[tuple[Index, Code | None]],
        columns: Sequence[tuple[Index, Code | None]],
    ) -> None:
        kind = type_of(dot)
        operands = self.loop.body.operands(dot)
        reduced = tuple(operands[0].dims[at] for at in dot.attributes["lhs_contracting"])
        axes = [self._axes(scope, row) for row, _ in rows]
        self.places = [(own, row) for own, (row, _) in zip(axes, rows, strict=True)]
        totals = [[scope.mutable(kind, "sum", semantics.literal(kind, 0)) for _ in columns] for _ in rows]
        step = scope.function.fresh("k")
        size = math.prod(reduced)
        ahead = max(4, READ_AHEAD // len(columns))
        header = cpp('_Pragma("unroll {}") for (int {} = 0; {} < {}; ++{})', ahead, step, step, size, step)
        with scope.block(header) as inner:
            summed = delinear(inner.known(step, size), reduced)
            for own, total in zip(axes, totals, strict=True):
                for (column, _), each in zip(columns, total, strict=True):
                    places = contracted(dot, operands, self._indices(dot.name, own, column), summed)
                    values = [
                        semantics.convert(inner.function.functions, type_of(operand), exact(kind),
                                          self.body.value(inner, operand.name, place))
                        for operand, place in zip(operands, places, strict=True)
                    ]  # fmt: skip
                    inner.line(cpp("{} {};", each, added(kind, each, *values)))
        for (row, there), total in zip(rows, totals, strict=True):
            for (column, here), each in zip(columns, total, strict=True):
                conditions = [one for one in (there, here) if one is not None]
                with scope.when(conditions) as inner:
                    value = semantics.rounded(inner.function.functions, kind, each)
                    self._kept(inner, dot.name, home, row, column, value)
