"""A schedule as a list of moves and calls over cells, for devices, the simulator and exports.

Where a cell's content on the host changes (shared storage, loops), inputs and outputs are buffers of their own beside
the cells, copied from and to them outside the count; else the cell itself is the input or output.
"""

from collections import Counter
from collections.abc import Iterator

from fusiond_transfer.analysis import cells, loops
from fusiond_transfer.analysis.cells import Evict, KernelCall, Move, Op, Script, Staging, needed, with_pieces
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.frontend.graph import Graph


def script(schedule: Schedule) -> Script:
    """The script of a schedule. Every op has a name of its own, whatever the user's kernels are called."""
    return schedule.kept("script", _script)


def _script(schedule: Schedule) -> Script:
    return cells.with_own_names(loops.looped(schedule) if schedule.graph.loop else _straight(schedule))


# --- without a loop -------------------------------------------------------------------------------------


def _straight(schedule: Schedule) -> Script:
    graph = schedule.graph
    cell = graph.cell
    changing = {name for name, vectors in graph.members.items() if len(vectors) > 1}
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
    host, device = _sides(graph, schedule)
    host |= {cell[each.name] for each in (*inputs, *outputs)}
    made = Script(
        graph=graph,
        cells=needed(graph, {name: vectors[0] for name, vectors in graph.members.items()}, host, device),
        order=schedule.order,
        arenas=schedule.arenas,
        ops=tuple(ops),
        inputs=(*inputs, *staged),
        outputs=tuple(outputs),
        calls=graph.kernels,
    )
    return with_pieces(made) if graph.cut else made


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
        for whole in graph.wholes.values():
            side |= set() if side.isdisjoint(whole.pieces) else set(whole.pieces)
    return host, device
