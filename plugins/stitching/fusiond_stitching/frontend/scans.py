"""Scans: loops with a known trip count whose state can be divided among threads or blocks.

    (i, h, ys) = while(0, h0, ys0), i < 1000, body: h' = f(h, xs[i]); ys' = ys with g(h') at i
      -->  h~ = scan(h0, xs), ys~ = scan(h0, xs)          two results of one loop, `Loop` in their attributes

A scan is one launch of ours: each thread runs the whole loop for its own part of the state, which never leaves its
registers, or each block for some rows of it, in its shared memory; what the trips store goes to its place at once.
All other loops stay boundaries, their bodies modules of their own (section 3.1).

Which parts these are follows from the body (`scan_axes`). How often the body runs, and where a trip
stores its part, is found by running the loop's whole numbers alone (`constant_numbers`). What needs no loop leaves it
(`loop_maps`), and what comes behind it element by element joins it (`scan_users`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend import constant_numbers, loop_bodies
from fusiond_stitching.frontend.constant_numbers import BITS
from fusiond_stitching.frontend.graph import HloInstruction, HloModule, reached
from fusiond_stitching.frontend.loop_maps import Maps
from fusiond_stitching.frontend.loop_sums import Sums
from fusiond_stitching.frontend.scan_axes import Axes, ScanPartition, kept_by_blocks, shared_by_threads
from fusiond_stitching.frontend.scan_loop import Loop

MOST_HELD = 128  #: Numbers of the state that a thread holds
MOST_WORK = 512  #: Numbers that a thread goes through in a trip for what it reduces


@dataclass(frozen=True, slots=True)
class While:
    """A loop that was met: its parts as modules, whose parameters are its operands in order."""

    body: HloModule
    condition: HloModule


def converted(
    instructions: Mapping[str, HloInstruction],
    foreign: Mapping[str, str],
    outputs: Sequence[str],
    loops: Mapping[str, While],
) -> tuple[Mapping[str, HloInstruction], Mapping[str, str]]:
    """(instructions, foreign) with all loops of `loops` (by their calls) as scans that can be."""
    found, left = dict(instructions), dict(foreign)
    read = {operand for each in instructions.values() for operand in each.operands} | set(outputs)
    for call, loop in loops.items():
        results = _results_of(call, instructions)
        live = {each.attributes["result"]: each for each in results if each.name in read}
        if not live:
            continue
        known = _Recognised(call, loop, found, live)
        maps = known.mapped(outputs)
        made = known.loop() if known.live else None
        if isinstance(made, str):
            left |= {each.name: f"while {call!r}: {made}" for each in results}
            continue
        found |= {**maps, **known.before}
        for each in (*results, *known.laid):
            left.pop(each.name, None)
            if each.name in maps or each.name in known.before:
                continue
            if each.name not in read and each not in known.laid:
                del found[each.name]
            elif (instead := _result(loop, known, each, made)) is not None:
                found[each.name] = instead
    return found, left


def _results_of(call: str, instructions: Mapping[str, HloInstruction]) -> list[HloInstruction]:
    return [each for each in instructions.values() if each.opcode == "while" and each.attributes["call"] == call]


def _result(
    loop: While, known: _Recognised, each: HloInstruction, made: tuple[list[str], Loop | None] | None
) -> HloInstruction | None:
    """What stands for a result of a loop that is a scan now, or of one that is not needed any more."""
    place = each.attributes["result"]
    laid = each in known.laid
    if not laid and loop.body.outputs[place] == loop.body.parameters[place]:
        return each.becoming("copy", each.operands[place])
    state, scan = made or ([], None)
    if scan is None:
        return None
    result = _own(known.call, known.body.outputs[place])
    if not laid and result not in scan.stacked:
        result = _own(known.call, loop.body.parameters[place])
    return each.becoming("scan", *state, loop=scan, result=result)


def _own(loop: str, name: str) -> str:
    return f"{loop}@{name}"


@dataclass(frozen=True, slots=True)
class _State:
    """The parts of a loop's state that its launch has to do with, by their numbers."""

    needed: tuple[int, ...]  #: Of which the live results are computed
    carried: tuple[int, ...]  #: Those that a trip changes, in the order in which it computes them
    stacked: tuple[int, ...]  #: Those that are stored piece by piece
    steps: Mapping[str, tuple[int, int]]  #: Whole numbers that grow by the same amount from trip to trip: (first, step)


