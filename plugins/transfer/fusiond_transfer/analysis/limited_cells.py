"""Schedules under a memory limit for cells that are shared in place or have fixed neighbours.

There a group of crossings is not an allocation by itself: a cell can be in several groups, which then share one, and a
layout decides which of them are messages. So what is on the device is counted on the script, op by op, as it will be
allocated. The search begins with every vector in a message of its own, which fits (`eviction` has seen to that), and
lets each join the group before it where that saves a message and still fits; up to EXHAUSTIVE crossings it then tries
all divisions. The number of points without a limit is the bound beside it.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from fusiond_transfer.analysis import layout, schedule
from fusiond_transfer.analysis.cells import Evict, Script, touched
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.limit import ResidentBytes, divisions
from fusiond_transfer.analysis.schedule import MessageGroup, Schedule
from fusiond_transfer.analysis.script import script
from fusiond_transfer.frontend.graph import Graph

MOST_WORK = 400_000
"""Crossings x (crossings + kernels) above which nothing is joined: each step makes a schedule and counts it."""
EXHAUSTIVE = 8  #: Up to so many crossings all divisions into groups are tried
Leaves = tuple[tuple[str, int], ...]


def peak_bytes(plan: Script) -> int:
    """The most that is on the device at a time, with an allocation for each group that crosses together."""
    grouped = {name for group in plan.arenas for name in group}
    rest = ((each.name,) for each in plan.cells if each.device and each.name not in grouped)
    groups = (*plan.arenas, *rest)
    home = {name: number for number, group in enumerate(groups) for name in group}
    size = {each.name: int(each.like.size_bytes) for each in plan.cells}
    turn = dict.fromkeys(range(len(groups)), 0)
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for position, op in enumerate(plan.ops):
        if isinstance(op, Evict) and op.cell in home:
            turn[home[op.cell]] += 1
        for name in touched(op):
            stay = home[name], turn[home[name]]
            first.setdefault(stay, position)
            last[stay] = position
    change = [0] * (len(plan.ops) + 1)
    for stay, position in first.items():
        _, held = layout.offsets(groups[stay[0]], size)
        change[position] += int(held)
        change[last[stay] + 1] -= int(held)
    return max(itertools.accumulate(change))


def separate(graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, *, early: bool) -> Schedule:
    """Every vector in a message of its own, with what leaves the device."""
    return _leaving(schedule.alone(graph, crossings, schedule.separate(crossings, early=early)), leaves)


def joined(graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, alone: frozenset[str]) -> Schedule:
    """As few messages as are found under the graph's limit. `alone` are vectors that are in no group."""
    limit = graph.limit_bytes or 0
    best = separate(graph, crossings, leaves, early=False)
    if len(crossings) * (len(crossings) + len(graph.kernels)) > MOST_WORK:
        return best
    slots = schedule.separate(crossings, early=False)
    groups: list[MessageGroup] = [
        (slot, each.up, (number,)) for number, (each, slot) in enumerate(zip(crossings, slots, strict=True))
    ]
    for up in (True, False):
        mine = sorted((each for each in groups if each[1] is up), key=lambda each: (each[0], each[2]))
        current: MessageGroup | None = None
        for group in mine:
            if crossings[group[2][0]].vector in alone:
                continue
            together = None if current is None else schedule.at_best_slot(crossings, (*current[2], *group[2]))
            if current is not None and together is not None:
                tried = [each for each in groups if each not in (current, group)] + [together]
                found = _scheduled(graph, crossings, leaves, tried)
                if found.startups < best.startups and peak_bytes(script(found)) <= limit:
                    best, groups, current = found, tried, together
                    continue
            current = group
    if len(crossings) <= EXHAUSTIVE:
        return _of_all_divisions(graph, crossings, leaves, alone, best)
    return best


def _of_all_divisions(
    graph: Graph, crossings: Sequence[Crossing], leaves: Leaves, alone: frozenset[str], best: Schedule
) -> Schedule:
    """The fewest messages of all divisions into groups that fit, each with its best layout; `best` where none has
    fewer. A group can take several messages, but never less than one."""
    memory = ResidentBytes(graph, crossings)
    for wanted in range(1, len(crossings)):
        if best.startups <= wanted:
            break
        for division in divisions(memory, len(crossings), wanted, alone):
            found = _scheduled(graph, crossings, leaves, division)
            if found.startups < best.startups and peak_bytes(script(found)) <= (graph.limit_bytes or 0):
                best = found
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
