"""Chooses the cells of a script that are cut into chunks, at the same rows where they belong together.

Kernels that work row by row (`frontend.row_wise`) and what they split form connected lines of rows: `row_lines` says
where on its line each cell lies. A line is cut into chunks of about equal length, which begin at bytes that are
multiples of ALIGNMENT in every vector. What is small is not cut: a line gets no more chunks than the largest vector on
it that crosses has shares of `least_bytes`. Where pieces of vectors begin, a chunk begins, too, but pieces of less than
a share of the line are in one chunk with their neighbours.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.extents import ceil_div
from fusiond_transfer.analysis.cells import Move, Script
from fusiond_transfer.analysis.layout import ALIGNMENT
from fusiond_transfer.analysis.row_lines import OnLine, RowLine, lines
from fusiond_transfer.frontend.row_wise import RowWise

LEAST_BYTES = 16 << 10  #: A chunk of less takes longer to begin than to carry, on every link that is known here
MOST_CHUNKS = 64
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cell that is cut: `bounds` are elements, from 0 to its length. Its chunks are those from number `first` on of
    the `of` chunks of its line."""

    bounds: tuple[int, ...]
    first: int
    of: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.bounds) - 1)

    def within(self, number: int) -> tuple[int, int]:
        """(first element, elements) of a chunk, which the cell has."""
        at = number - self.first
        return self.bounds[at], self.bounds[at + 1] - self.bounds[at]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """`cells` that are cut, and the `calls` that are made once for each chunk (by name; their bounds are rows, where
    those are declared, else elements)."""

    cells: Mapping[str, Cut]
    calls: Mapping[str, tuple[RowWise, Cut]]
    equal: tuple[int, ...] = ()  #: Numbers that are equal at these sizes, and have to stay so


WHOLE = Chunks(cells={}, calls={})  #: Nothing is cut


def chunks(script: Script, wanted: int, *, least_bytes: int = LEAST_BYTES) -> Chunks:
    """The cells of a script that are cut into at most `wanted` chunks (and more where pieces begin), none much smaller
    than `least_bytes`."""
    if wanted < 2:
        return WHOLE
    crossing = {cell for op in script.ops if isinstance(op, Move) and op.counted for cell in op.wanted}
    cells: dict[str, Cut] = {}
    calls: dict[str, tuple[RowWise, Cut]] = {}
    equal: list[int] = []
    for line in lines(script)[0]:
        bounds = _bounds(line, min(wanted, MOST_CHUNKS, _carried_bytes(line, crossing) // max(1, least_bytes)))
        if len(bounds) > 2:
            equal += line.equal
            cells |= {cell: _cut(bounds, on) for cell, on in line.cells.items()}
            calls |= {name: (how, _cut(bounds, on)) for name, (how, on) in line.calls.items()}
    return Chunks(cells=cells, calls=calls, equal=tuple(equal)) if cells else WHOLE


def _cut(bounds: Sequence[int], on: OnLine) -> Cut:
    """Of what lies somewhere on a line, whose own ends are bounds of it."""
    rows = (on.first, *(each for each in bounds if on.first < each < on.end), on.end)
    first = max(number for number, each in enumerate(bounds) if each <= on.first)
    return Cut(bounds=tuple((each - on.first) * on.width for each in rows), first=first, of=len(bounds) - 1)


def _carried_bytes(line: RowLine, crossing: set[str]) -> int:
    """Of the vector of which most crosses."""
    carried: dict[str, int] = {}
    for cell, on in line.cells.items():
        if cell in crossing:
            carried[on.home] = carried.get(on.home, 0) + on.like.size_bytes
    return max(carried.values(), default=0)


def _bounds(line: RowLine, most: int) -> tuple[int, ...]:
    """The rows at which at most so many chunks begin, and the end; nothing where the vectors have no such rows. Each
    begins at an aligned element of all vectors, counted from where their pieces begin."""
    if most < 2 or line.uneven:
        return ()
    length = int(line.bounds[-1]) - int(line.bounds[0])
    found: list[int] = []
    rest = 0.0  #: How much of a share the chunk has that is open for small pieces
    for start, end in itertools.pairwise(line.bounds):
        rows = end - start
        share = int(rows) * most / length
        if share < 1 and found and rest > 0 and rest + share <= 1:
            rest += share
            continue
        rest = share if share < 1 else 0.0
        together = _together(line, start, end)
        blocks = ceil_div(rows, together)
        count = max(1, min(int(share), int(blocks)))
        at = (together * ((k * blocks) // count) for k in range(count))
        found += (start + each if start else each for each in at)
    return (*found, line.bounds[-1])


def _together(line: RowLine, start: int, end: int) -> int:
    """Rows that begin at an aligned element of every vector, if the first of these does."""
    row_bytes = [int(on.width) * DTYPES[on.like.dtype].bytes for on in line.cells.values()
                 if on.first < end and start < on.end]  # fmt: skip
    return math.lcm(*(ALIGNMENT // math.gcd(ALIGNMENT, size) for size in row_bytes))


def counts(script: Script, *, least_bytes: int = LEAST_BYTES) -> tuple[int, ...]:
    """The numbers of chunks that there is something to cut into."""
    cut = chunks(script, MOST_CHUNKS, least_bytes=least_bytes)
    most = max((each.of for each in cut.cells.values()), default=1)
    return tuple(count for count in COUNTS if count <= most)


def ideal_us(busy_us: Mapping[str, float], count: int) -> float:
    """What chunks can come to: the slowest engine, and one chunk of the others. `busy_us`: engine -> what its steps
    take together when nothing is cut."""
    slowest = max(busy_us.values(), default=0.0)
    return slowest + (sum(busy_us.values()) - slowest) / count
