"""A small simulator: carries out a Program with values that are names of what was computed, both memories poisoned.

Every buffer starts as poison, but for the inputs. A copy carries values over, a kernel makes new ones out of what it
reads (its entry, its scalars, and which output it is), an allocation poisons its arena. Whoever reads poison, touches
what is not allocated, or hands out another value than the plain run of the graph, is a line. Orders other than the
listed one are tried: whatever streams and `after` allow, copies as late and as early as they can be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

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
    Program,
    Role,
    Step,
)
from fusiond_transfer.analysis.script import Script
from fusiond_transfer.codegen.body import code
from fusiond_transfer.frontend.graph import Graph

POISON = "poison"
ORDERS = ("listed", "late", "early")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`problems`, one line each; `outputs`: buffer -> value; `peak_bytes`: the most that was allocated on the device at
    a time by the plan's own allocations (0 where it makes none)."""

    problems: tuple[str, ...]
    outputs: dict[str, str]
    peak_bytes: int


def plain(graph: Graph) -> dict[str, str]:
    """The outputs of a graph as if there were one memory: output -> value. A loop is run `iterations` times."""
    entries = code(graph).entries
    values = {name: _given(name) for name in graph.inputs}
    for _ in range(graph.iterations if graph.loop else 1):
        for kernel in graph.kernels:
            entry = entries[kernel.name]
            read = [values[name] for name in kernel.reads]
            made = _made(entry.source, entry.entry, entry.scalars, read)
            for position, name in enumerate(kernel.writes):
                values[name] = f"{made}.{position}"
        for head, tail in graph.carried:
            values[head] = values[tail]
    return {name: values[name] for name in graph.outputs}


def run(script: Script, program: Program, *, order: str | int = "listed") -> Outcome:
    """Carry out a Program. `order`: listed, late, early, or a seed for a random one that the plan allows."""
    machine = _Machine(script, program)
    for step in ordered(program.steps, order):
        machine.do(step)
    outputs = {each.name: machine.values[each.name] for each in program.buffers if each.role is Role.OUTPUT}
    for each in program.buffers:
        if each.role is Role.INPUT and machine.values[each.name] != _given(each.name):
            machine.problems.append(f"{each.name} is an input, and was overwritten")
    return Outcome(problems=tuple(machine.problems), outputs=outputs, peak_bytes=machine.peak_bytes)


def faults(script: Script, program: Program, *, seeds: Sequence[int] = ()) -> tuple[str, ...]:
    """What is wrong with a Program, in any of the orders that are tried; empty when it gives what the graph gives."""
    wanted = plain(script.graph)
    found = []
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
        self.values = {each.name: _given(each.name) if each.role is Role.INPUT else POISON for each in program.buffers}
        self.problems: list[str] = []
        self.peak_bytes = 0
        self._writes = {kernel.name: len(kernel.writes) for kernel in script.calls}
        self._wanted = {op.name: set(op.wanted) for op in script.ops if hasattr(op, "wanted")}
        self._arena: dict[str, list[str]] = {}
        self._bytes: dict[str, int] = {}
        for each in program.buffers:
            if each.memory is Memory.DEVICE:
                home = each.arena or each.name
                self._arena.setdefault(home, []).append(each.name)
                self._bytes[home] = max(self._bytes.get(home, 0), each.offset_bytes + each.size_bytes)
        self._missing = {name for step in program.steps if step.allocates for name in self._arena[step.allocates]}
        self._live_bytes = 0

    def do(self, step: Step) -> None:
        if isinstance(step, Launch | HostCall):
            self._call(step)
        elif step.messages:
            self._copy(step.name, step.messages)
        elif isinstance(step, Alloc | Free):
            self._allocation(step)
        else:
            self.problems.append(f"{step.name} is a step that no transfer plan has")

    def _call(self, step: Launch | HostCall) -> None:
        pointers = [each.buffer for each in step.arguments if isinstance(each, Pointer)]
        scalars = tuple(each for each in step.arguments if not isinstance(each, Pointer))
        writes = self._writes[step.name]
        read, written = pointers[: len(pointers) - writes], pointers[len(pointers) - writes :]
        for name in pointers:
            self._check(step.name, name)
        for name in read:
            if self.values[name] == POISON:
                self.problems.append(f"{step.name} reads {name} before anything was written there")
        made = _made(step.source, step.entry, scalars, [self.values[name] for name in read])
        for position, name in enumerate(written):
            self.values[name] = f"{made}.{position}"

    def _copy(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        moved = [(target, self.values[source]) for source, target in pairs]
        for source, target in pairs:
            self._check(name, source)
            self._check(name, target)
            wanted = self._wanted.get(name)
            matters = wanted is None or source.removesuffix("@device") in wanted
            if self.values[source] == POISON and matters:
                self.problems.append(f"{name} copies {source} before anything was written there")
        for target, value in moved:
            self.values[target] = value

    def _allocation(self, step: Alloc | Free) -> None:
        members = self._arena.get(step.arena, [])
        for name in members:
            self.values[name] = POISON
        if isinstance(step, Alloc):
            self._missing -= set(members)
            self._live_bytes += self._bytes[step.arena]
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        else:
            self._missing |= set(members)
            self._live_bytes -= self._bytes[step.arena]

    def _check(self, step: str, name: str) -> None:
        if name in self._missing:
            self.problems.append(f"{step} touches {name}, which is not allocated then")


def _given(name: str) -> str:
    return f"input {name}"


def _made(source: str, entry: str, scalars: Sequence[Argument], read: Sequence[str]) -> str:
    """The name of what a kernel computes from named values: a hash, so that names stay short."""
    return text_key(f"{source}:{entry}({scalars})[{', '.join(read)}]")[:24]
