"""XLA's own kernels as a Program that the counter runs: their PTX, and what its compiler says of how it launches them.

    thunk_sequence.txt        the launches in order: kernel, grid, threads
    thunk_metadata.txt        the instruction that each of them is of
    after_optimizations.txt   the instructions
    buffer-assignment.txt     where each value lies
    *.ptx                     a kernel each

A kernel's parameters are the places of its instruction's operands, then those of its results, each place once; that is
checked against the PTX. What libraries compute is filled; a copy by the driver reads and writes what it copies. A
module with loops or branches is not understood (Unmatched), nor one whose parameters do not come out so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.devices.counting import run
from fusiond.devices.counting.model import H100
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source, SourceLanguage
from fusiond.model.ptx import flat
from fusiond_stitching.frontend import hlo
from fusiond_stitching.frontend.graph import DTYPES
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawComputation, RawShape

_LINE = re.compile(
    r"\d+: (k\w+)\s+\[[^\]]*\] (\S+)(?: grid: \[([\d, ]+)\] threads: \[([\d, ]+)\]\s+shared_memory: (\d+))?"
)
_OF = re.compile(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)')
_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)")
_VALUE = re.compile(r"value: <\d+ ([\w.\-]+?)((?:\{[\d,]*\})?) @\d+> \(size=(\d+),offset=(\d+)\)")
_KERNEL = "kCustomKernel"
_LIBRARY = re.compile(r"kCublas\w*|kGemm|kConvolution|kCudnn\w*|kCuDnn\w*|kFft|kTriangularSolve|kCholesky|kCustomCall")


class Unmatched(Exception):
    """The dumps do not say how these kernels are launched; the text is why."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of an allocation."""

    allocation: int
    offset: int
    size: int

    @property
    def name(self) -> str:
        return f"a{self.allocation}_{self.offset}_{self.size}"


def counted(folder: Path, fills: Mapping[int, Fill]) -> dict[str, Any]:
    """What the kernels that were dumped into `folder` move. `fills`: what the module's parameters hold, by number.
    Unmatched where that cannot be told."""
    program, copied = of_dumps(folder, fills)
    found = run.count(program, gpu=H100)
    failed = next((f"{row.launch}: {row.failed}" for row in found.rows if row.failed), None)
    if failed is not None:
        raise Unmatched(failed)
    return {"dram_bytes": copied + sum(row.dram_bytes or 0 for row in found.rows),
            "read_sectors": sum(row.read_sectors or 0 for row in found.rows),
            "write_sectors": sum(row.write_sectors or 0 for row in found.rows)}  # fmt: skip


def of_dumps(folder: Path, fills: Mapping[int, Fill]) -> tuple[Program, int]:
    """(the Program of what XLA has dumped, the bytes that its copies by the driver read and write). Unmatched where its
    files do not say enough."""
    dumped = _Dumped(folder)
    for number, line in enumerate(_only(folder, "*thunk_sequence.txt").splitlines(), 1):
        dumped.launched(number, line.strip())
    return dumped.program(fills), dumped.copied


class _Dumped:
    """What XLA has dumped of a module, and of its launches those that were read so far."""

    def __init__(self, folder: Path) -> None:
        module = hlo.parse(_only(folder, "*gpu_after_optimizations.txt"), "optimised")
        self._entry = module.computations[module.entry]
        self._places = _places(_only(folder, "*after_optimizations-buffer-assignment.txt"))
        self._named = {_word(each.name): each for each in self._entry.instructions}
        annotations = _OF.findall(_only(folder, "*thunk_metadata.txt"))
        self._annotations = {int(number): name for name, number in annotations}
        self._kernels = {name: text for text in _texts(folder) for name in re.findall(r"\.entry (\w+)", text)}
        self._sources: dict[str, Source] = {}
        self._steps: list[Launch] = []
        self._used: dict[str, tuple[Slice, str]] = {}
        self._written: set[str] = set()
        self._given: set[str] = set()  #: Read before anything is written there
        self.copied = 0

    def launched(self, number: int, line: str) -> None:
        """One line of the sequence of launches: a library's call, a copy by the driver, or a kernel."""
        found = _LINE.match(line)
        if found is None:
            raise Unmatched(f"what is launched by {line[:60]!r}")
        kind, kernel, grid, threads, shared = found.groups()
        if _LIBRARY.fullmatch(kind):
            return
        instruction = self._named.get(_word(self._annotations.get(number, "")))
        if kind == "kCopy" and instruction is not None and instruction.opcode == "copy":
            self.copied += 2 * sum(place.size for place, _ in _leaves(self._entry, instruction, self._places))
            return
        if kind != _KERNEL or kernel not in self._kernels:
            raise Unmatched(f"a launch of kind {kind}")
        if instruction is None:
            raise Unmatched(f"of which instruction {kernel} is")
        text = self._kernels[kernel]
        made = Source(name=kernel, text=text, entries=(kernel,), language=SourceLanguage.PTX)
        source = self._sources.setdefault(kernel, made)
        arguments = tuple(Pointer(buffer=each.name) for each in self._arguments(kernel, instruction))
        self._steps.append(
            Launch(
                name=f"x{number}", source=source.name, entry=kernel, grid=_three(grid), block=_three(threads),
                shared_bytes=int(shared), arguments=arguments,
            )
        )  # fmt: skip

    def _arguments(self, kernel: str, instruction: Raw) -> list[Slice]:
        """The buffers that a kernel is handed, in an order of XLA's that has as many as it has parameters."""
        operands = (_of(self._entry, name) for name in instruction.operands)
        reads = [place for each in operands for place in _leaves(self._entry, each, self._places)]
        writes = list(_leaves(self._entry, instruction, self._places))
        for place, dtype in (*reads, *writes):
            self._used.setdefault(place.name, (place, dtype))
        self._given |= {place.name for place, _ in reads} - self._written
        self._written |= {place.name for place, _ in writes}
        count = len(flat.parse(self._kernels[kernel]).kernels[kernel].parameters)
        for order in _orders(reads, writes):
            if len(order) == count:
                return list(order)
        raise Unmatched(f"{kernel} has {count} parameters, for {len(reads)} operands and {len(writes)} results")

    def program(self, fills: Mapping[int, Fill]) -> Program:
        """All that was read. `fills`: of the module's parameters."""
        numbers = {
            place.name: int(each.payload)
            for each in self._entry.instructions
            if each.opcode == "parameter"
            for place, _ in _leaves(self._entry, each, self._places)
        }
        buffers = []
        for name, (place, dtype) in self._used.items():
            given = name in self._given
            buffers.append(
                _buffer(name, place, dtype, fills.get(numbers.get(name, -1)) if given else None, given=given)
            )
        sources, steps = tuple(self._sources.values()), tuple(self._steps)
        return Program(name="XLA", buffers=tuple(buffers), sources=sources, steps=steps)


