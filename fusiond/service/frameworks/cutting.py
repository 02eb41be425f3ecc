"""Cuts operations in topological order into regions that can be fused and the library calls between them.

    depth(library call) = max over what it reads, and what has to run before it
    depth(fusable)      = the same, one more behind a library call

A region is all fusable operations of one depth; the order is region 0, library calls 0, region 1, ... So no path leaves
a region and comes back.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 2  #: Operations of a region that compute something: with fewer there is nothing to fuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operator of a framework's, with the names of what it reads and makes."""

    node: Any
    reads: Sequence[Hashable]
    makes: Sequence[Hashable]
    library: bool
    loop: bool = False
    effect: str = ""  #: `random` or `mutation`: it keeps its place among others of its kind
    sinks: bool = False  #: Whether it costs no more to make it where it is first read than to read it there


@dataclass(frozen=True, slots=True)
class CutPart:
    """A region, or the library calls of one depth."""

    library: bool
    nodes: list[Any]
    after: set[Any]  #: What is needed behind it


def parts(
    operations: Sequence[Operation], outputs: Iterable[Hashable], *, apart: bool, by_depth: bool
) -> list[CutPart]:
    """In an order in which they can be computed. `apart`: what reads a loop is in another region than that. `by_depth`:
    what sank into a region stands in front of what belongs there; else all as it came."""
    groups: dict[tuple[int, bool], list[Operation]] = {}
    depths = _depths(operations, apart)
    rows = zip(depths, _sunk(operations, depths, set(outputs)), operations, strict=True)
    for _, depth, each in sorted(rows, key=lambda row: row[0]) if by_depth else rows:
        groups.setdefault((depth, each.library), []).append(each)
    found, needed = [], set(outputs)
    for (_, library), group in sorted(groups.items(), key=lambda item: item[0], reverse=True):
        found.append(CutPart(library, [each.node for each in group], set(needed)))
        needed |= {name for each in group for name in each.reads}
    return found[::-1]


def _depths(operations: Sequence[Operation], apart: bool) -> list[int]:
    found: list[int] = []
    made: dict[Hashable, tuple[int, bool]] = {}
    """What is made -> its depth, and whether what reads it lies deeper."""
    last: dict[str, Hashable] = {}
    """Kind of effect -> that before which no other of the kind, and behind a mutation nothing, may run."""
    for each in operations:
        before = [*each.reads, *(last[kind] for kind in ("mutation", each.effect) if kind in last)]
        levels = [made[name] for name in before if name in made]
        depth = max((level + (ends and not each.library) for level, ends in levels), default=0)
        if each.effect == "mutation":
            depth = max((depth, *found))
        if each.effect:
            last[each.effect] = each.makes[0]
        made |= dict.fromkeys(each.makes, (depth, each.library or (apart and each.loop)))
        found.append(depth)
    return found


def _sunk(operations: Sequence[Operation], depths: list[int], outputs: set[Hashable]) -> list[int]:
    """The depths, each of what sinks that of the first region which reads it. A mutation is never passed."""
    if any(each.effect == "mutation" for each in operations):
        return depths
    wanted: dict[Hashable, int] = {}
    found = []
    for depth, each in zip(reversed(depths), reversed(operations), strict=True):
        if each.sinks and not each.library and outputs.isdisjoint(each.makes):
            depth = min((wanted[name] for name in each.makes if name in wanted), default=depth)
        found.append(depth)
        wanted |= {name: min(depth, wanted.get(name, depth)) for name in each.reads}
    return found[::-1]
