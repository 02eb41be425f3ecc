"""Graphs over several devices: which vectors cross which link, and the fewest messages of each link.

Every vector goes straight from where it is made (an input: from the host) to every other place that reads it, so a link
is a pair of places: from the host to a device, back, or from one device to another (a peer copy,
cudaMemcpyPeerAsync). Messages of two links have nothing to do with each other. So the fewest are those of each link by
itself, where the greedy of `interval_stabbing` finds and proves them:

    to a device    from behind the producer (an input: from 0) to the first kernel there that reads the vector
    to the host    from the producer to the slot before the first kernel on the host that reads it (an output that none
                   reads: to the last slot)

Whether fewer messages are possible where vectors go round by a third place is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model import Rejection
from fusiond_transfer.analysis import interval_stabbing
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.graph import HOST, Graph

UPLOAD, DOWNLOAD, PEER = "upload", "download", "peer"
KINDS = UPLOAD, DOWNLOAD, PEER


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMessage:
    """What crosses a link at once: before kernel `slot` to a device, behind it to the host (-1: at the start)."""

    slot: int
    vectors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """From one place to another: `host`, `device`, `device:1`. `witnesses`: crossings that need a message each."""

    source: str
    target: str
    crossings: tuple[Crossing, ...]
    messages: tuple[PeerMessage, ...]
    witnesses: tuple[Crossing, ...]

    @property
    def kind(self) -> str:
        return DOWNLOAD if self.target == HOST else UPLOAD if self.source == HOST else PEER


def links(graph: Graph) -> tuple[DeviceLink, ...]:
    """Every link that something crosses, in the order of its first message."""
    found = [_stabbed(source, target, each) for (source, target), each in _crossings(graph).items()]
    return tuple(sorted(found, key=lambda link: (link.messages[0].slot, link.source, link.target)))


def _stabbed(source: str, target: str, crossings: list[Crossing]) -> DeviceLink:
    stabbing = interval_stabbing.stab(crossings)
    at: dict[int, list[str]] = {}
    for each in crossings:
        at.setdefault(interval_stabbing.chosen(each, stabbing.points, late=False), []).append(each.vector)
    messages = tuple(PeerMessage(slot=slot, vectors=tuple(names)) for slot, names in sorted(at.items()))
    return DeviceLink(
        source=source,
        target=target,
        crossings=tuple(crossings),
        messages=messages,
        witnesses=stabbing.witnesses,
    )


def _crossings(graph: Graph) -> Mapping[tuple[str, str], list[Crossing]]:
    found: dict[tuple[str, str], list[Crossing]] = {}
    outputs = set(graph.outputs)
    for vector in graph.vectors:
        made = graph.producer.get(vector.name, -1)
        source = HOST if made < 0 else graph.kernels[made].place
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for k in graph.readers.get(vector.name, ()):
            place = graph.kernels[k].place
            first.setdefault(place, k)
            last[place] = k
        if vector.name in outputs:
            first.setdefault(HOST, len(graph.kernels))
        for target, reader in first.items():
            if target != source:
                up = target != HOST
                span = (made + 1, reader) if up else (made, reader - 1)
                crossing = Crossing(vector.name, up, *span, last.get(target, made), vector.size_bytes)
                found.setdefault((source, target), []).append(crossing)
    return found


def refusal(graph: Graph, devices: int) -> Rejection | None:
    """Why nothing of it is measured where programs can be for so many devices."""
    if graph.devices <= devices:
        return None
    kernel = next(each for each in graph.kernels if each.number >= devices)
    here = "one device of its model is" if devices == 1 else f"{devices} devices of its model are"
    detail = f"{kernel.name} is on {kernel.place}, and {here} here: this graph is planned, not measured"
    return Rejection(rule="devices", nodes=(kernel.name,), detail=detail)
