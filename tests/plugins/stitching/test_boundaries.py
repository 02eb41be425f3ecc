"""Modules with instructions that are left to a library: cut there, run with stand-ins, and right on both sides.

The oracle is XLA on the same text, made to give the values round each boundary too: with XLA's own results in place of
the stand-ins, outputs must be XLA's, and so must be what the boundaries read.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.program import Program, Role, problems
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching.analysis import planner, split_reductions, traffic, verify
from fusiond_stitching.analysis.plan import LibraryCall, StitchedKernel, StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.plugin import MODULES
from fusiond_stitching.strategy import Stitching

from . import graphs, handmade
from .boundary_modules import CASES, Cut, module_of, planned, text_of, unsound
from .jobs import H100, job, registry
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


def test_buffers_of_a_module_with_boundaries():
    module = module_of("between inputs, outputs and dots")
    roles = {each.name: each.role for each in emit.program(module, planned(module, "grid")).buffers}
    assert {name for name, role in roles.items() if role is Role.INPUT} == {
        "in_0", "in_1", "boundary_0", "boundary_1", "boundary_2"
    }  # fmt: skip
    # i_dot is read by a sort; i_n is result 1 already; result 2 is a sort's, and nobody here computes it.
    assert {name for name, role in roles.items() if role is Role.OUTPUT} == {"out_0", "out_1", "out_3", "operand_0"}
    assert module.handed == {"i_dot": "operand_0"}
    assert module.computed == {"i_again": "out_0", "i_n": "out_1", "i_r": "out_3", "i_dot": "operand_0"}


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


def test_what_acts_inside_a_loop_is_kept():
    text = text_of("a loop, with state that stays").replace("out d_r", "").replace("d_r = ", "d_q = ")
    quiet = text.replace("(f32[5,7]) tuple(d_r)", "(f32[5,7]) tuple(d_e)")
    assert importer.read(quiet, "x").foreign == {}
    said = '  n = () custom-call(v), custom_call_target="p", custom_call_has_side_effect=true\n'
    loud = quiet.replace("  one = s32[] constant(1)\n", f"  one = s32[] constant(1)\n{said}")
    assert loud != quiet
    found = importer.read(loud, "x")
    assert {found[each].opcode for each in found.foreign} == {"while"}
    body = next(each for each in found.all_frames if each.name == "round")
    assert {body[each].opcode for each in body.foreign} == {"custom-call"}  # though its result is nothing at all
    assert verify.problems(body, planned(body, "grid")) == ()


def test_a_split_reduction_in_front_of_a_boundary(tmp_path):
    """The module with reductions in two steps has the same buffers and tolerances round its boundaries."""
    text = """HloModule large

less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[4096,64] parameter(0)
  zero = f32[] constant(0)
  s = f32[64] reduce(x, zero), dimensions={0}, to_apply=add
  z = f32[64] sort(s), dimensions={0}, to_apply=less
  ROOT y = f32[64] tanh(z)
}
"""
    (tmp_path / "large.hlo").write_text(text)
    strategy = Stitching()
    target = Target(arch="sm_90", limits=H100, facts=lambda source: None)
    workload = prepare(registry(), job("module: ./large.hlo", str(tmp_path / "job.yaml"))).workload
    analysis = strategy.analyse(workload, target)
    module, cut = analysis.payload.request.module, analysis.payload.forms("split")
    assert cut is not module
    assert split_reductions.reductions(module, 132).handed == module.handed == {"s": "operand_0"}
    offered = strategy.space(analysis, {})
    programs = [strategy.emit(analysis, config, {}) for _, config in strategy.seeds(analysis, offered, {})]
    programs += [each.emit(next(each.space.points())) for each in strategy.baselines(analysis)]
    for program in programs:
        assert isinstance(program, Program)
        kept = {each.name: (each.role, each.compare) for each in program.buffers if not each.name.startswith("t")}
        assert set(kept) == {"in_0", "boundary_0", "operand_0", "out_0"}
        assert kept == {
            each.name: (each.role, each.compare) for each in programs[0].buffers if not each.name.startswith("t")
        }


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


def test_a_kernel_across_a_boundary_is_told():
    """What stands before and behind a sort in one launch, with a grid barrier or without."""
    module = module_of("two halves of a group")
    plan = planned(module, "grid")
    kernels = [step for step in plan.steps if isinstance(step, StitchedKernel)]
    calls = [step for step in plan.steps if isinstance(step, LibraryCall)]
    assert len(kernels) >= 3
    phases = tuple(phase for kernel in kernels for phase in kernel.phases)
    shared = max(kernel.shared_bytes for kernel in kernels)
    one = dataclasses.replace(kernels[0], phases=phases, shared_bytes=shared)
    for at in range(len(calls) + 1):
        steps = (*calls[:at], one, *calls[at:])
        assert verify.problems(module, StitchingPlan(steps=steps))


# --- fills ----------------------------------------------------------------------------------------------


def filled(text: str) -> dict[str, fills.Fill]:
    module = importer.read(text, "x.hlo")
    return {buffer: fills.default(module, name) for name, buffer in module.stand_ins.items()}


def test_stand_ins_hold_what_their_readers_can_use():
    pair = filled(text_of("a tuple, and its indices"))
    assert (pair["boundary_0"].kind, pair["boundary_0"].low) == ("uniform", -1.0)
    assert (pair["boundary_1"].kind, pair["boundary_1"].low, pair["boundary_1"].high) == ("integers", 0, 16)
    assert filled(text_of("a result with a layout"))["boundary_1"].kind == "zeros"


RANDOM = """HloModule random

