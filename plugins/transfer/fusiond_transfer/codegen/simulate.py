"""A simulator that runs a Program on named values, with both memories poisoned.

Every buffer starts as poison, but for the inputs. A copy carries values over, a kernel makes new ones out of what it
reads (its entry, its scalars, and which output it is), an allocation poisons its arena. Whoever reads poison, touches
what is not allocated, or hands out another value than the plain run of the graph, is a line. So are two steps that
touch the same, one of them to write it, where nothing orders them: a Program without a line gives in every order that
the plan allows what it gives in the listed one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program import Alloc, Free, HostCall, Launch, Memory, Pointer, Prefetch, Program, Role, Step
from fusiond_transfer.analysis.cells import KernelCall, Script
from fusiond_transfer.analysis.row_lines import row_wise_kernels
from fusiond_transfer.codegen import contents
from fusiond_transfer.codegen.body import Entry, called, code
from fusiond_transfer.codegen.contents import Content, Elements
from fusiond_transfer.frontend.graph import FusedBody, Graph, GraphKernel
from fusiond_transfer.frontend.row_wise import RowWise


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """`problems`, one line each; `outputs`: buffer -> content; `peak_bytes`: the most that was allocated on the device
    at a time by the plan's own allocations (0 where it makes none)."""

    problems: tuple[str, ...]
    outputs: Mapping[str, Content]
    peak_bytes: int


def plain(graph: Graph) -> dict[str, Content]:
    """The outputs of a graph as if there were one memory: output -> content. A loop is run `iterations` times."""
    entries, ways = code(graph).entries, row_wise_kernels(graph)
    values: dict[str, Content] = {}

    def write(name: str, content: Content) -> None:
        at = 0
        for each in graph.pieces.get(name, (name,)):
            size = int(graph.vector(each).elements)
            values[each] = contents.sliced(content, at, at + size)
            at += size

    def value(name: str) -> Content:
        return contents.joined(each for piece in graph.pieces.get(name, (name,)) for each in values[piece])

    for name in graph.as_given(graph.inputs):
        write(name, _given(name, graph.operand(name).elements))
    for _ in range(graph.iterations if graph.loop else 1):
        for kernel in graph.kernels:
            read = [value(name) for name in kernel.read_operands]
            written = _computed(graph, kernel, entries[kernel.name], ways[kernel.name], read, None)
            for name, content in zip(kernel.write_operands, written, strict=True):
                write(name, content)
        for head, tail in graph.carried:
            values[head] = values[tail]
    return {name: value(name) for name in graph.as_given(graph.outputs)}


