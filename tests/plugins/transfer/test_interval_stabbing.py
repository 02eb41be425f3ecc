"""The fewest messages: against brute force, against the paper's numbers and its own heuristic."""

import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.program import Program
from fusiond_transfer.analysis import heuristic, interval_stabbing, intervals, min_residency, schedule, schedules
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedules import Schedules, reordered
from fusiond_transfer.frontend import verify
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer

from .conftest import Analyse, Read
from .one_memory_chain import config_with

GROUPINGS = ("paper_greedy", "paper_tight", "interval_stabbing", "min_residency")


def small(seed: int) -> Graph:
    """A random graph of up to seven kernels."""
    shape = Shape(
        kernels=2 + seed % 6, inputs=1 + seed % 4, indegree=(1, 3), outdegree=(1, 2), seed=seed,
        device_percent=(30, 50, 70)[seed % 3],
    )  # fmt: skip
    return random_graph(shape, elements=64)


def fewest_slots(crossings: Sequence[Crossing]) -> int:
    """Brute force: the smallest set of slots that every crossing has one of, by trying all sets."""
    slots = sorted({slot for each in crossings for slot in range(each.earliest, each.latest + 1)})
    for count in range(len(slots) + 1):
        for chosen in itertools.combinations(slots, count):
            if all(any(each.earliest <= slot <= each.latest for slot in chosen) for each in crossings):
                return count
    raise AssertionError


def fewest_runs(crossings: Sequence[Crossing]) -> int:
    """Brute force by the paper's definition: over all orders in memory, the fewest runs of neighbours that go one way
    and have a slot in common."""
    best = len(crossings)
    for sequence in itertools.permutations(crossings):
        runs, low, high, up = 0, 1, 0, None
        for each in sequence:
            low, high = max(low, each.earliest), min(high, each.latest)
            if each.up is not up or low > high:
                runs, low, high, up = runs + 1, each.earliest, each.latest, each.up
        best = min(best, runs)
    return best


def test_500_random_graphs_against_all_sets_of_slots() -> None:
    for seed in range(500):
        graph = small(seed)
        crossings = intervals.crossings(graph)
        wanted = sum(fewest_slots([each for each in crossings if each.up is up]) for up in (True, False))
        for grouping in ("interval_stabbing", "min_residency"):
            assert Schedules(graph).grouping(grouping).startups == wanted, (seed, grouping)
        bound = schedule.bound(graph, crossings)
        assert len(bound.up.witnesses) + len(bound.down.witnesses) == wanted, "as many witnesses as points"


@pytest.mark.slow
def test_random_graphs_against_all_orders_in_memory() -> None:
    tried = 0
    for seed in range(400):
        graph = small(seed)
        crossings = intervals.crossings(graph)
        if len(crossings) <= 6:
            tried += 1
            assert Schedules(graph).grouping("interval_stabbing").startups == fewest_runs(crossings), seed
    assert tried >= 150


def test_witnesses_have_no_slot_in_common() -> None:
    for seed in range(100):
        graph = small(seed)
        bound = schedule.bound(graph, intervals.crossings(graph))
        for witnesses in (bound.up.witnesses, bound.down.witnesses):
            for a, b in itertools.combinations(witnesses, 2):
                assert a.latest < b.earliest or b.latest < a.earliest


@pytest.mark.parametrize(
    ("name", "saved", "greedy", "tight"),
    [
        ("fig2", 7, 7, 7), ("chain", 0, 0, 0), ("out_tree", 15, 15, 15), ("in_tree", 15, 15, 8),
        ("in_tree31", 31, 31, 16),
    ],
)  # fmt: skip
def test_the_numbers_that_the_papers_text_determines(
    name: str, saved: int, greedy: int, tight: int, graph: Read
) -> None:
    """Table 4: `saved` of the best, of the greedy and of the tight heuristic."""
    found = [
        Schedules(graph(name)).grouping(grouping).saved
        for grouping in ("interval_stabbing", "paper_greedy", "paper_tight")
    ]
    assert found == [saved, greedy, tight]


