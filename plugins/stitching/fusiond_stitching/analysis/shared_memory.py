"""Shared-memory planning (section 5.1): who gets a buffer, who may share one, and what goes when space is short.

Buffers live from the stage that writes them to the last stage that reads them. Two may share space when their lives
do not overlap; or when the later one is written in place, element for element, by the only and last reader of the
earlier one (figure 3: Divide.1 in the space of Exponential.1). The paper finds such pairs on the dominance tree of
the data flow, from the root: what dominates a value comes after all of its uses. That rule is `dominance`; `liveness`
also shares between values that do not dominate each other, and needs no tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def dominators(successors: Mapping[str, Sequence[str]], root: str) -> dict[str, str]:
    """The immediate dominator of every node that can be reached from the root (the root's is itself): Cooper, Harvey
    and Kennedy's iteration over reverse postorder."""
    order: list[str] = []
    seen = {root}
    stack: list[tuple[str, int]] = [(root, 0)]
    while stack:
        node, place = stack.pop()
        following = successors.get(node, ())
        if place < len(following):
            stack.append((node, place + 1))
            if following[place] not in seen:
                seen.add(following[place])
                stack.append((following[place], 0))
        else:
            order.append(node)
    number = {node: place for place, node in enumerate(order)}
    before: dict[str, list[str]] = {node: [] for node in order}
    for node in order:
        for each in successors.get(node, ()):
            before[each].append(node)
    found = {root: root}
    changed = True
    while changed:
        changed = False
        for node in reversed(order):
            if node == root:
                continue
            known = [each for each in before[node] if each in found]
            new = known[0]
            for each in known[1:]:
                new = _meet(new, each, found, number)
            if found.get(node) != new:
                found[node] = new
                changed = True
    return found


def _meet(left: str, right: str, found: Mapping[str, str], number: Mapping[str, int]) -> str:
    while left != right:
        while number[left] < number[right]:
            left = found[left]
        while number[right] < number[left]:
            right = found[right]
    return left


@dataclass(frozen=True, slots=True)
class Dominance:
    """A dominance tree that answers in constant time: what a node dominates is a run in depth-first order."""

    entered: Mapping[str, int]
    left: Mapping[str, int]

    @classmethod
    def of(cls, immediate: Mapping[str, str]) -> Dominance:
        below: dict[str, list[str]] = {}
        for node, above in immediate.items():
            if node != above:
                below.setdefault(above, []).append(node)
        entered: dict[str, int] = {}
        left: dict[str, int] = {}
        stack = [node for node, above in immediate.items() if node == above]
        while stack:
            node = stack.pop()
            if node in entered:
                left[node] = len(entered)
                continue
            entered[node] = len(entered)
            stack += [node, *below.get(node, ())]
        return cls(entered, left)

    def __contains__(self, node: object) -> bool:
        return node in self.entered

    def dominates(self, above: str, below: str) -> bool:
        """Whether every way from the root to `below` leads through `above`; False for what cannot be reached."""
        if above not in self.entered or below not in self.entered:
            return False
        return self.entered[above] <= self.entered[below] < self.left[above]


def layout(buffers: Sequence[SharedBuffer], immediate: Mapping[str, str] | None = None) -> dict[str, int]:
    """Offsets (bytes, aligned to 16) for all buffers, first fit in the order of their first stage. With `immediate`
    (the dominance tree) two buffers share only where the later one dominates the earlier; without, wherever lives
    allow it."""
    tree = None if immediate is None else Dominance.of(immediate)
    offsets: dict[str, int] = {}
    alive: list[SharedBuffer] = []
    dead: list[tuple[int, int, int]] = []  # (number in the tree, start, end)
    for buffer in sorted(buffers, key=lambda each: (each.first, -each.size_bytes, each.name)):
        gone = [each for each in alive if each.last < buffer.first]
        alive = [each for each in alive if each.last >= buffer.first] if gone else alive
        spans = [(offsets[each.name], offsets[each.name] + each.size_bytes) for each in alive]
        if tree is not None:
            # A workspace belongs to nobody's data flow, and is not in the tree: it may share with all.
            for each in gone:
                if each.name in tree:
                    start = offsets[each.name]
                    dead.append((tree.entered[each.name], start, start + each.size_bytes))
            if buffer.name in tree:
                low, high = tree.entered[buffer.name], tree.left[buffer.name]
                spans += [(start, end) for number, start, end in dead if not low <= number < high]
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
    earlier = next((each for each in alive if _overwritten(each, buffer)), None)
    if earlier is None:
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


def _overwritten(earlier: SharedBuffer, later: SharedBuffer) -> bool:
    """The later one may be written in place of the earlier one, at the very same offset."""
    fits = earlier.size_bytes == later.size_bytes and earlier.last == later.first
    return later.in_place_of == earlier.name and fits


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


def overlaps(buffers: Sequence[SharedBuffer], offsets: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of buffers that are alive in one stage and share a byte, except a legal write in place: none in a sound
    layout."""
    found = []
    for place, left in enumerate(buffers):
        for right in buffers[place + 1 :]:
            first, second = (left, right) if left.first <= right.first else (right, left)
            if first.last < second.first:
                continue
            a, b = offsets[left.name], offsets[right.name]
            if a + left.size_bytes <= b or b + right.size_bytes <= a:
                continue
            if not (_overwritten(first, second) and a == b):
                found.append((left.name, right.name))
    return found
