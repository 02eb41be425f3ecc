"""Layouts: against all orders; storage in place, neighbours that are asked for, what may be copied along."""

import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest

from fusiond_transfer.analysis import intervals, layout, schedule
from fusiond_transfer.analysis.constrained_stabbing import constrained
from fusiond_transfer.analysis.schedule import scheduled
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import Graph
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Read


def messages(order: Sequence[str], groups: Sequence[Sequence[str]]) -> int:
    places = ({order.index(name) for name in group} for group in groups)
    return sum(at - 1 not in there for there in places for at in there)


def test_the_layout_takes_the_fewest_messages_of_all_orders() -> None:
    for seed in range(60):
        drawn = random.Random(seed)
        cells = [f"c{number}" for number in range(drawn.randint(2, 6))]
        groups = [drawn.sample(cells, drawn.randint(1, len(cells))) for _ in range(drawn.randint(1, 4))]
        used = sorted({name for group in groups for name in group})
        found = layout.laid_out(groups)
        assert sorted(found) == used
        best = min(messages(order, groups) for order in itertools.permutations(used))
        assert messages(found, groups) == best, seed


def test_neighbours_stay_together() -> None:
    for seed in range(40):
        drawn = random.Random(seed)
        cells = [f"c{number}" for number in range(6)]
        groups = [drawn.sample(cells, drawn.randint(1, 5)) for _ in range(3)]
        found = layout.laid_out(groups, [("c0", "c3"), ("c5", "c1")])
        text = " ".join(found)
        for run in ("c0 c3", "c5 c1"):
            if any(name in text.split() for name in run.split()):
                assert run in text


def test_many_cells_in_several_groups_are_joined() -> None:
    groups = [[f"c{number}", f"c{number + 1}"] for number in range(20)]
    found = layout.laid_out(groups)
    assert messages(found, groups) == 20, "a chain of pairs fits on a line"


def test_offsets_are_aligned() -> None:
    places, end = layout.offsets(("a", "b", "c"), {"a": 4, "b": 256, "c": 12})
    assert places == {"a": 0, "b": 256, "c": 512}
    assert end == 524


# --- storage in place -----------------------------------------------------------------------------------


def in_place() -> Graph:
    """One storage that crosses three times, each time in other company."""
    graph = KernelGraph("in_place", elements=8)
    graph.inputs("x0", "a", "b", "c")
    graph.device("d0", reads=("x0", "a"), writes=("x1", "u"), in_place={"x1": "x0"})
    graph.host("h0", reads=("x1", "u"), writes=("x2", "v"), in_place={"x2": "x1"})
    graph.device("d1", reads=("x2", "v"), writes=("x3", "w"), in_place={"x3": "x2"})
    graph.outputs("x3", "w")
    return graph.build()


def test_runs_of_storage_in_place_are_joined_over_what_holds_nothing_yet() -> None:
    """x goes up with a, down with u, up with v, down with w. Six runs at best, since a cell has two neighbours; four
    messages, since what lies between may be copied along before it is there."""
    groups = (("x", "a"), ("x", "u"), ("x", "v"), ("x", "w"))
    assert min(messages(order, groups) for order in itertools.permutations("xauvw")) == 6
    schedules = Schedules(in_place())
    least = schedules.least
    assert (least.schedule.startups, schedules.bound.points, least.proven) == (4, 4, True)
    assert any(each.filler for each in least.schedule.messages)


def star() -> Graph:
    """x is replaced on the host together with p, then with q, then with r, and all stay on the device throughout."""
    graph = KernelGraph("star", elements=8)
    graph.inputs("x0", "p0", "q0", "r0")
    graph.device("d0", reads=("x0", "p0", "q0", "r0"), writes=("t0",))
    graph.host("h1", reads=("x0", "p0"), writes=("x1", "p1"), in_place={"x1": "x0", "p1": "p0"})
    graph.device("d1", reads=("x1", "p1", "q0", "r0"), writes=("t1",))
    graph.host("h2", reads=("x1", "q0"), writes=("x2", "q1"), in_place={"x2": "x1", "q1": "q0"})
    graph.device("d2", reads=("x2", "p1", "q1", "r0"), writes=("t2",))
    graph.host("h3", reads=("x2", "r0"), writes=("x3", "r1"), in_place={"x3": "x2", "r1": "r0"})
    graph.device("d3", reads=("x3", "p1", "q1", "r1"), writes=("t3",))
    graph.outputs("t3")
    return graph.build()


def test_storage_in_place_breaks_the_bound_and_says_so() -> None:
    """x would need three neighbours: five points in time, six messages, and all layouts were tried."""
    schedules = Schedules(star())
    least = schedules.least
    assert (least.schedule.startups, schedules.bound.points, least.proven) == (6, 5, True)
    assert not schedules.min_residency.proven
    assert "storage is shared in place" in claims(schedules)[0]
    plan = script(least.schedule)
    assert simulate.faults(plan, program(plan, Execution(issue="overlapped"), name="x")) == ()


