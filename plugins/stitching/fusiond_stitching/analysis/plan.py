"""The plan: where each instruction is computed. Fusion makes it and the emitter writes it out.

    StitchingPlan  := steps in order: StitchedKernel | LibraryCall
    StitchedKernel := one launch: phases, with a barrier across the grid between two (an ordinary kernel has one phase)
    Phase          := block programs side by side: blocks 0..n0-1 run the first, n0..n0+n1-1 the second, ...
    BlockProgram   := stages in order, run by `blocks` thread blocks that know nothing of each other
    Stage          := one loop nest over a block's chunk (thread composition, 5.2); `barrier`: __syncthreads first
    StageResult    := an instruction that a stage computes, and where its value goes

Chunks (what of a tensor one block computes). `b` is the block's number inside its block program.
    BoxChunk   for each dimension i: size, parts, stride. Coordinate c = (b // stride) % parts; the block has indices
               c*size .. min((c+1)*size, dim)-1. Where size*parts > dim the last part is shorter (never an empty one).
               parts 1 = the whole dimension. Blocks that agree in all coordinates compute the same chunk (replicas).
    FlatChunk  elements b*size .. min((b+1)*size, elements)-1 of the row-major order. Blocks beyond the end have none.
A chunk's elements are numbered row-major inside it (`local` dims: the sizes of a BoxChunk, [size] of a FlatChunk): that
is the index into a shared buffer.

The paper's schedules (section 4.1) are names for chunks of the root: `ChunkSchedule(split_dim, sword, sched_type)`.
    Row     dimensions left of split_dim are split fully, split_dim into `sword` parts. Parts numbered row-major.
    Column  dimensions right of split_dim are split fully, split_dim into `sword` parts. Same numbering.
    Middle  (not in the paper) split_dim alone is split into `sword` parts.
    Flat    (not in the paper) `sword` is the number of elements of a chunk, split_dim is 0.

Reading. When the expression of a stage needs the value of instruction x at some index, the first that applies:
    1. x is an earlier result of the same stage: the value in the register (same index, guaranteed: see below);
    2. x has a shared home in an earlier stage of this block program: shared memory, at the index inside that chunk;
    3. x has a global home anywhere earlier (an earlier stage of this program, a phase, a step), or is a parameter, or
       the result of a library call: its buffer (`HloModule.buffer_of`);
    4. otherwise x is inlined: its expression is evaluated on the spot, recursively (a constant is a literal; an inlined
       reduce is a serial loop).
A value that is read through (2) or (3) from the own block program lies inside the chunk that the own block computed.

Writing. All results of one stage have chunks over equal dims (`Stage.dims`), and later results may read earlier ones
only through element-wise instructions, at the same index. A result may have several homes, or none (a register that a
later result of the stage reads). A global home of a replicated chunk is written by the first of the replicas alone:
the block whose number is the sum of coordinate*stride. A stage with `reduction` begins with results that are
`reduce`s over the same operands' dims and the same dimensions (several: all of them in one loop), each thread group
("lanes" threads) does one output element, and the element-wise results behind them are computed by the thread that
holds the total.

Rows in registers. A BlockProgram with `rows` holds its tensors in registers: rows x columns numbers in row-major order
(whatever their dims), a number per row, or (what a reduction over rows leaves) a number per column and block. A block
takes `rows_per_block` rows one after another, `threads / lanes` at a time; of a row, lane l holds the packs l,
l + lanes, ... of `pack` neighbouring columns. Stages with one `sweep` share one loop over what a thread holds; the
reduces of a sweep are done behind it, and every lane of the row has their results. What has a Registers home is read
again by the thread that computed it, at the same place, and nowhere else; a global home is written, and never read
back.

Updates in place. A BlockProgram with `updates` applies the updates of a scatter in place (`HloModule.in_place`), each
by itself: its one stage has the dims of the updates, in chunks of which no two are equal, and one result, the scatter,
in its buffer, where its first operand lies already.

Scans. A BlockProgram with `scan` runs a loop (`HloModule.scans`): its one stage has the loop's axes for dims, an
element for each thread, in chunks of which no two are equal, and all results of the loop, each in its buffer.

Tiles. A BlockProgram with `tile` transposes: its one stage has a chunk over the tile's dims, which number the results'
elements as their own dims do, and all results are element by element at the same place of these.

Special cases an emitter must know: an `inlined` scatter does not occur (a scatter always has a home); tensors of zero
elements have no stage and need none (a reduce over zero elements has one, and gives its init).
"""

import enum
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.graph import BYTES, HloInstruction


class ScheduleKind(enum.StrEnum):
    """The `sched_type` of section 4.1; the last two are additions."""

    ROW = "row"
    COLUMN = "column"
    MIDDLE = "middle"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Split:
    """One dimension of a BoxChunk."""

    size: int
    parts: int = 1
    stride: int = 1


