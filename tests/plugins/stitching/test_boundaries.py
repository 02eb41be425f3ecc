"""Modules with instructions that are left to a library: cut there, run with stand-ins, and right on both sides.

The oracle is XLA on the same text, made to give the values round each boundary too: with XLA's own results in place of
the stand-ins, outputs must be XLA's, and so must be what the boundaries read.
"""

import dataclasses
import functools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.program import problems
from fusiond_stitching.analysis import planner, traffic, verify
from fusiond_stitching.analysis.plan import LibraryCall, StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

from . import graphs, handmade
from .boundary_modules import CASES, Cut, module_of, planned, text_of, unsound
from .policies import LIMITS, POLICIES
from .test_random_graphs import POLICY, SLOW, Drawn, inputs

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_plans_are_cut_at_boundaries(name, policy):
    """Whatever is fused: in the order of the steps, no kernel needs a boundary that is not yet done, and no boundary
    needs a kernel that is not."""
    module = module_of(name)
    plan = planned(module, policy)
    assert verify.problems(module, plan) == ()
    done: set[str] = set()
    for step in plan.steps:
        if isinstance(step, LibraryCall):
            assert behind(module, module[step.instruction].operands) <= done
            done.add(step.instruction)
            continue
        own = {each.instruction for program in step.programs for each in program.results}
        assert behind(module, own) <= done
        done |= own
    assert set(module.foreign) <= done
    assert traffic.ideal_bytes(module) <= traffic.moved(module, plan)


def behind(module: HloModule, names) -> set[str]:
    """The boundaries that somebody depends on, however far away."""
    found, stack, seen = set(), list(names), set()
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            found |= {name} & set(module.foreign)
            stack += module[name].operands
    return found


def test_values_on_both_sides_are_those_of_xla(runner):
    cut = Cut.of(text_of("before and behind", "two halves of a group"))
    plan = planned(cut.module, "grid")
    cut.check(runner, plan)
    # And the comparison tells: the sorts' results in another order are other results.
    turned = {name: array[::-1] if name == "boundary_0" else array for name, array in cut.given.items()}
    with pytest.raises(AssertionError, match=r"out_\d"):
        dataclasses.replace(cut, given=turned).check(runner, plan)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["paper", "tiny", "blocks", "grid", "unfused"])
def test_every_case_by_every_rule(runner, policy):
    cut = everything()
    cut.check(runner, handmade.unfused(cut.module) if policy == "unfused" else planned(cut.module, policy), seed=1)


@functools.cache
def everything() -> Cut:
    jnp.linalg.cholesky(jnp.eye(2))  # whoever runs the custom call by its name finds LAPACK loaded
    return Cut.of(text_of(*CASES))


def sort(build: graphs.Builder) -> None:
    value = build.pick(rank=1)
    at = build.draw(st.integers(0, len(value.dims) - 1))
    build.add(value.dims, f"sort({value.name}), dimensions={{{at}}}, to_apply=less_of", value)


LESS = (
    "less_of {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT c = pred[] compare(a, b), direction=LT\n}\n"
)


