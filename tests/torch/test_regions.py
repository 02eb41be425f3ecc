"""Where graphs are cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.torch import regions
from fusiond.torch.graphs import FxGraph, Tensor
from fusiond.torch.regions import FxSegment

from .recorded import Recorder, adam, cross_entropy, perceptron

X = Tensor((4, 6), "f32")


def kinds(segments: Sequence[FxSegment]) -> list[tuple[bool, list[str]]]:
    return [
        (each.fusable, [name.split(".")[1] if "." in name else name for name in each.operators]) for each in segments
    ]


def test_products_part_regions() -> None:
    assert kinds(regions.cut(perceptron())) == [
        (True, ["var_mean", "getitem", "getitem", "add", "rsqrt", "sub", "mul", "mul", "mul"]), (False, ["mm"]),
        (True, ["add", "mul", "erf", "mul", "add", "mul"]), (False, ["mm"]),
    ]  # fmt: skip
    first = regions.cut(perceptron())[0]
    assert (first.inputs, len(first.outputs)) == (("x", "scale"), 2)


def test_an_update_and_a_loss_are_one_region_each() -> None:
    for graph in (adam(), cross_entropy()):
        (segment,) = regions.cut(graph)
        assert segment.fusable
        assert set(segment.outputs) == set(graph.outputs)


def test_what_costs_no_more_to_read_goes_where_it_is_read() -> None:
    """A mask of an input that only the second region reads is computed there."""
    r = Recorder(x=X, w=Tensor((6, 6), "f32"))
    zero = r("full.default", [4, 6], 0.0, dims=(4, 6))
    wide = r("mul.Tensor", "x", 2.0, dims=(4, 6))
    first = r("tanh.default", r("exp.default", "x", dims=(4, 6)), dims=(4, 6))
    product = r("mm.default", first, "w", dims=(4, 6))
    result = r("add.Tensor", r("maximum.default", product, zero, dims=(4, 6)), wide, dims=(4, 6))
    assert kinds(regions.cut(r.graph(result))) == [
        (True, ["exp", "tanh"]), (False, ["mm"]), (True, ["full", "mul", "maximum", "add"]),
    ]  # fmt: skip


def test_what_is_written_into_is_read_before() -> None:
    """A copy into an input stands behind all that was there before it, and before all that is there after it."""
    r = Recorder(x=X, w=Tensor((6, 6), "f32"))
    late = r("mm.default", r("mm.default", "x", "w", dims=(4, 6)), "w", dims=(4, 6))
    y = r("add.Tensor", r("exp.default", late, dims=(4, 6)), "x", dims=(4, 6))
    written = r("copy_.default", "x", r("zeros_like.default", "x", dims=(4, 6)), dims=(4, 6), effect="mutation")
    after = r("neg.default", r("exp.default", "x", dims=(4, 6)), dims=(4, 6))
    order = [node.name for each in regions.cut(r.graph(y, after)) for node in each.nodes]
    assert order.index(y) < order.index(written) < order.index(after)


def test_random_numbers_are_drawn_in_their_order() -> None:
    r = Recorder(x=X, w=Tensor((6, 6), "f32"))
    deep = r("exp.default", r("mm.default", r("exp.default", "x", dims=(4, 6)), "w", dims=(4, 6)), dims=(4, 6))
    one = r("bernoulli.default", deep, dims=(4, 6), effect="random")
    two = r("bernoulli.default", "x", dims=(4, 6), effect="random")
    order = [node.name for each in regions.cut(r.graph(one, two)) for node in each.nodes]
    assert order.index(one) < order.index(two)


_OPERATORS = ("exp.default", "add.Tensor", "mm.default", "view.default", "t.default", "split.Tensor", "sum.dim_IntList",
              "bernoulli.default", "full.default")  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> FxGraph:
    square = Tensor((4, 4), "f32")
    r = Recorder(a=square, b=square)
    names = ["a", "b"]
    for _ in range(draw(st.integers(1, 14))):
        operator = draw(st.sampled_from(_OPERATORS))
        one, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if operator == "split.Tensor":
            half = Tensor((2, 4), "f32")
            parts = r.several(operator, one, 2, 0, results=(half, half))
            names.append(r("cat.default", list(parts), 0, dims=(4, 4)))
        elif operator == "sum.dim_IntList":
            names.append(r("expand.default", r(operator, one, [0], True, dims=(1, 4)), [4, 4], dims=(4, 4)))
        elif operator == "full.default":
            names.append(r(operator, [4, 4], 1.0, dims=(4, 4)))
        else:
            arguments = {"add.Tensor": [one, other], "mm.default": [one, other], "view.default": [one, [4, 4]]}
            effect = "random" if operator.startswith("b") else ""
            names.append(r(operator, *arguments.get(operator, [one]), dims=(4, 4), effect=effect))
    return r.graph(*dict.fromkeys(draw(st.lists(st.sampled_from(names[2:]), min_size=1))))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(graphs())
def test_segments_can_be_computed_in_their_order(graph: FxGraph) -> None:
    """Whatever the graph: each segment reads what is there by then, and gives what others read; nothing is lost."""
    there = set(graph.inputs)
    randoms: list[str] = []
    for segment in regions.cut(graph):
        assert set(segment.inputs) <= there
        inside = set(segment.inputs)
        for node in segment.nodes:
            assert set(node.reads) <= inside
            inside.add(node.name)
            randoms += [node.name] if node.effect else []
        assert set(segment.outputs) <= inside
        there |= set(segment.outputs)
        if segment.fusable:
            assert not any(node.effect or "mm" in node.operator for node in segment.nodes)
            views = [each for each in segment.nodes if each.operator in regions.VIEWS and each.name in segment.outputs]
            assert not views
    assert set(graph.outputs) <= there
    assert randoms == [each.name for each in graph.nodes if each.effect]
