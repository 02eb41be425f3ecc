"""Counts a launch of many blocks from some of its waves.

A wave is as many neighbouring blocks as run together. Segments of waves in a row are run: at the begin, at places
between, and up to the last block; the last waves of each are measured. Between two measured places the counts of a wave
are interpolated over its number, so that what depends on the block's index (edges, triangles) is followed; the distinct
sectors of a buffer are at most all of them. docs/counting.md says how the L2 is kept right.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting.library import COUNTS, Cache, CountingLibrary, CountRequest
from fusiond.devices.counting.rows import PtxCode

LEAST_WAVES = 12  #: A launch with fewer is run whole
_BETWEEN = 3
"""Places between the begin and the end; of one wave behind one, where all would not stay within the budget."""
_MEASURED = 2  #: Waves at each place
_WARM = 2  #: Waves before them, at least

_SLIGHT = 0.02  #: Relative; of edges that no wave that was run has
_ALIKE = 0.9  #: The shortest block's instructions against the average of its wave
_NEARLY = 0.95
_FIELDS: tuple[str, ...] = COUNTS.names or ()

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What some neighbouring blocks did. Arrays of whole numbers, as float64."""

    counts: Floats  #: (instructions, fields of COUNTS)
    read_sectors: Floats  #: Of each allocation, those that were touched for the first time
    write_sectors: Floats
    dram: Floats  #: Read and written, bytes
    issued: int  #: Instructions of warps
    shortest_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCounts:
    """What one launch did, and what that is worth; by default those of one that ran whole."""

    code: PtxCode
    counts: NDArray[np.void]  #: A row for each instruction of `code`
    compulsory_read_sectors: int
    compulsory_write_sectors: int
    dram_correction: tuple[int, int] = (0, 0)
    """Bytes read and written that the blocks that were not run would have added to the L2's account."""
    shortest_block: int  #: Instructions of warps of the block that has the fewest, of those that were run
    resident: int
    least: Mapping[str, float]
    """Field of COUNTS -> what its sum is not below, if waves that were not run do no less than the least one that
    was."""
    seen_read_sectors: int  #: Distinct ones of the blocks that were run
    seen_write_sectors: int
    steered: bool = False  #: What blocks do depends on values in memory
    failed: str | None = None
    sampled: float = 1.0  #: The part of the blocks that was run
    error: float = 0.0  #: Relative, as far as sampling makes one, of the count that it is largest for; of DRAM apart
    dram_error: float = 0.0  #: The same of the DRAM bytes, as far as they differ from place to place
    overlapping: bool = False
    """Blocks that are far from one another touch the same sectors, and nobody knows how many of those that were not run
    do: more were estimated than there are, or the places differ."""
    alike: bool = True  #: All blocks ran at once, or those of each wave do the same, so that they would end together
    settled: bool = True  #: What was run found the L2 as it would be, and left it so
    renewed: bool = False  #: The L2 holds what it would hold had all blocks run, whatever was in it before


