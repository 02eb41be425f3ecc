"""The fewest messages under layout constraints: storage shared in place, and vectors that must be neighbours.

A cell that several vectors use in turn, or that has its neighbours given, can be side by side with one group and not
with the next; then a point in time is not a message any more. What decides is the slot of each crossing, the layout,
and what may be copied along between two runs, together. Up to EXHAUSTIVE pairs of slots and layouts are all tried;
above that each choice of slots gets the layout with the fewest runs, and single crossings are moved as long as that
saves a message. The number of points stays a lower bound: where it is reached, nothing better exists.
"""

import itertools
import math
from collections.abc import Sequence

from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedule import Least, scheduled
from fusiond_transfer.frontend.graph import Graph

EXHAUSTIVE = 6_000
MOST_CROSSINGS = 60  #: Above this many crossings the slots of the fewest points are taken as they are


def constrained(graph: Graph, crossings: Sequence[Crossing], slots: Sequence[int], least: int) -> Least:
    """The best schedule found, beginning with the slots of the fewest points, of which there are `least`."""
    best = scheduled(graph, crossings, slots)
    if best.startups <= least:
        return Least(schedule=best, proven=True)
    if len(crossings) > MOST_CROSSINGS:
        return Least(schedule=best, proven=False)
    ends = [(each.up, each.latest) for each in crossings]
    # Where a group meets, it can as well meet at the first end among its intervals.
    choices = [
        sorted({end for up, end in ends if up is each.up and each.earliest <= end <= each.latest}) for each in crossings
    ]
    orders = _orders(graph, crossings)
    if orders is not None and math.prod(len(each) for each in choices) * len(orders) <= EXHAUSTIVE:
        for way in itertools.product(*choices):
            for order in orders:
                found = scheduled(graph, crossings, way, order=order)
                if found.startups < best.startups:
                    best = found
        return Least(schedule=best, proven=True)
    moved = True
    while moved and best.startups > least:
        moved = False
        for number, slots_of in enumerate(choices):
            for slot in slots_of:
                way = (*best.slots[:number], slot, *best.slots[number + 1 :])
                found = scheduled(graph, crossings, way)
                if found.startups < best.startups:
                    best, moved = found, True
    return Least(schedule=best, proven=best.startups <= least)


def _orders(graph: Graph, crossings: Sequence[Crossing]) -> list[tuple[str, ...]] | None:
    """Every layout of the cells that cross (and of their neighbours); None where there are too many."""
    cell = graph.cell
    runs = {name: run for run in graph.neighbours for name in run}
    pieces = list(dict.fromkeys(runs.get(cell[each.vector], (cell[each.vector],)) for each in crossings))
    if math.factorial(len(pieces)) > EXHAUSTIVE:
        return None
    return [tuple(itertools.chain.from_iterable(each)) for each in itertools.permutations(pieces)]
