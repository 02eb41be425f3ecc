"""Seams: a program of the user's that computes them itself, in their order, gets the module's real result."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from fusiond.model.program import Pointer, Program, Role, Seam, problems
from fusiond_stitching.analysis import planner
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer

from . import handmade
from .boundary_modules import module_of, planned, source, text_of, unsound, values_of
from .policies import LIMITS, POLICIES
from .running import Arrays, Runner
from .test_catalogue_results import NAMES
from .test_catalogue_results import module as catalogue

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")

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
    assert dots == [each.name for each in emit.launches(program) if emit.is_library(each)]
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
        (launch,) = [each for each in emit.launches(program) if each.name == seam.stand_in]
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