def test_figure_2_as_the_paper_prints_it(graph: Read) -> None:
    """Section 4: the intervals, and both schedules."""
    crossings = {each.vector: (each.up, each.earliest, each.latest) for each in intervals.crossings(graph("fig2"))}
    assert crossings == {
        "A": (True, 0, 0), "B": (True, 0, 0), "C": (True, 0, 2), "F": (True, 2, 2),
        "D": (False, 0, 4), "E": (False, 0, 0), "I": (False, 2, 4), "J": (False, 3, 4), "K": (False, 3, 4),
        "L": (False, 4, 4), "M": (False, 4, 4),
    }  # fmt: skip
    greedy = [(each.slot, each.up, set(each.vectors)) for each in Schedules(graph("fig2")).least.schedule.messages]
    assert greedy == [(0, True, set("ABC")), (0, False, set("DE")), (2, True, set("F")), (4, False, set("IJKLM"))]
    tight = [
        (each.slot, each.up, set(each.vectors)) for each in Schedules(graph("fig2")).grouping("min_residency").messages
    ]
    assert tight == [(0, True, set("AB")), (0, False, set("DE")), (2, True, set("CF")), (4, False, set("IJKLM"))]


TABLE_4 = (
    (8, 12, (2, 3), (1, 1)), (10, 5, (2, 4), (1, 2)), (16, 12, (1, 4), (1, 2)), (16, 16, (2, 3), (1, 2)),
    (18, 8, (1, 2), (1, 2)), (18, 8, (2, 2), (1, 2)), (20, 8, (1, 1), (1, 1)), (20, 8, (1, 3), (1, 2)),
    (24, 10, (2, 3), (2, 2)), (48, 10, (2, 2), (1, 2)),
)  # fmt: skip


@pytest.mark.slow
def test_never_worse_than_the_heuristic_on_1000_graphs_of_its_sizes() -> None:
    better = 0
    for number in range(1000):
        kernels, inputs, indegree, outdegree = TABLE_4[number % len(TABLE_4)]
        shape = Shape(kernels=kernels, inputs=inputs, indegree=indegree, outdegree=outdegree, seed=number)
        graph = random_graph(shape, elements=64)
        crossings = intervals.crossings(graph)
        exact = schedule.bound(graph, crossings).points
        found = [heuristic.search(graph, crossings, tight=tight).messages for tight in (False, True)]
        assert exact <= min(found), number
        better += exact < found[0]
    assert better > 0, "the heuristic is never beaten: is it run at all?"


def test_more_tries_of_the_heuristic_are_never_lighter() -> None:
    for seed in range(20):
        drawn = random_graph(Shape(kernels=24, inputs=10, indegree=(2, 3), outdegree=(2, 2), seed=seed))
        crossings = intervals.crossings(drawn)
        edges = heuristic.affinity(drawn, crossings)
        few, many = (heuristic.search(drawn, crossings, tight=False, tries=tries) for tries in (4, 40))
        assert _weight(many.order, edges) >= _weight(few.order, edges)


def _weight(order: Sequence[int], edges: heuristic.Affinity) -> float:
    return sum(edges[a].get(b, 0.0) for a, b in itertools.pairwise(order))


def test_tight_uploads_wait_for_siblings_that_are_needed_together(graph: Read) -> None:
    """Figure 2: C crosses with F, before the kernel that needs both, and not with A and B. In Horner's rule nobody has
    a sibling at a later slot: all go up at once, in whatever order they lie."""
    example, horner = graph("fig2"), graph("horner")
    crossings = intervals.crossings(example)
    found = heuristic.search(example, crossings, tight=True)
    at = {each.vector: slot for each, slot in zip(crossings, found.slots, strict=True)}
    assert (at["A"], at["B"], at["C"], at["F"], at["D"], at["E"]) == (0, 0, 2, 2, 0, 0)
    assert found.messages == 4
    crossings = intervals.crossings(horner)
    for seed in range(20):
        assert heuristic.search(horner, crossings, tight=True, seed=seed).messages == 2
    matmul = graph("matmul")
    crossings = intervals.crossings(matmul)
    for seed in range(20):  # siblings that are first needed at different times do not wait for each other
        assert heuristic.search(matmul, crossings, tight=True, seed=seed).messages <= 6


