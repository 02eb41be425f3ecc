"""Loops that run a known number of times and whose state falls apart into threads: scans.

    (i, h, ys) = while(0, h0, ys0), i < 1000, body: h' = f(h, xs[i]); ys' = ys with g(h') at i
      -->  h~ = scan(h0, xs), ys~ = scan(h0, xs)          two results of one loop, `Loop` in their attributes

A scan is one launch of ours: each thread runs the whole loop for its own part of the state, which never leaves its
registers; what the trips lay down goes to its place at once. All other loops stay boundaries, their bodies modules of
their own (section 3.1).

Which parts these are follows from the body (`_Axes`): dimensions of values that only ever meet element by element are
one axis, and each index of it a thread's; what is reduced, shifted or cut on the way stays inside a thread, and must be
short. How often the body runs, and where a trip lays down its part, is found by running the loop's whole numbers alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusiond.keys import content_key
from fusiond.model import frozen
from fusiond_stitching.frontend.graph import ELEMENTWISE, Instruction, Module, topological

OPCODE = "scan"
MOST_TRIPS = 1 << 16
"""How long the whole numbers of a loop are followed."""
MOST_HELD = 128
"""Numbers of the state that a thread holds."""
MOST_WORK = 512
"""Numbers that a thread goes through in a trip for what it reduces."""
_BITS = {"s8": 8, "s16": 16, "s32": 32, "s64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "pred": 1}


@dataclass(frozen=True, kw_only=True, repr=False)
class Loop:
    """A loop as one launch runs it."""

    name: str
    body: Module
    """One trip. No name in it is one of the module round it."""
    trips: int
    inputs: tuple[str, ...]
    """The body's parameter for each operand of the results: one of `carries` begins with it, any other is that."""
    carries: Mapping[str, str]
    """Parameter -> what it is after a trip, those first that others are computed of."""
    stacked: tuple[str, ...]
    """The dynamic-update-slices that lay down a trip's part of a result: all trips' parts are the whole of it."""
    axes: tuple[int, ...]
    """A thread for each index of these dims."""
    axis_of: Mapping[str, tuple[int | None, ...]]
    """Of each carry and of the update of each stacked result: dimension -> axis; None stays inside a thread."""

    def __repr__(self) -> str:
        """Equal for loops that do the same, whatever the names are."""
        return f"Loop({self.key})"

    @functools.cached_property
    def key(self) -> str:
        number = self.body.number
        lines = [
            [each.opcode, each.dtype, list(each.dims), [number[o] for o in each.operands], repr(sorted(shown.items()))]
            for each in self.body.instructions
            for shown in [{name: value for name, value in each.attributes.items() if name != "call"}]
        ]
        return content_key(
            [lines, self.trips, [number[each] for each in self.inputs], list(self.axes),
             [[number[a], number[b]] for a, b in self.carries.items()], [number[each] for each in self.stacked]]
        )  # fmt: skip

    def place(self, result: str) -> int:
        """The number of a result's carry or dynamic-update-slice in the body."""
        return self.body.number[result]


@dataclass(frozen=True, slots=True)
class While:
    """A loop that was met: its parts as modules, whose parameters are its operands in order."""

    body: Module
    condition: Module


def converted(
    instructions: Mapping[str, Instruction],
    foreign: Mapping[str, str],
    outputs: Sequence[str],
    loops: Mapping[str, While],
) -> tuple[Mapping[str, Instruction], Mapping[str, str]]:
    """(instructions, foreign) with all loops of `loops` (by their calls) as scans that can be."""
    found, left = dict(instructions), dict(foreign)
    read = {operand for each in instructions.values() for operand in each.operands} | set(outputs)
    for call, loop in loops.items():
        results = [each for each in instructions.values() if each.opcode == "while" and each.attributes["call"] == call]
        live = {each.attributes["result"]: each for each in results if each.name in read}
        made = _Recognised(call, loop, instructions, live).loop() if live else None
        if made is None:
            continue
        state, scan = made
        for each in results:
            left.pop(each.name)
            place = each.attributes["result"]
            given = _own(call, loop.body.outputs[place])
            if each.name not in read:
                found.pop(each.name)
            elif loop.body.outputs[place] == loop.body.parameters[place]:
                found[each.name] = _as(each, "copy", [place], {})
            else:
                result = given if given in scan.stacked else _own(call, loop.body.parameters[place])
                found[each.name] = _as(each, OPCODE, state, {"loop": scan, "result": result})
    return found, left


