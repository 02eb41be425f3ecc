"""Which vectors the addresses of a captured graph belong to, and which part of them.

A vector is a run of bytes on the device. Regions that overlap are parts of one; what is uploaded over the whole of a
vector, or allocated there, is another vector from then on. Of a pointer that a kernel gets only the start is known: it
belongs to the vector that lies there, or begins one whose length nobody said.

    up [100, 300)   kernel(180)   down [100, 200)      -->      x = [100, 300): up x, kernel x[80:], down x[0:100]
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from fusiond_transfer.frontend.importing.captured import Allocation, CapturedGraph, CapturedNode, Region


@dataclass(slots=True, eq=False)
class StoredVector:
    """Bytes from `start` to before `end`; `known`: a copy, a memset or an allocation said how many there are."""

    start: int
    end: int
    known: bool
    into: StoredVector | None = None
    """The vector that this one turned out to be part of."""

    def found(self) -> StoredVector:
        vector = self
        while vector.into is not None:
            vector = vector.into
        return vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """That a node touches a vector from `start` on, up to before `end` (None: not said)."""

    node: int
    way: str
    """up, down, from, to (of a copy on one side, or a memset), or points."""
    stored: StoredVector
    start: int
    end: int | None

    @property
    def vector(self) -> StoredVector:
        return self.stored.found()


class _Live:
    """The vectors of one side, as they lie in memory now: in order, no two of them overlapping."""

    def __init__(self) -> None:
        self._vectors: list[StoredVector] = []
        self._starts: list[int] = []

    def replaced(self, region: Region, *, allocated: bool = False) -> StoredVector:
        """What a region is now that something else is put there, whole or as part of what there is. Where it is
        `allocated`, nothing of what was there is left."""
        first, last = self._touching(region.start, region.end)
        there = self._vectors[first:last]
        whole = region.dense and all(region.start <= each.start and each.end <= region.end for each in there)
        if whole or allocated:
            made = StoredVector(start=region.start, end=region.end, known=True)
            self._put(first, last, made)
            return made
        return self.used(region.start, region.end, known=True)

    def used(self, start: int, end: int, *, known: bool) -> StoredVector:
        """The vector that these bytes are of, which may grow by that."""
        first, last = self._touching(start, end)
        there = self._vectors[first:last]
        if not there:
            made = StoredVector(start=start, end=end, known=known)
            self._put(first, last, made)
            return made
        found, *others = there
        for each in others:
            each.into = found
        if known:
            found.start, found.end = min(start, found.start), max(end, there[-1].end)
            found.known = True
        self._put(first, last, found)
        return found

    def _touching(self, start: int, end: int) -> tuple[int, int]:
        """From which position on, and up to before which, vectors overlap these bytes."""
        first = bisect.bisect_right(self._starts, start)
        first -= bool(first) and self._vectors[first - 1].end > start
        return first, max(first, bisect.bisect_left(self._starts, end))

    def _put(self, first: int, last: int, vector: StoredVector) -> None:
        self._vectors[first:last] = [vector]
        self._starts[first:last] = [vector.start]


def uses(captured: CapturedGraph) -> tuple[Use, ...]:
    """What each node touches on the device, and what copies on the host touch there, in the order of the nodes."""
    device, host = _Live(), _Live()
    found: list[Use] = []
    for number, node in enumerate(captured.nodes):
        found += _of(number, node, device, host)
    return tuple(found)


def _of(number: int, node: CapturedNode, device: _Live, host: _Live) -> Sequence[Use]:
    if node.kind == "KERNEL":
        return [
            Use(node=number, way="points", stored=device.used(each, each + 1, known=False), start=each, end=None)
            for each in node.pointers or ()
        ]
    if node.kind == "MEM_ALLOC" and node.target is not None:
        device.replaced(node.target, allocated=True)
        return ()
    if node.kind == "MEMSET" and node.target is not None:
        return [_use(number, "to", device.used(node.target.start, node.target.end, known=True), node.target)]
    if node.kind != "MEMCPY" or node.source is None or node.target is None:
        return ()
    source, target = node.source, node.target
    if source.host and not target.host:
        return [_use(number, "up", device.replaced(target), target)]
    if target.host and not source.host:
        return [_use(number, "down", device.used(source.start, source.end, known=True), source)]
    live = host if source.host else device
    return [
        _use(number, "from", live.used(source.start, source.end, known=True), source),
        _use(number, "to", live.used(target.start, target.end, known=True), target),
    ]


def _use(node: int, way: str, vector: StoredVector, region: Region) -> Use:
    return Use(node=node, way=way, stored=vector, start=region.start, end=region.end)


def part(use: Use) -> str:
    """`[80:]` of a use that is not of the whole vector; empty of one that is."""
    vector = use.vector
    first = use.start - vector.start
    end = None if use.end is None or use.end == vector.end else use.end - vector.start
    return f"[{first or ''}:{'' if end is None else end}]" if first or end is not None else ""


def longest(vector: StoredVector, starts: Sequence[int], lies: Allocation | None) -> tuple[int, str]:
    """How many bytes a vector has, and how that is known; 0 where only an upper bound is, which the text has. `starts`:
    where vectors begin, in order; `lies`: the allocation that this one is in."""
    if vector.known:
        return vector.end - vector.start, ""
    if lies is None:
        return 0, ""
    after = bisect.bisect_right(starts, vector.start)
    end = min(starts[after], lies.end) if after < len(starts) else lies.end
    if (vector.start, end) == (lies.start, lies.end):
        return end - vector.start, "all of its allocation"
    return 0, f"at most {end - vector.start} bytes"
