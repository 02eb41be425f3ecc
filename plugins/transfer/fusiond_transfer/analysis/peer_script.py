"""Graphs over several devices as scripts: how the cells lie in each memory, and what every message carries.

All memories hold their cells in one order, and a message is a run of neighbours on both of its sides. The groups of all
links are laid out together (`layout`); a group that does not come to lie side by side is several messages, so there can
be more of them than the fewest of each link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from fusiond_transfer.analysis import layout, schedule
from fusiond_transfer.analysis.cells import Cell, KernelCall, Move, Op, Script, with_own_names
from fusiond_transfer.analysis.peers import DeviceLink, links
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMessage:
    """A run of cells from one place to another; `slot` as in `peers.PeerMessage`."""

    link: DeviceLink
    slot: int
    vectors: tuple[str, ...]
    """In memory order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSchedule:
    graph: Graph
    order: tuple[str, ...]
    """Cells that cross, in the order in which they lie."""
    messages: tuple[LinkMessage, ...]
    """In the order of time."""

    @property
    def startups(self) -> int:
        return len(self.messages)


class PeerSchedules:
    """The schedules of a graph over several devices, each made once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.links = links(graph)
        self._kept: dict[str, PeerSchedule] = {}

    @property
    def lower_bound(self) -> int:
        """Messages of each link by itself, where every vector comes straight from where it is made."""
        return sum(len(each.messages) for each in self.links)

    def fewest(self) -> PeerSchedule:
        """The fewest messages of each link, as far as one layout has them."""
        return self._made("fewest", lambda link: ((each.slot, each.vectors) for each in link.messages), joined=True)

    def separate(self, *, early: bool) -> PeerSchedule:
        """Every vector by itself, as soon as it can, or as late as is no loss."""

        def alone(link: DeviceLink) -> Iterator[tuple[int, tuple[str, ...]]]:
            slots = schedule.separate(link.crossings, early=early)
            return ((slot, (each.vector,)) for each, slot in zip(link.crossings, slots, strict=True))

        return self._made(f"separate {early}", alone, joined=False)

    def _made(
        self, name: str, groups: Callable[[DeviceLink], Iterable[tuple[int, tuple[str, ...]]]], *, joined: bool
    ) -> PeerSchedule:
        if name not in self._kept:
            wanted = [(link, slot, vectors) for link in self.links for slot, vectors in groups(link)]
            order = layout.laid_out([vectors for _, _, vectors in wanted] if joined else [self._crossing()]).order
            self._kept[name] = self._scheduled(wanted, order)
        return self._kept[name]

    def _crossing(self) -> tuple[str, ...]:
        crossing = {each.vector for link in self.links for each in link.crossings}
        return tuple(each.name for each in self.graph.vectors if each.name in crossing)

    def _scheduled(
        self, wanted: Sequence[tuple[DeviceLink, int, tuple[str, ...]]], order: tuple[str, ...]
    ) -> PeerSchedule:
        # What crosses together comes from one place, so what lies between two of its cells does, too.
        position = {name: number for number, name in enumerate(order)}
        found = [
            LinkMessage(link=link, slot=slot, vectors=run)
            for link, slot, vectors in wanted
            for run in layout.runs(position, vectors)
        ]
        # At one slot what comes to a device comes before the kernel, and what goes to the host goes behind it.
        found.sort(key=lambda each: (each.slot, each.link.target == HOST))
        return PeerSchedule(graph=self.graph, order=order, messages=tuple(found))


def places(graph: Graph, found: Sequence[DeviceLink]) -> dict[str, set[str]]:
    """Vector -> every place where it is at some time."""
    there = {each.name: {HOST} if each.name in graph.inputs or each.name in graph.outputs else set()
             for each in graph.vectors}  # fmt: skip
    for kernel in graph.kernels:
        for name in (*kernel.reads, *kernel.writes):
            there[name].add(kernel.place)
    for link in found:
        for each in link.crossings:
            there[each.vector] |= {link.source, link.target}
    return there


def script(found: PeerSchedule) -> Script:
    """What devices, the simulator and exported code carry out."""
    graph = found.graph
    there = places(graph, [each.link for each in found.messages])
    ops: list[Op] = []
    before: dict[int, list[Op]] = {}
    behind: dict[int, list[Op]] = {}
    for number, message in enumerate(found.messages):
        side = behind if message.link.target == HOST else before
        side.setdefault(message.slot, []).append(_move(graph, message, number))
    ops += behind.get(-1, ())
    for k, kernel in enumerate(graph.kernels):
        ops += before.get(k, ())
        ops.append(KernelCall(name=kernel.name, kernel=kernel, reads=kernel.reads, writes=kernel.writes))
        ops += behind.get(k, ())
    made = Script(
        graph=graph,
        cells=tuple(
            Cell(
                name=each.name,
                like=each,
                host=HOST in there[each.name],
                device=DEVICE in there[each.name],
                peers=tuple(sorted(filter(None, map(_number, there[each.name])))),
                input=each.name in graph.inputs,
                output=each.name in graph.outputs,
            )
            for each in graph.vectors
        ),
        order=found.order,
        arenas=(),
        ops=tuple(ops),
        inputs=(),
        outputs=(),
        calls=graph.kernels,
    )
    return with_own_names(made)


def _number(place: str) -> int:
    """Which device a place is; 0 for the host, too."""
    return int(place.partition(":")[2] or 0)


def _move(graph: Graph, message: LinkMessage, number: int) -> Move:
    source, target = message.link.source, message.link.target
    at = "start" if message.slot < 0 else graph.kernels[message.slot].name
    return Move(
        name=f"{message.link.kind}_{at}_{number}",
        up=target != HOST,
        cells=message.vectors,
        wanted=message.vectors,
        slot=message.slot,
        number=_number(source if target == HOST else target),
        peer=None if HOST in (source, target) else _number(source),
    )
