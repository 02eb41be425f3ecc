"""Schedules under a limit of the device's memory.

What crosses together shares an allocation, which is there from its first use to its last; so every further member of a
group can make it stay longer, and the fewest messages need not fit. A group crosses as late as all of it can (uploads)
or as early (downloads): that is when it stays shortest. What has to be decided is only who crosses with whom.

Up to EXHAUSTIVE crossings all divisions into groups are tried, those with fewer groups first. Above that, vectors join
the group before them as long as everything fits (in graphs that are not too large for that); the least number of points
without a limit is the bound beside it. Where not even separate messages fit, `eviction` says who leaves and comes
again; those vectors are in no group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedule import MessageGroup, at_best_slot
from fusiond_transfer.frontend.graph import Graph

Profile: TypeAlias = NDArray[np.int64]  #: Bytes on the device before the first kernel, and at each kernel
EXHAUSTIVE = 9
MOST_WORK = 400_000_000  #: Crossings x kernels above which nothing is joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The division that was found; `least`: there is none with fewer groups that fits. `groups` is empty where not even
    separate messages fit."""

    groups: tuple[MessageGroup, ...]
    peak_bytes: int
    least: bool


class ResidentBytes:
    """What is on the device at each kernel, for divisions of the crossings of a graph without shared storage."""

    def __init__(self, graph: Graph, crossings: Sequence[Crossing]) -> None:
        self.crossings = crossings
        crossing = {each.vector for each in crossings}
        self._kernels = len(graph.kernels)
        self.base: Profile = np.zeros(self._kernels + 1, np.int64)  # position 0 is before the first kernel
        for vector in graph.vectors:
            if vector.name in crossing:
                continue
            touching = [k for k in graph.readers.get(vector.name, ()) if graph.kernels[k].device]
            made = graph.producer.get(vector.name)
            if made is not None and graph.kernels[made].device:
                touching.append(made)
            if vector.name in graph.placed:
                touching.append(-1)
            if touching:
                self._add(self.base, min(touching), max(touching), vector.size_bytes)

    def place(self, profile: Profile, group: MessageGroup, sign: int = 1) -> None:
        """Add a group to what is on the device (or take it away)."""
        slot, up, numbers = group
        members = [self.crossings[number] for number in numbers]
        begin = slot if up else min(each.earliest for each in members)
        end = max([each.last_use for each in members] if up else [slot, *(each.last_use for each in members)])
        size = 0
        for each in members:
            size = -(-size // layout.ALIGNMENT) * layout.ALIGNMENT + each.size_bytes
        self._add(profile, begin, end, sign * size)

    def peak(self, groups: Sequence[MessageGroup]) -> int:
        profile = self.base.copy()
        for group in groups:
            self.place(profile, group)
        return int(profile.max())

    def _add(self, profile: Profile, begin: int, end: int, size: int) -> None:
        profile[begin + 1 : end + 2] += int(size)


def _alone(crossings: Sequence[Crossing]) -> list[MessageGroup]:
    """Each in a group of its own."""
    found = (at_best_slot(crossings, (number,)) for number in range(len(crossings)))
    return [group for group in found if group is not None]


def separate_fits(graph: Graph, crossings: Sequence[Crossing]) -> bool:
    """Whether the vectors of a graph fit, each by itself."""
    memory = ResidentBytes(graph, crossings)
    return memory.peak(_alone(crossings)) <= (graph.limit_bytes or 0)


def fitting(graph: Graph, crossings: Sequence[Crossing], least: int, alone: frozenset[str] = frozenset()) -> Fitting:
    """The fewest groups that fit under the graph's limit, as far as they can be found. `least` is the number of points
    that are needed in any case. `alone` are vectors that are in no group (they are evicted by themselves). The graph
    has a limit and no shared storage."""
    assert graph.limit_bytes is not None
    memory = ResidentBytes(graph, crossings)
    separate = _alone(crossings)
    peak = memory.peak(separate)
    if peak > graph.limit_bytes:
        return Fitting(groups=(), peak_bytes=peak, least=False)
    if len(crossings) <= EXHAUSTIVE:
        found = _exhaustive(memory, graph.limit_bytes, len(crossings), least, alone)
        return Fitting(groups=found, peak_bytes=memory.peak(found), least=True)
    if len(crossings) * len(graph.kernels) > MOST_WORK:
        return Fitting(groups=tuple(separate), peak_bytes=peak, least=len(separate) == least)
    known = [_joined(memory, separate, graph.limit_bytes, alone, up_first=first) for first in (True, False)]
    found = min(known, key=len)
    return Fitting(groups=found, peak_bytes=memory.peak(found), least=len(found) == least)


def _exhaustive(
    memory: ResidentBytes, limit: int, count: int, least: int, alone: frozenset[str]
) -> tuple[MessageGroup, ...]:
    """All divisions with `least` groups, then with one more, and so on; the first that fits, the least peak first."""
    for wanted in range(least, count + 1):
        best: tuple[int, tuple[MessageGroup, ...]] | None = None
        for division in divisions(memory, count, wanted, alone):
            peak = memory.peak(division)
            if peak <= limit and (best is None or peak < best[0]):
                best = peak, division
        if best is not None:
            return best[1]
    raise AssertionError("separate messages fit")


def divisions(
    memory: ResidentBytes, count: int, wanted: int, alone: frozenset[str]
) -> Iterator[tuple[MessageGroup, ...]]:
    """Every way to divide the crossings into so many groups that each have a slot in common."""
    groups: list[list[int]] = []

    def extend(number: int) -> Iterator[tuple[MessageGroup, ...]]:
        if number == count:
            if len(groups) == wanted:
                placed = [at_best_slot(memory.crossings, tuple(each)) for each in groups]
                yield tuple(each for each in placed if each is not None)
            return
        for each in groups:
            if (
                alone.isdisjoint((memory.crossings[each[0]].vector, memory.crossings[number].vector))
                and memory.crossings[each[0]].up is memory.crossings[number].up
                and at_best_slot(memory.crossings, (*each, number)) is not None
            ):
                each.append(number)
                yield from extend(number + 1)
                each.pop()
        if len(groups) < wanted:
            groups.append([number])
            yield from extend(number + 1)
            groups.pop()

    yield from extend(0)


def _joined(
    memory: ResidentBytes, separate: Sequence[MessageGroup], limit: int, alone: frozenset[str], *, up_first: bool
) -> tuple[MessageGroup, ...]:
    """In the order of their slots, each vector joins the group before it where that fits."""
    profile = memory.base.copy()
    for group in separate:
        memory.place(profile, group)
    done: list[MessageGroup] = []
    for up in (up_first, not up_first):
        current: MessageGroup | None = None
        for group in sorted((each for each in separate if each[1] is up), key=lambda each: (each[0], each[2])):
            if memory.crossings[group[2][0]].vector in alone:
                done.append(group)
                continue
            together = None if current is None else at_best_slot(memory.crossings, (*current[2], *group[2]))
            if current is not None and together is not None:
                memory.place(profile, current, -1)
                memory.place(profile, group, -1)
                memory.place(profile, together)
                if int(profile.max()) <= limit:
                    current = together
                    continue
                memory.place(profile, together, -1)
                memory.place(profile, current)
                memory.place(profile, group)
            if current is not None:
                done.append(current)
            current = group
        if current is not None:
            done.append(current)
    return tuple(done)
