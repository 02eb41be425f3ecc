"""Shared-memory planning (section 5.1): allocates, shares and gives up buffers.

Buffers live from the stage that writes them to the last stage that reads them. Two may share space when their lives
do not overlap; or when the later one is written in place, element for element, by the only and last reader of the
earlier one (figure 3: Divide.1 in the space of Exponential.1). The paper finds such pairs on the dominance tree of
the data flow, from the root: what dominates a value comes after all of its uses. That rule is `Dominance`; without it
values share space that do not dominate each other, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A buffer to be placed: alive in stages `first`..`last`, both included. `in_place_of` names an earlier buffer
    that this one may overwrite although their lives touch in stage `first`."""

    name: str
    size_bytes: int
    first: int
    last: int
    in_place_of: str | None = None


@dataclass(frozen=True, slots=True)
class Dominance:
    """A dominance tree that answers in constant time: what a node dominates is a run in depth-first order."""

    entered: Mapping[str, int]
    left: Mapping[str, int]

    @classmethod
    def of(cls, successors: Mapping[str, Sequence[str]], root: str) -> Dominance:
        """The tree of what can be reached from the root."""
        graph = networkx.DiGraph((node, each) for node, following in successors.items() for each in following)
        graph.add_node(root)
        below: dict[str, list[str]] = {}
        for node, above in networkx.immediate_dominators(graph, root).items():
            if node != root:
                below.setdefault(above, []).append(node)
        entered: dict[str, int] = {}
        left: dict[str, int] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node in entered:
                left[node] = len(entered)
                continue
            entered[node] = len(entered)
            stack += [node, *below.get(node, ())]
        return cls(entered, left)

    def dominates(self, above: str, below: str) -> bool:
        """Whether every way from the root to `below` leads through `above`; False for what cannot be reached."""
        if above not in self.entered or below not in self.entered:
            return False
        return self.entered[above] <= self.entered[below] < self.left[above]


def layout(buffers: Sequence[SharedBuffer], tree: Dominance | None = None) -> dict[str, int]:
    """Offsets (bytes, aligned to 16) for all buffers, first fit in the order of their first stage. With `tree` two
    buffers share only where the later one dominates the earlier; without, wherever lives allow it."""
    offsets: dict[str, int] = {}
    alive: list[SharedBuffer] = []
    dead: list[SharedBuffer] = []
    for buffer in sorted(buffers, key=lambda each: (each.first, -each.size_bytes, each.name)):
        dead += [each for each in alive if each.last < buffer.first]
        alive = [each for each in alive if each.last >= buffer.first]
        apart = list(alive)
        if tree is not None and buffer.name in tree.entered:  # a workspace is in no tree, and may share with all
            apart += [each for each in dead if each.name in tree.entered and not tree.dominates(buffer.name, each.name)]
        spans = [(offsets[each.name], offsets[each.name] + each.size_bytes) for each in apart]
        offsets[buffer.name] = _in_place(buffer, alive, spans, offsets)
        if offsets[buffer.name] < 0:
            offsets[buffer.name] = _first_fit(buffer.size_bytes, spans)
        alive.append(buffer)
    return offsets


def _in_place(
    buffer: SharedBuffer, alive: Sequence[SharedBuffer], spans: Sequence[tuple[int, int]], offsets: Mapping[str, int]
) -> int:
    """The offset of the buffer that this one overwrites, if nothing else is in the way there; else -1. `spans` are what
    is taken, the overwritten one among them."""
    if buffer.in_place_of is None:
        return -1
    earlier = next((each for each in alive if each.name == buffer.in_place_of), None)
    if earlier is None or earlier.size_bytes != buffer.size_bytes or earlier.last != buffer.first:
        return -1
    start, end = offsets[earlier.name], offsets[earlier.name] + buffer.size_bytes
    own = spans.index((start, end))
    free = all(at == own or left >= end or right <= start for at, (left, right) in enumerate(spans))
    return start if free else -1


def _first_fit(size_bytes: int, spans: Iterable[tuple[int, int]]) -> int:
    at = 0
    for start, end in sorted(spans):
        if at + size_bytes <= start:
            break
        if end > at:
            at = -(-end // ALIGNMENT) * ALIGNMENT
    return at


def relieved(buffers: Sequence[SharedBuffer], limit: int, victims: Sequence[str]) -> list[str]:
    """Size shrinking (section 5.1.2): the first of the victims, in the order given, that must go so that no stage has
    more than `limit` bytes alive. One that is not alive where space is short is passed over. None of them where
    every stage has few enough bytes alive (and only the gaps between buffers are the trouble)."""
    load = [0] * (1 + max((each.last for each in buffers), default=-1))
    spans: dict[str, tuple[SharedBuffer, int]] = {}
    for each in buffers:
        first = each.first + (each.in_place_of is not None)
        spans[each.name] = (each, first)
        for stage in range(first, each.last + 1):
            load[stage] += each.size_bytes
    crowded = {stage for stage, size in enumerate(load) if size > limit}
    chosen = []
    for name in victims:
        if not crowded:
            break
        if name not in spans:
            continue
        each, first = spans[name]
        stages = range(first, each.last + 1)
        if crowded.isdisjoint(stages):
            continue
        chosen.append(name)
        for stage in stages:
            load[stage] -= each.size_bytes
            if load[stage] <= limit:
                crowded.discard(stage)
    return chosen


def total(buffers: Sequence[SharedBuffer], offsets: Mapping[str, int]) -> int:
    """Bytes from the start to the last end."""
    return max((offsets[each.name] + each.size_bytes for each in buffers), default=0)


class Barriers:
    """Where a block's barriers stand: between two of them nobody reads what was written, or
    writes over what was touched."""

    def __init__(self, buffers: Mapping[str, SharedBuffer], offsets: Mapping[str, int]) -> None:
        self.buffers = buffers
        self.offsets = offsets
        self.written: set[str] = set()
        self.touched: set[str] = set()

    def before(self, read: Mapping[str, bool], writes: Sequence[str], results: Iterable[str]) -> bool:
        """Whether a stage that reads and writes these needs a barrier before it. `read`: value -> whether the threads
        that read its elements are those that wrote them."""
        needed = any(each in self.written for each, own in read.items() if not own)
        needed = needed or any(self._over(mine, theirs) for mine in writes for theirs in self.touched)
        if needed:
            self.written.clear()
            self.touched.clear()
        self.written.update(results)
        self.touched.update(writes)
        self.touched.update(each for each in read if each in self.buffers)
        return needed

    def _over(self, mine: str, theirs: str) -> bool:
        if mine == theirs:
            return False
        a, b = self.offsets[mine], self.offsets[theirs]
        return a < b + self.buffers[theirs].size_bytes and b < a + self.buffers[mine].size_bytes
