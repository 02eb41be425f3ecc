"""The elements of a script: cells, and the ops that move and compute them.

Vectors that are cut have a cell for each piece (`Graph.wholes`).
"""

import dataclasses
import functools
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

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


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived is kept
class KernelCall:
    """A kernel on cells: `reads` and `writes` in the order of its parameters."""

    kernel: GraphKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.kernel.name

    @functools.cached_property
    def cell(self) -> Mapping[str, str]:
        """Vector of the kernel -> the cell that is it in this call."""
        vectors = (*self.kernel.reads, *self.kernel.writes)
        return dict(zip(vectors, (*self.reads, *self.writes), strict=True))

    def cells(self, graph: Graph, operand: str) -> tuple[str, ...]:
        """The cells that an operand consists of."""
        return tuple(self.cell[each] for each in graph.pieces.get(operand, (operand,)))


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
    spare: Set[str] = frozenset()  #: Pieces that are on the device only where all of their vector is


def needed(graph: Graph, like: Mapping[str, Vector], host: Set[str], device: Set[str]) -> tuple[Cell, ...]:
    """The cells that either side needs. One that is called as an input or output has nothing else in it."""
    given, wanted = set(graph.inputs), set(graph.outputs)
    return tuple(
        Cell(
            name=name, like=vector, host=name in host, device=name in device, input=name in given, output=name in wanted
        )
        for name, vector in like.items()
        if name in host or name in device
    )


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


def trimmed(cells: Sequence[str], wanted: Container[str]) -> tuple[str, ...]:
    """Cells that lie side by side, from the first to the last that is wanted."""
    ends = [number for number, name in enumerate(cells) if name in wanted]
    return tuple(cells[ends[0] : ends[-1] + 1]) if ends else ()


def touched(op: Op) -> tuple[str, ...]:
    """The cells that an op touches on the device."""
    if isinstance(op, Move):
        return op.cells
    if isinstance(op, KernelCall):
        return (*op.reads, *op.writes) if op.kernel.device else ()
    return (op.cell,) if isinstance(op, Staging) and op.device else ()


def stays(
    touching: Iterable[tuple[Op, Iterable[str]]], groups: Sequence[Sequence[str]], *, leaving: bool = True
) -> dict[tuple[int, int], tuple[int, int]]:
    """(group of cells, how often it was evicted before) -> the first and the last of the ops that touch it then, by
    their positions. `touching`: each op, and the cells that it touches on the device. Where nothing is `leaving`, a
    group stays from its first use to its last."""
    home = {cell: number for number, group in enumerate(groups) for cell in group}
    turn = dict.fromkeys(range(len(groups)), 0)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for position, (op, cells) in enumerate(touching):
        if leaving and isinstance(op, Evict) and op.cell in home:
            turn[home[op.cell]] += 1
        for cell in cells:
            if cell in home:
                stay = home[cell], turn[home[cell]]
                found[stay] = found.get(stay, (position,))[0], position
    return found


def with_pieces(made: Script) -> Script:
    """A script of a graph in which vectors are cut: which pieces share an allocation."""
    graph = made.graph
    there = dict.fromkeys(name for op in made.ops for name in touched(op))
    groups = layout.joined((*made.order, *(each.name for each in made.cells)), (*made.arenas, *graph.device_runs))
    arenas = (tuple(name for name in group if name in there) for group in groups)
    return dataclasses.replace(
        made,
        arenas=tuple(group for group in arenas if group),
        inputs=_as_given(graph, made.inputs),
        outputs=_as_given(graph, made.outputs),
        spare=frozenset(each.name for each in made.cells if each.device and each.name not in there),
    )


def _as_given(graph: Graph, vectors: Iterable[Vector]) -> tuple[Vector, ...]:
    """Vectors as the user gives and takes them, not in pieces."""
    return tuple(map(graph.operand, graph.as_given(each.name for each in vectors)))
