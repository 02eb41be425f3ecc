"""The steps of a Program: what each kind names, moves, allocates and occupies.

What is said here is said once: whoever walks over steps asks them, and only devices tell the kinds apart. A new kind is
a class here, a case in each device, and tests::

    Step      :=  Launch | HostCall                      code that is called with arguments
               |  Copy | CopyBatch | Prefetch | FillStep    data that is moved or set
               |  Alloc | Free                           memory
    Argument  :=  Pointer | Scalar | Bytes
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from fusiond.model.language.dtypes import DTYPES, is_float, whole_numbers
from fusiond.model.language.extents import Extent
from fusiond.model.program.buffers import Buffer, Memory, Source, SourceKind

Dim3: TypeAlias = tuple[int, int, int]


# --- arguments ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The address of a buffer (on the side where it lives)."""

    buffer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    dtype: str
    value: int | float  #: What follows from the sizes is a whole number, of a float too
    pitch_of: str | None = None
    """A buffer of rows whose pitch this is: elements from the beginning of a row to that of the next. `value` is how
    many a row has; a caller's rows may lie further apart (OpenCV's, a part of a larger image)."""


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
            struct.pack_into(f"<{DTYPES[dtype].packed}", data, offset, float(value) if is_float(dtype) else value)
        for offset, buffer in self.pointers:
            data[offset : offset + 8] = address(buffer).to_bytes(8, "little")
        return bytes(data)


Argument: TypeAlias = Pointer | Scalar | Bytes


def _fits(scalar: Scalar) -> bool:
    if scalar.dtype not in DTYPES or not isinstance(scalar.value, int | float):
        return False
    if is_float(scalar.dtype):
        return True
    least, most = whole_numbers(scalar.dtype)
    return isinstance(scalar.value, int) and least <= scalar.value <= most


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


# --- what all kinds have in common ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What every kind answers; a kind overrides what is different for it."""

    name: str
    stream: int = 0
    after: tuple[str, ...] = ()
    counted: bool = True

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """(source, target) of the buffers that it copies."""
        return ()

    @property
    def carried(self) -> tuple[str, ...]:
        """The buffers whose bytes it moves."""
        return tuple(source for source, _ in self.messages)

    @property
    def touched(self) -> tuple[str, ...]:
        """Every buffer that it names: reads, writes or hands over."""
        return tuple(name for pair in self.messages for name in pair)

    @property
    def held(self) -> tuple[str, ...]:
        """The buffers whose addresses stand inside structs that it passes."""
        return ()

    @property
    def allocates(self) -> str | None:
        """The arena (or lone buffer) that is there from this step on."""
        return None

    @property
    def frees(self) -> str | None:
        """The arena (or lone buffer) that is gone from this step on."""
        return None

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        """Whether the calling thread does it, after what it waits for. `host_steps` knows which frees go to a pool."""
        return False

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        """Its broken invariants, one line each."""
        return [f"step {self.name!r} names the unknown buffer {name!r}" for name in self.touched if name not in buffers]


def _all_on_host(names: Iterable[str], buffers: Mapping[str, Buffer]) -> bool:
    return all(buffers[name].memory is not Memory.DEVICE for name in names)


# --- code -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call(_Step):
    """An entry of a source, called with arguments."""

    source: str
    entry: str
    arguments: tuple[Argument, ...]

    needs: ClassVar[SourceKind]

    @property
    def touched(self) -> tuple[str, ...]:
        return (*(each.buffer for each in self.arguments if isinstance(each, Pointer)), *self.held)

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(name for each in self.arguments if isinstance(each, Bytes) for _, name in each.pointers)

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        found = []
        source = sources.get(self.source)
        if source is None:
            found.append(f"step {self.name!r} names the unknown source {self.source!r}")
        elif source.kind is not self.needs:
            found.append(f"step {self.name!r} needs a {self.needs} source, {self.source!r} is a {source.kind} one")
        elif self.entry not in source.entries:
            found.append(f"step {self.name!r} names the unknown entry {self.entry!r} of {self.source!r}")
        for each in self.arguments:
            if isinstance(each, Pointer) and each.buffer not in buffers:
                found.append(f"step {self.name!r} names the unknown buffer {each.buffer!r}")
            if isinstance(each, Bytes):
                found += [f"step {self.name!r}: {problem}" for problem in _struct_problems(each, buffers)]
            if isinstance(each, Scalar) and not _fits(each):
                found.append(f"step {self.name!r}: {each.value!r} is not of type {each.dtype}")
            if isinstance(each, Scalar) and each.pitch_of is not None:
                found += _pitch_problems(self.name, each, buffers.get(each.pitch_of))
        return found


