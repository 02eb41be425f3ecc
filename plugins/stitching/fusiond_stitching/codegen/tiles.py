"""Transposes as statements: tiles of operands go through shared memory, so that reads and writes coalesce."""

from collections.abc import Iterator
from contextlib import contextmanager

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis import tiles
from fusiond_stitching.analysis.indexing import Index, delinear, linear
from fusiond_stitching.analysis.plan import BoxChunk, Stage
from fusiond_stitching.analysis.tiles import PITCH, SIDE
from fusiond_stitching.codegen.elemental import Indices, loop, type_of
from fusiond_stitching.codegen.loop_nests import LoopNests
from fusiond_stitching.codegen.reduction import BARRIER
from fusiond_stitching.codegen.scope import Scope


class Tiles(LoopNests):
    """Writes the block program of a transpose."""

    _found: dict[tuple[str, Index], Code]
    """Buffer's value and place in it -> the place in shared memory where that lies."""

    def place(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        known = self._found.get((name, linear(indices, self.module[name].dims)))
        return known if known is not None else super().place(scope, name, indices)

    def _stage(self, scope: Scope, stage: Stage) -> None:
        self._found = {}
        tile = self.program.tile
        assert tile is not None
        results = [self.module[each.instruction] for each in stage.results]
        for each in stage.results:
            scope.comment(f"{self.module[each.instruction]}  -> {self.module.buffer_of(each.instruction)}")
        lane = scope.variable("lane", cpp("threadIdx.x % {}", SIDE), SIDE)
        line = scope.variable("line", cpp("threadIdx.x / {}", SIDE), self.threads // SIDE)
        pointers, offset = [], 0
        for name in tile.reads:
            pointers.append(scope.shared(type_of(self.module[name]), "tile", offset))
            offset += tiles.tile_bytes(self.module, name)
        with self._lines(scope, stage, lane, line, turned=True) as (body, indices, own):
            reads = tiles.transposed(self.module, results, tile, self.available, indices)
            for (name, place), pointer in zip(reads, pointers, strict=True):
                to = body.index(own * PITCH + lane)
                body.line(cpp("{}[{}] = {}[{}];", pointer, to, self._read(name), body.index(place)))
        scope.line(BARRIER)
        with self._lines(scope, stage, lane, line, turned=False) as (body, indices, own):
            reads = tiles.transposed(self.module, results, tile, self.available, indices)
            for key, pointer in zip(reads, pointers, strict=True):
                self._found[key] = cpp("{}[{}]", pointer, body.index(lane * PITCH + own))
            for result in results:
                at = delinear(linear(indices, tile.dims), result.dims)
                self.store(body, result.name, linear(indices, tile.dims), self._elemental.value(body, result.name, at))
            self._found = {}

    @contextmanager
    def _lines(
        self, scope: Scope, stage: Stage, lane: Index, line: Index, *, turned: bool
    ) -> Iterator[tuple[Scope, tuple[Index, ...], Index]]:
        """The elements of the block's tile, a line of them by each warp; the lanes lie along the last dimension, or
        along the tile's own (`turned`). Yields the element's indices, and the number of the line."""
        tile = self.program.tile
        assert tile is not None
        assert isinstance(stage.chunk, BoxChunk)
        step = self.threads // SIDE
        scope.function.unrolled = SIDE
        across, along = (tile.dim, len(tile.dims) - 1) if turned else (len(tile.dims) - 1, tile.dim)
        with loop(scope, SIDE // step, "k") as (turn, k):
            own = turn.variable("own", turn.index(k * step + line), SIDE) if step < SIDE else line
            wanted: list[Code] = []
            places = list(self._start(stage.chunk))
            for at, index in ((across, lane), (along, own)):
                split, dim = stage.chunk.splits[at], tile.dims[at]
                places[at] = places[at] + index
                if split.size * split.parts > dim or split.size < SIDE:
                    wanted.append(cpp("{} < {}", turn.index(places[at]), dim))
            with turn.when(wanted) as body:
                for at in (across, along):
                    places[at] = body.variable("at", body.index(places[at]), tile.dims[at])
                yield body, tuple(places), own
