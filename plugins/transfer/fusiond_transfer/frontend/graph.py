"""The kernel graph: kernels on the host and on the device, and the vectors that flow between them.

    Graph   :=  vectors, kernels in schedule order, inputs, outputs, placed, loop, carried, limit, adjacent
    Kernel  :=  name, on (host | device), reads, writes, in_place, body
    Vector  :=  name, dtype, elements, fill, compare
    Body    :=  Mix | Formula (an expression for each output) | Text (source, entry, grid, block, values)
             |  FusedBody (a launch of another strategy's, in the place of several kernels)

A vector is written once (single assignment; Kessler, section 3). What is stored where another vector was is still
another vector: both share a *cell*, one place in each memory. In a loop the body is executed again and again, and a
`carried` vector of one iteration is an input of the next.
"""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program import EQUAL, Compare, Fill
from fusiond.strategy.composition.fragments import Fragment

HOST, DEVICE = "host", "device"
MEMORIES = COPIED, MAPPED, MANAGED = "copied", "mapped", "managed"
"""Where a vector may lie that both sides use: in both memories, in memory of the host that the device reads, or in
memory whose pages move."""
_NOT_COMPUTED = ("float8_e4m3fn", "float8_e5m2")


def in_formulas(dtype: str) -> bool:
    """Whether formulas compute with such elements."""
    return dtype not in _NOT_COMPUTED


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


@dataclass(frozen=True, kw_only=True)  # without slots: what is derived is kept
class Graph:
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
    def derived(self) -> dict[str, Any]:
        """What is made of it again and again, kept by whoever makes it: texts, for one."""
        return {}

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
            elements = sum((self.vector(each).elements for each in pieces[1:]), self.vector(pieces[0]).elements)
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
        """Piece -> the vector that is cut."""
        return MappingProxyType({name: each for each in self.cut for name in each.pieces})

    @functools.cached_property
    def glued(self) -> Mapping[str, tuple[str, int]]:
        """Cell of a piece -> the vector (or what stands for it) of which it is one, and the bytes of that before it."""
        found: dict[str, tuple[str, int]] = {}
        for each in self.cut:
            lead = 0
            for name in each.pieces:
                found.setdefault(self.cell[name], (self.whole_cell(each), lead))
                vector = self.vector(name)
                lead += vector.elements * DTYPES[vector.dtype].bytes
        return MappingProxyType(found)

    @functools.cached_property
    def device_runs(self) -> tuple[tuple[str, ...], ...]:
        """Cells of pieces that have to lie together on the device: a kernel there is passed one pointer to all of
        them."""
        wholes = tuple(dict.fromkeys(tuple(self.cell[name] for name in each.pieces) for each in self.cut))
        place = {name: (number, at) for number, cells in enumerate(wholes) for at, name in enumerate(cells)}
        joined = [[False] * len(cells) for cells in wholes]  # whether a piece lies with the one before it
        for kernel in self.kernels:
            for name in (*kernel.read_operands, *kernel.write_operands) if kernel.device else ():
                own = self.pieces.get(name, ())
                if own:
                    number, at = place[self.cell[own[0]]]
                    joined[number][at + 1 : at + len(own)] = [True] * (len(own) - 1)
        found = []
        for cells, with_last in zip(wholes, joined, strict=True):
            starts = [at for at, together in enumerate(with_last) if not together]
            runs = (cells[a:b] for a, b in itertools.pairwise([*starts, len(cells)]))
            found += [run for run in runs if len(run) > 1]
        return tuple(found)

    def whole_cell(self, cut: CutVector) -> str:
        """What the cells of a vector that is cut are together: the vector, or what stands for it: `x.store`."""
        cell = self.cell[cut.pieces[0]]
        return cut.vector.name if cell == cut.pieces[0] else f"{cell.partition('[')[0]}.store"

    def as_given(self, names: tuple[str, ...]) -> tuple[str, ...]:
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
    def neighbours(self) -> tuple[tuple[str, ...], ...]:
        """Runs of cells that lie next to each other, each once: pieces that are stored where others were lie as those
        do."""
        runs = list(dict.fromkeys(tuple(self.cell[name] for name in run) for run in self.adjacent))
        holding: dict[str, list[tuple[str, ...]]] = {}
        for run in runs:
            for name in run:
                holding.setdefault(name, []).append(run)
        return tuple(run for run in runs if not any(run != other and {*run} <= {*other} for other in holding[run[0]]))

    @property
    def shares_storage(self) -> bool:
        return any(kernel.in_place for kernel in self.kernels)
