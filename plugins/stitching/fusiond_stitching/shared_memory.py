"""Shared-memory planning (section 5.1): who gets a buffer, who may share one, and what goes when space is short.

Buffers live from the stage that writes them to the last stage that reads them. Two may share space when their lives
do not overlap; or when the later one is written in place, element for element, by the only and last reader of the
earlier one (figure 3: Divide.1 in the space of Exponential.1). The paper finds such pairs on the dominance tree of
the data flow, from the root: what dominates a value comes after all of its uses. That rule is `dominance`; `liveness`
also shares between values that do not dominate each other, and needs no tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Wanted:
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


def dominates(above: str, below: str, immediate: Mapping[str, str]) -> bool:
    """Whether every way from the root to `below` leads through `above`."""
    node = below
    while node in immediate:
        if node == above:
            return True
        if immediate[node] == node:
            return False
        node = immediate[node]
    return False


def layout(buffers: Sequence[Wanted], immediate: Mapping[str, str] | None = None) -> dict[str, int]:
    """Offsets (bytes, aligned to 16) for all buffers, first fit in the order of their first stage. With `immediate`
    (the dominance tree) two buffers share only where the later one dominates the earlier; without, wherever lives
    allow it."""
    placed: list[tuple[Wanted, int]] = []
    for buffer in sorted(buffers, key=lambda each: (each.first, -each.size_bytes, each.name)):
        blocked = sorted(
            (offset, offset + each.size_bytes)
            for each, offset in placed
            if not _may_share(each, buffer, immediate) and not _overwritten(each, buffer)
        )
        at = next((offset for each, offset in placed if _overwritten(each, buffer)), -1)
        if at < 0 or any(start < at + buffer.size_bytes and at < end for start, end in blocked):
            # Not in place: then the buffer that it could have overwritten is in the way like any other.
            blocked = sorted(
                (offset, offset + each.size_bytes) for each, offset in placed if not _may_share(each, buffer, immediate)
            )
            at = 0
            for start, end in blocked:
                if at + buffer.size_bytes <= start:
                    break
                at = max(at, _aligned(end))
        placed.append((buffer, at))
    return {buffer.name: offset for buffer, offset in placed}


def _overwritten(earlier: Wanted, later: Wanted) -> bool:
    """The later one may be written in place of the earlier one, at the very same offset."""
    fits = earlier.size_bytes == later.size_bytes and earlier.last == later.first
    return later.in_place_of == earlier.name and fits


def _may_share(earlier: Wanted, later: Wanted, immediate: Mapping[str, str] | None) -> bool:
    if earlier.last >= later.first and later.last >= earlier.first:
        return False
    # A workspace lives in one stage and belongs to nobody's data flow: it may share with all.
    if immediate is None or earlier.name not in immediate or later.name not in immediate:
        return True
    return dominates(later.name, earlier.name, immediate)


def total(buffers: Sequence[Wanted], offsets: Mapping[str, int]) -> int:
    """Bytes from the start to the last end."""
    return max((offsets[each.name] + each.size_bytes for each in buffers), default=0)


def overlaps(buffers: Sequence[Wanted], offsets: Mapping[str, int]) -> list[tuple[str, str]]:
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
            in_place = second.in_place_of == first.name and first.last == second.first and a == b
            if not in_place:
                found.append((left.name, right.name))
    return found


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
