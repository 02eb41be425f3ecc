"""The elements of a script: cells, and the ops that move and compute them.

Vectors that are cut have a cell for each piece; what these are together is a Whole.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.analysis import layout
from fusiond_transfer.frontend.graph import Graph, GraphKernel, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A place in both memories, as far as it is needed there."""

    name: str
    like: Vector
    host: bool
    device: bool
    input: bool = False  #: Its content on the host is given, and never changes
    output: bool = False
    managed: bool = False  #: It is one place for both memories, whose pages move


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A vector that is cut, and the cells that are its pieces, in memory order."""

    like: Vector
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Cells that lie side by side, from one memory to the other; `wanted` of them hold something that matters."""

    name: str
    up: bool
    cells: tuple[str, ...]
    wanted: tuple[str, ...]
    slot: int = 0
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate:
    """Managed cells that lie side by side: their pages go to one side, before they are used there."""

    name: str
    up: bool
    cells: tuple[str, ...]
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A kernel on cells: `reads` and `writes` in the order of its parameters."""

    name: str
    kernel: GraphKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Between an input or output buffer and the cell that stands for it; never counted. Within the host, but what is
    placed goes to the device."""

    name: str
    buffer: str
    cell: str
    into: bool  #: From the buffer into the cell; else the other way
    device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A cell leaves the device, and comes again: its allocation is freed, where allocations count."""

    name: str
    cell: str


Op: TypeAlias = Move | Migrate | KernelCall | Staging | Evict


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    graph: Graph
    cells: tuple[Cell, ...]
    order: tuple[str, ...]  #: Cells that cross, in memory order
    arenas: tuple[tuple[str, ...], ...]
    ops: tuple[Op, ...]
    inputs: tuple[Vector, ...]  #: Input and output buffers that are not cells themselves
    outputs: tuple[Vector, ...]
    calls: tuple[GraphKernel, ...]  #: Every kernel that is called, once for each call
    managed: tuple[tuple[str, ...], ...] = ()
    """Managed cells; those of one run share an allocation, as their pages move together."""
    homes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Cell that is a piece of a vector -> what it is a piece of, and from which element on."""
    wholes: Mapping[str, Whole] = field(default_factory=dict)  #: What cells are pieces of, by name
    spare: Set[str] = frozenset()  #: Pieces that are on the device only where all of their vector is

    @property
    def glued(self) -> Mapping[str, tuple[str, int]]:
        """Cell that is a piece -> what it is a piece of, and the bytes of that before it."""
        return {
            cell: (home, first * DTYPES[self.wholes[home].like.dtype].bytes)
            for cell, (home, first) in self.homes.items()
        }

    @property
    def device_runs(self) -> tuple[tuple[str, ...], ...]:
        """Pieces that have to lie together on the device."""
        return self.graph.device_runs

    def cell(self, name: str) -> Cell:
        """The cell of that name; KeyError when there is none."""
        for each in self.cells:
            if each.name == name:
                return each
        raise KeyError(name)


def with_own_names(made: Script) -> Script:
    """A script in which no other op is called as a kernel is."""
    taken = {each.name for each in made.ops if isinstance(each, KernelCall)}
    ops: list[Op] = []
    for each in made.ops:
        if not isinstance(each, KernelCall):
            name = each.name
            while name in taken:
                name += "_"
            taken.add(name)
            each = dataclasses.replace(each, name=name) if name != each.name else each
        ops.append(each)
    return dataclasses.replace(made, ops=tuple(ops))


def touched(op: Op) -> tuple[str, ...]:
    """The cells that an op touches on the device."""
    if isinstance(op, Move):
        return op.cells
    if isinstance(op, KernelCall):
        return (*op.reads, *op.writes) if op.kernel.device else ()
    return (op.cell,) if isinstance(op, Staging) and op.device else ()


def with_pieces(made: Script, wholes: Mapping[str, Whole]) -> Script:
    """A script of a graph in which vectors are cut: where their pieces lie, and which of them share an allocation."""
    graph = made.graph
    like = {each.name: each.like for each in made.cells}
    homes: dict[str, tuple[str, int]] = {}
    for name, whole in wholes.items():
        at = 0
        for cell in whole.cells if whole.cells[0] in like else ():
            homes[cell] = name, at
            at += like[cell].elements
    there = dict.fromkeys(name for op in made.ops for name in touched(op))
    groups = layout.joined((*made.order, *(each.name for each in made.cells)), (*made.arenas, *graph.device_runs))
    arenas = (tuple(name for name in group if name in there) for group in groups)
    return dataclasses.replace(
        made,
        arenas=tuple(group for group in arenas if group),
        homes=homes,
        wholes=wholes,
        inputs=_as_wholes(graph, made.inputs),
        outputs=_as_wholes(graph, made.outputs),
        spare=frozenset(each.name for each in made.cells if each.device and each.name not in there),
    )


def _as_wholes(graph: Graph, vectors: Iterable[Vector]) -> tuple[Vector, ...]:
    """Vectors as the user gives and takes them, not in pieces."""
    return tuple(dict.fromkeys(graph.home[each.name].vector if each.name in graph.home else each for each in vectors))
