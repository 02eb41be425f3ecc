"""Program: the one thing that all strategies emit and all devices run.

A Program is a plan: buffers, sources, and steps over them. It knows nothing of the device that will run it, and a
strategy knows nothing but Programs. The unfused reference is a Program over the same buffers (same names, same
fills), which is why building, checking and timing are written once.

Meaning of a plan
- Before a run, every buffer holds what its `fill` says (drawn from the run's seed and the buffer's *name*, so that two
  programs with a buffer of one name see the same data); `output` and `scratch` buffers hold poison instead. Buffers
  with `reset="each_run"` and role `inout` are restored before every sample, outside the timed span.
- Steps of one stream run in the order in which they are listed; `after` names steps (of any stream, listed earlier)
  that must have ended before this one begins. Nothing else orders two streams.
- The timed span goes from the first to the end of the last `counted` step. What is not counted between them is left
  out where all steps are on one stream.
- Numbers may be Extents (`fusiond.extents`): they stand for the Program's `sizes`, and `at` gives the same Program at
  others. Nothing that runs a Program needs to know.
- A seam is where a program of the user's has a library do something; a device runs the plain step in its place, or
  takes what it would give from the fills.

Only the standard library is imported here: a bundle must run where nothing can be installed.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusiond import expressions, extents
from fusiond.extents import Extent
from fusiond.keys import content_key, plain

PLAN_VERSION = 2
_READ = (1, 2)
"""Versions of plans that can be read: 1 knew no sizes and no seams."""

DTYPES: Mapping[str, tuple[str, int]] = {
    # name: (C++ type, bytes per element)
    "bool": ("bool", 1),
    "int8": ("signed char", 1),
    "uint8": ("unsigned char", 1),
    "int16": ("short", 2),
    "uint16": ("unsigned short", 2),
    "float16": ("__half", 2),
    "bfloat16": ("__nv_bfloat16", 2),
    "int32": ("int", 4),
    "uint32": ("unsigned int", 4),
    "float32": ("float", 4),
    "int64": ("long long", 8),
    "uint64": ("unsigned long long", 8),
    "float64": ("double", 8),
}
"""The element types that a Program knows, by NumPy's names (NumPy itself has no bfloat16: its bits, as uint16)."""

PACKED = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "float16": "e", "int32": "i", "uint32": "I",
    "float32": "f", "int64": "q", "uint64": "Q", "float64": "d",
}  # fmt: skip
"""Types as the standard library's `struct` has them."""


