"""All schedules of one graph, each made once: every grouping, in the given order of kernels and in a better one.

What holds of them is a list of claims: which are proven least, and which assumption does not hold where not.
"""

import dataclasses
import functools

from fusiond.model.english import counted
from fusiond.model.program import Memory
from fusiond_transfer.analysis import eviction, heuristic, intervals, limit, local_search, mapped_or_managed, schedule
from fusiond_transfer.analysis.constrained_stabbing import constrained
from fusiond_transfer.analysis.cost import GraphCosts
from fusiond_transfer.analysis.eviction import Residency
from fusiond_transfer.analysis.schedule import Bound, Least, Schedule
from fusiond_transfer.analysis.script import script
from fusiond_transfer.frontend.graph import Graph


class Schedules:
    """Schedules of a graph, kept. Not for graphs that change (none does)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._once = self.crossings = intervals.crossings(graph)
        self.bound: Bound = schedule.bound(graph, self.crossings)
        """Of the vectors that cross in any case: what evictions cost comes on top."""
        self.evictions: Residency | None = None
        self._leaves: tuple[tuple[str, int], ...] = ()
        if graph.limit_bytes is not None and (self.cells_limited or not limit.separate_fits(graph, self.crossings)):
            found = eviction.least(graph, self.crossings, graph.limit_bytes)
            self.evictions = found if found.split or self.limited else None
            self.crossings, self._leaves = eviction.crossings_with(graph, self.crossings, found)
        self._kept: dict[str, Schedule] = {}
        self._fast: dict[tuple[object, ...], Schedule] = {}

    @property
    def has_paper(self) -> bool:
        """Whether the paper's heuristic is run: its affinity graph is quadratic; in a loop it says nothing."""
        return len(self.crossings) <= heuristic.MOST_VECTORS and not self.graph.loop and self.evictions is None

    @property
    def limited(self) -> bool:
        """A limit that decides who may cross with whom, in a graph in which vectors have cells to themselves."""
        return self.graph.limit_bytes is not None and not self.cells_limited

    @property
    def cells_limited(self) -> bool:
        """A limit where cells are shared, or their neighbours given (`limit`)."""
        graph = self.graph
        return graph.limit_bytes is not None and bool(graph.shares_storage or graph.adjacent)

    @functools.cached_property
    def peak_bytes(self) -> int:
        """What the fewest messages have on the device at a time; only under a limit."""
        return limit.peak_bytes(script(self.least.schedule))

    @functools.cached_property
    def least(self) -> Least:
        """The fewest messages, and what is proven of them."""
        graph, crossings, bound = self.graph, self.crossings, self.bound.points
        if self.limited:
            groups, fewest = limit.fitting(graph, crossings, bound, self._alone())
            found = schedule.scheduled(graph, crossings, schedule.slots_of(groups, len(crossings)), groups)
            found = dataclasses.replace(found, leaves=self._leaves)
            return Least(schedule=found, proven=fewest and (self.evictions is None or found.startups == bound))
        if self.cells_limited:
            found = limit.joined(graph, crossings, self._leaves, self._alone())
            return Least(schedule=found, proven=found.startups == bound)
        slots = schedule.stabbed(graph, crossings, self.bound)
        if graph.shares_storage or graph.adjacent:
            return constrained(graph, crossings, slots, bound)
        return Least(schedule=schedule.scheduled(graph, crossings, slots), proven=True)

    def _alone(self) -> frozenset[str]:
        """What lies in a cell that is evicted."""
        cell = self.graph.cell
        cells = {cell[name] for name in self.evictions.split} if self.evictions else set()
        return frozenset(each.vector for each in self.crossings if cell[each.vector] in cells)

    def separate(self, *, early: bool) -> Schedule:
        """Every vector by itself."""
        return self.grouping("separate_early" if early else "separate")

    def grouping(self, name: str) -> Schedule:
        """A grouping of `schedule.GROUPINGS` that needs no costs: any but `local_search`."""
        if name == "interval_stabbing":
            return self.least.schedule
        if name == "min_residency":
            return self.min_residency.schedule
        if name not in self._kept:
            self._kept[name] = self._made(name)
        return self._kept[name]

    def _made(self, name: str) -> Schedule:
        if name in ("paper_greedy", "paper_tight"):
            way = heuristic.search(self.graph, self._once, tight=name == "paper_tight")
            return schedule.scheduled(self.graph, self._once, way.slots)
        early = name == "separate_early"
        if early and self.evictions:  # nobody leaves there: that does not fit
            return schedule.alone(self.graph, self._once, early=True)
        return limit.separate(self.graph, self.crossings, self._leaves, early=early)

    @functools.cached_property
    def min_residency(self) -> Least:
        """As few messages, and the least bytes x slots, where that is proven; else where a limit decides, the fewest
        themselves."""
        if self.graph.limit_bytes is None:  # whose groups are at their tightest slots already
            slots, proven = schedule.min_resident(self.graph, self.crossings, self.bound)
            found = schedule.scheduled(self.graph, self.crossings, slots)
            if found.startups <= self.least.schedule.startups:
                proven = proven and self.least.proven and found.startups == self.bound.points
                return Least(schedule=found, proven=proven)
        return Least(schedule=self.least.schedule, proven=False)

    def fast(self, costs: GraphCosts, *, memory: Memory, overlapped: bool) -> Schedule:
        """The fastest by the costs."""
        if self.evictions is not None or self.cells_limited:
            return self.least.schedule
        key = (memory, overlapped, costs.name, costs.mapped, costs.managed)
        if key not in self._fast:
            names = ["interval_stabbing", "min_residency", *(("paper_greedy", "paper_tight") if self.has_paper else ())]
            starts = [self.grouping(name) for name in names]
            starts += [self.separate(early=early) for early in (True, False)]
            if self.limited:  # a quick look: the limit itself is enforced on the Program
                there = limit.ResidentBytes(self.graph, self.crossings)
                fitting = [each for each in starts if there.peak(schedule.groups_of(each)) <= there.limit_bytes]
                starts = fitting or starts
            self._fast[key] = local_search.local_search(
                self.graph, self.crossings, starts, costs, memory=memory, overlapped=overlapped
            )
        return self._fast[key]


