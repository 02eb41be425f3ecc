"""Weights, cuts and partitions: the paper's own example, brute force over all partitions, files in any order."""

import itertools
from collections.abc import Iterator

import pytest

from fusiond.model.inputs import documents
from fusiond_mincut import plugin
from fusiond_mincut.analysis import blocks, candidates, exact, legality, partition, partitions_to_measure
from fusiond_mincut.analysis.benefit import PAPER, PUBLISHED_CODE, BenefitModel
from fusiond_mincut.frontend import parser
from fusiond_mincut.frontend.graph import Pipeline

from .generated import pipeline as generated


def catalogue(name: str) -> Pipeline:
    path = plugin.PIPELINES / f"{name}.yaml"
    return parser.read(documents.parse(path.read_text(), str(path)))


def described(text: str) -> Pipeline:
    return parser.read(documents.parse(text, "made.yaml"))


# --- the paper's example --------------------------------------------------------------------------------


def test_harris_is_weighed_as_in_the_paper() -> None:
    weighed = {(each.producer, each.consumer): each for each in legality.weighed(catalogue("harris"), PAPER)}
    assert len(weighed) == 10
    legal = {edge: each.weight for edge, each in weighed.items() if each.scenario != "illegal"}
    assert legal == {("sx", "gx"): 328, ("sy", "gy"): 328, ("sxy", "gxy"): 256}
    assert {each.weight for each in weighed.values() if each.scenario == "illegal"} == {PAPER.epsilon}


def test_harris_is_cut_as_in_the_paper() -> None:
    """Figure 3: first {sy, gy} along two edges of epsilon; dy goes because sy reads it."""
    found = partition.planned(catalogue("harris"), PAPER)
    steps = [(step.weight / PAPER.epsilon, step.sides[1], step.reason.rule) for step in found.cuts]
    assert steps == [
        (2, ("sy", "gy"), "shared_memory"),
        (1, ("dy",), "external_output"),
        (2, ("hc",), "external_input"),
        (1, ("sxy", "gxy"), "external_output"),
        (1, ("sx", "gx"), "external_output"),
    ]
    blocks_ = {each.kernels for each in found.partition.blocks}
    assert blocks_ == {("sx", "gx"), ("sy", "gy"), ("sxy", "gxy"), ("dx",), ("dy",), ("hc",)}
    assert found.benefit == 328 + 328 + 256


@pytest.mark.parametrize("model", [PAPER, PUBLISHED_CODE], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("name", "expected", "pairwise"),
    [
        ("harris", "dx|dy|sx+gx|sxy+gxy|sy+gy|hc", "dx|dy|sx+gx|sxy|gxy|sy+gy|hc"),
        ("shitomasi", "dx|dy|sx+gx|sxy+gxy|sy+gy|st", "dx|dy|sx+gx|sxy|gxy|sy+gy|st"),
        ("sobel", "x_row+x_column|y_row+y_column|magnitude", "x_row|x_column|y_row|y_column|magnitude"),
        ("unsharp", "gauss+sharp+ratio+unsharp", "gauss|sharp|ratio|unsharp"),
        ("enhance", "mean+gain+corrected", "mean+gain|corrected"),
        ("night", "atrous0|atrous1+scoto", "atrous0|atrous1+scoto"),
    ],
)
def test_the_six_applications(name: str, expected: str, pairwise: str, model: BenefitModel) -> None:
    """What section V says of them, and what Table I says of the earlier method (1.00 where it fuses nothing)."""
    pipeline = catalogue(name)
    assert str(partition.planned(pipeline, model).partition) == expected
    assert str(partition.basic(pipeline, model)) == pairwise


def test_the_gap_of_algorithm_1_is_seen() -> None:
    """Sobel: two point-based edges are illegal as pairs, so the cuts leave them; the optimum takes them."""
    best = partitions_to_measure.optimum(catalogue("sobel"), PAPER)
    assert best is not None
    assert str(best.partition) == "x_row|y_row|x_column+y_column+magnitude"
    assert (best.benefit, best.complete) == (800, True)
    assert partition.planned(catalogue("sobel"), PAPER).benefit == 200 - 108 + 200 - 144


