"""Deep fusion (section 3.2): what joins, what does not and why, and that launches can always be ordered."""

import dataclasses

import pytest

from fusiond_stitching.analysis import fusion, planner, policy
from fusiond_stitching.analysis.deep_fusion import fuse
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer

from .test_verify import NAMES, POLICIES, module_of

ADD = """\
add_f32 {
  a.1 = f32[] parameter(0)
  a.2 = f32[] parameter(1)
  ROOT a.3 = f32[] add(a.1, a.2)
}
"""
BEYOND = FusionPolicy(layers=False, merge=True, middle=True, packing=True, warp=True, spill=True)


def module(*lines):
    return importer.read("\n".join(["HloModule m", "", ADD, "ENTRY main {", *lines, "}", ""]), "m.hlo")


def groups(module_, rules=BEYOND, **more):
    return [set(each.members) for each in fuse(module_, rules, **more).groups]


SOFTMAX = (
    "x = f32[64,32] parameter(0)", "zero = f32[] constant(0)", "e = f32[64,32] exponential(x)",
    "s = f32[64] reduce(e, zero), dimensions={1}, to_apply=add_f32", "b = f32[64,32] broadcast(s), dimensions={0}",
    "ROOT d = f32[64,32] divide(e, b)",
)  # fmt: skip
BOTH_AXES = (
    "x = f32[512,1024] parameter(0)", "zero = f32[] constant(0)", "e = f32[512,1024] exponential(x)",
    "s = f32[1024] reduce(e, zero), dimensions={0}, to_apply=add_f32",
    "b = f32[512,1024] broadcast(s), dimensions={1}", "n = f32[512,1024] divide(e, b)",
    "ROOT t = f32[512] reduce(n, zero), dimensions={1}, to_apply=add_f32",
)  # fmt: skip


def test_a_row_reduction_and_what_reads_it_are_one_group():
    assert groups(module(*SOFTMAX)) == [{"e", "s", "d"}]
    assert groups(module(*SOFTMAX), FusionPolicy()) == [{"e", "s", "d"}]


def test_a_dependence_across_blocks_ends_a_group():
    """Sums over columns, then over rows: no schedule gives a block all it needs. The reason is kept."""
    found = fuse(module(*BOTH_AXES), BEYOND)
    owner = {name: at for at, group in enumerate(found.groups) for name in group.members}
    assert owner["s"] != owner["t"]
    assert found.groups[owner["s"]].place > found.groups[owner["t"]].place
    assert "s" in found.reasons
    assert "no schedule" in found.reasons["s"]


def test_with_barriers_it_is_a_phase_of_the_same_launch():
    plain = planner.plan(module(*BOTH_AXES), BEYOND)
    barred = planner.plan(module(*BOTH_AXES), dataclasses.replace(BEYOND, barriers=True))
    assert len(plain.plan.kernels) == 2
    (kernel,) = barred.plan.kernels
    assert kernel.cooperative
    assert len(kernel.phases) == 2


def test_a_small_tensor_is_left_to_one_block():
    small = [line.replace("512,1024", "8,16").replace("[1024]", "[16]").replace("[512]", "[8]") for line in BOTH_AXES]
    (group,) = groups(module(*small))
    assert {"s", "t"} <= group


def test_nothing_is_fused_across_a_library_call():
    found = fuse(
        module("x = f32[16,16] parameter(0)", "a = f32[16,16] tanh(x)",
               "d = f32[16,16] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
               "ROOT b = f32[16,16] add(d, a)"),
        BEYOND,
    )  # fmt: skip
    assert [set(each.members) for each in found.groups] == [{"a"}, {"b"}]
    assert found.groups[0].place > found.calls["d"] >= found.groups[1].place


def test_a_layer_of_library_calls_parts_what_is_not_related_too():
    """Section 3.2: nothing is fused across the layer; a policy may look at dependences alone."""
    lines = (
        "x = f32[16,16] parameter(0)", "y = f32[16,16] parameter(1)",
        "d = f32[16,16] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "e = f32[16,16] tanh(d)",
        "t = f32[16,16] tanh(y)", "u = f32[16,16] sine(t)", "v = f32[16,16] cosine(u)",
        "ROOT r = (f32[16,16], f32[16,16]) tuple(e, v)",
    )  # fmt: skip
    assert len(groups(module(*lines), FusionPolicy())) > len(
        groups(module(*lines), dataclasses.replace(FusionPolicy(), layers=False))
    )


