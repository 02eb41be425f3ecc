"""Unrolled loops of equal steps rolled up again, in the graph that Dynamo hands over.

    h1 = f(h0, x[:, 0]); h2 = f(h1, x[:, 1]); ... stack([h1, ...], 1)  -->  scan(f, h0, x.movedim(1, 0)).movedim(0, 1)

Dynamo writes a loop's trips one after the other, so equal steps are a period of the graph: nodes of one kind, a fixed
distance apart, that read the same node, one of their own step, one of the step before, or the next element of a tensor.
What is read and stored is found in time linear in the graph. The operators stay as they are, in their order.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

LEAST = 8  #: Steps of a loop that is rolled up
_CANDIDATES, _MULTIPLES, _PHASES = 6, (1, 2, 3, 4), 16
"""Distances of equal nodes that are tried as sizes of a step, times these; nodes that a first step may begin later."""
_LISTS = (torch.stack, torch.cat)


def rolled(module: Any) -> tuple[Any, tuple[int, ...]]:
    """(a module that computes the same with a `scan` for each unrolled loop, their steps), or (the module, ())."""
    steps: list[int] = []
    while (loop := _found(module)) is not None:
        module = _written(module, loop, len(steps))
        steps.append(loop.steps)
    return module, tuple(steps)


@dataclass(slots=True)
class _Unrolled:
    """Steps of equal size, one behind the other."""

    nodes: Sequence[Any]  #: All calls of the graph
    start: int
    size: int
    steps: int = 0
    kinds: dict[tuple[int, int], tuple[str, Any]] = field(default_factory=dict)
    """(node of a step, argument) -> ("own" or "before", node of the step), ("same", one outside), ("row", moving)"""
    rows: dict[int, _Moving] = field(default_factory=dict)
    """Nodes that are the next element of a tensor, or (`setitem`) write it."""
    inits: dict[int, Any] = field(default_factory=dict)
    """Nodes that the next step reads -> what the first step reads in their place."""
    used: dict[int, set[int]] = field(default_factory=dict)  #: Nodes that are read behind the loop -> of which steps
    written: dict[int, int] = field(default_factory=dict)  #: `setitem` -> the node that it writes

    def node(self, step: int, at: int) -> Any:
        return self.nodes[self.start + step * self.size + at]

    @property
    def end(self) -> int:
        return self.start + self.steps * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moving:
    """Elements of a tensor, one a step."""

    source: Any  #: What is indexed: the tensor, or its `unbind`
    tensor: Any
    dimension: int
    first: int
    step: int
    rest: tuple[Any, ...] = field(default=(), compare=False)  #: The index of what is left in an element
    entry: int = field(default=0, compare=False)  #: Which entry of the index moves

    def taken(self, steps: int) -> slice:
        """From the lowest to the highest."""
        ends = sorted((self.first, self.first + self.step * (steps - 1)))
        return slice(ends[0], ends[1] + 1, abs(self.step))


# --- finding them ---


def _found(module: Any) -> _Unrolled | None:
    nodes = [each for each in module.graph.nodes if each.op in ("call_function", "call_method")]
    names: dict[Any, int] = {}
    kinds = [names.setdefault(_kind(each), len(names)) for each in nodes]
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for at, kind in enumerate(kinds):
        if kind in last:
            gaps[at - last[kind]] += 1
        last[kind] = at
    sizes = dict.fromkeys(gap * by for gap, _ in gaps.most_common(_CANDIDATES) for by in _MULTIPLES)
    places = {each: at for at, each in enumerate(nodes)}
    runs = sorted((run for size in sizes for run in _runs(kinds, size)), key=lambda run: (run[0] - run[1], run[2]))
    return next(filter(None, (_begun(nodes, places, *run) for run in runs)), None)


def _begun(nodes: Sequence[Any], places: Mapping[Any, int], begin: int, end: int, size: int) -> _Unrolled | None:
    """The loop in a run of nodes, begun where the fewest values are handed on."""
    phases = (begin + phase + first for first in (0, size) for phase in range(min(size, _PHASES)))
    tried = [_Unrolled(nodes, start, size, LEAST) for start in phases if start + LEAST * size <= end]
    for loop in sorted((each for each in tried if _equal(each, places)), key=lambda each: len(each.inits)):
        loop.steps = (end - loop.start) // size
        if _equal(loop, places) and _leave(loop, places):
            return loop
    return None


def _runs(kinds: Sequence[int], size: int) -> Iterator[tuple[int, int, int]]:
    """(first, behind the last, size) of what repeats after so many nodes, where it does so LEAST times."""
    begin = 0
    for at in range(len(kinds) - size + 1):
        if at + size < len(kinds) and kinds[at] == kinds[at + size]:
            continue
        if at - begin >= size * (LEAST - 1):
            yield begin, at + size, size
        begin = at + 1


def _kind(node: Any) -> Any:
    """What two nodes of equal steps have in common."""
    value = node.meta.get("example_value")
    name = getattr(node.target, "__name__", str(node.target))
    writes = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if writes or "out" in node.kwargs:
        return node  # what writes is not repeated
    given = fx.map_arg(node.args, lambda each: "")
    if _indexes(node):
        given = _masked(given)
    shape = (tuple(value.shape), value.dtype, value.device) if isinstance(value, torch.Tensor) else type(value)
    return node.op, node.target, repr(given), repr(fx.map_arg(node.kwargs, lambda each: "")), str(shape)


_IN_PLACE = frozenset(each for each in dir(operator) if each[0] == "i" and each[1:] in dir(operator))


def _indexes(node: Any) -> bool:
    return node.target in (operator.getitem, operator.setitem)


def _masked(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_masked(each) for each in value]
    if isinstance(value, slice):
        return ["slice", *map(_masked, (value.start, value.stop, value.step))]
    return 0 if type(value) is int else value


def _read(node: Any) -> list[Any]:
    found: list[Any] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _equal(loop: _Unrolled, places: Mapping[Any, int]) -> bool:
    """Whether its steps are equal and hand something on; fewer of them, where the last ones are not."""
    for at in range(loop.size):
        if _indexes(loop.node(0, at)) and not _moves(loop, at):
            return False
        for argument, (one, other) in enumerate(zip(*(_read(loop.node(step, at)) for step in (0, 1)), strict=True)):
            kind = _relation(loop, places, at, one, other)
            if kind is None or (kind[0] == "before" and loop.inits.setdefault(kind[1], one) is not one):
                return False
            loop.kinds[at, argument] = kind
    for step in range(2, loop.steps):
        if not all(_as_said(loop, step, at) for at in range(loop.size)):
            loop.steps = step
            break
    return bool(loop.steps >= LEAST and loop.inits)


def _relation(loop: _Unrolled, places: Mapping[Any, int], at: int, one: Any, other: Any) -> tuple[str, Any] | None:
    """What the first and the second step read in one place."""
    was, place = places.get(one, -1) - loop.start, places.get(other, -1) - loop.start
    if place < 0:
        if one is other:
            return "same", one
        moving = _part(one, other)
        return None if moving is None else ("row", moving)
    if place >= loop.size:
        return ("own", was) if was == place - loop.size else None
    values = [each.meta.get("example_value") for each in (one, other)]
    if was >= 0 or not all(isinstance(each, torch.Tensor) for each in values):
        return None
    return ("before", place) if len({(each.shape, each.dtype) for each in values}) == 1 else None


def _as_said(loop: _Unrolled, step: int, at: int) -> bool:
    node = loop.node(step, at)
    if at in loop.rows and _index(node) != _at(loop.rows[at], _index(loop.node(0, at)), step):
        return False
    for argument, each in enumerate(_read(node)):
        kind, what = loop.kinds[at, argument]
        if kind == "row":
            if each.target is not operator.getitem or each.args != (what.source, what.first + step * what.step):
                return False
        elif each is not (what if kind == "same" else loop.node(step - (kind == "before"), what)):
            return False
    return True


def _index(node: Any) -> tuple[Any, ...]:
    return node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)


def _at(moving: _Moving, index: tuple[Any, ...], step: int) -> tuple[Any, ...]:
    """The index of a step, by that of the first."""
    by = moving.step * step
    entry = index[moving.entry]
    entry = slice(entry.start + by, entry.stop + by) if isinstance(entry, slice) else entry + by
    return (*index[: moving.entry], entry, *index[moving.entry + 1 :])


def _moves(loop: _Unrolled, at: int) -> bool:
    """Whether an index is the same in all steps, or moves on by as much in each of them."""
    node = loop.node(0, at)
    first, second = _index(node), _index(loop.node(1, at))
    value = node.args[0].meta.get("example_value")
    differ = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    writes = node.target is operator.setitem
    if not differ:
        return not writes
    if len(differ) > 1 or not isinstance(value, torch.Tensor) or any(type(each) not in _PLAIN for each in first):
        return False
    before, one = first[: differ[0]], first[differ[0]]
    ends = _elements(one, second[differ[0]], writes)
    if ends is None:
        return False
    begin, step, kept = ends[0], ends[1] - ends[0], (None,) if isinstance(one, slice) else ()
    last, dimension = begin + step * (loop.steps - 1), sum(each is not None for each in before)
    if min(begin, last) < 0 <= max(begin, last):
        return False
    loop.rows[at] = _Moving(
        source=node.args[0], tensor=node.args[0], dimension=dimension, entry=differ[0], step=step,
        first=begin % value.shape[dimension], rest=(*before, *kept, *first[differ[0] + 1 :]),
    )  # fmt: skip
    return not writes or isinstance(node.args[2], fx.Node)


def _elements(one: Any, other: Any, writes: bool) -> tuple[int, int] | None:
    """Which elements an entry of the index takes in the first step and the second; None where it takes several."""
    if not isinstance(one, slice):
        return one, other
    if writes or one.step is not None or None in (one.start, one.stop, other.start, other.stop):
        return None
    return (one.start, other.start) if one.stop - one.start == other.stop - other.start == 1 else None


_PLAIN = (int, slice, type(None))


def _part(one: Any, other: Any) -> _Moving | None:
    """Of what `unbind` gives: the element of a step, and the next one."""
    if not (one.op == other.op == "call_function" and one.target is other.target is operator.getitem):
        return None
    source, value = one.args[0], one.args[0].meta.get("example_value")
    if (
        other.args[0] is not source
        or not isinstance(value, tuple)
        or getattr(source.target, "__name__", source.target) != "unbind"
    ):
        return None
    tensor, *rest = source.args
    dimension = rest[0] if rest else source.kwargs.get("dim", 0)
    rank = len(tensor.meta["example_value"].shape)
    first, step = one.args[1], other.args[1] - one.args[1]
    return _Moving(source=source, tensor=tensor, dimension=dimension % rank, first=first, step=step)


def _leave(loop: _Unrolled, places: Mapping[Any, int]) -> bool:
    """Finds what is read behind the loop; False where that cannot be given."""
    for step, at in itertools.product(range(loop.steps), range(loop.size)):
        node = loop.node(step, at)
        if any(places.get(each, loop.end) >= loop.end for each in node.users):
            loop.used.setdefault(at, set()).add(step)
    for at, moving in loop.rows.items():
        if loop.node(0, at).target is not operator.setitem:
            continue
        inside = [each for each in moving.tensor.users if loop.start <= places.get(each, loop.end) < loop.end]
        wanted = torch.empty(moving.tensor.meta["example_value"].shape, device="meta")[_index(loop.node(0, at))]
        given = loop.node(0, at).args[2].meta.get("example_value")
        if any((places[each] - loop.start) % loop.size != at for each in inside) or given.shape != wanted.shape:
            return False
        kind, place = loop.kinds[at, 1]
        if kind != "own":
            return False
        loop.written[at] = place
    return all(isinstance(loop.node(0, at).meta.get("example_value"), torch.Tensor) for at in loop.used)


# --- writing them ---


def _written(module: Any, loop: _Unrolled, number: int) -> Any:
    """The module with a `scan` in a loop's place."""
    graph, made = fx.Graph(), {}
    inside = {loop.nodes[at]: at - loop.start for at in range(loop.start, loop.end)}
    name = f"rolled_body_{number}"
    stored: dict[int, Any] = {}

    def known(node: Any) -> Any:
        if node not in made:  # an element of what the loop gives
            step, at = divmod(inside[node], loop.size)
            made[node] = graph.call_function(operator.getitem, (stored[at], step))
        return made[node]

    for node in module.graph.nodes:
        if node in inside:
            if inside[node] == 0:
                module.add_module(name, _scan(graph, loop, name, made, stored))
            continue
        whole = _put_together(graph, node, loop, inside, stored, known) if node.target in _LISTS else None
        made[node] = graph.node_copy(node, known) if whole is None else whole
    return fx.GraphModule(module, graph)


