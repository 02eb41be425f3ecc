"""Raw HLO to the graph: inlines calls, resolves tuples, unrolls short loops, drops dead instructions.

What cannot be written as code becomes a boundary with its reason. A `bitcast` between layouts becomes transposes and a
reshape: everything is in row-major order from here on. `passes` brings the graph into its canonical form.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.keys import content_key
from fusiond.model.nouns import frozen
from fusiond_stitching.frontend import (
    boundaries,
    complex_numbers,
    conditionals,
    constant_numbers,
    hlo,
    passes,
    scan_users,
    scans,
    shapes,
    short_sorts,
    top_k,
    unrolled_loops,
    windows,
)
from fusiond_stitching.frontend.attributes import attributes_of, number
from fusiond_stitching.frontend.building import Add
from fusiond_stitching.frontend.complex_numbers import Complex
from fusiond_stitching.frontend.graph import DTYPES, KNOWN, Computation, HloInstruction, HloModule, reached, topological
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawComputation, RawModule, RawShape, Several, arrays
from fusiond_stitching.frontend.tuple_values import Value, leaves, member, members, names, shaped

IDENTITIES = frozenset({"copy", "opt-barrier", "copy-start", "copy-done"})
NOTES = frozenset({"Sharding", "annotate_device_placement", "SPMDFullToShardShape", "SPMDShardToFullShape"})
"""Custom calls that only carry a remark."""
OTHER_TYPES = re.compile(r"c64|c128|[su][124]|f[48]e\w+|token|opaque")
"""HLO's types that no code is written for: such a parameter is left to a library with all that reads it."""


def module(raw: RawModule) -> HloModule:
    """The graph of a module's entry computation. RequestError with file and line for what does not fit together."""
    return _Import(raw, pairs=complex_numbers.supported(raw)).module(raw.entry, raw.name)


def read(text: str, path: str) -> HloModule:
    """Parse and import; `path` is for messages."""
    return module(hlo.parse(text, path))


def digest(module: HloModule) -> str:
    """A key of what the module computes, whatever its text looks like."""
    return content_key([[each.name, passes.value_key(each)] for each in module.instructions] + [list(module.outputs)])


