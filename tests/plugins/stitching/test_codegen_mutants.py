"""Generated code broken on purpose: every fault shows on the cpu device, in the results or as a data race.

A mutant is built like the original and run from two seeds; it is dead when an output differs from XLA's, the run
faults, or ThreadSanitizer sees a race.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import pytest

from fusiond.devices.base import ExecutionError
from fusiond.devices.cpu.race import find_in
from fusiond.model.program import Program
from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.plan import StitchingPlan

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
