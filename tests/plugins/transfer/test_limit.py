"""Schedules under a limit of the device's memory: against all divisions, and against what the simulator counts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.program import Program
from fusiond_transfer.analysis import intervals, limit, schedule
from fusiond_transfer.analysis.limit import ResidentBytes
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.generator import Shape
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer


def drawn(seed: int) -> Graph:
    shape = Shape(kernels=3 + seed % 4, inputs=2 + seed % 3, indegree=(1, 3), outdegree=(1, 2), seed=seed)
    return generator.random_graph(shape, elements=64)  # 256 bytes: no padding between members of a group


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for index, group in enumerate(smaller):
            yield [*smaller[:index], [first, *group], *smaller[index + 1 :]]


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
            choices.append([(slot, members[0].up, tuple(group)) for slot in range(first, last + 1)])
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
            found = limit.fitting(limited, crossings, bound)
            wanted = least_groups(limited)
            if wanted is None:
                assert found.groups == ()
                continue
            tried += 1
            assert found.least
            assert len(found.groups) == wanted, (seed, limit_bytes)
            harder += wanted > bound
            slots = [0] * len(crossings)
            for slot, _, numbers in found.groups:
                for number in numbers:
                    slots[number] = slot
            assert simulated_peak(limited, slots, found.groups) == found.peak_bytes <= limit_bytes
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
            found = limit.fitting(limited, crossings, bound)
            assert found.peak_bytes <= (limited.limit_bytes or 0)
            assert bound <= len(found.groups) <= len(crossings)
            assert found.least == (len(found.groups) == bound)
            claimed += found.least
        assert found.least, "with room for everything, the fewest are found"
    assert 12 <= claimed < 36


# --- as a job -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_under_a_limit_fits_and_says_what_is_proven(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
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


def test_a_limit_makes_allocations_count_and_no_claim_too_much(analyse: Callable[..., Analysis]) -> None:
    analysis = analyse("random24", "limits: {device_bytes: 400000}")
    schedules: Schedules = analysis.payload.schedules
    assert analysis.payload.offer.counted
    assert any("bytes on the device" in line for line in claims(schedules))
    least = schedules.least()
    assert least.proven == (least.schedule.startups == least.lower_bound)
    text = "not proven to be the fewest" if not least.proven else "proven to be the fewest"
    assert any(text in line for line in claims(schedules))


def test_one_allocation_is_not_offered_where_it_does_not_fit(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    analysis = analyse("fig2", "limits: {device_bytes: 100000}")
    config = Config.of(
        {
            "grouping": "interval_stabbing",
            "send": "message",
            "memory": "pageable",
            "allocation": "one",
            "issue": "one_stream",
        }
    )
    assert isinstance(strategy.emit(analysis, config, {}), Rejection)
    roomy = analyse("fig2", "limits: {device_bytes: 1000000}")
    assert isinstance(strategy.emit(roomy, config, {}), Program)
