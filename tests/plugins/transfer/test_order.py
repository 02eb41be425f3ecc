"""Another order of the kernels: never wrong, never worse, and the best there is where it says so."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from fusiond.model.nouns import Analysis, Config
from fusiond.model.program import Program
from fusiond_transfer.analysis import intervals, order, schedule
from fusiond_transfer.analysis.schedules import Schedules, reordered
from fusiond_transfer.frontend import verify
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer


def least_of_all_orders(graph: Graph) -> int:
    """Brute force over all topological orders."""
    best = None
    for kernels in itertools.permutations(graph.kernels):
        other = dataclasses.replace(graph, kernels=kernels)
        if next(iter(verify.problems(other)), None) is None:
            points = schedule.bound(other, intervals.crossings(other)).points
            best = points if best is None else min(best, points)
    assert best is not None
    return best


def test_levels_against_all_orders_of_small_graphs() -> None:
    optimal = total = 0
    for seed in range(60):
        graph = random_graph(Shape(kernels=5, inputs=3, indegree=(1, 2), outdegree=(1, 2), seed=seed), elements=4)
        other = order.by_levels(graph)
        assert next(iter(verify.problems(other)), None) is None, "still a topological order"
        found = schedule.bound(other, intervals.crossings(other)).points
        best = least_of_all_orders(graph)
        assert order.bound(graph) <= best <= found, seed
        total += 1
        optimal += found == best
    assert optimal >= 0.9 * total, f"{optimal} of {total}"


def test_a_graph_by_levels_is_never_worse_where_it_is_offered() -> None:
    offered = 0
    for seed in range(80):
        schedules = Schedules(
            random_graph(Shape(kernels=12, inputs=4, indegree=(1, 3), outdegree=(1, 2), seed=seed), elements=4)
        )
        other = reordered(schedules)
        if other is not None:
            offered += 1
            assert other.least().schedule.startups < schedules.least().schedule.startups
    assert offered >= 20


def test_the_matrix_product_needs_two_messages_in_another_order(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    """All products first, then all sums: everything goes up at once, and comes down at once."""
    analysis = analyse("matmul")
    report = analysis.report["reordered"]
    assert (report["startups"], report["lower_bound"], report["optimal"]) == (2, 2, True)
    config = Config.of(
        {
            "grouping": "interval_stabbing",
            "send": "message",
            "memory": "pageable",
            "issue": "one_stream",
            "order": "reordered",
        }
    )
    made = strategy.emit(analysis, config, {})
    assert isinstance(made, Program)
    assert sum(type(step).__name__ == "Copy" for step in made.steps) == 2
    names = [parameter.name for parameter in strategy.baselines(analysis)[0].space.parameters]
    assert "order" in names, "the unfused way gets the better order too"


def test_loops_and_storage_in_place_keep_their_order(graph: Callable[..., Graph]) -> None:
    assert reordered(Schedules(graph("cg"))) is None
