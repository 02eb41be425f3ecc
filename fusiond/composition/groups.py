"""Which nodes of a graph become one.

    groups that save something   {a, b}: 30 us, {b, c}: 50 us, {c, d}: 40 us, {d, e, f}: 60 us
                           -->   {d, e, f}, {b, c}: 110 us

Larger groups are taken by what they save, the most first; pairs among what is left are a maximum-weight matching. A
group is refused where making one node of it would make nodes wait for each other, also by groups that stand already:
with a before d and c before b, {a, b} and {c, d} cannot both be one.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Nodes that could be one."""

    name: str
    nodes: frozenset[str]
    saves: float
    """In any unit; what saves nothing is not chosen."""


def chosen(
    candidates: Iterable[Candidate], edges: Collection[tuple[str, str]]
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """(those that become one, those that would have been chosen but close a cycle). `edges`: (node, one that needs it).

    The same for the same candidates, in whatever order they come.
    """
    useful = sorted((each for each in candidates if each.saves > 0), key=lambda each: (-each.saves, each.name))
    kept: list[Candidate] = []
    cyclic: list[Candidate] = []
    taken: set[str] = set()

    def take(each: Candidate) -> None:
        if closes_cycle([*(other.nodes for other in kept), each.nodes], edges):
            cyclic.append(each)
        else:
            kept.append(each)
            taken.update(each.nodes)

    for each in useful:
        if len(each.nodes) > 2 and not taken & each.nodes:
            take(each)
    pairs = [each for each in useful if len(each.nodes) == 2 and not taken & each.nodes]
    for each in _matching(pairs):
        take(each)
    return tuple(kept), tuple(cyclic)


def _matching(pairs: Sequence[Candidate]) -> list[Candidate]:
    """Pairs of which no two share a node and that save most together; the best first. Exact, for some dozen pairs."""
    best: dict[frozenset[str], Candidate] = {}
    for each in pairs:  # the best of equal ones comes first
        best.setdefault(each.nodes, each)
    of_node: dict[str, list[Candidate]] = {}
    for each in best.values():
        of_node.setdefault(min(each.nodes), []).append(each)

    @functools.cache
    def most(free: frozenset[str]) -> tuple[float, tuple[Candidate, ...]]:
        """What pairs of these nodes save at most, and the pairs."""
        if not free:
            return 0.0, ()
        first = min(free)
        found = most(free - {first})
        for each in of_node.get(first, ()):
            if each.nodes <= free:
                saves, others = most(free - each.nodes)
                if saves + each.saves > found[0]:
                    found = saves + each.saves, (each, *others)
        return found

    _, chosen_pairs = most(frozenset().union(*best))
    return sorted(chosen_pairs, key=lambda each: (-each.saves, each.name))


def closes_cycle(groups: Iterable[Collection[str]], edges: Collection[tuple[str, str]]) -> bool:
    """Whether nodes wait for each other once each group is one node. Groups share no node."""
    home = {node: min(group) for group in groups for node in group}
    before: dict[str, set[str]] = {}
    for first, second in edges:
        first, second = home.get(first, first), home.get(second, second)
        if first != second:
            before.setdefault(second, set()).add(first)
            before.setdefault(first, set())
    while before:
        ready = [node for node, needed in before.items() if not needed]
        if not ready:
            return True
        for node in ready:
            del before[node]
        for needed in before.values():
            needed.difference_update(ready)
    return False


def independent(first: str, second: str, edges: Collection[tuple[str, str]]) -> bool:
    """Whether neither of two nodes needs the other, by however many steps."""
    behind: dict[str, list[str]] = {}
    for node, later in edges:
        behind.setdefault(node, []).append(later)
    return not (_reaches(first, second, behind) or _reaches(second, first, behind))


def _reaches(start: str, end: str, behind: Mapping[str, Sequence[str]]) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for each in behind.get(waiting.pop(), ()):
            if each == end:
                return True
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return False
