"""The schedule that is fastest by the costs of this device, which need not have the fewest messages.

With streams a message that waits for its last vector holds up the first one. So the search begins with every other
grouping and improves the best of them step by step: a group crosses at another slot, is divided (by when its vectors
are ready, or needed), or joins another group. It stops where no step helps, or after MOST_ESTIMATES. Approximate:
shared storage and allocations cost nothing here.
"""

from collections.abc import Iterator, Sequence

from fusiond.model.program import Memory
from fusiond_transfer.analysis.cost import GraphCosts, estimate_us
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.limit import ResidentBytes
from fusiond_transfer.analysis.schedule import MessageGroup, Schedule, groups_of, scheduled, slots_of, window
from fusiond_transfer.frontend.graph import Graph

MOST_ESTIMATES = 600
MOST_CROSSINGS = 150  #: Above this many crossings the best of the other groupings is taken


def local_search(
    graph: Graph,
    crossings: Sequence[Crossing],
    starts: Sequence[Schedule],
    costs: GraphCosts,
    *,
    memory: Memory,
    overlapped: bool,
) -> Schedule:
    """The fastest schedule found from these starts."""

    def timed(schedule: Schedule) -> float:
        return estimate_us(schedule, costs, memory=memory, overlapped=overlapped)

    def worth(up: bool, gap_bytes: int) -> bool:
        return costs.message_us(up, memory, gap_bytes) < 2 * costs.startup_us(up, memory)

    best = min(starts, key=lambda each: (timed(each), each.startups))
    best_us = timed(best)
    if not overlapped or graph.loop or len(crossings) > MOST_CROSSINGS:
        return best
    limit = ResidentBytes(graph, crossings) if graph.limit_bytes is not None else None
    groups = groups_of(best)
    estimates = 0
    improved = True
    while improved and estimates < MOST_ESTIMATES:
        improved = False
        for other in _neighbours(groups, crossings):
            estimates += 1
            if estimates > MOST_ESTIMATES:
                break
            if limit is not None and limit.peak(other) > limit.limit_bytes:
                continue
            found = scheduled(graph, crossings, slots_of(other, len(crossings)), other, worth=worth)
            found_us = timed(found)
            if found_us < best_us * (1 - 1e-9):
                best, best_us, groups, improved = found, found_us, other, True
                break
    return best


def _neighbours(groups: Sequence[MessageGroup], crossings: Sequence[Crossing]) -> Iterator[list[MessageGroup]]:
    """All divisions one step away."""
    for index, (slot, up, numbers) in enumerate(groups):
        rest = [*groups[:index], *groups[index + 1 :]]
        first, last = window(crossings, numbers)
        for other in dict.fromkeys((first, last, (first + last) // 2)):
            if other != slot:
                yield [*rest, (other, up, numbers)]
        if len(numbers) > 1:
            ready = sorted(numbers, key=lambda number: (crossings[number].earliest, crossings[number].latest, number))
            needed = sorted(numbers, key=lambda number: (crossings[number].latest, crossings[number].earliest, number))
            for ranked in (ready, needed):
                for cut in range(1, len(ranked)):
                    parts = [tuple(sorted(ranked[:cut])), tuple(sorted(ranked[cut:]))]
                    yield [*rest, *((window(crossings, each)[0], up, each) for each in parts)]
        for second in range(index + 1, len(groups)):
            if groups[second][1] is up:
                joined = tuple(sorted((*numbers, *groups[second][2])))
                first, last = window(crossings, joined)
                if first <= last:
                    without = [each for number, each in enumerate(groups) if number not in (index, second)]
                    yield [*without, (first, up, joined)]
