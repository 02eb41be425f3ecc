"""A small simulator: carries out a Program with values that are names of what was computed, both memories poisoned.

Every buffer starts as poison, but for the inputs. A copy carries values over, a kernel makes new ones out of what it
reads (its entry, its scalars, and which output it is), an allocation poisons its arena. Whoever reads poison, touches
what is not allocated, or hands out another value than the plain run of the graph, is a line. Orders other than the
listed one are tried: whatever streams and `after` allow, copies as late and as early as they can be. And two steps that
touch the same, one of them to write it, are a line where nothing orders them: so a Program without a line gives in
every order that the plan allows what it gives in the listed one.

A buffer that is cut has the values of its chunks. A kernel that is called for chunk k of n makes chunk k of what it
would make, if all of its operands that are cut are chunk k of n of something.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fusiond.keys import text_key
from fusiond.program import (
    Alloc,
    Argument,
    Copy,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Role,
    Step,
)
from fusiond_transfer.analysis.script import Script
from fusiond_transfer.codegen.body import called, code
from fusiond_transfer.frontend.graph import FusedBody, Graph, GraphKernel

POISON = "poison"


class Chunk(NamedTuple):
    """One of so many chunks of a value."""

    whole: str
    number: int
    of: int


ORDERS = ("listed", "late", "early")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """`problems`, one line each; `outputs`: buffer -> value; `peak_bytes`: the most that was allocated on the device at
    a time by the plan's own allocations (0 where it makes none)."""

    problems: tuple[str, ...]
    outputs: Mapping[str, str | Chunk]
    peak_bytes: int


def plain(graph: Graph) -> dict[str, str]:
    """The outputs of a graph as if there were one memory: output -> value. A loop is run `iterations` times."""
    entries = code(graph).entries
    values: dict[str, str | Chunk] = {}

    def pieces(name: str) -> Sequence[str]:
        return graph.pieces.get(name, (name,))

    def put(name: str, value: str) -> None:
        values.update(zip(pieces(name), _divided(value, len(pieces(name))), strict=True))

    def value(name: str) -> str:
        return str(_together([values[each] for each in pieces(name)]))

    for name in graph.as_given(graph.inputs):
        put(name, _given(name))
    for _ in range(graph.iterations if graph.loop else 1):
        for kernel in graph.kernels:
            entry = entries[kernel.name]
            made = _made(entry.source, entry.entry, entry.scalars, [value(name) for name in kernel.read_operands])
            for position, name in enumerate(kernel.write_operands):
                put(name, f"{made}.{position}")
        for head, tail in graph.carried:
            values[head] = values[tail]
    return {name: value(name) for name in graph.as_given(graph.outputs)}


def run(script: Script, program: Program, *, order: str | int = "listed") -> SimulatedRun:
    """Carry out a Program. `order`: listed, late, early, or a seed for a random one that the plan allows."""
    machine = _Machine(script, program)
    for step in ordered(program.steps, order):
        machine.do(step)
    outputs = {each.name: machine.value(each.name) for each in program.buffers if each.role is Role.OUTPUT}
    for each in program.buffers:
        if each.role is Role.INPUT and machine.value(each.name) != _given(each.name):
            machine.problems.append(f"{each.name} is an input, and was overwritten")
    return SimulatedRun(problems=tuple(machine.problems), outputs=outputs, peak_bytes=machine.peak_bytes)


def faults(script: Script, program: Program, *, seeds: Sequence[int] = ()) -> tuple[str, ...]:
    """What is wrong with a Program, in any of the orders that are tried; empty when it gives what the graph gives."""
    wanted = plain(script.graph)
    found = list(unordered(script, program))
    orders: list[str | int] = [*ORDERS, *seeds]
    for order in orders:
        outcome = run(script, program, order=order)
        found += [f"{order}: {line}" for line in outcome.problems]
        found += [
            f"{order}: {name} is not what the graph computes" for name, value in wanted.items()
            if outcome.outputs.get(name) != value
        ]  # fmt: skip
    return tuple(found)


