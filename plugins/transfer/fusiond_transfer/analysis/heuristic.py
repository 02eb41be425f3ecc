"""The paper's own way (Kessler, section 4), kept for comparison: randomised paths through the affinity graph.

    1. for each connected component, some randomised depth-first searches, biased by affinity, give candidates for
       a Hamiltonian path, of which the heaviest is kept: the order in memory
    2. once more through the vectors in memory order, the slot of each is decided: `greedy` extends a message as long as
       the intervals of its vectors have a slot in common (the earliest is taken); `tight` lets two uploads that are
       operands of one kernel, and needed by then, cross at their latest slot by themselves

The paper leaves open how the search is biased and how ties are broken. Here it starts anywhere and goes on to an
unvisited neighbour of the greatest affinity, a random one among equals; from a dead end it starts again. The choices
are drawn from a seeded generator: the same graph gives the same answer.

Nor does it say in so many words when a tight upload waits. Of the readings that its text allows, this is the only one
that gives what its table 4 prints in every row: two operands of a kernel wait for each other where that kernel is the
first to need them both ("also intended to bias the derived mappings for the tight choice").
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusiond_transfer.analysis import layout
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

TRIES = 4  #: The paper's usual number of attempts; it tries 400, too
MOST_VECTORS = 600  #: The affinity graph is quadratic: above this many crossings the heuristic is not run


BONUS = 0.5  #: The paper's epsilon for siblings; it gives no value
Affinity = dict[int, dict[int, float]]  #: Number of a crossing -> number of a neighbour -> weight


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicSlots:
    """What the heuristic came to: crossings by number, in memory order, and the slot of each."""

    order: tuple[int, ...]
    slots: tuple[int, ...]
    messages: int


def affinity(graph: Graph, crossings: Sequence[Crossing]) -> Affinity:
    """How much two crossings would like to be neighbours in memory: 1 where intervals of one direction have a slot
    in common, and a bonus for two operands of one kernel. Quadratic, as in the paper; the exact search does without."""
    numbers = {each.vector: number for number, each in enumerate(crossings)}
    siblings = set()
    for kernel in graph.kernels:
        operands = sorted({numbers[name] for name in (*kernel.reads, *kernel.writes) if name in numbers})
        siblings |= set(itertools.combinations(operands, 2))
    found: Affinity = {number: {} for number in range(len(crossings))}
    for direction in (True, False):
        open_: list[int] = []
        mine = [number for number, each in enumerate(crossings) if each.up is direction]
        for number in sorted(mine, key=lambda number: crossings[number].earliest):
            each = crossings[number]
            open_ = [other for other in open_ if crossings[other].latest >= each.earliest]
            for other in open_:
                weight = 1.0 + (BONUS if (min(number, other), max(number, other)) in siblings else 0.0)
                found[number][other] = found[other][number] = weight
            open_.append(number)
    return found


def search(
    graph: Graph, crossings: Sequence[Crossing], *, tight: bool, tries: int = TRIES, seed: int = 0
) -> HeuristicSlots:
    """The best of so many randomised attempts."""
    edges = affinity(graph, crossings)
    parts = layout.joined(edges, ((a, b) for a in edges for b in edges[a]))
    generator = random.Random(f"{seed}")
    emission = _Emission(crossings, edges, tight=tight)
    orders = [[_path(part, edges, generator) for part in parts] for _ in range(max(1, tries))]

    def weight(path: Sequence[int]) -> float:
        return sum(edges[a].get(b, 0.0) for a, b in itertools.pairwise(path))

    heaviest = (max(candidates, key=weight) for candidates in zip(*orders, strict=True))
    return emission.slots([number for path in heaviest for number in path])


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


# --- slots in memory order ------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A message as far as it goes: the slots that all of its vectors have, the last of them, and what is known of it
    otherwise."""

    low: int
    high: int
    last: int
    several: bool
    waiting: bool  #: Two siblings for which it waited: nobody else makes them cross earlier


class _Emission:
    """The rules by which vectors in memory order become messages."""

    def __init__(self, crossings: Sequence[Crossing], edges: Affinity, *, tight: bool) -> None:
        self._crossings = crossings
        self._edges = edges
        self._tight = tight

    def slots(self, order: Sequence[int]) -> HeuristicSlots:
        """The slot of each crossing, for an order in memory."""
        runs: list[_Run] = []
        groups: list[list[int]] = []
        for number, follower in itertools.zip_longest(order, order[1:]):
            run, new = self.step(runs[-1] if runs else None, number, follower)
            if new:
                runs.append(run)
                groups.append([number])
            else:
                runs[-1] = run
                groups[-1].append(number)
        slots = [each.latest for each in self._crossings]
        for group, run in zip(groups, runs, strict=True):
            for number in group:
                slots[number] = run.high if self._tight and self._crossings[number].up else run.low
        return HeuristicSlots(order=tuple(order), slots=tuple(slots), messages=len(groups))

    def step(self, run: _Run | None, number: int, follower: int | None) -> tuple[_Run, bool]:
        """The run with one vector more, or the new one that begins with it. `follower` is next in memory."""
        each = self._crossings[number]
        if run is not None and self._crossings[run.last].up is each.up:
            first, last = max(run.low, each.earliest), min(run.high, each.latest)
            if first <= last and not (self._tight and each.up and self._stays_away(run, number, last, follower)):
                waiting = run.waiting or (not run.several and self._waited(run.last, number))
                return _Run(first, last, number, True, waiting), False
        return _Run(each.earliest, each.latest, number, False, False), True

    def _stays_away(self, run: _Run, number: int, last: int, follower: int | None) -> bool:
        """Whether a tight upload begins a message though it could cross with those before it, at `last`."""
        if last < run.high and run.waiting:
            return True  # what shares a message already does not come earlier for one more
        each = self._crossings[number]
        if follower is None or each.latest <= last:
            return False
        return self._waited(number, follower) and min(each.latest, self._crossings[follower].latest) > last

    def _waited(self, number: int, other: int) -> bool:
        """Whether two tight uploads are siblings that wait for each other."""
        a, b = self._crossings[number], self._crossings[other]
        siblings = self._edges[number].get(other, 0.0) > 1.0
        return self._tight and a.up and siblings and a.latest == b.latest
