"""Schedules under a limit of the device's memory: against all divisions, and against what the simulator counts."""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fusiond.model.nouns import Rejection
from fusiond.model.program import Program, problems
from fusiond_transfer.analysis import eviction, intervals, limit, schedule
from fusiond_transfer.analysis.limit import ResidentBytes
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Analyse
from .one_memory_chain import config_with
from .test_limited_cells import fewest_transfers, needed_alone, partitions


def drawn(seed: int) -> Graph:
    shape = Shape(kernels=3 + seed % 4, inputs=2 + seed % 3, indegree=(1, 3), outdegree=(1, 2), seed=seed)
    return generator.random_graph(shape, elements=64)  # 256 bytes: no padding between members of a group


def simulated_peak(graph: Graph, slots: Sequence[int], groups: Sequence[limit.MessageGroup]) -> int:
    """What the allocations of a real Program come to: an oracle for the profile."""
    found = schedule.scheduled(graph, intervals.crossings(graph), slots, groups)
    plan = script(found)
    return simulate.run(plan, program(plan, Execution(allocation="group"), name="x")).peak_bytes


def least_groups(graph: Graph) -> int | None:
    """Brute force over all divisions and all slots of each group: the fewest groups that fit in the simulator."""
    crossings = intervals.crossings(graph)
    best = None
    for division in partitions(range(len(crossings))):
        if best is not None and len(division) >= best:
            continue
        choices = []
        for group in division:
            members = [crossings[number] for number in group]
            first, last = max(each.earliest for each in members), min(each.latest for each in members)
            if len({each.up for each in members}) > 1 or first > last:
                break
            choices.append([(slot, members[0].up, group) for slot in range(first, last + 1)])
        else:
            for groups in itertools.product(*choices):
                slots = [0] * len(crossings)
                for slot, _, numbers in groups:
                    for number in numbers:
                        slots[number] = slot
                if simulated_peak(graph, slots, groups) <= (graph.limit_bytes or 0):
                    best = len(groups)
                    break
    return best


@pytest.mark.slow
def test_the_fewest_that_fit_of_all_divisions() -> None:
    tried = harder = 0
    for seed in range(60):
        graph = drawn(seed)
        crossings = intervals.crossings(graph)
        if not 2 <= len(crossings) <= 5:
            continue
        bound = schedule.bound(graph, crossings).points
        for limit_bytes in (512, 768, 1024, 1536):
            limited = dataclasses.replace(graph, limit_bytes=limit_bytes)
            wanted = least_groups(limited)
            assert limit.separate_fits(limited, crossings) is (wanted is not None)
            if wanted is None:
                continue
            groups, least = limit.fitting(limited, crossings, bound)
            tried += 1
            assert least
            assert len(groups) == wanted, (seed, limit_bytes)
            harder += wanted > bound
            assert simulated_peak(limited, schedule.slots_of(groups, len(crossings)), groups) <= limit_bytes
    assert tried >= 30
    assert harder >= 5, "a limit never costs a message: is it looked at?"


def test_the_profile_is_what_the_simulator_counts() -> None:
    for seed in range(80):
        graph = drawn(seed)
        crossings = intervals.crossings(graph)
        memory = ResidentBytes(graph, crossings)
        for slots in (
            schedule.separate(crossings, early=False),
            schedule.stabbed(graph, crossings, schedule.bound(graph, crossings)),
        ):
            groups = schedule.grouped(graph, crossings, slots)
            assert memory.peak(groups) == simulated_peak(graph, slots, groups), seed


def test_large_graphs_fit_and_are_not_called_least_unless_they_are() -> None:
    claimed = 0
    for seed in range(12):
        graph = generator.random_graph(
            Shape(kernels=24, inputs=10, indegree=(2, 3), outdegree=(2, 2), seed=seed), elements=64
        )
        crossings = intervals.crossings(graph)
        bound = schedule.bound(graph, crossings).points
        alone = ResidentBytes(graph, crossings)
        separate = [group for number in range(len(crossings)) if (group := schedule.at_best_slot(crossings, (number,)))]
        for more in (0, 3 * 256, 10**6):
            limited = dataclasses.replace(graph, limit_bytes=alone.peak(separate) + more)
            groups, least = limit.fitting(limited, crossings, bound)
            assert alone.peak(groups) <= (limited.limit_bytes or 0)
            assert bound <= len(groups) <= len(crossings)
            assert least == (len(groups) == bound)
            claimed += least
        assert least, "with room for everything, the fewest are found"
    assert 12 <= claimed < 36


# --- as a job -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_under_a_limit_fits_and_says_what_is_proven(analyse: Analyse, strategy: Transfer) -> None:
    size = 16384
    for vectors in (13, 7, 6):
        analysis = analyse("fig2", f"limits: {{device_bytes: {vectors * size}}}")
        report = analysis.report
        assert report["limit"]["peak_bytes"] <= vectors * size
        assert report["startups"] >= 4
        assert report["lower_bound"] == 4
        for config in itertools.islice(strategy.space(analysis, {}).points(), 0, None, 3):
            made = strategy.emit(analysis, config, {})
            if isinstance(made, Rejection):
                assert made.rule == "device_limit"
                continue
            plan = script(strategy._schedule(analysis.payload, config, {}))
            assert simulate.run(plan, made).peak_bytes <= vectors * size, config


def test_a_limit_makes_allocations_count_and_no_claim_too_much(analyse: Analyse) -> None:
    analysis = analyse("random24", "limits: {device_bytes: 400000}")
    schedules: Schedules = analysis.payload.schedules
    assert analysis.payload.offer.counted
    assert any("bytes on the device" in line for line in claims(schedules))
    least = schedules.least
    assert least.proven == (least.schedule.startups == schedules.bound.points)
    text = "not proven to be the fewest" if not least.proven else "proven to be the fewest"
    assert any(text in line for line in claims(schedules))


def test_one_allocation_is_not_offered_where_it_does_not_fit(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse("fig2", "limits: {device_bytes: 100000}")
    one = config_with(memory="pageable", allocation="one", issue="one_stream")
    assert isinstance(strategy.emit(analysis, one, {}), Rejection)
    roomy = analyse("fig2", "limits: {device_bytes: 1000000}")
    assert isinstance(strategy.emit(roomy, one, {}), Program)


# --- vectors that leave the device and come again -------------------------------------------------------


def with_several_lengths(seed: int) -> Graph:
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


def cost_of_evictions(graph: Graph, limit: int) -> int:
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
        graph = with_several_lengths(seed)
        needed = needed_alone(graph)
        if not needed:
            continue
        gaps = sum(len(graph.readers.get(each.name, ())) for each in graph.vectors)
        for more in (0, 256) if gaps <= 13 else (256,):
            costly += cost_of_evictions(graph, needed + more) > 0
    assert costly >= 20, "a limit hardly ever costs a transfer: is it looked at?"


def test_belady_is_not_the_least_where_a_download_costs() -> None:
    """Whoever is used last has to be brought to the host first; the next one is there already."""
    found = [seed for seed in range(400) if (graph := with_several_lengths(seed)) and _worse(graph)]
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


def test_a_job_says_who_leaves(analyse: Analyse, strategy: Transfer) -> None:
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
        graph = with_several_lengths(seed)
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
