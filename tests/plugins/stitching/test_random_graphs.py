"""Random graphs under random policies and schedules: the stitched result is the unstitched one, and XLA's."""

import dataclasses
import hashlib
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import chunk_coverage, planner, schedule, verify
from fusiond_stitching.analysis.plan import BlockProgram, BoxChunk, Chunk, FlatChunk, Global, Split, Stage, StageResult
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, index_sets, oracle
from .checking import Batch
from .graphs import modules
from .policies import LIMITS
from .test_verify import module_of, planned, stages

BOTH = st.booleans()
POLICY = st.builds(
    FusionPolicy,
    threads=st.sampled_from([32, 64, 128]), grain=st.sampled_from([16, 64, 512, 8192]),
    shared_limit=st.sampled_from([1024, 2048, 20480]), layers=BOTH, merge=BOTH, recompute=BOTH, middle=BOTH, spill=BOTH,
    warp=BOTH, packing=BOTH, barriers=BOTH, stitch_dots=BOTH, registers=BOTH, per_thread=st.sampled_from([1, 4, 16]),
)  # fmt: skip
SLOW = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # each try is a build: shrinking would take many minutes
)
FAST = settings(SLOW, max_examples=1)


class Drawn(dict[str, float]):
    """A performance library that knows everything, and nothing true: any schedule may be the best."""

    def __init__(self, seed: int) -> None:
        super().__init__({"seed": seed})

    def get(self, key, default=None):
        return 1.0 + hashlib.sha256(f"{self['seed']} {key}".encode()).digest()[0]


def inputs(module: HloModule) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(11)
    found = []
    for name in module.parameters:
        each = module[name]
        if each.dtype == "s32":
            found.append(random.integers(-9, 9, each.dims, dtype=np.int32))
        else:
            found.append(random.uniform(-1, 1, each.dims).astype(np.float32))
    return tuple(found)


def check(runner, text: str, policy: FusionPolicy, seed: int, *, unfused: bool) -> None:
    module = importer.read(text, "random.hlo")
    given = inputs(module)
    names = tuple(f"out_{place}" for place, _ in enumerate(module.outputs))
    batch = Batch(text, module, given, names, tuple(oracle.run(text, given)))
    planned = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert planned.problems == ()
    batch.check(runner, planned.plan, seed=seed)
    if unfused:
        batch.check(runner, handmade.unfused(module), seed=seed)


@given(text=modules(), policy=POLICY, seed=st.integers(0, 99))
@FAST
def test_whole_numbers(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=True)


@pytest.mark.slow
@given(text=modules(most=40), policy=POLICY, seed=st.integers(0, 99))
@SLOW
def test_many_whole_numbers(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=False)


@pytest.mark.slow
@given(text=modules(dtype="f32"), policy=POLICY, seed=st.integers(0, 99))
@settings(SLOW, max_examples=5)
def test_floats(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=False)


# --- what blocks write, by brute force ------------------------------------------------------------------


DIMS = st.lists(st.integers(1, 6), max_size=3).map(tuple)


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


def writes(chunk: Chunk, block: int) -> bool:
    """Whether it is the first of its replicas."""
    if isinstance(chunk, FlatChunk):
        return True
    return block == sum(block // each.stride % each.parts * each.stride for each in chunk.splits)


@given(DIMS, st.data())
@settings(max_examples=400, deadline=None)
def test_each_element_has_one_writer(dims, data):
    """What covers a tensor does; what does is refused only where parts are not numbered in multiples of each other."""
    chunk, blocks = data.draw(chunks(dims)), data.draw(st.integers(1, 60))
    if chunk_coverage.shape(chunk, dims):
        return
    times = sum(index_sets.of_chunk(chunk, dims, block).astype(int) for block in range(blocks) if writes(chunk, block))
    said, once = chunk_coverage.coverage(chunk, dims, blocks), bool(np.all(times == 1))
    assert once or said
    assert not said or not once or "not numbered in multiples" in said


@given(DIMS, st.data())
@settings(max_examples=300, deadline=None)
def test_blocks_without_replicas_all_write(dims, data):
    chunk, blocks = data.draw(chunks(dims)), data.draw(st.integers(1, 60))
    assert chunk_coverage.unique(chunk, blocks) == all(writes(chunk, block) for block in range(blocks))


# --- what blocks read -----------------------------------------------------------------------------------


def missing(module: HloModule, program: BlockProgram) -> list[str]:
    """What blocks read of earlier stages of their own program and have not computed, element by element."""
    found = []
    earlier: dict[str, Stage] = {}
    for stage in program.stages:
        inside = [each.instruction for each in stage.results]
        for block in range(program.blocks):
            needed = dict.fromkeys(inside, index_sets.of_chunk(stage.chunk, stage.dims, block))
            for each in reversed(module.instructions):
                if each.name in needed and each.name not in earlier:
                    for place, name in enumerate(each.operands):
                        more = index_sets.read(module, each, place, needed[each.name])
                        needed[name] = needed[name] | more if name in needed else more
            for name in needed.keys() & earlier.keys():
                own = index_sets.of_chunk(earlier[name].chunk, earlier[name].dims, block)
                found += [f"block {block} reads elements of {name} that it has not computed"] * bool(
                    (needed[name] & ~own).any()
                )
        earlier |= dict.fromkeys(inside, stage)
    return found


@pytest.mark.slow
@given(text=modules(most=30), policy=POLICY, seed=st.integers(0, 9999))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_blocks_read_what_they_have_computed(text, policy, seed):
    """With any of the schedules that the planner may choose."""
    module = importer.read(text, "random.hlo")
    found = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert found.problems == ()
    assert verify.problems(module, found.plan, shared_limit=policy.shared_limit) == ()
    for kernel in found.plan.kernels:
        for program in kernel.programs:
            staged = program.rows is None and program.tile is None and not program.updates and program.blocks <= 300
            assert not staged or missing(module, program) == []


def test_what_only_the_first_replica_writes_is_not_read_back_by_the_others():
    """Every block computes the whole value, one writes it, and all of them read it from global memory."""
    module, plan = module_of("lr_step"), planned("lr_step", "beyond")
    told = 0
    for program, at, changed in stages(plan):
        stage, own = program.stages[at], {each.instruction for each in program.stages[at].results}
        read = any(own & set(module[each.instruction].operands) for each in program.results)
        if program.blocks > 1 and read and at + 1 < len(program.stages):
            results = tuple(StageResult(name, (Global(module.buffer_of(name)),)) for name in sorted(own))
            whole = BoxChunk(tuple(Split(dim) for dim in stage.dims))
            other = changed(dataclasses.replace(stage, chunk=whole, results=results))
            told += any("another block writes it" in each for each in verify.problems(module, other))
    assert told
