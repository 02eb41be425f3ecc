"""The position in the code that is being written for rows: row, pack and column of a thread.

    for each round of rows (one, mostly)
        for k in steps                     lane l has pack k * lanes + l of the row
            for j in pack                  a column

Loops over what a thread holds are unrolled, so that arrays become registers.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fusiond.model.codegen.code import Code, cpp, joined
from fusiond_stitching.analysis.indexing import Index, number
from fusiond_stitching.analysis.plan import BlockProgram, RowPlace
from fusiond_stitching.analysis.row_shapes import interleaved
from fusiond_stitching.codegen.scope import Scope

ALWAYS = Code("")  #: The condition of what always is done
_THREAD = Code("threadIdx.x")


class RowCursor:
    def __init__(self, program: BlockProgram, threads: int) -> None:
        assert program.rows is not None
        self.rows = program.rows
        self.threads = threads
        self.at_once = threads // self.rows.lanes  #: Rows that a block works on at once
        self.rounds = -(-self.rows.rows_per_block // self.at_once)
        self.lane = _THREAD
        self.turn = number(0)  #: The round
        self.row = number(0)
        self.own = number(0)  #: The row, counted from the block's first
        self.inside = ALWAYS  #: The condition that a thread has a row of its own
        self.step = number(0)
        self.element = number(0)  #: The present column, counted from its pack's first
        self.column = number(0)  #: The same, counted from the block's first
        self.of_run = number(0)  #: The same, counted from its run's first
        self.place = number(0)  #: The present column's place in the row-major order of what is as wide as the rows
        self.lanes = number(0)
        self.packing: Scope | None = None  #: The block in which packs are loaded; None outside of a loop over columns
        self.loaded: dict[tuple[str, Index], Code] = {}  #: Packs that the present step has loaded
        self.stores: list[Code] = []  #: What is stored when a pack is whole
        self.backwards = False  #: Whether the next sweep goes through the packs from the last one
        self._blocks = program.blocks
        self._block = number(0)

    @property
    def flat(self) -> bool:
        """The blocks share one row."""
        return self.rows.count == 1 and self.rows.rows_per_block == 1

    @property
    def held(self) -> Index:
        """The present column, counted among those that a thread holds."""
        return self.step * self.rows.pack + self.element

    @property
    def piece(self) -> Index:
        """The place of a number for each column of a run."""
        return self.row * self.rows.run + self.of_run

    def begin(self, scope: Scope, block: str) -> None:
        """`block` is the variable that holds the block's number inside the program."""
        self._block = scope.known(block, self._blocks)
        lane = cpp("threadIdx.x % {}", self.rows.lanes) if self.rows.lanes < self.threads else _THREAD
        self.lane = scope.constant("int", "lane", lane)

    def go_to(self, scope: Scope, turn: Index) -> None:
        """A thread's row of a round, and the condition that there is one (empty where there is for all); the others
        work on the last one, and store nothing."""
        rows = self.rows
        self.turn = turn
        if self.flat:
            self.row, self.inside = number(0), ALWAYS
            return
        own = scope.variable("own", cpp("threadIdx.x / {}", rows.lanes), self.at_once)
        local = self.own = turn * self.at_once + own
        place = self._block // rows.slabs * rows.rows_per_block + local
        conditions = []
        if local.high >= rows.rows_per_block:
            conditions.append(cpp("{} < {}", scope.index(local), rows.rows_per_block))
        if place.high >= rows.count and self._blocks // rows.slabs * rows.rows_per_block > rows.count:
            conditions.append(cpp("{} < {}", scope.index(place), rows.count))
        if not conditions:
            self.row, self.inside = scope.variable("row", scope.index(place), rows.count), ALWAYS
            return
        self.inside = scope.constant("bool", "inside", joined(" && ", conditions))
        chosen = cpp("{} ? {} : {}", self.inside, scope.index(place), rows.count - 1)
        self.row = scope.variable("row", chosen, rows.count)

    @contextmanager
    def columns(self, scope: Scope, place: RowPlace) -> Iterator[tuple[Scope, Scope]]:
        """A loop over what a thread holds: (the block of a pack, the block of a column)."""
        rows = self.rows
        with ExitStack() as stack:
            packing = self._steps(stack, scope)
            count = rows.columns // rows.pack
            lane = self.lanes = packing.known(self.lane, rows.lanes)
            part = self._block if self.flat else self._block % rows.slabs
            first = (part * rows.steps + self.step) * rows.lanes + lane
            vector = packing.constant(scope.function.index_type, "vector", packing.index(first))
            if first.high >= count:
                condition = cpp("if ({} < {})", vector, count)
                packing = stack.enter_context(packing.block(condition, conditional=False))
            self.packing, self.loaded = packing, {}
            start = packing.known(vector, count) * rows.pack
            self.element, element = number(0), packing
            with ExitStack() as columns:
                if rows.pack > 1:
                    name = scope.function.fresh("j")
                    element = columns.enter_context(packing.block(unrolled(name, "0", rows.pack), conditional=False))
                    self.element = element.known(name, rows.pack)
                self.column = (start + self.element) - part * (rows.steps * rows.lanes * rows.pack)
                outer = self.row if place is RowPlace.WIDE else self._block // rows.slabs
                self.place = outer * rows.columns + start + self.element
                if rows.between > 1:
                    own, packs = packing.known(vector, count), rows.run // rows.pack
                    inside = self.of_run = own % packs * rows.pack + self.element
                    self.place = interleaved(self.row, own // packs, inside, rows)
                yield packing, element
            for line in self.stores:
                packing.line(line)
            self.stores.clear()
            self.packing = None

    def _steps(self, stack: ExitStack, scope: Scope) -> Scope:
        """The loop over a thread's packs, where it has several: the block of one."""
        rows = self.rows
        self.step = number(0)
        if rows.steps == 1:
            return scope
        name = scope.function.fresh("k")
        header = unrolled(name, "0", rows.steps, " 4" if rows.streamed else "")
        packing = stack.enter_context(scope.block(header, conditional=False))
        self.step = packing.known(name, rows.steps)
        if self.backwards:  # what was read last is still in the second-level cache
            turned = self.step * -1 + (rows.steps - 1)
            self.step = packing.variable("step", packing.index(turned), rows.steps)
        return packing

    @contextmanager
    def columns_of_run(self, scope: Scope, first: Code | str, step: int) -> Iterator[Scope]:
        """A loop over the columns of a run, from the first one in such steps."""
        j = scope.function.fresh("j")
        head = cpp("for (int {} = {}; {} < {}; {} += {})", j, first, j, self.rows.run, j, step)
        with scope.block(head, conditional=False) as inner:
            self.of_run = inner.known(j, self.rows.run)
            yield inner


def unrolled(name: Code, first: str, count: int, times: str = "") -> Code:
    """The head of a loop that becomes straight code, so that what it indexes can be registers; or of one that does so
    many `times` of its rounds at once, so that their loads overlap."""
    return cpp('_Pragma("unroll{}") for (int {} = {}; {} < {}; ++{})', times, name, first, name, count, name)
