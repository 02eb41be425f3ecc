"""Generated code broken on purpose: every fault shows on the cpu device, in the results or as a data race.

A mutant is built like the original and run from two seeds; it is dead when an output differs from XLA's, the run
faults, or ThreadSanitizer sees a race.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from fusiond.devices.base import ExecutionError
from fusiond.devices.cpu.race import find_in
from fusiond.program import Program
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    Global,
    Shared,
    Split,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
    whole,
)
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_catalogue_results import module


def killed(runner, batch: Batch, program: Program) -> str:
    """How the mutant died; empty when it lives."""
    for seed in (0, 1):
        try:
            got = runner.run(program, batch.given(), seed=seed)
        except ExecutionError as problem:
            return f"fault: {problem.reason}"
        found = batch.differences(program, got)
        if found:
            return found[0]
    return next(iter(find_in(program)), "")


def with_text(program: Program, change: Callable[[str], str]) -> Program:
    (source,) = program.sources
    changed = change(source.text)
    assert changed != source.text
    return dataclasses.replace(program, sources=(dataclasses.replace(source, text=changed),))


def without(text: str, pattern: str, number: int) -> str:
    """The text without the number-th match."""
    found = list(re.finditer(pattern, text))[number]
    return text[: found.start()] + text[found.end() :]


def count(program: Program, pattern: str) -> int:
    return len(re.findall(pattern, program.sources[0].text))


@functools.cache
def planned(name: str, policy: str) -> tuple[Batch, StitchingPlan]:
    batch = module(name)
    return batch, planner.plan(batch.module, POLICIES[policy], LIMITS).plan


def stages(plan: StitchingPlan) -> Iterator[tuple[StitchedKernel, BlockProgram, Stage]]:
    for kernel in plan.kernels:
        for program in kernel.programs:
            for stage in program.stages:
                yield kernel, program, stage


def with_stage(plan: StitchingPlan, old: Stage, new: Stage) -> StitchingPlan:
    def in_program(program: BlockProgram) -> BlockProgram:
        return dataclasses.replace(program, stages=tuple(new if each is old else each for each in program.stages))

    steps = []
    for step in plan.steps:
        if isinstance(step, StitchedKernel):
            phases = tuple(
                dataclasses.replace(phase, programs=tuple(in_program(each) for each in phase.programs))
                for phase in step.phases
            )
            step = dataclasses.replace(step, phases=phases)
        steps.append(step)
    return dataclasses.replace(plan, steps=tuple(steps))


# --- the text -------------------------------------------------------------------------------------------

BARRIER = r"__syncthreads\(\);"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), [("layer_norm", "stages")])
def test_every_missing_barrier(runner, name, policy):
    batch = Batch.alone(name)
    plan = planner.plan(batch.module, POLICIES[policy], LIMITS).plan
    program = batch.program(plan)
    assert killed(runner, batch, program) == ""
    barriers = count(program, BARRIER)
    assert barriers >= 2
    alive = []
    for number in range(barriers):
        mutant = with_text(program, lambda text, n=number: without(text, BARRIER, n))
        if not killed(runner, batch, mutant):
            alive.append(number)
    assert alive == []


@pytest.mark.slow
def test_every_barrier_of_a_plan_is_needed(runner):
    """None is planned where threads read what they wrote themselves. (But in front of a reduce: there a lane may happen
    to read its own.)"""
    batch, plan = planned("lr_step", "stages")
    tried = 0
    for _, _, stage in stages(plan):
        if stage.barrier and stage.reduction is None:
            mutant = with_stage(plan, stage, dataclasses.replace(stage, barrier=False))
            assert killed(runner, batch, batch.program(mutant)), stage
            tried += 1
    assert tried >= 2


ALONE = """\
HloModule alone

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[6,400] parameter(0)
  y = f32[6] parameter(1)
  s = f32[] constant(0)
  r = f32[6] reduce(x, s), dimensions={1}, to_apply=add
  w = f32[6,2] broadcast(r), dimensions={0}
  t = f32[6] reduce(w, s), dimensions={1}, to_apply=add
  ROOT u = f32[6] subtract(y, t)
}
"""


@pytest.mark.slow
def test_what_a_thread_wrote_itself_needs_no_barrier(runner):
    """A block reduces one row: thread 0 has the total, and reads it in the next stage."""
    here = importer.read(ALONE, "alone.hlo")
    plan = planner.plan(here, POLICIES["stages"], LIMITS).plan
    ((_, program, _), *_) = stages(plan)
    assert [(each.chunk.size, each.barrier) for each in program.stages] == [(1, False), (1, False)]
    random = np.random.default_rng(0)
    x, y = random.uniform(-1, 1, (6, 400)).astype(np.float32), random.uniform(-1, 1, 6).astype(np.float32)
    wanted = (y - 2 * x.astype(np.float64).sum(axis=1)).astype(np.float32)
    assert killed(runner, Batch(ALONE, here, (x, y), ("u",), (wanted,)), emit.program(here, plan)) == ""
    # All rows in one block: the totals are thread 0's, and other threads read them.
    wider = tuple(dataclasses.replace(each, chunk=whole((6,))) for each in program.stages)
    for old, new in zip(program.stages, wider, strict=True):
        plan = with_stage(plan, old, new)
    assert any("no barrier between the write of r" in each for each in verify.problems(here, plan))


def test_a_missing_barrier_between_stages(runner):
    batch, plan = planned("nmt_fig3", "paper")
    program = batch.program(plan)
    mutant = with_text(program, lambda text: without(text, rf"\n\s*{BARRIER}(?=\s*//)", 0))
    assert killed(runner, batch, mutant)


@pytest.mark.slow
def test_a_missing_grid_barrier(runner):
    batch, plan = planned("w2v_step", "stages")
    program = batch.program(plan)
    barrier = re.escape("cooperative_groups::this_grid().sync();")
    assert count(program, barrier) >= 1
    for number in range(count(program, barrier)):
        mutant = with_text(program, lambda text, n=number: without(text, barrier, n))
        assert killed(runner, batch, mutant)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, -1])
def test_a_shifted_range_of_packed_blocks(runner, shift):
    batch, plan = planned("lstm_step", "stages")
    program = batch.program(plan)
    (source,) = program.sources
    first = re.search(r"block - (\d+)[,)]", source.text)
    assert first is not None
    start = int(first[1])
    mutant = with_text(program, lambda text: text.replace(f"block - {start}", f"block - {start + shift}", 1))
    assert killed(runner, batch, mutant)


@pytest.mark.slow
def test_a_tail_without_its_condition(runner):
    batch = Batch.of("reductions")
    plan = planner.plan(batch.module, POLICIES["paper"], LIMITS).plan
    program = batch.program(plan)
    guard = re.compile(r"if \((threadIdx\.x|[\w* +]+) < \d+\) \{")
    matches = list(guard.finditer(program.sources[0].text))
    assert matches

    def unguarded(text: str) -> str:
        found = guard.search(text)
        assert found is not None
        return text[: found.start()] + "{" + text[found.end() :]

    assert killed(runner, batch, with_text(program, unguarded))


# --- the reduction --------------------------------------------------------------------------------------

START = """\
HloModule start

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[6,40] parameter(0)
  s = f32[] constant(2.5)
  r = f32[6] reduce(x, s), dimensions={1}, to_apply=add
  t = f32[6] tanh(r)
  ROOT results = (f32[6], f32[6]) tuple(r, t)
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stages", pytest.param("paper", marks=pytest.mark.slow)])
def test_a_reduction_without_its_init(runner, policy):
    here = importer.read(START, "start.hlo")
    x = np.random.default_rng(0).uniform(-1, 1, (6, 40)).astype(np.float32)
    total = x.astype(np.float64).sum(axis=1) + 2.5  # XLA takes an init in as often as it likes, NumPy once
    wanted = (total.astype(np.float32), np.tanh(total).astype(np.float32))
    batch = Batch(START, here, (x,), ("r", "t"), wanted)
    program = batch.program(planner.plan(here, POLICIES[policy], LIMITS).plan)
    assert killed(runner, batch, program) == ""
    mutant = with_text(program, lambda text: text.replace("2.5f", "0.0f", 1))
    assert killed(runner, batch, mutant)
    twice = with_text(program, lambda text: re.sub(r"lane_0 == 0 \? 2\.5f : -0\.0f", "2.5f", text, count=1))
    assert killed(runner, batch, twice)