# --- circles --------------------------------------------------------------------------------------------


@st.composite
def circles(draw: st.DrawFn) -> tuple[int, tuple[Crossing, ...]]:
    period = draw(st.integers(1, 9))
    arcs = draw(st.lists(st.tuples(st.integers(0, period - 1), st.integers(0, period)), min_size=1, max_size=9))
    return period, tuple(
        Crossing(f"v{number}", True, begin, begin + length, begin + length, 4)
        for number, (begin, length) in enumerate(arcs)
    )


@given(circles())
@settings(max_examples=120)
def test_a_circle_is_stabbed_by_the_fewest_points(drawn: tuple[int, tuple[Crossing, ...]]) -> None:
    period, arcs = drawn
    found = interval_stabbing.stab_circle(arcs, period)
    assert all(any(interval_stabbing.on_circle(arc, point, period) for point in found.points) for arc in arcs)
    for count in range(len(found.points)):
        for points in itertools.combinations(range(period), count):
            assert not all(any(interval_stabbing.on_circle(arc, point, period) for point in points) for arc in arcs)
    for a, b in itertools.combinations(found.witnesses, 2):
        slots = [{slot % period for slot in range(each.earliest, each.latest + 1)} for each in (a, b)]
        assert not slots[0] & slots[1]
    for arc in arcs:
        for late in (True, False):
            slot = interval_stabbing.chosen(arc, found.points, late=late, period=period)
            assert arc.earliest <= slot <= arc.latest
            assert slot % period in found.points


# --- large graphs ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_grouping_of_a_large_graph_is_consistent() -> None:
    graph = random_graph(Shape(kernels=3000, inputs=50, indegree=(1, 3), outdegree=(1, 2), seed=5))
    exact = Schedules(graph).grouping("interval_stabbing")
    tight = Schedules(graph).grouping("min_residency")
    assert exact.startups == tight.startups == schedule.bound(graph, exact.crossings).points
    for found in (exact, tight):
        for each, slot in zip(found.crossings, found.slots, strict=True):
            assert each.earliest <= slot <= each.latest
        names = [name for message in found.messages for name in message.vectors]
        assert sorted(names) == sorted(each.vector for each in found.crossings)


# --- among the fewest messages, the least bytes x slots on the device -----------------------------------


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


# --- another order of the kernels -----------------------------------------------------------------------


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
        other = schedules.by_levels(graph)
        assert next(iter(verify.problems(other)), None) is None, "still a topological order"
        found = schedule.bound(other, intervals.crossings(other)).points
        best = least_of_all_orders(graph)
        assert schedules.bound_of_any_order(graph) <= best <= found, seed
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
            assert other.least.schedule.startups < schedules.least.schedule.startups
    assert offered >= 20


def test_the_matrix_product_needs_two_messages_in_another_order(analyse: Analyse, strategy: Transfer) -> None:
    """All products first, then all sums: everything goes up at once, and comes down at once."""
    analysis = analyse("matmul")
    report = analysis.report["reordered"]
    assert (report["startups"], report["lower_bound"], report["optimal"]) == (2, 2, True)
    made = strategy.emit(analysis, config_with(memory="pageable", issue="one_stream", order="reordered"), {})
    assert isinstance(made, Program)
    assert sum(type(step).__name__ == "Copy" for step in made.steps) == 2
    names = [parameter.name for parameter in strategy.baselines(analysis)[0].space.parameters]
    assert "order" in names, "the unfused way gets the better order too"


def test_loops_and_storage_in_place_keep_their_order(graph: Read) -> None:
    assert reordered(Schedules(graph("cg"))) is None
