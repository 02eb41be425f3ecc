"""A group as rows held in registers (persistent rows): each input read once, whatever depends on a row's reduction.

Softmax, layer normalisation and their like walk over a row several times: its maximum, its sum, the result. Where the
values of a row fit into the registers of a warp or of a block, one read and one write of global memory do. The paper
(section 4) has threads agree on chunks of shared memory; registers are what a chunk of one row leaves room for.

    sweep 0   read x, keep it     maximum over the row
    sweep 1   e = exp(x - max)    sum over the row, keep e
    sweep 2   e / sum             write

A reduction ends a sweep over what a thread holds. Values that a later sweep needs are kept, or computed again where
that is cheap and needs one kept value at most. Reductions over rows (of a gradient of weights) are accumulated in
registers while a block walks over its rows. Rows that are too long are read again by each sweep. Everything rests on
places: a value is read where it was written, by the same thread, which the algebra of indices proves for each read.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis import online_reductions
from fusiond_stitching.analysis.fusion import Group
from fusiond_stitching.analysis.indexing import Index, delinear, linear, symbol
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Exchange,
    Flat,
    Global,
    Home,
    Kind,
    Place,
    Reduction,
    Registers,
    Result,
    Rows,
    Schedule,
    Stage,
)
from fusiond_stitching.analysis.policy import Policy
from fusiond_stitching.frontend.graph import BYTES, EXPENSIVE, SOURCES, Instruction, Module

PACK_BYTES = 16
"""The widest load of a thread."""
LEAST_RUN_BYTES = 32
"""Of a row that lies in pieces: a sector of memory."""
WARP = 32
MOST_WORDS = 64
"""Registers (32 bits) that kept values may have, where a block's threads leave so many."""
SPARE_WORDS = 32
"""Registers of a thread that are not for kept values."""
FILE_WORDS = 65536
"""Of a multiprocessor."""
MOST_FEW = 16
"""Numbers of a row that lie side by side, as the best of a row and where they are."""
MOST_PIECES = 128
"""Columns of a run that have sums of their own: as many as a warp has packs."""
SECTORS = 4
"""Packs that a block reads side by side, at least: two sectors of 32 bytes."""
FEW = 1 << 16
"""Elements that are no work for many blocks."""
MOST_THREADS = 1024
"""Of a block that has a multiprocessor's shared memory for itself, and a row that is too long for registers."""
WORKSPACE_BYTES = 4096
"""Left of it for what reductions exchange."""
FLAT_STEPS = 2
"""Packs of a thread where nothing is reduced."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`runs`: of how many rows a column reduction makes one; 0 where there is none. `between` and `run`: see
    `plan.Rows`. `pieces`: some reductions make a number for each column of a run."""

    count: int
    columns: int
    runs: int = 0
    between: int = 1
    run: int = 0
    pieces: bool = False

    def at(self, place: Place) -> Index:
        """The canonical place, of variables that are named as here."""
        if place is Place.ROW:
            return symbol("row", self.count)
        column = symbol("column", self.columns)
        if place is Place.PIECE:
            return symbol("row", self.count) * self.run + column % self.run
        if place is Place.WIDE and self.between > 1:
            return interleaved(symbol("row", self.count), column // self.run, column % self.run, self)
        outer = symbol("row", self.count) if place is Place.WIDE else symbol("block", self.count // max(1, self.runs))
        return outer * self.columns + column

    def reduces_to(self, place: Place, dims: tuple[int, ...], reduced: Iterable[int]) -> bool:
        """Whether a reduction of wide values makes numbers that lie at this place."""
        outer = self.count // self.between
        if place is Place.PIECE:
            return _cut(dims, reduced) == (outer, self.columns // self.run, self.between * self.run)
        if place is Place.COLUMN:
            return _cut(dims, reduced) == (self.count // self.runs, self.runs, self.columns)
        if self.between > 1:
            return interleaving(dims, reduced) == (outer, self.columns // self.run, self.between, self.run)
        return _cut(dims, reduced) == (self.count, self.columns, 1)

    def elements(self, place: Place) -> int:
        if place is Place.ROW:
            return self.count
        if place is Place.PIECE:
            return self.count * self.run if self.pieces else 0
        return self.columns * (self.count if place is Place.WIDE else self.count // max(1, self.runs))


def interleaved(row: Index, run: Index, inside: Index, rows: Shape | Rows) -> Index:
    """The place, in row-major order, of an element of a row: of its run with this number, the element `inside`."""
    width = rows.between * rows.run
    whole = row // rows.between * (rows.between * rows.columns)
    return whole + run * width + row % rows.between * rows.run + inside


def block_program(
    module: Module,
    policy: Policy,
    group: Group,
    stored: frozenset[str],
    elsewhere: Container[str],
    name: str,
) -> BlockProgram | None:
    """The group's block program with its rows in registers; None where it has none: tensors of other shapes, rows that
    are too long, values that are read elsewhere than where they were computed. `stored` and `elsewhere` are those of
    `stages.block_program`."""
    if not policy.registers:
        return None
    nodes = reach(module, group, elsewhere)
    if any(each.elements == 0 or each.opcode in ("dot", "scatter") for each in nodes):
        return None
    for shape in _shapes(module, group, nodes):
        found = _Sweeps(module, shape, nodes, frozenset(group.members), stored)
        if found.sound():
            return found.program(policy, group, name)
    return None


def reach(module: Module, group: Group, elsewhere: Container[str]) -> list[Instruction]:
    """Members and what is inlined into them, in topological order."""
    found = set(group.members)
    stack = list(group.members)
    while stack:
        for operand in module[stack.pop()].operands:
            if operand not in found and operand not in elsewhere and module[operand].opcode not in SOURCES:
                found.add(operand)
                stack.append(operand)
    return [module[name] for name in sorted(found, key=module.number.__getitem__)]


# --- the shape ------------------------------------------------------------------------------------------


def _shapes(module: Module, group: Group, nodes: Sequence[Instruction]) -> Iterator[Shape]:
    """What the group's reductions agree upon; where they reduce columns alone, first blocks of rows, which know their
    sums in the end, then neighbouring columns of an image as a row, which know them on the way."""
    shape = _shape(module, group, nodes)
    if shape is None:
        return
    yield shape
    if not shape.runs or shape.runs == shape.count:
        return
    wide = shape.count * shape.columns
    read = (module[name] for each in nodes for name in each.operands)
    narrowest = min(BYTES[each.dtype] for each in read if each.elements == wide)
    outer, run = shape.count // shape.runs, LEAST_RUN_BYTES // narrowest
    if shape.columns % run == 0 and shape.columns > run:
        yield Shape(
            outer * (shape.columns // run), shape.runs * run, between=shape.columns // run, run=run, pieces=True
        )


def _shape(module: Module, group: Group, nodes: Iterable[Instruction]) -> Shape | None:
    """What the group's reductions agree upon; one long row where there are none."""
    rows: set[tuple[int, int]] = set()
    columns: set[tuple[int, int, int]] = set()
    apart: set[tuple[int, int, int, int]] = set()
    for each in nodes:
        if each.opcode != "reduce":
            continue
        source = module[each.operands[0]]
        cut = _cut(source.dims, each.attributes["dimensions"])
        if cut is None:
            four = interleaving(source.dims, each.attributes["dimensions"])
            if four is None or four[3] * BYTES[source.dtype] < LEAST_RUN_BYTES:
                return None
            apart.add(four)
            continue
        before, reduced, after = cut
        if after == 1:
            rows.add((before, reduced))
        else:
            columns.add((before, reduced, after))
    if len(apart) > 1 or len(columns) > 1:
        return None
    if len(columns) == len(rows) == 1 and not apart:
        apart = set(_folded(next(iter(columns)), next(iter(rows))))
    if apart:
        outer, long, between, run = apart.pop()
        pieces = columns == {(outer, long, between * run)} and run <= MOST_PIECES
        if (columns and not pieces) or not rows <= ({(outer * between, run)} if pieces else set()):
            return None
        return Shape(outer * between, long * run, between=between, run=run, pieces=pieces)
    if len(rows) > 1:
        return None
    if columns:
        before, reduced, after = columns.pop()
        if rows and rows != {(before * reduced, after)}:
            return None
        return Shape(before * reduced, after, reduced) if reduced > 1 else None
    if rows:
        count, long = rows.pop()
        return Shape(count, long) if long > 1 else None
    sizes = {module[name].elements for name in group.members}
    return Shape(1, sizes.pop()) if len(sizes) == 1 else None


def _folded(columns: tuple[int, int, int], rows: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """How rows lie in each other whose columns are reduced to numbers that are reduced in turn, if they do."""
    before, long, after = columns
    count, run = rows
    several = before * long != count and after % run == 0 and after > run
    if several and before * after == count * run and run >= SECTORS:
        yield before, long, after // run, run


def _cut(dims: tuple[int, ...], reduced: Iterable[int]) -> tuple[int, int, int] | None:
    """Elements before, inside and behind the reduced dimensions; None where others lie between them."""
    inside = sorted(at for at in reduced if dims[at] > 1)
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    if any(dims[at] > 1 for at in range(first, last) if at not in inside):
        return None
    return math.prod(dims[:first]), math.prod(dims[first : last + 1]), math.prod(dims[last + 1 :])


def interleaving(dims: tuple[int, ...], reduced: Iterable[int]) -> tuple[int, int, int, int] | None:
    """(outer, long, between, run) of a reduction over `long` and `run` in [outer, long, between, run], as groups of
    channels are; None for any other."""
    inside = set(reduced)
    found = [1]
    gone = False
    for at, dim in enumerate(dims):
        if dim != 1 and (at in inside) != gone:
            gone = not gone
            found.append(1)
        found[-1] *= dim
    if len(found) != 4:
        return None
    outer, long, between, run = found
    return outer, long, between, run


def sums_runs(module: Module, reduce: Instruction) -> bool:
    """Whether it makes one row of each of several runs of rows."""
    cut = _cut(module[reduce.operands[0]].dims, reduce.attributes["dimensions"])
    return cut is not None and cut[0] > 1 and cut[2] > 1


# --- places and sweeps ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sweeps:
    module: Module
    shape: Shape
    nodes: list[Instruction]
    members: frozenset[str]
    stored: frozenset[str]
    place: dict[str, Place] = field(default_factory=dict)
    level: dict[str, int] = field(default_factory=dict)
    """The first sweep in which a value can be computed; of what depends on no reduction, 0."""
    late: set[str] = field(default_factory=set)
    """What depends on a reduction of this group."""
    through: set[str] = field(default_factory=set)
    """Of these, what lies nowhere and is computed where it is read: a row's mean, spread over some of its columns. Of
    what has few numbers a row, it may be stored, by one lane."""
    uses: dict[str, set[int]] = field(default_factory=dict)
    """The sweeps that need a value, where it is kept or computed anew in each."""
    kept: dict[str, None] = field(default_factory=dict)
    held: dict[str, None] = field(default_factory=dict)

    def sound(self) -> bool:
        """Places and levels of all nodes; False where a value is read elsewhere than where it lies."""
        for each in self.nodes:
            if not self._placed(each):
                return False
        for name in self.members:
            instruction = self.module[name]
            if name in self.stored and name not in self.place:
                return False
            if instruction.opcode == "reduce" and name not in self.place:
                return False
        self._keep()
        return True

    def _placed(self, node: Instruction) -> bool:
        late = [operand for operand in node.operands if operand in self.late]
        self.level[node.name] = max((self.level[operand] for operand in late), default=0)
        if node.opcode == "reduce":
            return self._reduced(node)
        sized = [each for each in (Place.WIDE, Place.ROW, Place.PIECE) if node.elements == self.shape.elements(each)]
        if not late:
            if sized:
                self.place[node.name] = sized[0]
            return True
        columns = any(self.place.get(operand) is Place.COLUMN for operand in late)
        for place in (Place.COLUMN,) if columns else sized:
            if node.elements == self.shape.elements(place) and self._aligned(node, place, late):
                self.place[node.name] = place
                self.late.add(node.name)
                return True
        inlined = node.elementwise or node.opcode in ("broadcast", "reshape", "transpose", "slice", "concatenate")
        if sized or columns or not inlined:
            return False
        if node.name in self.stored:
            if not self._few(node, late):
                return False
            self.place[node.name] = Place.FEW
        self.late.add(node.name)
        self.through.add(node.name)
        return True

    def _few(self, node: Instruction, late: Sequence[str]) -> bool:
        """Whether it has a few numbers for each row, and every one of them can be computed where the row is known."""
        few, rest = divmod(node.elements, self.shape.count)
        if rest or not 1 < few <= MOST_FEW:
            return False
        row = self.shape.at(Place.ROW) * few
        return all(self._reads_in_place(node, delinear(row + number, node.dims)) for number in range(few))

    def _reduced(self, node: Instruction) -> bool:
        values = node.operands[: len(node.operands) // 2]
        fold = any(self.place.get(each) is Place.PIECE for each in values)
        source = Place.PIECE if fold else Place.WIDE
        if any(each in self.late and self.place.get(each) is not source for each in values):
            return False
        if any(self.module[each].elements != self.shape.elements(source) for each in values):
            return False
        if any(each in self.late for each in node.operands[len(values) :]):
            return False
        cut = _cut(self.module[values[0]].dims, node.attributes["dimensions"])
        column = cut is not None and cut[2] > 1
        simple = node.attributes["computation"].simple is not None and len(values) == 1
        pair = column and not self.shape.pieces and online_reductions.is_pair(node)
        if (column or fold) and not simple and not pair:
            return False
        if fold and (values[0] not in self.late or cut != (self.shape.count, self.shape.run, 1)):
            return False
        place = Place.ROW if not column else Place.PIECE if self.shape.pieces else Place.COLUMN
        if not fold and not self.shape.reduces_to(place, self.module[values[0]].dims, node.attributes["dimensions"]):
            return False
        self.place[node.name] = place
        self.late.add(node.name)
        if self.place[node.name] is not Place.COLUMN and not fold:
            self.level[node.name] += 1
        return True

    def _aligned(self, node: Instruction, place: Place, operands: Sequence[str]) -> bool:
        """Whether it reads these operands where they lie."""
        placed = not any(each in self.through for each in operands)
        if placed and node.elementwise and all(self.module[each].dims == node.dims for each in operands):
            return all(self.place[each] is place for each in operands)  # the common case of what follows
        return self._reads_in_place(node, delinear(self.shape.at(place), node.dims))

    def _reads_in_place(self, node: Instruction, at: tuple[Index, ...]) -> bool:
        """Whether an element of it reads what depends on the row's reductions where that lies, through what lies
        nowhere."""
        stack = [(node, at)]
        seen: set[tuple[str, tuple[Index, ...]]] = set()
        while stack:
            reader, indices = stack.pop()
            for name, moved in read_at(self.module, reader, indices):
                if name not in self.late:
                    continue
                source = self.module[name]
                if moved is None:
                    return False
                if name not in self.through:
                    if linear(moved, source.dims) != self.shape.at(self.place[name]):
                        return False
                elif (name, moved) not in seen:
                    seen.add((name, moved))
                    stack.append((source, moved))
        return True

    # --- what is kept ---

    def _keep(self) -> None:
        """From the results up: a value that several sweeps need is kept, unless it is cheap and one kept value gives
        it."""
        leaves = self._leaves()
        for each in self.nodes:
            if each.opcode == "reduce":
                sweep = self.level[each.name] - (self.place[each.name] is not Place.COLUMN)
                for value in each.operands[: len(each.operands) // 2]:
                    self.uses.setdefault(value, set()).add(sweep)
            if each.name in self.stored and self.place[each.name] is Place.WIDE:
                self.uses.setdefault(each.name, set()).add(self.level[each.name])
        for each in reversed(self.nodes):
            used = self.uses.get(each.name)
            if not used or self.place.get(each.name) is not Place.WIDE:
                continue
            if len(used) > 1 and leaves[each.name] == {each.name}:
                self.kept[each.name] = None
                used = {min(used)}
            for operand in each.operands:
                if self._read_in_place(each, operand):
                    self.uses.setdefault(operand, set()).update(used)
        inside = {each.name for each in self.nodes}
        for name, used in self.uses.items():
            if name not in inside and len(used) > 1 and self.module[name].opcode != "constant":
                self.held[name] = None

    def _leaves(self) -> dict[str, set[str]]:
        """What must be at hand to compute a value again: itself where that is dear."""
        found: dict[str, set[str]] = {}
        for each in self.nodes:
            if self.place.get(each.name) is not Place.WIDE:
                continue
            cheap = each.opcode in ("reshape", "iota") or (each.elementwise and each.opcode not in EXPENSIVE)
            cheap = cheap or (each.opcode == "broadcast" and not self._read_in_place(each, each.operands[0]))
            needed: set[str] = set()
            for operand in each.operands:
                if self._read_in_place(each, operand):
                    needed |= found.get(operand, {operand})
            found[each.name] = needed if cheap and len(needed) <= 1 else {each.name}
        return found

    def _read_in_place(self, node: Instruction, operand: str) -> bool:
        """A value as wide as the rows, read where it lies."""
        source = self.module[operand]
        if source.elements != self.shape.elements(Place.WIDE) or source.opcode == "constant":
            return False
        if node.opcode == "reduce":
            return operand in node.operands[: len(node.operands) // 2]
        if node.elementwise or node.opcode == "reshape":  # the common case of what follows
            return source.dims == node.dims or node.opcode == "reshape"
        indices = delinear(self.shape.at(Place.WIDE), node.dims)
        moved = operand_index(node, source, indices)
        return moved is not None and linear(moved, source.dims) == self.shape.at(Place.WIDE)

    # --- the program ---

    def program(self, policy: Policy, group: Group, name: str) -> BlockProgram | None:
        rows = self._rows(policy)
        if rows is None:
            return None
        threads = rows.threads or policy.threads
        blocks = self._blocks(rows, threads)
        if self.shape.runs and blocks < policy.multiprocessors // 4 and self.shape.count * self.shape.columns > FEW:
            return None  # too few blocks would walk over the rows
        stages = tuple(self._stages(rows, blocks))
        program = BlockProgram(
            name=name, blocks=blocks, stages=stages, root=group.root, schedule=self._schedule(rows), rows=rows
        )
        size = shared_bytes(self.module, program, threads)
        if size > max(policy.shared_limit, policy.row_shared if rows.threads else 0):
            return None
        return BlockProgram(
            name=name, blocks=blocks, stages=stages, root=group.root, schedule=program.schedule, rows=rows,
            shared_bytes=size,
        )  # fmt: skip

    def _rows(self, policy: Policy) -> Rows | None:
        shape, threads = self.shape, policy.threads
        pack = self._pack()
        packs = shape.columns // pack
        if shape.count == 1 and not any(each.opcode == "reduce" for each in self.nodes):
            steps = FLAT_STEPS if packs >= FLAT_STEPS * threads * policy.multiprocessors else 1
            return Rows(count=1, columns=shape.columns, lanes=threads, pack=pack, rows_per_block=1, steps=steps)
        most = min(threads, 1 << (packs.bit_length() - 1))
        if shape.runs and not any(place is Place.ROW for place in self.place.values()):
            lanes = self._slab(policy, packs, most)
            return Rows(
                count=shape.count, columns=shape.columns, lanes=lanes, pack=pack, rows_per_block=shape.runs, steps=1,
                slabs=-(-packs // lanes),
            )  # fmt: skip
        lanes = min(most, max(1, _power(-(-shape.columns // policy.per_thread))))
        while True:
            steps = -(-packs // lanes)
            if self._words(steps * pack) <= min(MOST_WORDS, FILE_WORDS // threads - SPARE_WORDS):
                break
            if lanes == most:
                return self._streamed(policy, pack, lanes)
            lanes *= 2
        if shape.pieces and not _pieces_meet(shape, pack, lanes):
            return None
        return Rows(
            count=shape.count,
            columns=shape.columns,
            lanes=lanes,
            pack=pack,
            rows_per_block=shape.runs or threads // lanes,
            steps=steps,
            held=tuple(self.held),
            between=shape.between,
            run=shape.run,
        )

    def _streamed(self, policy: Policy, pack: int, lanes: int) -> Rows | None:
        """Rows that no block's registers hold: each sweep reads them again, and nothing is kept."""
        shape = self.shape
        if shape.runs or shape.count < policy.multiprocessors:
            return None
        self.kept.clear()
        threads = policy.threads
        step = MOST_THREADS * pack * sum(BYTES[self.module[name].dtype] for name in self.held)
        room = policy.row_shared - WORKSPACE_BYTES
        wide = 0 < step <= room and not policy.barriers and shape.columns >= pack * MOST_THREADS
        if wide:
            lanes = threads = MOST_THREADS
        else:
            self.held.clear()
        if shape.pieces and not _pieces_meet(shape, pack, lanes):
            return None
        steps = -(-shape.columns // (pack * lanes))
        return Rows(
            count=shape.count, columns=shape.columns, lanes=lanes, pack=pack, rows_per_block=threads // lanes,
            steps=steps, streamed=True, held=tuple(self.held), shared_steps=min(steps, room // step) if wide else 0,
            threads=threads if wide else 0, between=shape.between, run=shape.run,
        )  # fmt: skip

    def _blocks(self, rows: Rows, threads: int) -> int:
        if self.shape.count == 1 and not any(each.opcode == "reduce" for each in self.nodes):
            return -(-rows.columns // (rows.pack * rows.steps * threads))
        return -(-rows.count // rows.rows_per_block) * rows.slabs

    def _slab(self, policy: Policy, packs: int, most: int) -> int:
        """Packs of a block where rows are only summed: as many as a warp has lanes, or fewer, down to whole sectors of
        memory, where that keeps more of the device busy."""
        runs = self.shape.count // self.shape.runs
        lanes = min(WARP, most)
        while lanes > SECTORS and runs * -(-packs // lanes) < 2 * policy.multiprocessors:
            lanes //= 2
        return lanes

    def _pack(self) -> int:
        """Columns that a thread loads and stores at once: as many of the widest type as go into 16 bytes."""
        inside = {each.name for each in self.nodes}
        read = (
            operand for each in self.nodes for operand in each.operands
            if operand not in inside and self._read_in_place(each, operand)
        )  # fmt: skip
        written = (name for name in self.stored if self.place[name] not in (Place.ROW, Place.FEW))
        widest = max((BYTES[self.module[name].dtype] for name in (*read, *written)), default=4)
        return math.gcd(self.shape.run or self.shape.columns, max(1, PACK_BYTES // widest))

    def _words(self, per_thread: int) -> int:
        """Registers for what is kept between two sweeps, at most, and for the sums of columns."""
        alive: dict[int, int] = {}
        for name in (*self.kept, *self.held):
            size = -(-per_thread * max(2, BYTES[self.module[name].dtype]) // 4)
            for sweep in range(min(self.uses[name]), max(self.uses[name])):
                alive[sweep] = alive.get(sweep, 0) + size
        columns = sum(
            -(-per_thread * BYTES[each.dtype] // 4)
            for each in self.nodes
            if each.opcode == "reduce" and self.place[each.name] is Place.COLUMN
        )
        return max(alive.values(), default=per_thread) + columns

    def _schedule(self, rows: Rows) -> Schedule:
        return Schedule(0, max(1, rows.rows_per_block * rows.columns), Kind.FLAT)

    def _stages(self, rows: Rows, blocks: int) -> Iterator[Stage]:
        """In the order of execution: of each sweep what it keeps and stores, then its reductions, of rows, of pieces,
        of pieces to rows; sums of columns come last."""
        reduction = Reduction(rows.lanes, Exchange.WARP if rows.lanes > 1 else Exchange.NONE)
        last = 1 + max(self.level.values(), default=0)
        for sweep in range(last):
            here = [each for each in self.nodes if self.level[each.name] == sweep]
            single = [each for each in here if self._result_of(each, Place.ROW)]
            pieces = [each for each in here if self._result_of(each, Place.PIECE)]
            few = [each for each in here if self._result_of(each, Place.FEW)]
            reduces = [each for each in single if each.opcode == "reduce"]
            folds = [each for each in reduces if folds_pieces(self.module, each, rows)]
            before = max(0, sweep - 1)
            yield from self._group([each for each in reduces if each not in folds], rows, blocks, before, reduction)
            yield from self._group(
                [each for each in pieces if each.opcode == "reduce"], rows, blocks, before, reduction
            )
            yield from self._group(folds, rows, blocks, before, Reduction(1))
            yield from self._group([each for each in single if each not in reduces], rows, blocks, before)
            yield from self._group([each for each in pieces if each.opcode != "reduce"], rows, blocks, before)
            yield from self._group(few, rows, blocks, before)
            wide = [each for each in self.nodes if self._computed_in(each, sweep)]
            yield from self._group(wide, rows, blocks, sweep)
        columns = [each for each in self.nodes if self._result_of(each, Place.COLUMN)]
        for sweep in range(last):
            reduces = [each for each in columns if each.opcode == "reduce" and self.level[each.name] == sweep]
            yield from self._group(reduces, rows, blocks, sweep, Reduction(1, inner=False))
        yield from self._group([each for each in columns if each.opcode != "reduce"], rows, blocks, last - 1)

    def _result_of(self, each: Instruction, place: Place) -> bool:
        if self.place.get(each.name) is not place:
            return False
        return each.opcode == "reduce" or each.name in self.stored

    def _computed_in(self, each: Instruction, sweep: int) -> bool:
        if self.place.get(each.name) is not Place.WIDE or (each.name not in self.kept and each.name not in self.stored):
            return False
        return min(self.uses[each.name]) == sweep

    def _group(
        self, found: Iterable[Instruction], rows: Rows, blocks: int, sweep: int, reduction: Reduction | None = None
    ) -> Iterator[Stage]:
        """A stage for each shape."""
        by_dims: dict[tuple[object, ...], list[Instruction]] = {}
        for each in found:
            source = self.module[each.operands[0]].dims if each.opcode == "reduce" else ()
            by_dims.setdefault((each.dims, source), []).append(each)
        for members in by_dims.values():
            place = self.place[members[0].name]
            size = self._chunk(rows, place, members[0].elements)
            yield Stage(
                chunk=Flat(size, blocks),
                dims=members[0].dims,
                results=tuple(Result(each.name, self._homes(each)) for each in members),
                reduction=reduction,
                sweep=sweep,
                place=place,
            )

    def _chunk(self, rows: Rows, place: Place, elements: int) -> int:
        if self.shape.count == 1 and place is Place.WIDE and rows.rows_per_block == 1:
            return min(rows.columns, rows.pack * rows.steps * rows.lanes)
        width = {Place.ROW: 1, Place.PIECE: rows.run, Place.FEW: elements // rows.count}.get(
            place, rows.columns_per_block
        )
        return width * (1 if place is Place.COLUMN else rows.rows_per_block)

    def _homes(self, each: Instruction) -> tuple[Home, ...]:
        homes: list[Home] = [Registers()] if each.name in self.kept or each.opcode == "reduce" else []
        if each.name in self.stored:
            homes.append(Global(self.module.buffer_of(each.name)))
        return tuple(homes)


def _pieces_meet(shape: Shape, pack: int, lanes: int) -> bool:
    """Whether a lane has the same columns of a run in all its packs, and a warp has all of a run's."""
    packs = shape.run // pack
    return packs <= min(WARP, lanes) and lanes % packs == 0


def folds_pieces(module: Module, reduce: Instruction, rows: Rows) -> bool:
    """Whether a reduction makes one number of a row's pieces."""
    return module[reduce.operands[0]].elements != rows.count * rows.columns


def read_at(
    module: Module, node: Instruction, indices: tuple[Index, ...]
) -> Iterator[tuple[str, tuple[Index, ...] | None]]:
    """What an instruction reads for its own element at `indices`, and where: of a concatenation whose part is known,
    that part alone. None for a place that is more than index arithmetic."""
    if node.opcode != "concatenate":
        for operand in module.operands(node):
            yield operand.name, operand_index(node, operand, indices)
        return
    at, begin = node.attributes["dimension"], 0
    for operand in module.operands(node):
        end = begin + operand.dims[at]
        if indices[at].low >= begin and indices[at].high < end:
            yield operand.name, (*indices[:at], indices[at] - begin, *indices[at + 1 :])
        elif indices[at].high >= begin and indices[at].low < end:
            yield operand.name, None
        begin = end


def operand_index(node: Instruction, operand: Instruction, indices: tuple[Index, ...]) -> tuple[Index, ...] | None:
    """Where an instruction reads its operand for its own element at `indices`; None for what is more than index
    arithmetic."""
    attributes = node.attributes
    if node.elementwise:
        return indices if operand.dims else ()
    match node.opcode:
        case "reshape":
            return delinear(linear(indices, node.dims), operand.dims)
        case "broadcast":
            return tuple(indices[at] for at in attributes["dimensions"])
        case "transpose":
            order = attributes["dimensions"]
            return tuple(indices[order.index(at)] for at in range(len(order)))
        case "slice":
            runs = zip(indices, attributes["starts"], attributes["strides"], strict=True)
            return tuple(index * step + start for index, start, step in runs)
        case "reverse":
            turned = attributes["dimensions"]
            return tuple(
                index * -1 + (size - 1) if at in turned else index
                for at, (index, size) in enumerate(zip(indices, node.dims, strict=True))
            )
    return None


# --- shared memory --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where the parts of a reduction meet: the offset of each of its values in the block's shared memory."""

    offsets: tuple[int, ...]
    size_bytes: int


def workspaces(module: Module, program: BlockProgram, threads: int) -> Mapping[str, Workspace]:
    """Shared memory by reduce (of the results of a variadic one, by the first): a value per warp for rows of more than
    a warp, twice where a block has several rounds (one is read while the next is written); for columns, half of what
    the threads hold; for pieces, those of a row's warps, and behind them the totals."""
    rows = program.rows
    assert rows is not None
    at_once = threads // rows.lanes
    rounds = -(-rows.rows_per_block // at_once)
    found: dict[str, Workspace] = {}
    begun: list[object] = []
    offset = 0
    for each, reduction, place in _reduces(module, program):
        if (each.operands, each.attributes["computation"]) in begun:
            continue
        begun.append((each.operands, each.attributes["computation"]))
        if not reduction.inner:
            slots = rows.columns_per_block * (_power(at_once) // 2)
        elif place is Place.PIECE:
            warps = rows.lanes // WARP
            slots = rows.rows_per_block * rows.run * (warps + 1 if warps > 1 else 1)
        elif folds_pieces(module, each, rows):
            continue
        else:
            slots = (threads // WARP) * (2 if rounds > 1 else 1) if rows.lanes > WARP else 0
        offsets, first = [], offset
        for value in each.operands[: len(each.operands) // 2] if slots else ():
            offsets.append(offset)
            offset += -(-slots * BYTES[module[value].dtype] // PACK_BYTES) * PACK_BYTES
        if offsets:
            found[each.name] = Workspace(tuple(offsets), offset - first)
    return found


def shared_bytes(module: Module, program: BlockProgram, threads: int) -> int:
    """Of a block: the workspaces, and behind them what is held of a row that is too long for registers."""
    rows = program.rows
    assert rows is not None
    size = sum(each.size_bytes for each in workspaces(module, program, threads).values())
    if not rows.streamed:
        return size
    return size + sum(held_bytes(module, rows, name) for name in rows.held)


def held_bytes(module: Module, rows: Rows, name: str) -> int:
    """Of one value that is held in shared memory."""
    return rows.shared_steps * rows.lanes * rows.pack * BYTES[module[name].dtype]


def _reduces(module: Module, program: BlockProgram) -> Iterator[tuple[Instruction, Reduction, Place | None]]:
    for stage in program.stages:
        for result in stage.results if stage.reduction is not None else ():
            each = module[result.instruction]
            if each.opcode == "reduce" and stage.reduction is not None:
                yield each, stage.reduction, stage.place


def _power(value: int) -> int:
    """The least power of two that is not below it."""
    return 1 << max(0, value - 1).bit_length()