@dataclass(frozen=True)
class BoxChunk:
    """See the module's docstring. One Split per dimension; none for a scalar. (Planning asks for these properties and
    for the hash millions of times.)"""

    splits: tuple[Split, ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.splits)

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """The dims of the chunk."""
        return tuple([each.size for each in self.splits])

    @functools.cached_property
    def size(self) -> int:
        return math.prod(self.local)

    @property
    def parts(self) -> int:
        """How many different chunks there are."""
        return math.prod(each.parts for each in self.splits)


@dataclass(frozen=True, slots=True)
class FlatChunk:
    """See the module's docstring."""

    size: int
    parts: int

    @property
    def local(self) -> tuple[int, ...]:
        return (self.size,)


Chunk: TypeAlias = BoxChunk | FlatChunk


def whole(dims: tuple[int, ...]) -> BoxChunk:
    """The whole tensor, in every block."""
    return BoxChunk(tuple(Split(dim) for dim in dims))


@dataclass(frozen=True, slots=True)
class ChunkSchedule:
    """The paper's three parameters (section 4.1)."""

    split_dim: int
    sword: int
    sched_type: ScheduleKind

    def blocks(self, dims: tuple[int, ...]) -> int:
        """How many thread blocks a tensor of these dims is cut into (figure 5)."""
        if self.sched_type is ScheduleKind.ROW:
            return math.prod(dims[: self.split_dim]) * self.sword
        if self.sched_type is ScheduleKind.COLUMN:
            return math.prod(dims[self.split_dim + 1 :]) * self.sword
        if self.sched_type is ScheduleKind.FLAT:
            return max(1, -(-math.prod(dims) // self.sword))
        return self.sword

    def chunk(self, dims: tuple[int, ...]) -> Chunk:
        """The chunk that it names. ValueError when `sword` does not divide the dimension (not asked of a FlatChunk)."""
        if self.sched_type is ScheduleKind.FLAT:
            return FlatChunk(self.sword, self.blocks(dims))
        if not dims:
            return BoxChunk(())
        if not 0 <= self.split_dim < len(dims) or self.sword < 1 or dims[self.split_dim] % self.sword:
            raise ValueError(f"{self} does not fit {list(dims)}: sword must divide the dimension")
        parts = [1] * len(dims)
        parts[self.split_dim] = self.sword
        if self.sched_type is ScheduleKind.ROW:
            parts[: self.split_dim] = dims[: self.split_dim]
        elif self.sched_type is ScheduleKind.COLUMN:
            parts[self.split_dim + 1 :] = dims[self.split_dim + 1 :]
        return BoxChunk(tuple(numbered(dims, parts)))

    def __str__(self) -> str:
        return f"{self.sched_type}(split_dim={self.split_dim}, sword={self.sword})"


def numbered(dims: Sequence[int], parts: Sequence[int], stride: int = 1) -> list[Split]:
    """Splits into equal parts that are numbered row-major, neighbours along the last dimension `stride` apart."""
    splits = []
    for dim, count in zip(reversed(dims), reversed(parts), strict=True):
        splits.append(Split(dim // count, count, stride) if count > 1 else Split(dim))
        stride *= count
    return splits[::-1]


def tiled(dims: Sequence[int], sizes: Sequence[int]) -> list[Split]:
    """Splits into parts of these sizes that are numbered row-major; the last ones may be shorter."""
    found, stride = [], 1
    for dim, size in zip(reversed(dims), reversed(sizes), strict=True):
        found.append(Split(size, -(-dim // size), stride))
        stride *= found[-1].parts
    return found[::-1]


class RowPlace(enum.Enum):
    """Of rows in registers: an element's place in the row-major order of its tensor."""

    WIDE = "row * columns + column"
    ROW = "row"
    COLUMN = "block * columns + column"
    PIECE = "row * run + column % run"
    FEW = "row * few + number"


# --- where values live ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared buffer of the block: `offset` in bytes from the start of the dynamic shared memory, aligned to 16."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Global:
    """A buffer of the Program: `HloModule.buffer_of(instruction)`."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Registers:
    """The registers of the thread that computed it (only where the program has `rows`)."""


Home: TypeAlias = Shared | Global | Registers


@dataclass(frozen=True, slots=True)
class StageResult:
    """An instruction that a stage computes; `homes` () when only later results of the same stage read it."""

    instruction: str
    homes: tuple[Home, ...] = ()

    @property
    def shared(self) -> Shared | None:
        return next((each for each in self.homes if isinstance(each, Shared)), None)

    @property
    def stored(self) -> Global | None:
        return next((each for each in self.homes if isinstance(each, Global)), None)


WARP = 32  #: Threads that exchange values by shuffles


def power_of_two(number: int) -> int:
    """The least power of two that is not below it."""
    return 1 << max(0, number - 1).bit_length()


class LaneExchange(enum.StrEnum):
    """How the lanes of one output element of a reduce put their partial results together."""

    NONE = "none"  #: One lane: a serial loop
    SHARED = "shared"  #: A tree in shared memory, at `Reduction.workspace`
    WARP = "warp"
    """Shuffles; lanes is a power of two up to 32, or the whole block (then the warps' results meet in the
    workspace)."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a stage reduces. `lanes` threads work on one output element: 1, a power of two up to 32, or all threads of
    the block. `inner`: neighbouring threads are lanes of one element (a row reduce); otherwise neighbouring threads
    work on neighbouring elements (a column reduce) and lane l of element e is thread e + l * (threads / lanes); then
    lanes is a power of two and `exchange` is SHARED or NONE. `workspace` is `threads` accumulators in shared memory
    (per result), or one per warp (WARP); None where nothing is exchanged through it."""

    lanes: int
    exchange: LaneExchange = LaneExchange.NONE
    inner: bool = True
    workspace: Shared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """See the module's docstring."""

    chunk: Chunk
    dims: tuple[int, ...]  #: The dims of all its results
    results: tuple[StageResult, ...]
    barrier: bool = False  #: A __syncthreads stands before it
    reduction: Reduction | None = None
    sweep: int = 0  #: Of rows in registers: the loop that it is part of
    place: RowPlace | None = None  #: Of rows in registers: where its results lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How a block holds rows in registers: see the module's docstring. Where `count` is 1, the blocks share the one
    row: each has `steps * lanes` packs of it."""

    count: int
    columns: int
    lanes: int
    pack: int
    rows_per_block: int
    steps: int  #: Packs of a lane
    slabs: int = 1
    """Blocks that share the columns of the same rows: block b has slab b % slabs, of `steps * lanes` packs."""
    streamed: bool = False
    """The rows are too long for registers: each sweep reads them again, every other one backwards, and the first
    `shared_steps` packs of a lane from shared memory, where there are any of `held`."""
    shared_steps: int = 0
    threads: int = 0  #: That a block must have; 0 where it has those of the plan
    held: tuple[str, ...] = ()  #: Buffers' values that stay in registers once they were read
    between: int = 1
    """So many rows lie in each other, as groups of channels do: `run` columns of one, then as many of the next."""
    run: int = 0  #: 0 where a row lies in one piece

    @property
    def per_thread(self) -> int:
        """Columns of a row that a thread holds."""
        return self.steps * self.pack

    @property
    def columns_per_block(self) -> int:
        return self.columns if self.slabs == 1 else min(self.columns, self.steps * self.lanes * self.pack)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposeTile:
    """How a block transposes: see the module's docstring, and `tiles`."""

    dims: tuple[int, ...]  #: The results' dims, some of them as one
    dim: int  #: That along which the operands lie
    reads: tuple[str, ...]  #: What lies so, and is read through shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """What `blocks` blocks do. `schedule` is the root's, for people."""

    name: str
    blocks: int
    stages: tuple[Stage, ...]
    root: str
    schedule: ChunkSchedule
    shared_bytes: int = 0
    rows: Rows | None = None
    updates: bool = False  #: It applies the updates of a scatter in place
    scan: bool = False  #: It runs a loop
    tile: TransposeTile | None = None

    @property
    def results(self) -> Iterator[StageResult]:
        for stage in self.stages:
            yield from stage.results


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    programs: tuple[BlockProgram, ...]

    @property
    def blocks(self) -> int:
        return sum(each.blocks for each in self.programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchedKernel:
    """One launch of `grid` blocks of `threads` threads. Every phase is a loop `for (v = blockIdx.x; v < phase.blocks;
    v += gridDim.x)` over virtual blocks (with a __syncthreads at its end where shared memory is used again); `grid`
    equals the blocks of an ordinary kernel, and is at most what fits on the device at once for a cooperative one."""

    name: str
    phases: tuple[Phase, ...]
    threads: int
    grid: int
    shared_bytes: int = 0

    @property
    def cooperative(self) -> bool:
        return len(self.phases) > 1

    @property
    def programs(self) -> Iterator[BlockProgram]:
        for phase in self.phases:
            yield from phase.programs


def alone(program: BlockProgram, name: str, threads: int) -> StitchedKernel:
    """A block program in a launch of its own."""
    return StitchedKernel(
        name=name,
        phases=(Phase(programs=(program,)),),
        threads=threads,
        grid=program.blocks,
        shared_bytes=program.shared_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """A dot: one launch that is not counted, into `HloModule.buffer_of(name)`. Its operands are parameters, constants
    or values with a global home, perhaps behind reshapes, which cost nothing. Or a foreign instruction: it has no
    launch, and its result is a stand-in; its operands are in their buffers by then, and nobody reads its result
    before."""

    instruction: str


Step: TypeAlias = StitchedKernel | LibraryCall


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingPlan:
    """Steps in the order in which they are issued. `notes`: instruction -> why it begins a new group."""

    steps: tuple[Step, ...]
    notes: Mapping[str, str] = field(default_factory=frozen)

    @property
    def kernels(self) -> tuple[StitchedKernel, ...]:
        return tuple(each for each in self.steps if isinstance(each, StitchedKernel))


def chunk_bytes(instruction: HloInstruction, chunk: Chunk) -> int:
    """Shared memory for one block's chunk, rounded up to 16 bytes."""
    return -(-chunk.size * BYTES[instruction.dtype] // 16) * 16