@pytest.mark.parametrize(
    ("rule", "name", "becomes"),
    [
        ("_no_benefit", "night", "atrous0+atrous1+scoto"),
        ("_shared_memory", "harris", "dx+dy+sx+gx+sxy+gxy+sy+gy+hc"),
        ("_external_output", "harris", None),
        ("_external_input", "sobel", None),
    ],
)
def test_without_a_rule_the_paper_is_not_reproduced(
    monkeypatch: pytest.MonkeyPatch, rule: str, name: str, becomes: str | None
) -> None:
    """Mutants: every rule is needed for the paper's partitions."""
    pipeline = catalogue(name)
    before = str(partition.planned(pipeline, PAPER).partition)
    monkeypatch.setattr(legality, rule, lambda *arguments: iter(()))
    after = str(partition.planned(pipeline, PAPER).partition)
    assert after != before
    assert becomes in (None, after)


# --- rules ----------------------------------------------------------------------------------------------


def rules(text: str, kernels: str) -> list[str]:
    return [each.rule for each in legality.paper(described(text), kernels.split(), PAPER)]


HEAD = "pipeline: p\nimage: {width: 32, height: 32, dtype: int32}\ninputs: [src, other]\n"


@pytest.mark.parametrize(
    ("rest", "kernels", "expected"),
    [
        ("outputs: [a, b]\nkernels:\n  a: {pattern: point, reads: [src], body: src + 1}\n"
         "  b: {pattern: point, reads: [a], body: a + 1}\n", "a b", ["external_output"]),
        ("outputs: [b]\nkernels:\n  a: {pattern: point, reads: [src], body: src + 1}\n"
         "  b: {pattern: point, reads: [a, other], body: a + other}\n", "a b", ["external_input"]),
        ("outputs: [b]\nkernels:\n  a: {pattern: point, reads: [src], body: src + 1}\n"
         "  b: {pattern: point, reads: [a, src], body: a + src}\n", "a b", []),
        ("outputs: [b]\nkernels:\n  a: {pattern: global, reads: [src], body: src, reduce: sum}\n"
         "  b: {pattern: point, reads: [a, src], body: src - a}\n", "a b", ["global", "external_input"]),
        ("outputs: [b]\nkernels:\n  a: {pattern: point, reads: [src], body: src, channels: 3}\n"
         "  b: {pattern: point, reads: [a], body: a.r}\n", "a b", []),  # three channels, one
        ("outputs: [a, b]\nkernels:\n  a: {pattern: point, reads: [src], body: src + 1}\n"
         "  b: {pattern: point, reads: [src], body: src - 1}\n", "a b", ["external_output", "connected"]),
    ],
)  # fmt: skip
def test_rules_of_the_paper(rest: str, kernels: str, expected: list[str]) -> None:
    found = rules((HEAD if "other" in rest else HEAD.replace(", other", "")) + rest, kernels)
    if "global" in expected:
        assert "global" in found
    else:
        assert found == expected


def test_equation_2_counts_bytes() -> None:
    harris = catalogue("harris")
    tile = 4 * 34 * 6
    assert legality.tile_bytes(harris, ["gx"]) == legality.tile_bytes(harris, ["sx", "gx"]) == tile
    assert legality.tile_bytes(harris, ["sx"]) == 0
    assert legality.tile_bytes(harris, ["sxy", "gxy"]) == 2 * tile
    assert legality.tile_bytes(harris, ["dx", "sx", "gx"]) == 4 * 36 * 8  # the sum of the radii
    assert legality.tile_bytes(catalogue("night"), ["atrous0"]) == 3 * 34 * 6
    assert legality.tile_bytes(catalogue("sobel"), ["x_row", "x_column"]) == 4 * 34 * 6


def test_what_the_generated_kernels_can_do_is_more() -> None:
    harris = catalogue("harris")
    assert list(legality.general(harris, [each.name for each in harris.kernels])) == []
    assert [each.rule for each in legality.general(harris, ["sx", "sy"])] == ["connected"]
    (refused,) = legality.general(harris, ["dx", "sx", "gx", "gxy", "hc"])
    assert refused.rule == "convex"
    assert refused.detail == "gxy waits for sxy, which is outside and waits for dx, which is inside"


# --- brute force ----------------------------------------------------------------------------------------


