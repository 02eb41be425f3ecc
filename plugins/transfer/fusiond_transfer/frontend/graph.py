"""The kernel graph: kernels on the host and on the device, and the vectors that flow between them.

A vector is written once (single assignment; Kessler, section 3). What is stored where another vector was is still
another vector: both share a *cell*, one place in each memory. In a loop the body is executed again and again, and a
`carried` vector of one iteration is an input of the next.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self, TypeAlias, TypeVar

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program import EQUAL, Compare, Fill
from fusiond.strategy.composition.fragments import Fragment

Kept = TypeVar("Kept")
HOST, DEVICE = "host", "device"
MEMORIES = COPIED, MAPPED, MANAGED = "copied", "mapped", "managed"
"""Where a vector may lie that both sides use: in both memories, in memory of the host that the device reads, or in
memory whose pages move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    name: str
    dtype: str = "uint32"
    elements: int = 1
    fill: Fill = field(default_factory=Fill)
    compare: Compare = EQUAL
    memory: str = COPIED  #: `copied`; `mapped`, `managed` where it may lie in such memory

    @property
    def size_bytes(self) -> int:
        """What plans are made of: a number, even where `elements` knows how it follows from the sizes."""
        return int(self.elements) * DTYPES[self.dtype].bytes


# --- what kernels compute -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The default: every output element is a hash of all inputs, so that a copy that is missing, or came too early,
    changes the results. Whole-number arithmetic: exact everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One expression for each output, in the order of `writes` (`frontend.formula` has the grammar)."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The user's own source. The entry takes pointers to what is read, then to what is written, then the values, each
    an int."""

    text: str
    entry: str
    values: tuple[int, ...] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedBody:
    """What another strategy made of several kernels: a launch whose pointers name vectors."""

    fragment: Fragment


Body: TypeAlias = Mix | Formula | Text | FusedBody


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKernel:
    name: str
    on: str  #: `host` or `device`
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()  #: (written, read): the first is stored where the second was
    body: Body = field(default_factory=Mix)
    rows: str = ""  #: Of a source that works row by row: the size that counts the rows (`frontend.row_wise`)
    whole: tuple[str, ...] = ()  #: What each of its rows reads all of
    origin: str = ""  #: Of a kernel in an unrolled loop: the name of the kernel that it is an instance of
    passed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Where vectors are cut: what it is passed to read and to write, as the user names it. `reads` and `writes` are the
    pieces of that."""

    @property
    def device(self) -> bool:
        return self.on == DEVICE

    @property
    def read_operands(self) -> tuple[str, ...]:
        """What it is passed to read, a pointer for each."""
        return self.passed[0] or self.reads

    @property
    def write_operands(self) -> tuple[str, ...]:
        """What it is passed to write."""
        return self.passed[1] or self.writes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutVector:
    """A vector that kernels name in parts, and its pieces in memory order (`frontend.sub_vectors`)."""

    vector: Vector
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDocument:
    """Kernels that a document for another strategy describes as a whole (`fusiond_transfer.delegation`)."""

    name: str  #: Of the file, for people
    kind: str  #: Of the document: `pipeline`, `module`
    path: str
    text: str = field(repr=False)
    keys: Mapping[str, Any] = field(compare=False)  #: Of the job beside the document
    sizes: Mapping[str, int] = field(compare=False)
    reads: Mapping[str, str] = field(compare=False)  #: The document's name -> the vector
    writes: Mapping[str, str] = field(compare=False)


