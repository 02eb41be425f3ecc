"""A Program: buffers, sources, and steps over them (see the package)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.keys import content_key
from fusiond.model.language import expressions, extents
from fusiond.model.language.extents import Extent
from fusiond.model.program.buffers import Buffer, Memory, Source
from fusiond.model.program.encoding import described, encode
from fusiond.model.program.formulas import formulas, replaced
from fusiond.model.program.invariants import problems
from fusiond.model.program.steps import Alloc, CopyBatch, HostCall, Launch, Prefetch, Step, packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """Something that a library computes in the user's own program (a matrix product, a sort, a convolution).

    It is done before the step `before` (None: after the last), or in the place of the launch `stand_in`, a plain kernel
    that does the same, slowly, where a Program is checked and timed. Without a stand-in nobody does it there, and the
    buffers that it would write are filled inputs."""

    name: str
    operation: str
    """What is computed, with shapes, for people: `dot f32[8,4] = f32[8,16] x f32[16,4], contracting {1} with {0}`."""
    reads: tuple[str, ...]  #: Buffers, in the order of the operation's operands
    writes: tuple[str, ...]
    before: str | None = None
    stand_in: str | None = None


class SizeError(ValueError):
    """A Program cannot be moved to these sizes; the message names the size and the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str  #: For people; not part of the key
    buffers: tuple[Buffer, ...]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    issue: str = "streams"  #: `streams`, or `graph` (captured once into a CUDA graph, and launched as one)
    sizes: tuple[tuple[str, int], ...] = ()  #: The workload's sizes that its numbers stand for, by name
    fixed: tuple[str, ...] = ()
    """Those of them on which a text depends, or something else that no Extent says: they cannot be changed."""
    seams: tuple[Seam, ...] = ()
    _key: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes)))

    @property
    def key(self) -> str:
        """`program_key`: what the Program is, to the last formula. (Not by equality: two Programs that are equal at
        their sizes may differ at others.)"""
        if self._key is None:  # asked for a dozen times for each candidate
            object.__setattr__(self, "_key", content_key(_identity(self)))
        assert self._key is not None
        return self._key

    @property
    def work_key(self) -> str:
        """Of what is run at these very sizes: programs of equal work are measured once."""
        return content_key(_work(self))

    def at(self, sizes: Mapping[str, int]) -> Program:
        """The same Program at other sizes; those that are not named stay. SizeError when a size is unknown, fixed, or
        leads to no sound plan."""
        known = dict(self.sizes)
        for name, value in sizes.items():
            if name not in known:
                raise SizeError(f"there is no size {name!r}; there are {', '.join(known) or 'none'}")
            if name in self.fixed and value != known[name]:
                raise SizeError(f"{name} is {known[name]} in the source itself; it cannot be {value}")
            if value < 1:
                raise SizeError(f"{name} is {value}; a size is from 1")
        changed = {name: int(sizes.get(name, value)) for name, value in self.sizes}
        if changed == known:
            return self
        try:
            buffers, steps = (_moved(each, changed) for each in (self.buffers, self.steps))
        except expressions.ExpressionError as problem:
            raise SizeError(f"{problem} at {_said(changed)}") from None
        moved = dataclasses.replace(self, buffers=buffers, steps=steps, sizes=tuple(changed.items()))
        broken = problems(moved)
        if broken:
            raise SizeError(f"{broken[0]} at {_said(changed)}")
        return moved

    @property
    def host_sensitive(self) -> bool:
        """Host work is inside the span, so nothing else may use the cores while this is measured."""
        return any(step.counted and (isinstance(step, HostCall) or step.allocates or step.frees) for step in self.steps)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels that are launched, in order."""
        return tuple(each for each in self.steps if isinstance(each, Launch))

    @property
    def copies_in_batches(self) -> bool:
        return any(isinstance(each, CopyBatch) for each in self.steps)

    @property
    def prefetches(self) -> bool:
        """Whether a step moves managed memory before it is used."""
        return any(isinstance(each, Prefetch) for each in self.steps)

    @property
    def takes_from_pool(self) -> bool:
        """Whether a step allocates from the device's pool."""
        return any(isinstance(each, Alloc) and each.pooled for each in self.steps)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError when there is none."""
        for each in self.buffers:
            if each.name == name:
                return each
        raise KeyError(name)

    def source(self, name: str) -> Source:
        """The source of that name; KeyError when there is none."""
        for each in self.sources:
            if each.name == name:
                return each
        raise KeyError(name)


def homes(program: Program) -> dict[str, tuple[Buffer, ...]]:
    """Allocation -> its buffers by offset; a buffer without an arena is one of its own. Variables have none."""
    found: dict[str, list[Buffer]] = {}
    for each in program.buffers:
        if each.symbol is None:
            found.setdefault(each.arena or each.name, []).append(each)
    return {home: tuple(sorted(members, key=lambda each: each.offset_bytes)) for home, members in found.items()}


def home_bytes(members: Iterable[Buffer]) -> int:
    """The length of an allocation with these buffers."""
    return max(each.offset_bytes + each.size_bytes for each in members)


def pooled_frees(program: Program) -> frozenset[str]:
    """The Free steps whose memory came from the device's pool: the last allocation listed before decides."""
    pooled: dict[str, bool] = {}
    found = set()
    for step in program.steps:
        if isinstance(step, Alloc):
            pooled[step.arena] = step.pooled
        elif step.frees is not None and pooled.get(step.frees):
            found.add(step.name)
    return frozenset(found)