def ordered(steps: Sequence[Step], order: str | int) -> list[Step]:
    """The steps in an order that streams and `after` allow."""
    if order == "listed":
        return list(steps)
    before = _predecessors(steps)
    place = {step.name: index for index, step in enumerate(steps)}
    level = dict.fromkeys(place, 0)
    if order == "late":
        for step in reversed(steps):
            for name in before[step.name]:
                level[name] = min(level[name], level[step.name] - 1)
        return sorted(steps, key=lambda step: (level[step.name], -place[step.name]))
    if order == "early":
        for step in steps:
            level[step.name] = 1 + max((level[name] for name in before[step.name]), default=0)
        return sorted(steps, key=lambda step: (level[step.name], not isinstance(step, Copy), place[step.name]))
    generator = random.Random(order)
    waiting = {step.name: len(before[step.name]) for step in steps}
    behind: dict[str, list[str]] = {}
    for name, names in before.items():
        for each in names:
            behind.setdefault(each, []).append(name)
    by_name = {step.name: step for step in steps}
    ready = [name for name, count in waiting.items() if not count]
    found = []
    while ready:
        name = ready.pop(generator.randrange(len(ready)))
        found.append(by_name[name])
        for each in behind.get(name, ()):
            waiting[each] -= 1
            if not waiting[each]:
                ready.append(each)
    return found


