"""The invariants of a kernel graph; each broken rule is one line with its place.

names        of vectors and kernels are identifiers, and each stands once
sizes        at least one element, a known type
one writer   single assignment: a vector is written by one kernel, and no input is written
order        what a kernel reads is an input, or was written by a kernel before it
known        reads, writes, inputs, outputs, placed, carried, adjacent name vectors that there are
formulas     are over types that they compute with: no floats of 8 bits
in place     the old vector is read by that kernel, by none after it, and is not an output; sizes and types are equal
parts        of vectors are for graphs without a loop or a limit, and are not stored in place
loop         what is carried is an input and a vector of its size and type, each once
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.frontend.graph import Formula, Graph, GraphKernel, Text, in_formulas

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_BYTES = 2**40
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`place` is where in a graph's file: ("kernels", 3, "reads", 0)."""

    place: Place
    text: str


def problems(graph: Graph) -> Iterator[Problem]:
    """Every broken rule, in the order of the docstring's list."""
    yield from _parts(graph)
    yield from _names(graph)
    yield from _sizes(graph)
    yield from _writers(graph)
    yield from _reads(graph)
    yield from _lists(graph)
    yield from _adjacent(graph)
    yield from _in_place(graph)
    yield from _formulas(graph)
    yield from _loop(graph)


def _parts(graph: Graph) -> Iterator[Problem]:
    if not graph.cut:
        return
    cut = graph.cut[0].vector.name
    if graph.loop:
        yield Problem(("loop",), f"no part of a vector is named in a loop, and {cut} is")
    if graph.limit_bytes is not None:
        yield Problem(("limits",), f"no part of a vector is named under a limit, and {cut} is")
    for k, kernel in enumerate(graph.kernels):
        parts = (name for pair in kernel.in_place for name in pair if "[" in name or name in graph.operands)
        for name in parts:
            yield Problem(("kernels", k, "in_place"), f"{name} is named in parts; stored in place is all of a vector")


def _names(graph: Graph) -> Iterator[Problem]:
    if not graph.kernels:
        yield Problem(("kernels",), "has no kernel; list at least one")
    seen: set[str] = set()
    for number, kernel in enumerate(graph.kernels):
        if not _NAME.fullmatch(kernel.name):
            yield Problem(("kernels", number, "name"), f"{kernel.name[:80]!r} is not a name; use letters, digits and _")
        if kernel.name in seen:
            yield Problem(("kernels", number, "name"), f"two kernels are called {kernel.name!r}")
        seen.add(kernel.name)
    for each in graph.vectors:
        if each.name not in graph.home and not _NAME.fullmatch(each.name):
            yield Problem(("vectors", each.name), f"{each.name[:80]!r} is not a name; use letters, digits and _")


def _sizes(graph: Graph) -> Iterator[Problem]:
    for each in graph.vectors:
        place: Place = ("vectors", each.name)
        if each.dtype not in DTYPES:
            yield Problem(place, f"{each.name} is of {each.dtype!r}; it can be {', '.join(DTYPES)}")
        elif not isinstance(each.elements, int):
            yield Problem(place, f"{each.name} has {each.elements!r} elements; expected a whole number")
        elif each.elements < 1:
            yield Problem(place, f"{each.name} has {each.elements} elements; expected at least one")
        elif each.elements * DTYPES[each.dtype].bytes > MAX_BYTES:
            yield Problem(place, f"{each.name} has {each.size_bytes} bytes; there may be {MAX_BYTES}")


def _writers(graph: Graph) -> Iterator[Problem]:
    writer: dict[str, str] = {}
    inputs = set(graph.inputs)
    for k, kernel in enumerate(graph.kernels):
        if not kernel.writes:
            yield Problem(("kernels", k), f"{kernel.name} writes nothing")
        for position, name in enumerate(kernel.writes):
            place = ("kernels", k, "writes", position)
            if name not in graph.index:
                yield Problem(place, f"there is no vector {name!r}")
            elif name in inputs:
                yield Problem(place, f"{name} is an input, and {kernel.name} writes it; give the result another name")
            elif name in writer:
                both = f"{writer[name]} and {kernel.name}" if writer[name] != kernel.name else f"{kernel.name}, twice"
                yield Problem(place, f"{name} has two writers: {both}")
            writer.setdefault(name, kernel.name)


def _reads(graph: Graph) -> Iterator[Problem]:
    known = set(graph.inputs)
    circle: str | None = None
    for k, kernel in enumerate(graph.kernels):
        for position, name in enumerate(kernel.reads):
            place = ("kernels", k, "reads", position)
            if name in known:
                continue
            if name not in graph.producer:
                what = "is neither an input nor written" if name in graph.index else "is not a vector of this graph"
                yield Problem(place, f"{kernel.name} reads {name}, which {what}")
                continue
            later = graph.kernels[graph.producer[name]].name
            if circle is None:
                circle = _circle(graph)
            if circle:
                yield Problem(place, f"the kernels form a cycle: {circle}")
                return
            yield Problem(place, f"{kernel.name} reads {name} before {later} writes it; list {later} first")
        known.update(kernel.writes)


def _circle(graph: Graph) -> str:
    """`a -> b -> a`, or nothing: depth first over the kernels, without recursion."""
    state = [0] * len(graph.kernels)
    for start in range(len(graph.kernels)):
        path: list[int] = []
        stack = [(start, False)]
        while stack:
            k, done = stack.pop()
            if done:
                state[k] = 2
                path.pop()
                continue
            if state[k]:
                if state[k] == 1 and k in path:
                    names = [graph.kernels[each].name for each in path[path.index(k) :]]
                    return " -> ".join([names[0], *reversed(names[1:]), names[0]])
                continue
            state[k] = 1
            path.append(k)
            stack.append((k, True))
            before = [graph.producer[name] for name in graph.kernels[k].reads if name in graph.producer]
            stack += [(each, False) for each in before if state[each] != 2]
    return ""


