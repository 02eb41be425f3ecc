"""Which vectors cross between the memories, and when each may (Kessler, section 4).

Slot k of an upload is the moment before kernel k, slot k of a download the moment after it; -1 is the moment before the
first kernel.

    upload      from behind its producer on the host (an input: from 0) to the first kernel on the device that reads it
    download    from its producer on the device to the slot before the first kernel on the host that reads it
                (an output that no such kernel reads: to the last slot)

In the steady state of a loop with N kernels a carried vector is read in the next iteration, by kernel j at N + j: its
interval wraps round. Inputs that are not carried, and outputs, cross before and after the loop, and do not count.
"""

from typing import NamedTuple

from fusiond_transfer.frontend.graph import Graph


class Crossing(NamedTuple):
    """One vector that has to cross, once, in one direction."""

    vector: str
    up: bool
    earliest: int
    latest: int  #: The slots at which it may cross, both included
    last_use: int  #: The last kernel on the device that has to do with the vector (its producer, if none reads it)
    size_bytes: int


def crossings(graph: Graph) -> tuple[Crossing, ...]:
    """Every crossing of a graph, in the order of its vectors. One pass over the kernels, one over the vectors, and a
    look at each name once: for large graphs the memory that is walked through is what takes time."""
    count = len(graph.kernels)
    made, from_device, first_host, first_device, last_device = _touches(graph)
    wanted = {graph.index[name] for name in (() if graph.loop else graph.outputs)}
    found = []
    for v, vector in enumerate(graph.vectors):
        begin = made[v]
        if graph.loop and begin < 0:
            continue  # carried in from the last iteration, or in its place since before the loop
        if not from_device[v]:
            if first_device[v] >= 0:
                span = begin + 1, first_device[v], last_device[v]
                found.append(Crossing(vector.name, True, *span, vector.size_bytes))
        elif first_host[v] >= 0 or (begin >= 0 and v in wanted):
            end = first_host[v] - 1 if first_host[v] >= 0 else count - 1
            found.append(Crossing(vector.name, False, begin, end, max(begin, last_device[v]), vector.size_bytes))
    return tuple(found)


def _touches(graph: Graph) -> tuple[list[int], list[bool], list[int], list[int], list[int]]:
    """By number of the vector: the kernel that makes it (-1: an input), whether that or it is on the device, and the
    first on the host, the first and the last on the device that read it (-1: none does)."""
    index, count = graph.index, len(graph.kernels)
    made, last_device, first_host, first_device = ([-1] * len(index) for _ in range(4))
    from_device = [False] * len(index)
    for k, kernel in enumerate(graph.kernels):
        device = kernel.device
        first = first_device if device else first_host
        for v in map(index.__getitem__, kernel.reads):
            if first[v] < 0:
                first[v] = k
            if device:
                last_device[v] = k
        for v in map(index.__getitem__, kernel.writes):
            made[v], from_device[v] = k, device
    for v in map(index.__getitem__, graph.placed):
        from_device[v] = True
    for head, tail in graph.carried:  # what the input is read for, in the next iteration
        before, after = index[head], index[tail]
        for first in (first_host, first_device):
            if first[after] < 0 <= first[before]:
                first[after] = count + first[before]
        if last_device[before] >= 0:
            last_device[after] = count + last_device[before]
    return made, from_device, first_host, first_device, last_device
