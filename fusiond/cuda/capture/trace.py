"""Reads the trace files that runtime/trace.h writes: one per process, in the order of its events."""

import bisect
import dataclasses
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from fusiond.model.errors import RequestError

MAGIC = b"fusiond1"


class MemoryKind(IntEnum):
    """Of an allocation (`Memory` in trace.h)."""

    DEVICE = 0
    MANAGED = 1
    PINNED = 2
    VARIABLE = 3
    ARRAY = 4


class Direction(IntEnum):
    """Of a copy."""

    TO_DEVICE = 1
    TO_HOST = 2
    ON_DEVICE = 3
    ON_HOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedKernel:
    """A function of a module, as often as it was loaded."""

    number: int  #: From 1, by first launch: what `--list` shows and `--pick` takes
    name: str  #: Mangled
    module: Path | None  #: Its image: a fat binary, a cubin, or PTX; None where none was seen
    registers: int  #: A thread's; 0: not known
    static_shared_bytes: int
    local_bytes: int
    parameters: tuple[tuple[int, int], ...]  #: (offset, bytes) of each; empty where they are not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Memory that a kernel may reach."""

    number: int
    address: int
    size_bytes: int
    kind: MemoryKind
    name: str = ""  #: Mangled, of a variable


@dataclass(frozen=True, slots=True)
class CapturedPlace:
    """An address within an allocation."""

    allocation: Allocation
    offset: int

    @property
    def size_bytes(self) -> int:
        """How much lies behind it."""
        return self.allocation.size_bytes - self.offset


@dataclass(frozen=True, slots=True)
class CapturedArgument:
    """The bytes of one parameter, and what the words of 8 in them point to, as things stood at the launch."""

    data: bytes
    places: tuple[tuple[int, CapturedPlace], ...] = ()  #: (offset within the bytes, where it points)

    @property
    def place(self) -> CapturedPlace | None:
        """Of an argument that is an address and nothing else."""
        return self.places[0][1] if len(self.data) == 8 and self.places else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedLaunch:
    """One launch. A graph's launches come each time that the graph is launched."""

    kernel: CapturedKernel
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int  #: Dynamic
    cooperative: bool
    graph: int  #: 0: it was launched by itself
    arguments: tuple[CapturedArgument, ...]
    data: tuple[tuple[CapturedPlace, Path], ...] = ()  #: What was in memory before it, by files of DIR/data
    elapsed_ns: int | None = None  #: On the device, where it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedCopy:
    """Between host and device, or on one of them."""

    destination_place: CapturedPlace | None
    source_place: CapturedPlace | None
    size_bytes: int
    stream: int
    direction: Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFill:
    """A memset."""

    place: CapturedPlace | None
    size_bytes: int
    stream: int


@dataclass(frozen=True, slots=True)
class CapturedWait:
    """The host waited for a stream; 0: for the device."""

    stream: int


CapturedEvent = CapturedLaunch | CapturedCopy | CapturedFill | CapturedWait


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTrace:
    """Of one process: its events in the order of the calls."""

    file: Path
    kernels: tuple[CapturedKernel, ...]  #: By number; launched ones only
    allocations: tuple[Allocation, ...]
    events: tuple[CapturedEvent, ...]
    notes: tuple[str, ...]  #: What was not seen, or not done

    @property
    def launches(self) -> Iterator[CapturedLaunch]:
        return (each for each in self.events if isinstance(each, CapturedLaunch))


def read(folder: Path) -> tuple[CapturedTrace, ...]:
    """The traces in a capture's folder, those with launches first. RequestError where there is none, or one is none."""
    files = sorted(folder.glob("*.trace"))
    if not files:
        raise RequestError("holds no capture (fusiond capture --out DIR -- COMMAND makes one)", where=str(folder))
    traces = [_Reading(each).trace() for each in files]
    return tuple(sorted(traces, key=lambda each: (not each.kernels, each.file.name)))