class _Import:
    def __init__(self, raw: RawModule, *, pairs: bool) -> None:
        self.raw = raw
        self.pairs = pairs  #: Whether complex numbers are pairs of real ones; otherwise they are left to a library
        self.found: dict[str, HloInstruction] = {}
        self.foreign: dict[str, str] = {}
        self.frames: dict[str, bool] = {}  #: Computation -> whether it is the body of a while
        self.loops: dict[str, tuple[str, str]] = {}  #: The call of a while -> its body and condition
        self.effects: dict[str, None] = {}
        """Foreign instructions that do something whether or not anybody reads what they give."""
        self.depth = 0

    def module(self, computation: str, name: str, *, body: bool = False) -> HloModule:
        entry = self._called(computation, f"{self.raw.path}:1")
        count = itertools.count()
        arguments: list[Value] = []
        for each in sorted((each for each in entry.instructions if each.opcode == "parameter"), key=number):
            arguments.append(self._parameter(each, each.name, each.shape, count))
        result = self._inline(entry, arguments, "")
        outputs = [self._whole(entry, each) for each in members(result)]
        return self._finished(name, outputs, body=body)

    def _parameter(self, raw: Raw, name: str, shape: RawShape, count: itertools.count[int]) -> Value:
        if isinstance(shape, Several):
            return tuple(
                self._parameter(raw, f"{name}.{place}", each, count) for place, each in enumerate(shape.members)
            )
        number = next(count)
        if shape.dtype == complex_numbers.COMPLEX and self.pairs:
            pair = ArrayShape(complex_numbers.REAL, (*shape.dims, 2))
            whole = self._add(raw, name, "parameter", pair, (), {"number": number})
            return complex_numbers.taken_apart(name, shape.dims, whole, self._adding(raw))
        if shape.dtype not in DTYPES:
            if not OTHER_TYPES.fullmatch(shape.dtype):
                raise raw.fail(f"the type {shape.dtype} is not known; known: {', '.join(DTYPES)}")
            self.foreign[name] = f"parameter {raw.name!r}: the type {shape.dtype} is not known"
            return self._add(raw, name, "input", shape, (), {"number": number})
        return self._add(raw, name, "parameter", shape, (), {"number": number})

    def _whole(self, computation: RawComputation, value: str | Complex) -> str:
        """A result as it is stored."""
        if isinstance(value, str):
            return value
        root = next(each for each in computation.instructions if each.name == computation.root)
        return complex_numbers.put_together(value.real, self.found[value.real].dims, value, self._adding(root))

    def _called(self, name: str, where: str) -> RawComputation:
        if name not in self.raw.computations:
            raise RequestError(f"there is no computation {name!r}", where=where)
        return self.raw.computations[name]

    # --- one computation, its parameters bound to values ---

    def _inline(self, computation: RawComputation, arguments: Sequence[Value], prefix: str) -> Value:
        self.depth += 1
        if self.depth > hlo.MAX_CALLS:
            raise RequestError(f"the computation {computation.name!r} calls itself", where=computation.where)
        bound: dict[str, Value] = {}
        for raw in _ordered(computation):
            if raw.opcode == "parameter":
                if number(raw) >= len(arguments):
                    raise raw.fail(f"the computation is given {len(arguments)} arguments only")
                bound[raw.name] = arguments[number(raw)]
                continue
            missing = [each for each in raw.operands if each not in bound]
            if missing:
                raise raw.fail(f"the operand {missing[0]!r} does not exist")
            bound[raw.name] = self._imported(raw, [bound[each] for each in raw.operands], prefix)
        self.depth -= 1
        return bound[computation.root]

    def _imported(self, raw: Raw, operands: list[Value], prefix: str) -> Value:
        raw = _with_window(raw)
        if raw.opcode == "tuple":
            return tuple(operands)
        if raw.opcode == "get-tuple-element":
            return member(raw, operands[0])
        if raw.opcode in IDENTITIES or (raw.opcode == "custom-call" and _target(raw) in NOTES):
            return operands[0] if len(operands) == 1 else tuple(operands)
        inlined = self._inlined(raw, operands, prefix)
        if inlined is not None:
            return inlined
        name = self._fresh(prefix + raw.name)
        expanded = self._expanded(raw, name, operands)
        return self._computed(raw, name, operands) if expanded is None else expanded

    def _inlined(self, raw: Raw, operands: list[Value], prefix: str) -> Value | None:
        """The result of computations that it calls, where it is known which and how often."""
        opcode = raw.opcode
        if opcode in ("call", "fusion"):
            name = raw.called("to_apply" if opcode == "call" else "calls")
            return self._inline(self._called(name, raw.where), operands, f"{prefix}{raw.name}/")
        if opcode == "while" and (count := self._trips(raw, operands)) is not None:
            body = self._called(raw.called("body"), raw.where)
            for trip in range(count):
                operands = [self._inline(body, operands, f"{prefix}{raw.name}/{trip}/")]
            return operands[0]
        if opcode != "conditional" or len(operands) < 2:
            return None
        if (place := self._branch(raw, operands[0])) is not None:
            branch = self._called(raw.branches()[place], raw.where)
            return self._inline(branch, [operands[1 + place]], f"{prefix}{raw.name}/{place}/")
        return self._selected(raw, operands, prefix) if conditionals.cheap(self.raw, raw, operands) else None

    def _expanded(self, raw: Raw, name: str, operands: list[Value]) -> Value | None:
        """What is made of simpler instructions: complex numbers, top-k, short sorts."""
        if self.pairs and complex_numbers.concerns(raw, operands):
            return complex_numbers.computed(raw, name, operands, self.found, self._adding(raw))
        if raw.opcode == "topk" and isinstance(operands[0], str) and top_k.possible(raw, self.found[operands[0]]):
            return top_k.expanded(raw, name, self.found[operands[0]], self._adding(raw))
        if (
            raw.opcode == "sort"
            and all(isinstance(each, str) for each in operands)
            and not boundaries.scalar_problem(raw, self._applied(raw))
        ):
            sources = [self.found[each] for each in names(operands)]
            if short_sorts.possible(raw, sources):
                found = short_sorts.expanded(raw, name, sources, _scalar(self, raw), self._adding(raw))
                return shaped(raw.shape, iter(found))
        return None

    def _computed(self, raw: Raw, name: str, operands: list[Value]) -> Value:
        shape = raw.shape
        reason = boundaries.reason(raw, operands, self.found, lambda: self._applied(raw), lambda: _scalar(self, raw))
        if not reason and isinstance(shape, Several) and raw.opcode == "reduce":
            return self._reduced(raw, name, operands, shape)
        if reason or isinstance(shape, Several):
            return self._outside(raw, name, operands, reason or f"{raw.opcode} with several results")
        if raw.opcode == "reduce-window":
            source, init = (self.found[each] for each in names(operands))
            return windows.reduced(raw, name, source, init, _scalar(self, raw), shape, self._adding(raw))
        if raw.opcode == "convolution":
            x, filters = (self.found[each] for each in names(operands))
            return windows.convolved(raw, name, x, filters, shape, self._adding(raw))
        if raw.opcode == "bitcast":
            source = self.found[names(operands)[0]]
            if source.dtype != shape.dtype:
                return self._outside(raw, name, operands, "a bitcast between types is left to a library")
            layout = _layout_of_operand(self.raw, raw)
            return _bitcast(name, source, layout, shape, self._adding(raw))
        attributes = attributes_of(raw, lambda: _scalar(self, raw))
        return self._add(raw, name, raw.opcode, shape, operands, attributes)

    def _reduced(self, raw: Raw, name: str, operands: list[Value], shape: Several) -> Value:
        """A reduce of several results, as one instruction for each."""
        shapes = [each for each in shape.members if isinstance(each, ArrayShape)]
        return tuple(
            self._add(raw, self._fresh(f"{name}.{place}"), raw.opcode, each, operands,
                      attributes_of(raw, lambda: _scalar(self, raw), place))
            for place, each in enumerate(shapes)
        )  # fmt: skip

    def _branch(self, raw: Raw, index: Value) -> int | None:
        """Which branch of a conditional is always taken; None where that is not known."""
        assert isinstance(index, str)
        known = constant_numbers.elements(self.found, index)
        if known is None:
            return None
        last = len(raw.branches()) - 1
        if self.found[index].dtype == "pred":
            return 0 if known[0] else 1
        return known[0] if 0 <= known[0] <= last else last

    def _selected(self, raw: Raw, operands: list[Value], prefix: str) -> Value:
        """All branches of a conditional, and of their results those that its first operand asks for."""
        index = operands[0]
        assert isinstance(index, str)
        results = [
            self._inline(self._called(branch, raw.where), [operand], f"{prefix}{raw.name}/{place}/")
            for place, (branch, operand) in enumerate(zip(raw.branches(), operands[1:], strict=True))
        ]
        found = list(leaves(results[-1]))
        for place, result in reversed(list(enumerate(results[:-1]))):
            test = index if self.found[index].dtype == "pred" else self._is(raw, index, place, prefix)
            for at, (then, otherwise) in enumerate(zip(leaves(result), found, strict=True)):
                if then != otherwise:
                    source = self.found[then]
                    shape = ArrayShape(source.dtype, source.dims)
                    name = self._fresh(f"{prefix}{raw.name}.{at}")
                    found[at] = self._add(raw, name, "select", shape, (test, then, otherwise), {})
        return shaped(raw.shape, iter(found))

    def _is(self, raw: Raw, index: str, value: int, prefix: str) -> str:
        """Whether a branch's number is this one."""
        number = ArrayShape(self.found[index].dtype, ())
        wanted = self._add(raw, self._fresh(f"{prefix}{raw.name}.branch"), "constant", number, (), {"values": (value,)})
        attributes = {"direction": "EQ", "total": False}
        name = self._fresh(f"{prefix}{raw.name}.is")
        return self._add(raw, name, "compare", ArrayShape("pred", ()), (index, wanted), attributes)

    def _trips(self, raw: Raw, operands: list[Value]) -> int | None:
        """How often a loop is written out; None for one that is a boundary."""
        place = unrolled_loops.counter(self.raw, raw)
        state = operands[0] if len(operands) == 1 else ""
        if place is None or not isinstance(state, tuple) or not 0 <= place < len(state):
            return None
        first = state[place]
        if not isinstance(first, str) or self.found[first].opcode != "constant":
            return None
        return unrolled_loops.trips(self.raw, raw, int(self.found[first].attributes["values"][0]))

    def _applied(self, raw: Raw) -> RawComputation:
        return self._called(raw.called("to_apply"), raw.where)

    def _adding(self, raw: Raw) -> Add:
        def add(
            wanted: str, opcode: str, shape: ArrayShape, given: Sequence[str], attributes: Mapping[str, Any]
        ) -> str:
            return self._add(raw, self._fresh(wanted), opcode, shape, given, attributes)

        return add

    def _outside(self, raw: Raw, name: str, operands: list[Value], reason: str) -> Value:
        """A boundary: one instruction, and one more for every further result. (One of type `none` where it has none: it
        may still do something.)"""
        for attribute in ("body", "condition", "true_computation", "false_computation"):
            if attribute in raw.attributes:
                self.frames[raw.called(attribute)] = attribute == "body"
        if "branch_computations" in raw.attributes:
            self.frames.update(dict.fromkeys(raw.branches(), False))
        if raw.opcode == "while":
            self.loops[name] = (raw.called("body"), raw.called("condition"))
        given = tuple(leaves(tuple(operands)))
        parts = list(arrays(raw.shape)) or [ArrayShape("none", ())]
        results: list[Value] = []
        for place, shape in enumerate(parts):
            own = name if len(parts) == 1 else self._fresh(f"{name}.{place}")
            self.foreign[own] = f"{raw.opcode} {raw.name!r}: {reason}"
            if boundaries.acts(self.raw, raw):
                self.effects[own] = None
            attributes: dict[str, Any] = {"call": name, "result": place}
            if "distribution" in raw.attributes:
                attributes["distribution"] = raw.text("distribution").removeprefix("rng_")
            results.append(self._add(raw, own, raw.opcode, shape, given, attributes))
        return shaped(raw.shape, iter(results))

    def _fresh(self, name: str) -> str:
        if name not in self.found:
            return name
        return next(each for each in (f"{name}~{number}" for number in itertools.count(2)) if each not in self.found)

    def _add(
        self,
        raw: Raw,
        name: str,
        opcode: str,
        shape: ArrayShape,
        operands: Sequence[Value],
        attributes: Mapping[str, Any],
    ) -> str:
        made = HloInstruction(
            name=name,
            opcode=opcode,
            dtype=shape.dtype,
            dims=shape.dims,
            where=raw.where,
            operands=tuple(names(operands)),
            attributes=frozen(attributes),
        )
        if name not in self.foreign and opcode in KNOWN:
            problem = shapes.problem(made, [self.found[each] for each in made.operands])
            if problem:
                raise raw.fail(problem)
        self.found[name] = made
        return name

    # --- the whole ---

    def _finished(self, name: str, outputs: list[str], *, body: bool) -> HloModule:
        parameters = [each.name for each in self.found.values() if each.opcode == "parameter"]
        state = tuple(each.name for each in self.found.values() if each.opcode in ("parameter", "input"))
        read = passes.HloGraph(
            instructions=self.found, outputs=tuple(outputs), foreign=self.foreign, state=state if body else ()
        )
        graph = passes.canonical(read)
        frames = {
            each: _Import(self.raw, pairs=self.pairs).module(each, each, body=is_body)
            for each, is_body in self.frames.items()
            if each in self.raw.computations
        }
        graph = self._with_scans(graph, frames)
        roots = [*graph.outputs, *parameters, *self.effects]
        live = reached(roots, lambda name: graph.instructions[name].operands)
        left = {graph.instructions[each].attributes.get("call") for each in graph.foreign}  # what a library runs
        gone = {frame for call, frames_ in self.loops.items() if call not in left for frame in frames_}
        return HloModule(
            name=name,
            instructions=topological(each for each in graph.instructions.values() if each.name in live),
            parameters=tuple(parameters),
            outputs=graph.outputs,
            foreign=frozen({each: why for each, why in graph.foreign.items() if each in live}),
            frames=tuple(each for frame, each in frames.items() if frame not in gone),
        )

    def _with_scans(self, graph: passes.HloGraph, frames: Mapping[str, HloModule]) -> passes.HloGraph:
        """The graph with loops that are one launch each, and what comes behind them in them."""
        whiles = {
            call: scans.While(frames[body], frames[condition])
            for call, (body, condition) in self.loops.items()
            if call not in self.effects and body in frames and condition in frames
        }
        found, foreign = scans.converted(graph.instructions, graph.foreign, graph.outputs, whiles)
        if found == graph.instructions:
            return dataclasses.replace(graph, instructions=found, foreign=foreign)
        graph = passes.again(dataclasses.replace(graph, instructions=found, foreign=foreign))
        joined = scan_users.with_users(graph.instructions, foreign, graph.outputs)
        return dataclasses.replace(graph, instructions=joined, foreign=foreign)


