"""The script of a loop: its iterations in order, with uploads before and downloads behind.

A carried vector has two cells that take turns, so that the next value can arrive while the last one is still read. What
is in its place before the steady state is put there by moves that do not count, and so is what is fetched after it.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from fusiond_transfer.analysis.cells import KernelCall, Move, Op, Script, Staging, needed
from fusiond_transfer.analysis.schedule import Message, Schedule
from fusiond_transfer.frontend.graph import Graph, GraphKernel


class _Turns:
    """Where the vectors of an iteration lie: what is carried has two cells, `x.0` and `x.1`, that take turns."""

    def __init__(self, schedule: Schedule) -> None:
        graph = schedule.graph
        self.count = len(graph.kernels)
        self.carried = dict(graph.carried)
        self.heads = {tail: head for head, tail in graph.carried}
        self.slot = {each.vector: at for each, at in zip(schedule.crossings, schedule.slots, strict=True)}
        self.messages: dict[tuple[bool, int], list[tuple[int, Message]]] = {}
        for number, message in enumerate(schedule.messages):
            self.messages.setdefault((message.up, message.slot), []).append((number, message))

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


def looped(schedule: Schedule) -> Script:
    """The script of a loop's schedule."""
    graph = schedule.graph
    turns = _Turns(schedule)
    arenas = tuple(turns.arena(each) for each in schedule.messages)
    order = tuple(name for each in arenas for name in each)
    first, last = [*_into_the_loop(graph, turns)], [*_out_of_the_loop(graph, turns)]
    host, device = _sides_of_a_loop(graph, turns, order, (*first, *last))
    calls = tuple(
        dataclasses.replace(each, name=f"{each.name}_i{turn}", origin=each.name)
        for turn in range(graph.iterations)
        for each in graph.kernels
    )
    like = {cell: vector for vector in graph.vectors for cell in turns.cells(vector.name)}
    return Script(
        graph=graph,
        cells=needed(graph, like, host, device),
        order=order,
        arenas=arenas,
        ops=(*first, *_iterations(schedule, turns, calls), *last),
        inputs=tuple(graph.vector(name) for name in turns.carried),
        outputs=tuple(graph.vector(name) for name in graph.outputs if name in turns.heads),
        calls=calls,
    )


def _iterations(schedule: Schedule, turns: _Turns, calls: Sequence[GraphKernel]) -> Iterator[Op]:
    """The kernels of all iterations, with what crosses before and behind each."""
    for number, made in enumerate(calls):
        turn, k = divmod(number, turns.count)
        yield from _turn_moves(schedule, turns, turn, k, up=True)
        reads, writes = (tuple(turns.cell(name, turn) for name in names) for names in (made.reads, made.writes))
        yield KernelCall(kernel=made, reads=reads, writes=writes)
        yield from _turn_moves(schedule, turns, turn, k, up=False)


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
    for number, message in turns.messages.get((up, k), ()):
        direction = "up" if up else "down"
        run = turns.run(message, turn)
        yield Move(
            name=f"{direction}_{schedule.graph.kernels[k].name}_{number}_i{turn}", up=up, cells=run, wanted=run, slot=k
        )