class Runs:
    """A launch that is run some of its blocks at a time: counted in clusters, where it has such."""

    def __init__(
        self,
        library: CountingLibrary,
        cache: Cache,
        request: CountRequest,
        code: PtxCode,
        allocations: NDArray[np.uint64],
        l2_sectors: int,
    ) -> None:
        """`allocations`: begins and ends, shape (n, 2). To be closed."""
        self._library, self.cache, self._request, self._allocations = library, cache, request, allocations
        self.code, self.l2_sectors = code, l2_sectors
        self.together = math.prod(request.cluster)
        self.blocks = math.prod(request.grid) // self.together
        self.resident = request.resident // self.together
        begins, ends = allocations.reshape(-1, 2).T
        self.allocation_sectors: Floats = ((ends + 31) // 32 - begins // 32).astype(np.float64)
        request.allocations, request.allocation_count = allocations.ctypes.data, len(allocations)
        request.footprint = library.footprint(allocations)
        cache.begin_launch()
        self._number = cache.launches - 1

    @property
    def dram(self) -> Floats:
        """Bytes read and written on the account of this launch."""
        return np.array(self.cache.dram_bytes(self._number), np.float64)

    def close(self) -> None:
        self._library.end_footprint(self._request.footprint)

    def run(self, begin: int, end: int) -> Piece:
        """The blocks from one number up to another. Failed where one of them fails."""
        request, before = self._request, self.dram
        blocks = np.arange(begin * self.together, min(end, self.blocks) * self.together, dtype=np.int64)
        if request.backwards:
            blocks = blocks[::-1].copy()
        counts = np.zeros(len(self.code.instructions), COUNTS)
        read, written = (np.zeros(len(self._allocations), np.uint64) for _ in range(2))
        request.blocks, request.block_count = blocks.ctypes.data, len(blocks)
        request.counts = counts.ctypes.data
        request.new_read_sectors, request.new_write_sectors = read.ctypes.data, written.ctypes.data
        request.shortest_block = 2**62
        failed = self._library.launch(self.cache, request)
        if failed is not None:
            raise Failed(*failed)
        return Piece(
            counts=counts.view(np.uint64).reshape(len(counts), -1).astype(np.float64),
            read_sectors=read.astype(np.float64),
            write_sectors=written.astype(np.float64),
            dram=self.dram - before,
            issued=int(counts["warps"].sum()),
            shortest_block=int(request.shortest_block) * self.together,
        )

    def hold(self, read: Floats, written: Floats) -> None:
        """Put into the L2 what the blocks that were not run have touched, given the estimated distinct sectors of each
        allocation: those of which (nearly) every sector was touched; which ones of another, nobody knows."""
        for (begin, end), reads, writes in zip(self._allocations.tolist(), read, written, strict=True):
            sectors = (end - begin) / 32
            if max(reads, writes) >= _NEARLY * sectors:
                self.cache.hold(begin, end, written=bool(writes >= _NEARLY * sectors))

    def result(
        self,
        pieces: Sequence[Piece],
        counts: Floats,
        read: Floats,
        written: Floats,
        dram: Floats,
        least: Floats,
        **worth: Any,
    ) -> LaunchCounts:
        """Of what was run, and what that makes of the whole launch, as whole numbers."""
        missing = dram - self.dram
        whole = np.zeros(len(counts), COUNTS)
        for k, name in enumerate(_FIELDS):
            whole[name] = np.rint(np.maximum(counts[:, k], 0)).astype(np.uint64)
        return LaunchCounts(
            code=self.code,
            counts=whole,
            compulsory_read_sectors=round(read.sum()),
            compulsory_write_sectors=round(written.sum()),
            dram_correction=(round(missing[0]), round(missing[1])),
            shortest_block=min(each.shortest_block for each in pieces) // self.together,
            resident=self._request.resident,
            least=dict(zip(_FIELDS, least, strict=True)),
            seen_read_sectors=round(sum(each.read_sectors.sum() for each in pieces)),
            seen_write_sectors=round(sum(each.write_sectors.sum() for each in pieces)),
            **worth,
        )

    def nothing(self, failed: str) -> LaunchCounts:
        """Of a launch that failed."""
        return LaunchCounts(
            code=self.code,
            counts=np.zeros(len(self.code.instructions), COUNTS),
            compulsory_read_sectors=0,
            compulsory_write_sectors=0,
            shortest_block=0,
            resident=self._request.resident,
            least=dict.fromkeys(_FIELDS, 0.0),
            seen_read_sectors=0,
            seen_write_sectors=0,
            sampled=0.0,
            failed=failed,
        )


class Failed(Exception):
    """A block failed: the instruction, and why."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at, self.reason = at, reason


def estimate(runs: Runs, budget: int | None) -> LaunchCounts:
    """The counts of a launch; whole where that takes no more than `budget` instructions of warps (None: in any case),
    or where it has too few waves. Failed where a block fails."""
    waves = -(-runs.blocks // runs.resident)
    runs.cache.mark()
    if budget is None or waves < LEAST_WAVES:
        return _together(runs, [runs.run(0, runs.blocks)], alike=True, renewed=runs.cache.renewed)  # also: in one go
    pieces = list[Piece]()
    for wave in range(waves):
        pieces.append(_wave(runs, wave))
        if pieces[-1].issued * waves > budget and wave < waves // 2:
            return _Sampler(runs, pieces, waves, budget).estimate()
    return _together(runs, pieces, alike=_alike(pieces, runs), renewed=runs.cache.renewed)


def _wave(runs: Runs, wave: int) -> Piece:
    return runs.run(wave * runs.resident, (wave + 1) * runs.resident)


def _alike(pieces: Sequence[Piece], runs: Runs) -> bool:
    """Whether the blocks of each wave take about as many instructions; the last wave may be at the edge."""
    inner = pieces[:-1] or pieces
    return all(each.shortest_block * runs.resident >= _ALIKE * each.issued for each in inner)


def _together(runs: Runs, pieces: Sequence[Piece], *, alike: bool, renewed: bool) -> LaunchCounts:
    names = ("counts", "read_sectors", "write_sectors", "dram")
    counts, read, written, dram = (_sum([getattr(each, name) for each in pieces]) for name in names)
    worth = {"alike": alike, "settled": alike, "renewed": renewed}
    return runs.result(pieces, counts, read, written, dram, counts.sum(axis=0), **worth)


def _sum(arrays: Sequence[Floats]) -> Floats:
    found: Floats = np.sum(np.stack(arrays), axis=0)
    return found


class _Sampler:
    def __init__(self, runs: Runs, pieces: Sequence[Piece], waves: int, budget: int) -> None:
        self._runs, self._waves = runs, waves
        self._budget = budget
        self._filling = 1  # waves that it takes to fill the L2
        self._pieces = dict(enumerate(pieces))
        self._warm: set[int] = set()  # waves that ran before the L2 was as it should be
        self._places: list[list[int]] = []  # measured waves in a row
        self._filled = True

    def estimate(self) -> LaunchCounts:
        self._begin()
        least = 2 * (self._filling + _MEASURED) + 2 * _BETWEEN  # waves that will be run
        if 4 * least > 3 * self._waves:  # to run them all costs a third more at most
            for wave in range(len(self._pieces), self._waves):
                self._run(wave)
            return self._whole(renewed=self._runs.cache.renewed)
        spent = sum(each.issued for each in self._pieces.values())
        each = max(1, spent // len(self._pieces))
        left = self._budget - spent - (self._filling + _MEASURED + 1) * each
        thin = left < _BETWEEN * (_WARM + _MEASURED) * each
        for place in range(1, _BETWEEN + 1):
            self._place(place * (self._waves - 1) // (_BETWEEN + 1), thin=thin)
        self._place(self._waves - 1 - _MEASURED - self._filling, to_end=True)
        if len(self._pieces) == self._waves:
            return self._whole(renewed=self._filled)
        return self._estimate()

    def _whole(self, *, renewed: bool) -> LaunchCounts:
        found = [self._pieces[wave] for wave in range(self._waves)]
        return _together(self._runs, found, alike=_alike(found, self._runs), renewed=renewed)

    def _run(self, wave: int) -> int:
        """Its instructions of warps."""
        self._pieces[wave] = _wave(self._runs, wave)
        return self._pieces[wave].issued

    def _begin(self) -> None:
        """The first waves, all as they are."""
        wave, spent = len(self._pieces), self._pieces[0].issued
        while not self._runs.cache.renewed and spent < 2 * self._budget // 5 and wave < self._waves - _MEASURED:
            spent += self._run(wave)
            wave += 1
        self._filled &= self._runs.cache.renewed
        self._filling = wave
        measured = list(range(wave, min(wave + _MEASURED, self._waves)))
        for each in measured:
            self._run(each)
        self._places.append(measured)

    def _place(self, start: int, *, thin: bool = False, to_end: bool = False) -> None:
        """Warm up from `start`, then measure; on to the last wave where it is the end."""
        after = max(self._pieces) + 1
        joined = start <= after
        start = max(start, after)
        self._runs.cache.mark()
        spent, measured = 0, list[int]()
        for wave in range(start, self._waves):
            near = wave >= self._waves - 1 - _MEASURED
            enough = wave > start if thin else spent >= self._budget // 20 and wave - start >= _WARM
            ready = joined or self._runs.cache.renewed or (near if to_end else enough)
            if to_end and ready and not measured:
                self._filled &= joined or self._runs.cache.renewed
            spent += self._run(wave)
            if ready:
                measured.append(wave)
            else:
                self._warm.add(wave)
            if len(measured) == (1 if thin else _MEASURED) and not to_end:
                break
        # The last wave is at the edge, and seldom a whole one: it stands for itself alone, as the first one does.
        inner = [each for each in measured if each < self._waves - 1]
        if inner:
            self._places.append(inner[-_MEASURED:])

    def _estimate(self) -> LaunchCounts:
        runs, pieces = self._runs, self._pieces
        whole = [wave for wave in pieces if wave not in self._warm]
        missing = np.array([wave for wave in range(self._waves) if wave not in pieces])
        cold = np.concatenate([missing, np.array(sorted(self._warm))])
        at = np.array([np.mean(each) for each in self._places])

        def totals(of: Callable[[Piece], Floats], *, past_warm: bool) -> Floats:
            exact = _sum([of(pieces[wave]) for wave in (whole if past_warm else pieces)])
            nodes = np.stack([_sum([of(pieces[wave]) for wave in each]) / len(each) for each in self._places])
            unknown = cold if past_warm else missing
            weights = np.stack([np.interp(unknown, at, row).sum() for row in np.eye(len(at))])
            return exact + np.tensordot(weights, nodes, axes=1)

        fully_read = totals(lambda piece: piece.read_sectors, past_warm=True)
        fully_written = totals(lambda piece: piece.write_sectors, past_warm=True)
        read, written = (np.minimum(each, runs.allocation_sectors) for each in (fully_read, fully_written))
        distinct = read.sum() + written.sum()
        dram = totals(lambda piece: piece.dram, past_warm=True)
        errors = self._errors(at, len(cold))
        overlapping = fully_read.sum() + fully_written.sum() > (1 + _SLIGHT) * distinct or errors[-2] > _SLIGHT
        if not self._filled and max(read.sum(), written.sum()) <= runs.l2_sectors:
            dram[0] = min(dram[0], 32 * read.sum())
            runs.hold(read, written)
        alike = _alike([pieces[wave] for wave in sorted(pieces)], runs)
        ran = sum(min(runs.blocks, (wave + 1) * runs.resident) - wave * runs.resident for wave in pieces)
        return runs.result(
            list(pieces.values()),
            totals(lambda piece: piece.counts, past_warm=False),
            read,
            written,
            dram,
            self._least(len(missing)),
            sampled=ran / runs.blocks,
            error=float(errors[:-1].max()),
            dram_error=float(errors[-1]),
            overlapping=overlapping,
            alike=alike,
            settled=alike and self._filled,
            renewed=self._filled,
        )

    def _least(self, missing: int) -> Floats:
        ran = {wave: each.counts.sum(axis=0) for wave, each in self._pieces.items()}
        least = np.stack([each for wave, each in ran.items() if wave < self._waves - 1]).min(axis=0)  # the last: a part
        found: Floats = _sum(list(ran.values())) + missing * least
        return found

    def _errors(self, at: Floats, unknown: int) -> Floats:
        """How far a place is from the line between its neighbours (two alone: from their middle), and the waves of one
        place from one another; over the waves that are interpolated, against all. Of each count, then of distinct
        sectors, then of DRAM."""

        def figures(piece: Piece) -> Floats:
            memory = [piece.read_sectors.sum() + piece.write_sectors.sum(), piece.dram.sum()]
            return np.concatenate([piece.counts.sum(axis=0), memory])

        waves = [np.stack([figures(self._pieces[wave]) for wave in each]) for each in self._places]
        nodes = np.stack([each.mean(axis=0) for each in waves])
        apart = np.zeros(nodes.shape[1])
        if len(at) == 2:
            apart = np.abs(nodes[1] - nodes[0]) / 2
        for k in range(1, len(at) - 1):
            share = (at[k] - at[k - 1]) / (at[k + 1] - at[k - 1])
            line = nodes[k - 1] + share * (nodes[k + 1] - nodes[k - 1])
            apart = np.maximum(apart, np.abs(nodes[k] - line))
        spread = np.max([np.abs(each[0] - each[-1]) / 2 for each in waves], axis=0)
        typical = nodes.mean(axis=0)
        relative = np.divide(apart + spread, typical, out=np.zeros_like(apart), where=typical > 0)
        found: Floats = relative * unknown / self._waves
        return found
