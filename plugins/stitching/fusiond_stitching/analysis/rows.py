"""A group as rows held in registers (persistent rows): each input is read once.

Softmax, layer normalisation and their like walk over a row several times: its maximum, its sum, the result. Where the
values of a row fit into the registers of a warp or of a block, one read and one write of global memory do. The paper
(section 4) has threads agree on chunks of shared memory; registers are what a chunk of one row leaves room for.

    sweep 0   read x, keep it     maximum over the row
    sweep 1   e = exp(x - max)    sum over the row, keep e
    sweep 2   e / sum             write

A reduction ends a sweep over what a thread holds. Values that a later sweep needs are kept, or computed again where
that is cheap and needs one kept value at most. Reductions over rows (of a gradient of weights) are accumulated in
registers while a block walks over its rows. Rows that are too long are read again by each sweep.

The steps: of what shape the rows are (`row_shapes`), where each value lies (`row_places`), what is kept between sweeps
(`row_values`), how lanes and blocks share the rows (`row_partition`), and here the stages in their order.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

from fusiond_stitching.analysis.fusion import GroupContext
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    ChunkSchedule,
    FlatChunk,
    Global,
    Home,
    LaneExchange,
    Reduction,
    Registers,
    RowPlace,
    Rows,
    ScheduleKind,
    Stage,
    StageResult,
)
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.row_partition import blocks_of, partition
from fusiond_stitching.analysis.row_places import RowPlaces, placed
from fusiond_stitching.analysis.row_shapes import row_shapes
from fusiond_stitching.analysis.row_values import KeptValues, kept_values
from fusiond_stitching.analysis.row_workspaces import folds_pieces, shared_bytes
from fusiond_stitching.frontend.graph import HloInstruction

FEW = 1 << 16  #: So few elements are not worth many blocks


def block_program(context: GroupContext, name: str) -> BlockProgram | None:
    """The group's block program with its rows in registers; None where it has none: tensors of other shapes, rows that
    are too long, values that are read elsewhere than where they were computed."""
    if not context.policy.registers:
        return None
    if any(each.elements == 0 or each.opcode in ("dot", "scatter") for each in context.nodes):
        return None
    for shape in row_shapes(context.module, context.group, context.nodes):
        places = placed(context, shape)
        if places is not None:
            return _program(places, context.policy, context.group.root, name)
    return None


def _program(places: RowPlaces, policy: FusionPolicy, root: str, name: str) -> BlockProgram | None:
    shape, values = places.shape, kept_values(places)
    rows = partition(places, values, policy)
    if rows is None:
        return None
    threads = rows.threads or policy.threads
    blocks = blocks_of(places, rows, threads)
    if shape.runs and blocks < policy.multiprocessors // 4 and shape.count * shape.columns > FEW:
        return None  # too few blocks would walk over the rows
    schedule = ChunkSchedule(0, max(1, rows.rows_per_block * rows.columns), ScheduleKind.FLAT)
    stages = tuple(_StageOrder(places, values, rows, blocks).in_order())
    program = BlockProgram(name=name, blocks=blocks, stages=stages, root=root, schedule=schedule, rows=rows)
    size = shared_bytes(places.module, program, threads)
    if size > max(policy.shared_limit, policy.row_shared if rows.threads else 0):
        return None
    return replace(program, shared_bytes=size)


@dataclass(frozen=True, slots=True)
class _StageOrder:
    places: RowPlaces
    values: KeptValues
    rows: Rows
    blocks: int

    def in_order(self) -> Iterator[Stage]:
        """In the order of execution: of each sweep what it keeps and stores, then its reductions, of rows, of pieces,
        of pieces to rows; sums of columns come last."""
        lanes = self.rows.lanes
        across = Reduction(lanes, LaneExchange.WARP if lanes > 1 else LaneExchange.NONE)
        last = max(self.places.level.values(), default=0)
        for sweep in range(last + 1):
            behind = max(0, sweep - 1)
            rows = self._reduces(RowPlace.ROW, sweep)
            folds = [each for each in rows if folds_pieces(self.places.module, each, self.rows)]
            yield from self._alike([each for each in rows if each not in folds], behind, across)
            yield from self._alike(self._reduces(RowPlace.PIECE, sweep), behind, across)
            yield from self._alike(folds, behind, Reduction(1))
            for place in (RowPlace.ROW, RowPlace.PIECE, RowPlace.FEW):
                yield from self._alike(self._stored(place, (sweep,)), behind)
            yield from self._alike(self._wide(sweep), sweep)
        for sweep in range(last + 1):
            yield from self._alike(self._reduces(RowPlace.COLUMN, sweep), sweep, Reduction(1, inner=False))
        yield from self._alike(self._stored(RowPlace.COLUMN, range(last + 1)), last)

    def _reduces(self, place: RowPlace, level: int) -> list[HloInstruction]:
        places = self.places
        return [
            each for each in places.reduces if places.place[each.name] is place and places.level[each.name] == level
        ]

    def _stored(self, place: RowPlace, levels: Container[int]) -> list[HloInstruction]:
        """What is computed of reductions at a place, and needed by others."""
        return [
            each
            for each in self.places.nodes
            if each.opcode != "reduce"
            and each.name in self.places.stored
            and self.places.place.get(each.name) is place
            and self.places.level[each.name] in levels
        ]

    def _wide(self, sweep: int) -> list[HloInstruction]:
        """What is kept or stored, and computed in this sweep."""
        return [
            each
            for each in self.places.nodes
            if self.places.place.get(each.name) is RowPlace.WIDE
            and (self._is_kept(each) or each.name in self.places.stored)
            and min(self.values.uses[each.name]) == sweep
        ]

    def _is_kept(self, each: HloInstruction) -> bool:
        """Of rows that are streamed nothing is."""
        return each.name in self.values.kept and not self.rows.streamed

    def _alike(
        self, found: Iterable[HloInstruction], sweep: int, reduction: Reduction | None = None
    ) -> Iterator[Stage]:
        """A stage for each shape."""
        by_dims: dict[tuple[object, ...], list[HloInstruction]] = {}
        for each in found:
            source = self.places.module[each.operands[0]].dims if each.opcode == "reduce" else ()
            by_dims.setdefault((each.dims, source), []).append(each)
        for members in by_dims.values():
            place = self.places.place[members[0].name]
            chunk = FlatChunk(self._chunk(place, members[0].elements), self.blocks)
            results = tuple(StageResult(each.name, self._homes(each)) for each in members)
            yield Stage(
                chunk=chunk, dims=members[0].dims, results=results, reduction=reduction, sweep=sweep, place=place
            )

    def _chunk(self, place: RowPlace, elements: int) -> int:
        rows = self.rows
        if self.places.shape.count == 1 and place is RowPlace.WIDE and rows.rows_per_block == 1:
            return min(rows.columns, rows.pack * rows.steps * rows.lanes)
        width = {RowPlace.ROW: 1, RowPlace.PIECE: rows.run, RowPlace.FEW: elements // rows.count}.get(
            place, rows.columns_per_block
        )
        return width * (1 if place is RowPlace.COLUMN else rows.rows_per_block)

    def _homes(self, each: HloInstruction) -> tuple[Home, ...]:
        homes: list[Home] = [Registers()] if each.opcode == "reduce" or self._is_kept(each) else []
        if each.name in self.places.stored:
            homes.append(Global(self.places.module.buffer_of(each.name)))
        return tuple(homes)