def _pitch_problems(step: str, scalar: Scalar, buffer: Buffer | None) -> list[str]:
    if buffer is None:
        return [f"step {step!r} passes the pitch of the unknown buffer {scalar.pitch_of!r}"]
    if buffer.arena is not None or buffer.symbol is not None or buffer.memory is not Memory.DEVICE:
        return [f"step {step!r}: {buffer.name!r} is not an array of its own on the device, so it has no pitch"]
    if is_float(scalar.dtype) or scalar.value < 1 or buffer.elements % int(scalar.value):
        return [f"step {step!r}: {buffer.name!r} has no rows of {scalar.value} elements"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(_Call):
    """Launch a kernel."""

    grid: Dim3
    block: Dim3
    shared_bytes: int = 0  #: Dynamic shared memory
    cooperative: bool = False
    """All blocks are resident at once, so the kernel may wait for the whole grid (`cooperative_groups::this_grid()`). A
    grid that does not fit is refused at launch."""
    carveout_pct: int | None = None
    """How much of the memory that shared memory and the L1 cache divide is asked for as shared memory, in per cent of
    the most that there is. The driver may give more; None: it chooses."""

    needs: ClassVar[SourceKind] = SourceKind.DEVICE

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        found = _Call.problems(self, buffers, sources)
        for what, shape in (("grid", self.grid), ("block", self.block)):
            if len(shape) != 3 or min(shape) < 1:
                found.append(f"step {self.name!r} has the {what} {shape}")
        if self.shared_bytes < 0:
            found.append(f"step {self.name!r} has {self.shared_bytes} bytes of shared memory")
        if self.carveout_pct is not None and not 0 <= self.carveout_pct <= 100:
            found.append(f"step {self.name!r} asks for {self.carveout_pct} % of the shared memory")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall(_Call):
    """Call a host function; it begins when everything it waits for has ended, and blocks its stream."""

    needs: ClassVar[SourceKind] = SourceKind.HOST

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        return True


# --- data -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(_Step):
    """One message: a run of buffers that neighbour each other on both sides, from the first's start to the last's
    end."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.source, self.target, strict=False))

    @property
    def touched(self) -> tuple[str, ...]:
        return (*self.source, *self.target)

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        return _all_on_host((self.source[0], self.target[0]), buffers)

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        found = _Step.problems(self, buffers, sources)
        if found:
            return found
        if len(self.source) != len(self.target) or not self.source:
            found.append(f"step {self.name!r} copies {len(self.source)} buffers to {len(self.target)}")
        return found + _unequal(self, buffers) + self._run_problems(buffers)

    def _run_problems(self, buffers: Mapping[str, Buffer]) -> list[str]:
        """One message goes from the first buffer's start to the last one's end: both sides must be laid out alike."""
        if len(self.source) < 2 or len(self.source) != len(self.target):
            return []
        found = []
        gaps = []
        for names in (self.source, self.target):
            run = [buffers[name] for name in names]
            if run[0].arena is None or any(each.arena != run[0].arena for each in run):
                found.append(f"step {self.name!r} copies {', '.join(names)} as one, which do not lie in one arena")
            offsets = [each.offset_bytes - run[0].offset_bytes for each in run]
            if offsets != sorted(set(offsets)):
                found.append(f"step {self.name!r} copies {', '.join(names)}, which do not lie in this order")
            gaps.append(offsets)
        if not found and gaps[0] != gaps[1]:
            found.append(f"step {self.name!r} copies {', '.join(self.source)} to a run that is laid out otherwise")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBatch(_Step):
    """Several messages handed to the driver in one call (cuMemcpyBatchAsync), in no order among themselves. `copies`
    are (source, target) buffers; they need not neighbour each other. All go one way: to the device, or from it."""

    copies: tuple[tuple[str, str], ...]

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        return self.copies

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        found = _Step.problems(self, buffers, sources)
        if found:
            return found
        found = _unequal(self, buffers)
        ways = {tuple(buffers[name].memory is Memory.DEVICE for name in pair) for pair in self.copies}
        if len(ways) > 1 or not ways or not ways <= {(True, False), (False, True)}:
            found.append(f"step {self.name!r} is a batch that does not go one way between host and device")
        return found


def _unequal(step: Copy | CopyBatch, buffers: Mapping[str, Buffer]) -> list[str]:
    return [f"step {step.name!r} copies {a!r} to {b!r}, which has another size"
            for a, b in step.messages if {buffers[a].dtype, buffers[b].dtype} <= DTYPES.keys()
            and buffers[a].size_bytes != buffers[b].size_bytes]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch(_Step):
    """Move managed memory to one side before it is used there (cudaMemPrefetchAsync): a run of neighbouring buffers of
    one allocation, from the first one's start to the last one's end. What they hold stays the same; without this step,
    each page moves when it is first touched."""

    buffers: tuple[str, ...]
    to_device: bool

    @property
    def carried(self) -> tuple[str, ...]:
        return self.buffers

    @property
    def touched(self) -> tuple[str, ...]:
        return self.buffers

    def problems(self, buffers: Mapping[str, Buffer], sources: Mapping[str, Source]) -> list[str]:
        found = _Step.problems(self, buffers, sources)
        if found:
            return found
        run = [buffers[name] for name in self.buffers]
        found += [f"step {self.name!r} prefetches {each.name!r}, which is not in managed memory"
                  for each in run if each.memory is not Memory.MANAGED]  # fmt: skip
        if not run:
            found.append(f"step {self.name!r} prefetches nothing")
        elif len(run) > 1 and (run[0].arena is None or any(each.arena != run[0].arena for each in run)):
            found.append(f"step {self.name!r} prefetches {', '.join(self.buffers)}, which do not lie in one arena")
        offsets = [each.offset_bytes for each in run]
        if offsets != sorted(set(offsets)):
            found.append(f"step {self.name!r} prefetches {', '.join(self.buffers)}, which do not lie in this order")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FillStep(_Step):
    """Set every byte of a buffer to `byte` (as cudaMemsetAsync does)."""

    buffer: str
    byte: int = 0

    @property
    def touched(self) -> tuple[str, ...]:
        return (self.buffer,)

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        return _all_on_host((self.buffer,), buffers)


# --- memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc(_Step):
    """Allocate an arena, or the buffer of that name, now and not before the run."""

    arena: str
    pooled: bool = False  #: From the driver's stream-ordered pool (cudaMallocAsync): device memory only

    @property
    def allocates(self) -> str | None:
        return self.arena

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        return not self.pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(_Step):
    """Free what an Alloc before it has allocated: to the pool, where that took it from there."""

    arena: str

    @property
    def frees(self) -> str | None:
        return self.arena

    def on_host(self, buffers: Mapping[str, Buffer]) -> bool:
        return True


Step: TypeAlias = Launch | Copy | CopyBatch | Prefetch | FillStep | HostCall | Alloc | Free
STEPS: Mapping[str, type[Any]] = {
    each.__name__: each for each in (Launch, Copy, CopyBatch, Prefetch, FillStep, HostCall, Alloc, Free)
}
ARGUMENTS: Mapping[str, type[Any]] = {each.__name__: each for each in (Pointer, Scalar, Bytes)}


def pitches(steps: Iterable[Step]) -> dict[str, int]:
    """Buffer -> the elements of a row, of those that may have a pitch."""
    found: dict[str, int] = {}
    for step in steps:
        for each in step.arguments if isinstance(step, Launch | HostCall) else ():
            if isinstance(each, Scalar) and each.pitch_of is not None and isinstance(each.value, int):
                found[each.pitch_of] = each.value
    return found


def packed(step: Step) -> Step:
    """A step whose structs have their numbers in their bytes, and whose floats are floats."""

    def one(argument: Argument) -> Argument:
        if isinstance(argument, Bytes) and argument.numbers:
            return Bytes(hex=argument.filled(lambda _: 0).hex(), pointers=argument.pointers)
        if isinstance(argument, Scalar) and isinstance(argument.value, Extent) and is_float(argument.dtype):
            return Scalar(dtype=argument.dtype, value=float(argument.value))
        return argument

    if isinstance(step, Launch | HostCall):
        return replace(step, arguments=tuple(one(each) for each in step.arguments))
    return step
