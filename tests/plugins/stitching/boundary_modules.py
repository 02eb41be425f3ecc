"""Modules with boundaries, side by side as tests need them, against XLA's results in place of the stand-ins."""

from __future__ import annotations

import dataclasses
import functools
import re

import numpy as np

from fusiond.model.program import Launch, Pointer, Program, Role
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import oracle
from .checking import Batch
from .policies import LIMITS, POLICIES

APPLIED = """
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}

less2 { a = f32[] parameter(0)
  b = f32[] parameter(1)
  d = s32[] parameter(2)
  e = s32[] parameter(3)
  ROOT c = pred[] compare(a, b), direction=LT
}

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

round { s = (s32[], f32[5,7], f32[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[5,7] get-tuple-element(s), index=1
  w = f32[7] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  wide = f32[5,7] broadcast(w), dimensions={1}
  sum = f32[5,7] add(v, wide)
  u = f32[5,7] tanh(sum)
  ROOT t = (s32[], f32[5,7], f32[7]) tuple(j, u, w)
}

again { s = (s32[], f32[5,7], f32[7]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

double { a = f32[9] parameter(0)
  ROOT b = f32[9] add(a, a)
}

root { a = f32[9] parameter(0)
  m = f32[9] abs(a)
  zero = f32[] constant(0)
  w = f32[9] reduce-window(m, zero), window={size=3 pad=1_1}, to_apply=add
  ROOT b = f32[9] sqrt(w)
}
"""


