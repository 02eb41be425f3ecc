"""A schedule as a straight list of moves and calls over cells: what devices, the simulator and exported code carry out.

In a graph without a loop a cell is where a vector lies. A loop is unrolled: a carried vector has two cells that take
turns, so that the next value can arrive while the last one is still read; what is in its place before the steady state
is put there by moves that do not count, and so is what is fetched after it.

Where a cell's content on the host changes (shared storage, loops), inputs and outputs are buffers of their own beside
the cells, copied from and to them outside the count; else the cell itself is the input or output.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond_transfer.analysis.schedule import Message, Schedule
from fusiond_transfer.frontend.graph import Graph, GraphKernel, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A place in both memories, as far as it is needed there."""

    name: str
    like: Vector
    host: bool
    device: bool
    input: bool = False
    """Its content on the host is given, and never changes."""
    output: bool = False
    managed: bool = False
    """It is one place for both memories, whose pages move."""
    peers: tuple[int, ...] = ()
    """Other devices on which it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A vector that is cut, or a cell for such a vector, and the cells that are its pieces, in memory order."""

    like: Vector
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Cells that lie side by side, from one memory to the other; `wanted` of them hold something that matters."""

    name: str
    up: bool
    """To a device: from the host, or from another device."""
    cells: tuple[str, ...]
    wanted: tuple[str, ...]
    slot: int = 0
    counted: bool = True
    number: int = 0
    """The device that they come to, or go from to the host."""
    peer: int | None = None
    """Of a peer copy: the device that they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate:
    """Managed cells that lie side by side: their pages go to one side, before they are used there."""

    name: str
    up: bool
    cells: tuple[str, ...]
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A kernel on cells: `reads` and `writes` in the order of its parameters."""

    name: str
    kernel: GraphKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Between an input or output buffer and the cell that stands for it; never counted. Within the host, but what is
    placed goes to the device."""

    name: str
    buffer: str
    cell: str
    into: bool
    """From the buffer into the cell; else the other way."""
    device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A cell leaves the device, and comes again: its allocation is freed, where allocations count."""

    name: str
    cell: str


Op: TypeAlias = Move | Migrate | KernelCall | Staging | Evict


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    graph: Graph
    cells: tuple[Cell, ...]
    order: tuple[str, ...]
    """Cells that cross, in memory order."""
    arenas: tuple[tuple[str, ...], ...]
    ops: tuple[Op, ...]
    inputs: tuple[Vector, ...]
    """Input and output buffers that are not cells themselves."""
    outputs: tuple[Vector, ...]
    calls: tuple[GraphKernel, ...]
    """Every kernel that is called, once for each call."""
    managed: tuple[tuple[str, ...], ...] = ()
    """Managed cells; those of one run share an allocation, as their pages move together."""
    homes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Cell that is a piece of a vector -> what it is a piece of, and from which element on."""
    wholes: Mapping[str, Whole] = field(default_factory=dict)
    """What cells are pieces of, by name."""
    spare: Set[str] = frozenset()
    """Pieces that are on the device only where all of their vector is."""

    @property
    def glued(self) -> Mapping[str, tuple[str, int]]:
        """Piece -> the vector of which it is one, and the bytes of that before it."""
        return self.graph.glued

    @property
    def device_runs(self) -> tuple[tuple[str, ...], ...]:
        """Pieces that have to lie together on the device."""
        return self.graph.device_runs

    def cell(self, name: str) -> Cell:
        """The cell of that name; KeyError when there is none."""
        for each in self.cells:
            if each.name == name:
                return each
        raise KeyError(name)


def script(schedule: Schedule) -> Script:
    """The script of a schedule. Every op has a name of its own, whatever the user's kernels are called."""
    return schedule.kept("script", _script)


def _script(schedule: Schedule) -> Script:
    return with_own_names(_looped(schedule) if schedule.graph.loop else _straight(schedule))


def with_own_names(made: Script) -> Script:
    """A script in which no other op is called as a kernel is."""
    taken = {each.name for each in made.ops if isinstance(each, KernelCall)}
    ops: list[Op] = []
    for each in made.ops:
        if not isinstance(each, KernelCall):
            name = each.name
            while name in taken:
                name += "_"
            taken.add(name)
            each = dataclasses.replace(each, name=name) if name != each.name else each
        ops.append(each)
    return dataclasses.replace(made, ops=tuple(ops))


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
    return _with_pieces(made) if graph.cut else made


