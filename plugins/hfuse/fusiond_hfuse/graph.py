"""The nouns of horizontal fusion.

    Pair    :=  Slot a, Slot b, granularity          two kernels that share nothing
    Slot    :=  letter, Kernel, sizes                a kernel may stand in both slots
    Kernel  :=  Unit, entry, Parameter*, Argument*, Block, grid, shared
    Unit    :=  the text of one .cu with the user's own headers put in their places
    Side    :=  Slot, block shape, first thread      a slot inside one fused block
    Plan    :=  kind (horizontal | vertical), Side, Side in the order of their threads

Everything here is frozen; the functions that make and use these values are in the files named after the verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusiond.expressions import Expression
from fusiond.model import Rejection
from fusiond.program import Buffer, Dim3

WARP = 32
SLOTS = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A translation unit with the user's quoted includes expanded."""

    text: str
    origins: tuple[tuple[str, int], ...]
    """For each line of `text`: the file it came from, and its line there."""
    system: tuple[str, ...]
    """Headers named in angle brackets, each once, in the order of their first mention."""
    macros: tuple[str, ...]
    """Every macro that the text defines."""
    files: Mapping[str, str]
    """Path -> text of every file that went into it."""

    def where(self, line: int) -> str:
        """`file:line` for a line of `text`, counted from 1."""
        if not 1 <= line <= len(self.origins):
            return self.origins[0][0] if self.origins else "<empty>"
        path, original = self.origins[line - 1]
        return f"{path}:{original}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace bytes `start` to `end` of a unit's text by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a kernel as clang sees it."""

    name: str
    pointer: bool
    dtype: str | None
    """The Program's name of the (pointed-to) type; None when it is another type or depends on a template argument."""
    spelling: str
    """The type as written."""
    target: str
    """The type, or the pointed-to type, without qualifiers and typedefs: `long`, `float4`."""
    constant: bool = False
    """Pointer to const."""
    restrict: bool = False
    dependent: bool = False
    void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What the front end found in a unit."""

    entry: str
    """The kernel's name with its namespaces."""
    parameters: tuple[Parameter, ...]
    edits: tuple[Edit, ...]
    """What turns the kernel into a device function with shadow parameters (section III-A, done without renaming)."""
    uses_dynamic_shared: bool
    static_shared_bytes: int | None
    """Sum over all static `__shared__` variables; None when a size depends on a template argument."""
    barriers: int
    """Calls of `__syncthreads` in the text."""
    launch_bound: int | None
    """The literal first argument of `__launch_bounds__`."""
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A kernel argument: a buffer when `elements` is there, a scalar when `value` is."""

    name: str
    dtype: str
    elements: Expression | None = None
    buffer: Buffer | None = None
    """A pattern: the name and the number of elements are filled in for a slot."""
    value: Expression | float | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The block shapes that a kernel can be launched with.

    `shapes[0]` is the given one. With `tune`, that axis takes any length; otherwise the shapes are all there are.
    """

    shapes: tuple[Dim3, ...]
    tune: int | None = None
    """The axis that may be stretched: 0, 1, 2."""

    def shape(self, threads: int) -> Dim3 | None:
        """The shape of a block of so many threads; None when there is none."""
        if self.tune is None:
            return next((shape for shape in self.shapes if volume(shape) == threads), None)
        rest = volume(self.shapes[0]) // self.shapes[0][self.tune]
        if threads % rest or threads < rest:
            return None
        shape = list(self.shapes[0])
        shape[self.tune] = threads // rest
        if shape[2] > 64:  # the hardware's limit for blockDim.z
            return None
        return (shape[0], shape[1], shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as its YAML file describes it."""

    name: str
    path: str
    """Of the YAML file, for messages."""
    unit: Unit
    entry: str
    instance: str
    """What a launch names: the entry, with template arguments where it is a template."""
    defines: tuple[tuple[str, Expression | str], ...]
    flags: tuple[str, ...]
    sizes: Mapping[str, int]
    odd: Mapping[str, int]
    arguments: tuple[Argument, ...]
    block: Block
    grid: tuple[Expression, ...]
    shared: Expression
    parsed: Parsed
    content_key: str
    """Of everything that decides what the kernel does, without sizes and without paths."""
    lines: Mapping[str, str]
    """Key of the YAML file -> `file:line: key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    letter: str
    kernel: Kernel
    sizes: Mapping[str, int]
    prefix: str
    """What stands before the dot in the names of this slot's sizes: the kernel's name, or the letter in a self-pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    slots: tuple[Slot, Slot]
    granularity: int

    def slot(self, letter: str) -> Slot:
        return self.slots[SLOTS.index(letter)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A slot inside a fused block: which threads run it, and as what block shape."""

    slot: Slot
    shape: Dim3
    first: int
    """The lowest thread id of this side."""
    barrier: int
    """The id of its partial barrier."""

    @property
    def threads(self) -> int:
        return volume(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How two kernels share a block. `sides` are in the order of their threads, or of their work when vertical."""

    kind: str
    """`horizontal` (each side has threads of its own) or `vertical` (all threads do one side, then the other)."""
    sides: tuple[Side, Side]

    @property
    def threads(self) -> int:
        counts = [side.threads for side in self.sides]
        return max(counts) if self.kind == "vertical" else sum(counts)

    def side(self, letter: str) -> Side:
        return next(side for side in self.sides if side.slot.letter == letter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A slot's launch at one block shape, all expressions evaluated."""

    block: Dim3
    grid: Dim3
    shared_bytes: int
    scalars: Mapping[str, int | float]

    @property
    def blocks(self) -> int:
        return volume(self.grid)


def volume(shape: Dim3) -> int:
    """How many threads (or blocks) a shape has."""
    return shape[0] * shape[1] * shape[2]
