"""Vectors that lie in one memory for both sides, in place of a copy on each: mapped or managed.

Both are right for any vector that is written once and has a place of its own: there is only one content to see. All
pieces of a vector that is cut lie in one kind of memory. Whether it is faster only measuring tells, so these are
choices, of each kind: none of the vectors, all that may lie there, or `once`: those that are likely to pay off, as one
kernel of the device touches each element once (mapped), or the side that they leave never touches them (managed).
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from fusiond_transfer.analysis import intervals, layout
from fusiond_transfer.analysis.cells import Cell, Evict, KernelCall, Migrate, Move, Op, Script, trimmed, with_own_names
from fusiond_transfer.analysis.row_lines import row_wise_kernels
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.script import script
from fusiond_transfer.frontend.graph import MANAGED, MAPPED, Graph

NONE, ONCE, ALL = "none", "once", "all"


def choices(graph: Graph, kind: str) -> Mapping[str, frozenset[str]]:
    """Choice -> the vectors that lie in memory of a kind (`mapped`, `managed`); only `none` where there is nothing to
    choose."""
    found: dict[str, frozenset[str]] = {NONE: frozenset()}
    wanted_side_by_side = {*graph.adjacent} - {each.pieces for each in graph.cut}
    if graph.loop or graph.shares_storage or wanted_side_by_side or graph.limit_bytes is not None:
        return found
    crossing = {each.vector for each in intervals.crossings(graph)} - set(graph.placed)
    everything = frozenset(
        piece for name in crossing if graph.vector(name).memory == kind for piece in _all_pieces(graph, name)
    )
    likely = _touched_once(graph) if kind == MAPPED else _left_behind(graph)
    once = frozenset(name for name in everything if likely.issuperset(_all_pieces(graph, name)))
    if once and once != everything:
        found[ONCE] = once
    if everything:
        found[ALL] = everything
    return found


def _all_pieces(graph: Graph, name: str) -> tuple[str, ...]:
    """A vector; all pieces of the one that is cut, of a piece."""
    return graph.home[name].pieces if name in graph.home else (name,)


def _touched_once(graph: Graph) -> set[str]:
    """What one kernel of the device touches, row by row; of a vector that is cut, also pieces that none touches."""
    ways = row_wise_kernels(graph)
    touches: Counter[str] = Counter()
    by_rows: set[str] = set()
    for kernel in graph.kernels:
        if kernel.device:
            how = ways[kernel.name]
            touches.update({*kernel.reads, *kernel.writes})
            for name in () if isinstance(how, str) else how.split:
                by_rows.update(graph.pieces.get(name, (name,)))
    return {name for name in by_rows if touches[name] == 1} | {name for name in graph.home if not touches[name]}


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
            yield f"may lie in {kind} memory, {how}: {', '.join(graph.as_given(sorted(found[ALL])))}"
            once = found.get(ONCE, frozenset())
            several = graph.as_given(sorted(found[ALL] - once)) if once else ()
            if several:
                yield f"not in `once`, as {why}: {', '.join(several)}"


def placed(schedule: Schedule, *, mapped: str = NONE, managed: str = NONE) -> Script:
    """The script of a schedule, with the vectors of these choices in one memory."""
    found = script(schedule)
    if mapped != NONE:
        found = _without(found, choices(schedule.graph, MAPPED)[mapped])
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


def _with_managed(whole: Script, managed: Set[str]) -> Script:
    """What a message would have carried of them is one prefetch. Before all that counts, their pages are where they are
    used first: a user's program has written its inputs on the host, and prefetched the rest when it allocated it."""
    homes: list[Op] = []
    ops: list[Op] = []
    groups = _groups(whole, managed)
    neighbours = {pair for group in groups for pair in itertools.pairwise(group)}
    for op in whole.ops:
        ops += _copied_alone(op, managed)
        if not isinstance(op, Move):
            continue
        wanted = [name for name in op.cells if name in managed and name in op.wanted]
        for number, cells in enumerate(layout.runs(wanted, lambda a, b: (a, b) in neighbours)):
            name = f"{op.name}_pages" + (f"_{number}" if number else "")
            ops.append(Migrate(name=name, up=op.up, cells=cells, counted=op.counted))
            homes.append(Migrate(name=f"home_{name}", up=not op.up, cells=cells, counted=False))
    homes += _staying(whole, managed, {name for op in homes if isinstance(op, Migrate) for name in op.cells})
    return replace(_without(whole, managed, managed=True), ops=(*homes, *ops), managed=groups)


def _groups(whole: Script, managed: Set[str]) -> tuple[tuple[str, ...], ...]:
    """Cells that share an allocation, in memory order: those of one message, and all pieces of a vector."""
    groups = [group for each in whole.arenas if (group := tuple(name for name in each if name in managed))]
    if not whole.graph.cut:
        return tuple(groups)
    order = (name for name in (*whole.order, *(each.name for each in whole.cells)) if name in managed)
    vectors = (each.pieces for each in whole.graph.wholes.values() if managed >= {*each.pieces})
    return tuple(layout.joined(order, (*groups, *vectors)))


def _staying(whole: Script, managed: Set[str], crossing: Set[str]) -> Iterator[Migrate]:
    """Pieces that only one side touches, beside others that cross: their pages are there from the start."""
    seen = set(crossing)
    for op in whole.ops:
        if not isinstance(op, KernelCall):
            continue
        for name in (*op.reads, *op.writes):
            if name in managed and name not in seen:
                seen.add(name)
                yield Migrate(name=f"home_{name}", up=op.kernel.device, cells=(name,), counted=False)


def _copied_alone(op: Op, cells: Set[str]) -> Iterator[Op]:
    """An op without some cells; nothing where it is about no others."""
    if isinstance(op, Move):
        wanted = tuple(name for name in op.wanted if name not in cells)
        if wanted:
            yield replace(op, cells=trimmed([name for name in op.cells if name not in cells], wanted), wanted=wanted)
    elif not (isinstance(op, Evict) and op.cell in cells):
        yield op


def _without(whole: Script, shared: Set[str], *, managed: bool = False) -> Script:
    """A script in which some cells never cross, as one memory is for both sides."""

    def left(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in cells if name not in shared)

    def here(cell: Cell) -> Cell:
        return replace(cell, host=True, device=False, managed=managed) if cell.name in shared else cell

    return replace(
        whole,
        cells=tuple(map(here, whole.cells)),
        order=left(whole.order),
        arenas=tuple(group for each in whole.arenas if (group := left(each))),
        ops=tuple(each for op in whole.ops for each in _copied_alone(op, shared)),
    )