def _predecessors(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    last: dict[int, str] = {}
    found = {}
    for step in steps:
        earlier = (last[step.stream],) if step.stream in last else ()
        found[step.name] = tuple(dict.fromkeys((*step.after, *earlier)))
        last[step.stream] = step.name
    return found


class _Machine:
    """Both memories, by buffer."""

    def __init__(self, script: Script, program: Program) -> None:
        self.problems: list[str] = []
        self._chunks = _chunks(program)
        self._values: dict[str, str | Chunk] = {}
        for each in program.buffers:
            if each.part_of is None:
                self._put(each.name, _given(each.name) if each.role is Role.INPUT else POISON)
        self.problems += _untiled(program, self._chunks)
        self.peak_bytes = 0
        self._whole = {part: whole for whole, parts in self._chunks.items() for part in parts}
        self._entries = called(script).entries
        self._kernels = {kernel.name: kernel for kernel in script.calls}
        self._runs = dict(script.graph.runs)
        self._wanted = {op.name: set(op.wanted) for op in script.ops if hasattr(op, "wanted")}
        self._arena: dict[str, list[str]] = {}
        self._bytes: dict[str, int] = {}
        for each in program.buffers:
            if each.memory is Memory.DEVICE and each.part_of is None:
                home = each.arena or each.name
                self._arena.setdefault(home, []).append(each.name)
                self._bytes[home] = max(self._bytes.get(home, 0), each.offset_bytes + each.size_bytes)
        self._missing = {name for step in program.steps if step.allocates for name in self._arena[step.allocates]}
        self._live_bytes = 0
        managed = (each.name for each in program.buffers if each.memory is Memory.MANAGED)
        self._pages: dict[str, set[bool]] = {name: set() for name in managed}
        """Of managed buffers, on which sides (True: the device) their pages are."""

    def do(self, step: Step) -> None:
        if isinstance(step, Launch | HostCall):
            self._call(step)
        elif step.messages:
            self._copy(step.name, step.messages)
        elif isinstance(step, Prefetch):
            self._prefetch(step)
        elif isinstance(step, Alloc | Free):
            self._allocation(step)
        else:
            self.problems.append(f"{step.name} is a step that no transfer plan has")

    def _call(self, step: Launch | HostCall) -> None:
        pointers = [each.buffer for each in step.arguments if isinstance(each, Pointer)]
        scalars = tuple(each for each in step.arguments if not isinstance(each, Pointer))
        kernel, mark, number = step.name.partition("#")
        read, written = operands(step, self._kernels[kernel], self._runs)
        self._check_pointers(step, pointers)
        values = [_together([self.value(each) for each in buffers]) for buffers in read]
        for buffers, value in zip(read, values, strict=True):
            if value == POISON:
                self.problems.append(f"{step.name} reads {buffers[0]} before anything was written there")
        self._pages |= {each[0]: {isinstance(step, Launch)} for each in written if each[0] in self._pages}
        if not mark:
            made = _made(step.source, step.entry, scalars, [str(each) for each in values])
            for position, buffers in enumerate(written):
                self._write(buffers, f"{made}.{position}")
            return
        (count,) = {len(self._chunks[self._whole[name]]) for name in pointers if name in self._whole} or {0}
        whole = [_of_chunk(each, int(number), count) for each in values]
        made = _made(step.source, step.entry, self._entries[kernel].scalars, whole)
        for position, (name,) in enumerate(written):
            self._put(name, Chunk(f"{made}.{position}", int(number), count))

    def _check_pointers(self, step: Launch | HostCall, pointers: Sequence[str]) -> None:
        for name in pointers:
            self._check(step.name, name)
            if name in self._pages and isinstance(step, Launch) not in self._pages[name]:
                self.problems.append(f"{step.name} touches {name}, whose pages are on the other side")

    def _write(self, buffers: Sequence[str], value: str) -> None:
        """One value, into a buffer or over the pieces of one."""
        for name, each in zip(buffers, _divided(value, len(buffers)), strict=True):
            self._put(name, each)

    def _copy(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        moved = [(target, self.value(source)) for source, target in pairs]
        for source, target in pairs:
            self._check(name, source)
            self._check(name, target)
            wanted = self._wanted.get(name)
            matters = wanted is None or source.removesuffix("@device") in wanted
            if self.value(source) == POISON and matters:
                self.problems.append(f"{name} copies {source} before anything was written there")
        for target, value in moved:
            self._put(target, value)

    def _prefetch(self, step: Prefetch) -> None:
        """A message in vain is as wrong as one that is missing."""
        for name in step.buffers:
            if step.to_device in self._pages[name]:
                self.problems.append(f"{step.name} moves the pages of {name}, which are there already")
            self._pages[name].add(step.to_device)

    def _allocation(self, step: Alloc | Free) -> None:
        members = self._arena.get(step.arena, [])
        for name in members:
            self._put(name, POISON)
        if isinstance(step, Alloc):
            self._missing -= set(members)
            self._live_bytes += self._bytes[step.arena]
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        else:
            self._missing |= set(members)
            self._live_bytes -= self._bytes[step.arena]

    def _check(self, step: str, name: str) -> None:
        if self._whole.get(name, name) in self._missing:
            self.problems.append(f"{step} touches {name}, which is not allocated then")

    def value(self, name: str) -> str | Chunk:
        """What a buffer holds: of one that is cut, what its chunks are the chunks of."""
        if name not in self._chunks:
            return self._values[name]
        return _together([self._values[part] for part in self._chunks[name]])

    def _put(self, name: str, value: str | Chunk) -> None:
        chunks = self._chunks.get(name)
        if chunks is None:
            self._values[name] = value
        for part, each in zip(chunks or (), _divided(value, len(chunks or ())), strict=True):
            self._values[part] = each


def _chunks(program: Program) -> dict[str, list[str]]:
    """Buffer that is cut -> its parts, in memory order."""
    found: dict[str, list[str]] = {}
    for each in sorted((each for each in program.buffers if each.part_of), key=lambda each: each.offset_bytes):
        found.setdefault(str(each.part_of), []).append(each.name)
    return found


def _untiled(program: Program, chunks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Chunks that leave something out, or overlap."""
    buffers = {each.name: each for each in program.buffers}
    for whole, parts in chunks.items():
        ends = buffers[whole].offset_bytes
        for name in parts:
            if buffers[name].offset_bytes != ends:
                yield f"{name} does not begin where the chunk before it ends"
            ends = buffers[name].offset_bytes + buffers[name].size_bytes
        if ends != buffers[whole].offset_bytes + buffers[whole].size_bytes:
            yield f"the chunks of {whole} do not end where it does"


def _divided(value: str | Chunk, count: int) -> Sequence[str | Chunk]:
    """A value as so many chunks of it."""
    if count == 1 or value == POISON:
        return [value] * count
    return [Chunk(str(value), number, count) for number in range(count)]


def _together(held: Sequence[str | Chunk]) -> str | Chunk:
    """What chunks that lie side by side are: what they are the chunks of, if that is one thing."""
    first = held[0]
    if len(held) == 1:
        return first
    if isinstance(first, Chunk) and list(held) == [Chunk(first.whole, k, len(held)) for k in range(len(held))]:
        return first.whole
    return POISON if POISON in held else f"chunks of several: {list(held)}"


def _of_chunk(value: str | Chunk, number: int, count: int) -> str:
    """The whole of which a call for a chunk reads that chunk; something else of any other chunk."""
    if not isinstance(value, Chunk):
        return value
    return value.whole if value[1:] == (number, count) else str(value)


# --- what nothing orders --------------------------------------------------------------------------------


def unordered(script: Script, program: Program) -> Iterator[str]:
    """A line for each two steps of which one writes what the other touches, and that streams and `after` leave in any
    order."""
    kernels = {kernel.name: kernel for kernel in script.calls}
    chunks = _chunks(program)
    arenas: dict[str, list[str]] = {}
    for each in program.buffers:
        if each.part_of is None:
            arenas.setdefault(each.arena or each.name, []).append(each.name)
    predecessors = _predecessors(program.steps)
    before: dict[str, int] = {}
    bit = {step.name: 1 << number for number, step in enumerate(program.steps)}
    touched: dict[str, list[tuple[str, bool]]] = {}
    seen: set[tuple[str, str]] = set()
    for step in program.steps:
        known = 0
        for name in predecessors[step.name]:
            known |= before[name] | bit[name]
        before[step.name] = known
        for buffer, writing in _accesses(step, kernels, arenas, dict(script.graph.runs)):
            for atom in chunks.get(buffer, (buffer,)):
                others = touched.setdefault(atom, [])
                for other, wrote in others:
                    if (wrote or writing) and not known & bit[other] and (other, step.name) not in seen:
                        seen.add((other, step.name))
                        if other != step.name:
                            yield f"nothing orders {other} and {step.name}, which both touch {atom}"
                others.append((step.name, writing))


Runs = Mapping[str, Sequence[str]]
"""Operands that are several pieces of a vector that is cut."""


def operands(step: Launch | HostCall, kernel: GraphKernel, runs: Runs) -> tuple[list[list[str]], list[list[str]]]:
    """(buffers that are read, those that are written) of a call, for each of the kernel's own operands."""
    pointers = [each.buffer for each in step.arguments if isinstance(each, Pointer)]
    if isinstance(kernel.body, FusedBody):
        passed = [each.buffer for each in kernel.body.fragment.launch.arguments if isinstance(each, Pointer)]
        named = dict(zip(passed, pointers, strict=True))
        return [[named[name]] for name in kernel.reads], [[named[name]] for name in kernel.writes]
    names = (*kernel.read_operands, *kernel.write_operands)
    found = [_of_pointer(pointer, runs.get(name, ())) for name, pointer in zip(names, pointers, strict=True)]
    return found[: len(kernel.read_operands)], found[len(kernel.read_operands) :]


def _of_pointer(pointer: str, run: Sequence[str]) -> list[str]:
    """The buffers behind a pointer: one, or a run of pieces of which it names the first."""
    return [each + pointer.removeprefix(run[0]) for each in run] or [pointer]


def _accesses(
    step: Step, kernels: Mapping[str, GraphKernel], arenas: Mapping[str, Sequence[str]], runs: Runs
) -> Iterator[tuple[str, bool]]:
    """(buffer, whether it is written) of a step."""
    if isinstance(step, Launch | HostCall):
        read, written = operands(step, kernels[step.name.partition("#")[0]], runs)
        yield from ((name, False) for buffers in read for name in buffers)
        yield from ((name, True) for buffers in written for name in buffers)
    elif isinstance(step, Alloc | Free):
        yield from ((name, True) for name in arenas.get(step.arena, ()))
    elif isinstance(step, Prefetch):
        yield from ((name, True) for name in step.buffers)
    for source, target in step.messages:
        yield source, False
        yield target, True


def _given(name: str) -> str:
    return f"input {name}"


def _made(source: str, entry: str, scalars: Sequence[Argument], read: Sequence[str]) -> str:
    """The name of what a kernel computes from named values: a hash, so that names stay short."""
    return text_key(f"{source}:{entry}({scalars})[{', '.join(read)}]")[:24]
