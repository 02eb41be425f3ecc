"""Draws a strategy's pictures as SVG: lanes along an axis, and graphs in layers."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fusiond.model.drawing import Drawing, DrawnGraph, DrawnNode, LaneDrawing
from fusiond.model.english import shortened
from fusiond.service.web.plots import figure

WIDTH = 960
_COLOURS = 8
_LANE, _NAME = 26, 150
_NODE_HEIGHT, _LAYER, _GAP, _LETTER = 26, 58, 14, 6.4
"""Pixels: of a node and of a layer with the edges below it, between nodes, and of a letter at 11 px."""
_MOST_TEXT = 28


def svg(drawing: Drawing) -> Markup:
    return _lanes(drawing) if isinstance(drawing, LaneDrawing) else _graph(drawing)


# --- lanes ----------------------------------------------------------------------------------------------


def _lanes(drawing: LaneDrawing) -> Markup:
    spans = [span for lane in drawing.lanes for span in lane.spans]
    low, high = min((each.start for each in spans), default=0), max((each.end for each in spans), default=1)
    scale = (WIDTH - _NAME - 16) / max(high - low, 1e-9)

    def x(at: float) -> float:
        return _NAME + (at - low) * scale

    parts = []
    for number, lane in enumerate(drawing.lanes):
        top = 8 + _LANE * number
        name = Markup('<text x="{}" y="{}" text-anchor="end">{}</text>')
        parts.append(name.format(_NAME - 8, top + 15, shortened(lane.name, 24)))
        for span in lane.spans:
            width = max(2.0, (span.end - span.start) * scale - 1)
            room = int(width / _LETTER)
            text = shortened(span.text, room) if room >= 3 else ""
            parts.append(
                Markup(
                    '<rect class="g{}" x="{:.1f}" y="{}" width="{:.1f}" height="20" rx="3"><title>{}</title></rect>'
                    '<text class="on" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
                ).format(
                    span.kind % _COLOURS,
                    x(span.start),
                    top,
                    width,
                    span.text,
                    x(span.start) + width / 2,
                    top + 14,
                    text,
                )
            )
    bottom = 8 + _LANE * len(drawing.lanes)
    for at in sorted({each.start for each in spans} | {each.end for each in spans})[: 2 * _COLOURS]:
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>').format(x(at), bottom + 12, at))
    said = "; ".join(
        f"{lane.name}: "
        + ", ".join(f"{span.text} ({drawing.unit} {span.start:g} to {span.end:g})" for span in lane.spans)
        for lane in drawing.lanes
    )
    return figure(WIDTH, bottom + 20, f"{drawing.title}: {said}", Markup("").join(parts), "lanes", fixed=True)


# --- graphs ---------------------------------------------------------------------------------------------


def _graph(drawing: DrawnGraph) -> Markup:
    layers = _ordered(drawing, _layers(drawing))
    place: dict[str, tuple[float, float, float]] = {}
    wide = max((sum(_width(each) + _GAP for each in layer) for layer in layers), default=0.0)
    total = max(wide + 2 * _GAP, 320.0)
    for number, layer in enumerate(layers):
        at = (total - sum(_width(each) + _GAP for each in layer)) / 2
        for node in layer:
            place[node.name] = at, 10.0 + _LAYER * number, _width(node)
            at += _width(node) + _GAP
    group = {each.name: each.group for each in drawing.nodes}
    parts = []
    for edge in drawing.edges:
        (x1, y1, w1), (x2, y2, w2) = place[edge.source], place[edge.target]
        one, two = (x1 + w1 / 2, y1 + _NODE_HEIGHT), (x2 + w2 / 2, y2)
        ends = group[edge.source], group[edge.target]
        cut = " cut" if min(ends) >= 0 and ends[0] != ends[1] else ""
        bend = f"M{_at(*one)}C{_at(one[0], one[1] + 24)} {_at(two[0], two[1] - 24)} {_at(*two)}"
        parts.append(Markup('<path class="edge{}" d="{}"><title>{}</title></path>').format(
            cut, bend, f"{edge.source} -> {edge.target} {edge.text}".strip()
        ))  # fmt: skip
    for node in drawing.nodes:
        x, y, width = place[node.name]
        kind = "outside" if node.group < 0 else f"g{node.group % _COLOURS}"
        parts.append(
            Markup(
                '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="4"><title>{}</title></rect>'
                '<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>'
            ).format(
                kind, x, y, width, _NODE_HEIGHT, f"{node.name}: {node.text}", "off" if node.group < 0 else "on",
                x + width / 2, y + 17, _label(node),
            )
        )  # fmt: skip
    said = "; ".join(
        f"kernel {number + 1}: {', '.join(each.text for each in drawing.nodes if each.group == number)}"
        for number in sorted({each.group for each in drawing.nodes if each.group >= 0})
    )
    height = int(10 + _LAYER * len(layers))
    return figure(round(total), height, f"{drawing.title}: {said}", Markup("").join(parts), "graph", fixed=True)


def _at(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"


def _label(node: DrawnNode) -> str:
    return shortened(node.text, _MOST_TEXT)


def _width(node: DrawnNode) -> float:
    return max(36.0, _LETTER * len(_label(node)) + 14)


def _layers(drawing: DrawnGraph) -> Mapping[str, int]:
    """Of each node the longest way from what reads nothing. What lies on a cycle stays where it was found first."""
    after: dict[str, list[str]] = {each.name: [] for each in drawing.nodes}
    open_ = dict.fromkeys(after, 0)
    for edge in drawing.edges:
        after[edge.source].append(edge.target)
        open_[edge.target] += 1
    found = dict.fromkeys(after, 0)
    waiting = [name for name, count in open_.items() if not count]
    while waiting:
        name = waiting.pop()
        for target in after[name]:
            found[target] = max(found[target], found[name] + 1)
            open_[target] -= 1
            if not open_[target]:
                waiting.append(target)
    return found


def _ordered(drawing: DrawnGraph, layer: Mapping[str, int]) -> Sequence[Sequence[DrawnNode]]:
    """The layers, each in the order of what its nodes read: few edges cross then."""
    before: dict[str, list[str]] = {each.name: [] for each in drawing.nodes}
    for edge in drawing.edges:
        before[edge.target].append(edge.source)
    found: list[list[DrawnNode]] = [[] for _ in range(1 + max(layer.values(), default=-1))]
    for node in drawing.nodes:
        found[layer[node.name]].append(node)
    place: dict[str, float] = {}
    for nodes in found:
        nodes.sort(key=lambda each: _middle([place[name] for name in before[each.name] if name in place]))
        for number, node in enumerate(nodes):
            place[node.name] = (number + 0.5) / len(nodes)
    return found


def _middle(places: Sequence[float]) -> float:
    return sum(places) / len(places) if places else 0.5
