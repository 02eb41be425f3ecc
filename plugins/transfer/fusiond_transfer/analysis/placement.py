"""On which side kernels run that can run on either: two-processor assignment by a minimum cut (Stone, 1977).

A kernel costs its run time on the side where it is; a vector that is made on one side and read on the other costs one
message (startup and bytes), however many kernels read it there. Of this sum the least is a minimum cut between the
device and the host (H. S. Stone, Multiprocessor scheduling with the aid of network flow algorithms):

    device -> k       what k costs on the host       cut where k is on the host
    k -> host         what k costs on the device     cut where k is on the device
    p -> v -> r       what it costs to fetch v       cut where p is on the device and a reader r is not (v -> r: never)
    r -> v' -> p      what it costs to send v        cut where p is on the host and a reader r is not

The sum takes no account of what fusion saves: vectors that cross in one message pay one startup, and kernels overlap
with copies. So the cut is a candidate among others: `candidates` has all placements where there are few, else the two
extremes, the cut, the placement to which single moves lead from there by the time with messages, and its neighbours.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusiond.keys import text_key
from fusiond.program import Memory
from fusiond.strategy import Answers
from fusiond_transfer.analysis import cost, eviction
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from fusiond_transfer.frontend.sizes import MANY_KERNELS

OnHost = frozenset[str]
"""A placement: those of the kernels that can run on either side that run on the host."""
ALL_OF = 3
"""So many kernels that can run on either side have all of their placements offered."""
MOST = 8
"""Placements that are offered of more."""
MOST_MOVED = 12
"""Kernels that are moved by themselves, in the search from the cut."""
MOST_KERNELS = 400
"""Above this many kernels, and under a limit, no placement is timed with its messages but those that are offered."""
MOST_LETTERS = 48
"""In a label, above which kernels are counted and not named."""
MEMORY = Memory.PINNED
"""Of the estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A vector that may cross. Its producer and readers are kernels, or a side itself (inputs, outputs)."""

    vector: str
    producer: str
    readers: frozenset[str]
    down_us: float
    up_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCosts:
    """What Stone's sum is made of. `host_us`, `device_us`: of the kernels that can run on either side."""

    side: Mapping[str, str]
    """Of kernels that are bound to one; and `host`, `device` themselves."""
    host_us: Mapping[str, float]
    device_us: Mapping[str, float]
    bound_us: float
    """What all other kernels cost."""
    flows: tuple[Flow, ...]

    def on_device(self, kernel: str, host: OnHost) -> bool:
        return self.side[kernel] == DEVICE if kernel in self.side else kernel not in host

    def run_us(self, host: OnHost) -> float:
        """What the kernels cost in a placement."""
        return self.bound_us + sum(self.host_us[k] if k in host else self.device_us[k] for k in self.host_us)

    def crossing(self, host: OnHost) -> tuple[tuple[str, bool, float], ...]:
        """(vector, up, us) of what crosses, each in a message of its own."""
        found = []
        for flow in self.flows:
            made = self.on_device(flow.producer, host)
            if any(self.on_device(each, host) is not made for each in flow.readers):
                found.append((flow.vector, not made, flow.down_us if made else flow.up_us))
        return tuple(found)

    def total_us(self, host: OnHost) -> float:
        """Stone's sum."""
        return self.run_us(host) + sum(us for _, _, us in self.crossing(host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A placement that is offered, and what it comes to by the costs."""

    label: str
    host: OnHost
    why: tuple[str, ...]
    run_us: float
    crossing_us: float
    """With each vector in a message of its own."""


# --- the graph with its kernels there -------------------------------------------------------------------


def placed(graph: Graph, host: OnHost) -> Graph:
    """The graph with these of the kernels that can run on either side on the host, the others of them on the device."""
    kernels = tuple(
        kernel.moved if kernel.elsewhere is not None and kernel.device is (kernel.name in host) else kernel
        for kernel in graph.kernels
    )
    return graph if kernels == graph.kernels else dataclasses.replace(graph, kernels=kernels)


def label(graph: Graph, host: OnHost) -> str:
    """`device`, `host`, or the kernels on the host: `host:scan+sort`."""
    names = [name for name in graph.on_either if name in host]
    if not names or len(names) == len(graph.on_either):
        return HOST if names else DEVICE
    said = "+".join(names)
    return f"{HOST}:{said}" if len(said) <= MOST_LETTERS else f"{HOST}:{len(names)} kernels {text_key(said)[:8]}"


# --- the sum and its least ------------------------------------------------------------------------------


def model(graph: Graph, answers: Answers) -> PlacementCosts:
    """The costs of a graph's placements, measured where they were."""
    on_host = cost.costs(placed(graph, frozenset(graph.on_either)), answers)
    on_device = cost.costs(placed(graph, frozenset()), answers)
    either = set(graph.on_either)
    return PlacementCosts(
        side={HOST: HOST, DEVICE: DEVICE} | {each.name: each.on for each in graph.kernels if each.name not in either},
        host_us={name: on_host.kernels[name] for name in graph.on_either},
        device_us={name: on_device.kernels[name] for name in graph.on_either},
        bound_us=sum(on_host.kernels[each.name] for each in graph.kernels if each.name not in either),
        flows=tuple(_flows(graph, on_device)),
    )


def _flows(graph: Graph, costs: cost.GraphCosts) -> Iterator[Flow]:
    names = [each.name for each in graph.kernels]
    readers = {name: {names[k] for k in at} for name, at in graph.readers.items()}
    for head, tail in graph.carried:  # which is what the tail is read for, in the next iteration
        readers.setdefault(tail, set()).update(readers.get(head, ()))
    for vector in graph.vectors:
        made = graph.producer.get(vector.name)
        read = set(readers.get(vector.name, ()))
        if graph.loop and made is None:
            continue  # there from before the loop
        if not graph.loop and vector.name in graph.outputs:
            read.add(HOST)
        if not read:
            continue
        origin = DEVICE if vector.name in graph.placed else HOST
        yield Flow(
            vector=vector.name,
            producer=origin if made is None else names[made],
            readers=frozenset(read),
            down_us=costs.message_us(False, MEMORY, vector.size_bytes),
            up_us=costs.message_us(True, MEMORY, vector.size_bytes),
        )


def least(costs: PlacementCosts) -> OnHost:
    """A placement of the least sum. Of several, the one with the fewest kernels on the host."""
    import networkx  # a fifth of the time in which a command's plugins are loaded

    network = networkx.DiGraph()

    def node(kernel: str) -> str:
        return f"side {costs.side[kernel]}" if kernel in costs.side else f"kernel {kernel}"

    def add(first: str, second: str, us: float | None) -> None:
        if first == second:
            return
        if us is None:
            network.add_edge(first, second)  # without a capacity: never cut
            return
        known = network[first][second]["capacity"] if network.has_edge(first, second) else 0
        network.add_edge(first, second, capacity=known + round(us * 1000))  # whole nanoseconds, which are exact

    for kernel in costs.host_us:
        add(node(DEVICE), node(kernel), costs.host_us[kernel])
        add(node(kernel), node(HOST), costs.device_us[kernel])
    for flow in costs.flows:
        if all(each in costs.side for each in (flow.producer, *flow.readers)):
            continue  # it is where it is
        down, up = f"down {flow.vector}", f"up {flow.vector}"
        add(node(flow.producer), down, flow.down_us)
        add(up, node(flow.producer), flow.up_us)
        for each in sorted(flow.readers):
            add(down, node(each), None)
            add(node(each), up, None)
    # The host's part is what reaches it in the residual network, the least there is: so it is the same in every run.
    _, at_host = networkx.minimum_cut(network, node(DEVICE), node(HOST))
    return frozenset(kernel for kernel in costs.host_us if node(kernel) in at_host[1])


# --- what is offered ------------------------------------------------------------------------------------


def timed_us(graph: Graph, host: OnHost, answers: Answers) -> float | None:
    """The estimate with the fewest messages, on one stream; None where it does not fit on the device."""
    there = placed(graph, host)
    try:
        found = Schedules(there).least().schedule
    except eviction.KernelTooLarge:
        return None
    return cost.estimate_us(found, cost.costs(there, answers), memory=MEMORY, overlapped=False)


def candidates(graph: Graph, answers: Answers) -> tuple[Placement, ...]:
    """The placements that are offered: all on the device first, all on the host second. Empty where no kernel has a
    choice."""
    either = graph.on_either
    if not either:
        return ()
    costs = model(graph, answers)
    cut = least(costs)
    why: dict[OnHost, list[str]] = {frozenset(): [], frozenset(either): [], cut: []}
    why[cut].append("minimum cut")
    if len(graph.kernels) > MANY_KERNELS:
        pass  # each placement is a graph to be planned
    elif len(either) <= ALL_OF:
        for count in range(len(either) + 1):
            why |= {frozenset(each): why.get(frozenset(each), []) for each in itertools.combinations(either, count)}
    elif len(graph.kernels) <= MOST_KERNELS and graph.limit_bytes is None:
        best, near = _from(cut, costs, graph, answers)
        why.setdefault(best, []).append("fastest by estimate, moving kernels from the cut")
        for host in near:
            if len(why) < MOST:
                why.setdefault(host, []).append("a kernel moved from there")
    else:
        for host in _neighbours(cut, costs):
            if len(why) < MOST:
                why.setdefault(host, []).append("a kernel moved from the cut")
    return tuple(
        Placement(label=label(graph, host), host=host, why=tuple(said), run_us=costs.run_us(host),
                  crossing_us=sum(us for _, _, us in costs.crossing(host)))
        for host, said in why.items()
    )  # fmt: skip


def _from(start: OnHost, costs: PlacementCosts, graph: Graph, answers: Answers) -> tuple[OnHost, list[OnHost]]:
    """Where single moves lead, by the time with messages; and the neighbours of that, the fastest first."""
    known: dict[OnHost, float] = {}

    def timed(host: OnHost) -> float:
        if host not in known:
            us = timed_us(graph, host, answers)
            known[host] = float("inf") if us is None else us
        return known[host]

    best = start
    while True:
        near = sorted(_neighbours(best, costs), key=lambda host: (timed(host), sorted(host)))
        if not near or timed(near[0]) >= timed(best):
            return best, near
        best = near[0]


def _neighbours(host: OnHost, costs: PlacementCosts) -> Iterator[OnHost]:
    """One kernel on the other side, those first whose move costs least by the sum."""
    near: dict[str, list[Flow]] = {name: [] for name in costs.host_us}
    for flow in costs.flows:
        for name in {flow.producer, *flow.readers} & near.keys():
            near[name].append(flow)

    def more_us(name: str) -> float:
        own = dataclasses.replace(costs, flows=tuple(near[name]), bound_us=0.0)
        there = host ^ {name}
        run = costs.host_us[name] - costs.device_us[name]
        crossing = sum(us for _, _, us in own.crossing(there)) - sum(us for _, _, us in own.crossing(host))
        return crossing + (run if name in there else -run)

    for _, name in sorted((more_us(name), name) for name in costs.host_us)[:MOST_MOVED]:
        yield host ^ {name}
