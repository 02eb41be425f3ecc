"""From intervals to a schedule: the slot, message and address of every crossing.

Where storage is shared in place, vectors are to be neighbours, or the device's memory is limited, the least number of
points is a lower bound only; then `constrained_stabbing` and `limit` look for the least that is possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond_transfer.analysis import interval_stabbing, layout, min_residency
from fusiond_transfer.analysis.interval_stabbing import Stabbing
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph, Keeping

GROUPINGS = ("separate", "paper_greedy", "paper_tight", "interval_stabbing", "min_residency", "local_search")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What crosses at once, in memory order. `filler` are cells that lie between and are copied along because that is
    harmless; nobody reads what arrives there."""

    slot: int
    up: bool
    vectors: tuple[str, ...]
    filler: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schedule(Keeping):
    """`slots` say when each crossing takes place (in a loop they may lie in the next iteration), `messages` in what
    company, in order of time; `order` is the layout, `arenas` which of its cells would share an allocation."""

    graph: Graph
    crossings: tuple[Crossing, ...]
    slots: tuple[int, ...]
    messages: tuple[Message, ...]
    order: tuple[str, ...]
    arenas: tuple[tuple[str, ...], ...]
    leaves: tuple[tuple[str, int], ...] = ()
    """(vector, kernel): behind that kernel it is evicted, to come up again (`eviction`)."""

    @property
    def startups(self) -> int:
        return len(self.messages)

    @property
    def saved(self) -> int:
        return len(self.crossings) - len(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The fewest points of each direction; their witnesses need a point each."""

    up: Stabbing
    down: Stabbing

    @property
    def points(self) -> int:
        return len(self.up.points) + len(self.down.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The fewest messages that were found; `proven`: no schedule has fewer."""

    schedule: Schedule
    proven: bool


def bound(graph: Graph, crossings: Sequence[Crossing]) -> Bound:
    """The points of the fewest messages and their proof. In a loop the points are the proof (all were tried)."""
    period = len(graph.kernels)
    up, down = (
        interval_stabbing.stab_circle(each, period) if graph.loop else interval_stabbing.stab(each)
        for each in _directions(crossings)
    )
    return Bound(up=up, down=down)


def separate(crossings: Sequence[Crossing], *, early: bool) -> tuple[int, ...]:
    """The slots of the unfused way."""
    if early:
        return tuple(each.earliest for each in crossings)
    return tuple(each.latest if each.up else min(each.latest, max(each.earliest, each.last_use)) for each in crossings)


def stabbed(graph: Graph, crossings: Sequence[Crossing], found: Bound, *, tight: bool = False) -> tuple[int, ...]:
    """Each vector at the first point of the fewest that is in its interval; a `tight` upload at the last."""
    period = len(graph.kernels) if graph.loop else None
    points = {True: found.up.points, False: found.down.points}
    return tuple(
        interval_stabbing.chosen(each, points[each.up], late=tight and each.up, period=period) for each in crossings
    )


def min_resident(graph: Graph, crossings: Sequence[Crossing], found: Bound) -> tuple[tuple[int, ...], bool]:
    """The fewest messages with the least bytes x slots, and whether that is proven (never in a loop)."""
    proven = False
    if not graph.loop:
        up, down = _directions(crossings)
        uploads, downloads = min_residency.uploads(up), min_residency.downloads(down)
        proven = uploads is not None and downloads is not None
        found = Bound(up=uploads or interval_stabbing.stab(up), down=downloads or interval_stabbing.stab(down))
    return stabbed(graph, crossings, found, tight=True), proven


def _directions(crossings: Sequence[Crossing]) -> tuple[list[Crossing], list[Crossing]]:
    return [each for each in crossings if each.up], [each for each in crossings if not each.up]


# --- messages -------------------------------------------------------------------------------------------


MessageGroup = tuple[int, bool, tuple[int, ...]]  #: (slot, up, numbers of crossings): what crosses together


def slots_of(groups: Iterable[MessageGroup], count: int) -> list[int]:
    """The slot of each of so many crossings, by the groups that they are in."""
    slots = [0] * count
    for slot, _, numbers in groups:
        for number in numbers:
            slots[number] = slot
    return slots


def groups_of(found: Schedule) -> list[MessageGroup]:
    """Who crosses with whom in a schedule, as its messages are."""
    number = {each.vector: index for index, each in enumerate(found.crossings)}
    return [(each.slot, each.up, tuple(sorted(number[name] for name in each.vectors))) for each in found.messages]


def window(crossings: Sequence[Crossing], numbers: Sequence[int]) -> tuple[int, int]:
    """The first and the last slot that crossings have in common; the first is behind the last where they have none."""
    return max(crossings[each].earliest for each in numbers), min(crossings[each].latest for each in numbers)


def at_best_slot(crossings: Sequence[Crossing], numbers: Sequence[int]) -> MessageGroup | None:
    """A group at the slot at which it is on the device shortest; None where its members have no slot in common."""
    first, last = window(crossings, numbers)
    up = crossings[numbers[0]].up
    return None if first > last else (last if up else first, up, tuple(numbers))


def grouped(
    graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int], *, alone: bool = False
) -> list[MessageGroup]:
    """All that cross at one slot in one direction, together; or each of them `alone`."""
    period = len(graph.kernels)
    found: dict[tuple[int, bool, int], list[int]] = {}
    for number, (each, slot) in enumerate(zip(crossings, slots, strict=True)):
        key = slot % period if graph.loop else slot, each.up, number if alone else 0
        found.setdefault(key, []).append(number)
    return [(slot, up, tuple(numbers)) for (slot, up, _), numbers in found.items()]