def _lists(graph: Graph) -> Iterator[Problem]:
    groups = [("inputs", graph.inputs), ("outputs", graph.outputs), ("placed", graph.placed)]
    inputs = set(graph.inputs)
    for key, names in groups:
        seen: set[str] = set()
        for position, name in enumerate(names):
            if name not in graph.index:
                yield Problem((key, position), f"there is no vector {name!r}")
            elif name in seen:
                yield Problem((key, position), f"{name} stands twice")
            seen.add(name)
    for position, name in enumerate(graph.placed):
        if name in graph.index and name not in inputs:
            yield Problem(("placed", position), f"{name} is not an input")
    for position, name in enumerate(graph.outputs):
        if name in graph.index and name not in graph.producer:
            yield Problem(("outputs", position), f"{name} is written by no kernel")
    if not graph.outputs:
        yield Problem(
            ("outputs",), "is empty, so there is nothing to compare; name at least one vector that a kernel writes"
        )
    if graph.limit_bytes is not None and graph.limit_bytes < 1:
        yield Problem(("limits", "device_bytes"), f"is {graph.limit_bytes}; expected at least one byte")


def _adjacent(graph: Graph) -> Iterator[Problem]:
    for position, run in enumerate(graph.adjacent):
        for name in run:
            if name not in graph.index:
                yield Problem(("adjacent", position), f"there is no vector {name!r}")
        if len(set(run)) != len(run) or len(run) < 2:
            yield Problem(("adjacent", position), "a run is two or more different vectors")
        if any(name in other for other in graph.adjacent[:position] for name in run):
            yield Problem(("adjacent", position), "a vector is in two runs")


def _in_place(graph: Graph) -> Iterator[Problem]:
    taken: set[str] = set()
    for k, kernel in enumerate(graph.kernels):
        for new, old in kernel.in_place:
            place = ("kernels", k, "in_place")
            if new not in kernel.writes or old not in kernel.reads:
                yield Problem(
                    place, f"{kernel.name} must write {new} and read {old}, to store the one where the other was"
                )
                continue
            a, b = graph.vector(new), graph.vector(old)
            if (a.dtype, a.elements) != (b.dtype, b.elements):
                yield Problem(place, f"{new} and {old} differ in size or type, so they cannot share storage")
            if old in taken:
                yield Problem(place, f"two vectors are stored where {old} was")
            taken.add(old)
            later = [graph.kernels[each].name for each in graph.readers.get(old, ()) if each > k]
            if later:
                yield Problem(place, f"{later[0]} reads {old} after {kernel.name} has stored {new} there")
            if old in graph.outputs:
                yield Problem(place, f"{old} is an output, and {kernel.name} stores {new} there")
            generated = not isinstance(kernel.body, Text)
            if generated and len({int(graph.operand(name).elements) for name in _written(graph, kernel)}) > 1:
                yield Problem(
                    place, f"the outputs of {kernel.name} differ in length: one would overwrite what another needs"
                )
            sums = isinstance(kernel.body, Formula) and any(
                text.lstrip().startswith("sum") for text in kernel.body.texts
            )
            if sums and len(kernel.write_operands) > 1:
                yield Problem(place, f"{kernel.name} sums for several outputs: one would overwrite what another needs")
            if graph.loop:
                yield Problem(place, "what is carried shares storage by itself; in_place is for graphs without a loop")


def _written(graph: Graph, kernel: GraphKernel) -> Iterator[str]:
    return (name for name in kernel.write_operands if name in graph.index or name in graph.operands)


def _formulas(graph: Graph) -> Iterator[Problem]:
    for k, kernel in enumerate(graph.kernels):
        names = (*kernel.reads, *kernel.writes) if isinstance(kernel.body, Formula) else ()
        for name in names:
            if name in graph.index and not in_formulas(graph.vector(name).dtype):
                dtype = graph.vector(name).dtype
                yield Problem(
                    ("kernels", k, "body"), f"{name} is of {dtype}, with which no formula computes; give a source"
                )


def _loop(graph: Graph) -> Iterator[Problem]:
    if graph.carried and not graph.loop:
        yield Problem(("carried",), "is for loops; say loop: true")
    if graph.loop and not graph.carried:
        yield Problem(("loop",), "nothing is carried from one iteration to the next")
    if graph.loop and graph.placed:
        yield Problem(("placed",), "is for graphs without a loop: in its steady state, everything is in its place")
    if graph.loop and graph.adjacent:
        yield Problem(("adjacent", 0), "is for graphs without a loop")
    if graph.loop and graph.limit_bytes is not None:
        yield Problem(("limits",), "a limit is for graphs without a loop")
    heads: set[str] = set()
    tails: set[str] = set()
    for head, tail in graph.carried:
        place: Place = ("carried", head)
        if head not in graph.inputs:
            yield Problem(place, f"{head} is not an input")
        elif tail not in graph.producer:
            yield Problem(place, f"no kernel writes {tail!r}")
        else:
            a, b = graph.vector(head), graph.vector(tail)
            if (a.dtype, a.elements) != (b.dtype, b.elements):
                yield Problem(place, f"{tail} and {head} differ in size or type")
        if head in heads or tail in tails:
            yield Problem(place, f"{head} or {tail} is carried twice")
        heads.add(head)
        tails.add(tail)
