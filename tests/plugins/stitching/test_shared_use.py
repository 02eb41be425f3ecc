"""Which reads need no barrier: those of elements that the thread has written itself, by brute force."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import shared_use
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    ChunkSchedule,
    LaneExchange,
    Reduction,
    ScheduleKind,
    Shared,
    Split,
    Stage,
    StageResult,
)
from fusiond_stitching.analysis.shared_use import StageReads


def thread(stage: Stage, element: int, threads: int) -> int:
    """Who computes an element, as `plan.Reduction` says."""
    lanes = 1 if stage.reduction is None else stage.reduction.lanes
    if lanes == 1:
        return element % threads
    at_once = threads // lanes
    assert stage.reduction is not None
    return element % at_once * lanes if stage.reduction.inner else element % at_once


@st.composite
def reductions(draw: st.DrawFn, threads: int) -> Reduction | None:
    lanes = draw(st.sampled_from([each for each in (1, 2, 4, 8, 32, threads) if threads % each == 0]))
    inner = lanes == threads or draw(st.booleans())
    exchange = LaneExchange.NONE if lanes == 1 else LaneExchange.SHARED
    return draw(st.sampled_from([None, Reduction(lanes, exchange, inner)]))


@given(st.sampled_from([32, 64, 96]), st.integers(2, 300), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_read_of_what_another_thread_wrote_needs_a_barrier(threads, size, same, data):
    chunk = BoxChunk((Split(size),))
    writer, reader = (
        Stage(chunk=chunk, dims=(size,), results=(StageResult(name, homes),), reduction=data.draw(reductions(threads)))
        for name, homes in (("e", (Shared(0, 4096),)), ("y", ()))
    )
    program = BlockProgram(
        name="g0", blocks=1, stages=(writer, reader), root="y", schedule=ChunkSchedule(0, 1, ScheduleKind.ROW),
        shared_bytes=4096,
    )  # fmt: skip
    reads = [StageReads(), StageReads(own={"e": same}, by={"e": {0}})]
    alone = same and all(thread(writer, at, threads) == thread(reader, at, threads) for at in range(size))
    said = list(shared_use.races(program, reads, threads))
    assert said == ([] if alone else ["no barrier between the write of e and its read by y"])