def touched(op: Op) -> tuple[str, ...]:
    """The cells that an op touches on the device."""
    if isinstance(op, Move):
        return op.cells
    if isinstance(op, KernelCall):
        return (*op.reads, *op.writes) if op.kernel.device else ()
    return (op.cell,) if isinstance(op, Staging) and op.device else ()


def _with_pieces(made: Script) -> Script:
    """A script of a graph in which vectors are cut: where their pieces lie, and which of them share an allocation."""
    graph = made.graph
    homes: dict[str, tuple[str, int]] = {}
    for each in graph.cut:
        at = 0
        for piece in each.pieces:
            homes[piece] = each.vector.name, at
            at += graph.vector(piece).elements
    there = dict.fromkeys(name for op in made.ops for name in touched(op))
    groups = joined((*made.order, *(each.name for each in made.cells)), (*made.arenas, *graph.device_runs))
    arenas = (tuple(name for name in group if name in there) for group in groups)
    return dataclasses.replace(
        made,
        arenas=tuple(group for group in arenas if group),
        homes=homes,
        wholes={each.vector.name: Whole(like=each.vector, cells=each.pieces) for each in graph.cut},
        spare=frozenset(each.name for each in made.cells if each.device and each.name not in there),
    )


def joined(order: Iterable[str], groups: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Groups that have a cell in common as one, in the order of all cells."""
    home = {name: name for name in order}

    def root(name: str) -> str:
        while home[name] != name:
            home[name] = home[home[name]]
            name = home[name]
        return name

    for group in groups:
        for name in group[1:]:
            home[root(name)] = root(group[0])
    found: dict[str, list[str]] = {}
    for name in home:
        found.setdefault(root(name), []).append(name)
    return [tuple(each) for each in found.values()]


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
        side |= {name for each in graph.cut if not side.isdisjoint(each.pieces) for name in each.pieces}
    return host, device


# --- loops ----------------------------------------------------------------------------------------------


class _Turns:
    """Where the vectors of an iteration lie: what is carried has two cells, `x.0` and `x.1`, that take turns."""

    def __init__(self, schedule: Schedule) -> None:
        graph = schedule.graph
        self.count = len(graph.kernels)
        self.carried = dict(graph.carried)
        self.heads = {tail: head for head, tail in graph.carried}
        self.slot = {each.vector: at for each, at in zip(schedule.crossings, schedule.slots, strict=True)}

    def cell(self, vector: str, turn: int) -> str:
        """Of a vector in iteration `turn` (counted from 0; -1 is what came in)."""
        if vector in self.carried:
            return f"{vector}.{turn % 2}"
        if vector in self.heads:
            return f"{self.heads[vector]}.{(turn + 1) % 2}"
        return vector

    def cells(self, vector: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.cell(vector, 0), self.cell(vector, 1))))

    def crossing(self, vector: str, turn: int) -> str:
        """The cell that crosses in iteration `turn`: the last iteration's, where the interval has wrapped round."""
        return self.cell(vector, turn - self.slot[vector] // self.count)

    def run(self, message: Message, turn: int) -> tuple[str, ...]:
        """The cells of a message in an iteration, in memory order."""
        own = [self.crossing(each, turn) for each in message.vectors if len(self.cells(each)) == 2]
        always = [each for each in message.vectors if len(self.cells(each)) == 1]
        return (*own, *always) if turn % 2 == 0 else (*always, *own)

    def arena(self, message: Message) -> tuple[str, ...]:
        """All cells of a message: those of even turns, those of every turn, those of odd turns."""
        return tuple(dict.fromkeys((*self.run(message, 0), *self.run(message, 1))))


def _looped(schedule: Schedule) -> Script:
    graph = schedule.graph
    turns = _Turns(schedule)
    arenas = tuple(turns.arena(each) for each in schedule.messages)
    order = tuple(name for each in arenas for name in each)
    first, last = [*_into_the_loop(graph, turns)], [*_out_of_the_loop(graph, turns)]
    host, device = _sides_of_a_loop(graph, turns, order, (*first, *last))
    calls = tuple(_turned(kernel, turn) for turn in range(graph.iterations) for kernel in graph.kernels)
    ops: list[Op] = list(first)
    for turn in range(graph.iterations):
        for k, made in enumerate(calls[turn * turns.count : (turn + 1) * turns.count]):
            ops += _turn_moves(schedule, turns, turn, k, up=True)
            reads, writes = (tuple(turns.cell(name, turn) for name in names) for names in (made.reads, made.writes))
            ops.append(KernelCall(name=made.name, kernel=made, reads=reads, writes=writes))
            ops += _turn_moves(schedule, turns, turn, k, up=False)
    like = {cell: vector for vector in graph.vectors for cell in turns.cells(vector.name)}
    cells = tuple(
        Cell(
            name=name,
            like=vector,
            host=name in host,
            device=name in device,
            input=name in graph.inputs,
            output=name in graph.outputs,
        )
        for name, vector in like.items()
        if name in host or name in device
    )
    return Script(
        graph=graph,
        cells=cells,
        order=order,
        arenas=arenas,
        ops=(*ops, *last),
        inputs=tuple(graph.vector(name) for name in turns.carried),
        outputs=tuple(graph.vector(name) for name in graph.outputs if name in turns.heads),
        calls=calls,
    )


def _turned(kernel: GraphKernel, turn: int) -> GraphKernel:
    return dataclasses.replace(kernel, name=f"{kernel.name}_i{turn}", origin=kernel.name)


def _into_the_loop(graph: Graph, turns: _Turns) -> Iterator[Op]:
    """What is in its place before the first iteration."""
    for name in turns.carried:
        yield Staging(name=f"give_{name}", buffer=name, cell=turns.cell(name, 0), into=True)
    for name in graph.inputs:
        cell, tail = turns.cell(name, 0), turns.carried.get(name)
        wraps = tail is not None and turns.slot.get(tail, 0) >= turns.count
        from_device = wraps and graph.kernels[graph.producer[tail or ""]].device
        read = any(graph.kernels[k].device for k in graph.readers.get(name, ()))
        # A value that wraps round comes by itself, if it is for the device, and has to be there, if it is from it.
        if from_device or (read and not wraps):
            yield Move(name=f"place_{name}", up=True, cells=(cell,), wanted=(cell,), counted=False)


def _out_of_the_loop(graph: Graph, turns: _Turns) -> Iterator[Op]:
    """What is fetched behind the last iteration."""
    for name in graph.outputs:
        cell = turns.cell(name, graph.iterations - 1)
        if graph.kernels[graph.producer[name]].device:
            yield Move(name=f"fetch_{name}", up=False, cells=(cell,), wanted=(cell,), counted=False)
        if name in turns.heads:
            yield Staging(name=f"take_{name}", buffer=name, cell=cell, into=False)


def _sides_of_a_loop(
    graph: Graph, turns: _Turns, order: Sequence[str], around: Sequence[Op]
) -> tuple[set[str], set[str]]:
    """The cells that are needed on the host, and those on the device. `around`: what is done before and behind it."""
    host, device = set(order), set(order)
    for kernel in graph.kernels:
        for name in (*kernel.reads, *kernel.writes):
            (device if kernel.device else host).update(turns.cells(name))
    for op in around:
        if isinstance(op, Staging):
            host.add(op.cell)
        elif isinstance(op, Move):
            host.update(op.cells)
            if op.up:
                device.update(op.cells)
    host.update(turns.cell(name, graph.iterations - 1) for name in graph.outputs)
    return host, device


def _turn_moves(schedule: Schedule, turns: _Turns, turn: int, k: int, *, up: bool) -> Iterator[Move]:
    for number, message in enumerate(schedule.messages):
        if message.up is up and message.slot == k:
            direction = "up" if up else "down"
            run = turns.run(message, turn)
            yield Move(
                name=f"{direction}_{schedule.graph.kernels[k].name}_{number}_i{turn}",
                up=up,
                cells=run,
                wanted=run,
                slot=k,
            )