def reordered(schedules: Schedules) -> Schedules | None:
    """The same in the order of levels, where that saves messages; None where it does not, or order is not free."""
    graph = schedules.graph
    if graph.loop or graph.shares_storage or graph.limit_bytes is not None:
        return None
    other = Schedules(by_levels(graph))
    return other if other.least.schedule.startups < schedules.least.schedule.startups else None


def by_levels(graph: Graph) -> Graph:
    """The graph in the order of levels: the number of changes of side on the longest path that leads to a kernel (even
    on the host, odd on the device). So all that one side can do by then is done before the other goes on, and what
    crosses between two levels crosses in one message."""
    level: list[int] = []
    for kernel in graph.kernels:
        side = 1 if kernel.device else 0
        before = [graph.producer[name] for name in kernel.reads if name in graph.producer]
        least = max((level[k] for k in before), default=side)
        level.append(least if least % 2 == side else least + 1)
    order = sorted(range(len(level)), key=level.__getitem__)
    return dataclasses.replace(graph, kernels=tuple(graph.kernels[k] for k in order))


def bound_of_any_order(graph: Graph) -> int:
    """Messages that no order of the kernels goes below: the most crossings of each direction on one path, each of which
    ends before the next begins, added up."""
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
    ends = [*best]
    if not up:
        ends += [best[graph.producer[name]] + 1 for name in graph.outputs if graph.kernels[graph.producer[name]].device]
    return max(ends, default=0)


def claims(schedules: Schedules) -> tuple[str, ...]:
    """What is proven, and what is not, one line each."""
    graph, least = schedules.graph, schedules.least
    found = []
    if graph.loop:
        found.append("a loop: startups are those of one iteration in its steady state")
    if graph.shares_storage:
        found.append("storage is shared in place: a point in time need not be a message, the bound may be out of reach")
    if graph.adjacent:
        which = "vectors are wanted" if {*graph.adjacent} - {each.pieces for each in graph.cut} else "pieces lie"
        found.append(f"{which} side by side: a point in time need not be a message")
    if graph.limit_bytes is not None:
        found.append(
            f"at most {graph.limit_bytes} bytes on the device: groups share an allocation, "
            "what is evicted comes up again"
        )
    if schedules.evictions is not None:
        more = counted(schedules.evictions.more, "transfer")
        proof = (
            "proven to be the fewest" if schedules.evictions.least else "by Belady's rule, not proven to be the fewest"
        )
        found.append(f"evictions cost {more} more: {proof} that fit")
    found += mapped_or_managed.said(graph)
    messages = counted(least.schedule.startups, "message")
    if least.proven:
        found.append(f"{messages}: proven to be the fewest in this order of the kernels")
    else:
        found.append(f"{messages}: not proven to be the fewest; at least {schedules.bound.points} needed")
    return tuple(found)
