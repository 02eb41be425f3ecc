"""Schedules under a limit of the device's memory.

What crosses together shares an allocation, which is there from its first use to its last; so every further member of a
group can make it stay longer, and the fewest messages need not fit. A group crosses as late as all of it can (uploads)
or as early (downloads): that is when it stays shortest. What has to be decided is only who crosses with whom.

The search begins with every vector in a message of its own, which fits (`eviction` has seen to that: who leaves and
comes again is in no group). Vectors join the group before them as long as all of it fits, in graphs that are not too
large for that; of few crossings all divisions into groups are tried. The least number of points without a limit is the
bound beside it.

    groups      cells hold one vector each: a group is an allocation and a message, so what is on the device is added up
                group by group
    cells       are shared in place or have fixed neighbours: then they can be in several groups, which share an
                allocation, and a layout decides which of them are messages. So each way is laid out, and what is on the
                device is counted op by op, as it will be allocated
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond_transfer.analysis import layout, schedule
from fusiond_transfer.analysis.cells import Script, stays, touched
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedule import MessageGroup, Schedule, at_best_slot
from fusiond_transfer.analysis.script import script
from fusiond_transfer.frontend.graph import Graph

Profile: TypeAlias = NDArray[np.int64]  #: Bytes on the device before the first kernel, and at each kernel
Leaves: TypeAlias = tuple[tuple[str, int], ...]
EXHAUSTIVE, EXHAUSTIVE_CELLS = 9, 8  #: Up to so many crossings all divisions are tried
MOST_WORK = 400_000_000  #: Crossings x kernels above which no groups are joined
MOST_WORK_CELLS = 400_000
"""Crossings x (crossings + kernels) above which no cells are: each step makes a schedule and counts it."""


class ResidentBytes:
    """What is on the device at each kernel, for divisions of the crossings of a graph without shared storage."""

    def __init__(self, graph: Graph, crossings: Sequence[Crossing]) -> None:
        self.limit_bytes = graph.limit_bytes or 0
        self.crossings = crossings
        crossing = {each.vector for each in crossings}
        self.base: Profile = np.zeros(len(graph.kernels) + 1, np.int64)  # position 0 is before the first kernel
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

    def joined(
        self, separate: Sequence[MessageGroup], alone: frozenset[str], *, up_first: bool
    ) -> Sequence[MessageGroup]:
        """Separate groups, which fit, as fewer that fit."""
        profile = self.base.copy()
        for group in separate:
            self.place(profile, group)

        def fits(_: object, last: MessageGroup, group: MessageGroup, together: MessageGroup) -> bool:
            for each, sign in ((last, -1), (group, -1), (together, 1)):
                self.place(profile, each, sign)
            if int(profile.max()) <= self.limit_bytes:
                return True
            for each, sign in ((together, -1), (last, 1), (group, 1)):
                self.place(profile, each, sign)
            return False

        return _joined(self.crossings, separate, alone, fits, up_first=up_first)

    def _add(self, profile: Profile, begin: int, end: int, size: int) -> None:
        profile[begin + 1 : end + 2] += int(size)


def _joined(
    crossings: Sequence[Crossing],
    separate: Sequence[MessageGroup],
    alone: frozenset[str],
    fits: Callable[[Mapping[int, MessageGroup], MessageGroup, MessageGroup, MessageGroup], bool],
    *,
    up_first: bool = True,
) -> list[MessageGroup]:
    """In the order of their slots, each vector joins the group before it where that `fits` (all groups by their first
    member, that group, the vector, both together)."""
    groups = {each[2][0]: each for each in separate}
    for up in (up_first, not up_first):
        last: MessageGroup | None = None
        for group in sorted((each for each in separate if each[1] is up), key=lambda each: (each[0], each[2])):
            if crossings[group[2][0]].vector in alone:
                continue
            together = None if last is None else at_best_slot(crossings, (*last[2], *group[2]))
            if last is not None and together is not None and fits(groups, last, group, together):
                del groups[group[2][0]]
                groups[last[2][0]] = last = together
            else:
                last = group
    return list(groups.values())


def divisions(crossings: Sequence[Crossing], wanted: int, alone: frozenset[str]) -> Iterator[tuple[MessageGroup, ...]]:
    """Every way to divide the crossings into so many groups that each have a slot in common."""
    groups: list[list[int]] = []

    def extend(number: int) -> Iterator[tuple[MessageGroup, ...]]:
        if number == len(crossings):
            if len(groups) == wanted:
                placed = [at_best_slot(crossings, tuple(each)) for each in groups]
                yield tuple(each for each in placed if each is not None)
            return
        for each in groups:
            if (
                alone.isdisjoint((crossings[each[0]].vector, crossings[number].vector))
                and crossings[each[0]].up is crossings[number].up
                and at_best_slot(crossings, (*each, number)) is not None
            ):
                each.append(number)
                yield from extend(number + 1)
                each.pop()
        if len(groups) < wanted:
            groups.append([number])
            yield from extend(number + 1)
            groups.pop()

    yield from extend(0)


# --- groups ---------------------------------------------------------------------------------------------


def _alone(crossings: Sequence[Crossing]) -> list[MessageGroup]:
    """Each in a group of its own."""
    found = (at_best_slot(crossings, (number,)) for number in range(len(crossings)))
    return [group for group in found if group is not None]


def separate_fits(graph: Graph, crossings: Sequence[Crossing]) -> bool:
    """Whether the vectors of a graph fit, each by itself."""
    return ResidentBytes(graph, crossings).peak(_alone(crossings)) <= (graph.limit_bytes or 0)


def fitting(
    graph: Graph, crossings: Sequence[Crossing], least: int, alone: frozenset[str] = frozenset()
) -> tuple[Sequence[MessageGroup], bool]:
    """The fewest groups that fit under the graph's limit, as far as they can be found; and whether there are none with
    fewer. `least` is the number of points that are needed in any case. `alone` are vectors that are in no group."""
    separate = _alone(crossings)
    memory = ResidentBytes(graph, crossings)
    if len(crossings) <= EXHAUSTIVE:
        return _exhaustive(memory, least, alone), True
    found: Sequence[MessageGroup] = separate
    if len(crossings) * len(graph.kernels) <= MOST_WORK:
        found = min((memory.joined(separate, alone, up_first=first) for first in (True, False)), key=len)
    return found, len(found) == least


def _exhaustive(memory: ResidentBytes, least: int, alone: frozenset[str]) -> Sequence[MessageGroup]:
    """All divisions with `least` groups, then with one more, and so on; the first that fits, the least peak first."""
    for wanted in range(least, len(memory.crossings) + 1):
        peaks = ((memory.peak(each), each) for each in divisions(memory.crossings, wanted, alone))
        peak, best = min(peaks, key=lambda each: each[0], default=(memory.limit_bytes + 1, ()))
        if peak <= memory.limit_bytes:
            return best
    raise AssertionError("separate messages fit")


# --- cells ----------------------------------------------------------------------------------------------


def peak_bytes(plan: Script) -> int:
    """The most that is on the device at a time, with an allocation for each group that crosses together."""
    grouped = {name for group in plan.arenas for name in group}
    groups = (*plan.arenas, *((each.name,) for each in plan.cells if each.device and each.name not in grouped))
    size = {each.name: int(each.like.size_bytes) for each in plan.cells}
    change = [0] * (len(plan.ops) + 1)
    for (group, _), (first, last) in stays(((op, touched(op)) for op in plan.ops), groups).items():
        _, held = layout.offsets(groups[group], size)
        change[first] += int(held)
        change[last + 1] -= int(held)
    return max(itertools.accumulate(change))


def separate(graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, *, early: bool) -> Schedule:
    """Every vector in a message of its own, with what leaves the device."""
    return _leaving(schedule.alone(graph, crossings, early=early), leaves)


def joined(graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, alone: frozenset[str]) -> Schedule:
    """As few messages as are found under the graph's limit. `alone` are vectors that are in no group. A group can take
    several messages, but never less than one."""
    limit = graph.limit_bytes or 0
    best = separate(graph, crossings, leaves, early=False)
    if len(crossings) * (len(crossings) + len(graph.kernels)) > MOST_WORK_CELLS:
        return best

    def better(groups: Sequence[MessageGroup]) -> bool:
        nonlocal best
        found = _scheduled(graph, crossings, leaves, groups)
        if found.startups >= best.startups or peak_bytes(script(found)) > limit:
            return False
        best = found
        return True

    def fits(
        groups: Mapping[int, MessageGroup], last: MessageGroup, group: MessageGroup, together: MessageGroup
    ) -> bool:
        return better([*(each for each in groups.values() if each not in (last, group)), together])

    slots = schedule.separate(crossings, early=False)
    _joined(crossings, schedule.grouped(graph, crossings, slots, alone=True), alone, fits)
    for wanted in range(1, len(crossings) if len(crossings) <= EXHAUSTIVE_CELLS else 0):
        for division in divisions(crossings, wanted, alone) if wanted < best.startups else ():
            better(division)
    return best


def _scheduled(graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, groups: Sequence[MessageGroup]) -> Schedule:
    slots = schedule.slots_of(groups, len(crossings))
    # Nothing that lies between is copied along: a vector that comes twice is not one interval.
    return _leaving(schedule.scheduled(graph, crossings, slots, groups, worth=lambda up, gap_bytes: False), leaves)


def _leaving(found: Schedule, leaves: Leaves) -> Schedule:
    """With what leaves, but for cells that share an allocation with others by now: those stay."""
    shared = {name for group in found.arenas if len(group) > 1 for name in group}
    left = tuple(each for each in leaves if found.graph.cell[each[0]] not in shared)
    return dataclasses.replace(found, leaves=left)