CASES = {
    "before and behind": """
  a_x = f32[6,33] parameter(#)
  a_zero = f32[] constant(0)
  a_e = f32[6,33] exponential(a_x)
  a_s = f32[6] reduce(a_e, a_zero), dimensions={1}, to_apply=add
  a_w = f32[6,33] broadcast(a_s), dimensions={0}
  a_p = f32[6,33] divide(a_e, a_w)
  a_sorted = f32[6,33] sort(a_p), dimensions={1}, to_apply=less
  a_t = f32[6,33] tanh(a_sorted)
  a_m = f32[6] reduce(a_t, a_zero), dimensions={1}, to_apply=add
  out a_t a_m
""",
    "a tuple, and its indices": """
  b_x = f32[17] parameter(#)
  b_table = f32[17,3] parameter(#)
  b_n = f32[17] negate(b_x)
  b_i = s32[17] iota(), iota_dimension=0
  b_sorted = (f32[17], s32[17]) sort(b_n, b_i), dimensions={0}, to_apply=less2
  b_keys = f32[17] get-tuple-element(b_sorted), index=0
  b_at = s32[17] get-tuple-element(b_sorted), index=1
  b_rows = f32[17,3] gather(b_table, b_at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
index_vector_dim=1, slice_sizes={1,3}
  b_wide = f32[17,3] broadcast(b_keys), dimensions={0}
  b_r = f32[17,3] multiply(b_rows, b_wide)
  out b_r
""",
    "a convolution": """
  c_x = f32[2,3,8,8] parameter(#)
  c_k = f32[4,3,3,3] parameter(#)
  c_a = f32[2,3,8,8] tanh(c_x)
  c_b = f32[4,3,3,3] abs(c_k)
  c_y = f32[2,4,8,8] convolution(c_a, c_b), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01
  c_zero = f32[] constant(0)
  c_all = f32[2,4,8,8] broadcast(c_zero), dimensions={}
  c_r = f32[2,4,8,8] maximum(c_y, c_all)
  out c_r
""",
    "a loop, with state that stays": """
  d_x = f32[5,7] parameter(#)
  d_w = f32[7] parameter(#)
  d_e = f32[5,7] exponential(d_x)
  d_c = f32[7] cosine(d_w)
  d_first = f32[1] slice(d_w), slice={[0:1]}
  d_one = f32[] reshape(d_first)
  d_i = s32[] convert(d_one)
  d_start = (s32[], f32[5,7], f32[7]) tuple(d_i, d_e, d_c)
  d_run = (s32[], f32[5,7], f32[7]) while(d_start), condition=again, body=round
  d_last = f32[5,7] get-tuple-element(d_run), index=1
  d_kept = f32[7] get-tuple-element(d_run), index=2
  d_wide = f32[5,7] broadcast(d_kept), dimensions={1}
  d_r = f32[5,7] subtract(d_last, d_wide)
  out d_r
""",
    "a conditional": """
  e_x = f32[9] parameter(#)
  e_zero = f32[] constant(0)
  e_s = f32[] reduce(e_x, e_zero), dimensions={0}, to_apply=add
  e_test = pred[] compare(e_s, e_zero), direction=GT
  e_a = f32[9] sine(e_x)
  e_y = f32[9] conditional(e_test, e_a, e_x), true_computation=double, false_computation=root
  e_r = f32[9] multiply(e_y, e_a)
  out e_r
""",
    "two in a row": """
  f_x = f32[7,11] parameter(#)
  f_e = f32[7,11] exponential(f_x)
  f_one = f32[7,11] sort(f_e), dimensions={1}, to_apply=less
  f_two = f32[7,11] sort(f_one), dimensions={0}, to_apply=less
  f_r = f32[7,11] log(f_two)
  out f_r
""",
    "nobody reads it": """
  g_x = f32[7] parameter(#)
  g_e = f32[7] exponential(g_x)
  g_lost = f32[7] sort(g_e), dimensions={0}, to_apply=less
  g_r = f32[7] negate(g_x)
  out g_r
""",
    "two halves of a group": """
  h_x = f32[6,20] parameter(#)
  h_a = f32[6,20] exponential(h_x)
  h_b = f32[6,20] sort(h_a), dimensions={1}, to_apply=less
  h_c = f32[6,20] add(h_a, h_b)
  h_d = f32[6,20] sort(h_c), dimensions={0}, to_apply=less
  h_e = f32[6,20] multiply(h_c, h_a)
  h_f = f32[6,20] subtract(h_e, h_d)
  h_zero = f32[] constant(0)
  h_g = f32[6] reduce(h_f, h_zero), dimensions={1}, to_apply=add
  h_h = f32[6] reduce(h_a, h_zero), dimensions={1}, to_apply=add
  out h_f h_g h_h
""",
    "between inputs, outputs and dots": """
  i_x = f32[8,9] parameter(#)
  i_y = f32[9,8] parameter(#)
  i_dot = f32[8,8] dot(i_x, i_y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  i_sorted = f32[8,8] sort(i_dot), dimensions={1}, to_apply=less
  i_again = f32[8,8] dot(i_sorted, i_dot), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  i_first = f32[8,9] sort(i_x), dimensions={1}, to_apply=less
  i_n = f32[8,9] negate(i_first)
  i_last = f32[8,9] sort(i_n), dimensions={1}, to_apply=less
  i_flat = f32[72] reshape(i_n)
  i_end = f32[72] sort(i_flat), dimensions={0}, to_apply=less
  i_r = f32[72] abs(i_end)
  out i_again i_n i_last i_r
""",
    "types without buffers": """
  j_x = f32[4,6] parameter(#)
  j_e = f32[4,6] exponential(j_x)
  j_z = c64[4,4] fft(j_e), fft_type=RFFT, fft_length={6}
  j_a = f32[4,4] abs(j_z)
  j_r = f32[4,4] sqrt(j_a)
  out j_r
""",
    "a result with a layout": """
  k_x = f32[5,5] parameter(#)
  k_e = f32[5,5] exponential(k_x)
  k_t = f32[5,5] transpose(k_e), dimensions={1,0}
  k_p = f32[5,5] dot(k_e, k_t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k_call = (f32[5,5]{0,1}, s32[]) custom-call(k_p), custom_call_target="lapack_spotrf_ffi", \
operand_layout_constraints={f32[5,5]{0,1}}, output_to_operand_aliasing={{0}: (0, {})}, \
api_version=API_VERSION_TYPED_FFI, backend_config={uplo = 76 : ui8}
  k_l = f32[5,5]{0,1} get-tuple-element(k_call), index=0
  k_info = s32[] get-tuple-element(k_call), index=1
  k_none = s32[] constant(0)
  k_good = pred[] compare(k_info, k_none), direction=EQ
  k_all = pred[5,5] broadcast(k_good), dimensions={}
  k_nan = f32[] constant(nan)
  k_bad = f32[5,5] broadcast(k_nan), dimensions={}
  k_r = f32[5,5] select(k_all, k_l, k_bad)
  out k_r
""",
}


def text_of(*names: str) -> str:
    """The cases side by side in one module."""
    lines, results, number = [], [], 0
    for name in names:
        for line in CASES[name].strip("\n").splitlines():
            if line.startswith("  out "):
                results += line.split()[1:]
                continue
            if "parameter(#)" in line:
                line, number = line.replace("#", str(number)), number + 1
            lines.append(line)
    return "\n".join(["HloModule boundaries", APPLIED, "ENTRY main {", *lines, root_of(lines, results), "}", ""])


SHAPE = re.compile(r"^\s*(?:ROOT )?([\w~.]+) = ((?:\([^=]*?\)|\S+)) [a-z][\w\-]*\(")


