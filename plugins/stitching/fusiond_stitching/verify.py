"""Whether a plan computes what its module says: proved from the plan alone, with nothing that made it.

    exact cover     every output reaches its buffer; nothing is computed in two places; a value that is read has been
                    computed before, in another launch, behind a grid barrier, or earlier in the same block program
                    (so the quotient graph has no cycle); every element of a buffer is written, by one block
    index sets      what a block reads of its own block program it has computed itself (`index_sets`, element by
                    element; where that is too much work, for some of the blocks)
    shared memory   no two buffers with a byte in common are alive in one stage, but for a write in place; buffers and
                    workspaces are large enough, aligned, and inside the arena
    barriers        between a write and another thread's read of it, and between a read and what overwrites it

Liveness is derived here from what stages read. Nothing of `shared_memory`, `stages` or `propagate` is used.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fusiond_stitching import index_sets
from fusiond_stitching.graph import BYTES, SOURCES, Instruction, Module
from fusiond_stitching.plan import (
    BlockProgram,
    Box,
    Chunk,
    Exchange,
    Flat,
    Kernel,
    LibraryCall,
    Plan,
    Reduction,
    Result,
    Shared,
    Stage,
)

ALIGNMENT = 16
WORK = 1 << 24
"""Elements of masks that are looked at for one stage; beyond it only some blocks are."""
FEWEST = 5
"""Blocks that are always looked at."""


def problems(module: Module, plan: Plan, *, shared_limit: int | None = None) -> tuple[str, ...]:
    """One line for everything that is wrong with a plan; none when it is sound. `shared_limit`: bytes of shared memory
    that a block may have."""
    checking = _Checking(module, plan, shared_limit)
    checking.run()
    return tuple(dict.fromkeys(checking.found))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an instruction is computed. Library calls have no stage."""

    step: int
    phase: int = 0
    program: int = 0
    stage: int = 0
    at: int = 0
    """The place among the stage's results."""

    @property
    def launch(self) -> tuple[int, int]:
        return (self.step, self.phase)


@dataclass(slots=True)
class _Reads:
    """What a stage reads. `own`: results of earlier stages of the same program -> whether all reads are at the
    reader's own index; `by`: who of the results reads it; `inlined`: what is computed on the spot, users first."""

    own: dict[str, bool] = field(default_factory=dict)
    by: dict[str, set[int]] = field(default_factory=dict)
    inlined: list[str] = field(default_factory=list)