def _only(folder: Path, pattern: str) -> str:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unmatched(f"{len(found)} files {pattern}")
    return found[0].read_text(encoding="utf-8")


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.ptx")):
        yield path.read_text(encoding="utf-8")


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _three(text: str) -> tuple[int, int, int]:
    x, y, z = (int(each) for each in text.split(","))
    return x, y, z


def _places(text: str) -> Mapping[tuple[str, str], Slice]:
    """(instruction, index in its tuple) -> where it lies."""
    found: dict[tuple[str, str], Slice] = {}
    allocation = -1
    for line in text.splitlines():
        if line.startswith("allocation"):
            begun = _ALLOCATION.match(line)
            allocation = int(begun[1]) if begun else -1
        elif (value := _VALUE.search(line)) is not None and allocation >= 0:
            name, index, size, offset = value.groups()
            found[name, index.strip("{}")] = Slice(allocation, int(offset), int(size))
        elif not line.strip():
            allocation = -1
    return found


def _of(entry: RawComputation, name: str) -> Raw:
    return next(each for each in entry.instructions if each.name == name)


def _orders(reads: Sequence[tuple[Slice, str]], writes: Sequence[tuple[Slice, str]]) -> Iterator[list[Slice]]:
    """What the parameters may be: each place once; what is changed in place twice; all operands and all results."""
    first, second = [place for place, _ in reads], [place for place, _ in writes]
    yield list(dict.fromkeys((*first, *second)))
    yield [*dict.fromkeys(first), *second]
    yield [*first, *second]


def _leaves(
    entry: RawComputation, value: Raw, places: Mapping[tuple[str, str], Slice], index: str = ""
) -> Iterator[tuple[Slice, str]]:
    """Where the arrays of a value lie."""
    named = {each.name: each for each in entry.instructions}
    while value.opcode in ("bitcast", "get-tuple-element"):
        if value.opcode == "get-tuple-element":
            index = f"{value.integer('index')}{',' if index else ''}{index}"
        value = named[value.operands[0]]
    shapes = [(index, value.shape)]
    for step in filter(None, index.split(",")):
        _, shape = shapes.pop()
        assert not isinstance(shape, ArrayShape)
        shapes = [(index, shape.members[int(step)])]
    for at, each in _arrays(shapes[0][1], index):
        if (value.name, at) not in places:
            raise Unmatched(f"where {value.name}{{{at}}} lies")
        yield places[value.name, at], each.dtype


def _arrays(shape: RawShape, index: str) -> Iterator[tuple[str, ArrayShape]]:
    if isinstance(shape, ArrayShape):
        yield index, shape
        return
    for at, member in enumerate(shape.members):
        yield from _arrays(member, f"{index},{at}" if index else str(at))


def _buffer(name: str, place: Slice, dtype: str, fill: Fill | None, *, given: bool) -> Buffer:
    kind = DTYPES.get(dtype, "uint8")
    bits = {"bool": 8}.get(kind) or int(re.sub(r"\D.*", "", re.sub(r"^\D+", "", kind)) or 8)
    floating = "float" in kind
    return Buffer(
        name=name,
        dtype=kind,
        elements=max(1, math.ceil(place.size * 8 / bits)),
        role=Role.INPUT if given else Role.SCRATCH,
        fill=fill or (Fill(kind="uniform", low=-1.0, high=1.0) if given and floating else Fill()),
        arena=f"allocation_{place.allocation}",
        offset_bytes=place.offset,
    )
