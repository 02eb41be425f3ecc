"""A loop as statements: each thread takes the elements of the axes that are its own through all trips, their state in
its registers.

    for (trips = 0; trips < 1000; trips += 8)
        for (ahead = 0; ahead < 8; ++ahead)      read_0[ahead] = xs[trips + ahead];
        for (at = 0; at < 8; ++at)               next_0 = f(state_0, read_0[at]); ys[trips + at] = ...;

The reads of several trips are under way together: a trip cannot begin before the one ahead of it has ended, and there
are few threads. What stays inside a thread is an array, and all loops over it are written out, so that its indices are
known and it lies in registers. What does not depend on the trip stands before the loop, as far as its index is known
there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis.indexing import Index, linear, number
from fusiond_stitching.analysis.plan import Stage
from fusiond_stitching.codegen.elemental import Elemental, Indices, Step, loop, type_of
from fusiond_stitching.codegen.indexed import start_index
from fusiond_stitching.codegen.loop_nests import STEPS, LoopNests
from fusiond_stitching.codegen.reduction import WARP, shuffled
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.graph import HloInstruction
from fusiond_stitching.frontend.scan_loop import Loop
from fusiond_stitching.frontend.scans import MOST_HELD

TRIPS_AT_ONCE = 16
READ_AHEAD = 32
WRITTEN_OUT = 80
"""At most so many trips are written out one after the other, with so many reads, and so many numbers of the state."""


class Scans(LoopNests):
    """Writes the block program of a loop."""

    def _stage(self, scope: Scope, stage: Stage) -> None:
        loop = self.module[stage.results[0].instruction].attributes["loop"]
        scope.comment(f"{loop.name}: {loop.trips} trips of {loop.body.name}")
        scope.function.unrolled = MOST_HELD
        with (
            self._loop(scope, stage.chunk.size) as (inner, element),
            self._valid(inner, stage, element) as (body, indices),
        ):
            own = [body.variable("own", body.index(each), dim) for each, dim in zip(indices, loop.axes, strict=True)]
            results = {each.instruction: self.module[each.instruction] for each in stage.results}
            _Thread(self, results, body, tuple(own)).write()

    def operand(self, scope: Scope, name: str, indices: Indices) -> Code:
        """An element of what the loop begins with, or reads."""
        return self._elemental.value(scope, name, indices)

    def put(self, scope: Scope, result: str, indices: Indices, value: Code) -> None:
        """Puts an element of a result into its buffer."""
        self.store(scope, result, linear(indices, self.module[result].dims), value)


class _ScanBody(Elemental):
    """Elements of a trip: what is a register or comes from outside of the loop is found there."""

    def __init__(self, trips: Trips) -> None:
        super().__init__(trips.loop.body, trips.writer, STEPS)
        self._trips = trips

    def start(self, start: str, most: int) -> Index | None:
        """Where it is known of each trip, and needs not be brought into 0 .. most."""
        number = self._trips.number(start)
        return number if number is not None and number.low >= 0 and number.high <= most else None

    def _element(self, scope: Scope, name: str, indices: Indices) -> Step:
        found = self._trips.known(scope, name, indices)
        if found is not None:
            return found
        return (yield from super()._element(scope, name, indices))


class Trips(ABC):
    """What is alike in all ways to run a loop."""

    def __init__(self, writer: Scans, results: Mapping[str, HloInstruction], scope: Scope) -> None:
        first = next(iter(results.values()))
        self.writer = writer
        self.scope = scope
        self.loop: Loop = first.attributes["loop"]
        self.results = {each.attributes["result"]: name for name, each in results.items()}
        self.outside = dict(zip(self.loop.inputs, first.operands, strict=True))
        self.trip = number(0)
        self.body = _ScanBody(self)

    def number(self, name: str) -> Index | None:
        """A whole number that is known of each trip."""
        if name not in self.loop.numbers:
            return None
        first, step = self.loop.numbers[name]
        return self.trip * step + first

    def known(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        """A value of the body that is not computed where it is read."""
        number = self.number(name)
        if number is not None:
            kind = type_of(self.loop.body[name])
            return scope.declare(kind, "number", cpp("({})({})", kind.value, scope.index(number)))
        found = self.held(scope, name, indices)
        if found is not None or name not in self.outside:
            return found
        home = self.scope if self.scope.knows(symbol for each in indices for symbol in each.symbols) else scope
        return self.operand(home, self.outside[name], indices)

    @abstractmethod
    def held(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        """What is at hand of this trip's values."""

    def operand(self, scope: Scope, name: str, indices: Indices) -> Code:
        """An element of a value outside of the loop."""
        return self.writer.operand(scope, name, indices)

    def laid(self, scope: Scope, name: str, indices: Indices) -> Indices:
        """Where an element of a trip's part of a stacked result lies in the whole of it."""
        _, update, *starts = self.loop.body.operands(self.loop.body[name])
        place = list(indices)
        for at, (dim, size, start) in enumerate(zip(self.loop.body[name].dims, update.dims, starts, strict=True)):
            if dim != size:
                first = self.body.start(start.name, dim - size)
                if first is None:
                    value = self.body.value(scope, start.name, ())
                    first = start_index(scope, type_of(start), value, dim - size)
                place[at] = first + indices[at]
        return tuple(place)