class _Checking:
    def __init__(self, module: Module, plan: Plan, shared_limit: int | None) -> None:
        self.module = module
        self.plan = plan
        self.shared_limit = shared_limit
        self.found: list[str] = []
        self.places: dict[str, _Place] = {}
        self.results: dict[str, Result] = {}

    def run(self) -> None:
        for step, each in enumerate(self.plan.steps):
            if isinstance(each, LibraryCall):
                self._locate(each.instruction, _Place(step), f"library call {each.instruction}")
                continue
            for phase, programs in enumerate(each.phases):
                for number, program in enumerate(programs.programs):
                    for stage, one in enumerate(program.stages):
                        for at, result in enumerate(one.results):
                            place = _Place(step, phase, number, stage, at)
                            self._locate(result.instruction, place, f"{each.name}/{program.name}")
                            self.results.setdefault(result.instruction, result)
        for step, each in enumerate(self.plan.steps):
            if isinstance(each, LibraryCall):
                self._library(step, each)
            else:
                self._kernel(step, each)
        for name, buffer in self.module.computed.items():
            if self.module[name].elements and not self._stored(name):
                self.found.append(f"{name} is never written to {buffer}")
        for name in self.module.foreign:
            if name not in self.places:
                self.found.append(f"library call {name} is never made")

    def _locate(self, name: str, place: _Place, where: str) -> None:
        if name not in self.module.by_name:
            self.found.append(f"{where}: there is no instruction {name}")
        elif self.module[name].opcode == "parameter":
            self.found.append(f"{where}: {name} is a parameter")
        elif name in self.places:
            self.found.append(f"{where}: {name} is computed a second time")
        else:
            self.places[name] = place

    def _stored(self, name: str) -> bool:
        place = self.places.get(name)
        if place is None:
            return False
        result = self.results.get(name)
        return isinstance(self.plan.steps[place.step], LibraryCall) or (
            result is not None and result.stored is not None
        )

    # --- steps ---

    def _library(self, step: int, call: LibraryCall) -> None:
        where = f"library call {call.instruction}"
        instruction = self.module.by_name.get(call.instruction)
        if instruction is None:
            return
        if not self.module.library(instruction):
            self.found.append(f"{where}: {instruction.opcode} is no library call")
        for operand in instruction.operands:
            source = self.module[operand]
            while source.opcode == "reshape" and source.name not in self.places:
                source = self.module[source.operands[0]]
            if source.opcode in SOURCES or not source.elements:
                continue
            place = self.places.get(source.name)
            if place is None or not self._stored(source.name):
                self.found.append(f"{where}: {source.name} has no buffer")
            elif place.step >= step:
                self.found.append(f"{where}: {source.name} is read before it is computed")

    def _kernel(self, step: int, kernel: Kernel) -> None:
        say = _Saying(self.found, kernel.name)
        most = max((phase.blocks for phase in kernel.phases), default=0)
        if not kernel.phases or any(not phase.programs for phase in kernel.phases):
            say("there is nothing to do in a phase")
        if not 1 <= kernel.threads <= 1024:
            say(f"a block cannot have {kernel.threads} threads")
        if kernel.cooperative and not 1 <= kernel.grid <= most:
            say(f"{kernel.grid} blocks are launched for {most}")
        if not kernel.cooperative and kernel.grid != most:
            say(f"{kernel.grid} blocks are launched for {most}, and there is no second round")
        if self.shared_limit is not None and kernel.shared_bytes > self.shared_limit:
            say(f"{kernel.shared_bytes} bytes of shared memory, and {self.shared_limit} are allowed")
        for phase, programs in enumerate(kernel.phases):
            for number, program in enumerate(programs.programs):
                if program.shared_bytes > kernel.shared_bytes:
                    say(f"{program.name} needs {program.shared_bytes} bytes of shared memory")
                self._program(_Place(step, phase, number), program, kernel)

    # --- block programs ---

    def _program(self, here: _Place, program: BlockProgram, kernel: Kernel) -> None:
        say = _Saying(self.found, f"{kernel.name}/{program.name}")
        if program.blocks < 1:
            say("it has no blocks")
            return
        known = [
            stage for stage in program.stages if all(each.instruction in self.module.by_name for each in stage.results)
        ]
        if len(known) != len(program.stages):
            return
        for stage in program.stages:
            self._stage(say, program, stage, kernel.threads)
        reads = [self._reads(say, here, program, number) for number in range(len(program.stages))]
        self._memory(say, program, reads, kernel.threads)
        self._barriers(say, program, reads, kernel.threads)
        self._contained(say, program, reads)

    def _stage(self, say: _Saying, program: BlockProgram, stage: Stage, threads: int) -> None:
        reduces = 0
        for at, result in enumerate(stage.results):
            instruction = self.module[result.instruction]
            if instruction.dims != stage.dims:
                say(f"{result.instruction} has other dims than its stage")
            if instruction.opcode == "reduce":
                reduces += 1
                if reduces != at + 1:
                    say(f"the reduce {result.instruction} does not stand first in its stage")
            if result.stored is not None:
                wanted = self.module.buffer_of(result.instruction)
                if result.stored.buffer != wanted:
                    say(f"{result.instruction} goes to {result.stored.buffer}, not to {wanted}")
                problem = _coverage(stage.chunk, stage.dims, program.blocks)
                if problem:
                    say(f"{result.instruction}: {problem}")
            if result.shared is not None:
                size = math.prod(stage.chunk.local) * BYTES[instruction.dtype]
                if result.shared.size_bytes < size:
                    say(f"{result.instruction} needs {size} bytes of shared memory and has {result.shared.size_bytes}")
        problem = _shape(stage.chunk, stage.dims)
        if problem:
            say(f"stage of {', '.join(each.instruction for each in stage.results)}: {problem}")
        self._reduction(say, stage, reduces, threads)

    def _reduction(self, say: _Saying, stage: Stage, reduces: int, threads: int) -> None:
        reduction = stage.reduction
        if not reduces:
            if reduction is not None:
                say(f"{stage.results[0].instruction} is no reduce")
            return
        if reduction is None:
            say(f"it is not said how {stage.results[0].instruction} is reduced")
            return
        members = [self.module[each.instruction] for each in stage.results[:reduces]]
        over = {(self.module[each.operands[0]].dims, tuple(each.attributes["dimensions"])) for each in members}
        if len(over) > 1:
            say(f"{' and '.join(each.name for each in members)} do not reduce the same dims")
        problem = _lanes(reduction, threads)
        if problem:
            say(f"{members[0].name}: {problem}")
        needed = _workspace_bytes(self.module, members, reduction, threads)
        has = reduction.workspace.size_bytes if reduction.workspace else 0
        if has < needed:
            say(f"{members[0].name} needs a workspace of {needed} bytes and has {has}")

    # --- reads ---

    def _reads(self, say: _Saying, here: _Place, program: BlockProgram, number: int) -> _Reads:
        stage = program.stages[number]
        reads = _Reads()
        inlined: dict[str, None] = {}
        for at, result in enumerate(stage.results):
            instruction = self.module[result.instruction]
            seen: set[tuple[str, bool]] = set()
            stack = [(name, instruction.elementwise) for name in reversed(instruction.operands)]
            while stack:
                name, same = stack.pop()
                source = self.module[name]
                same = same and source.dims == stage.dims
                if (name, same) in seen:
                    continue
                seen.add((name, same))
                if source.opcode == "parameter" or not source.elements:
                    continue
                place = self.places.get(name)
                if place is not None:
                    self._read(say, _Place(here.step, here.phase, here.program, number, at), result, name, same, reads)
                    continue
                if self.module.library(source) or source.opcode == "scatter":
                    say(f"{result.instruction} reads {name}, which nobody computes: {source.opcode} is not inlined")
                    continue
                inlined[name] = None
                stack += [(each, same and source.elementwise) for each in reversed(source.operands)]
        reads.inlined = sorted(inlined, key=self.module.number.__getitem__, reverse=True)
        return reads

    def _read(self, say: _Saying, here: _Place, reader: Result, name: str, same: bool, reads: _Reads) -> None:
        """Whether a value that some place computes can be read here, and how."""
        place = self.places[name]
        said = f"{reader.instruction} reads {name}"
        if isinstance(self.plan.steps[place.step], LibraryCall):
            if place.step >= here.step:
                say(f"{said} before the library has computed it")
            return
        result = self.results[name]
        if (*place.launch, place.program) != (*here.launch, here.program):
            if result.stored is None:
                say(f"{said}, which has no buffer and is computed elsewhere")
            elif place.launch == here.launch:
                say(f"{said}, which other blocks compute in the same phase")
            elif place.launch > here.launch:
                say(f"{said} before it is computed")
            return
        if place.stage == here.stage:
            if place.at >= here.at:
                say(f"{said} before it is computed")
            elif not same:
                say(f"{said} of the same stage at another index")
            return
        if place.stage > here.stage:
            say(f"{said} before it is computed")
        elif not result.homes:
            say(f"{said}, which is only in a register of another stage")
        else:
            reads.own[name] = reads.own.get(name, True) and same
            reads.by.setdefault(name, set()).add(here.at)

    # --- shared memory ---

    def _memory(self, say: _Saying, program: BlockProgram, reads: Sequence[_Reads], threads: int) -> None:
        alive = list(self._buffers(program, reads))
        for each in alive:
            if each.home.offset % ALIGNMENT or each.home.offset < 0:
                say(f"{each.name} begins at byte {each.home.offset}")
            if each.home.offset + each.home.size_bytes > program.shared_bytes:
                say(f"{each.name} ends behind the {program.shared_bytes} bytes of shared memory")
        for one, other in itertools.combinations(alive, 2):
            earlier, later = (one, other) if one.first <= other.first else (other, one)
            if earlier.last < later.first or not _common(earlier.home, later.home):
                continue
            if not self._in_place(program, reads, earlier, later):
                say(f"{earlier.name} and {later.name} are alive at once in the same shared memory")

    def _buffers(self, program: BlockProgram, reads: Sequence[_Reads]) -> Iterator[_Alive]:
        last: dict[str, int] = {}
        for number, each in enumerate(reads):
            for name in each.own:
                last[name] = number
        for number, stage in enumerate(program.stages):
            for result in stage.results:
                if result.shared is not None:
                    name = result.instruction
                    yield _Alive(name, result.shared, number, max(number, last.get(name, number)))
            if stage.reduction is not None and stage.reduction.workspace is not None:
                name = f"the workspace of {stage.results[0].instruction}"
                yield _Alive(name, stage.reduction.workspace, number, number)

    def _in_place(self, program: BlockProgram, reads: Sequence[_Reads], earlier: _Alive, later: _Alive) -> bool:
        """The last reader of a buffer writes over it, each thread over the elements that only it has read."""
        if earlier.last != later.first or earlier.first == later.first or later.name not in self.module.by_name:
            return False
        if earlier.name not in self.module.by_name:
            return False
        stage, before = program.stages[later.first], program.stages[earlier.first]
        same = (
            earlier.home.offset == later.home.offset
            and BYTES[self.module[earlier.name].dtype] == BYTES[self.module[later.name].dtype]
            and (stage.chunk, stage.dims) == (before.chunk, before.dims)
        )
        here = reads[later.first]
        writer = self.places[later.name].at
        return (
            same
            and stage.reduction is None
            and here.own.get(earlier.name, False)
            and all(reader <= writer for reader in here.by[earlier.name])
        )

    def _barriers(self, say: _Saying, program: BlockProgram, reads: Sequence[_Reads], threads: int) -> None:
        """Between two barriers no thread reads what another has written, or writes over what another has touched."""
        homes = {each.instruction: stage for stage in program.stages for each in stage.results}
        written: set[str] = set()
        touched: dict[str, Shared] = {}
        for stage, read in zip(program.stages, reads, strict=True):
            if stage.barrier:
                written.clear()
                touched.clear()
            writes = {each.instruction: each.shared for each in stage.results if each.shared is not None}
            if stage.reduction is not None and stage.reduction.workspace is not None:
                writes[f"the workspace of {stage.results[0].instruction}"] = stage.reduction.workspace
            for name, same in read.own.items():
                if name in written and not _private(homes[name], stage, threads, same=same):
                    say(f"no barrier between the write of {name} and its read by {stage.results[0].instruction}")
            for mine, home in writes.items():
                for theirs, other in touched.items():
                    if _common(home, other):
                        say(f"no barrier before {mine} is written over {theirs}")
            written.update(each.instruction for each in stage.results)
            touched.update(writes)
            for name in read.own:
                shared = self.results[name].shared
                if shared is not None:
                    touched[name] = shared

    # --- index sets ---

    def _contained(self, say: _Saying, program: BlockProgram, reads: Sequence[_Reads]) -> None:
        homes = {each.instruction: stage for stage in program.stages for each in stage.results}
        for stage, read in zip(program.stages, reads, strict=True):
            wanted = [
                name
                for name, same in read.own.items()
                if not (same and (homes[name].chunk, homes[name].dims) == (stage.chunk, stage.dims))
                or self.results[name].shared is None
            ]
            if not wanted:
                continue
            path = self._path(stage, read, wanted)
            nodes = [*(each.instruction for each in stage.results), *path, *wanted]
            work = sum(self.module[name].elements for name in nodes)
            for block in _some(program.blocks, work):
                for name, mask in self._needed(stage, path, wanted, block).items():
                    chunk = homes[name].chunk
                    own = index_sets.of_chunk(chunk, homes[name].dims, block)
                    missing = int(np.count_nonzero(mask & ~own))
                    if missing:
                        say(
                            f"block {block}: {stage.results[0].instruction} reads {missing} elements of {name} that "
                            "it has not computed"
                        )
                    elif mask.any() and self.results[name].shared is None and not _writes(chunk, block):
                        say(f"block {block} reads {name} from global memory, where another block writes it")

    def _path(self, stage: Stage, read: _Reads, wanted: Sequence[str]) -> list[str]:
        """The inlined instructions through which the wanted ones are read, users first."""
        leading = set(wanted)
        for name in reversed(read.inlined):
            if any(each in leading for each in self.module[name].operands):
                leading.add(name)
        return [name for name in read.inlined if name in leading]

    def _needed(
        self, stage: Stage, path: Sequence[str], wanted: Sequence[str], block: int
    ) -> Mapping[str, index_sets.Mask]:
        """What one block reads of each of the wanted values."""
        needed: dict[str, index_sets.Mask] = {}
        follow = {*path, *wanted}
        start = index_sets.of_chunk(stage.chunk, stage.dims, block)
        for name, mask in itertools.chain(
            ((each.instruction, start) for each in stage.results), ((name, None) for name in path)
        ):
            own = needed.get(name) if mask is None else mask
            if own is None:
                continue
            user = self.module[name]
            for place, operand in enumerate(user.operands):
                if operand in follow:
                    more = index_sets.read(self.module, user, place, own)
                    needed[operand] = needed[operand] | more if operand in needed else more
        return {name: needed[name] for name in wanted if name in needed}


