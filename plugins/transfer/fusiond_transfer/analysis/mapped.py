"""Vectors in mapped memory: pinned memory of the host that kernels on the device read and write over the link.

They never cross, and so have no message; what they cost is that each access of a kernel goes over the link. That is
right for any vector that is written once and has a place of its own: both sides see one memory. It is likely to pay
where one kernel of the device touches each element once; where several kernels do, or one does again and again, each
pays. Only measuring tells, so these are choices:

    none    every vector is copied
    once    those that may be mapped and that one kernel of the device touches, row by row
    all     all that may be mapped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fusiond_transfer.analysis import intervals
from fusiond_transfer.analysis.chunks import row_wise_kernels
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.script import Cell, Evict, Move, Op, Script, script
from fusiond_transfer.frontend.graph import MAPPED, Graph

NONE, ONCE, ALL = "none", "once", "all"


def choices(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Choice -> the vectors that lie in mapped memory; only `none` where there is nothing to choose."""
    found: dict[str, frozenset[str]] = {NONE: frozenset()}
    if graph.loop or graph.shares_storage or graph.adjacent or graph.limit_bytes is not None:
        return found
    crossing = {each.vector for each in intervals.crossings(graph)} - set(graph.placed)
    everything = frozenset(name for name in crossing if graph.vector(name).memory == MAPPED)
    ways = row_wise_kernels(graph)
    touches: Counter[str] = Counter()
    by_rows: set[str] = set()
    for kernel in graph.kernels:
        if kernel.device:
            how = ways[kernel.name]
            touches.update({*kernel.reads, *kernel.writes})
            by_rows.update(() if isinstance(how, str) else how.split)
    once = frozenset(name for name in everything if touches[name] == 1 and name in by_rows)
    if once and once != everything:
        found[ONCE] = once
    if everything:
        found[ALL] = everything
    return found


def said(graph: Graph) -> Iterator[str]:
    """Lines for people: which vectors each choice has, and why."""
    found = choices(graph)
    if ALL in found:
        yield f"may lie in mapped memory, with no message: {', '.join(sorted(found[ALL]))}"
        once = found.get(ONCE, frozenset())
        several = sorted(found[ALL] - once) if once else []
        if several:
            yield f"not in `once`, as kernels of the device touch more than once or in no order: {', '.join(several)}"


def with_mapped(schedule: Schedule, choice: str) -> Script:
    """The script of a schedule, with the vectors of a choice in mapped memory."""
    return _without(script(schedule), choices(schedule.graph)[choice] if choice != NONE else frozenset())


def messages(schedule: Schedule, choice: str) -> int:
    """How many messages are left."""
    if choice == NONE:
        return schedule.startups
    return sum(isinstance(each, Move) and each.counted for each in with_mapped(schedule, choice).ops)


def _without(whole: Script, mapped: frozenset[str]) -> Script:
    """A script in which some cells never cross. Each holds one vector, and has its name."""
    if not mapped:
        return whole

    def left(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in cells if name not in mapped)

    ops: list[Op] = []
    for op in whole.ops:
        if isinstance(op, Move):
            wanted = left(op.wanted)
            if wanted:
                ops.append(replace(op, cells=left(op.cells), wanted=wanted))
        elif not (isinstance(op, Evict) and op.cell in mapped):
            ops.append(op)
    return replace(
        whole,
        cells=tuple(_shared(each) if each.name in mapped else each for each in whole.cells),
        order=left(whole.order),
        arenas=tuple(group for each in whole.arenas if (group := left(each))),
        ops=tuple(ops),
    )


def _shared(cell: Cell) -> Cell:
    return replace(cell, host=True, device=False)
