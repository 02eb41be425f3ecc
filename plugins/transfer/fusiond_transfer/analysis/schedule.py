"""From intervals to a schedule: the slot, message and address of every crossing.

    separate        each vector by itself, uploads at their latest slot, downloads after the last use on the device (the
                    paper's baseline); `separate_early`: each as soon as it can
    paper_greedy    the paper's heuristic (`heuristic`), and
    paper_tight     the same with late uploads
    interval_stabbing   the least number of messages, each vector as early as its points allow
    min_residency   the same number, data on the device for the least bytes x slots

Where storage is shared in place, vectors are to be neighbours, or the device's memory is limited, the least number of
points is a lower bound only; then `constrained_stabbing` and `limit` look for the least that is possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fusiond_transfer.analysis import heuristic, interval_stabbing, intervals, layout, min_residency
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

Kept = TypeVar("Kept")
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
class Schedule:
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

    def kept(self, name: str, make: Callable[[Schedule], Kept]) -> Kept:
        """What is made of it, once."""
        held = self.__dict__.setdefault("_kept", {})
        if name not in held:
            held[name] = make(self)
        found: Kept = held[name]
        return found

    @property
    def startups(self) -> int:
        return len(self.messages)

    @property
    def saved(self) -> int:
        return len(self.crossings) - len(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Why there cannot be fewer messages: `witnesses` need a point each."""

    uploads: tuple[Crossing, ...]
    downloads: tuple[Crossing, ...]
    up_points: tuple[int, ...]
    down_points: tuple[int, ...]

    @property
    def messages(self) -> int:
        """A number of messages that no schedule goes below."""
        return len(self.uploads) + len(self.downloads)

    @property
    def points(self) -> int:
        return len(self.up_points) + len(self.down_points)


def bound(graph: Graph, crossings: Sequence[Crossing]) -> Bound:
    """The points of the fewest messages and their proof. In a loop the points are the proof (all were tried)."""
    up, down = _directions(crossings)
    period = len(graph.kernels)
    found = [
        interval_stabbing.stab_circle(each, period) if graph.loop else interval_stabbing.stab(each)
        for each in (up, down)
    ]
    return Bound(
        uploads=found[0].witnesses, downloads=found[1].witnesses, up_points=found[0].points, down_points=found[1].points
    )


# --- slots ----------------------------------------------------------------------------------------------


def separate(crossings: Sequence[Crossing], *, early: bool) -> tuple[int, ...]:
    """The slots of the unfused way."""
    if early:
        return tuple(each.earliest for each in crossings)
    return tuple(each.latest if each.up else min(each.latest, max(each.earliest, each.last_use)) for each in crossings)


def stabbed(graph: Graph, crossings: Sequence[Crossing], found: Bound) -> tuple[int, ...]:
    """Each vector at the first point of the fewest that is in its interval."""
    period = len(graph.kernels) if graph.loop else None
    return tuple(
        interval_stabbing.chosen(each, found.up_points if each.up else found.down_points, late=False, period=period)
        for each in crossings
    )


def min_resident(graph: Graph, crossings: Sequence[Crossing], found: Bound) -> tuple[tuple[int, ...], bool]:
    """The fewest messages with the least bytes x slots, and whether that is proven (never in a loop)."""
    if graph.loop:
        period = len(graph.kernels)
        return tuple(
            interval_stabbing.chosen(
                each, found.up_points if each.up else found.down_points, late=each.up, period=period
            )
            for each in crossings
        ), False
    up, down = _directions(crossings)
    uploads, downloads = min_residency.uploads(up), min_residency.downloads(down)
    slots = tuple(
        interval_stabbing.chosen(each, uploads.points if each.up else downloads.points, late=each.up)
        for each in crossings
    )
    return slots, uploads.proven and downloads.proven


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


def at_best_slot(crossings: Sequence[Crossing], numbers: Sequence[int]) -> MessageGroup | None:
    """A group at the slot at which it is on the device shortest; None where its members have no slot in common."""
    members = [crossings[number] for number in numbers]
    first, last = max(each.earliest for each in members), min(each.latest for each in members)
    up = members[0].up
    return None if first > last else (last if up else first, up, tuple(numbers))