class Fields:
    """The fields of a record or a request, one after the other. struct.error where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def u32(self) -> int:
        return int.from_bytes(self.rest(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.rest(8), "little")

    def three(self) -> tuple[int, int, int]:
        return self.u32(), self.u32(), self.u32()

    def raw(self) -> bytes:
        return self.rest(self.u32())

    def text(self) -> str:
        return self.raw().decode("utf-8", "replace")

    def rest(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise struct.error("a record that ends too early")
        self._at += size
        return found


class _Reading:
    """A file's records, with what they have named so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._modules: dict[int, Path] = {}
        self._functions: dict[int, CapturedKernel] = {}
        self._kernels: dict[CapturedKernel, CapturedKernel] = {}  #: Without its number -> with it
        self._live: dict[int, Allocation] = {}
        self._sorted: list[int] = []  #: Their addresses
        self._allocations: list[Allocation] = []
        self._events: list[CapturedEvent] = []
        self._launches: list[int] = []
        """The place among the events of each launch that was a call; -1 of a graph's node."""
        self._graphs: dict[int, list[CapturedLaunch | CapturedCopy | CapturedFill]] = {}
        self._data: list[tuple[CapturedPlace, Path]] = []
        self._notes: list[str] = []

    def trace(self) -> CapturedTrace:
        data = self._file.read_bytes()
        if data[:8] != MAGIC:
            raise RequestError("is not a capture's file", where=str(self._file))
        steps = {
            1: self._module, 2: self._function, 3: self._launch, 4: self._elapsed, 5: self._allocate,
            6: self._release, 7: self._copy, 8: self._fill, 9: self._wait, 10: self._graph, 11: self._contents,
            12: self._note, 13: self._variable,
        }  # fmt: skip
        at = 8
        while at + 16 <= len(data):
            kind, size, _ = struct.unpack_from("<IIQ", data, at)
            at += 16
            if at + size > len(data):
                break  # the program was killed while it was written
            if kind not in steps:
                raise RequestError(
                    f"has a record of kind {kind}, which this fusiond does not know", where=str(self._file)
                )
            try:
                steps[kind](Fields(data[at : at + size]))
            except struct.error:
                raise RequestError(f"is damaged at byte {at}", where=str(self._file)) from None
            at += size
        return CapturedTrace(
            file=self._file,
            kernels=tuple(self._kernels.values()),
            allocations=tuple(self._allocations),
            events=tuple(self._events),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _module(self, fields: Fields) -> None:
        handle, name = fields.u64(), fields.text()
        self._modules[handle] = self._file.parent / "modules" / name

    def _function(self, fields: Fields) -> None:
        handle, module, name = fields.u64(), fields.u64(), fields.text()
        registers, shared, local, count = (fields.u32() for _ in range(4))
        self._functions[handle] = CapturedKernel(
            number=0,
            name=name,
            module=self._modules.get(module),
            registers=registers,
            static_shared_bytes=shared,
            local_bytes=local,
            parameters=tuple((fields.u32(), fields.u32()) for _ in range(count)),
        )

    def _launch(self, fields: Fields) -> None:
        function, stream = fields.u64(), fields.u64()
        grid, block, cluster = (fields.three() for _ in range(3))
        shared, flags, graph, count = fields.u32(), fields.u32(), fields.u64(), fields.u32()
        arguments = tuple(self._argument(fields.raw()) for _ in range(count))
        unknown = CapturedKernel(
            number=0, name="?", module=None, registers=0, static_shared_bytes=0, local_bytes=0, parameters=()
        )
        known = self._functions.get(function, unknown)
        if known not in self._kernels:
            self._kernels[known] = dataclasses.replace(known, number=len(self._kernels) + 1)
        found = CapturedLaunch(
            kernel=self._kernels[known],
            stream=stream,
            grid=grid,
            block=block,
            cluster=cluster,
            shared_bytes=shared,
            cooperative=bool(flags & 1),
            graph=graph,
            arguments=arguments,
            data=tuple(self._data),
        )
        self._data = []
        if flags & 2:
            self._graphs.setdefault(graph, []).append(found)
            self._launches.append(-1)
        else:
            self._launches.append(len(self._events))
            self._events.append(found)

    def _elapsed(self, fields: Fields) -> None:
        number, elapsed = fields.u64(), fields.u64()
        place = self._launches[number] if number < len(self._launches) else -1
        event = self._events[place] if place >= 0 else None
        if isinstance(event, CapturedLaunch):
            self._events[place] = dataclasses.replace(event, elapsed_ns=elapsed)

    def _allocate(self, fields: Fields) -> None:
        address, size, kind = fields.u64(), fields.u64(), fields.u32()
        found = Allocation(number=len(self._allocations) + 1, address=address, size_bytes=size, kind=MemoryKind(kind))
        self._allocations.append(found)
        if address not in self._live:
            bisect.insort(self._sorted, address)
        self._live[address] = found

    def _variable(self, fields: Fields) -> None:
        address, name = fields.u64(), fields.text()
        found = self._live.get(address)
        if found is not None:
            self._live[address] = self._allocations[found.number - 1] = dataclasses.replace(found, name=name)

    def _release(self, fields: Fields) -> None:
        address = fields.u64()
        if self._live.pop(address, None) is not None:
            del self._sorted[bisect.bisect_left(self._sorted, address)]

    def _copy(self, fields: Fields) -> None:
        destination, source, size, stream = (fields.u64() for _ in range(4))
        found = CapturedCopy(
            destination_place=self._place(destination),
            source_place=self._place(source),
            size_bytes=size,
            stream=stream,
            direction=Direction(fields.u32()),
        )
        self._perhaps_node(found, fields)

    def _fill(self, fields: Fields) -> None:
        destination, size, stream = (fields.u64() for _ in range(3))
        fields.u64()  # value, bytes of an element
        self._perhaps_node(CapturedFill(place=self._place(destination), size_bytes=size, stream=stream), fields)

    def _perhaps_node(self, found: CapturedCopy | CapturedFill, fields: Fields) -> None:
        if fields.left and fields.u32() & 2:
            self._graphs.setdefault(fields.u64(), []).append(found)
        else:
            self._events.append(found)

    def _wait(self, fields: Fields) -> None:
        self._events.append(CapturedWait(fields.u64()))

    def _graph(self, fields: Fields) -> None:
        graph, stream = fields.u64(), fields.u64()
        self._events += [dataclasses.replace(each, stream=stream) for each in self._graphs.get(graph, ())]

    def _contents(self, fields: Fields) -> None:
        address, _, name = fields.u64(), fields.u64(), fields.text()
        place = self._place(address)
        if place is not None:
            self._data.append((place, self._file.parent / "data" / name))

    def _note(self, fields: Fields) -> None:
        self._notes.append(fields.text())

    def _argument(self, data: bytes) -> CapturedArgument:
        words: Sequence[int] = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])
        places = ((8 * k, self._place(each)) for k, each in enumerate(words))
        return CapturedArgument(data, tuple((at, place) for at, place in places if place is not None))

    def _place(self, address: int) -> CapturedPlace | None:
        """The allocation that holds an address."""
        before = bisect.bisect_right(self._sorted, address)
        if before:
            found = self._live[self._sorted[before - 1]]
            if address < found.address + max(found.size_bytes, 1):
                return CapturedPlace(found, address - found.address)
        return None