def root_of(lines: list[str], names: list[str], tuple_name: str = "results") -> str:
    """A tuple of named values; `x.1` is member 1 of the tuple x."""
    shapes = {found[1]: found[2] for line in lines if (found := SHAPE.match(line))}
    before, made, types = [], [], []
    for name in names:
        whole, _, member = name.partition(".")
        if member:
            members = re.findall(r"\w+\[[\d,]*\](?:\{[\d,]*\})?", shapes[whole])
            own = f"member_{whole}_{member}"
            before.append(f"  {own} = {members[int(member)]} get-tuple-element({whole}), index={member}")
            made.append(own)
            types.append(members[int(member)])
        else:
            made.append(name)
            types.append(shapes[name])
    return "\n".join([*before, f"  ROOT {tuple_name} = ({', '.join(types)}) tuple({', '.join(made)})"])


def values_of(text: str, names: list[str], given: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """What XLA makes of some of the entry's values."""
    head, entry = text.split("ENTRY main {\n")
    lines = [line.replace("ROOT ", "") for line in entry.splitlines() if line.strip() not in ("}", "")]
    probed = "\n".join([f"{head}ENTRY main {{", *lines, root_of(lines, names, "probed"), "}", ""])
    return oracle.run(probed, given)


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A module with boundaries, its inputs, XLA's results in place of the stand-ins, and what must come out."""

    module: HloModule
    given: dict[str, np.ndarray]
    wanted: dict[str, np.ndarray]

    @staticmethod
    def of(text: str, seed: int = 3) -> Cut:
        module = importer.read(text, "boundaries.hlo")
        arrays = [np.random.default_rng(seed).normal(size=module[each].dims) for each in module.parameters]
        return Cut.made(text, module, tuple(each.astype(np.float32) for each in arrays))

    @staticmethod
    def made(text: str, module: HloModule, arrays: tuple[np.ndarray, ...]) -> Cut:
        names = list(dict.fromkeys([*module.stand_ins, *module.computed]))
        found = dict(zip(names, values_of(text, [source(each) for each in names], arrays), strict=True))
        given = {module.buffer_of(name): array for name, array in zip(module.parameters, arrays, strict=True)}
        given |= {buffer: found[name] for name, buffer in module.stand_ins.items()}
        return Cut(module, given, {buffer: found[name] for name, buffer in module.computed.items()})

    def check(self, runner, plan: StitchingPlan, seed: int = 0) -> Program:
        assert verify.problems(self.module, plan) == ()
        program = emit.program(self.module, plan)
        assert isinstance(program, Program), program
        outputs = {each.name for each in program.buffers if each.role is Role.OUTPUT}
        assert outputs == set(self.wanted)
        batch = Batch("", self.module, (), tuple(self.wanted), tuple(self.wanted.values()))
        got = runner.run(program, self.given, seed=seed)
        named = {f"out_{place}": got[name] for place, name in enumerate(self.wanted)}
        renamed = [
            dataclasses.replace(program.buffer(name), name=f"out_{place}") for place, name in enumerate(self.wanted)
        ]
        rest = [each for each in program.buffers if each.role is not Role.OUTPUT]
        compared = dataclasses.replace(program, buffers=(*rest, *renamed))
        found = batch.differences(compared, named)
        assert not found, "\n".join(found)
        return program


def source(name: str) -> str:
    """A value's name in the text: without what squeezing and copying have added."""
    return name.split("~")[0]


@functools.cache
def module_of(name: str) -> HloModule:
    return importer.read(text_of(name), "boundaries.hlo")


def planned(module: HloModule, policy: str) -> StitchingPlan:
    found = planner.plan(module, POLICIES[policy], LIMITS)
    assert found.problems == ()
    return found.plan


def unsound(program: Program) -> list[str]:
    """What is read before it is there, when the seams are done in their order and where they say."""
    found, seams = [], list(program.seams)
    known = {each.name for each in program.buffers if each.name.startswith("in_")}
    stand_ins = {each.stand_in: each for each in seams if each.stand_in}
    for step in [*program.steps, None]:
        name = step.name if step is not None else None
        for seam in [each for each in seams if each.stand_in is None and each.before == name]:
            found += [f"{seam.name} reads {each} too early" for each in seam.reads if each not in known]
            known |= set(seam.writes)
        if name in stand_ins:
            found += [f"{name} reads {each} too early" for each in stand_ins[name].reads if each not in known]
            known |= set(stand_ins[name].writes)
        elif isinstance(step, Launch):
            buffers = {each.buffer for each in step.arguments if isinstance(each, Pointer)}
            found += [f"{name} reads {each} too early" for each in buffers
                      if each.startswith("boundary_") and each not in known]  # fmt: skip
            known |= buffers
    return found
