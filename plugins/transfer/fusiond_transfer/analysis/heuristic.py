"""The paper's own way (Kessler, section 4), kept for comparison: randomised paths through the affinity graph.

    1. for each connected component, some randomised depth-first searches, biased by affinity, give candidates for
       a Hamiltonian path; the order in memory
    2. once more through the vectors in memory order, the slot of each is decided: `greedy` extends a message as long as
       the intervals of its vectors have a slot in common (the earliest is taken); `tight` lets an upload wait for its
       latest slot where it still has a neighbour there to share the message with
    3. the candidate with the fewest messages is kept

The paper leaves open how the search is biased and how ties are broken. Here it starts anywhere and goes on to an
unvisited neighbour of the greatest affinity, a random one among equals; from a dead end it starts again. The choices
are drawn from a seeded generator: the same graph gives the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fusiond_transfer.analysis.affinity import Affinity, affinity, components
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

TRIES = 4
"""The paper's usual number of attempts; it tries 400, too."""
MOST_VECTORS = 600
"""The affinity graph is quadratic: above this many crossings the heuristic is not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicSlots:
    """What the heuristic came to: crossings by number, in memory order, and the slot of each."""

    order: tuple[int, ...]
    slots: tuple[int, ...]
    messages: int


def search(
    graph: Graph, crossings: Sequence[Crossing], *, tight: bool, tries: int = TRIES, seed: int = 0
) -> HeuristicSlots:
    """The best of so many randomised attempts."""
    edges = affinity(graph, crossings)
    parts = components(edges)
    generator = random.Random(f"{seed}")
    best: HeuristicSlots | None = None
    for _ in range(max(1, tries)):
        order = [number for part in parts for number in _path(part, edges, generator)]
        slots, messages = emitted(crossings, order, tight=tight)
        if best is None or messages < best.messages:
            best = HeuristicSlots(order=tuple(order), slots=slots, messages=messages)
    assert best is not None
    return best


def _path(part: Sequence[int], edges: Affinity, generator: random.Random) -> list[int]:
    """One randomised depth-first walk through a component."""
    unseen = set(part)
    starts = list(part)
    generator.shuffle(starts)
    order: list[int] = []
    for start in starts:
        at: int | None = start if start in unseen else None
        while at is not None:
            unseen.discard(at)
            order.append(at)
            near = [(weight, number) for number, weight in edges[at].items() if number in unseen]
            heaviest = max((weight for weight, _ in near), default=0.0)
            at = generator.choice(sorted(number for weight, number in near if weight == heaviest)) if near else None
    return order


def emitted(crossings: Sequence[Crossing], order: Sequence[int], *, tight: bool) -> tuple[tuple[int, ...], int]:
    """The slot of each crossing (by number), and the number of messages, for an order in memory."""
    slots = [each.latest for each in crossings]
    messages = 0
    run: list[int] = []
    low = high = 0
    for position, number in enumerate(order):
        each = crossings[number]
        together = bool(run) and crossings[run[-1]].up is each.up
        first, last = max(low, each.earliest), min(high, each.latest)
        extends = together and first <= last
        if extends and tight and each.up and len(run) > 1 and last < high:
            extends = False  # what shares a message already does not come earlier for one more
        if extends and tight and each.up and each.latest > last and position + 1 < len(order):
            follower = crossings[order[position + 1]]
            if follower.up and follower.earliest <= each.latest <= follower.latest:
                extends = False  # it still shares a message, later
        if extends:
            low, high = first, last
            run.append(number)
        else:
            _close(run, low, high, crossings, slots, tight)
            messages += 1
            run, low, high = [number], each.earliest, each.latest
    _close(run, low, high, crossings, slots, tight)
    return tuple(slots), messages


def _close(
    run: Sequence[int], low: int, high: int, crossings: Sequence[Crossing], slots: list[int], tight: bool
) -> None:
    """The vectors of a message cross at the first slot that all of them have; a tight upload at the last."""
    for number in run:
        slots[number] = high if tight and crossings[number].up else low
