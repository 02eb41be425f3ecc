"""What table 4 leaves open: every graph that fits a row's text has savings of its own, and the row shows one of them.

The text gives random graphs by intervals and no seeds, mappings by a probability, Cholesky and conjugate gradient by
numbers of kernels and inputs that are fewer than the blocks and vectors of those algorithms, and ties of the heuristic
by nothing. So each row is a set of graphs (or of runs); here are the least and the most that they save, and
how many save what the paper prints. A row whose variants differ is not determined by the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.transfer.paper import TABLE_4, Row
from benchmarks.transfer.planning import catalogued, graphs
from fusiond_transfer.analysis import heuristic, intervals, schedule
from fusiond_transfer.frontend.graph import Graph

SEEDS = 300
"""Of random graphs, of mappings, and of ties."""


def table(say: Callable[[str], None], *, seeds: int = SEEDS) -> list[dict[str, Any]]:
    """A line for each row that the text does not give in so many words."""
    found = []
    for row in TABLE_4:
        for what, savings in _variants(row, seeds):
            theirs = row.tight[0] if what == TIES else row.greedy[0]
            same = sum(each == theirs for each in savings)
            found.append({"row": row.name, "open": what, "variants": len(savings), "least": min(savings),
                          "most": max(savings), "paper": theirs, "same": same})  # fmt: skip
            say(f"{row.name}, {what}: {found[-1]}")
    return found


TIES = "ties of the tight heuristic, 4 attempts each"
GREEDY_TIES = "10 inputs; ties of the greedy heuristic, 4 attempts each"


def _variants(row: Row, seeds: int) -> Iterator[tuple[str, Sequence[int]]]:
    if row.indegree is not None:
        yield "seeds of the generator", [saved(each) for each in graphs(row, seeds)]
    elif row.regular is not None:
        yield "who is on the device", [saved(each) for each in graphs(row, seeds)]
    elif row.graph in ("cholesky", "cholesky_host_syrk"):
        whole = catalogued(row.graph)
        yield GREEDY_TIES, [_attempted(whole, seed, tight=False) for seed in range(seeds)]
        yield "which 4 blocks are inputs; all of L comes out", [saved(each) for each in _inputs_of(row)]
        yield (
            "which 4 blocks are inputs; L33 alone comes out",
            [saved(replace(each, outputs=("L33",))) for each in _inputs_of(row)],
        )
    elif row.graph == "cg":
        step = catalogued("cg_step")
        for count in range(1, len(step.outputs) + 1):
            yield (
                f"which 2 vectors are inputs, which outputs are wanted: {count}; no loop",
                [
                    saved(replace(_with_inputs(step, inputs), outputs=outputs))
                    for inputs in itertools.combinations(step.inputs, row.inputs)
                    for outputs in itertools.combinations(step.outputs, count)
                ],
            )
    elif row.graph in ("horner", "matmul"):
        graph = catalogued(row.graph)
        yield TIES, [_attempted(graph, seed, tight=True) for seed in range(seeds)]


def saved(graph: Graph) -> int:
    """Exact: transfers less the fewest messages."""
    return schedule.build(graph, "interval_stabbing").saved


def _attempted(graph: Graph, seed: int, *, tight: bool) -> int:
    """What the heuristic saves with these ties."""
    crossings = intervals.crossings(graph)
    return len(crossings) - heuristic.search(graph, crossings, tight=tight, seed=seed).messages


def _inputs_of(row: Row) -> Iterator[Graph]:
    assert row.graph is not None
    whole = catalogued(row.graph)
    for inputs in itertools.combinations(whole.inputs, row.inputs):
        yield _with_inputs(whole, inputs)


def _with_inputs(graph: Graph, inputs: Sequence[str]) -> Graph:
    """The graph in which the other inputs are not vectors: nobody reads them."""
    gone = set(graph.inputs) - set(inputs)
    kernels = tuple(
        replace(each, reads=tuple(name for name in each.reads if name not in gone)) for each in graph.kernels
    )
    return replace(
        graph,
        inputs=tuple(inputs),
        kernels=kernels,
        vectors=tuple(each for each in graph.vectors if each.name not in gone),
    )