def _as(result: Instruction, opcode: str, state: Sequence[int], attributes: Mapping[str, object]) -> Instruction:
    operands = tuple(result.operands[at] for at in state)
    return dataclasses.replace(result, opcode=opcode, operands=operands, attributes=frozen(attributes))


def _own(loop: str, name: str) -> str:
    return f"{loop}@{name}"


class _Recognised:
    def __init__(
        self, call: str, given: While, outside: Mapping[str, Instruction], live: Mapping[int, Instruction]
    ) -> None:
        self.call = call
        self.body, self.condition = _reshaped(given.body), given.condition
        self.live = live
        self.operands = [outside[each] for each in next(iter(live.values())).operands]
        self.outside = outside

    def loop(self) -> tuple[list[int], Loop] | None:
        """(the places in the state that are read, the loop); None for one that stays a boundary."""
        body, condition = self.body, self.condition
        count = len(self.operands)
        if not len(body.parameters) == len(body.outputs) == len(condition.parameters) == count:
            return None
        if body.foreign or condition.foreign or any(each.opcode == OPCODE for each in body.instructions):
            return None
        if any(0 in each.dims for each in body.instructions):
            return None
        run = _run(body, condition, self._begin())
        if run is None:
            return None
        trips, numbers = run
        stacked = {at for at in self.live if self._stacks(at, trips, numbers)}
        needed = self._needed(stacked)
        carried = [at for at in sorted(needed) if body.outputs[at] != body.parameters[at]]
        if not carried:
            return None
        if stacked & needed:
            return None
        axes = _Axes(
            body,
            {body.parameters[at]: body.outputs[at] for at in carried},
            [body[body.outputs[at]] for at in sorted(stacked)],
            frozenset(numbers),
        ).found()
        if axes is None:
            return None
        dims, axis_of = axes
        own = functools.partial(_own, self.call)
        order = sorted(carried, key=lambda at: body.number[body.outputs[at]])
        return sorted(needed), Loop(
            name=self.call,
            body=_renamed(body, own),
            trips=trips,
            inputs=tuple(own(body.parameters[at]) for at in sorted(needed)),
            carries=frozen({own(body.parameters[at]): own(body.outputs[at]) for at in order}),
            stacked=tuple(own(body.outputs[at]) for at in sorted(stacked)),
            axes=dims,
            axis_of=frozen({own(name): places for name, places in axis_of.items()}),
        )

    def _begin(self) -> dict[str, int]:
        """The whole numbers of the state that are known before the loop: body's parameter -> value."""
        found = {}
        for name, source in zip(self.body.parameters, self.operands, strict=True):
            while source.opcode in ("copy", "reshape", "broadcast") and source.elements == 1:
                source = self.outside[source.operands[0]]
            if source.opcode == "constant" and source.dtype in _BITS and not self.body[name].dims:
                found[name] = int(source.attributes["values"][0])
        return found

    def _stacks(self, at: int, trips: int, numbers: Mapping[str, Sequence[int]]) -> bool:
        """Whether a member of the state is laid down piece by piece, the whole of it, and not read meanwhile."""
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

    def _needed(self, stacked: Iterable[int]) -> set[int]:
        """The places of the state that the live results are computed of."""
        body = self.body
        place = {name: at for at, name in enumerate(body.parameters)}
        found: set[int] = set()
        seen: set[str] = set()
        stack: list[str] = []
        for at in self.live:
            if at in stacked:
                stack += body[body.outputs[at]].operands[1:]
            else:
                found.add(at)
                stack.append(body.outputs[at])
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            stack += body[name].operands
            if name in place:
                found.add(place[name])
                stack.append(body.outputs[place[name]])
        return found


