"""A Program as steps with numbers in the place of names, and its binaries. A launcher of a few lines of C++ follows the
steps as one flat array of words:

    words    VERSION inputs outputs scratch (bytes ...) steps (step ...)
    step     0 image entry grid(3) block(3) shared cooperative carveout arguments (argument ...)      a launch
             1 buffer offset bytes byte                                                               a fill
    argument 0 buffer offset                                     an address
             1 bytes (word ...)                                  a number, or a struct, as little-endian words
             2 bytes (word ...) addresses (at buffer offset ...) a struct with addresses in it

Buffers are numbered: inputs, outputs, then allocations of scratch memory. Steps are in the order of one stream: what a
Program does on several is done one after the other.
"""

import functools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.program import Bytes, FillStep, Launch, Memory, Pointer, Program, Role, Scalar, SourceKind

VERSION = 2


class Unusable(Exception):
    """This Program cannot be launched from inside another one; the text is why, in one line."""


@dataclass(frozen=True, slots=True)
class Argument:
    """The bytes of an argument, and the addresses that stand in it: (offset in it, buffer, bytes into that)."""

    data: bytes
    places: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_address(self) -> bool:
        return len(self.data) == 8 and [at for at, _, _ in self.places] == [0]

    def filled(self, addresses: Sequence[int]) -> bytes:
        if not self.places:
            return self.data
        found = bytearray(self.data)
        for at, buffer, inside in self.places:
            struct.pack_into("<Q", found, at, addresses[buffer] + inside)
        return bytes(found)

    def words(self) -> list[int]:
        """As the module's docstring has them."""
        if self.is_address:
            return [0, *self.places[0][1:]]
        data = self.data + bytes(-len(self.data) % 8)
        found = [len(self.data), *struct.unpack(f"<{len(data) // 8}q", data)]
        if not self.places:
            return [1, *found]
        return [2, *found, len(self.places), *(each for place in self.places for each in place)]


@dataclass(frozen=True, slots=True)
class Step:
    """A launch."""

    image: int = 0
    entry: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    cooperative: bool = False
    carveout_pct: int = -1
    arguments: tuple[Argument, ...] = field(default=(), repr=False)

    def words(self) -> list[int]:
        found = [0, self.image, self.entry, *self.grid, *self.block, self.shared_bytes, int(self.cooperative)]
        given = [word for each in self.arguments for word in each.words()]
        return [*found, self.carveout_pct, len(self.arguments), *given]


@dataclass(frozen=True, slots=True)
class PlanFill:
    """Bytes of a buffer, set to a value."""

    buffer: int
    offset: int
    size_bytes: int
    byte: int

    def words(self) -> list[int]:
        return [1, self.buffer, self.offset, self.size_bytes, self.byte]


@dataclass(frozen=True)
class LaunchPlan:
    steps: tuple[Step | PlanFill, ...] = field(repr=False)
    scratch: tuple[int, ...]  #: The bytes of each scratch buffer
    images: tuple[str, ...]  #: Sources by name, in the order of their numbers
    entries: tuple[str, ...]  #: Entries, in the order of their numbers
    arguments: tuple[int, int]  #: How many inputs and outputs there are

    @functools.cached_property
    def words(self) -> NDArray[np.int64]:
        head = [VERSION, *self.arguments, len(self.scratch), *self.scratch, len(self.steps)]
        return np.asarray([*head, *(word for each in self.steps for word in each.words())], np.int64)


def flat(
    program: Program, inputs: Sequence[str], outputs: Sequence[str], *, in_place: Sequence[str] = ()
) -> LaunchPlan:
    """The plan of a Program whose inputs and outputs are handed in under these numbers. An input that the Program lacks
    is handed in all the same. `in_place`: those of the inputs that may be written too. Unusable."""
    known = {Role.INPUT: inputs, Role.OUTPUT: outputs, Role.INOUT: in_place}
    problem = next(_problems(program, known), None)
    if problem is not None:
        raise Unusable(problem)
    homes, sizes = _homes(program, (*inputs, *outputs))
    images = tuple(each.name for each in program.sources)
    entries: dict[str, int] = {}
    buffers = {each.name: each for each in program.buffers}
    steps: list[Step | PlanFill] = []
    for step in program.steps:
        if isinstance(step, FillStep):
            steps.append(PlanFill(*homes[step.buffer], int(buffers[step.buffer].size_bytes), step.byte))
        elif isinstance(step, Launch):
            entry = entries.setdefault(step.entry, len(entries))
            steps.append(_launch(step, images.index(step.source), entry, homes))
        else:
            raise Unusable(f"{step.name} is not a launch ({type(step).__name__})")
    return LaunchPlan(tuple(steps), tuple(sizes), images, tuple(entries), (len(inputs), len(outputs)))


