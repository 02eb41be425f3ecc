"""What plans are proved to read and write, against the same checks element by element; and plans of 10^9 elements."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.stitching import sized
from fusiond_stitching.analysis import containment, planner, schedule, verify
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    Chunk,
    FlatChunk,
    Global,
    Phase,
    Shared,
    Split,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import enumerated
from .graphs import modules
from .policies import LIMITS, MORE
from .test_random_graphs import POLICY, Drawn
from .test_verify import stages

DRAWN = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


# --- chunks ---------------------------------------------------------------------------------------------


@st.composite
def chunks(draw: st.DrawFn, dims: tuple[int, ...]) -> Chunk:
    """Of a schedule, in few cases changed, or a box with any parts and strides."""
    if draw(st.booleans()):
        return draw(st.sampled_from([each.chunk(dims) for each in schedule.space(dims, middle=True)]))
    if draw(st.integers(0, 5)) == 0:
        size = draw(st.integers(1, max(1, math.prod(dims))))
        return FlatChunk(size, -(-math.prod(dims) // size))
    splits = []
    for dim in dims:
        size = draw(st.integers(1, dim))
        stride = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 6, 8, 9, 12]))
        most = -(-dim // size)
        splits.append(Split(size, draw(st.sampled_from([most, most, most, 1])), stride))
    return BoxChunk(tuple(splits))


DIMS = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@given(DIMS, st.data())
@settings(max_examples=400, deadline=None)
def test_each_element_has_one_writer(dims, data):
    """What covers a tensor does, by brute force; and what does is refused only where parts are not numbered in
    multiples of each other."""
    chunk, blocks = data.draw(chunks(dims)), data.draw(st.integers(1, 60))
    said, wanted = containment.coverage(chunk, dims, blocks), enumerated.coverage(chunk, dims, blocks)
    assert said or not wanted
    assert wanted or not said or "not numbered in multiples" in said


@pytest.mark.parametrize("dims", [(), (7,), (12, 10), (2, 3, 4), (5, 1, 6, 2)])
def test_the_chunks_of_a_schedule_are_written_once(dims):
    for each in schedule.space(dims, middle=True):
        chunk, blocks = each.chunk(dims), each.blocks(dims)
        assert containment.coverage(chunk, dims, blocks) == ""
        assert containment.coverage(chunk, dims, blocks - 1) != "" or blocks == 1
        assert containment.coverage(chunk, dims, 3 * blocks) == "", "replicas write nothing"


@given(DIMS, st.data())
@settings(max_examples=300, deadline=None)
def test_blocks_without_replicas_all_write(dims, data):
    chunk, blocks = data.draw(chunks(dims)), data.draw(st.integers(1, 60))
    assert containment.unique(chunk, blocks) <= all(enumerated.writes(chunk, block) for block in range(blocks))


# --- plans ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(text=modules(most=30), policy=POLICY, seed=st.integers(0, 999))
@DRAWN
def test_a_plan_of_the_planner_is_proved(text, policy, seed):
    """With any of the schedules that it may choose."""
    module = importer.read(text, "random.hlo")
    planned = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert planned.problems == ()
    assert verify.problems(module, planned.plan, shared_limit=policy.shared_limit) == ()
    assert enumerated.problems(module, planned.plan, shared_limit=policy.shared_limit) == ()


@pytest.mark.slow
@given(text=modules(most=40), policy=POLICY, seed=st.integers(0, 9999))
@settings(DRAWN, max_examples=10 * settings.default.max_examples)  # 200 by `make test`, 1000 by `make test-all`
def test_many_plans_of_the_planner_are_proved(text, policy, seed):
    module = importer.read(text, "random.hlo")
    planned = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert verify.problems(module, planned.plan, shared_limit=policy.shared_limit) == ()


STEPPED = frozenset({"slice", "pad", "window"})
"""Operations with steps that sets fill up: behind them a sound plan may be refused."""


def other_chunks(plan: StitchingPlan, data: st.DataObject) -> tuple[StitchingPlan, BlockProgram, Stage] | None:
    """The plan with another chunk for one stage of a block program with several."""
    several = [each for each in stages(plan) if len(each[0].stages) > 1 and each[0].blocks <= 300]
    if not several:
        return None
    program, at, changed = data.draw(st.sampled_from(several))
    stage = program.stages[at]
    new = dataclasses.replace(stage, chunk=data.draw(chunks(stage.dims)))
    return (changed(new), program, new) if not containment.shape(new.chunk, new.dims) else None


@pytest.mark.slow
@given(text=modules(most=24), policy=POLICY, seed=st.integers(0, 999), data=st.data())
@settings(DRAWN, max_examples=150)
def test_other_chunks_are_judged_as_they_are_element_by_element(text, policy, seed, data):
    module = importer.read(text, "random.hlo")
    made = other_chunks(planner.plan(module, policy, LIMITS, Drawn(seed)).plan, data)
    if made is None:
        return
    plan, _, stage = made
    said, wanted = (set(containment_only(check(module, plan))) for check in (verify.problems, enumerated.problems))
    assert said or not wanted, "unsound, and taken for proved"
    stepped = any(each.opcode in STEPPED for each in module.instructions)
    numbered = "not numbered in multiples" in containment.coverage(stage.chunk, stage.dims, 1)
    assert bool(said) == bool(wanted) or stepped or numbered


def containment_only(problems: tuple[str, ...]) -> list[str]:
    """Without what only sizes of buffers and barriers are to blame for."""
    others = ("bytes of shared memory", "barrier", "alive at once", "workspace")
    return [each for each in problems if not any(other in each for other in others)]


# --- what is not own ------------------------------------------------------------------------------------

PAIR = """HloModule pair

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64,96] parameter(0)
  zero = f32[] constant(0)
  e = f32[64,96] exponential(x)
  sum = f32[64] reduce(e, zero), dimensions={1}, to_apply=add
  wide = f32[64,96] broadcast(sum), dimensions={0}
  ROOT y = f32[64,96] divide(e, wide)
}
"""


def softmax() -> tuple[HloModule, StitchingPlan]:
    module = importer.read(PAIR, "pair.hlo")
    return module, planner.plan(
        module, FusionPolicy(**MORE, packing=True, grain=512, shared_limit=48 << 10), LIMITS
    ).plan


def test_a_neighbours_row_is_not_own():
    """The sum is made of the row before: same sizes, same coverage, another number."""
    module, plan = softmax()
    found = 0
    for program, at, changed in stages(plan):
        stage = program.stages[at]
        if program.blocks < 2 or not isinstance(stage.chunk, BoxChunk) or stage.reduction is None:
            continue
        (split,) = stage.chunk.splits
        other = changed(
            dataclasses.replace(stage, chunk=BoxChunk((Split(split.size, split.parts // 2, split.stride * 2),)))
        )
        assert any("has not computed" in each for each in verify.problems(module, other))
        assert enumerated.problems(module, other)
        found += 1
    assert found


def test_what_only_the_first_replica_writes_is_not_read_back_by_the_others():
    """Every block computes the whole sum, one writes it, and all of them read it from global memory."""
    module, plan = softmax()
    for program, at, changed in stages(plan):
        stage = program.stages[at]
        if stage.reduction is None:
            continue
        whole = BoxChunk(tuple(Split(dim) for dim in stage.dims))
        home = module.buffer_of(stage.results[0].instruction)
        spilled = tuple(StageResult(each.instruction, (Global(home),)) for each in stage.results)
        other = changed(dataclasses.replace(stage, chunk=whole, results=spilled))
        assert program.blocks > 1
        assert any("another block writes it" in each for each in verify.problems(module, other))
        assert any("another block writes it" in each for each in enumerated.problems(module, other))
        return
    raise AssertionError("nothing is reduced")


TWICE = """HloModule twice