def _target(raw: Raw) -> str:
    return raw.text("custom_call_target").strip('"')


def _with_window(raw: Raw) -> Raw:
    """Our custom call for a window as the instruction that it stands for."""
    if raw.opcode == "custom-call" and _target(raw) == windows.TARGET:
        return dataclasses.replace(raw, opcode="window")
    if raw.opcode == "window":
        raise raw.fail("is not an operation of HLO")
    return raw


def _ordered(computation: RawComputation) -> list[Raw]:
    """Operands before users; texts are ordered so, but that is not promised."""
    known: set[str] = set()
    for raw in computation.instructions:
        if any(each not in known for each in raw.operands):
            break
        known.add(raw.name)
    else:
        return list(computation.instructions)
    by_name = {each.name: each for each in computation.instructions}
    for raw in computation.instructions:
        for each in raw.operands:
            if each not in by_name:
                raise raw.fail(f"the operand {each!r} does not exist")
    stand_ins = [
        HloInstruction(name=each.name, opcode="", dtype="", dims=(), operands=each.operands)
        for each in computation.instructions
    ]
    try:
        return [by_name[each.name] for each in topological(stand_ins)]
    except ValueError as problem:
        raise RequestError(str(problem), where=computation.where) from None


# --- what a reduce applies --------------------------------------------------------------------------


