"""Texts that are wrong: every one is a line of message with file and line, or a graph that can be planned."""

import random
import re

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Rejection
from fusiond.model.program import problems
from fusiond_stitching.analysis import planner, split_reductions, verify
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.plugin import MODULES

from .policies import MORE

HEAD = """HloModule m
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[6,4] parameter(1)
  i = s32[3,1] parameter(2)
  k = s32[] parameter(3)
  p = pred[4,6] parameter(4)
  z = f32[] constant(0)
  u = f32[3,6] parameter(5)
"""
FIRST = HEAD.count("\n") + 1


def module(line: str) -> str:
    return f"{HEAD}  ROOT r = {line}\n}}\n"


GATHER = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}"
SCATTER = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
GOOD = [
    "f32[4,6] add(x, x)", "f32[4,6] select(p, x, x)", "f32[4,6] clamp(z, x, z)",
    "pred[4,6] compare(x, x), direction=LT", "f32[6,4] transpose(x), dimensions={1,0}", "f32[24] reshape(x)",
    "f32[4,2,6] broadcast(x), dimensions={0,2}", "f32[2,3] slice(x), slice={[0:4:2], [1:4]}",
    "f32[5,8] pad(x, z), padding=1_0x-1_3", "f32[4,12] concatenate(x, x), dimensions={1}",
    "f32[4] reduce(x, z), dimensions={1}, to_apply=sum",
    "f32[4,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", f"f32[3,6] gather(x, i), {GATHER}",
    f"f32[4,6] scatter(x, i, u), {SCATTER}, to_apply=sum",
    "f32[2,6] dynamic-slice(x, k, k), dynamic_slice_sizes={2,6}", "f32[4,6] dynamic-update-slice(x, u, k, k)",
    "f32[4,6] reverse(x), dimensions={0}", "s32[4,6] iota(), iota_dimension=1", "s32[4,6] convert(x)",
]  # fmt: skip
BAD = [
    ("f32[4,6] add(x, y)", "the operand 'y' is [6,4]"),
    ("f32[4,6] add(x, p)", "the operand 'p' is pred"),
    ("f32[4,6] and(x, x)", "whole numbers and pred, not f32"),
    ("f32[4,6] select(x, x, x)", "its first operand is f32; expected pred"),
    ("f32[4,6] clamp(x, z, x)", "the operand 'z' is []"),
    ("pred[4,6] compare(x, x), direction=LX", "direction=LX; it can be"),
    ("f32[4,6] transpose(x), dimensions={1,1}", "is not a permutation"),
    ("f32[25] reshape(x)", "24 elements cannot be [25]"),
    ("f32[4,6,2] broadcast(x), dimensions={0,2}", "does not give [4, 6, 2]"),
    ("f32[4,6] iota(), iota_dimension=2", "iota_dimension=2 of 2"),
    ("f32[2,3] slice(x), slice={[0:4:2], [1:9]}", "[1:9:1] does not fit 6"),
    ("f32[2,3] slice(x)", "the attribute slice is missing"),
    ("f32[5,7] pad(x, z), padding=1_0x-1_3", "gives [5, 8]"),
    ("f32[4,12] concatenate(x, y), dimensions={1}", "the operand 'y' is [6, 4]"),
    ("f32[4,11] concatenate(x, x), dimensions={1}", "do not add up to 11"),
    ("f32[4,12] concatenate(x, x), dimensions={}", "dimensions=[]; expected one"),
    ("f32[6] reduce(x, z), dimensions={1}, to_apply=sum", "gives [4]"),
    ("f32[4] reduce(x, x), dimensions={1}, to_apply=sum", "an init is not a scalar"),
    ("f32[4] reduce(x, z), dimensions={5}, to_apply=sum", "dimensions=[5] do not fit"),
    ("f32[4] reduce(x, z), dimensions={1}, to_apply=nobody", "no computation 'nobody'"),
    ("f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "do not match"),
    (f"f32[3,5] gather(x, i), {GATHER}", "gives [3, 6]"),
    (f"f32[3,6] gather(x, u), {GATHER}", "its indices are f32"),
    (f"f32[4,6] scatter(x, i, y), {SCATTER}, to_apply=sum", "updates of [6, 4]"),
    ("f32[2,6] dynamic-slice(x, k), dynamic_slice_sizes={2,6}", "1 start indices for 2"),
    ("f32[2,6] dynamic-slice(x, k, z), dynamic_slice_sizes={2,6}", "is not a whole number"),
    ("f32[4,6] dynamic-update-slice(x, y, k, k)", "does not fit [4, 6]"),
    ("f32[4,6] add(x, nobody)", "the operand 'nobody' does not exist"),
    ("f32[4,6] parameter(x)", "is not a parameter's number"),
    ("f32[4,6] get-tuple-element(x), index=0", "its operand is not a tuple"),
    ("f23[4,6] parameter(6)", "the type f23 is not known"),
    ("f32[<=4,6] add(x, x)", "is not a shape with fixed sizes"),
    ("(" * 5000 + "f32[4]" + ")" * 5000 + " add(x, x)", "tuples lie in each other more than 100 deep"),
    ("f32[2] constant({1, 2, 3})", "3 values for f32[2]"),
    ("f32[99] constant({...})", "print large constants"),
    ("f32[4,6]{0:T(8)} add(x, x)", "is tiled"),
]


@pytest.mark.parametrize("line", GOOD)
def test_what_is_right_is_read(line):
    found = importer.read(module(line), "m.hlo")
    assert len(found.outputs) == 1


@pytest.mark.parametrize(("line", "said"), BAD)
def test_what_is_wrong_is_told_in_one_line_with_its_place(line, said):
    with pytest.raises(RequestError) as caught:
        importer.read(module(line), "m.hlo")
    message = str(caught.value)
    # Lists are printed with a blank behind the comma where they are Python's.
    assert said.replace(" ", "") in message.replace(" ", "")
    assert len(message.splitlines()) == 1
    assert message.startswith("m.hlo:")
    assert f"m.hlo:{FIRST}:" in message or "six" in said or "arguments" in said


def test_a_computation_of_the_wrong_types_is_told():
    text = module("f32[4] reduce(x, z), dimensions={1}, to_apply=sum").replace("a = f32[] p", "a = s32[] p", 1)
    with pytest.raises(RequestError, match=r"m\.hlo:5: add 'c': the operand 'a' is s32"):
        importer.read(text, "m.hlo")


OPCODES = re.findall(
    r"\S+",
    "add exponential reduce dot gather scatter slice pad concatenate broadcast transpose reshape iota compare select"
    " clamp dynamic-slice tuple get-tuple-element constant parameter call while convert reverse sort bitcast copy",
)


def damaged(lines: list[str], draw: random.Random) -> str:
    """A text with one to three faults of the kind that hands and editors make."""
    lines = list(lines)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(lines))
        line = lines[at]
        fault = draw.randrange(6)
        if fault == 0:
            lines[at] = line[: draw.randrange(len(line) + 1)]
        elif fault == 1 and line:
            place = draw.randrange(len(line))
            lines[at] = line[:place] + draw.choice('(){}[],=0123456789abc-% "/*') + line[place + 1 :]
        elif fault == 2:
            lines.insert(at, draw.choice(lines))
        elif fault == 3:
            lines[at] = re.sub(r"\d+", lambda found: str(draw.choice([found[0], 0, 1, 7, 10**12])), line, count=3)
        elif fault == 4:
            lines[at] = re.sub(r" ([a-z\-]+)\(", lambda _: f" {draw.choice(OPCODES)}(", line, count=1)
        else:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], line
    return "\n".join(lines)


SLOW = pytest.mark.slow


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["lr_step", *(pytest.param(each, marks=SLOW) for each in ("nmt_attn", "speech_fwd", "w2v_step"))]
)
def test_damaged_texts_are_refused_or_planned_and_never_a_traceback(name):
    lines = (MODULES / f"{name}.hlo").read_text().splitlines()
    draw = random.Random(name)
    read = 0
    for _ in range(120):
        try:
            found = importer.read(damaged(lines, draw), "m.hlo")
        except RequestError as problem:
            assert len(str(problem).splitlines()) == 1
            assert str(problem).startswith("m.hlo")
            continue
        read += 1
        fills.read(found, None, lambda node: ("", ""))
        found = split_reductions.reductions(found, 4)
        planned = planner.plan(found, FusionPolicy(**MORE, packing=True, stitch_dots=True))
        if not planned.problems:
            assert verify.problems(found, planned.plan) == ()
            program = emit.program(found, planned.plan)
            assert isinstance(program, Rejection) or problems(program) == ()
    assert read > 3, "too few of them can be read: nothing was learnt"