def scheduled(
    graph: Graph,
    crossings: Sequence[Crossing],
    slots: Sequence[int],
    groups: Sequence[MessageGroup] | None = None,
    *,
    order: Sequence[str] | None = None,
    worth: Callable[[bool, int], bool] = lambda up, gap_bytes: True,
) -> Schedule:
    """The schedule of crossings at given slots: layout (or the given `order` of cells), then messages. `groups` say who
    crosses together, where that is not everybody who can. `worth` says whether so many bytes between two runs are
    cheaper to copy than another message is to begin."""
    # At one slot uploads come before the kernel and downloads behind it: 2k is before kernel k, 2k + 1 behind it.
    timed = sorted(
        grouped(graph, crossings, slots) if groups is None else groups,
        key=lambda each: (2 * each[0] + (0 if each[1] else 1), each[2]),
    )
    if order is None and not graph.shares_storage and not graph.adjacent:
        messages, order, arenas = _disjoint(graph, crossings, timed)
    else:
        messages, order, arenas = _layout(graph, crossings, slots, timed, order, worth)
    return Schedule(
        graph=graph,
        crossings=tuple(crossings),
        slots=tuple(slots),
        messages=tuple(messages),
        order=tuple(order),
        arenas=tuple(arenas),
    )


_Placed: TypeAlias = tuple[list[Message], Sequence[str], Iterable[tuple[str, ...]]]
"""Messages, the cells in memory order, and which of them have to be in one allocation as they are in one message."""


def _disjoint(graph: Graph, crossings: Sequence[Crossing], timed: Sequence[MessageGroup]) -> _Placed:
    """Every vector has a cell to itself and crosses once: the groups are the messages, laid out one after the other."""
    messages = [
        Message(slot=slot, up=up, vectors=tuple(crossings[number].vector for number in numbers))
        for slot, up, numbers in timed
    ]
    groups = [each.vectors for each in messages]
    if graph.placed:
        groups = [tuple(graph.cell[name] for name in group) for group in groups]
    return messages, tuple(dict.fromkeys(itertools.chain.from_iterable(groups))), dict.fromkeys(groups)


def _layout(
    graph: Graph,
    crossings: Sequence[Crossing],
    slots: Sequence[int],
    timed: Sequence[MessageGroup],
    order: Sequence[str] | None,
    worth: Callable[[bool, int], bool],
) -> _Placed:
    """Cells that are in several groups: the messages of a group are its runs, joined where what lies between may be
    copied too."""
    cell = graph.cell
    groups = [{cell[crossings[number].vector]: crossings[number].vector for number in each[2]} for each in timed]
    if order is None:
        order = layout.laid_out([tuple(each) for each in groups], graph.neighbours)
    position = {name: index for index, name in enumerate(order)}
    lives = _Lives(graph, crossings, slots)
    messages: list[Message] = []
    for (slot, up, _), vectors in zip(timed, groups, strict=True):
        joined: list[tuple[list[str], list[str]]] = []
        in_order = sorted(vectors, key=position.__getitem__)
        for run in layout.runs(in_order, lambda a, b: position[b] == position[a] + 1):
            between = order[position[joined[-1][0][-1]] + 1 : position[run[0]]] if joined else ()
            harmless = joined and all(lives.harmless(name, slot, up=up) for name in between)
            if harmless and worth(up, sum(graph.members[name][0].size_bytes for name in between)):
                joined[-1][0].extend(run)
                joined[-1][1].extend(between)
            else:
                joined.append((list(run), []))
        messages += [
            Message(slot=slot, up=up, vectors=tuple(vectors[name] for name in cells), filler=tuple(filler))
            for cells, filler in joined
        ]
    together = [(*(cell[name] for name in each.vectors), *each.filler) for each in messages]
    return messages, order, layout.joined(order, together)


def alone(graph: Graph, crossings: Sequence[Crossing], *, early: bool) -> Schedule:
    """Every vector in a message of its own."""
    slots = separate(crossings, early=early)
    return scheduled(graph, crossings, slots, grouped(graph, crossings, slots, alone=True))


class _Lives:
    """When a cell holds something on either side that somebody still wants."""

    def __init__(self, graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int]) -> None:
        self._graph = graph
        self._slot = {each.vector: (each, slot) for each, slot in zip(crossings, slots, strict=True)}

    def harmless(self, name: str, slot: int, *, up: bool) -> bool:
        """Whether a message may overwrite a cell at its target. In a loop: only what never holds anything there."""
        return all(self._dead(each.name, slot, up=up) for each in self._graph.members[name])

    def _dead(self, vector: str, slot: int, *, up: bool) -> bool:
        graph = self._graph
        made = graph.producer.get(vector)
        readers = [k for k in graph.readers.get(vector, ()) if graph.kernels[k].device is up]
        crossing, at = self._slot.get(vector, (None, 0))
        there = graph.kernels[made].device is up if made is not None else (vector in graph.placed) is up
        if graph.loop:
            return not there and crossing is None and not readers
        if up:  # the device's cell is written before kernel `slot`
            if there:
                last = max([made if made is not None else -1, *readers, at if crossing else -1])
                return last < slot or (made is not None and made >= slot)
            return crossing is None or at > slot or crossing.last_use < slot
        # The host's cell is written behind kernel `slot`.
        if there:
            return made is not None and vector not in graph.outputs and made > slot  # an input stays as it is
        return crossing is None or at > slot