def _reshaped(body: Module) -> Module:
    """Results have the dims that the state has: a reshape costs no buffer, and may have been left out."""
    added, outputs = [], []
    for before, last in zip(body.parameters, body.outputs, strict=False):
        if body[before].dims == body[last].dims:
            outputs.append(last)
        else:
            outputs.append(f"{last}~{before}")
            made = dataclasses.replace(body[before], name=outputs[-1], opcode="reshape", operands=(last,))
            added.append(dataclasses.replace(made, attributes=frozen({})))
    return dataclasses.replace(body, instructions=(*body.instructions, *added), outputs=tuple(outputs))


def _renamed(body: Module, own: Callable[[str], str]) -> Module:
    instructions = tuple(
        dataclasses.replace(each, name=own(each.name), operands=tuple(own(name) for name in each.operands))
        for each in body.instructions
    )
    return Module(
        name=body.name,
        instructions=topological(instructions),
        parameters=tuple(own(each) for each in body.parameters),
        outputs=tuple(own(each) for each in body.outputs),
    )


# --- the whole numbers of a loop ------------------------------------------------------------------------


def _run(body: Module, condition: Module, begin: Mapping[str, int]) -> tuple[int, Mapping[str, Sequence[int]]] | None:
    """(how often the body runs, what its whole scalars are in each trip); None where that is not known before."""
    known = dict(begin)
    while True:
        followed = _whole(body, known)
        lost = [name for name, last in zip(body.parameters, body.outputs, strict=True)
                if name in known and last not in followed]  # fmt: skip
        if not lost:
            break
        for name in lost:
            known.pop(name)
    same = dict(zip(body.parameters, condition.parameters, strict=True))
    tested = _whole(condition, {same[name]: value for name, value in known.items()})
    if condition.outputs[0] not in tested:
        return None
    last = dict(zip(body.parameters, body.outputs, strict=True))
    found: dict[str, list[int]] = {name: [] for name in followed}
    for trip in range(MOST_TRIPS + 1):
        if not _values(condition, tested, {same[name]: value for name, value in known.items()})[condition.outputs[0]]:
            return (trip, found) if trip else None
        values = _values(body, followed, known)
        for name, value in values.items():
            found[name].append(value)
        known = {name: values[last[name]] for name in known}
    return None


def _whole(module: Module, known: Mapping[str, int]) -> list[str]:
    """The scalars that follow from the known ones, in order."""
    found = dict.fromkeys(known)
    for each in module.instructions:
        if each.name in found or each.elements != 1 or each.dtype not in _BITS:
            continue
        if each.opcode == "constant" or (each.opcode in _OPERATIONS and all(name in found for name in each.operands)):
            found[each.name] = None
    return [each.name for each in module.instructions if each.name in found]


def _values(module: Module, names: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        each = module[name]
        if name in known:
            found[name] = known[name]
        elif each.opcode == "constant":
            found[name] = int(each.attributes["values"][0])
        else:
            found[name] = _wrapped(_OPERATIONS[each.opcode](each, *(found[one] for one in each.operands)), each.dtype)
    return found


def _wrapped(value: int, dtype: str) -> int:
    if dtype == "pred":
        return int(bool(value))
    bits = _BITS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("s") and value >> (bits - 1) else value


_DIRECTIONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "GT": operator.gt, "LE": operator.le, "GE": operator.ge,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "maximum": lambda _, a, b: max(a, b),
    "minimum": lambda _, a, b: min(a, b),
    "negate": lambda _, a: -a,
    "and": lambda _, a, b: a & b,
    "or": lambda _, a, b: a | b,
    "not": lambda each, a: 1 - a if each.dtype == "pred" else ~a,
    "compare": lambda each, a, b: _DIRECTIONS[each.attributes["direction"]](a, b),
    "select": lambda _, test, a, b: a if test else b,
    "clamp": lambda _, low, a, high: min(max(a, low), high),
    "convert": lambda _, a: a,
    "copy": lambda _, a: a,
    "reshape": lambda _, a: a,
    "broadcast": lambda _, a: a,
}


# --- what of the state a thread has ---------------------------------------------------------------------