@dataclass(frozen=True, slots=True)
class _Alive:
    """A shared buffer from the stage that writes it to the last one that reads it."""

    name: str
    home: Shared
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Saying:
    found: list[str]
    where: str

    def __call__(self, problem: str) -> None:
        self.found.append(f"{self.where}: {problem}")


def _common(one: Shared, other: Shared) -> bool:
    return one.offset < other.offset + other.size_bytes and other.offset < one.offset + one.size_bytes


def _some(blocks: int, work: int) -> Sequence[int]:
    """All blocks, or as many as the work allows: the first, the last, and some between."""
    most = max(FEWEST, WORK // max(1, work))
    if blocks <= most:
        return range(blocks)
    return sorted({at * (blocks - 1) // (most - 1) for at in range(most)})


@functools.lru_cache(maxsize=4096)
def _shape(chunk: Chunk, dims: tuple[int, ...]) -> str:
    """What is wrong with a chunk over dims; empty when nothing is."""
    if isinstance(chunk, Flat):
        return "" if chunk.size >= 1 and chunk.parts >= 1 else "a chunk has no elements"
    if len(chunk.splits) != len(dims):
        return f"a chunk of {len(chunk.splits)} dimensions for {len(dims)}"
    for each, dim in zip(chunk.splits, dims, strict=True):
        if each.parts < 1 or each.stride < 1 or (dim and (each.size < 1 or (each.parts - 1) * each.size >= dim)):
            return f"{each.parts} parts of {each.size} for a dimension of {dim}"
    return ""


@functools.lru_cache(maxsize=4096)
def _coverage(chunk: Chunk, dims: tuple[int, ...], blocks: int) -> str:
    """What is not written, or by nobody, when `blocks` blocks write their chunks; empty when all is well."""
    elements = math.prod(dims)
    if isinstance(chunk, Flat):
        written = min(chunk.size * blocks, elements)
        return "" if written == elements else f"{elements - written} of {elements} elements are not written"
    if _shape(chunk, dims):
        return ""  # said elsewhere
    if any(each.size * each.parts < dim for each, dim in zip(chunk.splits, dims, strict=True)):
        return "the chunks are too small for the dims"
    block = np.arange(blocks)
    first = np.zeros(blocks, dtype=np.int64)
    for each in chunk.splits:
        first += (block // each.stride) % each.parts * each.stride
    # A block that is its own first replica is told from others by its coordinates: there must be one for each chunk.
    writers = int(np.count_nonzero(first == block))
    return "" if writers == chunk.parts else f"{writers} blocks write {chunk.parts} chunks"


def _writes(chunk: Chunk, block: int) -> bool:
    return chunk.writes(block) if isinstance(chunk, Box) else True


def _lanes(reduction: Reduction, threads: int) -> str:
    lanes = reduction.lanes
    power = lanes >= 1 and lanes & (lanes - 1) == 0
    if lanes == 1:
        return ""
    if reduction.exchange is Exchange.NONE:
        return f"{lanes} lanes exchange nothing"
    if lanes > threads or threads % lanes:
        return f"{lanes} lanes in a block of {threads} threads"
    if reduction.inner and lanes != threads and not (power and lanes <= 32):
        return f"{lanes} lanes are neither a power of two up to 32 nor all threads"
    if not reduction.inner and (not power or reduction.exchange is not Exchange.SHARED):
        return f"a column reduce cannot have {lanes} lanes that exchange by {reduction.exchange}"
    return ""


def _private(writer: Stage, reader: Stage, threads: int, *, same: bool) -> bool:
    """No thread reads what another has written: the only element belongs to thread 0 in both stages, and the reader has
    no further lanes; or all reads are at the reader's own index (`same`), over one chunk that is shared out alike."""
    if writer.chunk.size == reader.chunk.size == 1:
        return same or reader.reduction is None or reader.reduction.lanes == 1
    if not same or (writer.chunk, writer.dims) != (reader.chunk, reader.dims):
        return False
    return all(_thread(writer, at, threads) == _thread(reader, at, threads) for at in range(reader.chunk.size))


def _thread(stage: Stage, element: int, threads: int) -> int:
    """Who computes an element of a chunk (and holds its total, where it is reduced)."""
    if stage.reduction is None or stage.reduction.lanes == 1:
        return element % threads
    lanes = stage.reduction.lanes
    if lanes == threads:
        return 0
    column = element % (threads // lanes)
    return column * lanes if stage.reduction.inner else column


def _workspace_bytes(module: Module, members: Sequence[Instruction], reduction: Reduction, threads: int) -> int:
    """At least this much is exchanged through shared memory: an accumulator per thread, or per warp."""
    if reduction.lanes == 1 or (reduction.exchange is Exchange.WARP and reduction.lanes <= 32):
        return 0
    slots = threads // 32 if reduction.exchange is Exchange.WARP else threads
    values = {each.operands[: len(each.operands) // 2] for each in members}
    return sum(slots * BYTES[module[name].dtype] for names in values for name in names)