def _scan(graph: Any, loop: _Unrolled, name: str, made: dict[Any, Any], stored: dict[int, Any]) -> Any:
    """Writes the call, with its tensors before it and what it gives behind it; returns its body."""
    last = loop.steps - 1
    finals = [at for at, steps in loop.used.items() if steps == {last}]
    states = dict.fromkeys((*loop.inits, *finals))
    kept = list(dict.fromkeys((*(at for at in loop.used if at not in finals), *loop.written.values())))
    rows = dict.fromkeys((*(each for at, each in loop.rows.items() if at not in loop.written),
                          *(what for kind, what in loop.kinds.values() if kind == "row")))  # fmt: skip
    same = dict.fromkeys(what for (at, _), (kind, what) in loop.kinds.items() if kind == "same" and at not in loop.rows)
    call, (inits, tensors) = graph.call_function, _operands(graph, loop, made, list(states), list(rows))
    body = _body(loop, list(states), kept, list(rows), list(same))
    scan = call(torch.ops.higher_order.scan, (graph.get_attr(name), inits, tensors, [made[each] for each in same]))
    for place, at in enumerate(states):
        if at in finals:
            made[loop.node(last, at)] = call(operator.getitem, (scan, place))
    for place, at in enumerate(kept):
        stored[at] = call(operator.getitem, (scan, len(states) + place))
    for at, value in loop.written.items():
        moving, given = loop.rows[at], stored[value]
        index = _index(loop.node(0, at))
        place = sum(type(each) is not int for each in index[: moving.entry])
        given = call(torch.flip, (given, [0])) if moving.step < 0 else given
        given = graph.call_method("movedim", (given, 0, place))
        index = (*index[: moving.entry], moving.taken(loop.steps), *index[moving.entry + 1 :])
        call(operator.setitem, (made[moving.tensor], index, given))
    return body


