"""Modules with instructions that are left to a library: cut there, run with stand-ins, and right on both sides.

The oracle is XLA on the same text, made to give the values round each boundary too: with XLA's own results in place of
the stand-ins, outputs must be XLA's, and so must be what the boundaries read.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.program import Pointer, Program, Role, Seam, problems
from fusiond_stitching.analysis import planner, traffic, verify
from fusiond_stitching.analysis.plan import LibraryCall, StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

from . import graphs, handmade
from .boundary_modules import CASES, Cut, module_of, planned, source, text_of, unsound, values_of
from .policies import LIMITS, POLICIES
from .running import Arrays, Runner
from .test_catalogue_results import NAMES
from .test_catalogue_results import module as catalogue
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


# --- seams: the user computes them, in their order ------------------------------------------------------


Function = Callable[..., Any]
NUMPY = {"bool": np.bool_, "bfloat16": np.uint16}
_SET = r"\{([\d,]*)\}"
_DOT = re.compile(
    r"dot \w+\[[\d,]*\] = \w+\[([\d,]*)\] x \w+\[([\d,]*)\]"
    rf"(?:, contracting {_SET} with {_SET})?(?:, batch {_SET} with {_SET})?"
)


def numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in (text or "").split(",") if each)


def product(operation: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A dot, from what its seam says of it and nothing else."""
    found = _DOT.fullmatch(operation)
    assert found is not None, operation
    a, b, contracting_a, contracting_b, batch_a, batch_b = (numbers(each) for each in found.groups())
    names_a = [chr(ord("a") + at) for at in range(len(a))]
    names_b = [chr(ord("n") + at) for at in range(len(b))]
    for x, y in zip((*contracting_a, *batch_a), (*contracting_b, *batch_b), strict=True):
        names_b[y] = names_a[x]
    batch = [names_a[at] for at in batch_a]
    gone = {names_a[at] for at in contracting_a}
    rest = [each for each in (*names_a, *names_b) if each not in gone and each not in batch]
    text = f"{''.join(names_a)},{''.join(names_b)}->{''.join([*batch, *rest])}"
    return np.einsum(text, left.reshape(a).astype(np.float64), right.reshape(b).astype(np.float64))


class ByHand:
    """Runs a Program without its stand-ins, piece by piece, and does the seams in between."""

    def __init__(self, runner: Runner, program: Program, given: Arrays, functions: Mapping[str, Function]) -> None:
        self.runner = runner
        self.program = program
        self.values = dict(given)
        self.functions = functions

    def outputs(self) -> Arrays:
        for seam in self.program.seams:
            at = seam.stand_in or seam.before
            self._know(at, set(seam.reads))
            self._do(seam)
        wanted = {each.name for each in self.program.buffers if each.role is Role.OUTPUT}
        self._know(None, wanted)
        return {name: self.values[name] for name in wanted}

    def _do(self, seam: Seam) -> None:
        arrays = [self.values[name] for name in seam.reads]
        if seam.stand_in:
            found: Any = (product(seam.operation, *arrays),)
        else:
            found = self.functions[seam.name](*arrays)
            found = found if isinstance(found, tuple) else (found,)
        for name, array in zip(seam.writes, found, strict=True) if seam.writes else ():
            dtype = self.program.buffer(name).dtype
            self.values[name] = np.asarray(array).reshape(-1).astype(NUMPY.get(dtype, dtype))

    def _know(self, before: str | None, wanted: set[str]) -> None:
        """Run all that stands before a step, to have some buffers' values."""
        missing = wanted - set(self.values)
        if not missing:
            return
        stand_ins = {each.stand_in for each in self.program.seams}
        names = [each.name for each in self.program.steps]
        end = len(names) if before is None else names.index(before)
        steps = tuple(each for each in self.program.steps[:end] if each.name not in stand_ins)
        roles = {**dict.fromkeys(missing, Role.OUTPUT), **dict.fromkeys(self.values, Role.INPUT)}
        buffers = tuple(
            dataclasses.replace(each, role=roles.get(each.name, Role.SCRATCH)) for each in self.program.buffers
        )
        piece = dataclasses.replace(self.program, steps=steps, buffers=buffers, seams=())
        inputs = {each.name: self.values[each.name] for each in buffers if each.role is Role.INPUT}
        self.values |= self.runner.run(piece, inputs)


def sorted_along(dims: tuple[int, ...], axis: int) -> Function:
    return lambda values: np.sort(values.reshape(dims), axis=axis)