class Role(enum.StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    """Read and written (or accumulated into): compared like an output, restored before every sample."""
    SCRATCH = "scratch"

    @property
    def compared(self) -> bool:
        return self in (Role.OUTPUT, Role.INOUT)


class Memory(enum.StrEnum):
    DEVICE = "device"
    PAGEABLE = "pageable"
    PINNED = "pinned"


class SourceKind(enum.StrEnum):
    DEVICE = "device"
    """CUDA C++, built by nvcc for a GPU or by g++ for the cpu device."""
    HOST = "host"
    """C++ with `extern "C"` entry points, called on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What a buffer holds at the start. `low`/`high` bound `uniform` (floats, half open) and `integers` (both ends
    included); they are mean and standard deviation for `normal`; `low` is the value of `constant`. `file` is an .npy
    file of exactly the buffer's elements and dtype, `digest` the text_key of its bytes. Whole numbers beyond 2**53 are
    given as int."""

    kind: str = "zeros"
    low: float = 0.0
    high: float = 1.0
    file: str | None = None
    digest: str | None = None


FILL_KINDS = ("zeros", "constant", "uniform", "normal", "integers", "iota", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """How an output is compared with the reference. `close` is |a - b| <= atol + rtol * |b|; NaN equals NaN."""

    kind: str = "equal"
    rtol: float = 0.0
    atol: float = 0.0


EQUAL = Compare()


def default_compare(dtype: str) -> Compare:
    """Equal for integers; for floats a few units in the last place of a short sum."""
    tolerances = {"bfloat16": (4e-2, 8e-3), "float16": (1e-2, 1e-3), "float32": (1e-4, 1e-6), "float64": (1e-10, 1e-12)}
    if dtype not in tolerances:
        return EQUAL
    rtol, atol = tolerances[dtype]
    return Compare(kind="close", rtol=rtol, atol=atol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A named array. Buffers with the same `arena` lie in one allocation, at `offset_bytes`; all others have their
    own."""

    name: str
    dtype: str
    elements: int
    role: Role
    fill: Fill = field(default_factory=Fill)
    reset: str = "each_run"
    """`each_run` or `never` (what it holds does not matter from run to run)."""
    memory: Memory = Memory.DEVICE
    arena: str | None = None
    offset_bytes: int = 0
    symbol: str | None = None
    """The `__constant__` or `__device__` variable that this buffer is, as `source:symbol`; no allocation then."""
    compare: Compare = EQUAL

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPES[self.dtype][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One translation unit. `entries` are the kernels (or host functions) that steps may name.

    An entry is written as in the source, template arguments and namespaces included: `maxpool<float, 5>`. The register
    cap belongs to the source (None: the compiler's choice); defines are (name, value) pairs, include_dirs absolute
    folders.
    """

    name: str
    kind: SourceKind = SourceKind.DEVICE
    text: str
    entries: tuple[str, ...]
    register_cap: int | None = None
    flags: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    """The `__constant__` and `__device__` variables that buffers may be."""


# --- arguments ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The address of a buffer (on the side where it lives)."""

    buffer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    dtype: str
    value: int | float
    """What follows from the sizes is a whole number, of a float too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """A struct passed by value: its bytes as hexadecimal digits, and the places (in bytes from its start) where the
    addresses of buffers and numbers that follow from the sizes stand in it."""

    hex: str
    pointers: tuple[tuple[int, str], ...] = ()
    numbers: tuple[tuple[int, str, int], ...] = ()
    """(offset in bytes, dtype, value) of the numbers in it that follow from the sizes: they stand above `hex`."""

    def filled(self, address: Callable[[str], int]) -> bytes:
        """The bytes with the addresses in them; `address` tells where a buffer is."""
        data = bytearray.fromhex(self.hex)
        for offset, dtype, value in self.numbers:
            struct.pack_into(f"<{PACKED[dtype]}", data, offset, float(value) if "float" in dtype else value)
        for offset, buffer in self.pointers:
            data[offset : offset + 8] = address(buffer).to_bytes(8, "little")
        return bytes(data)


Argument: TypeAlias = Pointer | Scalar | Bytes


# --- steps ----------------------------------------------------------------------------------------------

Dim3: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    name: str
    source: str
    entry: str
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    """Dynamic shared memory."""
    cooperative: bool = False
    """All blocks are resident at once, so the kernel may wait for the whole grid (`cooperative_groups::this_grid()`). A
    grid that does not fit is refused at launch."""
    arguments: tuple[Argument, ...]
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One message: a run of buffers that neighbour each other on both sides, from the first's start to the last's
    end."""

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBatch:
    """Several messages handed to the driver in one call (cuMemcpyBatchAsync), in no order among themselves. `copies`
    are (source, target) buffers; they need not neighbour each other. All go one way: to the device, or from it."""

    name: str
    copies: tuple[tuple[str, str], ...]
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FillStep:
    """Set every byte of a buffer to `byte` (as cudaMemsetAsync does)."""

    name: str
    buffer: str
    byte: int = 0
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """Call a host function; it begins when everything it waits for has ended, and blocks its stream."""

    name: str
    source: str
    entry: str
    arguments: tuple[Argument, ...]
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc:
    """Allocate an arena, or the buffer of that name, now and not before the run."""

    name: str
    arena: str
    pooled: bool = False
    """From the driver's stream-ordered pool (cudaMallocAsync): device memory only."""
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    name: str
    arena: str
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True


Step: TypeAlias = Launch | Copy | CopyBatch | FillStep | HostCall | Alloc | Free
_STEPS: Mapping[str, type[Any]] = {
    each.__name__: each for each in (Launch, Copy, CopyBatch, FillStep, HostCall, Alloc, Free)
}
_ARGUMENTS: Mapping[str, type[Any]] = {each.__name__: each for each in (Pointer, Scalar, Bytes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """Something that a library computes in the user's own program (a matrix product, a sort, a convolution).

    It is done before the step `before` (None: after the last), or in the place of the launch `stand_in`, a plain kernel
    that does the same, slowly, where a Program is checked and timed. Without a stand-in nobody does it there, and the
    buffers that it would write are filled inputs.
    """

    name: str
    operation: str
    """What is computed, with shapes, for people: `dot f32[8,4] = f32[8,16] x f32[16,4], contracting {1} with {0}`."""
    reads: tuple[str, ...]
    """Buffers, in the order of the operation's operands."""
    writes: tuple[str, ...]
    before: str | None = None
    stand_in: str | None = None


class SizeError(ValueError):
    """A Program cannot be moved to these sizes; the message names the size and the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    """For people; not part of the key."""
    buffers: tuple[Buffer, ...]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    issue: str = "streams"
    """`streams`, or `graph` (captured once into a CUDA graph, and launched as one)."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The workload's sizes that its numbers stand for, by name."""
    fixed: tuple[str, ...] = ()
    """Those of them on which a text depends, or something else that no Extent says: they cannot be changed."""
    seams: tuple[Seam, ...] = ()
    _key: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes)))

    @property
    def key(self) -> str:
        """`program_key`: what the Program is, to the last formula. (Not by equality: two Programs that are equal at
        their sizes may differ at others.)"""
        if self._key is None:  # asked for a dozen times for each candidate
            object.__setattr__(self, "_key", content_key(_identity(self)))
        assert self._key is not None
        return self._key

    @property
    def work_key(self) -> str:
        """Of what is run at these very sizes: programs of equal work are measured once."""
        return content_key(_work(self))

    def at(self, sizes: Mapping[str, int]) -> Program:
        """The same Program at other sizes; those that are not named stay. SizeError when a size is unknown, fixed, or
        leads to no sound plan."""
        known = dict(self.sizes)
        for name, value in sizes.items():
            if name not in known:
                raise SizeError(f"there is no size {name!r}; there are {', '.join(known) or 'none'}")
            if name in self.fixed and value != known[name]:
                raise SizeError(f"{name} is {known[name]} in the source itself; it cannot be {value}")
            if value < 1:
                raise SizeError(f"{name} is {value}; a size is from 1")
        changed = {name: int(sizes.get(name, value)) for name, value in self.sizes}
        if changed == known:
            return self
        try:
            buffers, steps = (_moved(each, changed) for each in (self.buffers, self.steps))
        except expressions.ExpressionError as problem:
            raise SizeError(f"{problem} at {_said(changed)}") from None
        moved = dataclasses.replace(self, buffers=buffers, steps=steps, sizes=tuple(changed.items()))
        broken = problems(moved)
        if broken:
            raise SizeError(f"{broken[0]} at {_said(changed)}")
        return moved

    @property
    def host_sensitive(self) -> bool:
        """Host work is inside the span, so nothing else may use the cores while this is measured."""
        return any(isinstance(step, HostCall | Alloc | Free) and step.counted for step in self.steps)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError when there is none."""
        for each in self.buffers:
            if each.name == name:
                return each
        raise KeyError(name)

    def source(self, name: str) -> Source:
        """The source of that name; KeyError when there is none."""
        for each in self.sources:
            if each.name == name:
                return each
        raise KeyError(name)


def pooled_frees(program: Program) -> frozenset[str]:
    """The Free steps whose memory came from the device's pool: the last allocation listed before decides."""
    pooled: dict[str, bool] = {}
    found = set()
    for step in program.steps:
        if isinstance(step, Alloc):
            pooled[step.arena] = step.pooled
        elif isinstance(step, Free) and pooled.get(step.arena):
            found.add(step.name)
    return frozenset(found)


def sized(program: Program, sizes: Mapping[str, int], fixed: Collection[str] = ()) -> Program:
    """The Program as one over these sizes: their names stand in its Extents. The `fixed` ones are plain numbers from
    here on, and so are those that stand in formulas too long to be read again."""
    held = {*fixed}
    for text, _ in _formulas((program.buffers, program.steps)):
        try:
            expressions.parse_formula(text)
        except expressions.ExpressionError:
            held |= {name for name in sizes if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)}
    names = {name: value if name in held else extents.size(name, value) for name, value in sizes.items()}
    buffers, steps = (_settled(each, names, held) for each in (program.buffers, program.steps))
    return dataclasses.replace(
        program, buffers=buffers, steps=steps, sizes=tuple(sizes.items()), fixed=tuple(sorted(held))
    )


def unsized(program: Program) -> Program:
    """The Program with plain numbers: one that is for these sizes only."""
    steps = tuple(_packed(each) for each in program.steps)
    return dataclasses.replace(
        program, buffers=_replaced(program.buffers, int), steps=_replaced(steps, int), sizes=(), fixed=()
    )


def _settled(value: Any, names: Mapping[str, int], held: Collection[str]) -> Any:
    """A nest of dataclasses and tuples whose Extents speak of no size that is held."""

    def settled(extent: Extent) -> int:
        try:
            formula = expressions.parse_formula(extent.text)
        except expressions.ExpressionError:
            return int(extent)
        return formula.integer(names) if formula.names & set(held) else extent

    return _replaced(value, settled) if held else value


def _work(program: Program) -> list[object]:
    """What a device does. The 1 is from before there were sizes: programs have kept their keys."""
    packed = dataclasses.replace(program, steps=tuple(_packed(each) for each in program.steps))
    return [1, program.buffers, program.sources, encode(packed)["steps"], program.issue]


def _packed(step: Step) -> Step:
    """A step whose structs have their numbers in their bytes, and whose floats are floats."""

    def packed(argument: Argument) -> Argument:
        if isinstance(argument, Bytes) and argument.numbers:
            return Bytes(hex=argument.filled(lambda _: 0).hex(), pointers=argument.pointers)
        if isinstance(argument, Scalar) and isinstance(argument.value, Extent) and "float" in argument.dtype:
            return Scalar(dtype=argument.dtype, value=float(argument.value))
        return argument

    if isinstance(step, Launch | HostCall):
        return dataclasses.replace(step, arguments=tuple(packed(each) for each in step.arguments))
    return step


def _identity(program: Program) -> list[object]:
    plan = encode(program)
    more = {name: plan[name] for name in ("sizes", "fixed", "formulas", "seams") if plan[name]}
    said = [1, program.buffers, program.sources, plan["steps"], program.issue]
    return [*said, more] if more else said


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def _moved(value: Any, sizes: Mapping[str, int]) -> Any:
    """A nest of dataclasses and tuples with each Extent evaluated anew."""
    return _replaced(
        value,
        lambda each: Extent(expressions.parse_formula(each.text).integer(sizes), each.terms, each.constant),
    )


def _replaced(value: Any, change: Callable[[Extent], int]) -> Any:
    """A nest of dataclasses and tuples with each Extent changed; what holds none is the very same."""
    if isinstance(value, Extent):
        return change(value)
    if isinstance(value, tuple):
        found = tuple(_replaced(each, change) for each in value)
        return found if any(a is not b for a, b in zip(found, value, strict=True)) else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
        changed = {name: _replaced(each, change) for name, each in parts.items()}
        changed = {name: each for name, each in changed.items() if each is not parts[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


# --- invariants -----------------------------------------------------------------------------------------


def problems(program: Program) -> tuple[str, ...]:
    """Every broken invariant of a plan, each as one line that names what breaks it; empty when it is sound."""
    found: list[str] = []
    for kind, names in (
        ("buffer", [each.name for each in program.buffers]),
        ("source", [each.name for each in program.sources]),
        ("step", [each.name for each in program.steps]),
    ):
        found += [f"two {kind}s are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
    buffers = {each.name: each for each in program.buffers}
    sources = {each.name: each for each in program.sources}
    if program.issue not in ("streams", "graph"):
        found.append(f"issue is {program.issue!r}, not streams or graph")
    for check in (_buffer_problems, _arena_problems):
        found += check(program)
    for symbol in sorted({each.symbol for each in program.buffers if each.symbol is not None}):
        name, _, variable = symbol.partition(":")
        if name not in sources or variable not in sources[name].symbols:
            found.append(f"a buffer is the unknown variable {symbol!r}")
    earlier: set[str] = set()
    for step in program.steps:
        found += [f"step {step.name!r} waits for {name!r}, which is not listed before it"
                  for name in step.after if name not in earlier]  # fmt: skip
        found += _step_problems(step, buffers, sources)
        earlier.add(step.name)
    allocated = {step.arena for step in program.steps if isinstance(step, Alloc)}
    for step in program.steps:
        if isinstance(step, Launch | HostCall):
            found += [f"step {step.name!r} has {name!r} inside a struct, and the plan allocates that"
                      for each in step.arguments if isinstance(each, Bytes) for _, name in each.pointers
                      if name in buffers and (buffers[name].arena or name) in allocated]  # fmt: skip
    if not any(step.counted for step in program.steps):
        found.append("no step is counted, so there is nothing to time")
    return (*found, *_size_problems(program), *_seam_problems(program, earlier))


def _size_problems(program: Program) -> list[str]:
    """Every formula speaks of sizes that can be changed, and gives its number at those that there are."""
    known = dict(program.sizes)
    found = [f"the fixed size {name!r} is none of the sizes" for name in program.fixed if name not in known]
    for text, value in dict(_formulas((program.buffers, program.steps))).items():
        try:
            formula = expressions.parse_formula(text)
            if formula.names & set(program.fixed):
                found.append(f"{text!r} speaks of the fixed {min(formula.names & set(program.fixed))!r}")
            elif formula.integer(known) != value:
                found.append(f"{text!r} is {formula.integer(known)} at the program's sizes, not {value}")
        except expressions.ExpressionError as problem:
            found.append(str(problem))
    return found


def _formulas(value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, Extent):
        yield value.text, int(value)
    elif isinstance(value, tuple):
        for each in value:
            yield from _formulas(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from _formulas(getattr(value, part.name))


def _seam_problems(program: Program, steps: Collection[str]) -> list[str]:
    buffers = {each.name for each in program.buffers}
    found = []
    for seam in program.seams:
        found += [f"seam {seam.name!r} names the unknown buffer {name!r}"
                  for name in (*seam.reads, *seam.writes) if name not in buffers]  # fmt: skip
        found += [f"seam {seam.name!r} names the unknown step {name!r}"
                  for name in (seam.before, seam.stand_in) if name is not None and name not in steps]  # fmt: skip
    names = [each.name for each in program.seams]
    return found + [f"two seams are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]


def _buffer_problems(program: Program) -> list[str]:
    found = []
    for buffer in program.buffers:
        if buffer.dtype not in DTYPES:
            found.append(f"buffer {buffer.name!r} has the unknown dtype {buffer.dtype!r}")
        elif buffer.elements < 1:
            found.append(f"buffer {buffer.name!r} has {buffer.elements} elements")
        elif buffer.arena is not None and (buffer.offset_bytes < 0 or buffer.offset_bytes % DTYPES[buffer.dtype][1]):
            found.append(f"buffer {buffer.name!r} is not aligned at offset {buffer.offset_bytes}")
        if buffer.fill.kind not in FILL_KINDS:
            found.append(f"buffer {buffer.name!r} has the unknown fill {buffer.fill.kind!r}")
        if buffer.reset not in ("each_run", "never"):
            found.append(f"buffer {buffer.name!r} has reset {buffer.reset!r}, not each_run or never")
    return found


def _arena_problems(program: Program) -> list[str]:
    found = []
    arenas: dict[str, list[Buffer]] = {}
    for buffer in program.buffers:
        if buffer.arena is not None and buffer.dtype in DTYPES:
            arenas.setdefault(buffer.arena, []).append(buffer)
    alone = {each.name for each in program.buffers if each.arena is None}
    found += [f"{name!r} is the name of an arena, and of a buffer outside it" for name in arenas if name in alone]
    for name, members in arenas.items():
        if len({each.memory for each in members}) > 1:
            found.append(f"arena {name!r} mixes kinds of memory")
        members.sort(key=lambda each: each.offset_bytes)
        for left, right in itertools.pairwise(members):
            if left.offset_bytes + left.size_bytes > right.offset_bytes:
                found.append(f"buffers {left.name!r} and {right.name!r} overlap in arena {name!r}")
    return found


def _step_problems(step: Step, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
    found = []
    if isinstance(step, Launch | HostCall):
        wanted = SourceKind.DEVICE if isinstance(step, Launch) else SourceKind.HOST
        source = sources.get(step.source)
        if source is None:
            found.append(f"step {step.name!r} names the unknown source {step.source!r}")
        elif source.kind is not wanted:
            found.append(f"step {step.name!r} needs a {wanted} source, {step.source!r} is a {source.kind} one")
        elif step.entry not in source.entries:
            found.append(f"step {step.name!r} names the unknown entry {step.entry!r} of {step.source!r}")
        found += [f"step {step.name!r} names the unknown buffer {each.buffer!r}"
                  for each in step.arguments if isinstance(each, Pointer) and each.buffer not in buffers]  # fmt: skip
        found += [f"step {step.name!r}: {problem}"
                  for each in step.arguments if isinstance(each, Bytes)
                  for problem in _struct_problems(each, buffers)]  # fmt: skip
        found += [f"step {step.name!r}: {each.value!r} is no {each.dtype}"
                  for each in step.arguments if isinstance(each, Scalar) and not _fits(each)]  # fmt: skip
    if isinstance(step, Launch):
        for what, shape in (("grid", step.grid), ("block", step.block)):
            if len(shape) != 3 or min(shape) < 1:
                found.append(f"step {step.name!r} has the {what} {shape}")
        if step.shared_bytes < 0:
            found.append(f"step {step.name!r} has {step.shared_bytes} bytes of shared memory")
    if isinstance(step, Copy):
        unknown = [name for name in (*step.source, *step.target) if name not in buffers]
        found += [f"step {step.name!r} names the unknown buffer {name!r}" for name in unknown]
        if not unknown:
            pairs = list(zip(step.source, step.target, strict=False))
            if len(step.source) != len(step.target) or not pairs:
                found.append(f"step {step.name!r} copies {len(step.source)} buffers to {len(step.target)}")
            found += [f"step {step.name!r} copies {a!r} to {b!r}, which has another size"
                      for a, b in pairs if {buffers[a].dtype, buffers[b].dtype} <= DTYPES.keys()
                      and buffers[a].size_bytes != buffers[b].size_bytes]  # fmt: skip
            found += _run_problems(step, buffers)
    if isinstance(step, CopyBatch):
        found += _batch_problems(step, buffers)
    if isinstance(step, FillStep) and step.buffer not in buffers:
        found.append(f"step {step.name!r} names the unknown buffer {step.buffer!r}")
    if (
        isinstance(step, Alloc)
        and step.pooled
        and any(step.arena in (each.arena, each.name) and each.memory is not Memory.DEVICE for each in buffers.values())
    ):
        found.append(f"step {step.name!r} takes {step.arena!r} from the device's pool, and it is host memory")
    if isinstance(step, Alloc | Free):
        known = {each.arena or each.name for each in buffers.values() if each.symbol is None}
        if step.arena not in known:
            found.append(f"step {step.name!r} names the unknown arena {step.arena!r}")
    return found


def _struct_problems(struct: Bytes, buffers: Mapping[str, Buffer]) -> list[str]:
    size = len(struct.hex) // 2
    found = [
        f"an address at byte {offset} of a struct of {size}"
        for offset, _ in struct.pointers
        if offset % 8 or not 0 <= offset <= size - 8
    ]
    for _, name in struct.pointers:
        if name not in buffers:
            found.append(f"a struct points to the unknown buffer {name!r}")
        elif buffers[name].symbol is not None:
            found.append(f"a struct points to {name!r}, which is a variable")
    return found


def _fits(scalar: Scalar) -> bool:
    if scalar.dtype not in DTYPES or not isinstance(scalar.value, int | float):
        return False
    if scalar.dtype.startswith(("float", "bfloat")):
        return True
    bits = 1 if scalar.dtype == "bool" else 8 * DTYPES[scalar.dtype][1]
    signed = scalar.dtype.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    return isinstance(scalar.value, int) and low <= scalar.value < high


def _batch_problems(step: CopyBatch, buffers: Mapping[str, Buffer]) -> list[str]:
    unknown = [name for pair in step.copies for name in pair if name not in buffers]
    if unknown:
        return [f"step {step.name!r} names the unknown buffer {name!r}" for name in unknown]
    found = [f"step {step.name!r} copies {a!r} to {b!r}, which has another size"
             for a, b in step.copies if {buffers[a].dtype, buffers[b].dtype} <= DTYPES.keys()
             and buffers[a].size_bytes != buffers[b].size_bytes]  # fmt: skip
    ways = {(buffers[a].memory is Memory.DEVICE, buffers[b].memory is Memory.DEVICE) for a, b in step.copies}
    if len(ways) > 1 or not ways or not ways <= {(True, False), (False, True)}:
        found.append(f"step {step.name!r} is a batch that does not go one way between host and device")
    return found


def _run_problems(step: Copy, buffers: Mapping[str, Buffer]) -> list[str]:
    """One message goes from the first buffer's start to the last one's end, so both sides must be laid out alike."""
    if len(step.source) < 2 or len(step.source) != len(step.target):
        return []
    found = []
    gaps = []
    for names in (step.source, step.target):
        run = [buffers[name] for name in names]
        if run[0].arena is None or any(each.arena != run[0].arena for each in run):
            found.append(f"step {step.name!r} copies {', '.join(names)} as one, which do not lie in one arena")
        offsets = [each.offset_bytes - run[0].offset_bytes for each in run]
        if offsets != sorted(set(offsets)):
            found.append(f"step {step.name!r} copies {', '.join(names)}, which do not lie in this order")
        gaps.append(offsets)
        last = run[-1].offset_bytes
        found += [f"step {step.name!r} copies over {each.name!r}, which lies between {names[0]!r} and {names[-1]!r}"
                  for each in buffers.values() if each.arena == run[0].arena and each.name not in names
                  and run[0].offset_bytes < each.offset_bytes < last]  # fmt: skip
    if not found and gaps[0] != gaps[1]:
        found.append(f"step {step.name!r} copies {', '.join(step.source)} to a run that is laid out otherwise")
    return found


# --- plan.json ------------------------------------------------------------------------------------------


def encode(program: Program) -> dict[str, Any]:
    """The JSON form of a plan: what `plan.json` in a bundle holds. Numbers that follow from the sizes stand there as
    they are at the Program's own; `formulas` has what they are at others, by JSON Pointer (RFC 6901)."""

    def tagged(value: object) -> dict[str, Any]:
        entry = {"is": type(value).__name__, **plain(value)}
        if not entry.get("numbers", True):  # what version 1 did not know is there only where it says something
            del entry["numbers"]
        return entry

    steps = []
    for step in program.steps:
        entry = tagged(step)
        if isinstance(step, Launch | HostCall):
            entry["arguments"] = [tagged(each) for each in step.arguments]
        steps.append(entry)
    found: dict[str, Any] = {
        "plan_version": PLAN_VERSION,
        "name": program.name,
        "buffers": plain(program.buffers),
        "sources": plain(program.sources),
        "steps": steps,
        "issue": program.issue,
        "sizes": dict(program.sizes),
        "fixed": list(program.fixed),
        "seams": plain(program.seams),
    }
    return {**found, "formulas": {pointer: each.text for pointer, each in _extents(found, "")}}


def _extents(value: Any, pointer: str) -> Iterator[tuple[str, Extent]]:
    if isinstance(value, Extent):
        yield pointer, value
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _extents(each, f"{pointer}/{name}")


def decode(plan: Mapping[str, Any]) -> Program:
    """The Program of a plan's JSON form; ValueError when it is of another version or shape."""
    if not isinstance(plan, Mapping):
        raise ValueError("not a plan")
    if plan.get("plan_version") not in _READ:
        raise ValueError(f"this fusiond reads plans of version {PLAN_VERSION}, not {plan.get('plan_version')!r}")
    try:
        if plan.get("formulas"):
            plan = _with_extents(plan)
        return Program(
            name=plan["name"],
            buffers=tuple(_buffer(each) for each in plan["buffers"]),
            sources=tuple(_source(each) for each in plan["sources"]),
            steps=tuple(_step(each) for each in plan["steps"]),
            issue=plan["issue"],
            sizes=tuple(plan.get("sizes", {}).items()),
            fixed=tuple(plan.get("fixed", ())),
            seams=tuple(Seam(**_tuples(each)) for each in plan.get("seams", ())),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as problem:
        raise ValueError(f"not a plan: {problem}") from problem


def _with_extents(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a plan with each formula at its number."""
    copy = json.loads(json.dumps(plan))
    for pointer, text in plan["formulas"].items():
        *path, last = pointer.split("/")[1:]
        place = copy
        for name in path:
            place = place[int(name) if isinstance(place, list) else name]
        at = int(last) if isinstance(place, list) else last
        place[at] = Extent.of(place[at], text)
    return dict(copy)


def _buffer(entry: Mapping[str, Any]) -> Buffer:
    return Buffer(
        **{
            **entry,
            "role": Role(entry["role"]),
            "memory": Memory(entry["memory"]),
            "fill": Fill(**entry["fill"]),
            "compare": Compare(**entry["compare"]),
        }
    )


def _source(entry: Mapping[str, Any]) -> Source:
    return Source(
        **{
            **_tuples(entry),
            "kind": SourceKind(entry["kind"]),
            "defines": tuple((name, value) for name, value in entry["defines"]),
        }
    )


def _step(entry: Mapping[str, Any]) -> Step:
    values = _tuples(entry)
    kind = _STEPS[values.pop("is")]
    if kind is CopyBatch:
        values["copies"] = tuple((source, target) for source, target in entry["copies"])
    if "arguments" in values:
        values["arguments"] = tuple(_argument(each) for each in entry["arguments"])
    step: Step = kind(**values)
    return step


def _argument(entry: Mapping[str, Any]) -> Argument:
    kind: Callable[..., Argument] = _ARGUMENTS[entry["is"]]
    values = {name: value for name, value in entry.items() if name != "is"}
    for name in ("pointers", "numbers"):
        if name in values:
            values[name] = tuple(map(tuple, values[name]))
    return kind(**values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def to_text(program: Program) -> str:
    """`plan.json` as text: stable, indented for people."""
    return json.dumps(encode(program), indent=1, sort_keys=True) + "\n"


def replace_sources(program: Program, change: Callable[[Source], Source]) -> Program:
    """The same plan with every source changed."""
    return dataclasses.replace(program, sources=tuple(change(each) for each in program.sources))
