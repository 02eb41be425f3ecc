"""Cuts a graph into regions that can be fused and the operators between them.

    depth(library)  = max over its producers
    depth(fusable)  = max over its producers, one more behind a library call

A region is all fusable nodes of one depth; the order is region 0, library calls 0, region 1, ... So no path leaves a
region and comes back. Views that leave a region are torch's again: it makes no copies for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond.service.frameworks.boundaries import boundaries
from fusiond.torch import importer
from fusiond.torch.graphs import FxGraph, FxNode, Ref, Tensor
from fusiond.torch.operators import MOVEMENT, VIEWS, Unsupported

LEAST = 2  #: Nodes of a region that compute something: with fewer there is nothing to fuse


@dataclass(frozen=True, slots=True, kw_only=True)
class FxSegment:
    """Nodes that are computed together."""

    nodes: tuple[FxNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fusable: bool
    reason: str = ""  #: Why a segment is not fusable

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(each.operator for each in self.nodes)


@dataclass(frozen=True, slots=True)
class _Place:
    depth: int
    library: bool
    ends: bool  #: Whether what reads it lies deeper


def cut(graph: FxGraph) -> tuple[FxSegment, ...]:
    """Segments in an order in which they can be computed."""
    tensors = graph.tensors()
    problems = _problems(graph, tensors)
    found = _cut(graph, tensors, problems, apart=False)
    loops = [each for each in found if each.fusable and sum(node.loop is not None for node in each.nodes) > 1]
    if any(_left(each.nodes, each.outputs, tensors) for each in loops):
        # Each of its loops is one launch by itself: what one lays down for another is stored, then.
        found = _cut(graph, tensors, problems, apart=True)
    return found


def _left(nodes: Sequence[FxNode], outputs: Sequence[str], tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    """Why the kernels of a region would not compute all of it; empty where they would."""
    made = {each.name for each in nodes}
    read = dict.fromkeys(name for each in nodes for name in each.reads if name not in made)
    inputs = {name: each for name in read for each in tensors[name] if each is not None}
    try:
        return "; ".join(boundaries(importer.text("tried", nodes, inputs, outputs)))
    except Unsupported as why:
        return str(why)


def _cut(
    graph: FxGraph, tensors: Mapping[str, Sequence[Tensor | None]], problems: Mapping[str, str], *, apart: bool
) -> tuple[FxSegment, ...]:
    """`apart`: what reads a loop is in another region than that."""
    places = _sunk(graph, _places(graph, problems, apart), tensors)
    groups: dict[tuple[int, bool], list[FxNode]] = {}
    for node in graph.nodes:
        place = places[node.name]
        groups.setdefault((place.depth, place.library), []).append(node)
    ordered = sorted(groups.items())
    read_after: list[set[str]] = []
    needed = set(graph.outputs)
    for _, nodes in reversed(ordered):
        read_after.append(set(needed))
        needed |= {name for node in nodes for name in node.reads}
    segments: list[FxSegment] = []
    for ((_, library), nodes), after in zip(ordered, reversed(read_after), strict=True):
        if library:
            reasons = dict.fromkeys(problems[each.name] for each in nodes if problems[each.name])
            segments.append(_segment(nodes, after, fusable=False, reason=_said(reasons)))
        else:
            segments += _region(nodes, after)
    return tuple(segments)


def _said(reasons: Iterable[str]) -> str:
    special = [each for each in reasons if each != "a library's"]
    return "; ".join(special)


def _problems(graph: FxGraph, tensors: Mapping[str, Sequence[Tensor | None]]) -> dict[str, str]:
    """FxNode -> why it is left to torch; a `getitem` goes with what it picks from. Regions lie on the device that most
    of the graph is on."""
    found: dict[str, str] = {}
    constant: dict[str, FxNode] = {}  #: What is made of nothing
    devices = [each.device for node in graph.nodes for each in node.results if each is not None]
    device = max(dict.fromkeys(devices), key=devices.count, default="cpu")
    for node in graph.nodes:
        if node.operator == "getitem" and node.reads:
            found[node.name] = found.get(node.reads[0], "a library's")
            if not found[node.name] and node.results[0] is None:
                found[node.name] = "it picks what is not a tensor"
            continue
        found[node.name] = importer.problem(node, tensors)
        if not found[node.name] and any(each is not None and each.device != device for each in node.results):
            found[node.name] = f"it is not on {device}"
        if node.loop is not None and not found[node.name]:
            found[node.name] = _loop_problem(node, constant, tensors)
        if not node.effect and not found[node.name] and all(each in constant for each in node.reads):
            constant[node.name] = node
    return found


def _loop_problem(node: FxNode, constant: Mapping[str, FxNode], tensors: Mapping[str, Sequence[Tensor | None]]) -> str:
    """Why a loop cannot be one launch, with the constants that it is given."""
    before, picks = _live(list(constant.values()), set(node.reads)), []
    for at, each in enumerate(node.results):
        if each is not None:
            picks.append(FxNode(name=f"{node.name}.{at}", operator="getitem", arguments=(Ref(node.name), at),
                                results=(each,)))  # fmt: skip
    why = _left([*before, node, *picks], [each.name for each in picks], tensors)
    return f"{node.operator}: {why}" if why else ""


def _places(graph: FxGraph, problems: Mapping[str, str], apart: bool) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    last: dict[str, str] = {}
    """Kind of effect -> the node before which no other of the kind, and behind a mutation nothing, may run."""
    deepest = 0
    for node in graph.nodes:
        library = bool(problems[node.name])
        before = [*node.reads, *(last[each] for each in ("mutation", node.effect) if each in last)]
        depth = 0
        for each in before:
            if each in places:
                depth = max(depth, places[each].depth + (places[each].ends and not library))
        if node.effect == "mutation":
            depth = max(depth, deepest)
        if node.effect:
            last[node.effect] = node.name
        deepest = max(deepest, depth)
        places[node.name] = _Place(depth, library, library or (apart and node.loop is not None))
    return places


def _sunk(
    graph: FxGraph, places: dict[str, _Place], tensors: Mapping[str, Sequence[Tensor | None]]
) -> dict[str, _Place]:
    """A node goes to the first region that reads it where that reads no more than it would have read of the node's
    result: a mask, a widened number, what is made of nothing. A mutation is never passed."""
    if any(node.effect == "mutation" for node in graph.nodes):
        return places
    wanted: dict[str, int] = {}
    kept = set(graph.outputs)
    found = dict(places)
    for node in reversed(graph.nodes):
        place = places[node.name]
        picks = node.operator == "getitem" or len(node.results) > 1
        sinks = not place.library and not picks and node.name not in kept and node.name in wanted
        if sinks and _bytes(tensors, node.reads) <= _bytes(tensors, [node.name]):
            place = _Place(max(place.depth, wanted[node.name]), False, False)
            found[node.name] = place
        for each in node.reads:
            # A library call reads in front of the region of the next depth.
            wanted[each] = min(place.depth, wanted.get(each, place.depth))
    return found


def _bytes(tensors: Mapping[str, Sequence[Tensor | None]], names: Iterable[str]) -> int:
    return sum(each.size_bytes for name in names for each in tensors[name] if each is not None)


def _segment(nodes: Sequence[FxNode], after: set[str], *, fusable: bool, reason: str = "") -> FxSegment:
    made = {each.name for each in nodes}
    inputs = dict.fromkeys(name for each in nodes for name in each.reads if name not in made)
    outputs = tuple(each.name for each in nodes if each.name in after)
    return FxSegment(nodes=tuple(nodes), inputs=tuple(inputs), outputs=outputs, fusable=fusable, reason=reason)


def _region(nodes: Sequence[FxNode], after: set[str]) -> list[FxSegment]:
    """A region, and behind it the views of its values that leave it."""
    by_name = {each.name: each for each in nodes}
    views: dict[str, FxNode] = {}
    leaving = [each.name for each in nodes if each.name in after]
    kept = set()
    while leaving:
        name = leaving.pop()
        node = by_name[name]
        source = by_name.get(node.reads[0]) if node.operator == "getitem" else node
        if source is not None and source.operator in VIEWS:
            views |= {name: node, source.name: source}
            leaving += [each for each in source.reads if each in by_name and each not in views]
        else:
            kept.add(name)
    inside = _live(nodes, kept)
    found: list[FxSegment] = []
    if inside:
        found.append(_worth(inside, kept))
    if views:
        outside = [each for each in nodes if each.name in views]
        found.append(_segment(outside, after, fusable=False))
    return found


def _live(nodes: Sequence[FxNode], kept: set[str]) -> list[FxNode]:
    """Those that something of what is kept depends on."""
    needed = set(kept)
    found = []
    for node in reversed(nodes):
        if node.name in needed:
            needed |= set(node.reads)
            found.append(node)
    return found[::-1]


def _worth(nodes: Sequence[FxNode], kept: set[str]) -> FxSegment:
    if sum(LEAST if each.loop else _computes(each) for each in nodes) < LEAST:
        return _segment(nodes, kept, fusable=False, reason="too little to fuse")
    return _segment(nodes, kept, fusable=True)


def _computes(node: FxNode) -> int:
    if node.decomposed:
        return max(map(_computes, node.decomposed.nodes), default=0)
    stencil = node.operator == "aten.convolution.default"  # with the border in front of it, and what writes it out
    return LEAST if stencil else int(node.operator not in MOVEMENT)