def test_a_tangle_too_large_to_try_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = star()
    crossings = intervals.crossings(graph)
    bound = schedule.bound(graph, crossings)
    slots = schedule.stabbed(graph, crossings, bound)
    monkeypatch.setattr("fusiond_transfer.analysis.constrained_stabbing.EXHAUSTIVE", 0)
    found = constrained(graph, crossings, slots, bound.points)
    assert not found.proven
    assert found.schedule.startups <= scheduled(graph, crossings, slots).startups


def test_programs_in_place_compute_what_the_graph_does() -> None:
    graph = in_place()
    schedules = Schedules(graph)
    for grouping in ("separate", "paper_greedy", "interval_stabbing", "min_residency"):
        plan = script(schedules.grouping(grouping))
        for issue in ("one_stream", "overlapped"):
            found = simulate.faults(plan, program(plan, Execution(issue=issue), name="x"))
            assert found == (), (grouping, issue)


# --- what lies between ----------------------------------------------------------------------------------


def spread() -> KernelGraph:
    """a and c go up; b lies between them by the user's wish."""
    graph = KernelGraph("spread", elements=64)
    graph.inputs("a", "b", "c")
    graph.adjacent("a", "b", "c")
    return graph


def test_a_gap_that_nobody_needs_is_copied_along() -> None:
    graph = spread()
    graph.device("d", reads=("a", "c"), writes=("e",))
    graph.host("h", reads=("b", "e"), writes=("f",))
    graph.outputs("f")
    found = Schedules(graph.build()).least
    upload = next(each for each in found.schedule.messages if each.up)
    assert (upload.vectors, upload.filler) == (("a", "c"), ("b",))
    assert found.proven
    plan = script(found.schedule)
    for issue in ("one_stream", "overlapped"):
        assert simulate.faults(plan, program(plan, Execution(issue=issue), name="x")) == ()


def test_a_gap_that_holds_something_is_skipped() -> None:
    """b is on the device already, stored over by a kernel there: the host's copy is old."""
    graph = KernelGraph("held", elements=64)
    graph.inputs("a", "b", "c")
    graph.adjacent("a", "b", "c")
    graph.device("d0", reads=("b",), writes=("b1",), in_place={"b1": "b"})
    graph.host("h0", reads=("c",), writes=("t",))
    graph.host("h1", reads=("t",), writes=("s",))
    graph.device("d1", reads=("a", "c", "b1", "s"), writes=("e",))
    graph.outputs("e")
    built = graph.build()
    crossings = intervals.crossings(built)
    late = tuple(3 if each.up and each.vector in "ac" else each.latest for each in crossings)
    found = scheduled(built, crossings, late)
    assert not any("b.store" in each.filler for each in found.messages)
    plan = script(found)
    assert simulate.faults(plan, program(plan, Execution(), name="x")) == ()


def test_a_gap_is_copied_only_where_that_is_worth_it() -> None:
    graph = spread()
    graph.device("d", reads=("a", "c"), writes=("e",))
    graph.outputs("e")
    built = graph.build()
    crossings = intervals.crossings(built)
    slots = [each.latest for each in crossings]
    asked: list[tuple[bool, int]] = []

    def worth(up: bool, gap_bytes: int) -> bool:
        asked.append((up, gap_bytes))
        return False

    found = scheduled(built, crossings, slots, worth=worth)
    assert asked == [(True, 64 * 4)]
    assert [each.vectors for each in found.messages if each.up] == [("a",), ("c",)]


def test_neighbours_of_the_catalogue_matrix(graph: Read) -> None:
    """The paper's matrix product with the quarters of each operand side by side: as many messages as without."""
    plain = graph("matmul")
    wanted = tuple(tuple(f"{letter}{i}{j}" for i in (0, 1) for j in (0, 1)) for letter in "AB")
    found = Schedules(dataclasses.replace(plain, adjacent=wanted)).least
    assert found.proven
    assert found.schedule.saved == 11
    order = " ".join(found.schedule.order)
    assert "A00 A01 A10 A11" in order
    assert "B00 B01 B10 B11" in order


def test_what_is_glued_follows_without_a_gap() -> None:
    """b and c are pieces of one vector with a; d begins at the next multiple of 256 behind them. Without a, b and what
    follows it lie as far from a multiple of 256 as with it; c does not follow a."""
    sizes = {"a": 100, "b": 40, "c": 300, "d": 8}
    glued = {"a": ("v", 0), "b": ("v", 100), "c": ("v", 140)}
    assert layout.offsets("abcd", sizes, glued) == ({"a": 0, "b": 100, "c": 140, "d": 512}, 520)
    assert layout.offsets("dbc", sizes, glued) == ({"d": 0, "b": 356, "c": 396}, 696)
    assert layout.offsets("acd", sizes, glued) == ({"a": 0, "c": 396, "d": 768}, 776)
    assert layout.offsets("abcd", sizes) == ({"a": 0, "b": 256, "c": 512, "d": 1024}, 1032)
