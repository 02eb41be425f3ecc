"""Kernels whose code is told to be equal before it is written, against the code itself."""

import re

import pytest

from benchmarks.stitching import modules
from fusiond_stitching.analysis import planner, structural_hash
from fusiond_stitching.analysis.plan import StitchedKernel
from fusiond_stitching.analysis.policy import unfused
from fusiond_stitching.codegen import emit
from fusiond_stitching.codegen.kernel import kernel_text
from fusiond_stitching.codegen.scope import SourceUnit
from fusiond_stitching.frontend import importer

from .policies import LIMITS, POLICIES

NONE = unfused()


def canonical(text, buffers):
    """Code without comments and names: buffers and local variables (`add_0`) by number of appearance."""
    code = "\n".join(re.sub(r"\s*//.*", "", line) for line in text.split("\n"))
    place = {name: f"@{at}" for at, name in enumerate(buffers)}
    code = re.sub(r"\b(?:in_|out_|t)\d+\b", lambda found: place.get(found[0], found[0]), code)
    seen = {}
    return re.sub(r"\b[a-z][a-z_]*_\d+\b", lambda found: seen.setdefault(found[0], f"v{len(seen)}"), code)


def kernels(module, policy):
    """Each kernel's outline, and its code as it is written for itself."""
    plan = planner.plan(module, policy, LIMITS).plan
    unit = SourceUnit(max(each.elements for each in module.instructions))
    available = set(module.parameters)
    for step in plan.steps:
        kernel = step if isinstance(step, StitchedKernel) else emit.library_kernel(module, step)
        text = kernel_text(module, kernel, unit, available)
        yield structural_hash.outline(module, kernel, available), text
        available |= {result.instruction for each in kernel.programs for result in each.results if result.stored}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [NONE, POLICIES["grid"]], ids=["none", "grid"])
@pytest.mark.parametrize("name", ["lstm_step", "nmt_attn", "speech_fwd", "w2v_step"])
def test_equal_keys_have_equal_code_over_the_buffers_that_correspond(name, policy):
    first = {}
    shared = 0
    for outline, text in kernels(modules.module(name), policy):
        known = first.setdefault(outline.key, (outline, text))
        shared += known[1] is not text
        assert structural_hash.corresponding(known[0], outline, known[1].buffers) == text.buffers
        assert canonical(text.text, text.buffers) == canonical(known[1].text, known[1].buffers)
    assert shared > 2 or policy is not NONE


TWINS = """HloModule twins

ENTRY main {{
  x = f32[4,64] parameter(0)
  y = f32[4,64] parameter(1)
  a = f32[4,64] {first}
  b = f32[4,64] {second}
  ROOT r = (f32[4,64], f32[4,64]) tuple(a, b)
}}
"""
PAIRS = {
    "the same": ("exponential(x)", "exponential(y)", True),
    "arguments that sort the other way round": ("subtract(x, y)", "subtract(y, x)", False),
    "another operation": ("subtract(x, y)", "add(x, y)", False),
    "one buffer twice": ("multiply(x, y)", "multiply(x, x)", False),
    "what lies in other buffers": ("select(p, x, y)", "select(q, x, y)", True),
    "a sign of zero": ("maximum(x, z)", "maximum(x, n)", False),
    "the same constant": ("maximum(x, z)", "maximum(y, z)", True),
}
MORE = """
  zero = f32[] constant(0)
  negative = f32[] constant(-0)
  z = f32[4,64] broadcast(zero), dimensions={}
  n = f32[4,64] broadcast(negative), dimensions={}
  p = pred[4,64] compare(x, y), direction=LT
  q = pred[4,64] compare(x, y), direction=GT"""


@pytest.mark.parametrize("what", PAIRS)
def test_what_tells_kernels_apart(what):
    first, second, same = PAIRS[what]
    text = TWINS.format(first=first, second=second).replace("  a = ", MORE.lstrip("\n") + "\n  a = ")
    module = importer.read(text, "twins.hlo")
    *others, first, second = [each for each, _ in kernels(module, NONE)]
    assert (first.key == second.key) == same
    assert len({each.key for each in others}) == len(others)  # p and q: another direction


def test_a_source_has_equal_kernels_once():
    program = emit.program(
        modules.module("lstm_step"), planner.plan(modules.module("lstm_step"), NONE, LIMITS).plan, fills={}
    )
    entries = program.sources[0].entries
    assert len(entries) < len(program.steps) / 5
    assert sorted({each.entry for each in program.steps}) == sorted(entries)
