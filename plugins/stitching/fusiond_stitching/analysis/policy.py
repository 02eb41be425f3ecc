"""The rules of fusion, the paper's or wider ones, as one frozen value made from a config."""

from dataclasses import dataclass

PAPER_SHARED_BYTES = 20 * 1024  #: Section 6.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionPolicy:
    """The knobs of fusion, schedule planning and shared memory. The defaults are the paper's."""

    rules: str = "stitch"
    """`stitch`; `xla`: producers into consumers, thread composition only, as XLA did when the paper was written;
    `none`: one kernel per instruction."""
    threads: int = 256  #: Of a block; a power of two
    grain: int = 8192
    """The most elements of one instruction that a block may be given where more blocks would be possible. Small: many
    blocks, and a dependence that crosses them ends the group. Large: one block does a whole small layer."""
    shared_limit: int = PAPER_SHARED_BYTES
    multiprocessors: int = 108
    footprint_bytes: int = 1 << 20
    """ElementwiseFusion (section 3.2) stops when a kernel reads and writes more than this."""

    layers: bool = True
    """Nothing is fused across a library-call layer, related or not (section 3.2). Else only across the calls
    between."""
    merge: bool = False
    """Groups that read the same producer may become one, with several roots. Else that producer is given up."""
    recompute: bool = False  #: A cheap element-wise producer that cannot join is computed again by each of its readers
    middle: bool = False  #: Schedules that split one dimension in the middle, which neither Row nor Column can say
    spill: bool = False  #: Intermediates that do not fit into shared memory go through global memory, inside the block
    registers: bool = False  #: Rows are held in registers where they fit (`rows`)
    per_thread: int = 16  #: Columns of a row that a thread holds in registers, where there are threads enough
    row_shared: int = 0  #: Bytes of shared memory that a row of a block may have which is too long for registers
    warp: bool = False  #: Row reductions meet by shuffles in place of shared memory
    update_tiles: bool = False  #: The updates of a scatter in place are applied a column of cache lines at a time
    lift: bool = False  #: What only outputs need may run earlier than it has to, where it reads what others read there
    packing: bool = False  #: Groups that do not depend on each other share a launch, block ranges side by side
    barriers: bool = False
    """Groups that do depend on each other share a cooperative launch, with a barrier across the grid between them."""
    stitch_dots: bool = False  #: Batched dots are fused like everything else (section 2.1 leaves that to the user)


def unfused(*, threads: int = 256, multiprocessors: int = 108, rules: str = "none") -> FusionPolicy:
    """One kernel per instruction; reshapes, broadcasts, iotas and constants cost none."""
    return FusionPolicy(
        rules=rules,
        threads=threads,
        multiprocessors=multiprocessors,
        layers=False,
        middle=True,
        warp=True,
        registers=True,
    )


def xla_rules(*, threads: int = 256, multiprocessors: int = 108) -> FusionPolicy:
    """XLA's fusion as the paper met it (GpuInstructionFusion and MultiOutputFusion, section 1), in outline: a producer
    goes into its only reader; a cheap one is computed again by a few; a reduce is always a root; siblings over equal
    dims that read a common buffer share a kernel. Simplified: siblings must stand at one place in the order of
    launches, and bytes moved are not weighed when something is computed again."""
    return unfused(threads=threads, multiprocessors=multiprocessors, rules="xla")
