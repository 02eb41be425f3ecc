"""Minimum cuts of undirected graphs with positive weights.

Up to SMALL vertices by Stoer and Wagner (J. ACM 44(4), 1997), as the paper has it. Beyond, with what is known to shrink
such graphs first: an edge cannot be cut by a better cut than the one at hand when it is at least as heavy (Padberg and
Rinaldi), or when a maximum-adjacency order shows that its ends are as strongly connected (Nagamochi and Ibaraki). A
large tree, such as a chain of filters, needs no search: each of its edges is a cut.

Which of several minimum cuts is taken is fixed: vertices are numbers, whoever is drawn first by weight and then by
number goes first, and of equal cuts the first one encountered counts. The search starts from the least vertex.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

SMALL = 24
Vertex = TypeVar("Vertex")

Graph = dict[int, dict[int, float]]  #: Vertex -> neighbour -> weight; both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumCut:
    weight: float
    side: frozenset[int]  #: One side; the other is the rest


def graph(vertices: Iterable[int], edges: Mapping[tuple[int, int], float]) -> Graph:
    """Edges with positive weights; those with an end that is not a vertex are left out, parallel ones add up."""
    found: Graph = {each: {} for each in sorted(vertices)}
    for (first, second), weight in sorted(edges.items()):
        if first in found and second in found and first != second:
            found[first][second] = found[first].get(second, 0.0) + weight
            found[second][first] = found[first][second]
    return found


def minimum_cut(given: Graph) -> MinimumCut:
    """A minimum cut of two vertices or more: weight 0 where the graph is in pieces (the piece of the least vertex)."""
    piece = _piece(given, next(iter(given)))
    if len(piece) < len(given):
        return MinimumCut(weight=0.0, side=frozenset(piece))
    if len(given) <= SMALL:
        return stoer_wagner(given)
    if sum(map(len, given.values())) == 2 * (len(given) - 1):
        return _of_tree(given)
    return _contracting(given)


def _piece(given: Graph, start: int) -> set[int]:
    seen, pending = {start}, [start]
    while pending:
        for each in given[pending.pop()]:
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return seen


def _of_tree(given: Graph) -> MinimumCut:
    """The lightest edge of a tree; of several the one that halves it best, so that few are cut in turn."""
    root = next(iter(given))
    above: dict[int, int] = {}
    order = [root]
    for vertex in order:
        for other in given[vertex]:
            if other != above.get(vertex):
                above[other] = vertex
                order.append(other)
    below = dict.fromkeys(given, 1)
    for vertex in reversed(order[1:]):
        below[above[vertex]] += below[vertex]
    half = len(given) / 2
    lower = min(above, key=lambda each: (given[each][above[each]], abs(below[each] - half), each))
    side = [lower]
    for vertex in side:
        side += [other for other in given[vertex] if other != above[vertex]]
    return MinimumCut(weight=given[lower][above[lower]], side=frozenset(side))


def stoer_wagner(given: Graph) -> MinimumCut:
    """The minimum cut of a connected graph: the least cut-of-the-phase, the first one of equal ones."""
    work = {vertex: dict(around) for vertex, around in given.items()}
    members = {vertex: [vertex] for vertex in work}
    phases = []
    while len(work) > 1:
        order, weight, _ = _adjacency_order(work)
        phases.append(MinimumCut(weight=weight, side=frozenset(members[order[-1]])))
        _merge(work, members, *order[-2:])
    return min(phases, key=lambda each: each.weight)


def _adjacency_order(work: Graph) -> tuple[list[int], float, dict[tuple[int, int], float]]:
    """A maximum-adjacency order from the least vertex, the cut of its last vertex, and for every edge (in that order)
    how strongly its ends are connected at least."""
    start = min(work)
    pulled = dict.fromkeys(work, 0.0)
    heap: list[tuple[float, int]] = [(0.0, start)]
    done: set[int] = set()
    order: list[int] = []
    strength: dict[tuple[int, int], float] = {}
    weight = 0.0
    while heap:
        pull, vertex = heapq.heappop(heap)
        if vertex in done or -pull != pulled[vertex]:
            continue
        done.add(vertex)
        order.append(vertex)
        weight = -pull
        for other, by in work[vertex].items():
            if other not in done:
                pulled[other] += by
                strength[vertex, other] = pulled[other]
                heapq.heappush(heap, (-pulled[other], other))
    return order, weight, strength


def _merge(work: Graph, members: dict[int, list[int]], keep: int, gone: int) -> None:
    """Make two vertices one; the lesser number stays."""
    keep, gone = min(keep, gone), max(keep, gone)
    for other, weight in work.pop(gone).items():
        del work[other][gone]
        if other != keep:
            work[keep][other] = work[keep].get(other, 0.0) + weight
            work[other][keep] = work[keep][other]
    members[keep] += members.pop(gone)


def _contracting(given: Graph) -> MinimumCut:
    """The minimum cut of a larger connected graph."""
    members = {vertex: [vertex] for vertex in given}
    best = _lightest(given, members)
    lightest_edge = min(min(around.values()) for around in given.values())
    if best.weight <= lightest_edge:
        return best
    work = {vertex: dict(around) for vertex, around in given.items()}
    while len(work) > 1 and best.weight > lightest_edge:  # no cut of a connected graph is less than its lightest edge
        heavy = {(vertex, other): weight for vertex, around in work.items() for other, weight in around.items()}
        _contract(work, members, heavy, best.weight)
        if len(work) < 2:
            break
        order, weight, strength = _adjacency_order(work)
        if weight < best.weight:
            best = MinimumCut(weight=weight, side=frozenset(members[order[-1]]))
        _contract(work, members, strength, best.weight)
        if len(work) > 1:
            found = _lightest(work, members)
            best = found if found.weight < best.weight else best
    return best


def _lightest(work: Graph, members: dict[int, list[int]]) -> MinimumCut:
    """The cut round the vertex with the lightest edges together."""
    vertex = min(work, key=lambda each: (sum(work[each].values()), each))
    return MinimumCut(weight=sum(work[vertex].values()), side=frozenset(members[vertex]))


def leader_of(leader: dict[Vertex, Vertex], vertex: Vertex) -> Vertex:
    """The one that stands for a group; `leader`: of each vertex one that it follows, of that one itself."""
    while leader[vertex] != vertex:
        leader[vertex] = leader[leader[vertex]]
        vertex = leader[vertex]
    return vertex


def _contract(
    work: Graph, members: dict[int, list[int]], strength: Mapping[tuple[int, int], float], bound: float
) -> None:
    """Make one vertex of each group that edges of at least that strength link, called by its least member."""
    leader = {vertex: vertex for vertex in work}
    for (first, second), strong in strength.items():
        if strong >= bound:
            leader[leader_of(leader, second)] = leader_of(leader, first)
    groups: dict[int, list[int]] = {}
    for vertex in sorted(work):
        groups.setdefault(leader_of(leader, vertex), []).append(vertex)
    for group in groups.values():
        for each in group[1:]:
            _merge(work, members, group[0], each)