@st.composite
def with_sorts(draw: st.DrawFn) -> str:
    """A random module in which about every fifth step is a sort."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "STEPS", {**graphs.STEPS, **{f"sort {number}": sort for number in range(5)}})
        text = draw(graphs.modules(most=30))
    return text.replace("ENTRY", f"{LESS}\nENTRY", 1)


@pytest.mark.slow
@given(text=with_sorts(), policy=POLICY, seed=st.integers(0, 99))
@settings(SLOW, max_examples=60)
def test_random_graphs_are_cut_soundly(text, policy, seed):
    module = importer.read(text, "random.hlo")
    found = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert found.problems == ()
    assert verify.problems(module, found.plan) == ()
    program = emit.program(module, found.plan)
    assert problems(program) == ()
    calls = {each.attributes["call"] for each in map(module.__getitem__, module.foreign)}
    assert {each.name for each in program.seams if each.stand_in is None} == calls
    assert unsound(program) == []


@pytest.mark.slow
@given(text=with_sorts(), policy=POLICY, seed=st.integers(0, 99))
@settings(SLOW, max_examples=4)
def test_random_graphs_give_what_xla_gives(runner, text, policy, seed):
    module = importer.read(text, "random.hlo")
    cut = Cut.made(text, module, inputs(module))
    cut.check(runner, planner.plan(module, policy, LIMITS, Drawn(seed)).plan, seed)


# --- names and roles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_buffers_and_what_they_hold(name):
    """Arguments come by kind, then by number: parameters, stand-ins, scratch, what is handed over, outputs."""
    module = module_of(name)
    assert {module.buffer_of(each.name) for each in module.instructions} == set(module.buffers)
    assert all(module.buffer_of(held) == buffer for buffer, held in module.buffers.items())
    kinds = ("in", "boundary", "t", "operand", "out")
    split = [re.fullmatch(r"([a-z]+)_?(\d+)", buffer).groups() for buffer in module.buffers]
    order = [(kinds.index(kind), int(number)) for kind, number in split]
    assert order == sorted(order)
    assert list(module.argument_order.values()) == list(range(len(order)))


def test_what_nobody_reads_is_dropped_and_what_acts_is_kept():
    assert module_of("nobody reads it").foreign == {}
    text = text_of("nobody reads it")
    sort_line = "f32[7] sort(g_e), dimensions={0}, to_apply=less"
    call = 'f32[7] custom-call(g_e), custom_call_target="log_it"'
    assert importer.read(text.replace(sort_line, call), "x").foreign == {}
    acting = importer.read(text.replace(sort_line, f"{call}, custom_call_has_side_effect=true"), "x")
    assert set(acting.foreign) == {"g_lost"}
    assert acting.stand_ins == {}
    assert acting.handed == {"g_e": "operand_0"}
    program = emit.program(acting, planned(acting, "grid"))
    assert {each.name for each in program.buffers} == {"in_0", "out_0", "operand_0"}


# --- verify: mutants ------------------------------------------------------------------------------------


def steps_of(plan: StitchingPlan) -> dict[str, int]:
    found = {}
    for at, step in enumerate(plan.steps):
        names = [step.instruction] if isinstance(step, LibraryCall) else [
            each.instruction for program in step.programs for each in program.results
        ]  # fmt: skip
        found |= dict.fromkeys(names, at)
    return found


@pytest.mark.parametrize("name", ["before and behind", "two halves of a group", "a loop, with state that stays"])
@pytest.mark.parametrize("policy", ["paper", "grid"])
def test_a_boundary_at_the_wrong_place_is_told(name, policy):
    module = module_of(name)
    plan = planned(module, policy)
    for at, step in enumerate(plan.steps):
        if not isinstance(step, LibraryCall):
            continue
        rest = [*plan.steps[:at], *plan.steps[at + 1 :]]
        missing = verify.problems(module, StitchingPlan(steps=tuple(rest)))
        assert any(f"library call {step.instruction} is never made" in each for each in missing)
        needed = steps_of(plan)
        first = max((needed.get(module.base(each).name, -1) for each in module[step.instruction].operands), default=-1)
        if first >= 0:
            early = [*rest[:first], step, *rest[first:]]
            assert verify.problems(module, StitchingPlan(steps=tuple(early)))
        readers = [needed[each] for each in module.users[step.instruction] if each in needed]
        if readers:
            late = [*rest[: max(readers)], step, *rest[max(readers) :]]
            assert verify.problems(module, StitchingPlan(steps=tuple(late)))


# --- fills ----------------------------------------------------------------------------------------------


def filled(text: str) -> dict[str, fills.Fill]:
    module = importer.read(text, "x.hlo")
    return {buffer: fills.default(module, name) for name, buffer in module.stand_ins.items()}


def test_stand_ins_hold_what_their_readers_can_use():
    pair = filled(text_of("a tuple, and its indices"))
    assert (pair["boundary_0"].kind, pair["boundary_0"].low) == ("uniform", -1.0)
    assert (pair["boundary_1"].kind, pair["boundary_1"].low, pair["boundary_1"].high) == ("integers", 0, 16)
    assert filled(text_of("a result with a layout"))["boundary_1"].kind == "zeros"


# --- frames ---------------------------------------------------------------------------------------------

FRAMES = ("round", "again", "double", "root")


def test_frames_are_modules_of_their_own(runner):
    module = importer.read(text_of("a loop, with state that stays", "a conditional", "a convolution"), "x.hlo")
    assert tuple(each.name for each in module.all_frames) == FRAMES
    body = module.all_frames[0]
    # The counter and the values are new in each round; the weights stay where they are.
    assert body.computed == {"j": "out_0", "u": "out_1"}
    program = emit.program(body, planned(body, "grid"))
    assert {each.name for each in program.buffers} == {"in_0", "in_1", "in_2", "out_0", "out_1"}
    v, w = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((5, 7), (7,)))
    got = runner.run(program, {"in_0": np.array([4], np.int32), "in_1": v, "in_2": w})
    assert got["out_0"] == [5]
    np.testing.assert_allclose(got["out_1"].reshape(5, 7), np.tanh(v + w), rtol=1e-5)