def _problems(program: Program, known: Mapping[Role, Sequence[str]]) -> Iterator[str]:
    """What a plan of launches cannot say of a Program. `known`: the arguments that there are for each role."""
    if program.seams:
        yield f"it leaves {program.seams[0].name} to a library"
    for each in program.buffers:
        if each.memory is not Memory.DEVICE or each.symbol is not None:
            yield f"{each.name} is not plain device memory"
        if each.role is Role.SCRATCH:
            continue
        if each.name not in known.get(each.role, ()):
            yield f"{each.name} is not an argument of the region"
        if each.arena is not None:
            yield f"{each.name} lies in an arena"
    written = {each.name for each in program.buffers}
    yield from (f"the program has no {name}" for name in known[Role.OUTPUT] if name not in written)
    if any(each.kind is not SourceKind.DEVICE or each.symbols for each in program.sources):
        yield "it has code of the host, or variables in constant memory"


def _homes(program: Program, arguments: Sequence[str]) -> tuple[dict[str, tuple[int, int]], list[int]]:
    """Where each buffer is, (number, offset in bytes), and how large the memory is that is numbered behind the
    arguments: one piece for each arena, and for each scratch buffer outside of one."""
    sizes: dict[str, int] = {}
    scratch = [each for each in program.buffers if each.role is Role.SCRATCH]
    for each in scratch:
        home = each.arena or each.name
        sizes[home] = max(sizes.get(home, 0), int(each.offset_bytes) + int(each.size_bytes))
    numbers = {home: len(arguments) + index for index, home in enumerate(sizes)}
    homes = {name: (index, 0) for index, name in enumerate(arguments)}
    homes |= {each.name: (numbers[each.arena or each.name], int(each.offset_bytes)) for each in scratch}
    return homes, list(sizes.values())


def _launch(step: Launch, image: int, entry: int, homes: Mapping[str, tuple[int, int]]) -> Step:
    x, y, z, *block = (*map(int, step.grid), *map(int, step.block))
    carveout = -1 if step.carveout_pct is None else step.carveout_pct
    shape = (x, y, z), (block[0], block[1], block[2]), int(step.shared_bytes), step.cooperative, carveout
    return Step(image, entry, *shape, tuple(_argument(each, homes) for each in step.arguments))


def _argument(argument: Pointer | Scalar | Bytes, homes: Mapping[str, tuple[int, int]]) -> Argument:
    if isinstance(argument, Pointer):
        return Argument(bytes(8), ((0, *homes[argument.buffer]),))
    if isinstance(argument, Bytes):
        return Argument(argument.filled(lambda _: 0), tuple((at, *homes[name]) for at, name in argument.pointers))
    kind = DTYPES[argument.dtype].packed
    if kind is None:
        raise Unusable(f"it passes a {argument.dtype} by value")
    value = float(argument.value) if is_float(argument.dtype) else int(argument.value)
    return Argument(struct.pack(f"<{kind}", value))


def argument_names(count: int, results: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How stitching calls the parameters and results of a module."""
    return tuple(f"in_{i}" for i in range(count)), tuple(f"out_{i}" for i in range(results))


def built_for_cpu(program: Program) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """(the shared object of each source as the cpu device builds it, the exported name of each entry of the plan's
    order of entries). Unusable where one does not build."""
    from fusiond.build import gxx
    from fusiond.model.outcomes import BuildFailed

    paths: list[Path] = []
    for source in program.sources:
        built = gxx.build(source)
        if isinstance(built, BuildFailed):
            raise Unusable(f"{source.name} does not build: {built.reason}")
        paths.append(built)
    names: dict[str, str] = {}
    for step in program.launches:
        names.setdefault(step.entry, gxx.exported(program.source(step.source), step.entry))
    return tuple(paths), tuple(names.values())


def built_for_gpu(program: Program, arch: str) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """(the cubin of each source, the symbol of each entry). Unusable where one does not build."""
    from fusiond.build import nvcc
    from fusiond.model.outcomes import BuildFailed

    if not re.fullmatch(r"sm_[0-9]+[af]?", arch):
        raise Unusable(f"{arch} is not an architecture of a GPU")
    images: list[bytes] = []
    names: dict[str, str] = {}
    for source in program.sources:
        built = nvcc.build(source, source.target(arch))
        if isinstance(built, BuildFailed):
            raise Unusable(f"{source.name} does not build: {built.reason}")
        images.append(built.path.read_bytes())
        names |= {entry: built.names[entry] for entry in source.entries}
    symbols = {step.entry: names[step.entry] for step in program.launches}
    return tuple(images), tuple(symbols.values())