def test_what_is_set_apart_does_not_join():
    found = fuse(module(*SOFTMAX), BEYOND, frozenset({"e"}))
    assert [set(each.members) for each in found.groups] == [{"e"}, {"s", "d"}]
    assert "shared memory" in found.reasons["e"]


SIBLINGS = (
    "x = f32[64,32] parameter(0)", "zero = f32[] constant(0)", "e = f32[64,32] exponential(x)",
    "s = f32[64] reduce(e, zero), dimensions={1}, to_apply=add_f32", "t = f32[64,32] tanh(e)",
    "ROOT r = (f32[64], f32[64,32]) tuple(s, t)",
)  # fmt: skip


def test_groups_that_read_one_producer_merge_or_it_is_given_up():
    assert groups(module(*SIBLINGS)) == [{"e", "s", "t"}]
    parted = fuse(module(*SIBLINGS), dataclasses.replace(BEYOND, merge=False))
    assert {"e"} in [set(each.members) for each in parted.groups]
    assert "several groups" in parted.reasons["e"]


def test_elementwise_fusion_inside_a_layer_stops_at_the_footprint():
    """Section 3.2: element-wise work of one layer with equal shapes, while little is read and written."""
    lines = [f"p{at} = f32[32,32] parameter({at})" for at in range(6)]
    lines += [f"t{at} = f32[32,32] tanh(p{at})" for at in range(6)]
    shapes, names = ", ".join(["f32[32,32]"] * 6), ", ".join(f"t{at}" for at in range(6))
    whole = module(*lines, f"ROOT r = ({shapes}) tuple({names})")
    each = 2 * 32 * 32 * 4
    for count in (1, 2, 3, 6):
        found = groups(whole, dataclasses.replace(FusionPolicy(), footprint_bytes=count * each))
        assert len(found) == 6 // count
        assert max(map(len, found)) == count
    assert len(groups(whole, dataclasses.replace(FusionPolicy(), footprint_bytes=0))) == 6


def test_batched_dots_are_fused_where_it_is_asked_for():
    lines = (
        "x = f32[8,16,16] parameter(0)", "e = f32[8,16,16] exponential(x)",
        "ROOT d = f32[8,16,16] dot(e, x), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}",
    )  # fmt: skip
    assert groups(module(*lines)) == [{"e"}]
    stitched = dataclasses.replace(BEYOND, stitch_dots=True)
    assert groups(module(*lines), stitched) == [{"e", "d"}]
    assert len(planner.plan(module(*lines), stitched).plan.kernels) == 1
    plain = [line.replace("lhs_batch_dims={0}, rhs_batch_dims={0}, ", "").replace("8,16,16", "16,16") for line in lines]
    plain[-1] = plain[-1].replace("lhs_contracting_dims={2}", "lhs_contracting_dims={1}").replace(
        "rhs_contracting_dims={1}", "rhs_contracting_dims={0}"
    )  # fmt: skip
    assert groups(module(*plain), stitched) == [{"e"}], "a dot without batch stays with the library"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param(name, rules, marks=() if "lstm" not in name or rules == "barriers" else pytest.mark.slow)
        for name in NAMES
        for rules in (*POLICIES, "unfused", "xla_rules")
    ],
)
def test_groups_cover_a_module_once_and_can_be_ordered(name, rules):
    """Every member in one group; what a group reads comes from a later-placed one, so there is no cycle; every
    surviving candidate gives every member at least what its readers in the group need."""
    chosen = POLICIES.get(rules) or getattr(policy, rules)()
    graph = module_of(name)
    found = fuse(graph, chosen)
    members = [each for group in found.groups for each in group.members]
    assert len(members) == len(set(members))
    owner = {each: group for group in found.groups for each in group.members}
    is_member = fusion.members_of(graph, chosen)
    wanted = {each.name for each in graph.instructions if is_member(each)}
    assert set(members) <= wanted
    if not chosen.recompute and rules != "xla_rules":
        assert set(members) == wanted
    assert {output for output in graph.outputs if not graph.library(graph[output])} <= set(members)
    for group in found.groups:
        for each in group.members:
            for source, _ in sources(graph, each, owner):
                if source in owner and owner[source] is not group:
                    assert owner[source].place > group.place
                if source in found.calls:
                    assert found.calls[source] >= group.place
    for group in found.groups:
        assert group.candidates
        assert group.root in group.members


def sources(graph, name, owner):
    """What an instruction reads, through what is inlined."""
    stack, seen = list(graph[name].operands), set()
    while stack:
        each = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in owner or graph.library(graph[each]):
            yield each, name
        else:
            stack += graph[each].operands
