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

Only the standard library is imported here: a bundle must run where nothing can be installed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusiond.keys import content_key, plain

PLAN_VERSION = 1

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
    file of exactly the buffer's elements and dtype, `digest` the text_key of its bytes."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """A struct passed by value: its bytes as hexadecimal digits, and the places (in bytes from its start) where the
    addresses of buffers stand in it."""

    hex: str
    pointers: tuple[tuple[int, str], ...] = ()

    def filled(self, address: Callable[[str], int]) -> bytes:
        """The bytes with the addresses in them; `address` tells where a buffer is."""
        data = bytearray.fromhex(self.hex)
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
class Program:
    name: str
    """For people; not part of the key."""
    buffers: tuple[Buffer, ...]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    issue: str = "streams"
    """`streams`, or `graph` (captured once into a CUDA graph, and launched as one)."""

    @property
    def key(self) -> str:
        """`program_key`: equal programs are measured once."""
        return _program_key(self)

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


@functools.lru_cache(maxsize=64)  # asked for a dozen times for each candidate
def _program_key(program: Program) -> str:
    return content_key([PLAN_VERSION, program.buffers, program.sources, encode(program)["steps"], program.issue])


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
    return tuple(found)


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
    """The JSON form of a plan: what `plan.json` in a bundle holds."""

    def tagged(value: object) -> dict[str, Any]:
        return {"is": type(value).__name__, **plain(value)}

    steps = []
    for step in program.steps:
        entry = tagged(step)
        if isinstance(step, Launch | HostCall):
            entry["arguments"] = [tagged(each) for each in step.arguments]
        steps.append(entry)
    return {
        "plan_version": PLAN_VERSION,
        "name": program.name,
        "buffers": plain(program.buffers),
        "sources": plain(program.sources),
        "steps": steps,
        "issue": program.issue,
    }


def decode(plan: Mapping[str, Any]) -> Program:
    """The Program of a plan's JSON form; ValueError when it is of another version or shape."""
    if not isinstance(plan, Mapping):
        raise ValueError("not a plan")
    if plan.get("plan_version") != PLAN_VERSION:
        raise ValueError(f"this fusiond reads plans of version {PLAN_VERSION}, not {plan.get('plan_version')!r}")
    try:
        return Program(
            name=plan["name"],
            buffers=tuple(_buffer(each) for each in plan["buffers"]),
            sources=tuple(_source(each) for each in plan["sources"]),
            steps=tuple(_step(each) for each in plan["steps"]),
            issue=plan["issue"],
        )
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a plan: {problem}") from problem


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
    if "pointers" in values:
        values["pointers"] = tuple((offset, buffer) for offset, buffer in values["pointers"])
    return kind(**values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def to_text(program: Program) -> str:
    """`plan.json` as text: stable, indented for people."""
    return json.dumps(encode(program), indent=1, sort_keys=True) + "\n"


def replace_sources(program: Program, change: Callable[[Source], Source]) -> Program:
    """The same plan with every source changed."""
    return dataclasses.replace(program, sources=tuple(change(each) for each in program.sources))
