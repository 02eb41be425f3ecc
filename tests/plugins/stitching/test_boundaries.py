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

from fusiond.program import Launch, Pointer, Program, Role, problems
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching.analysis import planner, split_reductions, traffic, verify
from fusiond_stitching.analysis.plan import LibraryCall, StitchedKernel, StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.plugin import MODULES
from fusiond_stitching.strategy import Stitching

from . import graphs, handmade, oracle
from .checking import Batch
from .policies import LIMITS, POLICIES
from .test_random_graphs import POLICY, SLOW, Drawn, inputs
from .test_strategy import H100, job, registry

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")

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
        assert batch.differences(compared, named) == []
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
