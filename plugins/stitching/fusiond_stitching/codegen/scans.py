"""A loop as statements: each thread takes the elements of the axes that are its own through all trips, their state in
its registers.

    for (trip = 0; trip < 1000; ++trip)      next_0 = f(state_0, xs[trip]); ys[trip] = g(next_0); state_0 = next_0;

What stays inside a thread is an array, and all loops over it are written out, so that its indices are known and it
lies in registers. What does not depend on the trip stands before the loop, as far as its index is known there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from fusiond.codegen.code import Code, cpp, hole, joined
from fusiond_stitching.analysis.indexing import Index, linear, number
from fusiond_stitching.analysis.plan import Stage
from fusiond_stitching.codegen.elemental import Elemental, Indices, Step, loop, type_of
from fusiond_stitching.codegen.indexed import start_index
from fusiond_stitching.codegen.loop_nests import STEPS, LoopNests
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.scan_axes import MOST_HELD
from fusiond_stitching.frontend.scans import Loop

TRIPS_AT_ONCE = 8
"""Trips whose reads may be under way together."""
WRITTEN_OUT = 80
"""Numbers of the state, of so many trips as are written out one after the other."""


class Scans(LoopNests):
    """Writes the block program of a loop."""

    def _stage(self, scope: Scope, stage: Stage) -> None:
        loop = self._module[stage.results[0].instruction].attributes["loop"]
        scope.comment(f"{loop.name}: {loop.trips} trips of {loop.body.name}")
        scope.function.unrolled = MOST_HELD
        with (
            self._loop(scope, stage.chunk.size) as (inner, element),
            self._valid(inner, stage, element) as (body, indices),
        ):
            _Thread(self, stage, loop, body, indices).write()

    def operand(self, scope: Scope, name: str, indices: Indices) -> Code:
        """An element of what the loop begins with, or reads."""
        return self._elemental.value(scope, name, indices)

    def store(self, scope: Scope, result: str, indices: Indices, value: Code) -> None:
        """Puts an element of a result into its buffer."""
        instruction = self._module[result]
        buffer = self._module.buffer_of(result)
        self._pointers[buffer] = True
        written = scope.stored(type_of(instruction), value)
        scope.line(cpp("{}[{}] = {};", hole(buffer), scope.index(linear(indices, instruction.dims)), written))


class _Body(Elemental):
    """Elements of a trip: what is a register or comes from outside of the loop is found there."""

    def __init__(self, thread: _Thread) -> None:
        super().__init__(thread.loop.body, thread.writer, STEPS)
        self._thread = thread

    def _element(self, scope: Scope, name: str, indices: Indices) -> Step:
        found = self._thread.known(scope, name, indices)
        if found is not None:
            return found
        return (yield from super()._element(scope, name, indices))


class _Thread:
    """What one thread does for one element of the axes."""

    def __init__(self, writer: Scans, stage: Stage, loop: Loop, scope: Scope, indices: Indices) -> None:
        self.writer = writer
        self.loop = loop
        self.scope = scope
        self.indices = indices
        self.results = {
            writer._module[each.instruction].attributes["result"]: each.instruction for each in stage.results
        }
        first = writer._module[stage.results[0].instruction]
        self.outside = dict(zip(loop.inputs, first.operands, strict=True))
        self.registers: dict[str, tuple[Code, tuple[int | None, ...]]] = {}
        """Carries, and what comes after them -> the variable and the dimensions that stay inside."""
        self.body = _Body(self)

    def known(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        """A value of the body that is not computed in it."""
        if name in self.registers:
            variable, places = self.registers[name]
            return self._element_of(scope, variable, name, places, indices)
        if name not in self.outside:
            return None
        symbols = frozenset[str]().union(*(each.symbols for each in indices))
        home = self.scope if all(self.scope.knows(each) for each in symbols) else scope
        return self.writer.operand(home, self.outside[name], indices)

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
        held = sum(self._held(name) for name in self.loop.carries)
        unrolled = 1
        while 2 * unrolled <= TRIPS_AT_ONCE and 2 * unrolled * held <= WRITTEN_OUT:
            unrolled *= 2
        trip = self.scope.function.fresh("trip")
        header = cpp("for (int {} = 0; {} < {}; ++{})", trip, trip, self.loop.trips, trip)
        with self.scope.block(cpp('_Pragma("unroll {}") {}', unrolled, header)) as scope:
            after = {name: self._next(scope, name, last) for name, last in self.loop.carries.items()}
            for each in self.loop.stacked:
                self._stacked(scope, each)
            for name, variable in after.items():
                self._assigned(scope, name, begun[name][0], variable)
        for name in self.loop.carries:
            if name in self.results:
                self._stored(name)

    def _held(self, name: str) -> int:
        dims = self.loop.body[name].dims
        return math.prod(dim for dim, axis in zip(dims, self.loop.axis_of[name], strict=True) if axis is None)

    @contextmanager
    def _inside(self, scope: Scope, name: str) -> Iterator[tuple[Scope, Indices]]:
        """The elements of a value that this thread has: the axes' index, and loops over what stays inside."""
        dims, places = self.loop.body[name].dims, self.loop.axis_of[name]
        yield from _nested(scope, [self.indices[axis] if axis is not None else dim
                                   for dim, axis in zip(dims, places, strict=True)])  # fmt: skip

    def _array(self, scope: Scope, name: str, hint: str) -> Code:
        variable = scope.function.fresh(hint)
        scope.line(cpp("{} {}[{}];", type_of(self.loop.body[name]).value, variable, self._held(name)))
        return variable

    def _begin(self, name: str) -> tuple[Code, tuple[int | None, ...]]:
        places = self.loop.axis_of[name]
        variable = self._array(self.scope, name, "state") if self._held(name) > 1 else Code("")
        with self._inside(self.scope, name) as (scope, indices):
            value = self.writer.operand(scope, self.outside[name], indices)
            if variable:
                scope.line(cpp("{} = {};", self._element_of(scope, variable, name, places, indices), value))
            else:
                variable = scope.function.fresh("state")
                scope.line(cpp("{} {} = {};", type_of(self.loop.body[name]).value, variable, value))
        return variable, places

    def _next(self, scope: Scope, name: str, last: str) -> Code:
        """What a carry is after the trip; the state stays as it is until all of them are known."""
        places = self.loop.axis_of[name]
        variable = self._array(scope, name, "next") if self._held(name) > 1 else Code("")
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
        _, update, *starts = self.loop.body.operands(self.loop.body[name])
        whole = self.loop.body[name].dims
        with self._inside(scope, update.name) as (inner, indices), self._first(inner, update.name) as body:
            place = list(indices)
            for at, (dim, size, start) in enumerate(zip(whole, update.dims, starts, strict=True)):
                if dim != size:
                    value = self.body.value(body, start.name, ())
                    place[at] = start_index(body, type_of(start), value, dim - size) + indices[at]
            value = self.body.value(body, update.name, indices)
            self.writer.store(body, self.results[name], tuple(place), value)

    def _stored(self, name: str) -> None:
        """A result that is the state behind the last trip."""
        variable, places = self.registers[name]
        with self._inside(self.scope, name) as (inner, indices), self._first(inner, name) as body:
            value = self._element_of(body, variable, name, places, indices)
            self.writer.store(body, self.results[name], indices, value)

    @contextmanager
    def _first(self, scope: Scope, name: str) -> Iterator[Scope]:
        """Of the threads that all have the same element, the first writes it."""
        own = set(self.loop.axis_of[name])
        missing = [index for axis, index in enumerate(self.indices) if axis not in own]
        if not missing:
            yield scope
            return
        conditions = joined(" && ", [cpp("{} == 0", scope.index(each)) for each in missing])
        with scope.block(cpp("if ({})", conditions)) as inner:
            yield inner


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
