"""A kernel of the user's: its source, as clang reads it, and its launch, as its YAML file describes it.

    SourceKernel     :=  TranslationUnit, entry, Parsed, KernelArgument*, BlockShapes, grid, shared
    TranslationUnit  :=  the text of one .cu with the user's own headers put in their places
    Parsed           :=  KernelParameter*, Edit*, DeviceVariable*, and what decides whether and how it can be fused

Everything here is frozen; the functions that make and use these values are in the files named after the verbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusiond.model.errors import RequestError
from fusiond.model.inputs.documents import Node
from fusiond.model.language.expressions import Expression, Scalar
from fusiond.model.nouns import Rejection
from fusiond.model.program import Buffer, Dim3
from fusiond.model.ptx.tree import Function, Instruction, Module, Variable

WARP = 32
UNREAD = "unread"  #: The rule of a text that libclang finds mistakes in: which may be headers of which nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationUnit:
    """A translation unit with the user's quoted includes expanded."""

    text: str  #: What is parsed and edited; a line that included a system header is empty
    origins: tuple[tuple[str, int], ...] = ()  #: For each line of `text`: the file it came from, and its line there
    system: tuple[str, ...] = ()  #: Headers named in angle brackets, each once, in the order of their first mention
    macros: tuple[str, ...] = ()  #: Every macro that the text defines
    files: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Path -> text of every file that went into it."""
    includes: Mapping[int, str] = field(default_factory=dict, compare=False)
    """The lines, counted from 0, that include a system header."""
    unread: tuple[str, ...] = ()  #: Headers of which the front end knows nothing, as they are named: `cublas_v2.h`

    @property
    def whole(self) -> str:
        """The text with its includes, as a compiler takes it."""
        return "\n".join(self.includes.get(at, line) for at, line in enumerate(self.text.split("\n")))

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


def applied(text: str, edits: Iterable[Edit], *, keep_lines: bool = False) -> str:
    """A text with edits done, in the order of their places; what lies in one that is done already is not. `keep_lines`:
    every line has the number that it had."""
    data = text.encode()
    pieces, position = [], 0
    for edit in edits:
        if edit.start >= position:
            lost = data[edit.start : edit.end].count(b"\n") - edit.text.count("\n") if keep_lines else 0
            pieces += [data[position : edit.start], edit.text.encode(), b"\n" * lost]
            position = edit.end
    return b"".join([*pieces, data[position:]]).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class StructField:
    """A number, or a pointer to numbers, inside a struct that is passed by value."""

    path: str  #: `shape.rows[1]`
    dtype: str | None  #: None for what a Program cannot hold: a pointer, a bit field
    offset: int  #: In bytes from the struct's start
    kind: str  #: For messages
    pointer: bool = False  #: It points to numbers, or to structs of them
    pointee: str | None = None  #: The Program's name of those numbers; None where any will do


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceVariable:
    """A `__constant__` or `__device__` variable of a source."""

    name: str  #: With its namespaces
    bytes: int
    dtype: str | None  #: Of its elements
    constant: bool
    address: bool = False  #: It is, or holds, an address
    spelling: str = ""  #: The type as written
    fields: tuple[StructField, ...] = ()
    """Of one that is a struct, or holds an address: every number and pointer with its place, the path of one that is a
    pointer itself being empty."""

    @property
    def unfit(self) -> str:
        """Why no YAML can give its addresses; empty where one can."""
        for held in self.fields:
            if held.dtype is None and not held.pointer:
                return f"`{self.name}`{held.path and f', in {held.path},'} holds {held.kind}, and no buffer can be that"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameter:
    """One parameter of a kernel as clang sees it."""

    name: str
    pointer: bool
    dtype: str | None
    """The Program's name of the (pointed-to) type; None when it is another type or depends on a template argument."""
    spelling: str  #: The type as written
    target: str  #: The type, or the pointed-to type, without qualifiers and typedefs: `long`, `float4`
    constant: bool = False  #: Pointer to const
    volatile: bool = False  #: Pointer to volatile
    restrict: bool = False
    void: bool = False
    enumeration: bool = False
    records: int = 0  #: Bytes of the struct that it points to
    holds_pointers: bool = False  #: Such a struct has pointers in it
    fields: tuple[StructField, ...] = ()  #: Of a struct that is passed by value
    bytes: int = 0  #: Of such a struct
    record: bool = False  #: Of PTX: an array of bytes

    @property
    def unfit(self) -> str:
        """Why no YAML can give it; empty where one can, or it can be null."""
        if self.holds_pointers:
            return f"what {self.spelling!r} points to has pointers in it, which no buffer can hold"
        for held in self.fields:
            if held.dtype is not None or not held.kind.startswith("a pointer to "):
                continue
            return f"{held.path} of {self.spelling!r} is {held.kind}, which no buffer can be"
        if self.dtype is None and not self.void and not self.bytes and self.records <= 0:
            return (
                f"the kernel's parameter {self.spelling!r} is neither a number, a struct of numbers, nor a pointer to "
                f"numbers, and this version passes nothing else"
            )
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What the front end found in a unit."""

    entry: str  #: The kernel's name with its namespaces
    parameters: tuple[KernelParameter, ...] = ()
    edits: tuple[Edit, ...] = ()
    """What turns the kernel into a device function with shadow parameters (section III-A, done without renaming)."""
    uses_dynamic_shared: bool = False
    static_shared_bytes: int | None = None
    """Sum over all static `__shared__` variables; None when a size depends on a template argument."""
    launch_bound: int | None = None  #: The first argument of `__launch_bounds__`, where its value can be told
    rejections: tuple[Rejection, ...] = ()
    resident_blocks: int = 0
    """The second argument of `__launch_bounds__`: blocks that are to be resident; 0 where it is missing."""
    alignment: int = 16  #: That the dynamic shared arrays ask for, in bytes
    moved_bytes: int = 0  #: Of static shared arrays that became the beginning of the dynamic one
    drains: bool = False  #: Threads may leave before a barrier that others reach, so those must keep voting at it
    beside: tuple[Rejection, ...] = ()
    """Why it can share no block with another kernel. In blocks of its own it can be fused."""
    by_warps: bool = False
    """Whole warps leave so, where threads of a warp meet too: the rows of a block have to be whole warps."""
    parts: bool = False
    """Some thread may leave the body before its end, in which threads of a warp meet: in a shuffle or a vote, which
    waits for every thread of its mask that still runs. So none may do more work behind the body."""
    variables: tuple[DeviceVariable, ...] = ()  #: Those that the host sets
    settable: tuple[DeviceVariable, ...] = ()  #: Those that it would have to set
    barrier_ids: int = 1  #: How many of the hardware's sixteen barriers it needs
    warpgroups: bool = False  #: Its warps work by fours, so that it begins at a multiple of 128 threads
    cluster: int = 1  #: Blocks of its clusters, along x
    cooperative: bool = False  #: Its blocks wait for one another, so that all have to be resident at once


class _Written:
    """What stands in a YAML file."""

    __slots__ = ()
    where: str

    def fail(self, problem: str) -> RequestError:
        """An error about it, to be raised."""
        return RequestError(problem, where=self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructMember(_Written):
    """What a number inside a struct holds, or what a pointer inside it points to."""

    path: str
    dtype: str | None  #: None where the YAML leaves it to the source
    value: Expression | float = 0.0
    target: KernelArgument | None = None  #: The buffer of a pointer
    where: str = field(default="", compare=False)
    offset: int = 0  #: In bytes; known when the source is


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgument(_Written):
    """A kernel argument: a buffer when `elements` is there, a scalar when `value` is, else a struct passed by value.

    With `symbol` it is not an argument but a variable of the source that the host sets."""

    name: str
    dtype: str
    elements: Expression | None = None
    buffer: Buffer | None = None  #: A pattern: the name and the number of elements are filled in for a slot
    part_of: str = ""  #: The buffer in whose memory this address lies; then it has no `elements`
    offset: Expression | None = None  #: Of such a part, in bytes
    value: Expression | float | None = None
    members: tuple[StructMember, ...] = ()  #: Of a struct
    hex: str = ""  #: A struct's bytes as they are; what `members` say stands above them
    bytes: int = 0  #: Of a struct
    symbol: str = ""
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShapes:
    """The block shapes that a kernel can be launched with.

    `shapes[0]` is the given one. With `tune`, that axis takes any length; otherwise the shapes are all there are."""

    shapes: tuple[Dim3, ...]
    tune: int | None = None  #: The axis that may be stretched: 0, 1, 2

    def shape(self, threads: int) -> Dim3 | None:
        """The shape of a block of so many threads; None when the kernel has no such shape."""
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
class PtxText:
    """A kernel's module, and what of it is the kernel's."""

    text: str
    module: Module
    entry: Function
    functions: tuple[Function, ...]  #: Those that it calls, directly or not
    variables: tuple[Variable, ...]  #: Of the module, that all of them use
    words: Mapping[str, frozenset[str]]
    """Of the operands of the kernel and of each function, by name, but for numbers and numbered registers."""
    notable: Mapping[str, tuple[Instruction, ...]]
    """Likewise the instructions that concern other threads, the block or other functions."""
    barriers: tuple[int, ...]  #: The ids that it uses, 0 first

    @property
    def dynamic(self) -> frozenset[str]:
        """The names of the dynamic shared array."""
        return frozenset(each.name for each in self.variables if each.space == "shared" and each.elements is None)

    @property
    def limits(self) -> dict[str, tuple[int, ...]]:
        """`.maxntid`, `.reqntid`, `.minnctapersm`, `.maxnreg`, as far as they are there."""
        names = ("maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster", "explicitcluster")
        found = {name: self.entry.directive(name) for name in names}
        return {name: values for name, values in found.items() if values is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKernel:
    """A kernel as its YAML file describes it; `unit` and what stands in its text only once its source is read."""

    name: str
    path: str  #: Of the YAML file, for messages
    keys: Mapping[str, Node]  #: Of the YAML file
    unit: TranslationUnit = TranslationUnit(text="")
    entry: str = ""
    instance: str = ""  #: What a launch names: the entry, with template arguments where it is a template
    defines: tuple[tuple[str, Expression | str], ...]
    flags: tuple[str, ...]
    sizes: Mapping[str, int]
    odd: Mapping[str, int]
    arguments: tuple[KernelArgument, ...]
    variables: tuple[KernelArgument, ...] = ()  #: `__constant__` and `__device__` variables that the host sets
    block: BlockShapes
    grid: tuple[Expression, ...]
    shared: Expression
    parsed: Parsed = Parsed(entry="")
    moved: Parsed | None = None
    """The same with its static shared arrays in the dynamic one; None where that is useless or impossible."""
    ptx: PtxText | None = None  #: The kernel as PTX, where that is what is fused
    why_ptx: str = ""  #: Why a kernel in C++ was compiled to PTX
    content_key: str = ""  #: Of everything that decides what the kernel does, without sizes and without paths
    choices: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """What a source is compiled with and a grid may name -> its values: macros with a list, which are tuned where the
    kernel is by itself and have the first elsewhere; constants of a kernel in Triton, and its stages."""
    forms: Mapping[tuple[int, frozenset[tuple[str, Scalar]]], SourceKernel | str] = field(default_factory=dict)
    """Of a kernel in Triton: (threads, the choices among several values) -> the kernel compiled so, or why it is not.
    What stands beside it here is the first one's."""
    unpassed: tuple[KernelArgument, ...] = ()  #: Arguments of the file that are compiled in: whole numbers that are 1
    compiled_sizes: frozenset[str] = frozenset()  #: Sizes whose values are compiled in

    @property
    def written_sizes(self) -> frozenset[str]:
        """What macros name, and sizes whose values are compiled in."""
        formulas = (value for _, value in self.defines if isinstance(value, Expression))
        return self.compiled_sizes.union(*(each.names for each in formulas))

    def where(self, key: str) -> str:
        """`file:line: key` of a key of the YAML file, or that file."""
        return self.keys[key].where if key in self.keys else self.path

    @property
    def tuned(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The choices that there are."""
        return {name: values for name, values in self.choices.items() if len(values) > 1}

    @property
    def buffers(self) -> tuple[KernelArgument, ...]:
        """The arguments that are buffers, those that structs point to, and the variables, in the order of the file."""
        return buffers_among((*self.arguments, *self.variables))


def buffers_among(arguments: tuple[KernelArgument, ...]) -> tuple[KernelArgument, ...]:
    """The buffers that arguments are, or point to."""
    found = []
    for each in arguments:
        if each.buffer is not None:
            found.append(each)
        found += [member.target for member in each.members if member.target is not None]
    return tuple(found)


def volume(shape: Dim3) -> int:
    """How many threads (or blocks) a shape has."""
    return shape[0] * shape[1] * shape[2]
