"""Nodes of a graph in an order that its edges allow."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def topological(nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]]) -> tuple[Node, ...] | None:
    """Each behind those from which an edge comes; of those that may come, the first of `nodes`. None for a cycle."""
    position = {each: number for number, each in enumerate(nodes)}
    waits = dict.fromkeys(nodes, 0)
    after: dict[Node, list[Node]] = {}
    for one, other in edges:
        waits[other] += 1
        after.setdefault(one, []).append(other)
    ready = [position[each] for each, count in waits.items() if not count]
    heapq.heapify(ready)
    found: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        found.append(node)
        for each in after.get(node, ()):
            waits[each] -= 1
            if not waits[each]:
                heapq.heappush(ready, position[each])
    return tuple(found) if len(found) == len(nodes) else None
