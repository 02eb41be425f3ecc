"""The affinity graph (Kessler, section 4): how much two vectors would like to be neighbours in memory.

An edge for each two vectors whose intervals of one direction have a slot in common, of weight 1; and a bonus for two
operands of the same kernel. Its size is quadratic in the vectors, as in the paper; the exact search does without.
"""

from collections.abc import Sequence

from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import Graph

BONUS = 0.5  #: The paper's epsilon for siblings; it gives no value

Affinity = dict[int, dict[int, float]]  #: Number of a crossing -> number of a neighbour -> weight


def affinity(graph: Graph, crossings: Sequence[Crossing]) -> Affinity:
    """The affinity graph over crossings, by their numbers."""
    siblings = _siblings(graph, crossings)
    found: Affinity = {number: {} for number in range(len(crossings))}
    for direction in (True, False):
        open_: list[int] = []
        numbers = [number for number, each in enumerate(crossings) if each.up is direction]
        for number in sorted(numbers, key=lambda number: crossings[number].earliest):
            each = crossings[number]
            open_ = [other for other in open_ if crossings[other].latest >= each.earliest]
            for other in open_:
                weight = 1.0 + (BONUS if (min(number, other), max(number, other)) in siblings else 0.0)
                found[number][other] = found[other][number] = weight
            open_.append(number)
    return found


def _siblings(graph: Graph, crossings: Sequence[Crossing]) -> set[tuple[int, int]]:
    """Pairs of crossings whose vectors are operands of one kernel."""
    numbers = {each.vector: number for number, each in enumerate(crossings)}
    found = set()
    for kernel in graph.kernels:
        operands = sorted({numbers[name] for name in (*kernel.reads, *kernel.writes) if name in numbers})
        found |= {(a, b) for index, a in enumerate(operands) for b in operands[index + 1 :]}
    return found
