"""Spans (section 3.1) against the longest ways that networkx finds."""

from pathlib import Path

import networkx
import pytest

import fusiond_stitching
from fusiond_stitching.analysis import span
from fusiond_stitching.frontend import importer

FOLDER = Path(fusiond_stitching.__file__).parent / "modules"


@pytest.mark.parametrize("name", sorted(each.stem for each in FOLDER.glob("*.hlo")))
def test_a_span_is_the_longest_way_to_an_end(name):
    module = importer.read((FOLDER / f"{name}.hlo").read_text(), name)
    found = span.analyse(module)
    graph = networkx.DiGraph()
    graph.add_nodes_from(each.name for each in module.instructions)
    graph.add_edges_from((operand, each.name) for each in module.instructions for operand in each.operands)
    assert found.length == networkx.dag_longest_path_length(graph)
    longest: dict[str, int] = {}
    for node in reversed(list(networkx.topological_sort(graph))):
        longest[node] = max((1 + longest[each] for each in graph.successors(node)), default=0)
    assert dict(found.of) == longest
    # No layer has a dependence inside, and together they are the module.
    assert sorted(name for layer in found.layers for name in layer) == sorted(longest)
    for layer in found.layers:
        inside = graph.subgraph(layer)
        assert inside.number_of_edges() == 0
    calls = {each.name for each in module.instructions if module.library(each)}
    assert found.library == tuple(sorted({longest[call] for call in calls}))
    for each in module.instructions:
        assert found.between(each.name) == sum(1 for layer in found.library if layer <= longest[each.name])


def test_figure_3_has_nine_layers_below_its_inputs():
    """The paper's example: a softmax and a dot behind it. (Its bitcast is a reshape here.)"""
    module = importer.read((FOLDER / "nmt_fig3.hlo").read_text(), "nmt_fig3")
    found = span.analyse(module)
    (dot,) = [each.name for each in module.instructions if each.opcode == "dot"]
    divide, exponential, reduces = (
        [each.name for each in module.instructions if each.opcode == opcode]
        for opcode in ("divide", "exponential", "reduce")
    )
    assert found.of[dot] < found.of[divide[0]] < found.of[exponential[0]]
    sums, tops = sorted(reduces, key=found.of.__getitem__)
    assert found.of[divide[0]] < found.of[sums] < found.of[exponential[0]] < found.of[tops]
