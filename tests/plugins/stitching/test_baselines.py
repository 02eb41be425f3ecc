"""The unfused ways: one kernel per instruction, and XLA's rules of 2018 in outline. What they compute, and that they
keep their rules."""

import pytest

from fusiond_stitching.analysis import planner, policy, verify
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import EXPENSIVE

from .policies import LIMITS
from .test_catalogue_results import module as batch_of
from .test_verify import NAMES, module_of

RULES = {"unfused": policy.unfused(), "xla_rules": policy.xla_rules()}
ADD = """\
add_f32 {
  a.1 = f32[] parameter(0)
  a.2 = f32[] parameter(1)
  ROOT a.3 = f32[] add(a.1, a.2)
}
"""


def kernels(rules, *lines):
    """What each kernel stores."""
    text = "\n".join(["HloModule m", "", ADD, "ENTRY main {", *lines, "}", ""])
    module = importer.read(text, "m.hlo")
    plan = planner.remembered(module, RULES[rules], LIMITS).plan
    assert verify.problems(module, plan) == ()
    return [
        {each.instruction for each in program.results if each.stored} for k in plan.kernels for program in k.programs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lstm_step"])
def test_the_plans_are_sound_and_plain(name, rules):
    module = module_of(name)
    plan = planner.remembered(module, RULES[rules], LIMITS).plan
    assert verify.problems(module, plan) == ()
    for kernel in plan.kernels:
        assert not kernel.cooperative
        assert sum(1 for _ in kernel.programs) == 1
        for program in kernel.programs:
            assert all(each.shared is None for each in program.results), "block composition"
    if rules == "unfused":
        for kernel in plan.kernels:
            (program,) = kernel.programs
            (only,) = [each.instruction for each in program.results]
            assert all(each.stored for each in program.results), only
        computed = {each.instruction for k in plan.kernels for program in k.programs for each in program.results}
        free = {"parameter", "constant", "reshape", "broadcast", "iota"}
        wanted = {each.name for each in module.instructions if each.opcode not in free and not module.library(each)}
        assert wanted <= computed


@pytest.mark.parametrize("name", NAMES)
def test_xlas_rules_do_not_compute_what_is_expensive_twice(name):
    """By evaluating which kernels inline what: an expensive instruction or a reduce is in one of them alone."""
    module = module_of(name)
    plan = planner.remembered(module, RULES["xla_rules"], LIMITS).plan
    seen: dict[str, int] = {}
    for at, kernel in enumerate(plan.kernels):
        stored = {each.instruction for program in kernel.programs for each in program.results if each.stored}
        elsewhere = {
            each.instruction for other in plan.kernels if other is not kernel
            for program in other.programs for each in program.results if each.stored
        }  # fmt: skip
        stack, inside = list(stored), set()
        while stack:
            one = stack.pop()
            if one in inside or one in elsewhere or module.library(module[one]):
                continue
            inside.add(one)
            stack += module[one].operands
        for one in inside:
            if module[one].opcode in EXPENSIVE or module[one].opcode in ("reduce", "scatter"):
                assert seen.setdefault(one, at) == at, f"{one} is in two kernels"
            if module[one].opcode in ("reduce", "scatter"):
                assert one in stored, f"{one} is not a root"


def test_a_producer_goes_into_its_only_reader():
    lines = ("x = f32[64,32] parameter(0)", "e = f32[64,32] exponential(x)", "n = f32[64,32] negate(e)",
             "ROOT t = f32[64,32] tanh(n)")  # fmt: skip
    assert kernels("xla_rules", *lines) == [{"t"}]
    assert kernels("unfused", *lines) == [{"e"}, {"n"}, {"t"}]


TWO_READERS = (
    "x = f32[64,32] parameter(0)", "zero = f32[] constant(0)", "p = f32[64,32] OPCODE(x)",
    "s = f32[64] reduce(p, zero), dimensions={1}, to_apply=add_f32", "t = f32[32] reduce(p, zero), dimensions={0}, "
    "to_apply=add_f32", "ROOT r = (f32[64], f32[32]) tuple(s, t)",
)  # fmt: skip


def test_a_cheap_producer_is_computed_again_and_an_expensive_one_is_not():
    cheap = [line.replace("OPCODE", "negate") for line in TWO_READERS]
    expensive = [line.replace("OPCODE", "exponential") for line in TWO_READERS]
    assert sorted(map(sorted, kernels("xla_rules", *cheap))) == [["s"], ["t"]]
    assert kernels("xla_rules", *expensive)[0] == {"p"}
    assert len(kernels("xla_rules", *expensive)) == 3


def test_a_reduce_is_a_root_and_never_a_producer():
    lines = ("x = f32[64,32] parameter(0)", "zero = f32[] constant(0)", "e = f32[64,32] exponential(x)",
             "s = f32[64] reduce(e, zero), dimensions={1}, to_apply=add_f32", "ROOT l = f32[64] log(s)")  # fmt: skip
    assert kernels("xla_rules", *lines) == [{"s"}, {"l"}]


def test_siblings_that_read_one_buffer_share_a_kernel():
    """Multi-output fusion: equal shapes, a common buffer, and nothing between them."""
    reduces = (
        "x = f32[64,32] parameter(0)", "y = f32[64,32] parameter(1)", "zero = f32[] constant(0)",
        "a = f32[64,32] multiply(x, x)", "b = f32[64,32] multiply(x, y)",
        "s = f32[64] reduce(a, zero), dimensions={1}, to_apply=add_f32",
        "t = f32[64] reduce(b, zero), dimensions={1}, to_apply=add_f32",
        "ROOT r = (f32[64], f32[64]) tuple(s, t)",
    )  # fmt: skip
    assert kernels("xla_rules", *reduces) == [{"s", "t"}]
    apart = [line.replace("multiply(x, y)", "multiply(y, y)") for line in reduces]
    assert sorted(map(sorted, kernels("xla_rules", *apart))) == [["s"], ["t"]]
    loops = ("x = f32[64,32] parameter(0)", "a = f32[64,32] tanh(x)", "b = f32[64,32] sine(x)",
             "ROOT r = (f32[64,32], f32[64,32]) tuple(a, b)")  # fmt: skip
    assert kernels("xla_rules", *loops) == [{"a", "b"}]


def test_nothing_is_fused_with_a_library_call():
    lines = ("x = f32[16,16] parameter(0)", "a = f32[16,16] tanh(x)",
             "d = f32[16,16] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
             "ROOT b = f32[16,16] negate(d)")  # fmt: skip
    for rules in RULES:
        assert kernels(rules, *lines) == [{"a"}, {"b"}]


FAST = [("nmt_fig3", "unfused"), ("nmt_fig3", "xla_rules")]
SLOW = [
    ("w2v_step", "unfused"),
    ("lr_step", "unfused"),
    *((name, "xla_rules") for name in NAMES if name not in ("nmt_fig3", "bilstm_step", "speech_fwd")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rules"), [*FAST, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
@pytest.mark.sampled(8)
def test_they_compute_what_xla_computes(name, rules, runner):
    here = batch_of(name)
    here.check(runner, planner.remembered(here.module, RULES[rules], LIMITS).plan)
