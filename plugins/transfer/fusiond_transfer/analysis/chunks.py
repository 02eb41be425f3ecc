"""Which cells of a script are cut into chunks, and where: rows that belong together are cut at the same places.

Kernels that work row by row (`frontend.row_wise`) and the cells that they split form connected pieces. All of a piece
has one number of rows, and is cut into equal chunks of them, at bytes that are multiples of ALIGNMENT in every cell.
What is small is not cut: a piece gets no more chunks than its largest vector that crosses has shares of `least_bytes`.

    ideal       the slowest of uploads, kernels and downloads (each without the others), plus one chunk of the rest:
                max + (sum - max) / chunks
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusiond.language.dtypes import DTYPES
from fusiond.language.extents import ceil_div, quotient
from fusiond_transfer.analysis.layout import ALIGNMENT
from fusiond_transfer.analysis.script import KernelCall, Move, Script
from fusiond_transfer.frontend.graph import Graph, Vector
from fusiond_transfer.frontend.row_wise import RowWise, row_wise

LEAST_BYTES = 16 << 10
"""A chunk of less takes longer to begin than to carry, on every link that is known here."""
MOST_CHUNKS = 64
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cell that is cut: `bounds` are elements, from 0 to its length, `rows` the rows of its piece."""

    piece: int
    bounds: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """`cells` that are cut, and the `calls` that are made once for each chunk (by name)."""

    cells: Mapping[str, Cut]
    calls: Mapping[str, RowWise]

    def cut(self, call: KernelCall) -> Cut | None:
        """How a call is cut; None where it is made once."""
        how = self.calls.get(call.name)
        if how is None:
            return None
        return self.cells[cell_of(call)[how.split[0]]]


WHOLE = Chunks(cells={}, calls={})
"""Nothing is cut."""


def cell_of(call: KernelCall) -> Mapping[str, str]:
    """Vector -> the cell that is its kernel's operand in a call."""
    pairs = (*zip(call.kernel.reads, call.reads, strict=True), *zip(call.kernel.writes, call.writes, strict=True))
    return dict(pairs)


def row_wise_kernels(graph: Graph) -> Mapping[str, RowWise | str]:
    """Kernel -> how it can be cut, or why it cannot."""
    known: dict[tuple[object, ...], RowWise | str] = {}
    found: dict[str, RowWise | str] = {}
    for kernel in graph.kernels:
        key = (kernel.body, kernel.reads, kernel.writes, kernel.rows, kernel.whole, kernel.on)
        if key not in known:
            known[key] = row_wise(graph, kernel)
        found[kernel.name] = known[key]
    return found


def chunks(script: Script, wanted: int, *, least_bytes: int = LEAST_BYTES) -> Chunks:
    """The cells of a script that are cut into at most `wanted` chunks, none much smaller than `least_bytes`."""
    if wanted < 2:
        return WHOLE
    crossing = {cell for op in script.ops if isinstance(op, Move) and op.counted for cell in op.wanted}
    like = {cell.name: cell.like for cell in script.cells}
    found_cells: dict[str, Cut] = {}
    found_calls: dict[str, RowWise] = {}
    for number, members in enumerate(_pieces(script)):
        cut = list(dict.fromkeys(cell_of(call)[name] for call, how in members for name in how.split))
        rows = _rows(members)
        carried = max((like[cell].size_bytes for cell in cut if cell in crossing), default=0)
        bounds = _bounds(rows, [like[cell] for cell in cut], min(wanted, MOST_CHUNKS, carried // max(1, least_bytes)))
        if rows is None or len(bounds) < 3:
            continue
        for cell in cut:
            width = quotient(like[cell].elements, rows) if int(like[cell].elements) != int(rows) else 1
            found_cells[cell] = Cut(piece=number, bounds=tuple(each * width for each in bounds), rows=bounds)
        found_calls |= {call.name: how for call, how in members}
    return Chunks(cells=found_cells, calls=found_calls)


def _pieces(script: Script) -> list[list[tuple[KernelCall, RowWise]]]:
    """The calls that can be cut, those together that split a cell in common: they have to be cut alike."""
    ways = row_wise_kernels(script.graph)
    calls = [
        (op, how)
        for op in script.ops
        if isinstance(op, KernelCall) and isinstance(how := ways[op.kernel.origin or op.kernel.name], RowWise)
    ]
    home: dict[str, str] = {}

    def root(cell: str) -> str:
        home.setdefault(cell, cell)
        while home[cell] != cell:
            home[cell] = home[home[cell]]
            cell = home[cell]
        return cell

    for call, how in calls:
        cells = cell_of(call)
        for name in how.split[1:]:
            home[root(cells[name])] = root(cells[how.split[0]])
    pieces: dict[str, list[tuple[KernelCall, RowWise]]] = {}
    for call, how in calls:
        pieces.setdefault(root(cell_of(call)[how.split[0]]), []).append((call, how))
    return list(pieces.values())


def _bounds(rows: int | None, vectors: Sequence[Vector], most: int) -> tuple[int, ...]:
    """The rows at which at most so many chunks begin, and the end; nothing where the vectors have no such rows. Each
    begins at an aligned element of all vectors."""
    if rows is None or any(each.elements % int(rows) for each in vectors):
        return ()
    row_bytes = [int(each.elements) // int(rows) * DTYPES[each.dtype].bytes for each in vectors]
    together = math.lcm(*(ALIGNMENT // math.gcd(ALIGNMENT, size) for size in row_bytes))
    blocks = ceil_div(rows, together)
    count = min(most, int(blocks))
    return (*(together * ((k * blocks) // count) for k in range(count)), rows)


def _rows(members: list[tuple[KernelCall, RowWise]]) -> int | None:
    """The rows of a piece: the declared ones, of which all elements are; None where two declarations differ."""
    declared = {how.declared: how.rows for _, how in members if how.declared}
    if len(declared) > 1:
        return None
    return next(iter(declared.values()), members[0][1].rows)


def counts(script: Script, *, least_bytes: int = LEAST_BYTES) -> tuple[int, ...]:
    """The numbers of chunks that there is something to cut into."""
    most = max((each.count for each in chunks(script, MOST_CHUNKS, least_bytes=least_bytes).cells.values()), default=1)
    return tuple(count for count in COUNTS if count <= most)


def ideal_us(busy_us: Mapping[str, float], count: int) -> float:
    """What chunks can come to: the slowest engine, and one chunk of the others. `busy_us`: engine -> what its steps
    take together when nothing is cut."""
    slowest = max(busy_us.values(), default=0.0)
    return slowest + (sum(busy_us.values()) - slowest) / count


def parts(cut: Cut) -> list[tuple[int, int, int]]:
    """(number, first element, elements) of each chunk."""
    return [(k, a, b - a) for k, (a, b) in enumerate(itertools.pairwise(cut.bounds))]