class _Recognised:
    def __init__(
        self, call: str, given: While, outside: Mapping[str, HloInstruction], live: dict[int, HloInstruction]
    ) -> None:
        self.call = call
        self.body, self.condition = loop_bodies.reshaped(given.body), given.condition
        self.live = live
        self.operands = [outside[each] for each in next(iter(live.values())).operands]
        self.outside = outside
        self.run = self._run()
        self.before: Mapping[str, HloInstruction] = {}  #: What has been taken out of the loop, by name
        self.laid: Sequence[HloInstruction] = ()  #: Results that the loop did not have
        self.groups: Mapping[str, tuple[str, int, int]] = {}  #: As those of the loop
        self.shared: Sequence[str] = ()  #: What many threads would compute alike

    def _unknown(self) -> str:
        for part in (self.body, self.condition):
            if part.foreign:
                return f"{next(iter(part.foreign.values()))} in it"
        return "how often it runs is not known beforehand"

    def _run(self) -> tuple[int, Mapping[str, Sequence[int]]] | None:
        """(trips, the whole numbers of each); None where that is not known before, or there is more in the body than
        a thread can do."""
        body, condition = self.body, self.condition
        if not len(body.parameters) == len(body.outputs) == len(condition.parameters) == len(self.operands):
            return None
        if body.foreign or condition.foreign or any(0 in each.dims for each in body.instructions):
            return None
        return constant_numbers.loop_run(body, condition, self._begin())

    def mapped(self, outputs: Sequence[str]) -> Mapping[str, HloInstruction]:
        """The results that are maps, and what these are made of, by name; they are no longer among the live ones. (One
        that is stored anyway stays: the loop has its value at hand.)"""
        if self.run is None:
            return {}
        trips, numbers = self.run
        body = self.body
        fixed = self._fixed()
        # A state is stored before or after each trip; where both are, the earlier ones follow from the later ones.
        states = {name for pair in zip(body.parameters, body.outputs, strict=True) for name in pair} - fixed.keys()
        laid: dict[str, tuple[HloInstruction, HloInstruction]] = {}
        others: dict[int, HloInstruction] = {}
        stacked = {at: body[body.outputs[at]] for at in self.live if self._stacks(at, trips, numbers)}
        state_of = {at: self._behind_reshapes(last.operands[1]) for at, last in stacked.items()}
        after = dict(zip(body.parameters, body.outputs, strict=True))
        for at, state in state_of.items():
            follows = after.get(state) in state_of.values() and trips > 1 and self.live[at].name not in outputs
            if state in states and state not in laid and state not in numbers and not follows:
                laid[state] = (stacked[at], self.live[at])
            elif self.live[at].name not in outputs:
                others[at] = self.live[at]
        maps = self._maps(laid, self.call)
        for at, result in others.items():
            if maps.result(body[body.outputs[at]], result):
                self.live.pop(at)
        return maps.made

    def _fixed(self) -> dict[str, HloInstruction]:
        """What no trip changes: the body's parameter -> the instruction outside."""
        state = zip(self.body.parameters, self.body.outputs, self.operands, strict=True)
        return {name: source for name, last, source in state if name == last}

    def _maps(self, laid: Mapping[str, tuple[HloInstruction, HloInstruction]], prefix: str) -> Maps:
        assert self.run is not None
        trips, numbers = self.run
        begin = dict(zip(self.body.parameters, self.operands, strict=True))
        return Maps(prefix, self.body, self._fixed(), numbers, trips, laid, begin)

    def _behind_reshapes(self, name: str) -> str:
        """What a reshape is of; a state that is one itself stays."""
        while self.body[name].opcode == "reshape" and name not in self.body.outputs:
            name = self.body[name].operands[0]
        return name

    def loop(self) -> tuple[list[str], Loop | None] | str:
        """(what the state begins with, as far as it is read, the loop); why it stays a boundary."""
        if self.run is None:
            return self._unknown()
        found = self._by(threads=True)
        if isinstance(found, str) and self._take_out_sums():
            found = self._by(threads=True) if self.live else ([], None)
        if isinstance(found, str):
            other = copy.copy(self)
            other.live = dict(self.live)
            if other._take_out_sums(groups=True) and not isinstance(made := other._by(threads=True), str):
                self.__dict__.update(other.__dict__)
                found = made
        if isinstance(found, str):
            self._take_out([each for each in self.body.instructions if each.opcode == "dot"])
            self._lay_out_matrices()
            return self._by(threads=False)
        shared = [self.body[name] for name in self.shared]
        if shared and self._take_out(shared):
            return self._by(threads=True)
        return found

    def _by(self, *, threads: bool) -> tuple[list[str], Loop | None] | str:
        """The loop, run by threads or by blocks."""
        assert self.run is not None
        state = self._state(*self.run)
        if isinstance(state, str):
            return state
        body = self.body
        carries = {body.parameters[at]: body.outputs[at] for at in sorted(state.carried)}
        axes = Axes(
            body, carries, [body[body.outputs[at]] for at in state.stacked], frozenset(self.run[1]), self.groups
        )
        inner = [name for loop in loop_bodies.inner_loops(body) for name in loop.reads]
        places = axes.found([*self._slices(state.steps), *inner], by_block=not threads)
        if places is None or (threads and (places.held > MOST_HELD or places.work > MOST_WORK)):
            return "its state cannot be divided among threads"
        self.shared = shared_by_threads(axes, places, body.by_name) if threads else ()
        kept = () if threads else kept_by_blocks(axes, places)
        if not threads and loop_bodies.inner_loops(body):
            kept = "there is a loop in it, which needs more than threads that keep to themselves"
        if isinstance(kept, str):
            return kept
        axis_of = {**places.of, **{name: axes.of(name) for name in kept}}
        return [self.operands[at].name for at in state.needed], self._made(state, places, axis_of, threads, kept)

    def _state(self, trips: int, numbers: Mapping[str, Sequence[int]]) -> _State | str:
        """What a loop has to carry; why it stays a boundary."""
        body = self.body
        stacked = {at for at in self.live if self._stacks(at, trips, numbers)}
        steps = {name: step for name, values in numbers.items() if (step := constant_numbers.steps(values)) is not None}
        needed = {at for at in self._needed(stacked) if at in self.live or body.parameters[at] not in steps}
        if stacked & needed:
            return "its trips read what other trips have stored"
        carried = [at for at in needed if body.outputs[at] != body.parameters[at]]
        carried.sort(key=lambda at: (body.number[body.outputs[at]], at))
        return _State(tuple(sorted(needed)), tuple(carried), tuple(sorted(stacked)), steps)

    def _made(
        self,
        state: _State,
        places: ScanPartition,
        axis_of: Mapping[str, tuple[int | None, ...]],
        threads: bool,
        kept: Sequence[str],
    ) -> Loop:
        assert self.run is not None
        body = self.body
        axis_of = frozen({self._named(name): found for name, found in axis_of.items()})

        def own(name: str) -> str:
            return _own(self.call, name)

        def by_these(loop: Loop) -> Loop:
            reads = tuple(each for each in loop.reads if each in places.reads)
            return dataclasses.replace(
                loop, axes=places.sizes, axis_of=axis_of, reads=reads, by_block=False, kept=(), before=frozenset()
            )

        return Loop(
            name=self.call,
            body=loop_bodies.divided(loop_bodies.renamed(body, own), by_these),
            trips=self.run[0],
            axes=places.sizes,
            axis_of=axis_of,
            by_block=not threads,
            kept=tuple(map(own, kept)),
            inputs=tuple(own(body.parameters[at]) for at in state.needed),
            carries=frozen({own(body.parameters[at]): own(body.outputs[at]) for at in state.carried}),
            stacked=tuple(own(body.outputs[at]) for at in state.stacked),
            numbers=frozen({own(name): step for name, step in state.steps.items()}),
            reads=tuple(own(each) for each in places.reads if each in body.by_name),
            before=frozenset(own(each) for each in body.parameters if each.endswith(loop_bodies.BEFORE)),
            groups=frozen({own(each): (own(value), *rest) for each, (value, *rest) in self.groups.items()}),
        )

    def _named(self, name: str) -> str:
        """What a value is called in the loop: those of loops in it keep their names."""
        return _own(self.call, name) if name in self.body.by_name else name

    def _take_out(self, instructions: Iterable[HloInstruction]) -> bool:
        """What of them no trip changes is computed for all trips at once, before the loop; whether there was any."""
        body, trip = self.body, self._counter()
        maps = self._maps({}, f"{self.call}~{len(self.before)}")
        for each in instructions:
            whole = maps.value(each.name)
            if whole is None or trip is None:
                continue
            self.operands.append(maps.made[whole])
            body = loop_bodies.with_read(body, each, maps.made[whole], trip)
        taken = body is not self.body
        self.body, self.before = body, {**self.before, **maps.made}
        return taken

    def _lay_out_matrices(self) -> None:
        """What is the same in all trips and is multiplied in each lies in memory, as neighbouring threads read it: the
        dimension that is summed up first."""
        body = self.body
        maps = self._maps({}, f"{self.call}~{len(self.before)}")
        for dot in [each for each in body.instructions if each.opcode == "dot" and not each.attributes["lhs_batch"]]:
            for place, side in enumerate(("lhs_contracting", "rhs_contracting")):
                matrix, summed = body[dot.operands[place]], dot.attributes[side]
                turned = len(matrix.dims) == 2 and summed == (1,)
                if not maps.alike(matrix.name) or (matrix.opcode == "parameter" and not turned):
                    continue
                outside = maps.plain(matrix.name)
                assert outside is not None
                dims = matrix.dims
                if turned:
                    dims, summed = dims[::-1], (0,)
                    outside = maps.add("transpose", matrix.dtype, dims, outside, dimensions=(1, 0))
                self.operands.append(maps.made.get(outside) or self.outside[outside])
                body = loop_bodies.with_state(body, f"{dot.name}~{place}", dataclasses.replace(matrix, dims=dims))
                operands = list(body[dot.name].operands)
                operands[place] = body.parameters[-1]
                turned_dot = body[dot.name].becoming("dot", *operands, **{**body[dot.name].attributes, side: summed})
                body = loop_bodies.with_instruction(body, turned_dot)
        self.body, self.before = body, {**self.before, **maps.made}

    def _take_out_sums(self, *, groups: bool = False) -> bool:
        """What is only added up is summed behind the loop; whether there was any. `groups`: what all threads sum up,
        by neighbours in it."""
        trip = self._counter()
        if trip is None:
            return False
        maps = self._maps({}, f"{self.call}~{len(self.before)}")
        sums = Sums(self.body, self.operands, trip, maps)
        ways = (sums.take_groups,) if groups else (sums.take, sums.take_product)
        taken = [at for at, result in self.live.items() if any(way(at, result) for way in ways)]
        if not taken:
            return False
        self.groups = sums.groups
        self.body, self.operands = sums.body, sums.operands
        self.before = {**self.before, **maps.made, **sums.totals}
        for at in taken:
            del self.live[at]
        laid = {at: each.becoming("while", result=at) for at, each in sums.laid.items()}
        self.laid = (*self.laid, *laid.values())
        self.live |= laid
        return True

    def _counter(self) -> str | None:
        """A whole number of the body that is 0 in the first trip, then 1, 2, ..."""
        assert self.run is not None
        trips, numbers = self.run
        body = self.body
        return next((name for name, values in numbers.items() if list(values) == list(range(trips))
                     and body[name].dtype in BITS and not body[name].dims), None)  # fmt: skip

    def _slices(self, steps: Mapping[str, tuple[int, int]]) -> list[str]:
        """The dynamic-slices of what no trip changes, at places that are known of each trip."""
        fixed = self._fixed()
        return [
            each.name
            for each in self.body.instructions
            if each.opcode == "dynamic-slice"
            and each.operands[0] in fixed
            and all(start in steps for start in each.operands[1:])
        ]

    def _begin(self) -> dict[str, int]:
        """The whole numbers of the state that are known before the loop: body's parameter -> value."""
        found = {}
        for name, source in zip(self.body.parameters, self.operands, strict=True):
            while source.opcode in ("copy", "reshape", "broadcast") and source.elements == 1:
                source = self.outside[source.operands[0]]
            if source.opcode == "constant" and source.dtype in BITS and not self.body[name].dims:
                found[name] = int(source.attributes["values"][0])
        return found

    def _stacks(self, at: int, trips: int, numbers: Mapping[str, Sequence[int]]) -> bool:
        """Whether a member of the state is stored piece by piece, the whole of it, and not read meanwhile."""
        body = self.body
        parameter, last = body.parameters[at], body[body.outputs[at]]
        if last.opcode != "dynamic-update-slice" or last.operands[0] != parameter or body.users[last.name]:
            return False
        if body.users[parameter] != (last.name,) or body.outputs.count(last.name) != 1:
            return False
        update, starts = body[last.operands[1]], last.operands[2:]
        partial = [at for at, (size, dim) in enumerate(zip(update.dims, last.dims, strict=True)) if size != dim]
        if update.name == parameter or len(partial) > 1 or parameter in starts:
            return False
        if not partial:
            return True
        size, dim = update.dims[partial[0]], last.dims[partial[0]]
        if starts[partial[0]] not in numbers:
            return False
        found = sorted(min(max(each, 0), dim - size) for each in numbers[starts[partial[0]]])
        return found == [size * trip for trip in range(trips)] and size * trips == dim

    def _needed(self, stacked: Collection[int]) -> set[int]:
        """The places of the state that the live results are computed of."""
        body = self.body
        after = {name: (last,) for name, last in zip(body.parameters, body.outputs, strict=True)}
        stored = [name for at in stacked for name in body[body.outputs[at]].operands[1:]]
        others = [body.parameters[at] for at in self.live if at not in stacked]
        found = reached([*stored, *others], lambda name: (*body[name].operands, *after.get(name, ())))
        return {at for at, name in enumerate(body.parameters) if name in found}
