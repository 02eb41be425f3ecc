"""Parts of vectors that kernels read or write: `x[0:1024]`, elements 0 to 1023.

    reads: ["x[0:n // 2]"]    reads: [x]    -->    vectors x[0:512] and x[512:1024], which cross by themselves;
                                                   the one kernel reads the first, the other both

Every vector that is named in parts is cut wherever one of them begins or ends. From there on the pieces are vectors of
their own, for whatever plans: each is written once, and crosses where it is needed. They lie next to each other without
a gap, so a kernel that is passed several of them, or all, gets one pointer.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fusiond.model.language.expressions import ExpressionError
from fusiond.model.language.extents import text_of
from fusiond.model.nouns import frozen
from fusiond_transfer.frontend import formula
from fusiond_transfer.frontend.graph import CutVector, Graph, GraphKernel, RegionDocument, Vector

_PART = re.compile(r"([A-Za-z_]\w*)\s*\[([^:]*):([^:]*)\]")


class PartError(ValueError):
    """What is named is not part of a vector; the message is one line."""


class Span(NamedTuple):
    """Elements of a vector, from the first to before the end."""

    whole: str
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.whole}[{int(self.first)}:{int(self.end)}]"


def whole_name(name: str) -> str:
    """The vector of which a name is a part; itself, where it is none."""
    return name.partition("[")[0].strip()


def span(name: str, elements: Mapping[str, int], number: Callable[[str], int]) -> Span | None:
    """The part that a name is; None for a vector's own name. `number` evaluates an expression. PartError."""
    if "[" not in name:
        return None
    found = _PART.fullmatch(name)
    if found is None:
        raise PartError(f"{name[:80]!r} is not a part of a vector; expected a name and bounds, such as x[0:1024]")
    whole = found[1]
    if whole not in elements:
        raise PartError(f"there is no vector {whole!r}")
    try:
        first = number(found[2]) if found[2].strip() else 0
        end = number(found[3]) if found[3].strip() else elements[whole]
    except ExpressionError as problem:
        raise PartError(f"{name[:80]}: {problem}") from None
    if not 0 <= first < end <= elements[whole]:
        why = "has no elements" if first >= end else f"is not within the {int(elements[whole])} elements of {whole}"
        raise PartError(f"{whole}[{int(first)}:{int(end)}] {why}")
    return Span(whole, first, end)


def unfit(texts: Sequence[str], kernel: GraphKernel, elements: Mapping[str, int]) -> str | None:
    """Why formulas do not fit their kernel, whose operands have so many elements; None when they do."""
    found: dict[str, int] = {}  #: Vector, as the formula names it -> how many elements of it are read, or written
    for names in (kernel.reads, kernel.writes):
        wholes = {whole_name(name): name for name in names}
        for name in names:
            whole = whole_name(name)
            if wholes[whole] != name or found.get(whole, elements[name]) != elements[name]:
                return f"{whole} would stand for two parts of it; a source gets a pointer to each"
        found |= {whole: elements[name] for whole, name in wholes.items()}
    reads, writes = (tuple(map(whole_name, names)) for names in (kernel.reads, kernel.writes))
    return formula.mismatch(texts, reads, writes, found)


def resolved(graph: Graph, spans: Mapping[str, Span]) -> Graph:
    """A graph whose kernels name parts, as one of pieces. `spans`: what each such name is."""
    length = {each.name: int(each.elements) for each in graph.vectors}
    spans = {name: each for name, each in spans.items() if int(each.end) - int(each.first) < length[each.whole]}
    wanted = {each.whole for each in spans.values()}
    cuts = {each.name: _bounds(each, spans) for each in graph.vectors if each.name in wanted}
    pieces = {
        name: [Span(name, a, b) for a, b in itertools.pairwise(bounds)]
        for name, bounds in cuts.items()
        if len(bounds) > 2
    }
    runs: dict[str, tuple[str, ...]] = {}

    def passed(name: str) -> str:
        if name not in spans:
            return whole_name(name)
        own = spans[name]
        inside = tuple(each.name for each in pieces[own.whole] if own.first <= each.first < own.end)
        if len(inside) > 1:
            runs[own.name] = inside
        return own.name

    def expanded(names: Iterable[str]) -> tuple[str, ...]:
        found = (runs.get(name) or [each.name for each in pieces.get(name, ())] or [name] for name in names)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))

    def kernel(given: GraphKernel) -> GraphKernel:
        reads, writes = tuple(map(passed, given.reads)), tuple(map(passed, given.writes))
        pieced = expanded(reads), expanded(writes)
        plain = pieced == (reads, writes) and length.keys() >= {*reads, *writes}
        return dataclasses.replace(
            given,
            reads=pieced[0],
            writes=pieced[1],
            passed=((), ()) if plain else (reads, writes),
            whole=tuple(map(passed, given.whole)),
        )

    kernels = tuple(map(kernel, graph.kernels))
    beside = set(itertools.chain.from_iterable(graph.adjacent))
    cut = tuple(CutVector(vector=graph.vector(name), pieces=tuple(e.name for e in run)) for name, run in pieces.items())
    vectors: list[Vector] = []
    for vector in graph.vectors:
        own = pieces.get(vector.name)
        vectors += [vector] if own is None else [
            dataclasses.replace(vector, name=each.name, elements=each.end - each.first) for each in own
        ]  # fmt: skip

    def region(given: RegionDocument) -> RegionDocument:
        sides = ({name: passed(each) for name, each in side.items()} for side in (given.reads, given.writes))
        reads, writes = map(frozen, sides)
        return dataclasses.replace(given, reads=reads, writes=writes)

    return dataclasses.replace(
        graph,
        regions=tuple(map(region, graph.regions)),
        vectors=tuple(vectors),
        kernels=kernels,
        inputs=expanded(graph.inputs),
        outputs=expanded(graph.outputs),
        placed=expanded(graph.placed),
        adjacent=(*map(expanded, graph.adjacent), *(each.pieces for each in cut if each.vector.name not in beside)),
        cut=cut,
        runs=tuple(runs.items()),
        equal_bounds=tuple(_equal_bounds(graph, spans)),
    )


def _bounds(vector: Vector, spans: Mapping[str, Span]) -> list[int]:
    """Where a vector is cut, its ends included: where parts of it begin or end."""
    found = {0: 0, int(vector.elements): vector.elements}
    for each in spans.values():
        if each.whole == vector.name:
            found.setdefault(int(each.first), each.first)
            found.setdefault(int(each.end), each.end)
    return [found[at] for at in sorted(found)]


def _equal_bounds(graph: Graph, spans: Mapping[str, Span]) -> Iterable[int]:
    """Bounds that are equal at these sizes and written in two ways: they may be apart at others."""
    written: dict[tuple[str, int], dict[str, int]] = {}
    for each in spans.values():
        for bound in (each.first, each.end, graph.vector(each.whole).elements):
            written.setdefault((each.whole, int(bound)), {})[text_of(bound)] = bound
    for ways in written.values():
        if len(ways) > 1:
            yield from ways.values()
