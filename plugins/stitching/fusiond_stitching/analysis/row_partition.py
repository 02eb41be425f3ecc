"""How blocks and lanes share rows in registers: so many lanes a row, packs a lane, rows a block."""

import math

from fusiond_stitching.analysis.plan import WARP, RowPlace, Rows, power_of_two
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.row_places import RowPlaces
from fusiond_stitching.analysis.row_shapes import SECTORS, RowShape
from fusiond_stitching.analysis.row_values import KeptValues
from fusiond_stitching.frontend.graph import BYTES

PACK_BYTES = 16  #: The widest load of a thread
MOST_WORDS = 64  #: Registers (32 bits) that kept values may have, where a block's threads leave so many
SPARE_WORDS = 32  #: Registers of a thread that are not for kept values
FILE_WORDS = 65536  #: Of a multiprocessor
MOST_THREADS = 1024
"""Of a block that has a multiprocessor's shared memory for itself, and a row that is too long for registers."""
WORKSPACE_BYTES = 4096  #: Left of it for what reductions exchange
FLAT_STEPS = 2  #: Packs of a thread where nothing is reduced


def partition(places: RowPlaces, values: KeptValues, policy: FusionPolicy) -> Rows | None:
    """None where registers do not hold a row, and it cannot be streamed either."""
    shape, threads = places.shape, policy.threads
    pack = _pack(places)
    packs = shape.columns // pack
    if is_flat(places):
        steps = FLAT_STEPS if packs >= FLAT_STEPS * threads * policy.multiprocessors else 1
        return Rows(count=1, columns=shape.columns, lanes=threads, pack=pack, rows_per_block=1, steps=steps)
    most = min(threads, 1 << (packs.bit_length() - 1))
    if shape.runs and not any(place is RowPlace.ROW for place in places.place.values()):
        lanes = _slab(shape, policy, packs, most)
        return Rows(
            count=shape.count, columns=shape.columns, lanes=lanes, pack=pack, rows_per_block=shape.runs, steps=1,
            slabs=-(-packs // lanes),
        )  # fmt: skip
    lanes = min(most, max(1, power_of_two(-(-shape.columns // policy.per_thread))))
    room = min(MOST_WORDS, FILE_WORDS // threads - SPARE_WORDS)
    while values.words(places, -(-packs // lanes) * pack) > room:
        if lanes == most:
            return _streamed(places, values, policy, pack, lanes)
        lanes *= 2
    if shape.pieces and not _pieces_meet(shape, pack, lanes):
        return None
    return Rows(
        count=shape.count, columns=shape.columns, lanes=lanes, pack=pack,
        rows_per_block=shape.runs or threads // lanes, steps=-(-packs // lanes), held=values.held,
        between=shape.between, run=shape.run,
    )  # fmt: skip


def is_flat(places: RowPlaces) -> bool:
    """Whether all blocks share one row, of which nothing is reduced."""
    return places.shape.count == 1 and not places.reduces


def blocks_of(places: RowPlaces, rows: Rows, threads: int) -> int:
    if is_flat(places):
        return -(-rows.columns // (rows.pack * rows.steps * threads))
    return -(-rows.count // rows.rows_per_block) * rows.slabs


def _streamed(places: RowPlaces, values: KeptValues, policy: FusionPolicy, pack: int, lanes: int) -> Rows | None:
    """Rows that no block's registers hold: each sweep reads them again, and nothing is kept."""
    shape = places.shape
    if shape.runs or shape.count < policy.multiprocessors:
        return None
    threads, held = policy.threads, values.held
    step = MOST_THREADS * pack * sum(BYTES[places.module[name].dtype] for name in held)
    room = policy.row_shared - WORKSPACE_BYTES
    wide = 0 < step <= room and not policy.barriers and shape.columns >= pack * MOST_THREADS
    if wide:
        lanes = threads = MOST_THREADS
    else:
        held = ()
    if shape.pieces and not _pieces_meet(shape, pack, lanes):
        return None
    steps = -(-shape.columns // (pack * lanes))
    return Rows(
        count=shape.count, columns=shape.columns, lanes=lanes, pack=pack, rows_per_block=threads // lanes,
        steps=steps, streamed=True, held=held, shared_steps=min(steps, room // step) if wide else 0,
        threads=threads if wide else 0, between=shape.between, run=shape.run,
    )  # fmt: skip


def _slab(shape: RowShape, policy: FusionPolicy, packs: int, most: int) -> int:
    """Packs of a block where rows are only summed: as many as a warp has lanes, or fewer, down to whole sectors of
    memory, where that keeps more of the device busy."""
    runs = shape.count // shape.runs
    lanes = min(WARP, most)
    while lanes > SECTORS and runs * -(-packs // lanes) < 2 * policy.multiprocessors:
        lanes //= 2
    return lanes


def _pack(places: RowPlaces) -> int:
    """Columns that a thread loads and stores at once: as many of the widest type as go into 16 bytes."""
    inside = {each.name for each in places.nodes}
    read = (
        operand
        for each in places.nodes
        for operand in each.operands
        if operand not in inside and places.reads_in_place(each, operand)
    )
    written = (name for name in places.stored if places.place[name] not in (RowPlace.ROW, RowPlace.FEW))
    widest = max((BYTES[places.module[name].dtype] for name in (*read, *written)), default=4)
    return math.gcd(places.shape.run or places.shape.columns, max(1, PACK_BYTES // widest))


def _pieces_meet(shape: RowShape, pack: int, lanes: int) -> bool:
    """Whether a lane has the same columns of a run in all its packs, and a warp has all of a run's."""
    packs = shape.run // pack
    return packs <= min(WARP, lanes) and lanes % packs == 0
