"""Vectors that lie in one memory for both sides, in place of a copy on each.

    mapped      pinned memory of the host that kernels on the device read and write over the link: no message, but every
                access pays. Likely to pay off where one kernel of the device touches each element once
    managed     memory whose pages the driver moves: a prefetch stands where a copy would stand. Likely to pay off where
                the side that a vector leaves does not touch it again, for its pages are on one side at a time

Both are right for any vector that is written once and has a place of its own: there is only one content to see. Whether
it is faster only measuring tells, so these are choices, of each kind:

    none    every vector is copied
    once    of those that may lie there, those of which the line above says that it is likely to pay off
    all     all that may lie there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from fusiond_transfer.analysis import intervals
from fusiond_transfer.analysis.lines import row_wise_kernels
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.script import Cell, Evict, Migrate, Move, Op, Script, script, with_own_names
from fusiond_transfer.frontend.graph import MANAGED, MAPPED, Graph

NONE, ONCE, ALL = "none", "once", "all"


def choices(graph: Graph, kind: str) -> Mapping[str, frozenset[str]]:
    """Choice -> the vectors that lie in memory of a kind (`mapped`, `managed`); only `none` where there is nothing to
    choose."""
    found: dict[str, frozenset[str]] = {NONE: frozenset()}
    if graph.loop or graph.shares_storage or graph.adjacent or graph.limit_bytes is not None:
        return found
    crossing = {each.vector for each in intervals.crossings(graph)} - set(graph.placed)
    everything = frozenset(name for name in crossing if graph.vector(name).memory == kind)
    once = everything & (_touched_once(graph) if kind == MAPPED else _left_behind(graph))
    if once and once != everything:
        found[ONCE] = once
    if everything:
        found[ALL] = everything
    return found


def _touched_once(graph: Graph) -> set[str]:
    """What one kernel of the device touches, row by row."""
    ways = row_wise_kernels(graph)
    touches: Counter[str] = Counter()
    by_rows: set[str] = set()
    for kernel in graph.kernels:
        if kernel.device:
            how = ways[kernel.name]
            touches.update({*kernel.reads, *kernel.writes})
            by_rows.update(() if isinstance(how, str) else how.split)
    return {name for name in by_rows if touches[name] == 1}


def _left_behind(graph: Graph) -> set[str]:
    """What the side that it comes from does not read."""
    return {
        name
        for name in graph.index
        if not any(graph.kernels[k].device is _made_on_device(graph, name) for k in graph.readers.get(name, ()))
        and (_made_on_device(graph, name) or name not in graph.outputs)
    }


def _made_on_device(graph: Graph, name: str) -> bool:
    return name in graph.producer and graph.kernels[graph.producer[name]].device


def said(graph: Graph) -> Iterator[str]:
    """Lines for people: which vectors each choice has, and why."""
    for kind, how, why in (
        (MAPPED, "with no message", "kernels of the device touch more than once or in no order"),
        (MANAGED, "prefetched in place of messages", "the side that they come from reads, too"),
    ):
        found = choices(graph, kind)
        if ALL in found:
            yield f"may lie in {kind} memory, {how}: {', '.join(sorted(found[ALL]))}"
            once = found.get(ONCE, frozenset())
            several = sorted(found[ALL] - once) if once else []
            if several:
                yield f"not in `once`, as {why}: {', '.join(several)}"


def placed(schedule: Schedule, *, mapped: str = NONE, managed: str = NONE) -> Script:
    """The script of a schedule, with the vectors of these choices in one memory."""
    found = script(schedule)
    if mapped != NONE:
        found = _with_mapped(found, choices(schedule.graph, MAPPED)[mapped])
    if managed != NONE:
        found = with_own_names(_with_managed(found, choices(schedule.graph, MANAGED)[managed]))
    return found


def messages(schedule: Schedule, *, mapped: str = NONE, managed: str = NONE) -> int:
    """How many messages and prefetches are left."""
    if mapped == managed == NONE:
        return schedule.startups
    ops = placed(schedule, mapped=mapped, managed=managed).ops
    return sum(isinstance(each, Move | Migrate) and each.counted for each in ops)


# A cell holds one vector here, and has its name; it is in one group, whose cells are neighbours.


def _with_mapped(whole: Script, mapped: Set[str]) -> Script:
    ops = tuple(each for op in whole.ops for each in _copied_alone(op, mapped))
    return _without(whole, mapped, ops, managed=False)


def _with_managed(whole: Script, managed: Set[str]) -> Script:
    """What a message would have carried of them is one prefetch. Before all that counts, their pages are where they are
    used first: a user's program has written its inputs on the host, and prefetched the rest when it allocated it."""
    homes: list[Op] = []
    ops: list[Op] = []
    for op in whole.ops:
        ops += _copied_alone(op, managed)
        if isinstance(op, Move) and (cells := tuple(name for name in op.cells if name in managed)):
            ops.append(Migrate(name=f"{op.name}_pages", up=op.up, cells=cells, counted=op.counted))
            homes.append(Migrate(name=f"home_{op.name}", up=not op.up, cells=cells, counted=False))
    return _without(whole, managed, (*homes, *ops), managed=True)


def _copied_alone(op: Op, cells: Set[str]) -> Iterator[Op]:
    """An op without some cells; nothing where it is about no others."""
    if isinstance(op, Move):
        wanted = tuple(name for name in op.wanted if name not in cells)
        if wanted:
            yield replace(op, cells=tuple(name for name in op.cells if name not in cells), wanted=wanted)
    elif not (isinstance(op, Evict) and op.cell in cells):
        yield op


def _without(whole: Script, shared: Set[str], ops: tuple[Op, ...], *, managed: bool) -> Script:
    """A script in which some cells never cross, as one memory is for both sides."""

    def left(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in cells if name not in shared)

    groups = tuple(tuple(name for name in each if name in shared) for each in whole.arenas) if managed else ()
    return replace(
        whole,
        cells=tuple(_shared(each, managed=managed) if each.name in shared else each for each in whole.cells),
        order=left(whole.order),
        arenas=tuple(group for each in whole.arenas if (group := left(each))),
        managed=tuple(each for each in groups if each),
        ops=ops,
    )


def _shared(cell: Cell, *, managed: bool) -> Cell:
    return replace(cell, host=True, device=False, managed=managed)
