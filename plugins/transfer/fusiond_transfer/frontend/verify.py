"""The invariants of a kernel graph; each broken rule is one line with its place."""

import graphlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.frontend.graph import Formula, Graph, GraphKernel, Text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_BYTES = 2**40
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`place` is where in a graph's file: ("kernels", 3, "reads", 0)."""

    place: Place
    text: str


def problems(graph: Graph) -> Iterator[Problem]:
    """Every broken rule."""
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
    """`a -> b -> a`, or nothing."""
    needs = {
        k: [graph.producer[name] for name in kernel.reads if name in graph.producer]
        for k, kernel in enumerate(graph.kernels)
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as found:
        return " -> ".join(graph.kernels[k].name for k in found.args[1])
    return ""


def _lists(graph: Graph) -> Iterator[Problem]:
    inputs = set(graph.inputs)
    for key, names in (("inputs", graph.inputs), ("outputs", graph.outputs), ("placed", graph.placed)):
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
            if _differ(graph, new, old):
                yield Problem(place, f"{new} and {old} differ in size or type, so they cannot share storage")
            if old in taken:
                yield Problem(place, f"two vectors are stored where {old} was")
            taken.add(old)
            later = [graph.kernels[each].name for each in graph.readers.get(old, ()) if each > k]
            if later:
                yield Problem(place, f"{later[0]} reads {old} after {kernel.name} has stored {new} there")
            if old in graph.outputs:
                yield Problem(place, f"{old} is an output, and {kernel.name} stores {new} there")
            yield from (Problem(place, text) for text in _overwriting(graph, kernel))
            if graph.loop:
                yield Problem(place, "what is carried shares storage by itself; in_place is for graphs without a loop")


def _overwriting(graph: Graph, kernel: GraphKernel) -> Iterator[str]:
    """Why a kernel that stores something in place would overwrite what it still needs."""
    known = (name for name in kernel.write_operands if name in graph.index or name in graph.operands)
    if not isinstance(kernel.body, Text) and len({int(graph.operand(name).elements) for name in known}) > 1:
        yield f"the outputs of {kernel.name} differ in length: one would overwrite what another needs"
    texts = kernel.body.texts if isinstance(kernel.body, Formula) else ()
    if len(kernel.write_operands) > 1 and any(text.lstrip().startswith("sum") for text in texts):
        yield f"{kernel.name} sums for several outputs: one would overwrite what another needs"


def _formulas(graph: Graph) -> Iterator[Problem]:
    for k, kernel in enumerate(graph.kernels):
        names = (*kernel.reads, *kernel.writes) if isinstance(kernel.body, Formula) else ()
        for name in names:
            if name in graph.index and graph.vector(name).dtype.startswith("float8"):
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
    for number, (head, tail) in enumerate(graph.carried):
        place: Place = ("carried", head)
        if head not in graph.inputs:
            yield Problem(place, f"{head} is not an input")
        elif tail not in graph.producer:
            yield Problem(place, f"no kernel writes {tail!r}")
        elif _differ(graph, head, tail):
            yield Problem(place, f"{tail} and {head} differ in size or type")
        if any(head == before[0] or tail == before[1] for before in graph.carried[:number]):
            yield Problem(place, f"{head} or {tail} is carried twice")


def _differ(graph: Graph, one: str, other: str) -> bool:
    """In size or type."""
    a, b = graph.vector(one), graph.vector(other)
    return (a.dtype, a.elements) != (b.dtype, b.elements)
