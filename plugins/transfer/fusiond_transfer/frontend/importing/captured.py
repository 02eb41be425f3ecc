"""A CUDA graph as the driver describes it: nodes in an order that its edges allow, addresses in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The bytes from `start` to before `end` that a copy or memset uses; not `dense`: rows with gaps between them."""

    start: int
    end: int
    host: bool
    dense: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What the driver has allocated: from `start` to before `end`. `host`: pinned; `device`: its number."""

    start: int
    end: int
    host: bool
    managed: bool = False
    device: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedNode:
    """One node. `kind` is the driver's type; `before`: the positions of those that it waits for."""

    kind: str
    before: tuple[int, ...] = ()
    source: Region | None = None
    """Of a copy; None for an array."""
    target: Region | None = None
    """Of a copy or memset; what an allocation node allocates."""
    bytes: int = 0
    value: int | None = None
    """The byte that a memset sets; None where its bytes differ."""
    name: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    pointers: tuple[int, ...] | None = ()
    """Addresses among a kernel's arguments, in their order; None where the arguments cannot be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraph:
    nodes: tuple[CapturedNode, ...]
    allocations: tuple[Allocation, ...]
    """Those in which addresses of the nodes lie."""
