"""Pictures of an answer as data; pages and files draw them.

LaneDrawing   :=  title, unit, TimelineLane+     who has which part of an axis: threads, blocks, time
TimelineLane  :=  name, TimelineSpan*
TimelineSpan  :=  start, end, text, kind
DrawnGraph    :=  title, DrawnNode+, Edge*       what depends on what, and what is one kernel
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

MOST_NODES, MOST_LANES, MOST_SPANS = 120, 40, 400
"""Beyond these nobody sees anything: a strategy draws something coarser, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    start: float
    end: float
    text: str
    kind: int = 0  #: Spans of one kind have one colour


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineLane:
    name: str
    spans: tuple[TimelineSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneDrawing:
    title: str
    unit: str  #: What the axis counts: `thread`, `block`, `slot`
    lanes: tuple[TimelineLane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    name: str
    text: str
    group: int  #: Nodes of one group are one kernel; -1: an input, or what no kernel of ours computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    source: str
    target: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGraph:
    title: str
    nodes: tuple[DrawnNode, ...]
    edges: tuple[Edge, ...]  #: Between two groups, what crosses is written to memory and read again


Drawing: TypeAlias = LaneDrawing | DrawnGraph

_KINDS: Mapping[type, str] = {LaneDrawing: "lanes", DrawnGraph: "graph"}  #: What each is called where it is kept


def as_json(drawings: Sequence[Drawing]) -> list[dict[str, Any]]:
    return [{"is": _KINDS[type(each)], **dataclasses.asdict(each)} for each in drawings]


def from_json(entries: Sequence[Mapping[str, Any]]) -> tuple[Drawing, ...]:
    """ValueError for what is not a picture."""
    try:
        return tuple(_drawing(each) for each in entries)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a drawing: {problem}") from problem


def _drawing(entry: Mapping[str, Any]) -> Drawing:
    if entry["is"] == "lanes":
        lanes = tuple(
            TimelineLane(name=each["name"], spans=tuple(TimelineSpan(**span) for span in each["spans"]))
            for each in entry["lanes"]
        )
        return LaneDrawing(title=entry["title"], unit=entry["unit"], lanes=lanes)
    if entry["is"] == "graph":
        nodes, edges = (
            tuple(DrawnNode(**each) for each in entry["nodes"]),
            tuple(Edge(**each) for each in entry["edges"]),
        )
        return DrawnGraph(title=entry["title"], nodes=nodes, edges=edges)
    raise ValueError(f"not a drawing: {entry['is']!r}")
