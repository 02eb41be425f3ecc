"""Cuts a graph into regions that can be fused and the operators between them (`service.frameworks.cutting`).

Views that leave a region are torch's again: it makes no copies for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond.service.frameworks import cutting
from fusiond.service.frameworks.boundaries import boundaries
from fusiond.service.frameworks.cutting import LEAST, Operation
from fusiond.torch import importer
from fusiond.torch.graphs import FxGraph, FxNode, Ref, Tensor
from fusiond.torch.operators import MOVEMENT, VIEWS, Unsupported


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


def cut(graph: FxGraph) -> tuple[FxSegment, ...]:
    """Segments in an order in which they can be computed."""
    tensors = graph.tensors()
    problems = _problems(graph, tensors)
    operations = [_operation(each, bool(problems[each.name]), tensors) for each in graph.nodes]
    found = _segments(operations, graph.outputs, problems, apart=False)
    loops = [each for each in found if each.fusable and sum(node.loop is not None for node in each.nodes) > 1]
    if any(_left(each.nodes, each.outputs, tensors) for each in loops):
        # Each of its loops is one launch by itself: what one lays down for another is stored, then.
        found = _segments(operations, graph.outputs, problems, apart=True)
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


def _operation(node: FxNode, library: bool, tensors: Mapping[str, Sequence[Tensor | None]]) -> Operation:
    """It sinks where it reads no more than what reads it would have read of its result: a mask, a widened number, what
    is made of nothing."""
    picks = node.operator == "getitem" or len(node.results) > 1
    return Operation(
        node=node,
        reads=node.reads,
        makes=(node.name,),
        library=library,
        loop=node.loop is not None,
        effect=node.effect,
        sinks=not picks and _bytes(tensors, node.reads) <= _bytes(tensors, [node.name]),
    )


def _bytes(tensors: Mapping[str, Sequence[Tensor | None]], names: Iterable[str]) -> int:
    return sum(each.size_bytes for name in names for each in tensors[name] if each is not None)


def _segments(
    operations: Sequence[Operation], outputs: Sequence[str], problems: Mapping[str, str], *, apart: bool
) -> tuple[FxSegment, ...]:
    segments: list[FxSegment] = []
    for part in cutting.parts(operations, outputs, apart=apart, by_depth=False):
        if part.library:
            reasons = dict.fromkeys(problems[each.name] for each in part.nodes)
            said = "; ".join(each for each in reasons if each not in ("", "a library's"))
            segments.append(_segment(part.nodes, part.after, fusable=False, reason=said))
        else:
            segments += _region(part.nodes, part.after)
    return tuple(segments)


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
        worth = sum(LEAST if each.loop else _computes(each) for each in inside) >= LEAST
        found.append(_segment(inside, kept, fusable=worth, reason="" if worth else "too little to fuse"))
    if views:
        found.append(_segment([each for each in nodes if each.name in views], after, fusable=False))
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


def _computes(node: FxNode) -> int:
    if node.decomposed:
        return max(map(_computes, node.decomposed.nodes), default=0)
    stencil = node.operator == "aten.convolution.default"  # with the border in front of it, and what writes it out
    return LEAST if stencil else int(node.operator not in MOVEMENT)
