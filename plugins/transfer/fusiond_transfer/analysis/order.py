"""Another order of the kernels that needs fewer messages.

Every kernel gets a level: the number of changes of side on the longest path that leads to it (host kernels have even
levels, device kernels odd ones). By levels, all that the device can do by then is done before the host goes on, and the
other way round; what crosses between two levels crosses in one message. A path with m crossings in one direction needs
m messages in any order, since each ends before the next begins: that is the bound.
"""

import dataclasses

from fusiond_transfer.frontend.graph import Graph


def by_levels(graph: Graph) -> Graph:
    """The graph in the order of levels; kernels of one level stay in the order that was given."""
    level: list[int] = []
    for kernel in graph.kernels:
        side = 1 if kernel.device else 0
        before = [graph.producer[name] for name in kernel.reads if name in graph.producer]
        least = max((level[k] for k in before), default=side)
        level.append(least if least % 2 == side else least + 1)
    order = sorted(range(len(level)), key=lambda k: (level[k], k))
    return dataclasses.replace(graph, kernels=tuple(graph.kernels[k] for k in order))


def bound(graph: Graph) -> int:
    """Messages that no order goes below: the most crossings of each direction on one path, added up."""
    return _longest(graph, up=True) + _longest(graph, up=False)


def _longest(graph: Graph, *, up: bool) -> int:
    """The most crossings in a direction on a path from an input to an output."""
    best: list[int] = []
    for kernel in graph.kernels:
        most = 0
        for name in kernel.reads:
            made = graph.producer.get(name)
            from_device = name in graph.placed if made is None else graph.kernels[made].device
            crosses = kernel.device is up and from_device is not up
            most = max(most, (0 if made is None else best[made]) + (1 if crosses else 0))
        best.append(most)
    ends = [best[k] for k in range(len(best))]
    if not up:
        ends += [best[graph.producer[name]] + 1 for name in graph.outputs if graph.kernels[graph.producer[name]].device]
    return max(ends, default=0)