def grouped(graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int]) -> list[MessageGroup]:
    """All that cross at one slot in one direction, together."""
    period = len(graph.kernels)
    found: dict[tuple[int, bool], list[int]] = {}
    for number, (each, slot) in enumerate(zip(crossings, slots, strict=True)):
        found.setdefault((slot % period if graph.loop else slot, each.up), []).append(number)
    return [(slot, up, tuple(numbers)) for (slot, up), numbers in found.items()]


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
        return _disjoint(graph, crossings, slots, timed)
    cell = graph.cell
    names = [[cell[crossings[number].vector] for number in numbers] for _, _, numbers in timed]
    if order is None:
        order = layout.laid_out(names, graph.neighbours).order
    position = {name: index for index, name in enumerate(order)}
    lives = _Lives(graph, crossings, slots)
    messages: list[Message] = []
    for (slot, up, numbers), group in zip(timed, names, strict=True):
        vectors = {cell[crossings[number].vector]: crossings[number].vector for number in numbers}
        runs = layout.runs(position, group)
        messages += _messages((slot, up), vectors, runs, order, position, lives, worth)
    return Schedule(
        graph=graph,
        crossings=tuple(crossings),
        slots=tuple(slots),
        messages=tuple(messages),
        order=tuple(order),
        arenas=_arenas(order, messages, cell),
    )


def _disjoint(
    graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int], timed: Sequence[MessageGroup]
) -> Schedule:
    """Every vector has a cell to itself and crosses once: the groups are the messages, laid out one after the other."""
    names = [tuple(crossings[number].vector for number in numbers) for _, _, numbers in timed]
    messages = tuple(
        Message(slot=slot, up=up, vectors=group) for (slot, up, _), group in zip(timed, names, strict=True)
    )
    if graph.placed:
        cell = graph.cell
        names = [tuple(cell[name] for name in group) for group in names]
    return Schedule(
        graph=graph,
        crossings=tuple(crossings),
        slots=tuple(slots),
        messages=messages,
        order=tuple(dict.fromkeys(itertools.chain.from_iterable(names))),
        arenas=tuple(dict.fromkeys(names)),
    )


def alone(graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int]) -> Schedule:
    """Every vector in a message of its own."""
    period = len(graph.kernels)
    groups = [
        (slot % period if graph.loop else slot, each.up, (number,))
        for number, (each, slot) in enumerate(zip(crossings, slots, strict=True))
    ]
    return scheduled(graph, crossings, slots, groups)


def _messages(
    key: tuple[int, bool],
    vectors: Mapping[str, str],
    runs: Sequence[Sequence[str]],
    order: Sequence[str],
    position: Mapping[str, int],
    lives: _Lives,
    worth: Callable[[bool, int], bool],
) -> list[Message]:
    """The messages of a group: its runs, joined where what lies between may be copied too."""
    slot, up = key
    joined: list[tuple[list[str], list[str]]] = []
    for run in runs:
        if joined:
            between = order[position[joined[-1][0][-1]] + 1 : position[run[0]]]
            harmless = all(lives.harmless(name, slot, up=up) for name in between)
            if harmless and worth(up, sum(lives.size_bytes[name] for name in between)):
                joined[-1][0].extend(run)
                joined[-1][1].extend(between)
                continue
        joined.append((list(run), []))
    return [
        Message(slot=slot, up=up, vectors=tuple(vectors[name] for name in cells), filler=tuple(filler))
        for cells, filler in joined
    ]


def _arenas(order: Sequence[str], messages: Sequence[Message], cell: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Cells that have to be in one allocation because they are in one message, in memory order."""
    return tuple(layout.joined(order, [(*(cell[name] for name in each.vectors), *each.filler) for each in messages]))


class _Lives:
    """When a cell holds something on either side that somebody still wants."""

    def __init__(self, graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int]) -> None:
        self.size_bytes = {graph.cell[each.name]: each.size_bytes for each in graph.vectors}
        self._graph = graph
        self._members: dict[str, list[str]] = {}
        self._slot = {each.vector: (each, slot) for each, slot in zip(crossings, slots, strict=True)}

    def harmless(self, name: str, slot: int, *, up: bool) -> bool:
        """Whether a message may overwrite a cell at its target. In a loop: only what never holds anything there."""
        if not self._members:
            for vector, cell in self._graph.cell.items():
                self._members.setdefault(cell, []).append(vector)
        return all(self._dead(vector, slot, up=up) for vector in self._members[name])

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


# --- groupings -----------------------------------------------------------------------------------------


def build(graph: Graph, grouping: str, *, early: bool = False) -> Schedule:
    """The schedule of a grouping that needs no costs. ValueError for an unknown one."""
    found = intervals.crossings(graph)
    if grouping == "separate":
        return alone(graph, found, separate(found, early=early))
    if grouping in ("paper_greedy", "paper_tight"):
        way = heuristic.search(graph, found, tight=grouping == "paper_tight")
        return scheduled(graph, found, way.slots)
    least = bound(graph, found)
    if grouping == "interval_stabbing":
        return scheduled(graph, found, stabbed(graph, found, least))
    if grouping == "min_residency":
        return scheduled(graph, found, min_resident(graph, found, least)[0])
    raise ValueError(f"unknown grouping {grouping!r}")