def sorted_pair(keys: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(keys, kind="stable")
    return keys[order], at[order]


def rounds(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    found = values.reshape(5, 7)
    for _ in range(3):
        found = np.tanh(found + weights)
    return found


FUNCTIONS: dict[str, Function] = {
    "a_sorted": sorted_along((6, 33), 1),
    "b_sorted": sorted_pair,
    "c_y": lambda x, k: jax.lax.conv(x.reshape(2, 3, 8, 8), k.reshape(4, 3, 3, 3), (1, 1), "SAME"),
    "d_run": lambda first, values, weights: (rounds(values, weights), weights),
    "e_y": lambda test, a, x: 2 * a if test[0] else np.sqrt(np.convolve(np.abs(x), np.ones(3), "same")),
    "f_one": lambda values: (),
    "h_b": sorted_along((6, 20), 1),
    "h_d": sorted_along((6, 20), 0),
    "i_sorted": sorted_along((8, 8), 1),
    "i_first": sorted_along((8, 9), 1),
    "i_last": sorted_along((8, 9), 1),
    "i_end": sorted_along((72,), 0),
}
DONE = (
    "before and behind", "a tuple, and its indices", "a convolution", "a loop, with state that stays", "a conditional",
    "two halves of a group", "between inputs, outputs and dots",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["grid", "unfused"])
def test_doing_the_seams_gives_the_modules_result(runner, policy):
    text = text_of(*DONE)
    module = importer.read(text, "boundaries.hlo")
    arrays = [np.random.default_rng(7).normal(size=module[each].dims).astype(np.float32) for each in module.parameters]
    plan = handmade.unfused(module) if policy == "unfused" else planned(module, policy)
    program = emit.program(module, plan)
    assert problems(program) == ()
    given = {module.buffer_of(name): array for name, array in zip(module.parameters, arrays, strict=True)}
    got = ByHand(runner, program, given, FUNCTIONS).outputs()
    names = list(module.computed)
    real = values_of(text, [source(each) for each in names], tuple(arrays))
    for name, wanted in zip(names, real, strict=True):
        np.testing.assert_allclose(got[module.computed[name]].reshape(wanted.shape), wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("policy", ["paper", "unfused"])
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in ("nmt_fig3", "lr_step") else pytest.mark.slow) for each in NAMES]
)
@pytest.mark.sampled(6)
def test_the_catalogues_dots_are_done_by_numpy(runner, name, policy):
    batch = catalogue(name)
    plan = handmade.unfused(batch.module) if policy == "unfused" else planner.plan(
        batch.module, POLICIES[policy], LIMITS
    ).plan  # fmt: skip
    program = batch.program(plan)
    dots = [each.stand_in for each in program.seams]
    assert dots == [each.name for each in program.launches if emit.is_library(each)]
    got = ByHand(runner, program, batch.given(), {}).outputs()
    assert batch.differences(program, got) == []


# --- what a seam says -----------------------------------------------------------------------------------


def test_two_in_a_row_are_done_in_their_order():
    """The first one's result is in no buffer: whoever does the second has it."""
    module = module_of("two in a row")
    program = emit.program(module, planned(module, "grid"))
    one, two = program.seams
    assert (one.name, one.reads, one.writes) == ("f_one", ("operand_0",), ())
    assert (two.name, two.reads, two.writes) == ("f_two", (), ("boundary_0",))
    assert two.operation == "sort f32[7,11] = f32[7,11] f_one"
    assert one.before == two.before == program.steps[-1].name


def test_a_constant_has_no_buffer_and_a_side_effect_no_result():
    text = text_of("nobody reads it").replace(
        "f32[7] sort(g_e), dimensions={0}, to_apply=less",
        'f32[7] custom-call(g_e, g_two), custom_call_target="log_it", custom_call_has_side_effect=true',
    ).replace("  g_lost =", "  g_two = f32[] constant(2)\n  g_lost =")  # fmt: skip
    module = importer.read(text, "x")
    (seam,) = emit.program(module, planned(module, "grid")).seams
    assert seam.operation == "custom-call f32[7] g_lost = f32[7], f32[] constant 2"
    assert (seam.reads, seam.writes, seam.before) == (("operand_0",), (), None)


def test_a_dot_reads_a_copy_of_a_constant():
    """So that a library can be given it."""
    text = """HloModule dots

ENTRY main {
  a = f32[3] parameter(0)
  b = f32[] constant(2)
  c = f32[3] dot(a, b)
  ROOT r = f32[3] negate(c)
}
"""
    module = importer.read(text, "dots.hlo")
    for plan in (handmade.unfused(module), *(planned(module, each) for each in POLICIES)):
        program = emit.program(module, plan)
        (seam,) = program.seams
        assert seam.operation == "dot f32[3] = f32[3] x f32[]"
        (launch,) = [each for each in program.launches if each.name == seam.stand_in]
        assert {*seam.reads, *seam.writes} == {each.buffer for each in launch.arguments if isinstance(each, Pointer)}


@pytest.mark.parametrize("policy", POLICIES)
def test_all_cases_can_be_done_in_the_order_of_the_seams(policy):
    module = importer.read(text_of(*DONE, "two in a row", "types without buffers", "a result with a layout"), "x.hlo")
    program = emit.program(module, planned(module, policy))
    assert problems(program) == ()
    assert unsound(program) == []
    places = {each.name: place for place, each in enumerate(program.steps)}
    order = [places.get(each.stand_in or each.before or "", len(places)) for each in program.seams]
    assert order == sorted(order)
