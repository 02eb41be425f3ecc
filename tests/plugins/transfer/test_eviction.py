"""Vectors that leave the device and come again: the fewest transfers, and what the Programs really hold."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model.nouns import Analysis
from fusiond.model.program import Program, problems
from fusiond_transfer.analysis import eviction, intervals
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

from .test_limited_cells import fewest_transfers, needed_alone


def drawn(seed: int) -> Graph:
    """A small random graph with vectors of several lengths, some of them placed."""
    numbers = random.Random(seed)
    shape = Shape(kernels=numbers.randint(3, 7), inputs=numbers.randint(2, 4), indegree=(1, 3), outdegree=(1, 2),
                  device_percent=numbers.choice((60, 80, 100)), seed=seed)  # fmt: skip
    graph = generator.random_graph(shape, elements=64)
    if seed % 2:
        lengths = {each.name: numbers.choice((64, 128, 192)) for each in graph.vectors}
        vectors = tuple(dataclasses.replace(each, elements=lengths[each.name]) for each in graph.vectors)
        graph = dataclasses.replace(graph, vectors=vectors)
    if seed % 5 == 0:
        graph = dataclasses.replace(graph, placed=graph.inputs[:1])
    return graph


def check(graph: Graph, limit: int) -> int:
    """The transfers that evictions cost under a limit, as all that can be said of it was looked at."""
    limited = dataclasses.replace(graph, limit_bytes=limit)
    found = Schedules(limited)
    if found.evictions is None:
        return 0
    assert found.evictions.least
    plain = intervals.crossings(graph)
    assert found.evictions.more == fewest_transfers(graph, limit) - len(plain)
    assert len(found.crossings) == len(plain) + found.evictions.more
    seed = eviction.belady(eviction._Uses(graph, plain), limit)
    assert seed.more >= found.evictions.more
    for name in ("separate", "interval_stabbing"):
        plan = script(found.grouping(name))
        for allocation, issue in (("each", "one_stream"), ("group", "overlapped"), ("pooled", "overlapped")):
            if name == "interval_stabbing" and allocation == "each":
                continue
            made = program(plan, Execution(allocation=allocation, issue=issue), name="x")
            assert problems(made) == ()
            assert simulate.faults(plan, made) == (), (graph.name, limit)
            assert simulate.run(plan, made).peak_bytes <= limit
    return found.evictions.more


@pytest.mark.slow
@pytest.mark.sampled(20)
@pytest.mark.parametrize("block", range(10))
def test_evictions_are_the_least_on_a_thousand_graphs(block: int) -> None:
    costly = 0
    for seed in range(100 * block, 100 * block + 100):
        graph = drawn(seed)
        needed = needed_alone(graph)
        if not needed:
            continue
        gaps = sum(len(graph.readers.get(each.name, ())) for each in graph.vectors)
        for more in (0, 256) if gaps <= 13 else (256,):
            costly += check(graph, needed + more) > 0
    assert costly >= 20, "a limit hardly ever costs a transfer: is it looked at?"


def test_belady_is_not_the_least_where_a_download_costs() -> None:
    """Whoever is used last has to be brought to the host first; the next one is there already."""
    found = [seed for seed in range(400) if (graph := drawn(seed)) and _worse(graph)]
    assert found, "the search would not be needed"


def _worse(graph: Graph) -> bool:
    limit = needed_alone(graph)
    crossings = intervals.crossings(graph)
    if not limit:
        return False
    least = eviction.least(graph, crossings, limit)
    return eviction.belady(eviction._Uses(graph, crossings), limit).more > least.more


def spilling() -> KernelGraph:
    graph = KernelGraph("spilling", elements=1024)
    graph.inputs("a", "b")
    graph.device("k0", reads=("a",), writes=("u",), body={"u": "a * 3"})
    graph.device("k1", reads=("b",), writes=("v",), body={"v": "b + 1"})
    graph.device("k2", reads=("a", "v"), writes=("w",), body={"w": "a - v"})
    graph.device("k3", reads=("u", "w"), writes=("z",), body={"z": "u + w"})
    graph.outputs("z")
    return graph


def test_a_graph_of_16384_bytes_in_12288_computes_what_numpy_does(device: Any) -> None:
    graph = spilling()
    plain = Schedules(graph.build())
    made = program(script(plain.separate(early=False)), Execution(allocation="each"), name="x")
    assert simulate.run(script(plain.separate(early=False)), made).peak_bytes == 16384
    graph.limit(12288)
    found = Schedules(graph.build())
    assert found.evictions is not None
    assert found.evictions.more == 2, "u goes down and up again: the device made it, and k2 needs the room"
    assert "evictions cost 2 transfers more: proven to be the fewest that fit" in claims(found)
    for issue in ("one_stream", "overlapped"):
        plan = script(found.grouping("interval_stabbing"))
        made = program(plan, Execution(allocation="group", issue=issue), name="x")
        assert simulate.run(plan, made).peak_bytes == 12288
        for seed in range(5):
            a, b = (np.arange(1024, dtype=np.uint32) * factor for factor in (3, 7))
            outputs = device.run(made, seed=seed, inputs={"a": a, "b": b})
            np.testing.assert_array_equal(outputs["z"], a * 3 + a - b - 1)


def test_a_job_says_who_leaves(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse(spilling().yaml(), "limits: {device_bytes: 12288}")
    assert analysis.report["limit"] == {
        "device_bytes": 12288, "peak_bytes": 12288, "more_transfers": 2, "more_proven": True,
        "evictions": [{"vector": "u", "after": "k0"}],
    }  # fmt: skip
    for config in strategy.space(analysis, {}).points():
        made = strategy.emit(analysis, config, {})
        if isinstance(made, Program):
            assert sum(step.allocates == "u@device" for step in made.steps) == 2
    assert all(isinstance(strategy.emit(analysis, config, {}), Program)
               for _, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}))  # fmt: skip


@pytest.mark.slow
def test_large_graphs_are_planned_by_beladys_rule() -> None:
    graph = generator.random_graph(
        Shape(kernels=1000, inputs=20, indegree=(2, 2), outdegree=(1, 2), seed=1), elements=64
    )
    whole = Schedules(graph)
    peak = simulate.run(
        script(whole.separate(early=False)),
        program(script(whole.separate(early=False)), Execution(allocation="each"), name="x"),
    ).peak_bytes
    found = Schedules(dataclasses.replace(graph, limit_bytes=peak // 2))
    assert found.evictions is not None
    assert not found.evictions.least
    assert any("by Belady's rule, not proven" in line for line in claims(found))
    plan = script(found.grouping("separate"))
    made = program(plan, Execution(allocation="each"), name="x")
    outcome = simulate.run(plan, made)
    assert outcome.problems == ()
    assert outcome.outputs == simulate.plain(graph)
    assert outcome.peak_bytes <= peak // 2


def test_a_vector_that_leaves_before_its_last_use_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = eviction.crossings_with

    def early(graph: Graph, crossings: Any, found: Any) -> Any:
        made, leaves = right(graph, crossings, found)
        return made, tuple((name, k - 1) for name, k in leaves)

    def without_download(graph: Graph, crossings: Any, found: Any) -> Any:
        made, leaves = right(graph, crossings, found)
        known = {each.vector for each in crossings}
        return tuple(each for each in made if each.up or each.vector in known), leaves

    def never_again(graph: Graph, crossings: Any, found: Any) -> Any:
        made, leaves = right(graph, crossings, found)
        return made[: len(crossings)], leaves

    for broken in (early, without_download, never_again):
        monkeypatch.setattr(eviction, "crossings_with", broken)
        assert _seen(), broken.__name__
    monkeypatch.undo()
    assert not _seen()


def _seen() -> bool:
    for seed in range(60):
        graph = drawn(seed)
        limit = needed_alone(graph)
        if not limit:
            continue
        found = Schedules(dataclasses.replace(graph, limit_bytes=limit))
        try:
            plan = script(found.grouping("separate"))
            made = program(plan, Execution(allocation="each"), name="x")
        except (KeyError, ValueError):
            return True
        if problems(made) or simulate.faults(plan, made) or simulate.run(plan, made).peak_bytes > limit:
            return True
    return False
