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


class _Touches(NamedTuple):
    """Who has to do with each vector, by its number; -1 where nobody has."""

    made: list[int]  #: The kernel that writes it; -1: an input
    from_device: list[bool]
    first_host: list[int]
    first_device: list[int]
    last_device: list[int]


def crossings(graph: Graph) -> tuple[Crossing, ...]:
    """Every crossing of a graph, in the order of its vectors. One pass over the kernels, one over the vectors, and a
    look at each name once: for large graphs the memory that is walked through is what takes time."""
    count = len(graph.kernels)
    touches = _touches(graph)
    if graph.carried:
        _carry(graph, touches)
    made, from_device, first_host, first_device, last_device = touches
    wanted = [False] * len(made)
    for name in () if graph.loop else graph.outputs:
        wanted[graph.index[name]] = True
    found = []
    for v, vector in enumerate(graph.vectors):
        begin = made[v]
        if graph.loop and begin < 0:
            continue  # carried in from the last iteration, or in its place since before the loop
        if not from_device[v]:
            if first_device[v] >= 0:
                span = begin + 1, first_device[v], last_device[v]
                found.append(Crossing(vector.name, True, *span, vector.size_bytes))
        elif first_host[v] >= 0 or (wanted[v] and begin >= 0):
            end = first_host[v] - 1 if first_host[v] >= 0 else count - 1
            found.append(Crossing(vector.name, False, begin, end, max(begin, last_device[v]), vector.size_bytes))
    return tuple(found)


def _touches(graph: Graph) -> _Touches:
    index = graph.index
    made = [-1] * len(index)
    from_device = [False] * len(index)
    first_host, first_device, last_device = ([-1] * len(index) for _ in range(3))
    for k, kernel in enumerate(graph.kernels):
        device = kernel.device
        for name in kernel.reads:
            v = index[name]
            if device:
                last_device[v] = k
                if first_device[v] < 0:
                    first_device[v] = k
            elif first_host[v] < 0:
                first_host[v] = k
        for name in kernel.writes:
            v = index[name]
            made[v], from_device[v] = k, device
    for name in graph.placed:
        from_device[index[name]] = True
    return _Touches(made, from_device, first_host, first_device, last_device)


def _carry(graph: Graph, touches: _Touches) -> None:
    """What an input is read for, a vector that is carried to it is read for in the next iteration."""
    count = len(graph.kernels)
    for head, tail in graph.carried:
        before, after = graph.index[head], graph.index[tail]
        for first in (touches.first_host, touches.first_device):
            if first[after] < 0 and first[before] >= 0:
                first[after] = count + first[before]
        if touches.last_device[before] >= 0:
            touches.last_device[after] = count + touches.last_device[before]
