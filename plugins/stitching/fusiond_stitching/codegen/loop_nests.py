"""A block program as statements: one loop nest per stage (Algorithm 2), intermediates in the shared arena at the
offsets that were planned, `__syncthreads` where the plan has one.

Barriers never stand under a condition that differs between threads: where a loop's last round is not full, the loop
still runs for everybody and the work inside is guarded.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp, hole, joined
from fusiond_stitching.analysis.indexing import Index, delinear, linear, number
from fusiond_stitching.analysis.plan import BlockProgram, BoxChunk, Chunk, FlatChunk, Global, Shared, Stage, StageResult
from fusiond_stitching.codegen import elemental, indexed
from fusiond_stitching.codegen.elemental import Elemental, Indices, type_of
from fusiond_stitching.codegen.reduction import BARRIER, WARP, ReduceLanes
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.codegen.semantics import NoCode
from fusiond_stitching.frontend.graph import HloModule

STEPS = {**elemental.STEPS, **indexed.STEPS}
THREAD, ZERO, NO_HEAD = Code("threadIdx.x"), Code("0"), Code("")


@dataclass
class BlockWriter:
    """Writes a block program into a scope."""

    module: HloModule
    program: BlockProgram
    threads: int
    available: set[str]  #: The instructions whose values are in their buffers before it begins
    pointers: dict[str, bool]  #: The buffers that it uses, collected: name -> whether it writes it

    def __post_init__(self) -> None:
        """What it keeps beside."""


class LoopNests(BlockWriter):
    def __post_init__(self) -> None:
        self._shared: dict[str, tuple[Code, Chunk]] = {}
        self._elemental = Elemental(self.module, self, STEPS)
        self.block = number(0)

    def write(self, scope: Scope, block: str) -> None:
        """All stages; `block` is the variable that holds the block's number inside the program."""
        self.block = scope.known(block, self.program.blocks)
        for place, stage in enumerate(self.program.stages):
            if place:
                scope.line(Code(""))
            if stage.barrier:
                scope.line(BARRIER)
            self._stage(scope, stage)

    # --- elemental.ValueReader ---

    def place(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        if name in self._shared:
            pointer, chunk = self._shared[name]
            return cpp("{}[{}]", pointer, scope.index(self._local(name, chunk, indices)))
        if name in self.available:
            return cpp("{}[{}]", self._read(name), scope.index(linear(indices, self.module[name].dims)))
        return None

    def _read(self, name: str) -> Code:
        """The buffer of a value, which is read."""
        buffer = self.module.buffer_of(name)
        self.pointers.setdefault(buffer, False)
        return hole(buffer)

    def store(self, scope: Scope, name: str, place: Index, value: Code, guard: Code = NO_HEAD) -> None:
        """Puts an element of a value into its buffer."""
        buffer = self.module.buffer_of(name)
        self.pointers[buffer] = True
        written = scope.stored(type_of(self.module[name]), value)
        scope.line(cpp("{}{}[{}] = {};", guard, hole(buffer), scope.index(place), written))

    def _local(self, name: str, chunk: Chunk, indices: Indices) -> Index:
        """The place of an element inside the chunk that this block has."""
        if isinstance(chunk, FlatChunk):
            return linear(indices, self.module[name].dims) - self.block * chunk.size
        inside = [index - start for index, start in zip(indices, self._start(chunk), strict=True)]
        return linear(inside, chunk.local)

    def _start(self, box: BoxChunk) -> list[Index]:
        return [coordinate * each.size for coordinate, each in zip(self._coordinates(box), box.splits, strict=True)]

    def _coordinates(self, box: BoxChunk) -> list[Index]:
        return [(self.block // each.stride) % each.parts for each in box.splits]

    # --- stages ---

    def _stage(self, scope: Scope, stage: Stage) -> None:
        if math.prod(stage.dims) == 0:
            return
        for result in stage.results:
            scope.comment(f"{self.module[result.instruction]}{kept(result)}")
        if stage.reduction is not None and stage.reduction.lanes > 1:
            self._many_lanes(scope, stage)
        else:
            self._one_lane(scope, stage)
        for result in stage.results:
            if result.stored is not None:
                self.available.add(result.instruction)

    def _one_lane(self, scope: Scope, stage: Stage) -> None:
        pointers = self._declared(scope, stage.results)
        with (
            self._loop(scope, stage.chunk.size) as (inner, element),
            self._valid(inner, stage, element) as (body, indices),
        ):
            if stage.reduction is not None:
                lanes = ReduceLanes(self._elemental, stage, self.threads)
                lanes.start(body, ZERO)
                lanes.reduce(body, ZERO, indices)
                lanes.remember(body, indices)
            self._results(body, stage, element, indices, pointers)
        self._keep(stage, pointers)

    def _many_lanes(self, scope: Scope, stage: Stage) -> None:
        lanes = ReduceLanes(self._elemental, stage, self.threads)
        threads, count = self.threads, lanes.lanes
        if threads % count or threads % WARP:
            raise NoCode(f"{threads} threads cannot be {count} lanes for each element")
        pointers = self._declared(scope, stage.results)
        size, at_once = stage.chunk.size, threads // count
        rounds = -(-size // at_once)
        lane, element = self._thread(count, at_once, inner=lanes.reduction.inner)
        turn = scope.function.fresh("round")
        header = cpp("for (int {} = 0; {} < {}; ++{})", turn, turn, rounds, turn) if rounds > 1 else NO_HEAD
        with scope.block(header, conditional=False) as body:
            if rounds > 1 and lanes.reduction.workspace is not None:
                body.line(cpp("if ({} > 0) __syncthreads();  // the workspace is used again", turn))
            first = cpp("{} * {} + ", turn, at_once) if rounds > 1 else ""
            if count == threads:
                place = body.known(turn, rounds) if rounds > 1 else number(0)
            else:
                place = body.variable("element", cpp("{}{}", first, element), rounds * at_once)
            name = body.constant("int", "lane", lane)
            lanes.start(body, name)
            within = [cpp("{} < {}", body.index(place), size)] if rounds * at_once > size else []
            with self._valid(body, stage, place, within) as (inner, indices):
                lanes.reduce(inner, name, indices)
            lanes.exchange(body, name)
            with self._valid(body, stage, place, [cpp("{} == 0", name), *within]) as (inner, indices):
                lanes.remember(inner, indices)
                self._results(inner, stage, place, indices, pointers)
        self._keep(stage, pointers)

    def _thread(self, lanes: int, at_once: int, *, inner: bool) -> tuple[Code, Code]:
        """(which lane a thread is, of which element)."""
        if lanes == self.threads:
            return THREAD, ZERO
        if inner:
            return cpp("threadIdx.x % {}", lanes), cpp("threadIdx.x / {}", lanes)
        return cpp("threadIdx.x / {}", at_once), cpp("threadIdx.x % {}", at_once)

    @contextmanager
    def _loop(self, scope: Scope, size: int) -> Iterator[tuple[Scope, Index]]:
        """The elements of a chunk shared out among the threads of the block."""
        threads = self.threads
        if size > threads:
            name = scope.function.fresh("i")
            whole = scope.function.index_type
            header = cpp("for ({} {} = threadIdx.x; {} < {}; {} += {})", whole, name, name, size, name, threads)
            with scope.block(header, conditional=False) as body:
                yield body, body.known(name, size)
            return
        condition = "threadIdx.x == 0" if size == 1 else cpp("threadIdx.x < {}", size)
        with scope.block(cpp("if ({})", condition) if size < threads else NO_HEAD) as body:
            yield body, body.variable("i", THREAD, size)

    @contextmanager
    def _valid(
        self, scope: Scope, stage: Stage, element: Index, conditions: Sequence[Code] = ()
    ) -> Iterator[tuple[Scope, Indices]]:
        """The indices of an element of the chunk, behind the condition that there is such an element."""
        wanted = list(conditions)
        chunk, dims = stage.chunk, stage.dims
        if isinstance(chunk, FlatChunk):
            total = math.prod(dims)
            position = self.block * chunk.size + element
            if self.program.blocks * chunk.size > total:
                wanted.append(cpp("{} < {}", scope.index(position), total))
            indices = delinear(position, dims)
        else:
            inside = delinear(element, chunk.local)
            indices = tuple(start + each for start, each in zip(self._start(chunk), inside, strict=True))
            for index, split, dim in zip(indices, chunk.splits, dims, strict=True):
                if split.size * split.parts > dim:
                    wanted.append(cpp("{} < {}", scope.index(index), dim))
        if not wanted:
            yield scope, indices
            return
        with scope.block(cpp("if ({})", joined(" && ", wanted))) as body:
            yield body, indices

    # --- results ---

    def _declared(self, scope: Scope, results: Sequence[StageResult]) -> dict[str, Code]:
        """Pointers to the shared buffers that a stage writes."""
        found = {}
        for result in results:
            home = result.shared
            if home is not None:
                instruction = self.module[result.instruction]
                kind = type_of(instruction)
                found[result.instruction] = scope.shared(kind, f"shared_{instruction.opcode}", home.offset)
        return found

    def _keep(self, stage: Stage, pointers: dict[str, Code]) -> None:
        for name, pointer in pointers.items():
            self._shared[name] = (pointer, stage.chunk)

    def _results(self, scope: Scope, stage: Stage, element: Index, indices: Indices, pointers: dict[str, Code]) -> None:
        for result in stage.results:
            value = self._elemental.value(scope, result.instruction, indices)
            written = scope.stored(type_of(self.module[result.instruction]), value)
            for home in result.homes:
                if isinstance(home, Shared):
                    scope.line(cpp("{}[{}] = {};", pointers[result.instruction], scope.index(element), written))
                    continue
                assert isinstance(home, Global)  # registers are the other writer's
                self.pointers[home.buffer] = True
                position = scope.index(linear(indices, stage.dims))
                first = self._first_replica(scope, stage.chunk)
                scope.line(cpp("{}{}[{}] = {};", first, hole(home.buffer), position, written))

    def _first_replica(self, scope: Scope, chunk: Chunk) -> Code:
        """The condition that this block is the one of its replicas that writes; empty where there are none."""
        if isinstance(chunk, FlatChunk):
            return NO_HEAD
        own = number(0)
        for coordinate, each in zip(self._coordinates(chunk), chunk.splits, strict=True):
            own = own + coordinate * each.stride
        if own == self.block:
            return NO_HEAD
        return cpp("if ({} == {}) ", scope.index(self.block), scope.index(own))


def kept(result: StageResult) -> str:
    """Where a value goes, for the comment."""
    homes = [f"shared {each.offset}" if isinstance(each, Shared) else getattr(each, "buffer", "registers")
             for each in result.homes]  # fmt: skip
    return f"  -> {', '.join(homes)}" if homes else ""


def index_type(most_elements: int, programs: Iterable[BlockProgram]) -> str:
    """`int` where the elements of every tensor and of all chunks can be counted with it."""
    most = most_elements
    for program in programs:
        most = max([most, *(stage.chunk.size * program.blocks for stage in program.stages)])
    return "int" if most < 2**31 - 1024 else "long long"
