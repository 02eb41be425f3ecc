"""Addresses that are used again: nobody lies where somebody else is still needed, Programs compute what they should,
and under a limit there are fewer messages."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model import Analysis, Config, Rejection
from fusiond.program import Program, problems
from fusiond_transfer.analysis import limited_cells, packing
from fusiond_transfer.analysis.cells import Evict, Script
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer
from tests.plugins.transfer.test_limited_cells import by_numpy, computed, drawn, needed_alone

PACKED = Execution(allocation="packed", issue="overlapped")


def random24(seed: int) -> Graph:
    shape = Shape(kernels=16, inputs=8, indegree=(2, 3), outdegree=(1, 2), seed=seed)
    return generator.random_graph(shape, elements=64)


def live_bytes(plan: Script) -> int:
    """The most that is needed at a time, op by op; and that nothing of it lies where something else does."""
    made = packing.packed(plan)
    size = {each.name: int(each.like.size_bytes) for each in plan.cells if each.device}
    last: dict[tuple[str, int], int] = {}
    turn = dict.fromkeys(size, 0)
    for position, op in enumerate(plan.ops):
        if isinstance(op, Evict):
            turn[op.cell] += 1
        last |= {(name, turn[name]): position for name in packing.touched(op)}
    turn = dict.fromkeys(size, 0)
    there: set[str] = set()
    most = 0
    for position, op in enumerate(plan.ops):
        if isinstance(op, Evict):
            turn[op.cell] += 1
            there.discard(op.cell)
        there.update(packing.touched(op))
        most = max(most, sum(size[name] for name in there))
        places = sorted((made.offsets[name], made.offsets[name] + size[name]) for name in there)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places)), position
        assert not places or places[-1][1] <= made.size_bytes
        there = {name for name in there if last[name, turn[name]] > position}
    return most


def group_bytes(graph: Graph, schedule: Schedule) -> int:
    return limited_cells.peak_bytes(script(schedule))


@pytest.mark.slow
def test_what_is_needed_at_a_time_lies_apart() -> None:
    ratios = []
    for seed in range(12):
        graph = random24(seed)
        for name in ("separate", "interval_stabbing", "min_residency"):
            schedule = Schedules(graph).grouping(name)
            plan = script(schedule)
            assert packing.packable(plan)
            made = packing.packed(plan).size_bytes
            assert live_bytes(plan) <= made
            ratios.append(made / group_bytes(graph, schedule))
            found = program(plan, PACKED, name="x")
            assert problems(found) == ()
            assert simulate.faults(plan, found, seeds=(seed,)) == ()
            assert simulate.run(plan, found).peak_bytes == made
            assert [step.allocates for step in found.steps if step.allocates] == ["arena0@device"]
    assert statistics.median(ratios) < 0.85


@pytest.mark.slow
def test_what_is_evicted_leaves_its_room_and_computes_what_numpy_does(device: Any) -> None:
    done = evicted = 0
    for seed in range(40):
        graph = drawn(seed, kernels=10)
        if graph is None or not (needed := needed_alone(graph)):
            continue
        graph = dataclasses.replace(computed(graph), limit_bytes=needed + 256 * (seed % 2))
        found = Schedules(graph)
        schedule = found.packed()
        plan = script(schedule)
        if not packing.packable(plan):
            continue
        live_bytes(plan)
        made = program(plan, PACKED, name="x")
        assert simulate.faults(plan, made, seeds=(1,)) == (), seed
        numbers = np.random.default_rng(seed)
        inputs = {name: numbers.integers(0, 2**32, graph.vector(name).elements, np.uint32) for name in graph.inputs}
        outputs = device.run(made, seed=seed % 5, inputs=inputs)
        for name, values in by_numpy(graph, inputs).items():
            np.testing.assert_array_equal(outputs[name], values, err_msg=f"{seed} {name}")
        done += 1
        evicted += found.evictions is not None
        if done == 14:
            break
    assert done == 14
    assert evicted >= 4


@pytest.mark.parametrize(
    ("name", "limit", "grouped", "packed"),
    [("horner", 147456, 8, 3), ("cholesky", 77824, 10, 6), ("fig2", 122880, 6, 4)],
)
def test_a_limit_takes_fewer_messages(
    analyse: Callable[..., Analysis], strategy: Transfer, name: str, limit: int, grouped: int, packed: int
) -> None:
    analysis = analyse(name, f"limits: {{device_bytes: {limit}}}")
    said = analysis.report["limit"]
    assert (analysis.report["startups"], said["packed"]["startups"]) == (grouped, packed)
    assert said["packed"]["peak_bytes"] <= limit
    assert f"addresses used again (allocation packed): {packed} messages" in strategy.describe(analysis)
    space = strategy.space(analysis, {})
    seeds = dict(strategy.seeds(analysis, space, {}))
    made = strategy.emit(analysis, seeds["packed"], {})
    assert isinstance(made, Program)
    assert sum(1 for step in made.steps if step.counted and step.messages) == packed
    baselines = {each.name: each for each in strategy.baselines(analysis)}
    assert {f"separate_{memory}_packed" for memory in ("pageable", "pinned")} <= set(baselines)
    points = [each for each in space.points() if each.get("allocation") == "packed"]
    assert {each["grouping"] for each in points} >= {"separate", "interval_stabbing", "min_residency"}
    assert {each["when"] for each in points if each["grouping"] == "separate"} == {"late"}
    assert {each.get("chunks", 1) for each in points} == {1}
    for config in points[:: max(1, len(points) // 12)]:
        found = strategy.emit(analysis, config, {})
        assert isinstance(found, Program) or found.rule in ("device_limit", "not_packable")


def test_it_is_for_limits_and_for_one_type_without_gaps(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    counted = strategy.space(analyse("fig2", "allocations: counted"), {})
    assert "packed" not in next(each.values for each in counted.parameters if each.name == "allocation")
    graph = KernelGraph("mixed", elements=100)
    graph.inputs("a")
    graph.inputs("b", dtype="float32")
    graph.device("k", reads=("a", "b"), writes=("c",))
    graph.outputs("c")
    limited = analyse(graph.yaml(), "limits: {device_bytes: 100000}")
    assert "packed" not in limited.payload.offer.allocations
    graph = KernelGraph("gaps", elements=100)
    graph.inputs("a", "b")
    graph.device("k", reads=("a", "b"), writes=("c",))
    graph.outputs("c")
    gaps = analyse(graph.yaml(), "limits: {device_bytes: 100000}")
    assert "packed" in gaps.payload.offer.allocations, "each by itself leaves none"
    assert gaps.payload.schedules.packed().startups == 3
    paper = Config.of({"grouping": "paper_greedy", "memory": "pinned", "issue": "one_stream", "send": "message",
                       "allocation": "packed"})  # fmt: skip
    refused = strategy.emit(gaps, paper, {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "not_packable"


def test_what_is_too_large_to_be_searched_is_packed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random24(3)
    peak = group_bytes(graph, Schedules(graph).grouping("min_residency"))
    limited = dataclasses.replace(graph, limit_bytes=peak - 1024)
    searched = Schedules(limited).packed()
    monkeypatch.setattr(packing, "MOST_WORK", 0)
    found = Schedules(limited)
    assert found.packed() is found.least().schedule
    assert searched.startups < found.packed().startups


@pytest.mark.parametrize("broken", ["_meet", "_stays"])
def test_lifetimes_that_are_wrong_are_killed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are needed at the same time in one place; a cell that counts from its last use on."""
    right = packing._stays
    wrong = {
        "_meet": lambda some, others: False,
        "_stays": lambda plan: {name: tuple((b, b) for _, b in each) for name, each in right(plan).items()},
    }
    monkeypatch.setattr(packing, broken, wrong[broken])
    plans = [script(Schedules(random24(seed)).grouping("min_residency")) for seed in range(4)]
    assert any(simulate.faults(plan, program(plan, PACKED, name="x")) for plan in plans)
