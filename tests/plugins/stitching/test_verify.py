"""The check of plans: planned ones are sound, and plans that were broken on purpose are told."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fusiond_stitching
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import (
    BlockProgram,
    Global,
    LaneExchange,
    LibraryCall,
    Phase,
    Shared,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

FOLDER = Path(fusiond_stitching.__file__).parent / "modules"
NAMES = sorted(each.stem for each in FOLDER.glob("*.hlo"))
SMALL = ("lr_step", "nmt_fig3", "nmt_attn")
BEYOND = {
    "layers": False, "merge": True, "recompute": True, "middle": True, "warp": True, "spill": True, "packing": True,
}  # fmt: skip
POLICIES = {
    "paper": FusionPolicy(),
    "beyond": FusionPolicy(**BEYOND),
    "barriers": FusionPolicy(**BEYOND, barriers=True),
    "small blocks": FusionPolicy(**BEYOND, threads=64, grain=512),
    "little memory": FusionPolicy(**BEYOND, shared_limit=1024),
    "one block": FusionPolicy(**BEYOND, grain=1 << 20, shared_limit=200 * 1024),
}


@functools.cache
def module_of(name: str) -> HloModule:
    return importer.read((FOLDER / f"{name}.hlo").read_text(), name)


@functools.cache
def planned(name: str, policy: str) -> StitchingPlan:
    return planner.plan(module_of(name), POLICIES[policy]).plan


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if name in SMALL or policy == "barriers" else pytest.mark.slow)
        for name in NAMES
        for policy in POLICIES
    ],
)
def test_planned_plans_are_sound(name, policy):
    plan = planned(name, policy)
    assert plan.steps
    assert verify.problems(module_of(name), plan, shared_limit=POLICIES[policy].shared_limit) == ()


# --- mutants --------------------------------------------------------------------------------------------

Mutants = Iterator[StitchingPlan]


def with_step(plan: StitchingPlan, at: int, *steps: StitchedKernel | LibraryCall) -> StitchingPlan:
    return dataclasses.replace(plan, steps=(*plan.steps[:at], *steps, *plan.steps[at + 1 :]))


def programs(plan: StitchingPlan) -> Iterator[tuple[BlockProgram, Callable[[BlockProgram], StitchingPlan]]]:
    """Every block program, and the plan that has another one in its stead."""
    for step, kernel in enumerate(plan.steps):
        if isinstance(kernel, LibraryCall):
            continue
        for number, phase in enumerate(kernel.phases):
            for place, program in enumerate(phase.programs):

                def made(new, step=step, kernel=kernel, number=number, phase=phase, place=place):
                    several = (*phase.programs[:place], new, *phase.programs[place + 1 :])
                    phases = (*kernel.phases[:number], Phase(programs=several), *kernel.phases[number + 1 :])
                    return with_step(plan, step, dataclasses.replace(kernel, phases=phases))

                yield program, made


def stages(plan: StitchingPlan) -> Iterator[tuple[BlockProgram, int, Callable[[Stage], StitchingPlan]]]:
    for program, made in programs(plan):
        for at, _ in enumerate(program.stages):

            def changed(new, program=program, at=at, made=made):
                several = (*program.stages[:at], new, *program.stages[at + 1 :])
                return made(dataclasses.replace(program, stages=several))

            yield program, at, changed


def results(plan: StitchingPlan) -> Iterator[tuple[Stage, StageResult, Callable[[StageResult | None], StitchingPlan]]]:
    for program, at, changed in stages(plan):
        stage = program.stages[at]
        for place, result in enumerate(stage.results):

            def made(new, stage=stage, place=place, changed=changed):
                kept = () if new is None else (new,)
                return changed(
                    dataclasses.replace(stage, results=(*stage.results[:place], *kept, *stage.results[place + 1 :]))
                )

            yield stage, result, made


def barrier_dropped(plan: StitchingPlan) -> Mutants:
    for program, at, changed in stages(plan):
        if program.stages[at].barrier:
            yield changed(dataclasses.replace(program.stages[at], barrier=False))


def freed_too_early(plan: StitchingPlan) -> Mutants:
    """A buffer lies where another one is that is still read: the first of two that a later stage reads."""
    for program, made in programs(plan):
        reading = dict(alive(program))
        names = list(reading)
        for one in names:
            for other in names:
                (first, last), (begin, _) = reading[one], reading[other]
                if one != other and first < begin < last:
                    yield made(moved(program, other, one))


def alive(program: BlockProgram) -> Iterator[tuple[str, tuple[int, int]]]:
    """Shared buffers, from the stage that writes them to the last that must find them: by dropping their home."""
    for number, stage in enumerate(program.stages):
        for result in stage.results:
            if result.shared is not None:
                readers = [at for at in range(number + 1, len(program.stages)) if reads(program, at, result)]
                yield result.instruction, (number, max(readers, default=number))


@functools.cache
def reads(program: BlockProgram, at: int, wanted: StageResult) -> bool:
    """Whether a stage reads a value: of the module that is being tried, through whatever is inlined."""
    module = CURRENT[-1]
    computed = {each.instruction for each in program.results}
    stack = [name for each in program.stages[at].results for name in module[each.instruction].operands]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name == wanted.instruction:
            return True
        if name not in seen and name not in computed:
            seen.add(name)
            stack += module[name].operands
    return False


CURRENT: list[HloModule] = []


def moved(program: BlockProgram, name: str, onto: str) -> BlockProgram:
    """`name` gets the offset of `onto`."""
    homes = {each.instruction: each.shared for each in program.results}
    target = homes[onto]
    assert target is not None
    several = []
    for stage in program.stages:
        new = []
        for each in stage.results:
            if each.instruction == name and each.shared is not None:
                shared = Shared(target.offset, each.shared.size_bytes)
                rest = tuple(home for home in each.homes if isinstance(home, Global))
                each = StageResult(name, (shared, *rest))
            new.append(each)
        several.append(dataclasses.replace(stage, results=tuple(new)))
    size = max(program.shared_bytes, target.offset + homes[name].size_bytes)
    return dataclasses.replace(program, stages=tuple(several), shared_bytes=size)


def buffer_too_small(plan: StitchingPlan) -> Mutants:
    for _, result, made in results(plan):
        if result.shared is not None:
            less = Shared(result.shared.offset, result.shared.size_bytes - 16)
            rest = tuple(home for home in result.homes if isinstance(home, Global))
            yield made(StageResult(result.instruction, (less, *rest)))


def arena_too_small(plan: StitchingPlan) -> Mutants:
    for program, made in programs(plan):
        if program.shared_bytes:
            yield made(dataclasses.replace(program, shared_bytes=program.shared_bytes - 16))


def kernel_without_arena(plan: StitchingPlan) -> Mutants:
    for at, kernel in enumerate(plan.steps):
        if isinstance(kernel, StitchedKernel) and kernel.shared_bytes:
            yield with_step(plan, at, dataclasses.replace(kernel, shared_bytes=kernel.shared_bytes - 16))


def without_workspace(plan: StitchingPlan) -> Mutants:
    for program, at, changed in stages(plan):
        reduction = program.stages[at].reduction
        if reduction is not None and reduction.workspace is not None:
            bare = dataclasses.replace(reduction, workspace=None)
            yield changed(dataclasses.replace(program.stages[at], reduction=bare))


def lanes_that_say_nothing(plan: StitchingPlan) -> Mutants:
    for program, at, changed in stages(plan):
        reduction = program.stages[at].reduction
        if reduction is not None and reduction.lanes > 1:
            yield changed(
                dataclasses.replace(
                    program.stages[at],
                    reduction=dataclasses.replace(reduction, exchange=LaneExchange.NONE, workspace=None),
                )
            )
        if reduction is not None:
            yield changed(dataclasses.replace(program.stages[at], reduction=None))


def result_dropped(plan: StitchingPlan) -> Mutants:
    """An output or an operand of a library call is not computed. (Anything else would be inlined by its readers, which
    is slow but sound.)"""
    module = CURRENT[-1]
    for stage, result, made in results(plan):
        if len(stage.results) > 1 and needs_buffer(module, result.instruction):
            yield made(None)


def needs_buffer(module: HloModule, name: str) -> bool:
    users = [module[each] for each in module.users[name]]
    return name in module.is_output or any(
        module.library(each) or (each.opcode == "reshape" and needs_buffer(module, each.name)) for each in users
    )


def home_dropped(plan: StitchingPlan) -> Mutants:
    for _, result, made in results(plan):
        for home in result.homes:
            rest = tuple(each for each in result.homes if each != home)
            if isinstance(home, Global) or not rest:
                yield made(StageResult(result.instruction, rest))


def wrong_buffer(plan: StitchingPlan) -> Mutants:
    for _, result, made in results(plan):
        if result.stored is not None:
            yield made(StageResult(result.instruction, (*result.homes[:-1], Global("t99999"))))


def step_dropped(plan: StitchingPlan) -> Mutants:
    module = CURRENT[-1]
    for at, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall) or any(needs_buffer(module, name) for name in names_of(step)):
            yield dataclasses.replace(plan, steps=(*plan.steps[:at], *plan.steps[at + 1 :]))


def step_repeated(plan: StitchingPlan) -> Mutants:
    for at, step in enumerate(plan.steps):
        yield with_step(plan, at, step, step)


def steps_swapped(plan: StitchingPlan) -> Mutants:
    """Only where the later step reads what the earlier one computes."""
    module = CURRENT[-1]
    for at in range(len(plan.steps) - 1):
        first, second = plan.steps[at], plan.steps[at + 1]
        computed = {first.instruction} if isinstance(first, LibraryCall) else names_of(first)
        computed_later = {second.instruction} if isinstance(second, LibraryCall) else names_of(second)
        if reaches(module, computed_later, computed):
            yield dataclasses.replace(plan, steps=(*plan.steps[:at], second, first, *plan.steps[at + 2 :]))


def names_of(kernel: StitchedKernel) -> set[str]:
    return {each.instruction for program in kernel.programs for each in program.results}


def reaches(module: HloModule, start: set[str], wanted: set[str]) -> bool:
    stack = [name for each in start for name in module[each].operands]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name in wanted:
            return True
        if name not in seen:
            seen.add(name)
            stack += module[name].operands
    return False


def grid_barrier_dropped(plan: StitchingPlan) -> Mutants:
    """The block programs of all phases side by side."""
    for at, kernel in enumerate(plan.steps):
        if isinstance(kernel, StitchedKernel) and kernel.cooperative:
            phase = Phase(programs=tuple(kernel.programs))
            yield with_step(plan, at, dataclasses.replace(kernel, phases=(phase,), grid=phase.blocks))


def phases_swapped(plan: StitchingPlan) -> Mutants:
    for at, kernel in enumerate(plan.steps):
        if isinstance(kernel, StitchedKernel) and kernel.cooperative:
            yield with_step(plan, at, dataclasses.replace(kernel, phases=tuple(reversed(kernel.phases))))


def too_few_blocks(plan: StitchingPlan) -> Mutants:
    for at, kernel in enumerate(plan.steps):
        if isinstance(kernel, StitchedKernel) and not kernel.cooperative and kernel.grid > 1:
            yield with_step(plan, at, dataclasses.replace(kernel, grid=kernel.grid - 1))
    for program, made in programs(plan):
        if program.blocks > 1 and any(each.stored for each in program.results):
            yield made(dataclasses.replace(program, blocks=program.blocks - 1))


MUTATIONS = (
    barrier_dropped, freed_too_early, buffer_too_small, arena_too_small, kernel_without_arena, without_workspace,
    lanes_that_say_nothing, result_dropped, home_dropped, wrong_buffer, step_dropped, step_repeated, steps_swapped,
    grid_barrier_dropped, phases_swapped, too_few_blocks,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
@pytest.mark.sampled(12)
def test_mutants_are_told(mutation):
    """The first eight mutants of each policy's plan of the smaller modules."""
    tried = 0
    for name in ("nmt_fig3", "speech_fwd", "nmt_attn", "lr_step"):
        for policy in POLICIES:
            module, plan = module_of(name), planned(name, policy)
            CURRENT.append(module)
            for number, mutant in zip(range(8), mutation(plan), strict=False):
                tried += 1
                assert verify.problems(module, mutant), f"{name}, {policy}, mutant {number}"
            CURRENT.pop()
    assert tried > 0