def set_partitions(names: list[str]) -> Iterator[list[list[str]]]:
    if not names:
        yield []
        return
    for rest in set_partitions(names[1:]):
        yield [[names[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [names[0], *rest[index]], *rest[index + 1 :]]


def acyclic(pipeline: Pipeline, groups: list[list[str]]) -> bool:
    try:
        blocks.partition(pipeline, groups)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", range(14))
def test_the_optimum_is_the_best_of_all_partitions(seed: int) -> None:
    pipeline = generated(seed, 6 + seed % 3)
    names = [each.name for each in pipeline.kernels]
    best = 0.0
    legal = {(name,): 0.0 for name in names}
    for size in range(2, len(names) + 1):
        for block in itertools.combinations(names, size):
            if legality.refusal(pipeline, block, PAPER) is None:
                legal[block] = legality.block_gain(pipeline, block, PAPER)
    for groups in set_partitions(names):
        tuples = [tuple(sorted(group, key=pipeline.position.__getitem__)) for group in groups]
        if all(each in legal for each in tuples) and acyclic(pipeline, groups):
            best = max(best, sum(legal[each] for each in tuples))
    found = candidates.paper(pipeline, PAPER)
    assert found.complete
    assert set(found.blocks) == {each for each in legal if len(each) > 1}
    optimum = partitions_to_measure.optimum(pipeline, PAPER)
    assert optimum is not None
    assert optimum.benefit == best
    planned = partition.planned(pipeline, PAPER)
    assert planned.benefit <= best
    assert all(legality.refusal(pipeline, each.kernels, PAPER) is None for each in planned.partition.blocks)


@pytest.mark.parametrize("seed", range(20, 26))
def test_blocks_of_the_general_level_are_all_that_are_legal(seed: int) -> None:
    pipeline = generated(seed, 7)
    names = [each.name for each in pipeline.kernels]
    legal = {
        block
        for size in range(2, len(names) + 1)
        for block in itertools.combinations(names, size)
        if next(legality.general(pipeline, block), None) is None
    }
    assert set(candidates.general(pipeline).blocks) == legal


@pytest.mark.parametrize("seed", range(10))
def test_the_cheapest_partitions_are_those_of_brute_force(seed: int) -> None:
    """Any costs at all, of any blocks: measured ones follow no model."""
    import random

    pipeline = generated(seed, 6)
    names = [each.name for each in pipeline.kernels]
    draw = random.Random(seed)
    costs = {(name,): float(draw.randint(1, 20)) for name in names}
    for size in range(2, 5):
        for block in itertools.combinations(names, size):
            if draw.random() < 0.5:
                costs[block] = float(draw.randint(1, 20 * size))
    every = []
    for groups in set_partitions(names):
        tuples = [tuple(sorted(group, key=pipeline.position.__getitem__)) for group in groups]
        if all(each in costs for each in tuples) and acyclic(pipeline, groups):
            every.append(sum(costs[each] for each in tuples))
    found = exact.cheapest(pipeline, costs, count=3)
    assert found is not None
    assert [cost for cost, _ in found] == sorted(every)[:3]
    assert len({groups for _, groups in found}) == len(found)
    for cost, groups in found:
        assert sum(costs[each] for each in groups) == cost
        assert acyclic(pipeline, [list(each) for each in groups])


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_of_twenty_kernels_and_more_is_found(seed: int) -> None:
    pipeline = generated(seed, 20 + seed, reach=3)
    best = partitions_to_measure.optimum(pipeline, PAPER)
    assert best is not None
    assert best.complete
    assert best.benefit >= partition.planned(pipeline, PAPER).benefit


# --- order in the file ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_kernels_are_planned() -> None:
    pipeline = generated(1, 1000, reach=6)
    found = partition.planned(pipeline, PAPER)
    assert sorted(name for each in found.partition.blocks for name in each.kernels) == sorted(pipeline.position)
    assert partitions_to_measure.optimum(pipeline, PAPER) is None
    assert sum(len(each.kernels) > 1 for each in found.partition.blocks) > 50


# --- texts of partitions --------------------------------------------------------------------------------


def test_partitions_as_texts() -> None:
    harris = catalogue("harris")
    text = "dx|dy|sx+gx|sxy+gxy|sy+gy|hc"
    assert str(blocks.read(harris, text)) == text
    made = blocks.block(harris, ["gx", "sx"])
    assert (made.kernels, made.inputs, made.outputs) == (("sx", "gx"), ("dx",), ("gx",))
    for wrong, said in (
        ("dx|dy", "not all the kernels"),
        ("dy|dx|sx+gx|sxy+gxy|sy+gy|hc", "is written"),
        ("dx|dy|gx+sx|sxy+gxy|sy+gy|hc", "is written"),
        ("dx|dy|nothing", "no kernel 'nothing'"),
        ("dx+gx|dy|sx|sxy+gxy|sy+gy|hc", "->"),
    ):
        with pytest.raises(ValueError, match=said):
            blocks.read(harris, wrong)
