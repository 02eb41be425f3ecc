"""Chooses which nodes of a graph become one.

    groups that save something   {a, b}: 30 us, {b, c}: 50 us, {c, d}: 40 us, {d, e, f}: 60 us
                           -->   {d, e, f}, {b, c}: 110 us

Larger groups are taken by what they save, the most first; pairs among what is left are a maximum-weight matching. A
group is refused where making one node of it would make nodes wait for each other, also by groups that stand already:
with a before d and c before b, {a, b} and {c, d} cannot both be one.
"""

import graphlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]  #: Two nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCandidate:
    """Nodes that could be one."""

    name: str
    nodes: frozenset[str]
    saves: float  #: Microseconds; what saves nothing is not chosen


def _order(each: GroupCandidate) -> tuple[float, str]:
    return -each.saves, each.name


def chosen(
    candidates: Iterable[GroupCandidate], edges: Collection[tuple[str, str]]
) -> tuple[tuple[GroupCandidate, ...], tuple[GroupCandidate, ...]]:
    """(those that become one, those that would have been chosen but close a cycle). `edges`: (node, one that needs it).

    The same for the same candidates, in whatever order they come."""
    useful = sorted((each for each in candidates if each.saves > 0), key=_order)
    kept: list[GroupCandidate] = []
    cyclic: list[GroupCandidate] = []
    taken: set[str] = set()

    def take(each: GroupCandidate) -> None:
        if closes_cycle([*(other.nodes for other in kept), each.nodes], edges):
            cyclic.append(each)
        else:
            kept.append(each)
            taken.update(each.nodes)

    for each in useful:
        if len(each.nodes) > 2 and not taken & each.nodes:
            take(each)
    pairs: dict[Pair, GroupCandidate] = {}
    for each in useful:
        if len(each.nodes) == 2 and not taken & each.nodes:
            first, second = sorted(each.nodes)
            pairs.setdefault((first, second), each)  # the best of equal ones comes first
    matched = matching({pair: each.saves for pair, each in pairs.items()})
    for each in sorted((pairs[pair] for pair in matched), key=_order):
        take(each)
    return tuple(kept), tuple(cyclic)


def matching(savings: Mapping[Pair, float]) -> tuple[Pair, ...]:
    """The pairs, out of those given, that save most together and of which no two share a node; microseconds. Pairs that
    save nothing are left apart.

    The same answer for the same savings, in whatever order they come."""
    import networkx  # a fifth of the time in which a command's plugins are loaded

    graph = networkx.Graph()
    for pair in sorted(savings):
        nanoseconds = round(savings[pair] * 1000)  # whole numbers, with which the matching is exact
        if nanoseconds > 0:
            graph.add_edge(*pair, weight=nanoseconds)
    chosen_pairs = {frozenset(each) for each in networkx.max_weight_matching(graph)}
    return tuple(pair for pair in sorted(savings) if frozenset(pair) in chosen_pairs)


def closes_cycle(groups: Iterable[Collection[str]], edges: Collection[tuple[str, str]]) -> bool:
    """Whether nodes wait for each other once each group is one node. Groups share no node."""
    home = {node: min(group) for group in groups for node in group}
    before: dict[str, set[str]] = {}
    for first, second in edges:
        first, second = home.get(first, first), home.get(second, second)
        if first != second:
            before.setdefault(second, set()).add(first)
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError:
        return True
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