def _operands(
    graph: Any, loop: _Unrolled, made: Mapping[Any, Any], states: list[int], rows: list[_Moving]
) -> tuple[list[Any], list[Any]]:
    """(the first state, the tensors of which a step gets an element each)"""
    call, inits, tensors = graph.call_function, [], []
    for at in states:
        if at in loop.inits:
            inits.append(graph.call_method("clone", (made[loop.inits[at]],)))
        else:
            value = loop.node(0, at).meta["example_value"]
            inits.append(call(torch.zeros, (tuple(value.shape),), {"dtype": value.dtype, "device": value.device}))
    for each in rows:
        tensor = graph.call_method("movedim", (made[each.tensor], each.dimension, 0))
        tensor = call(operator.getitem, (tensor, each.taken(loop.steps)))
        tensors.append(call(torch.flip, (tensor, [0])) if each.step < 0 else tensor)
    if not rows:  # torch counts the steps by what they read
        device = loop.node(0, states[0]).meta["example_value"].device
        tensors.append(call(torch.zeros, (loop.steps,), {"device": device}))
    return inits, tensors


def _body(loop: _Unrolled, states: list[int], kept: list[int], rows: list[Any], same: list[Any]) -> Any:
    """One step: (state, an element of each tensor, what does not change) -> (state, what is stored)."""
    graph, own = fx.Graph(), {}
    before, now, always = (
        {each: graph.placeholder(f"{kind}_{at}") for at, each in enumerate(many)}
        for kind, many in (("state", states), ("row", rows or [None]), ("same", same))
    )
    for at in range(loop.size):
        node = loop.node(1, at)
        if at in loop.written:
            continue
        if at in loop.rows:
            row, rest = now[loop.rows[at]], loop.rows[at].rest
            whole = all(each == slice(None) for each in rest)
            own[at] = row if whole else graph.call_function(operator.getitem, (row, rest))
            continue
        values = {"own": own, "before": before, "same": always, "row": now}
        which = (loop.kinds[at, argument] for argument in itertools.count())

        def value(_: Any, which: Iterator[Any] = which, values: Any = values) -> Any:
            kind, what = next(which)
            return values[kind][what]

        given = fx.map_arg((node.args, node.kwargs), value)
        own[at] = graph.create_node(node.op, node.target, *given)
    graph.output(tuple(graph.call_method("clone", (own[at],)) for at in (*states, *kept)))
    return fx.GraphModule({}, graph)


