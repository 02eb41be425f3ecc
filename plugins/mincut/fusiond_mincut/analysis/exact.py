"""The best partition into blocks, each with its own cost.

Blocks launched one after the other cost the sum of their costs, so the best partition is a shortest path: from nothing
done, through sets of kernels that are complete (with every kernel all that it waits for), to everything done; a step is
a block. Blocks that wait for each other in a circle are on no such path.

    cost(done) = min over blocks B outside `done`, all of whose producers are in `done` or B:  cost(B) + cost(done + B)

Kernels that stand in no block of two and more are left out of the sets (they cost what they cost by themselves); the
others still wait for each other through them. The number of sets grows with the width of a pipeline, not its length;
beyond a limit there is no answer.
"""

import functools
import operator
from collections.abc import Mapping

from fusiond_mincut.frontend.graph import Pipeline

MOST_SETS = 200_000
MOST_STEPS = 10_000_000  #: Blocks that are tried, over all sets


def cheapest(
    pipeline: Pipeline, costs: Mapping[tuple[str, ...], float], *, count: int = 1, limit: int = MOST_SETS
) -> tuple[tuple[float, tuple[tuple[str, ...], ...]], ...] | None:
    """The `count` cheapest partitions into blocks that have a cost: (cost, blocks), the cheapest first.

    `costs`: kernels of a block in topological order -> cost; one for every kernel by itself is needed (KeyError). Fewer
    come back where there are fewer; None when there are more than `limit` sets to look at, or more than MOST_STEPS ways
    to go on from them. Equal costs are ordered by the blocks' kernels in topological order."""
    position = pipeline.position
    together = [block for block in costs if len(block) > 1]
    linked = pipeline.ordered(name for block in together for name in block)
    alone = [each.name for each in pipeline.kernels if each.name not in set(linked)]
    base = sum(costs[(name,)] for name in alone)
    bit = {name: 1 << index for index, name in enumerate(linked)}
    before = _ancestors(pipeline, bit)
    moves: list[tuple[int, int, tuple[str, ...]]] = []
    for block in sorted(costs, key=lambda each: [position[name] for name in each]):
        if bit.keys() >= set(block):
            mask = sum(bit[name] for name in block)
            waits = functools.reduce(operator.or_, (before[name] for name in block)) & ~mask
            if not any(waits & bit[name] and before[name] & mask for name in linked):  # else it waits for itself
                moves.append((mask, waits, block))
    answers = _search(moves, costs, (1 << len(linked)) - 1, count, min(limit, MOST_STEPS // max(1, len(moves))))
    if answers is None:
        return None
    singles = [(name,) for name in alone]
    return tuple(
        (cost + base, tuple(sorted([*chosen, *singles], key=lambda each: position[each[0]])))
        for cost, chosen in answers
    )


def _ancestors(pipeline: Pipeline, bit: Mapping[str, int]) -> dict[str, int]:
    """Kernel -> the kernels with a bit that it waits for, through whomever."""
    found: dict[str, int] = {}
    for kernel in pipeline.kernels:
        waits = 0
        for producer in pipeline.producers[kernel.name]:
            waits |= found[producer] | bit.get(producer, 0)
        found[kernel.name] = waits
    return found


Answer = tuple[float, tuple[tuple[str, ...], ...]]


def _search(
    moves: list[tuple[int, int, tuple[str, ...]]],
    costs: Mapping[tuple[str, ...], float],
    everything: int,
    count: int,
    limit: int,
) -> tuple[Answer, ...] | None:
    """The best ways to each set, in the order of the sets' sizes; each way keeps its blocks sorted, so that one
    partition reached in two orders is one way."""
    best: dict[int, list[Answer]] = {0: [(0.0, ())]}
    layers: dict[int, set[int]] = {0: {0}}
    looked_at = 0
    for size in range(everything.bit_count() + 1):
        for done in sorted(layers.pop(size, ())):
            ways = best[done]
            looked_at += 1
            if done == everything:
                return tuple(ways)
            if looked_at > limit:
                return None
            del best[done]
            for mask, waits, block in moves:
                if mask & done or waits & ~done:
                    continue
                after = done | mask
                layers.setdefault(after.bit_count(), set()).add(after)
                reached = best.setdefault(after, [])
                for cost, chosen in ways:
                    _offer(reached, (cost + costs[block], tuple(sorted((*chosen, block)))), count)
    return ()


def _offer(reached: list[Answer], way: Answer, count: int) -> None:
    """Keep the best ways, each partition once."""
    if (len(reached) == count and way >= reached[-1]) or any(way[1] == other[1] for other in reached):
        return
    reached.append(way)
    reached.sort()
    del reached[count:]
