"""A schedule as a list of moves and calls over cells, for devices, the simulator and exports.

In a graph without a loop a cell is where a vector lies. A loop is unrolled: a carried vector has two cells that take
turns, so that the next value can arrive while the last one is still read; what is in its place before the steady state
is put there by moves that do not count, and so is what is fetched after it.

Where a cell's content on the host changes (shared storage, loops), inputs and outputs are buffers of their own beside
the cells, copied from and to them outside the count; else the cell itself is the input or output.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from fusiond_transfer.analysis import loops
from fusiond_transfer.analysis.cells import (
    Cell,
    Evict,
    KernelCall,
    Move,
    Op,
    Script,
    Staging,
    Whole,
    with_own_names,
    with_pieces,
)
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.frontend.graph import Graph, Vector


def script(schedule: Schedule) -> Script:
    """The script of a schedule. Every op has a name of its own, whatever the user's kernels are called."""
    return schedule.kept("script", _script)


def _script(schedule: Schedule) -> Script:
    return with_own_names(loops.looped(schedule) if schedule.graph.loop else _straight(schedule))


# --- without a loop -------------------------------------------------------------------------------------


def _straight(schedule: Schedule) -> Script:
    graph = schedule.graph
    cell = graph.cell
    members: dict[str, list[Vector]] = {}
    for vector in graph.vectors:
        members.setdefault(cell[vector.name], []).append(vector)
    changing = {name for name, vectors in members.items() if len(vectors) > 1}
    inputs = [graph.vector(name) for name in graph.inputs if cell[name] in changing and name not in graph.placed]
    outputs = [graph.vector(name) for name in graph.outputs if cell[name] in changing]
    staged = [graph.vector(name) for name in graph.placed]
    ops: list[Op] = [
        Staging(name=f"give_{each.name}", buffer=each.name, cell=cell[each.name], into=True) for each in inputs
    ]
    ops += [Staging(name=f"place_{each.name}", buffer=each.name, cell=cell[each.name], into=True, device=True)
            for each in staged]  # fmt: skip
    ops += _in_order(schedule)
    ops += [Staging(name=f"take_{each.name}", buffer=each.name, cell=cell[each.name], into=False) for each in outputs]
    made = Script(
        graph=graph,
        cells=_cells(schedule, members, {each.name for each in (*inputs, *outputs)}),
        order=schedule.order,
        arenas=schedule.arenas,
        ops=tuple(ops),
        inputs=(*inputs, *staged),
        outputs=tuple(outputs),
        calls=graph.kernels,
    )
    if not graph.cut:
        return made
    wholes = {
        graph.whole_cell(each): Whole(like=each.vector, cells=tuple(cell[name] for name in each.pieces))
        for each in graph.cut
    }
    return with_pieces(made, wholes)


def _cells(schedule: Schedule, members: Mapping[str, Sequence[Vector]], standing: Set[str]) -> tuple[Cell, ...]:
    """The cells with their vectors. `standing`: vectors whose cells stand for an input or output buffer."""
    graph = schedule.graph
    host, device = _sides(graph, schedule)
    given, wanted = set(graph.inputs) - set(graph.placed), set(graph.outputs)
    return tuple(
        Cell(
            name=name,
            like=vectors[0],
            host=name in host or any(each.name in standing for each in vectors),
            device=name in device,
            input=len(vectors) == 1 and vectors[0].name in given,
            output=len(vectors) == 1 and vectors[0].name in wanted,
        )
        for name, vectors in members.items()
        if name in host or name in device
    )


def _in_order(schedule: Schedule) -> Iterator[Op]:
    """The kernels, with what crosses before and behind each, and what leaves the device."""
    graph, cell = schedule.graph, schedule.graph.cell
    before: dict[int, list[Op]] = {}
    behind: dict[int, list[Op]] = {}
    for move in _moves(schedule):
        (before if move.up else behind).setdefault(move.slot, []).append(move)
    for name, k in schedule.leaves:
        behind.setdefault(k, []).append(Evict(name=f"evict_{name}_{k}", cell=cell[name]))
    yield from behind.get(-1, ())
    for k, kernel in enumerate(graph.kernels):
        yield from before.get(k, ())
        yield KernelCall(
            name=kernel.name,
            kernel=kernel,
            reads=tuple(cell[name] for name in kernel.reads),
            writes=tuple(cell[name] for name in kernel.writes),
        )
        yield from behind.get(k, ())


def _moves(schedule: Schedule) -> Iterator[Move]:
    """The messages, numbered where one slot has several in a direction."""
    graph, cell = schedule.graph, schedule.graph.cell
    position = {name: index for index, name in enumerate(schedule.order)}
    together = Counter((message.slot, message.up) for message in schedule.messages)
    numbers: Counter[tuple[int, bool]] = Counter()
    for message in schedule.messages:
        place = message.slot, message.up
        wanted = tuple(cell[name] for name in message.vectors)
        direction = "up" if message.up else "down"
        slot = "start" if message.slot < 0 else graph.kernels[message.slot].name
        yield Move(
            name=f"{direction}_{slot}" + (f"_{numbers[place]}" if together[place] > 1 else ""),
            up=message.up,
            cells=tuple(sorted((*wanted, *message.filler), key=position.__getitem__)),
            wanted=wanted,
            slot=message.slot,
        )
        numbers[place] += 1


def _sides(graph: Graph, schedule: Schedule) -> tuple[set[str], set[str]]:
    """The cells that are needed on the host, and those on the device."""
    cell = graph.cell
    host = {cell[name] for name in graph.outputs}
    device = {cell[name] for name in graph.placed}
    for kernel in graph.kernels:
        (device if kernel.device else host).update(cell[name] for name in (*kernel.reads, *kernel.writes))
    for side in (host, device):
        side |= set(schedule.order)
        for each in graph.cut:
            cells = {cell[name] for name in each.pieces}
            side |= set() if side.isdisjoint(cells) else cells
    return host, device