def _scalar(importing: _Import, raw: Raw) -> Computation:
    """The computation that a reduce or a scatter applies, with its own names."""
    called = importing._applied(raw)
    inner = _Import(importing.raw, pairs=importing.pairs)
    count = itertools.count()
    arguments: list[Value] = []
    for each in sorted((e for e in called.instructions if e.opcode == "parameter"), key=number):
        arguments.append(inner._parameter(each, each.name, each.shape, count))
    results = tuple(leaves(inner._inline(called, arguments, "")))
    live = reached(results, lambda name: inner.found[name].operands)
    ordered = topological(each for each in inner.found.values() if each.name in live or each.opcode == "parameter")
    return Computation(
        parameters=tuple(each for each in ordered if each.opcode == "parameter"),
        instructions=tuple(each for each in ordered if each.opcode != "parameter"),
        results=results,
    )


# --- bitcasts -------------------------------------------------------------------------------------------


def _layout_of_operand(module: RawModule, raw: Raw) -> tuple[int, ...]:
    """The layout that the text gives a bitcast's operand, which the graph does not keep; empty where it gives none."""
    for computation in module.computations.values():
        if any(each is raw for each in computation.instructions):
            for each in computation.instructions:
                if each.name == raw.operands[0] and isinstance(each.shape, ArrayShape):
                    return each.shape.layout
    return ()


def _bitcast(name: str, before: HloInstruction, layout: tuple[int, ...], after: ArrayShape, add: Add) -> str:
    """The bytes in their order of storage read as another shape (layouts of both ends matter)."""
    physical = tuple(reversed(layout)) if layout else tuple(range(len(before.dims)))
    value = before.name
    if physical != tuple(range(len(before.dims))):
        stored = ArrayShape(before.dtype, tuple(before.dims[each] for each in physical))
        value = add(f"{name}.stored", "transpose", stored, [value], {"dimensions": physical})
    if after.plain:
        return add(name, "reshape", after, [value], {})
    order = tuple(reversed(after.layout))
    read = ArrayShape(after.dtype, tuple(after.dims[each] for each in order))
    value = add(f"{name}.read", "reshape", read, [value], {})
    back = tuple(order.index(each) for each in range(len(order)))
    return add(name, "transpose", after, [value], {"dimensions": back})