def _put_together(
    graph: Any, node: Any, loop: _Unrolled, inside: Mapping[Any, int], stored: Mapping[int, Any], known: Any
) -> Any:
    """A `stack` or a `cat` of what all steps give, in their order or the other way round, with others beside."""
    values, *rest = node.args
    dimension = rest[0] if rest else node.kwargs.get("dim", 0)
    rank = len(node.meta["example_value"].shape)
    stacks, dimension, parts, at = node.target is torch.stack, dimension % rank, [], 0
    while at < len(values):
        step, place = divmod(inside.get(values[at], -1), loop.size)
        way = 1 if step == 0 else -1
        every = [loop.node(each, place) for each in range(loop.steps)][::way]
        if step in (0, loop.steps - 1) and place in stored and list(values[at : at + loop.steps]) == every:
            whole = stored[place] if way > 0 else graph.call_function(torch.flip, (stored[place], [0]))
            whole = graph.call_method("movedim", (whole, 0, dimension))
            parts.append(whole if stacks else graph.call_method("flatten", (whole, dimension, dimension + 1)))
            at += loop.steps
            continue
        one = known(values[at])
        parts.append(graph.call_method("unsqueeze", (one, dimension)) if stacks else one)
        at += 1
    if len(parts) == len(values):
        return None
    return graph.call_function(torch.cat, (parts, dimension))