class Keeping:
    """What never changes, and keeps what is made of it."""

    def kept(self, name: str, make: Callable[[Self], Kept]) -> Kept:
        """What is made of it, once."""
        held: dict[str, Any] = self.__dict__.setdefault("_kept", {})
        if name not in held:
            held[name] = make(self)
        found: Kept = held[name]
        return found


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived is kept
class Graph(Keeping):
    """See the module's docstring. The order of `kernels` is the schedule."""

    name: str
    vectors: tuple[Vector, ...]
    kernels: tuple[GraphKernel, ...]
    inputs: tuple[str, ...]  #: Live on entry
    outputs: tuple[str, ...]  #: Live on exit: wanted on the host
    placed: tuple[str, ...] = ()  #: Inputs that lie on the device from the start, and not on the host
    loop: bool = False  #: The steady state of a loop: slots are counted within one iteration, intervals wrap round
    carried: tuple[tuple[str, str], ...] = ()
    """(input, vector): the vector is this input of the next iteration. Only in a loop."""
    limit_bytes: int | None = None  #: What may be allocated on the device at any time
    adjacent: tuple[tuple[str, ...], ...] = ()
    """Runs of vectors that must lie in memory in this order, next to each other."""
    regions: tuple[RegionDocument, ...] = ()  #: What other strategies can make one launch of
    iterations: int = 1  #: Of a loop, as far as it is unrolled to be measured
    cut: tuple[CutVector, ...] = ()  #: Vectors that are here as their pieces
    runs: tuple[tuple[str, tuple[str, ...]], ...] = ()  #: Operands that are several pieces, and not all, of one of them
    equal_bounds: tuple[int, ...] = ()  #: Where they are cut, as far as that holds at these sizes only
    sizes: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """What its numbers may follow from (they are Extents then), by name."""

    @functools.cached_property
    def index(self) -> Mapping[str, int]:
        """Vector name -> its place in `vectors`."""
        return MappingProxyType({each.name: number for number, each in enumerate(self.vectors)})

    def vector(self, name: str) -> Vector:
        """The vector of that name; KeyError when there is none."""
        return self.vectors[self.index[name]]

    @functools.cached_property
    def operands(self) -> Mapping[str, Vector]:
        """What kernels can be passed beside vectors: those that are cut, and several of their pieces."""
        found = {each.vector.name: each.vector for each in self.cut}
        for name, pieces in self.runs:
            elements = sum(self.vector(each).elements for each in pieces)
            found[name] = replace(self.vector(pieces[0]), name=name, elements=elements)
        return MappingProxyType(found)

    def operand(self, name: str) -> Vector:
        """What a kernel is passed under a name; KeyError when there is no such thing."""
        return self.operands[name] if name in self.operands else self.vector(name)

    @functools.cached_property
    def pieces(self) -> Mapping[str, tuple[str, ...]]:
        """Operand -> the vectors that it consists of, in memory order; absent where it is one."""
        return MappingProxyType({**{each.vector.name: each.pieces for each in self.cut}, **dict(self.runs)})

    @functools.cached_property
    def home(self) -> Mapping[str, CutVector]:
        """Piece -> the vector that is cut, and its pieces."""
        return MappingProxyType({name: each for each in self.cut for name in each.pieces})

    @functools.cached_property
    def wholes(self) -> Mapping[str, CutVector]:
        """What the cells of a vector that is cut are together (the vector, or what stands for it: `x.store`) -> the
        vector and these cells."""
        found = {}
        for each in self.cut:
            cells = tuple(self.cell[name] for name in each.pieces)
            found[each.vector.name + ("" if cells == each.pieces else ".store")] = replace(each, pieces=cells)
        return MappingProxyType(found)

    @functools.cached_property
    def homes(self) -> Mapping[str, tuple[str, int]]:
        """Cell of a piece -> what it is a piece of (a name in `wholes`), and from which element on."""
        found: dict[str, tuple[str, int]] = {}
        for name, whole in self.wholes.items():
            at = 0
            for cell in whole.pieces:
                found[cell] = name, at
                at += self.members[cell][0].elements
        return MappingProxyType(found)

    @functools.cached_property
    def glued(self) -> Mapping[str, tuple[str, int]]:
        """Cell of a piece -> what it is a piece of, and the bytes of that before it."""
        width = {name: DTYPES[each.vector.dtype].bytes for name, each in self.wholes.items()}
        return MappingProxyType({cell: (home, first * width[home]) for cell, (home, first) in self.homes.items()})

    @functools.cached_property
    def device_runs(self) -> tuple[tuple[str, ...], ...]:
        """Cells of pieces that have to lie together on the device: a kernel there is passed one pointer to all of
        them."""
        with_last = {
            self.cell[piece]
            for kernel in self.kernels if kernel.device
            for name in (*kernel.read_operands, *kernel.write_operands)
            for piece in self.pieces.get(name, ())[1:]
        }  # fmt: skip
        runs: list[list[str]] = []
        for whole in self.wholes.values():
            for cell in whole.pieces:
                if cell in with_last:
                    runs[-1].append(cell)
                else:
                    runs.append([cell])
        return tuple(tuple(run) for run in runs if len(run) > 1)

    def as_given(self, names: Iterable[str]) -> tuple[str, ...]:
        """Vectors as the user names them: pieces as what they are of."""
        return tuple(dict.fromkeys(self.home[each].vector.name if each in self.home else each for each in names))

    @functools.cached_property
    def producer(self) -> Mapping[str, int]:
        """Vector -> number of the kernel that writes it; inputs are absent."""
        return MappingProxyType({name: k for k, kernel in enumerate(self.kernels) for name in kernel.writes})

    @functools.cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Vector -> the kernels that read it, in schedule order; absent when there are none."""
        found: dict[str, list[int]] = {}
        for k, kernel in enumerate(self.kernels):
            for name in dict.fromkeys(kernel.reads):
                found.setdefault(name, []).append(k)
        return MappingProxyType({name: tuple(each) for name, each in found.items()})

    @functools.cached_property
    def cell(self) -> Mapping[str, str]:
        """Vector -> the cell that it lies in. A vector with a cell to itself gives it its name; a shared one is called
        after its first vector: `x.store`. (So is that of a placed input, which is not what the user gives.)"""
        first = {each.name: each.name for each in self.vectors}
        shared = set(self.placed)
        for kernel in self.kernels:
            for new, old in kernel.in_place:
                first[new] = first[old]
                shared.add(first[old])
        return MappingProxyType({name: f"{home}.store" if home in shared else home for name, home in first.items()})

    @functools.cached_property
    def members(self) -> Mapping[str, tuple[Vector, ...]]:
        """Cell -> the vectors that lie in it, one after the other."""
        found: dict[str, list[Vector]] = {}
        for vector in self.vectors:
            found.setdefault(self.cell[vector.name], []).append(vector)
        return MappingProxyType({name: tuple(each) for name, each in found.items()})

    @functools.cached_property
    def neighbours(self) -> tuple[tuple[str, ...], ...]:
        """Runs of cells that lie next to each other, each once."""
        return tuple(dict.fromkeys(tuple(self.cell[name] for name in run) for run in self.adjacent))

    @property
    def shares_storage(self) -> bool:
        return any(kernel.in_place for kernel in self.kernels)