def host_steps(program: Program) -> frozenset[str]:
    """The steps that the calling thread does, after what they wait for; it is blocked meanwhile."""
    buffers = {each.name: each for each in program.buffers}
    return frozenset(each.name for each in program.steps if each.on_host(buffers)) - pooled_frees(program)


def blocking_steps(program: Program) -> frozenset[str]:
    """The steps whose enqueuing may wait for the device: host steps, allocations (a pool may have to grow), copies to
    or from pageable memory, and prefetches (the driver changes the host's page tables)."""
    pageable = {each.name for each in program.buffers if each.memory is Memory.PAGEABLE}
    own = {
        each.name
        for each in program.steps
        if each.allocates
        or each.frees
        or isinstance(each, Prefetch)
        or any(name in pageable for pair in each.messages for name in pair)
    }
    return host_steps(program) | own


def sized(program: Program, sizes: Mapping[str, int], fixed: Collection[str] = ()) -> Program:
    """The Program as one over these sizes: their names stand in its Extents. The `fixed` ones are plain numbers from
    here on, and so are those that stand in formulas too long to be read again."""
    held = {*fixed}
    for text, _ in formulas((program.buffers, program.steps)):
        try:
            expressions.parse_formula(text)
        except expressions.ExpressionError:
            held |= {name for name in sizes if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)}
    names = {name: value if name in held else extents.size(name, value) for name, value in sizes.items()}
    buffers, steps = (settled(each, names, held) for each in (program.buffers, program.steps))
    return dataclasses.replace(
        program, buffers=buffers, steps=steps, sizes=tuple(sizes.items()), fixed=tuple(sorted(held))
    )


def unsized(program: Program) -> Program:
    """The Program with plain numbers: one that is for these sizes only."""
    steps = tuple(packed(each) for each in program.steps)
    return dataclasses.replace(
        program, buffers=replaced(program.buffers, int), steps=replaced(steps, int), sizes=(), fixed=()
    )


def settled(value: Any, names: Mapping[str, int], held: Collection[str]) -> Any:
    """A nest of dataclasses and tuples whose Extents speak of no size that is held: numbers at the sizes `names`."""

    def number(extent: Extent) -> int:
        try:
            formula = expressions.parse_formula(extent.text)
        except expressions.ExpressionError:
            return int(extent)
        return formula.integer(names) if formula.names & set(held) else extent

    return replaced(value, number) if held else value


def _work(program: Program) -> list[object]:
    """What a device does. The 1 is from before there were sizes: programs have kept their keys."""
    filled = dataclasses.replace(program, steps=tuple(packed(each) for each in program.steps))
    return [1, described(program.buffers), program.sources, encode(filled)["steps"], program.issue]


def _identity(program: Program) -> list[object]:
    plan = encode(program)
    more = {name: plan[name] for name in ("sizes", "fixed", "formulas", "seams") if plan[name]}
    said = [1, plan["buffers"], program.sources, plan["steps"], program.issue]
    return [*said, more] if more else said


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _moved(value: Any, sizes: Mapping[str, int]) -> Any:
    """A nest of dataclasses and tuples with each Extent evaluated anew."""
    return replaced(
        value, lambda each: Extent(expressions.parse_formula(each.text).integer(sizes), each.terms, each.constant)
    )


def replace_sources(program: Program, change: Callable[[Source], Source]) -> Program:
    """The same plan with every source changed."""
    return dataclasses.replace(program, sources=tuple(change(each) for each in program.sources))
