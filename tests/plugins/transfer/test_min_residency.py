"""Among the fewest messages, the least bytes x slots on the device: against all ways there are."""

from __future__ import annotations

import dataclasses
import itertools
import random

from fusiond_transfer.analysis import interval_stabbing, intervals, min_residency, schedule
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph


def uneven(seed: int) -> Graph:
    """A small random graph whose vectors have different sizes."""
    shape = Shape(kernels=3 + seed % 4, inputs=2 + seed % 3, indegree=(1, 3), outdegree=(1, 2), seed=seed)
    graph = random_graph(shape)
    drawn = random.Random(seed)
    vectors = tuple(dataclasses.replace(each, elements=drawn.randint(1, 9)) for each in graph.vectors)
    return dataclasses.replace(graph, vectors=vectors)


def least_byte_slots(crossings: list[Crossing], points: int) -> int:
    """Brute force: over all sets of so many slots that stab every interval, and every vector's best slot among them."""
    slots = sorted({slot for each in crossings for slot in range(each.earliest, each.latest + 1)})
    best = None
    for chosen in itertools.combinations(slots, points):
        total = 0
        for each in crossings:
            within = [slot for slot in chosen if each.earliest <= slot <= each.latest]
            if not within:
                break
            total += min(min_residency.byte_slots([each], [slot]) for slot in within)
        else:
            best = total if best is None else min(best, total)
    assert best is not None
    return best


def test_the_tight_schedule_is_the_tightest_of_the_fewest() -> None:
    saved = 0
    for seed in range(250):
        graph = uneven(seed)
        crossings = intervals.crossings(graph)
        bound = schedule.bound(graph, crossings)
        slots, proven = schedule.min_resident(graph, crossings, bound)
        assert proven
        for up in (True, False):
            chosen = [(each, slot) for each, slot in zip(crossings, slots, strict=True) if each.up is up]
            some = [each for each, _ in chosen]
            points = len(interval_stabbing.stab(some).points)
            assert len({slot for _, slot in chosen}) <= points
            wanted = least_byte_slots(some, points)
            assert min_residency.byte_slots(some, [slot for _, slot in chosen]) == wanted, (seed, up)
        early = schedule.stabbed(graph, crossings, bound)
        saved += min_residency.byte_slots(crossings, early) - min_residency.byte_slots(crossings, slots)
    assert saved > 0


def test_above_the_work_nothing_is_claimed(monkeypatch: object) -> None:
    graph = uneven(3)
    crossings = intervals.crossings(graph)
    old = min_residency.MOST_WORK
    try:
        min_residency.MOST_WORK = 0
        slots, proven = schedule.min_resident(graph, crossings, schedule.bound(graph, crossings))
    finally:
        min_residency.MOST_WORK = old
    assert not proven
    assert all(each.earliest <= slot <= each.latest for each, slot in zip(crossings, slots, strict=True))


def test_byte_slots_by_hand() -> None:
    upload = Crossing("a", True, 0, 3, 5, 8)
    download = Crossing("b", False, 2, 9, 4, 2)
    assert min_residency.byte_slots([upload], [3]) == 8 * 3  # at kernels 3, 4, 5
    assert min_residency.byte_slots([download], [3]) == 2 * 3  # at 2, 3, 4: it is read at 4 in any case
    assert min_residency.byte_slots([download], [9]) == 2 * 8
