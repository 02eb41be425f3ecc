"""Which vectors cross between the memories, and when each may (Kessler, section 4).

Slot k of an upload is the moment before kernel k, slot k of a download the moment after it; -1 is the moment before the
first kernel.

    upload      from behind its producer on the host (an input: from 0) to the first kernel on the device that reads it
    download    from its producer on the device to the slot before the first kernel on the host that reads it
                (an output that no such kernel reads: to the last slot)

In the steady state of a loop with N kernels a carried vector is read in the next iteration, by kernel j at N + j: its
interval wraps round. Inputs that are not carried, and outputs, cross before and after the loop, and do not count.
"""

from __future__ import annotations

from typing import NamedTuple

from fusiond_transfer.graph import Graph


class Crossing(NamedTuple):
    """One vector that has to cross, once, in one direction."""

    vector: str
    up: bool
    earliest: int
    latest: int
    """The slots at which it may cross, both included."""
    last_use: int
    """The last kernel on the device that has to do with the vector (its producer, if none reads it)."""
    size_bytes: int


def crossings(graph: Graph) -> tuple[Crossing, ...]:
    """Every crossing of a graph, in the order of its vectors."""
    count = len(graph.kernels)
    on_device = [kernel.device for kernel in graph.kernels]
    heads = {tail: head for head, tail in graph.carried}
    outputs, inputs, placed = set(graph.outputs), set(graph.inputs), set(graph.placed)
    readers, producer = graph.readers, graph.producer
    found = []
    for vector in graph.vectors:
        name = vector.name
        made = producer.get(name)
        if graph.loop and made is None:
            continue  # carried in from the last iteration, or in its place since before the loop
        reading = readers.get(name, ())
        if name in heads:
            reading = (*reading, *(count + k for k in readers.get(heads[name], ())))
        at_device = [k for k in reading if on_device[k % count]]
        from_device = name in placed if made is None else on_device[made]
        if not from_device:
            if at_device:
                begin = 0 if made is None else made + 1
                found.append(Crossing(name, True, begin, at_device[0], at_device[-1], vector.size_bytes))
            continue
        at_host = next((k for k in reading if not on_device[k % count]), None)
        if at_host is None and (name not in outputs or graph.loop or name in inputs):
            continue
        begin = -1 if made is None else made
        end = count - 1 if at_host is None else at_host - 1
        found.append(Crossing(name, False, begin, end, at_device[-1] if at_device else begin, vector.size_bytes))
    return tuple(found)


def slots(graph: Graph, *, up: bool) -> range:
    """All slots of one direction."""
    return range(0, len(graph.kernels)) if up else range(-1, len(graph.kernels))
