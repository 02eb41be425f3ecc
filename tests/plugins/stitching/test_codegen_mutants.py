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
from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Shared,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.frontend import importer

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


def moved(stage: Stage, result: StageResult, offset: int) -> Stage:
    homes = tuple(
        dataclasses.replace(home, offset=offset) if isinstance(home, Shared) else home for home in result.homes
    )
    return dataclasses.replace(
        stage,
        results=tuple(dataclasses.replace(each, homes=homes) if each is result else each for each in stage.results),
    )