class _Axes:
    """Union of dimensions that are walked together: (instruction, dimension) -> class. A class that stays `inside` is
    no axis."""

    def __init__(
        self, body: Module, carries: Mapping[str, str], stacked: Sequence[Instruction], numbers: frozenset[str]
    ) -> None:
        self.body = body
        self.carried = tuple(carries)
        self.updates = [each.operands[1] for each in stacked]
        self.above: dict[tuple[str, int], tuple[str, int]] = {}
        self.inside: set[tuple[str, int]] = set()
        self.possible = True
        self.live = self._live([*carries.values(), *(name for each in stacked for name in each.operands[1:])])
        self.varying = self._varying(numbers)
        for each in body.instructions:
            if each.name in self.live and each.operands:
                self._instruction(each)
        for before, last in carries.items():
            self._same(before, last)

    def found(self) -> tuple[tuple[int, ...], Mapping[str, tuple[int | None, ...]]] | None:
        """(the axes, which of them each carry's and each update's dimensions are); None where threads cannot have
        parts of their own."""
        if not self.possible:
            return None
        values = dict.fromkeys((*self.carried, *self.updates))
        for name in (*values, *sorted(self.live & self.varying)):
            classes = [each for each in self._classes(name) if each is not None]
            # Two dimensions of one value along one axis: its elements meet crosswise.
            self.inside |= {each for each in classes if classes.count(each) > 1}
        inside = {self._class(each) for each in self.inside}
        own = {name: [None if each in inside else each for each in self._classes(name)] for name in values}
        widest = max(own.values(), key=lambda places: sum(each is not None for each in places), default=[])
        axes = [each for each in widest if each is not None]
        if any(each is not None and each not in axes for places in own.values() for each in places):
            return None
        sizes = tuple(self.body[name].dims[at] for name, at in axes)
        if self._held(own) > MOST_HELD or self._work(axes, math.prod(sizes)) > MOST_WORK:
            return None
        number = {each: at for at, each in enumerate(axes)}
        return sizes, {
            name: tuple(None if each is None else number[each] for each in places) for name, places in own.items()
        }

    def _held(self, own: Mapping[str, Sequence[object]]) -> int:
        """Numbers of the state in a thread; those of an update count where they are more."""
        sizes = {
            name: math.prod(dim for dim, axis in zip(self.body[name].dims, places, strict=True) if axis is None)
            for name, places in own.items()
        }
        return max(sum(sizes[name] for name in self.carried), *(sizes[name] for name in self.updates), 0)

    def _work(self, axes: Sequence[tuple[str, int]], threads: int) -> int:
        """Elements that a thread goes through in a trip for what is reduced."""
        total = 0
        for each in self.body.instructions:
            if each.name not in self.live or each.opcode not in ("reduce", "dot"):
                continue
            source = self.body[each.operands[0]]
            key = "dimensions" if each.opcode == "reduce" else "lhs_contracting"
            length = math.prod(source.dims[at] for at in each.attributes[key])
            classes = [(self._class((each.name, at)), dim) for at, dim in enumerate(each.dims)]
            total += length * math.prod(dim for one, dim in classes if dim > 1 and one not in axes)
        return total

    def _live(self, roots: Sequence[str]) -> set[str]:
        found: set[str] = set()
        stack = list(roots)
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += self.body[name].operands
        return found

    def _varying(self, numbers: frozenset[str]) -> set[str]:
        """What depends on the state, but for what is known of it before: that is the same for all threads."""
        found = set(self.carried) - numbers
        for each in self.body.instructions:
            if any(name in found for name in each.operands):
                found.add(each.name)
        return found

    # --- classes ---

    def _class(self, key: tuple[str, int]) -> tuple[str, int]:
        while key in self.above:
            key = self.above[key]
        return key

    def _classes(self, name: str) -> list[tuple[str, int] | None]:
        """Of each dimension; None of those of size 1."""
        return [self._class((name, at)) if dim > 1 else None for at, dim in enumerate(self.body[name].dims)]

    def _join(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        one, other = self._class(one), self._class(other)
        if one != other:
            self.above[one] = other

    def _same(self, one: str, other: str) -> None:
        for at in range(len(self.body[one].dims)):
            self._join((one, at), (other, at))

    def _inside(self, name: str, dimensions: Iterable[int]) -> None:
        self.inside |= {(name, at) for at in dimensions}

    # --- operations ---

    def _instruction(self, each: Instruction) -> None:
        varies = [name in self.varying for name in each.operands]
        operands = self.body.operands(each)
        if each.opcode in ELEMENTWISE:
            for operand in operands:
                if operand.dims:
                    self._same(operand.name, each.name)
        elif each.opcode in ("broadcast", "transpose"):
            order = each.attributes["dimensions"]
            for at, other in enumerate(order):
                mine, its = (other, at) if each.opcode == "broadcast" else (at, other)
                self._join((each.name, mine), (operands[0].name, its))
        elif each.opcode == "reduce":
            self._reduced(each, operands, varies)
        elif each.opcode == "reshape":
            self._reshaped(each, operands[0], varies[0])
        elif any(varies):
            self._moved(each, operands, varies)

    def _reduced(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        dimensions = each.attributes["dimensions"]
        kept = [at for at in range(len(operands[0].dims)) if at not in dimensions]
        for operand, varying in zip(operands[: len(operands) // 2], varies, strict=False):
            for at, other in enumerate(kept):
                self._join((each.name, at), (operand.name, other))
            if varying:
                self._inside(operand.name, dimensions)

    def _reshaped(self, each: Instruction, operand: Instruction, varying: bool) -> None:
        """Dimensions of equal size behind equal products are the same; all others stay inside."""
        for mine, its in _groups(each.dims, operand.dims):
            large = [at for at in mine if each.dims[at] > 1]
            theirs = [at for at in its if operand.dims[at] > 1]
            if len(large) == len(theirs) == 1:
                self._join((each.name, large[0]), (operand.name, theirs[0]))
            elif varying:
                self._inside(each.name, large)
                self._inside(operand.name, theirs)

    def _moved(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        """What shifts, cuts or contracts: only along the dimensions that stay whole do threads keep to themselves."""
        first = operands[0]
        if each.opcode == "dot":
            self._contracted(each, operands, varies)
            return
        sources: Sequence[Instruction]
        if each.opcode == "concatenate":
            sources, cut = operands, {each.attributes["dimension"]}
        elif each.opcode == "reverse":
            sources, cut = operands, set(each.attributes["dimensions"])
        elif each.opcode == "slice":
            sources, cut = operands, {at for at, dim in enumerate(first.dims) if dim != each.dims[at]}
        elif each.opcode == "pad":
            sources = operands[:1]
            padded = (each.attributes[side] for side in ("low", "high", "interior"))
            cut = {at for at, amounts in enumerate(zip(*padded, strict=True)) if any(amounts)}
        elif each.opcode == "dynamic-slice":
            sources, cut = operands[:1], {at for at, dim in enumerate(first.dims) if dim != each.dims[at]}
        elif each.opcode == "dynamic-update-slice":
            update = operands[1]
            sources, cut = operands[:2], {at for at, dim in enumerate(first.dims) if dim != update.dims[at]}
        else:
            self.possible = False
            return
        for source in sources:
            self._inside(source.name, cut)
            for at in range(len(each.dims)):
                if at not in cut:
                    self._join((each.name, at), (source.name, at))
        self._inside(each.name, cut)

    def _contracted(self, each: Instruction, operands: Sequence[Instruction], varies: Sequence[bool]) -> None:
        numbers = each.attributes
        batch = len(numbers["lhs_batch"])
        free = batch
        for side, operand, varying in zip(("lhs", "rhs"), operands, varies, strict=True):
            for at, own in enumerate(numbers[f"{side}_batch"]):
                self._join((each.name, at), (operand.name, own))
            used = {*numbers[f"{side}_batch"], *numbers[f"{side}_contracting"]}
            for at in range(len(operand.dims)):
                if at not in used:
                    self._join((each.name, free), (operand.name, at))
                    free += 1
            if varying:
                self._inside(operand.name, numbers[f"{side}_contracting"])


def _groups(one: Sequence[int], other: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions of both with equal products, in order."""
    a = b = 0
    while a < len(one) or b < len(other):
        mine: list[int] = []
        its: list[int] = []
        left = right = 1
        while True:
            if left <= right and a < len(one) and (left < right or not mine):
                left *= one[a]
                mine.append(a)
                a += 1
            elif b < len(other) and (right < left or not its):
                right *= other[b]
                its.append(b)
                b += 1
            else:
                break
        yield mine, its