class _Thread(Trips):
    """What one thread does for one element of the axes."""

    def __init__(self, writer: Scans, results: Mapping[str, HloInstruction], scope: Scope, indices: Indices) -> None:
        super().__init__(writer, results, scope)
        self.indices = indices
        self.registers: dict[str, tuple[Code, tuple[int | None, ...]]] = {}
        """Carries, and what comes after them -> the variable and the dimensions that stay inside."""
        self.read: dict[str, Code] = {}  #: What has been read ahead -> the element of this trip

    def held(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        if name in self.read and indices == self._own(name):
            return self.read[name]
        if name in self.registers:
            variable, places = self.registers[name]
            return self._element_of(scope, variable, name, places, indices)
        return None

    def _element_of(
        self, scope: Scope, variable: Code, name: str, places: tuple[int | None, ...], indices: Indices
    ) -> Code:
        inside = [at for at, axis in enumerate(places) if axis is None]
        dims = tuple(self.loop.body[name].dims[at] for at in inside)
        if math.prod(dims) == 1:
            return variable
        return cpp("{}[{}]", variable, scope.index(linear(tuple(indices[at] for at in inside), dims)))

    def write(self) -> None:
        begun = {name: self._begin(name) for name in self.loop.carries}
        self.registers = dict(begun)
        trips, together = self.loop.trips, self._together()
        first = self.scope.function.fresh("trips")
        header = cpp("for (int {} = 0; {} < {}; {} += {})", first, first, trips, first, together)
        with self.scope.block(header) as scope:
            base = scope.known(first, trips)
            read = self._read_ahead(scope, base, together)
            with self._turn(scope, "at", together) as (inner, at):
                if trips % together:
                    inner.line(cpp("if ({} >= {}) break;", inner.index(base + at), trips))
                self.trip = inner.variable("trip", inner.index(base + at), trips)
                self.read = {name: cpp("{}[{}]", variable, inner.index(at)) for name, variable in read.items()}
                self._inner_loops(inner)
                after = {name: self._next(inner, name, last) for name, last in self.loop.carries.items()}
                for each in self.loop.stacked:
                    if each in self.results:  # else nobody reads it any more
                        self._stacked(inner, each)
                for name, variable in after.items():
                    self._assigned(inner, name, begun[name][0], variable)
        self.registers = begun
        for name in self.loop.carries:
            if name in self.results:
                self._stored(name)

    def _inner_loops(self, scope: Scope) -> None:
        """The loops of a trip: their results are registers, like the state."""
        loops: dict[str, dict[str, HloInstruction]] = {}
        for each in self.loop.body.instructions:
            if each.opcode == "scan":
                loops.setdefault(each.attributes["loop"].name, {})[each.name] = each
        for results in loops.values():
            _InnerLoop(self, results, scope).write()

    def _together(self) -> int:
        """How many trips are written out one after the other."""
        if any(each.opcode == "scan" for each in self.loop.body.instructions):
            return 1
        held = sum(self.loop.inside(name) for name in self.loop.carries)
        found = 1
        while (
            2 * found <= min(TRIPS_AT_ONCE, self.loop.trips)
            and 2 * found * held <= WRITTEN_OUT
            and 2 * found * len(self.loop.reads) <= READ_AHEAD
        ):
            found *= 2
        return found

    def _read_ahead(self, scope: Scope, base: Index, together: int) -> dict[str, Code]:
        """What the next trips read, each an array. Behind the last trip, what that has read is read again."""
        found: dict[str, Code] = {}
        if together == 1:
            return found
        for name in self.loop.reads:
            found[name] = scope.function.fresh("read")
            scope.line(cpp("{} {}[{}];", type_of(self.loop.body[name]).value, found[name], together))
        with self._turn(scope, "ahead", together) as (inner, ahead):
            last = self.loop.trips - 1
            place = inner.index(base + ahead)
            whole = self.loop.trips % together == 0
            trip = place if whole else cpp("{} < {} ? {} : {}", place, last, place, last)
            self.trip = inner.variable("trip", trip, self.loop.trips)
            for name, variable in found.items():
                value = self.body.value(inner, name, self._own(name))
                inner.line(cpp("{}[{}] = {};", variable, inner.index(ahead), value))
        return found

    @contextmanager
    def _turn(self, scope: Scope, hint: str, count: int) -> Iterator[tuple[Scope, Index]]:
        """A loop over the trips that are written out; nothing moves out of it."""
        if count == 1:
            with scope.block(Code("")) as inner:
                yield inner, number(0)
            return
        name = scope.function.fresh(hint)
        header = cpp('_Pragma("unroll") for (int {} = 0; {} < {}; ++{})', name, name, count, name)
        with scope.block(header) as inner:
            yield inner, inner.known(name, count)

    def _own(self, name: str) -> Indices:
        """The one index of a value that this thread has."""
        places = self.loop.axis_of[name]
        return tuple(self.indices[axis] if axis is not None else number(0) for axis in places)

    @contextmanager
    def _inside(self, scope: Scope, name: str) -> Iterator[tuple[Scope, Indices]]:
        """The elements of a value that this thread has: the axes' index, and loops over what stays inside."""
        dims, places = self.loop.body[name].dims, self.loop.axis_of[name]
        yield from _nested(scope, [self.indices[axis] if axis is not None else dim
                                   for dim, axis in zip(dims, places, strict=True)])  # fmt: skip

    def _array(self, scope: Scope, name: str, hint: str) -> Code:
        variable = scope.function.fresh(hint)
        scope.line(cpp("{} {}[{}];", type_of(self.loop.body[name]).value, variable, self.loop.inside(name)))
        return variable

    def _begin(self, name: str) -> tuple[Code, tuple[int | None, ...]]:
        places = self.loop.axis_of[name]
        variable = self._array(self.scope, name, "state") if self.loop.inside(name) > 1 else Code("")
        with self._inside(self.scope, name) as (scope, indices):
            value = self.operand(scope, self.outside[name], indices)
            if variable:
                scope.line(cpp("{} = {};", self._element_of(scope, variable, name, places, indices), value))
            else:
                variable = scope.mutable(type_of(self.loop.body[name]), "state", value)
        return variable, places

    def _next(self, scope: Scope, name: str, last: str) -> Code:
        """What a carry is after the trip; the state stays as it is until all of them are known."""
        places = self.loop.axis_of[name]
        variable = self._array(scope, name, "next") if self.loop.inside(name) > 1 else Code("")
        with self._inside(scope, name) as (inner, indices):
            value = self.body.value(inner, last, indices)
            if variable:
                inner.line(cpp("{} = {};", self._element_of(inner, variable, name, places, indices), value))
            elif value in (state for state, _ in self.registers.values()):  # it is assigned, too
                variable = inner.declare(type_of(self.loop.body[name]), "next", value)
            else:
                variable = value
        self.registers.setdefault(last, (variable, places))
        return variable

    def _assigned(self, scope: Scope, name: str, state: Code, after: Code) -> None:
        places = self.loop.axis_of[name]
        with self._inside(scope, name) as (inner, indices):
            to, source = (self._element_of(inner, each, name, places, indices) for each in (state, after))
            inner.line(cpp("{} = {};", to, source))

    def _stacked(self, scope: Scope, name: str) -> None:
        """A trip's part of a result, at its place."""
        if name in self.loop.groups:
            self._group(scope, name)
            return
        update = self.loop.body[name].operands[1]
        with self._inside(scope, update) as (inner, indices), self._first(inner, update) as body:
            place = self.laid(body, name, indices)
            self.writer.put(body, self.results[name], place, self.body.value(body, update, indices))

    def _group(self, scope: Scope, name: str) -> None:
        """A trip's part that is summed up by neighbouring lanes: whole groups of them have values."""
        value, dimension, size = self.loop.groups[name]
        group = self.loop.body[self.loop.body[name].operands[1]].operands[0]
        summed = self.loop.body[group].attributes["dimensions"]
        kind = type_of(self.loop.body[value])
        with self._inside(scope, value) as (inner, indices):
            total = inner.function.fresh("sum")
            inner.line(cpp("{} {} = {};", kind.value, total, self.body.value(inner, value, indices)))
            step = size // 2
            while step:
                other = shuffled(kind, total, Code(str(step)), size, "xor", lanes=_lanes(size))
                inner.line(cpp("{} += {};", total, other))
                step //= 2
            lane = indices[dimension] % size
            with inner.block(cpp("if ({} == 0)", inner.index(lane))) as first, self._first(first, value) as body:
                split = (*indices[:dimension], indices[dimension] // size, number(0), *indices[dimension + 1 :])
                part = tuple(index for at, index in enumerate(split) if at not in summed)
                self.writer.put(body, self.results[name], self.laid(body, name, (number(0), *part)), Code(total))

    def _stored(self, name: str) -> None:
        """A result that is the state behind the last trip."""
        variable, places = self.registers[name]
        with self._inside(self.scope, name) as (inner, indices), self._first(inner, name) as body:
            value = self._element_of(body, variable, name, places, indices)
            self.writer.put(body, self.results[name], indices, value)

    @contextmanager
    def _first(self, scope: Scope, name: str) -> Iterator[Scope]:
        """Of the threads that all have the same element, the first writes it."""
        own = set(self.loop.axis_of[name])
        first = [cpp("{} == 0", scope.index(each)) for axis, each in enumerate(self.indices) if axis not in own]
        with scope.when(first) if first else nullcontext(scope) as inner:
            yield inner


def _lanes(size: int) -> Code:
    """A mask of the lanes of this lane's group."""
    if size == WARP:
        return Code("0xffffffffu")
    return cpp("{}u << (threadIdx.x & {})", hex((1 << size) - 1), WARP - size)


class _InnerLoop(_Thread):
    """A loop in a trip of another one: what it begins with is computed there, what it gives stays in registers."""

    def __init__(self, outer: _Thread, results: Mapping[str, HloInstruction], scope: Scope) -> None:
        super().__init__(outer.writer, results, scope, outer.indices)
        self.outer = outer
        self.arrays = {name: self._array(scope, name, "rows") for name in self.loop.stacked if name in self.results}

    def operand(self, scope: Scope, name: str, indices: Indices) -> Code:
        return self.outer.body.value(scope, name, indices)

    def write(self) -> None:
        self.scope.comment(f"{self.loop.name}: {self.loop.trips} trips")
        super().write()
        for name, array in self.arrays.items():
            self.outer.registers[self.results[name]] = array, self.loop.axis_of[name]

    def _stacked(self, scope: Scope, name: str) -> None:
        update, places = self.loop.body[name].operands[1], self.loop.axis_of[name]
        with self._inside(scope, update) as (inner, indices):
            value = self.body.value(inner, update, indices)
            place = self._element_of(inner, self.arrays[name], name, places, self.laid(inner, name, indices))
            inner.line(cpp("{} = {};", place, value))

    def _stored(self, name: str) -> None:
        self.outer.registers[self.results[name]] = self.registers[name]


def _nested(scope: Scope, parts: list[Index | int]) -> Iterator[tuple[Scope, Indices]]:
    """Loops over the dimensions that are given as a size, the last innermost."""
    at = next((at for at, each in enumerate(parts) if isinstance(each, int)), None)
    if at is None:
        yield scope, tuple(each for each in parts if not isinstance(each, int))
        return
    size = parts[at]
    assert isinstance(size, int)
    if size == 1:
        yield from _nested(scope, [*parts[:at], number(0), *parts[at + 1 :]])
        return
    with loop(scope, size, "p") as (inner, index):
        yield from _nested(inner, [*parts[:at], index, *parts[at + 1 :]])
