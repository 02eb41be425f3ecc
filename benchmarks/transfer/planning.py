"""What planning saves and what it costs: table 4, and graphs of up to 100,000 kernels. Needs no device.

Savings are startups, against a message for each vector. Random rows of the table have no seeds, so ours are medians
over as many seeds as SEEDS says, of graphs with the same parameters; regular ones with kernels on either side likewise.
Times are of the processor, the median of REPEATS runs, for everything from the graph to slots, messages and layout.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.transfer.paper import TABLE_4, Row
from fusiond.model.inputs import documents
from fusiond.model.nouns import Job
from fusiond.strategy import Inputs
from fusiond_transfer.analysis import heuristic, intervals, schedule
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.frontend import generator, parser
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from fusiond_transfer.plugin import GRAPHS

SEEDS = 11
REPEATS = 11
MANY = 400  #: The paper's larger number of attempts
KERNELS = (100, 1_000, 10_000, 100_000)


class Catalogue(Inputs):
    """The package's own graphs, read from where they lie."""

    def resolve(self, kind: str, name: str, *, where: str) -> str:
        return str(GRAPHS / f"{name}.yaml")

    def beside(self, path: str, relative: str, *, where: str) -> str:
        return str(GRAPHS / relative)

    def text(self, path: str, *, where: str) -> str:
        return (GRAPHS / path).read_text(encoding="utf-8")

    def document(self, path: str, *, where: str) -> documents.Node:
        return documents.parse(self.text(path, where=where), path)

    def digest(self, path: str, *, where: str) -> str:
        raise NotImplementedError


def catalogued(name: str) -> Graph:
    """A graph of the catalogue at its own sizes."""
    return parser.read(Catalogue(), str(GRAPHS / f"{name}.yaml"), Job(strategy="transfer", request={}, sizes={})).graph


def graphs(row: Row, seeds: int = SEEDS) -> list[Graph]:
    """What stands for a row: one graph, or one for each seed."""
    if row.graph is not None:
        return [catalogued(row.graph)]
    if row.regular is not None:
        return [_half_on_the_device(catalogued(row.regular), seed) for seed in range(seeds)]
    assert row.indegree is not None
    assert row.outdegree is not None
    return [
        generator.random_graph(
            Shape(kernels=row.kernels, inputs=row.inputs, indegree=row.indegree, outdegree=row.outdegree, seed=seed)
        )
        for seed in range(seeds)
    ]


def _half_on_the_device(graph: Graph, seed: int) -> Graph:
    draw = random.Random(f"transfer sides {seed}")
    sides = [DEVICE if draw.randrange(100) < 50 else HOST for _ in graph.kernels]
    kernels = (dataclasses.replace(each, on=on) for each, on in zip(graph.kernels, sides, strict=True))
    return dataclasses.replace(graph, kernels=tuple(kernels))


def table_4(say: Callable[[str], None], *, seeds: int = SEEDS, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Every row of the table: ours beside the paper's."""
    found = []
    for row in TABLE_4:
        drawn = graphs(row, seeds)
        each = [_savings(graph) for graph in drawn]
        timed = drawn[0]
        found.append(
            {
                "row": row.name,
                "graphs": len(drawn),
                "kernels": row.kernels,
                "inputs": statistics.median(len(graph.inputs) for graph in drawn),
                "transfers": statistics.median(saved["transfers"] for saved in each),
                "saved": {
                    name: statistics.median(saved[name] for saved in each) for name in ("exact", "greedy", "tight")
                },
                "saved_with_many_attempts": statistics.median(saved["many"] for saved in each)
                if not timed.loop
                else None,
                "heuristic_missed": sum(saved["greedy"] < saved["exact"] for saved in each),
                "exact_ms": _median_ms(lambda graph=timed: Schedules(graph).least, repeats),
                "heuristic_ms": None
                if timed.loop
                else _median_ms(lambda graph=timed: Schedules(graph).grouping("paper_greedy"), repeats),
            }
        )
        say(f"{row.name}: {found[-1]['saved']}")
    return found


def cg_step() -> dict[str, int]:
    """What one iteration of conjugate gradient saves when it is not a loop."""
    return _savings(catalogued("cg_step"))


def _savings(graph: Graph) -> dict[str, int]:
    crossings = intervals.crossings(graph)
    count = len(crossings)
    exact = count - schedule.bound(graph, crossings).points
    if graph.loop:
        return {"transfers": count, "exact": exact, "greedy": exact, "tight": exact, "many": exact}
    few = [count - heuristic.search(graph, crossings, tight=tight).messages for tight in (False, True)]
    many = count - heuristic.search(graph, crossings, tight=False, tries=MANY if count < 60 else MANY // 10).messages
    return {"transfers": count, "exact": exact, "greedy": few[0], "tight": few[1], "many": many}


def growth(say: Callable[[str], None], kernels: Sequence[int] = KERNELS) -> list[dict[str, Any]]:
    """Seconds for larger and larger random graphs."""
    found = []
    for count in kernels:
        graph = generator.random_graph(Shape(kernels=count, inputs=12, indegree=(2, 2), outdegree=(1, 2), seed=0))
        repeats = 3 if count >= 10_000 else 5
        made = Schedules(graph).least.schedule
        found.append(
            {
                "kernels": count,
                "transfers": len(made.crossings),
                "saved": made.saved,
                "fewest_secs": round(_median_ms(lambda graph=graph: Schedules(_fresh(graph)).least, repeats) / 1e3, 4),
                "fewest_tight_secs": round(
                    _median_ms(lambda graph=graph: Schedules(_fresh(graph)).grouping("min_residency"), repeats) / 1e3, 4
                ),
            }
        )
        say(f"{count} kernels: {found[-1]['fewest_secs']} s")
    return found


def _fresh(graph: Graph) -> Graph:
    """The graph without what it keeps of earlier questions: they are part of the cost."""
    return Graph(
        name=graph.name, vectors=graph.vectors, kernels=graph.kernels, inputs=graph.inputs, outputs=graph.outputs
    )


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds of processor time, without Python's garbage collector (as `timeit` does)."""
    times = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        try:
            begun = time.process_time()
            run()
            times.append(1e3 * (time.process_time() - begun))
        finally:
            gc.enable()
    return round(statistics.median(times), 4)
