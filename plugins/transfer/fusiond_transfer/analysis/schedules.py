"""All schedules of one graph, each made once: every grouping, in the given order of kernels and in a better one.

What holds of them is a list of claims: which are proven least, and which assumption does not hold where not.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.english import counted
from fusiond.model.program import Memory
from fusiond_transfer.analysis import (
    cost,
    eviction,
    heuristic,
    intervals,
    limit,
    limited_cells,
    local_search,
    mapped_or_managed,
    order,
    schedule,
)
from fusiond_transfer.analysis.constrained_stabbing import constrained
from fusiond_transfer.analysis.eviction import Residency
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.limit import Fitting
from fusiond_transfer.analysis.schedule import Bound, Schedule
from fusiond_transfer.analysis.script import script
from fusiond_transfer.frontend.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The fewest messages that were found. `lower_bound` is what no schedule goes below; `proven`: neither does this
    one."""

    schedule: Schedule
    lower_bound: int
    proven: bool


class Schedules:
    """Schedules of a graph, kept. Not for graphs that change (none does)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.crossings: tuple[Crossing, ...] = intervals.crossings(graph)
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
        self._fitting: Fitting | None = None
        self._least: Least | None = None
        self._min_residency_proven = False

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
        """A limit where cells are shared, or their neighbours given (`limited_cells`)."""
        graph = self.graph
        return graph.limit_bytes is not None and bool(graph.shares_storage or graph.adjacent)

    @property
    def peak_bytes(self) -> int:
        """What the fewest messages have on the device at a time; only under a limit."""
        if self.limited:
            return self.fitting().peak_bytes
        return limited_cells.peak_bytes(script(self.least().schedule))

    def fitting(self) -> Fitting:
        """The fewest groups under the limit; only where `limited`."""
        if self._fitting is None:
            self._fitting = limit.fitting(
                self.graph, self.crossings, self.bound.points, self.evictions.split if self.evictions else frozenset()
            )
        return self._fitting

    def least(self) -> Least:
        """The fewest messages, and what is proven of them."""
        if self._least is None:
            self._least = self._found()
        return self._least

    def _found(self) -> Least:
        bound = self.bound.points
        if self.limited:
            fits = self.fitting()
            at = schedule.slots_of(fits.groups, len(self.crossings))
            found = schedule.scheduled(self.graph, self.crossings, at, fits.groups)
            found = dataclasses.replace(found, leaves=self._leaves)
            proven = fits.least and (self.evictions is None or found.startups == bound)
            return Least(schedule=found, lower_bound=bound, proven=proven)
        if self.cells_limited:
            found = limited_cells.joined(self.graph, self.crossings, self._leaves, self._alone())
            return Least(schedule=found, lower_bound=bound, proven=found.startups == bound)
        slots = schedule.stabbed(self.graph, self.crossings, self.bound)
        if self.graph.shares_storage or self.graph.adjacent:
            best = constrained(self.graph, self.crossings, slots, bound)
            return Least(schedule=best.schedule, lower_bound=bound, proven=best.least)
        return Least(schedule=schedule.scheduled(self.graph, self.crossings, slots), lower_bound=bound, proven=True)

    def _alone(self) -> frozenset[str]:
        """What lies in a cell that is evicted."""
        cell = self.graph.cell
        cells = {cell[name] for name in self.evictions.split} if self.evictions else set()
        return frozenset(each.vector for each in self.crossings if cell[each.vector] in cells)

    def separate(self, *, early: bool) -> Schedule:
        """Every vector by itself."""
        name = "separate_early" if early else "separate"
        if name not in self._kept:
            if self.cells_limited and not (early and self.evictions):
                self._kept[name] = limited_cells.separate(self.graph, self.crossings, self._leaves, early=early)
            elif self.evictions is None or early:
                self._kept[name] = schedule.build(self.graph, "separate", early=early)
            else:
                slots = schedule.separate(self.crossings, early=False)
                found = schedule.alone(self.graph, self.crossings, slots)
                self._kept[name] = dataclasses.replace(found, leaves=self._leaves)
        return self._kept[name]

    def grouping(self, name: str) -> Schedule:
        """A grouping of `schedule.GROUPINGS` that needs no costs: any but `local_search`."""
        if name == "separate":
            return self.separate(early=False)
        if name == "interval_stabbing":
            return self.least().schedule
        if name not in self._kept:
            self._kept[name] = self._min_residency() if name == "min_residency" else schedule.build(self.graph, name)
        return self._kept[name]

    def _min_residency(self) -> Schedule:
        """As few messages, and the least bytes x slots; where the layout or a limit decides, the fewest themselves."""
        if self.graph.limit_bytes is not None:
            return self.least().schedule  # its groups are at their tightest slots already
        slots, proven = schedule.min_resident(self.graph, self.crossings, self.bound)
        found = schedule.scheduled(self.graph, self.crossings, slots)
        if found.startups > self.least().schedule.startups:
            return self.least().schedule
        self._min_residency_proven = proven and self.least().proven and found.startups == self.bound.points
        return found

    @property
    def min_residency_proven(self) -> bool:
        """Whether `min_residency` is known to keep the least bytes x slots among all with as few messages."""
        self.grouping("min_residency")
        return self._min_residency_proven

    def fast(
        self,
        costs: cost.GraphCosts,
        known: str,
        *,
        memory: Memory,
        overlapped: bool,
        shared: cost.OneMemoryCosts | None = None,
    ) -> Schedule:
        """The fastest by the costs, with so much in one memory; `known` names the costs."""
        if self.evictions is not None or self.cells_limited:
            return self.least().schedule
        key = (memory, overlapped, known, shared and (shared.mapped, shared.managed))
        if key not in self._fast:
            names = ["interval_stabbing", "min_residency", *(("paper_greedy", "paper_tight") if self.has_paper else ())]
            starts = [self.grouping(name) for name in names]
            starts += [self.separate(early=early) for early in (True, False)]
            starts = [each for each in starts if self._fits(each)] or starts
            found = local_search.local_search(
                self.graph, self.crossings, starts, costs, memory=memory, overlapped=overlapped, shared=shared
            )
            self._fast[key] = found.schedule
        return self._fast[key]

    def _fits(self, found: Schedule) -> bool:
        """A quick look: the limit itself is enforced on the Program."""
        if not self.limited or self.graph.limit_bytes is None:
            return True
        memory = limit.ResidentBytes(self.graph, self.crossings)
        return memory.peak(schedule.groups_of(found)) <= self.graph.limit_bytes


def reordered(schedules: Schedules) -> Schedules | None:
    """The same in the order of levels, where that saves messages; None where it does not, or order is not free."""
    graph = schedules.graph
    if graph.loop or graph.shares_storage or graph.limit_bytes is not None:
        return None
    other = Schedules(order.by_levels(graph))
    return other if other.least().schedule.startups < schedules.least().schedule.startups else None


def claims(schedules: Schedules) -> tuple[str, ...]:
    """What is proven, and what is not, one line each."""
    graph, least = schedules.graph, schedules.least()
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
        found.append(f"{messages}: not proven to be the fewest; at least {least.lower_bound} needed")
    return tuple(found)


def described_costs(costs: cost.GraphCosts) -> str:
    """Whether costs were measured."""
    if not costs.missing:
        return "measured"
    if costs.missing == costs.wanted:
        return "not measured"
    return f"partly measured ({costs.missing} of {costs.wanted} are missing)"


def startups_by_memory(costs: cost.GraphCosts) -> Mapping[str, float]:
    """`up pageable` -> microseconds to begin a message."""
    return {
        f"{'up' if up else 'down'} {memory.value}": round(costs.startup_us(up, memory), 3)
        for up in (True, False)
        for memory in cost.KINDS
    }