ENTRY main {
  key = u64[2] parameter(0)
  low = f32[] constant(2)
  high = f32[] constant(5)
  zero = s32[] constant(0)
  ten = s32[] constant(10)
  a = f32[8] rng(low, high), distribution=rng_uniform
  b = f32[8] rng(low, high), distribution=rng_normal
  c = s32[8] rng(zero, ten), distribution=rng_uniform
  d = (u64[2], u32[8]) rng-bit-generator(key), algorithm=rng_threefry
  e = u32[8] get-tuple-element(d), index=1
  f = s32[8] convert(e)
  g = s32[8] add(f, c)
  h = f32[8] multiply(a, b)
  ROOT r = (f32[8], s32[8]) tuple(h, g)
}
"""


def test_random_numbers_are_filled_as_they_are_distributed():
    found = {name: (each.kind, each.low, each.high) for name, each in filled(RANDOM).items()}
    assert found == {
        "boundary_0": ("uniform", 2.0, 5.0), "boundary_1": ("normal", 2.0, 5.0), "boundary_2": ("integers", 0, 9),
        "boundary_3": ("integers", 0, 2**32 - 1),
    }  # fmt: skip


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


def test_a_state_that_changes_places_is_copied():
    text = text_of("a loop, with state that stays").replace("tuple(j, u, w)", "tuple(i, u, w)")
    body = importer.read(text, "x.hlo").all_frames[0]
    assert set(body.computed.values()) == {"out_1"}
    swapped = """HloModule swap

body { s = (f32[4], f32[4]) parameter(0)
  a = f32[4] get-tuple-element(s), index=0
  b = f32[4] get-tuple-element(s), index=1
  ROOT t = (f32[4], f32[4]) tuple(b, a)
}

test { s = (f32[4], f32[4]) parameter(0)
  ROOT c = pred[] constant(false)
}

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[4] negate(a)
  s = (f32[4], f32[4]) tuple(a, b)
  r = (f32[4], f32[4]) while(s), condition=test, body=body
  x = f32[4] get-tuple-element(r), index=0
  y = f32[4] get-tuple-element(r), index=1
  ROOT z = f32[4] add(x, y)
}
"""
    body = importer.read(swapped, "x.hlo").all_frames[0]
    assert set(body.computed.values()) == {"out_0", "out_1"}


def test_a_state_of_a_type_without_buffers():
    """A complex number goes round a loop: the parent and the body are planned without it."""
    text = """HloModule complex

body { s = (c64[4], f32[4]) parameter(0)
  a = c64[4] get-tuple-element(s), index=0
  b = f32[4] get-tuple-element(s), index=1
  n = c64[4] negate(a)
  m = f32[4] abs(n)
  c = f32[4] add(b, m)
  ROOT t = (c64[4], f32[4]) tuple(n, c)
}

test { s = (c64[4], f32[4]) parameter(0)
  ROOT c = pred[] constant(false)
}

ENTRY main {
  a = c64[4] parameter(0)
  b = f32[4] parameter(1)
  e = f32[4] exponential(b)
  s = (c64[4], f32[4]) tuple(a, e)
  r = (c64[4], f32[4]) while(s), condition=test, body=body
  y = f32[4] get-tuple-element(r), index=1
  ROOT z = f32[4] negate(y)
}
"""
    module = importer.read(text, "x.hlo")
    body = module.all_frames[0]
    for each, outputs in ((module, {"operand_0", "out_0"}), (body, {"out_1"})):
        plan = planned(each, "grid")
        assert verify.problems(each, plan) == ()
        program = emit.program(each, plan)
        assert {one.name for one in program.buffers if one.role is Role.OUTPUT} == outputs
        assert {one.name for one in program.buffers if one.role is Role.INPUT} == {"in_1", "boundary_0"}
        assert unsound(program) == []


def test_the_catalogue_has_no_stand_ins():
    """Nothing about boundaries changes what has none."""
    for path in sorted(MODULES.glob("*.hlo"))[:3]:
        module = importer.read(path.read_text(), path.stem)
        assert (module.stand_ins, module.handed) == ({}, {})
        assert module.computed == {name: f"out_{at}" for at, name in enumerate(module.outputs)}
