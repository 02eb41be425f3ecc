"""Vectors that lie in one memory for both sides, in place of a copy on each.

    mapped      pinned memory of the host that kernels on the device read and write over the link: no message, but every
                access pays. Likely to pay off where one kernel of the device touches each element once
    managed     memory whose pages the driver moves: a prefetch stands where a copy would stand. Likely to pay off where
                the side that a vector leaves does not touch it again, for its pages are on one side at a time

Both are right for any vector that is written once and has a place of its own: there is only one content to see. All
pieces of a vector that is cut lie in one kind of memory. Whether it is faster only measuring tells, so these are
choices, of each kind:

    none    every vector is copied
    once    of those that may lie there, those of which the line above says that it is likely to pay off
    all     all that may lie there
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from fusiond_transfer.analysis import intervals, layout
from fusiond_transfer.analysis.cells import Cell, Evict, KernelCall, Migrate, Move, Op, Script, with_own_names
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
            yield f"may lie in {kind} memory, {how}: {', '.join(_named(graph, found[ALL]))}"
            once = found.get(ONCE, frozenset())
            several = _named(graph, found[ALL] - once) if once else ()
            if several:
                yield f"not in `once`, as {why}: {', '.join(several)}"


def _named(graph: Graph, names: Set[str]) -> tuple[str, ...]:
    """Vectors as the user names them."""
    return graph.as_given(tuple(sorted(names)))


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
    groups = _groups(whole, managed)
    neighbours = {pair for group in groups for pair in itertools.pairwise(group)}
    for op in whole.ops:
        ops += _copied_alone(op, managed)
        wanted = [name for name in op.cells if name in managed and name in op.wanted] if isinstance(op, Move) else []
        for number, cells in enumerate(_runs(wanted, neighbours)):
            assert isinstance(op, Move)
            name = f"{op.name}_pages" + (f"_{number}" if number else "")
            ops.append(Migrate(name=name, up=op.up, cells=cells, counted=op.counted))
            homes.append(Migrate(name=f"home_{name}", up=not op.up, cells=cells, counted=False))
    homes += _staying(whole, managed, {name for op in homes if isinstance(op, Migrate) for name in op.cells})
    return replace(_without(whole, managed, (*homes, *ops), managed=True), managed=groups)


def _groups(whole: Script, managed: Set[str]) -> tuple[tuple[str, ...], ...]:
    """Cells that share an allocation, in memory order: those of one message, and all pieces of a vector."""
    groups = [group for each in whole.arenas if (group := tuple(name for name in each if name in managed))]
    if not whole.wholes:
        return tuple(groups)
    order = (name for name in (*whole.order, *(each.name for each in whole.cells)) if name in managed)
    return tuple(
        layout.joined(order, (*groups, *(each.cells for each in whole.wholes.values() if managed >= {*each.cells})))
    )


def _runs(cells: Sequence[str], neighbours: Set[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """Cells as runs of neighbours."""
    run: tuple[str, ...] = ()
    for name in cells:
        if run and (run[-1], name) not in neighbours:
            yield run
            run = ()
        run = (*run, name)
    if run:
        yield run


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
        own = [name for name in op.cells if name not in cells]
        ends = [number for number, name in enumerate(own) if name in wanted]
        if wanted:
            yield replace(op, cells=tuple(own[ends[0] : ends[-1] + 1]), wanted=wanted)
    elif not (isinstance(op, Evict) and op.cell in cells):
        yield op


def _without(whole: Script, shared: Set[str], ops: tuple[Op, ...], *, managed: bool) -> Script:
    """A script in which some cells never cross, as one memory is for both sides."""

    def left(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in cells if name not in shared)

    return replace(
        whole,
        cells=tuple(_shared(each, managed=managed) if each.name in shared else each for each in whole.cells),
        order=left(whole.order),
        arenas=tuple(group for each in whole.arenas if (group := left(each))),
        ops=ops,
    )


def _shared(cell: Cell, *, managed: bool) -> Cell:
    return replace(cell, host=True, device=False, managed=managed)
