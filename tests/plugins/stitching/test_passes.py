"""The list of passes: each keeps what the module computes, and what is not a graph is said with its pass."""

import dataclasses
from collections.abc import Callable

import pytest

from fusiond_stitching.frontend import importer, passes
from fusiond_stitching.frontend.graph import HloInstruction
from fusiond_stitching.frontend.passes import HloGraph

from . import handmade
from .test_importer import SAME, compared, entry

TEXT = entry(*SAME["dimensions of one"])


def test_the_list_is_what_the_module_says() -> None:
    said = [
        line.split()[0] for line in (passes.__doc__ or "").splitlines() if line.startswith("    ") and line[4] != " "
    ]
    assert said == [each.__name__ for each in passes.PASSES]


def test_a_canonical_graph_stays_as_it_is() -> None:
    module = importer.read(TEXT, "m.hlo")
    graph = HloGraph(instructions=dict(module.by_name), outputs=module.outputs, foreign=module.foreign)
    again = passes.canonical(graph)
    assert dict(again.instructions) == dict(module.by_name)
    assert again.outputs == module.outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equal instructions", "dimensions of one", "a transpose behind a batched dot"])
def test_every_pass_keeps_what_is_computed(name: str, runner: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list cut off behind each of its passes."""
    whole, seen = passes.PASSES, []
    for count in range(len(whole)):
        monkeypatch.setattr(passes, "PASSES", whole[:count])
        found = compared(name)
        if found.module.instructions not in seen:
            seen.append(found.module.instructions)
            found.check(runner, handmade.unfused(found.module))


def without(graph: HloGraph, chosen: Callable[[HloInstruction], bool]) -> HloGraph:
    return dataclasses.replace(
        graph, instructions={name: each for name, each in graph.instructions.items() if not chosen(each)}
    )


def loses_operand(graph: HloGraph) -> HloGraph:
    return without(graph, lambda each: each.opcode == "constant")


def loses_output(graph: HloGraph) -> HloGraph:
    return without(graph, lambda each: each.name in graph.outputs)


def shape_that_does_not_follow(graph: HloGraph) -> HloGraph:
    wrong = {
        name: dataclasses.replace(each, dims=(*each.dims, 2)) if each.opcode == "add" else each
        for name, each in graph.instructions.items()
    }
    return dataclasses.replace(graph, instructions=wrong)


@pytest.mark.parametrize(
    ("broken", "said"),
    [(loses_operand, "which is gone"), (loses_output, "is gone"), (shape_that_does_not_follow, "the result")],
)
@pytest.mark.parametrize("place", [0, 3])
def test_a_pass_that_gives_no_graph_is_named(
    broken: passes.Pass, said: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:place], broken, *passes.PASSES[place:]))
    with pytest.raises(AssertionError, match=f"^{broken.__name__}: .*{said}"):
        importer.read(TEXT, "m.hlo")