# --- the plan -------------------------------------------------------------------------------------------


def shared_results(module: HloModule, program: BlockProgram) -> list[tuple[int, StageResult, Shared]]:
    return [
        (place, result, result.shared)
        for place, stage in enumerate(program.stages)
        for result in stage.results
        if result.shared is not None
    ]


def moved(stage: Stage, result: StageResult, offset: int) -> Stage:
    homes = tuple(
        dataclasses.replace(home, offset=offset) if isinstance(home, Shared) else home for home in result.homes
    )
    return dataclasses.replace(
        stage,
        results=tuple(dataclasses.replace(each, homes=homes) if each is result else each for each in stage.results),
    )


def last_read(module: HloModule, program: BlockProgram, name: str) -> int:
    """The last stage that reads a value, directly or through what is inlined."""
    computed = {result.instruction for result in program.results}
    last = -1
    for place, stage in enumerate(program.stages):
        stack = [operand for each in stage.results for operand in module[each.instruction].operands]
        seen: set[str] = set()
        while stack:
            each = stack.pop()
            if each == name:
                last = place
            elif each not in seen and each not in computed:
                stack += module[each].operands
            seen.add(each)
    return last


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("nmt_fig3", "paper"),
        pytest.param("lr_step", "stages", marks=pytest.mark.slow),
        pytest.param("speech_fwd", "stages", marks=pytest.mark.slow),
    ],
)
def test_a_shared_buffer_freed_too_early(runner, name, policy):
    """The buffer of a later stage is laid over one that is still read behind it."""
    batch, plan = planned(name, policy)
    tried = 0
    for _, program, stage in stages(plan):
        buffers = shared_results(batch.module, program)
        place = next(n for n, each in enumerate(program.stages) if each is stage)
        for number, result, home in buffers:
            if number != place:
                continue
            for earlier, other, space in buffers:
                if earlier < place < last_read(batch.module, program, other.instruction) and tried < 3:
                    assert space.offset != home.offset
                    mutant = with_stage(plan, stage, moved(stage, result, space.offset))
                    assert killed(runner, batch, batch.program(mutant)), (other.instruction, result.instruction)
                    tried += 1
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt_fig3", "speech_fwd"])
def test_a_wrong_sword(runner, name):
    """One stage computes half of its chunk, another part of the tensor than its readers believe."""
    batch, plan = planned(name, "paper")
    tried = 0
    for _, _, stage in stages(plan):
        if tried == 4 or not isinstance(stage.chunk, BoxChunk):
            continue
        for at, split in enumerate(stage.chunk.splits):
            if split.size < 2:
                continue
            half = Split(split.size // 2, split.parts, split.stride)
            splits = (*stage.chunk.splits[:at], half, *stage.chunk.splits[at + 1 :])
            mutant = with_stage(plan, stage, dataclasses.replace(stage, chunk=BoxChunk(splits)))
            program = emit.program(batch.module, mutant)
            assert killed(runner, batch, program), stage
            tried += 1
            break
    assert tried


@pytest.mark.slow
def test_a_value_that_is_not_written(runner):
    batch, plan = planned("lr_step", "paper")
    for _, _, stage in stages(plan):
        result = next((each for each in stage.results if each.stored is not None), None)
        if result is None:
            continue
        homes = tuple(home for home in result.homes if not isinstance(home, Global))
        kept = tuple(StageResult(each.instruction, homes) if each is result else each for each in stage.results)
        program = emit.program(batch.module, with_stage(plan, stage, dataclasses.replace(stage, results=kept)))
        if result.instruction in batch.module.is_output:
            assert killed(runner, batch, program)
            return
    raise AssertionError("no output is written")


def test_oracle_is_not_ours():
    """What mutants are compared with comes from XLA."""
    batch, _ = planned("nmt_fig3", "paper")
    np.testing.assert_array_equal(batch.wanted[0], oracle.run(batch.text, batch.inputs)[0])