ENTRY main {
  x = f32[64,96] parameter(0)
  e = f32[64,96] exponential(x)
  n = f32[64,96] negate(e)
  r = f32[64,96] WAY(e)ATTRIBUTES
  ROOT y = f32[64,96] add(n, r)
}
"""
REVERSED = ("reverse", ", dimensions={0}")
INVERTED = ("cosine", "")


def of_rows(parts: int) -> BoxChunk:
    return BoxChunk((Split(64 // parts, parts), Split(96)))


def two_stages(
    way: tuple[str, str], chunk: Chunk, home: Chunk, blocks: int, *, shared: bool
) -> tuple[HloModule, StitchingPlan]:
    """e in one stage, y in the next one: it reads e at its own index, and through r."""
    module = importer.read(TWICE.replace("WAY", way[0]).replace("ATTRIBUTES", way[1]), "twice.hlo")
    size = 4 * home.size
    where = Shared(0, size) if shared else Global(module.buffer_of("e"))
    first = Stage(chunk=home, dims=(64, 96), results=(StageResult("e", (where,)),))
    last = Stage(
        chunk=chunk, dims=(64, 96), results=(StageResult("y", (Global(module.buffer_of("y")),)),), barrier=True
    )
    program = BlockProgram(
        name="g0", blocks=blocks, stages=(first, last), root="y", schedule=schedule.flat(64 * 96, 96),
        shared_bytes=size if shared else 0,
    )  # fmt: skip
    kernel = StitchedKernel(
        name="k0", phases=(Phase(programs=(program,)),), threads=32, grid=blocks, shared_bytes=program.shared_bytes
    )
    return module, StitchingPlan(steps=(kernel,))


@pytest.mark.parametrize("check", [verify.problems, enumerated.problems])
@pytest.mark.parametrize("shared", [True, False])
def test_all_reads_of_a_value_count(check, shared):
    """At the own index nothing is missing; through the other way, what another block has."""
    own = two_stages(INVERTED, of_rows(8), of_rows(8), 8, shared=shared)
    assert check(*own) == ()
    problems = check(*two_stages(REVERSED, of_rows(8), of_rows(8), 8, shared=shared))
    assert problems
    assert all("has not computed" in each or "not its own" in each for each in problems)
    whole = two_stages(REVERSED, of_rows(8), of_rows(1), 8, shared=shared)
    assert bool(check(*whole)) != shared, "from global memory, only block 0 may read what it alone writes"


@pytest.mark.parametrize("check", [verify.problems, enumerated.problems])
@pytest.mark.parametrize("shared", [True, False])
def test_replicas_read_their_own_chunk_from_shared_memory_only(check, shared):
    """16 blocks compute 8 chunks, each twice: the second of two does not write."""
    problems = check(*two_stages(INVERTED, of_rows(8), of_rows(8), 16, shared=shared))
    assert bool(problems) != shared
    assert shared or all("another block writes it" in each for each in problems)


# --- real sizes -----------------------------------------------------------------------------------------


LARGE = {
    "beyond": FusionPolicy(**MORE, packing=True, lift=True, shared_limit=48 << 10, multiprocessors=132),
    "grid": FusionPolicy(
        **MORE, packing=True, barriers=True, stitch_dots=True, shared_limit=200 << 10, multiprocessors=132
    ),
    "paper": FusionPolicy(multiprocessors=132),
}


@pytest.mark.parametrize("name", sized.FUNCTIONS)
def test_plans_of_real_size_are_proved(name):
    """A mask of one of these tensors alone has up to a gigabyte. Time and memory: `python -m benchmarks.proofs`."""
    each = sized.FUNCTIONS[name]
    module = importer.read(each.text(each.real), name)
    assert module.largest >= 1 << 26
    for policy in LARGE.values():
        planned = planner.plan(module, policy, LIMITS)
        assert planned.problems == ()
        assert verify.problems(module, planned.plan, shared_limit=policy.shared_limit) == ()


def test_a_plan_of_real_size_with_another_chunk_is_refused():
    module = importer.read(PAIR.replace("64,96", "262144,4096").replace("[64]", "[262144]"), "large.hlo")
    plan = planner.plan(module, LARGE["beyond"], LIMITS).plan
    told = 0
    for program, at, changed in itertools.islice(stages(plan), 8):
        stage = program.stages[at]
        if not isinstance(stage.chunk, BoxChunk) or program.blocks < 2:
            continue
        splits = tuple(dataclasses.replace(each, stride=each.stride * 2) for each in stage.chunk.splits)
        assert verify.problems(module, changed(dataclasses.replace(stage, chunk=BoxChunk(splits))))
        told += 1
    assert told
