"""Shared memory and barriers of a block program, as its stages use them.

    memory      no two buffers with a byte in common are alive in one stage, but for a write in place; buffers and
                workspaces are aligned, and inside the arena
    barriers    between a write and another thread's read of it, and between a read and what overwrites it

Liveness is derived from what stages read; nothing of what laid out the arena is used.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond_stitching.analysis.plan import BlockProgram, Shared, Stage
from fusiond_stitching.frontend.graph import BYTES, HloModule

ALIGNMENT = 16


@dataclass(slots=True)
class StageReads:
    """What a stage reads. `own`: results of earlier stages of the same program -> whether all reads are at the
    reader's own index; `by`: which of its results, by their places, read it."""

    own: dict[str, bool] = field(default_factory=dict)
    by: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Alive:
    """A shared buffer from the stage that writes it to the last one that reads it."""

    name: str
    home: Shared
    first: int
    last: int


# --- memory ---------------------------------------------------------------------------------------------


def overlaps(module: HloModule, program: BlockProgram, reads: Sequence[StageReads]) -> Iterator[str]:
    """One line for each buffer that lies where it must not."""
    alive = list(_buffers(program, reads))
    for each in alive:
        if each.home.offset % ALIGNMENT or each.home.offset < 0:
            yield f"{each.name} begins at byte {each.home.offset}"
        if each.home.offset + each.home.size_bytes > program.shared_bytes:
            yield f"{each.name} ends behind the {program.shared_bytes} bytes of shared memory"
    for one, other in itertools.combinations(alive, 2):
        earlier, later = (one, other) if one.first <= other.first else (other, one)
        if earlier.last < later.first or not _common(earlier.home, later.home):
            continue
        if not _in_place(module, program, reads, earlier, later):
            yield f"{earlier.name} and {later.name} are alive at once in the same shared memory"


def _buffers(program: BlockProgram, reads: Sequence[StageReads]) -> Iterator[_Alive]:
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
            yield _Alive(_workspace(stage), stage.reduction.workspace, number, number)


def _workspace(stage: Stage) -> str:
    return f"the workspace of {stage.results[0].instruction}"


def _common(one: Shared, other: Shared) -> bool:
    return one.offset < other.offset + other.size_bytes and other.offset < one.offset + one.size_bytes


def _in_place(
    module: HloModule, program: BlockProgram, reads: Sequence[StageReads], earlier: _Alive, later: _Alive
) -> bool:
    """The last reader of a buffer writes over it, each thread over the elements that only it has read."""
    if earlier.last != later.first or earlier.first == later.first or later.name not in module.by_name:
        return False
    if earlier.name not in module.by_name:
        return False
    stage, before = program.stages[later.first], program.stages[earlier.first]
    same = (
        earlier.home.offset == later.home.offset
        and BYTES[module[earlier.name].dtype] == BYTES[module[later.name].dtype]
        and (stage.chunk, stage.dims) == (before.chunk, before.dims)
    )
    here = reads[later.first]
    writer = [each.instruction for each in stage.results].index(later.name)
    return (
        same
        and stage.reduction is None
        and here.own.get(earlier.name, False)
        and all(reader <= writer for reader in here.by[earlier.name])
    )


# --- barriers -------------------------------------------------------------------------------------------


def races(program: BlockProgram, reads: Sequence[StageReads], threads: int) -> Iterator[str]:
    """One line for each read of what another thread has written, and each write over what another thread has touched,
    since the last barrier."""
    homes = {each.instruction: stage for stage in program.stages for each in stage.results}
    buffers: Mapping[str, Shared | None] = {each.instruction: each.shared for each in program.results}
    written: set[str] = set()
    touched: dict[str, Shared] = {}
    for stage, read in zip(program.stages, reads, strict=True):
        if stage.barrier:
            written.clear()
            touched.clear()
        writes = {each.instruction: each.shared for each in stage.results if each.shared is not None}
        if stage.reduction is not None and stage.reduction.workspace is not None:
            writes[_workspace(stage)] = stage.reduction.workspace
        for name, same in read.own.items():
            if name in written and not _private(homes[name], stage, threads, same=same):
                yield f"no barrier between the write of {name} and its read by {stage.results[0].instruction}"
        for mine, home in writes.items():
            for theirs, other in touched.items():
                if _common(home, other):
                    yield f"no barrier before {mine} is written over {theirs}"
        written.update(each.instruction for each in stage.results)
        touched.update(writes)
        for name in read.own:
            shared = buffers[name]
            if shared is not None:
                touched[name] = shared


def _private(writer: Stage, reader: Stage, threads: int, *, same: bool) -> bool:
    """No thread reads what another has written: the only element belongs to thread 0 in both stages, and the reader has
    no further lanes; or all reads are at the reader's own index (`same`), over one chunk that is shared out alike."""
    if writer.chunk.size == reader.chunk.size == 1:
        return same or reader.reduction is None or reader.reduction.lanes == 1
    if not same or (writer.chunk, writer.dims) != (reader.chunk, reader.dims):
        return False
    # Threads take turns, and after so many elements both begin again.
    period = math.lcm(_turn(writer, threads), _turn(reader, threads))
    elements = range(min(reader.chunk.size, period))
    return all(_thread(writer, at, threads) == _thread(reader, at, threads) for at in elements)


def _turn(stage: Stage, threads: int) -> int:
    """How many elements are computed at a time."""
    return threads if stage.reduction is None else max(1, threads // stage.reduction.lanes)


def _thread(stage: Stage, element: int, threads: int) -> int:
    """Who computes an element of a chunk (and holds its total, where it is reduced)."""
    column = element % _turn(stage, threads)
    if stage.reduction is None or stage.reduction.lanes == 1:
        return column
    return column * stage.reduction.lanes if stage.reduction.inner else column