def _computed(
    graph: Graph,
    kernel: GraphKernel,
    entry: Entry,
    how: RowWise | str,
    read: Sequence[Content],
    rows: tuple[int, int] | None,
) -> list[Content]:
    """What a kernel writes; of `rows`, where it is called for some."""
    identity = f"{entry.source}:{entry.entry}({entry.scalars})"
    elements = {name: int(graph.operand(name).elements) for name in (*kernel.read_operands, *kernel.write_operands)}
    outputs = [elements[name] for name in kernel.write_operands]
    if isinstance(how, str):
        return contents.made(identity, read, outputs)
    own = {name: each // int(how.rows) for name, each in elements.items()}
    operands = list(zip(kernel.read_operands, read, strict=True))
    split = [(content, own[name]) for name, content in operands if name in how.split]
    whole = [() if name in how.split else content for name, content in operands]
    widths = [own[name] for name in kernel.write_operands]
    return contents.made_by_rows(identity, split, whole, widths, rows or (0, int(how.rows)))


def run(script: Script, program: Program) -> SimulatedRun:
    """Carry out a Program, in the order of its list."""
    machine = _Machine(script, program)
    for step in program.steps:
        machine.do(step)
    outputs = {each.name: machine.content(each.name) for each in program.buffers if each.role is Role.OUTPUT}
    for each in program.buffers:
        if each.role is Role.INPUT and machine.content(each.name) != _given(each.name, each.elements):
            machine.problems.append(f"{each.name} is an input, and was overwritten")
    return SimulatedRun(problems=tuple(machine.problems), outputs=outputs, peak_bytes=machine.peak_bytes)


def faults(script: Script, program: Program) -> tuple[str, ...]:
    """What is wrong with a Program; empty when it gives what the graph gives, in every order that the plan allows."""
    outcome = run(script, program)
    wrong = (name for name, value in plain(script.graph).items() if outcome.outputs.get(name) != value)
    return (
        *unordered(script, program),
        *outcome.problems,
        *(f"{name} is not what the graph computes" for name in wrong),
    )


class _Machine:
    """Both memories, by buffer."""

    def __init__(self, script: Script, program: Program) -> None:
        self.problems: list[str] = []
        self._graph = script.graph
        self.places = _Places(program)
        self._contents: dict[str, Content] = {}
        for each in program.buffers:
            if each.part_of is None:
                self._contents[each.name] = (
                    _given(each.name, each.elements)
                    if each.role is Role.INPUT
                    else contents.poison(0, int(each.elements))
                )
        self.peak_bytes = 0
        self._entries = called(script).entries
        self._kernels = {kernel.name: kernel for kernel in script.calls}
        self._ways = row_wise_kernels(script.graph)
        self._calls = {op.name: op for op in script.ops if isinstance(op, KernelCall)}
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
        self._pages = {atom: set[bool]() for name in managed for atom in self.places.atoms(self.places.of(name))}
        """Of managed memory, on which sides (True: the device) its pages are."""

    def accesses(self, step: Step) -> Iterator[tuple[Place, bool]]:
        """What a step touches, and whether it writes there."""
        if isinstance(step, Launch | HostCall):
            read, written = self._operands(step)
            yield from ((place, False) for place in read)
            yield from ((place, True) for place in written)
        elif isinstance(step, Alloc | Free):
            yield from ((self.places.of(name), True) for name in self._arena.get(step.arena, ()))
        elif isinstance(step, Prefetch):
            yield from ((self.places.of(name), True) for name in step.buffers)
        for source, target in step.messages:
            yield self.places.of(source), False
            yield self.places.of(target), True

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
        name, mark, _ = step.name.partition("#")
        kernel = self._kernels[name]
        how = self._ways[kernel.origin or kernel.name]
        read, written = self._operands(step)
        rows = None
        if mark and isinstance(how, RowWise):
            rows = self._rows(step.name, kernel, how, (*read, *written))
        for place in (*read, *written):
            self._check(step.name, place.buffer)
            away = [atom for atom in self.places.atoms(place) if not self._pages.get(atom, {isinstance(step, Launch)})
                    & {isinstance(step, Launch)}]  # fmt: skip
            if away:
                self.problems.append(f"{step.name} touches {place.named}, whose pages are on the other side")
        values = [self._read(place) for place in read]
        for place, content in zip(read, values, strict=True):
            if contents.poisoned(content):
                self.problems.append(f"{step.name} reads {place.named} before anything was written there")
        scalars = tuple(each for each in step.arguments if not isinstance(each, Pointer))
        entry = self._entries[name] if mark else Entry(source=step.source, entry=step.entry, scalars=scalars)
        results = _computed(self._graph, kernel, entry, how, values, rows)
        for place, content in zip(written, results, strict=True):
            self._write(place, content)
            for atom in self.places.atoms(place):
                if atom in self._pages:
                    self._pages[atom] = {isinstance(step, Launch)}

    def _operands(self, step: Launch | HostCall) -> tuple[list[Place], list[Place]]:
        """(what is read, what is written) by a call, for each of the kernel's own operands."""
        name, mark, _ = step.name.partition("#")
        kernel = self._kernels[name]
        how = self._ways[kernel.origin or name]
        split = how.split if mark and isinstance(how, RowWise) else ()
        pointers = [each.buffer for each in step.arguments if isinstance(each, Pointer)]
        names = (*kernel.read_operands, *kernel.write_operands)
        if isinstance(kernel.body, FusedBody):
            passed = [each.buffer for each in kernel.body.fragment.launch.arguments if isinstance(each, Pointer)]
            named = dict(zip(passed, pointers, strict=True))
            pointers = [named[name] for name in names]
        found = []
        for operand, pointer in zip(names, pointers, strict=True):
            place = self.places.of(pointer)
            if operand not in split:
                # One pointer may be to several pieces, of which it names the first.
                place = replace(place, end=place.first + int(self._graph.operand(operand).elements))
            found.append(place)
        return found[: len(kernel.read_operands)], found[len(kernel.read_operands) :]

    def _rows(self, step: str, kernel: GraphKernel, how: RowWise, places: Sequence[Place]) -> tuple[int, int]:
        """The rows of a chunk, which all operands that are cut have to agree on."""
        found: set[tuple[float, float]] = set()
        names = (*kernel.read_operands, *kernel.write_operands)
        for name, place in zip(names, places, strict=True):
            if name in how.split:
                whole = self.places.operand(self._graph, self._calls[kernel.name], name)
                width = int(self._graph.operand(name).elements) // int(how.rows)
                found.add(((place.first - whole) / width, (place.end - whole) / width))
        first, end = min(found)
        if len(found) > 1 or first % 1 or end % 1 or not 0 <= first < end <= int(how.rows):
            self.problems.append(f"{step} is passed other rows of one operand than of another")
            return 0, int(how.rows)
        return int(first), int(end)

    def _copy(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        moved = [(target, self._read(self.places.of(source))) for source, target in pairs]
        for (source, target), (_, content) in zip(pairs, moved, strict=True):
            self._check(name, source)
            self._check(name, target)
            wanted = self._wanted.get(name.partition("#")[0])
            matters = wanted is None or source.partition("#")[0].partition("@")[0] in wanted
            if matters and contents.poisoned(content):
                self.problems.append(f"{name} copies {source} before anything was written there")
        for target, content in moved:
            self._write(self.places.of(target), content)

    def _prefetch(self, step: Prefetch) -> None:
        """A message in vain is as wrong as one that is missing."""
        for name in step.buffers:
            atoms = self.places.atoms(self.places.of(name))
            if any(step.to_device in self._pages[atom] for atom in atoms):
                self.problems.append(f"{step.name} moves the pages of {name}, which are there already")
            for atom in atoms:
                self._pages[atom].add(step.to_device)

    def _allocation(self, step: Alloc | Free) -> None:
        members = self._arena.get(step.arena, [])
        for name in members:
            self._contents[name] = contents.poison(0, self.places.of(name).end)
        if isinstance(step, Alloc):
            self._missing -= set(members)
            self._live_bytes += self._bytes[step.arena]
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        else:
            self._missing |= set(members)
            self._live_bytes -= self._bytes[step.arena]

    def _check(self, step: str, name: str) -> None:
        if self.places.of(name).buffer in self._missing:
            self.problems.append(f"{step} touches {name}, which is not allocated then")

    def content(self, name: str) -> Content:
        """What a buffer holds."""
        return self._read(self.places.of(name))

    def _read(self, place: Place) -> Content:
        return contents.sliced(self._contents[place.buffer], place.first, place.end)

    def _write(self, place: Place, content: Content) -> None:
        wanted = contents.sliced(content, 0, place.end - place.first)
        self._contents[place.buffer] = contents.put(self._contents[place.buffer], place.first, wanted)


# --- where things lie -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Elements of a buffer that is part of no other. `named`: as what a step names them."""

    named: str
    buffer: str
    first: int
    end: int


class _Places:
    """Of each buffer, whose elements it is."""

    def __init__(self, program: Program) -> None:
        wholes = {each.name: each for each in program.buffers}
        self._places: dict[str, Place] = {}
        bounds: dict[str, set[int]] = {}
        for each in program.buffers:
            whole = wholes[each.part_of or each.name]
            first = (int(each.offset_bytes) - int(whole.offset_bytes)) // DTYPES[whole.dtype].bytes
            place = Place(each.name, whole.name, first, first + int(each.elements))
            self._places[each.name] = place
            bounds.setdefault(whole.name, set()).update((place.first, place.end))
        self._bounds = {name: sorted(each) for name, each in bounds.items()}

    def of(self, name: str) -> Place:
        return self._places[name]

    def atoms(self, place: Place) -> list[tuple[str, int]]:
        """What no part divides further, of a place."""
        bounds = self._bounds[place.buffer]
        inside = bounds[bisect.bisect_left(bounds, place.first) : bisect.bisect_left(bounds, place.end)]
        return [(place.buffer, each) for each in inside]

    def operand(self, graph: Graph, call: KernelCall, name: str) -> int:
        """Where an operand of a call begins in its buffer."""
        cell = call.cells(graph, name)[0]
        far = f"{cell}@device"
        return self._places[far if call.kernel.device and far in self._places else cell].first


# --- what nothing orders --------------------------------------------------------------------------------


def unordered(script: Script, program: Program) -> Iterator[str]:
    """A line for each two steps of which one writes what the other touches, and that streams and `after` leave in any
    order."""
    machine = _Machine(script, program)
    before: dict[str, int] = {}
    last: dict[int, str] = {}
    bit = {step.name: 1 << number for number, step in enumerate(program.steps)}
    touched: dict[tuple[str, int], list[tuple[str, bool]]] = {}
    seen: set[tuple[str, str]] = set()
    for step in program.steps:
        known = 0
        for name in (*step.after, *([last[step.stream]] if step.stream in last else ())):
            known |= before[name] | bit[name]
        before[step.name], last[step.stream] = known, step.name
        for place, writing in machine.accesses(step):
            for atom in machine.places.atoms(place):
                others = touched.setdefault(atom, [])
                for other, wrote in others:
                    if (wrote or writing) and not known & bit[other] and (other, step.name) not in seen:
                        seen.add((other, step.name))
                        if other != step.name:
                            yield f"nothing orders {other} and {step.name}, which both touch {place.named}"
                others.append((step.name, writing))


def _given(name: str, elements: int) -> Content:
    return (Elements(f"input {name}", 0, int(elements)),)
