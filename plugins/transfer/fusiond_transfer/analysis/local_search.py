"""The schedule that is fastest by the costs of this device, which need not have the fewest messages.

On one stream nothing overlaps, the bytes are the same however they are divided, and the fewest messages are the
fastest. With streams a message that waits for its last vector holds up the first one. So the search begins with every
other grouping and improves the best of them step by step: a group crosses at another slot, is divided (by when its
vectors are ready, or needed), or joins another group. It stops where no step helps, or after MOST_ESTIMATES.
Approximate: shared storage and allocations cost nothing here; the device has the last word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusiond.model.program import Memory
from fusiond_transfer.analysis.cost import GraphCosts, OneMemoryCosts, estimate_us
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.limit import ResidentBytes
from fusiond_transfer.analysis.schedule import MessageGroup, Schedule, groups_of, scheduled, slots_of
from fusiond_transfer.frontend.graph import Graph

MOST_ESTIMATES = 600
MOST_CROSSINGS = 150  #: Above this many crossings the best of the other groupings is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    schedule: Schedule
    time_us: float  #: By the costs: an estimate


def local_search(
    graph: Graph,
    crossings: Sequence[Crossing],
    starts: Sequence[Schedule],
    costs: GraphCosts,
    *,
    memory: Memory,
    overlapped: bool,
    shared: OneMemoryCosts | None = None,
) -> Fast:
    """The fastest schedule found from these starts, by what lies in one memory."""

    def timed(schedule: Schedule) -> float:
        return estimate_us(schedule, costs, memory=memory, overlapped=overlapped, shared=shared)

    def worth(up: bool, gap_bytes: int) -> bool:
        return costs.message_us(up, memory, gap_bytes) < 2 * costs.startup_us(up, memory)

    best = min(starts, key=lambda each: (timed(each), each.startups))
    best_us = timed(best)
    if not overlapped or graph.loop or len(crossings) > MOST_CROSSINGS:
        return Fast(schedule=best, time_us=best_us)
    limit = None
    if graph.limit_bytes is not None and not graph.shares_storage:
        limit = ResidentBytes(graph, crossings)
    groups = groups_of(best)
    estimates = 0
    improved = True
    while improved and estimates < MOST_ESTIMATES:
        improved = False
        for other in _neighbours(groups, crossings):
            estimates += 1
            if estimates > MOST_ESTIMATES:
                break
            if limit is not None and limit.peak(other) > (graph.limit_bytes or 0):
                continue
            found = scheduled(graph, crossings, slots_of(other, len(crossings)), other, worth=worth)
            found_us = timed(found)
            if found_us < best_us * (1 - 1e-9):
                best, best_us, groups, improved = found, found_us, other, True
                break
    return Fast(schedule=best, time_us=best_us)


def _neighbours(groups: Sequence[MessageGroup], crossings: Sequence[Crossing]) -> Iterator[list[MessageGroup]]:
    """All divisions one step away."""
    for index, (slot, up, numbers) in enumerate(groups):
        rest = [*groups[:index], *groups[index + 1 :]]
        first, last = _common(crossings, numbers)
        for other in dict.fromkeys((first, last, (first + last) // 2)):
            if other != slot:
                yield [*rest, (other, up, numbers)]
        if len(numbers) > 1:
            ready = sorted(numbers, key=lambda number: (crossings[number].earliest, crossings[number].latest, number))
            needed = sorted(numbers, key=lambda number: (crossings[number].latest, crossings[number].earliest, number))
            for ranked in (ready, needed):
                for cut in range(1, len(ranked)):
                    parts = [tuple(sorted(ranked[:cut])), tuple(sorted(ranked[cut:]))]
                    yield [*rest, *((_common(crossings, each)[0], up, each) for each in parts)]
        for second in range(index + 1, len(groups)):
            if groups[second][1] is up:
                joined = tuple(sorted((*numbers, *groups[second][2])))
                first, last = _common(crossings, joined)
                if first <= last:
                    without = [each for number, each in enumerate(groups) if number not in (index, second)]
                    yield [*without, (first, up, joined)]


def _common(crossings: Sequence[Crossing], numbers: Sequence[int]) -> tuple[int, int]:
    return max(crossings[each].earliest for each in numbers), min(crossings[each].latest for each in numbers)
