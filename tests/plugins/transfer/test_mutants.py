"""The planner broken on purpose, one rule at a time: the simulator, or the plan's own invariants, must see it."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fusiond.model.program import problems
from fusiond_transfer.analysis import interval_stabbing, intervals, script
from fusiond_transfer.analysis import loops as loop_scripts
from fusiond_transfer.analysis import schedule as schedules
from fusiond_transfer.analysis.intervals import Crossing
from fusiond_transfer.analysis.schedule import _Lives
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Move, Script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, _Steps, program
from fusiond_transfer.frontend import generator
from fusiond_transfer.frontend.graph import Graph
from tests.plugins.transfer.kernel_graph import KernelGraph

EXECUTIONS = (
    Execution(), Execution(issue="overlapped"), Execution(issue="overlapped", send="batch"),
    Execution(allocation="group", issue="overlapped"),
)  # fmt: skip


def straight() -> list[Graph]:
    shapes = [
        generator.Shape(kernels=8, inputs=3, indegree=(1, 3), outdegree=(1, 2), seed=seed) for seed in range(6)
    ]  # fmt: skip
    return [generator.random_graph(shape, elements=8) for shape in shapes]


def loops() -> list[Graph]:
    """Values that wrap round, up and down."""
    graph = KernelGraph("wraps", elements=4)
    graph.inputs("x", "y", "z")
    graph.device("d0", reads=("x", "z"), writes=("u",))
    graph.host("h0", reads=("u",), writes=("x2",))
    graph.host("h1", reads=("y",), writes=("v",))
    graph.device("d1", reads=("u", "v"), writes=("y2",))
    graph.outputs("x2", "y2")
    graph.loop({"x": "x2", "y": "y2"})
    return [graph.build()]


def turned() -> list[Graph]:
    """Storage that the host and the device use in turn: written over as soon as its last reader is done."""
    graph = KernelGraph("turned", elements=8)
    graph.inputs("x0", "a")
    graph.device("d0", reads=("x0", "a"), writes=("u",))
    graph.host("h0", reads=("x0",), writes=("x1",), in_place={"x1": "x0"})
    graph.device("d1", reads=("x1", "u"), writes=("x2",), in_place={"x2": "x1"})
    graph.host("h1", reads=("x2",), writes=("x3",), in_place={"x3": "x2"})
    graph.device("d2", reads=("x3", "a"), writes=("w",))
    graph.outputs("w")
    return [graph.build()]


def seen(graphs: Sequence[Graph], executions: Sequence[Execution] = EXECUTIONS) -> bool:
    """Whether anything says that a plan is wrong."""
    for graph in graphs:
        try:
            found = Schedules(graph)
            made = [found.separate(early=True), found.separate(early=False), found.grouping("interval_stabbing")]
            made.append(found.grouping("min_residency"))
            plans = [script.script(each) for each in made]
            emitted = [
                (plan, program(plan, execution, name="x"))
                for plan in plans for execution in executions if not graph.loop or execution.allocation == "ahead"
            ]  # fmt: skip
        except (ValueError, KeyError, AssertionError):
            return True
        if any(problems(each) or simulate.faults(plan, each) for plan, each in emitted):
            return True
    return False


def test_nothing_is_seen_where_nothing_is_broken() -> None:
    assert not seen([*straight(), *loops(), *turned()])


# --- one rule broken ------------------------------------------------------------------------------------


CROSSINGS, STAB, TOUCH = intervals.crossings, interval_stabbing.stab, _Steps._touch
CELL, LOOPED = loop_scripts._Turns.cell, loop_scripts.looped
OVERLAPPED = (Execution(issue="overlapped"),)


def shifted(up: bool, first: int, last: int) -> Callable[[Graph], tuple[Crossing, ...]]:
    def crossings(graph: Graph) -> tuple[Crossing, ...]:
        return tuple(
            each._replace(earliest=each.earliest + first, latest=each.latest + last) if each.up is up else each
            for each in CROSSINGS(graph)
        )

    return crossings


def without(up: bool) -> Callable[[Graph], tuple[Crossing, ...]]:
    return lambda graph: tuple(each for each in CROSSINGS(graph) if each.up is not up)


def fewer(crossings: Sequence[Crossing]) -> interval_stabbing.Stabbing:
    found = STAB(crossings)
    return interval_stabbing.Stabbing(points=found.points[:-1], witnesses=found.witnesses[:-1])


def forgetful(self: Any, step: str, reads: Any, writes: Any, lane: int) -> tuple[str, ...]:
    """Without waiting for readers, a cell is overwritten while it is still read."""
    for uses in self._uses.values():
        uses.readers.clear()
    return TOUCH(self, step, reads, writes, lane)


def bare(schedule: Any) -> Script:
    """What is not in its place before the steady state."""
    found = LOOPED(schedule)
    ops = tuple(op for op in found.ops if not (isinstance(op, Move) and op.name.startswith("place_")))
    return dataclasses.replace(found, ops=ops)


SHIFTS = {
    "uploads one slot too late": (True, 0, 1), "uploads one slot too early": (True, -1, 0),
    "downloads one slot too late": (False, 0, 1), "downloads one slot too early": (False, -1, 0),
}  # fmt: skip
Mutant = tuple[object, str, object, Callable[[], list[Graph]], Sequence[Execution]]
MUTANTS: dict[str, Mutant] = {
    **{f"{name}, {graphs.__name__}": (intervals, "crossings", shifted(*by), graphs, EXECUTIONS)
       for name, by in SHIFTS.items() for graphs in (straight, loops)},
    **{f"{name} are forgotten": (intervals, "crossings", without(up), straight, EXECUTIONS)
       for name, up in (("uploads", True), ("downloads", False))},
    "a point is dropped": (interval_stabbing, "stab", fewer, straight, EXECUTIONS),
    "waits for writers only": (_Steps, "_touch", forgetful, turned, OVERLAPPED),
    "waits that are taken for granted": (_Steps, "_touch", lambda *given: TOUCH(*given) and (), straight, OVERLAPPED),
    "a carried cell crosses in its own turn": (
        loop_scripts._Turns, "crossing", lambda self, vector, turn: self.cell(vector, turn), loops, EXECUTIONS),
    "a carried cell is always the first": (
        loop_scripts._Turns, "cell", lambda self, vector, turn: CELL(self, vector, 0), loops, EXECUTIONS),
    "nothing is placed before": (loop_scripts, "looped", bare, loops, EXECUTIONS),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, instead, graphs, executions = MUTANTS[name]
    monkeypatch.setattr(where, what, instead)
    assert seen(graphs(), executions)


def neighbours() -> Iterator[Graph]:
    """b lies between a and c, which go up late; b's own new value has come up before, and is read last."""
    graph = KernelGraph("between", elements=8)
    graph.inputs("a", "c", "k")
    graph.device("d0", reads=("k",), writes=("b",))
    graph.host("h0", reads=("k",), writes=("t",))
    graph.device("d1", reads=("a", "c", "t", "b"), writes=("e",))
    graph.adjacent("a", "b", "c")
    graph.outputs("e", "b")
    yield graph.build()


def test_a_gap_that_holds_something_is_not_copied_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = neighbours()
    crossings = intervals.crossings(graph)
    late = [each.latest for each in crossings]

    def made() -> tuple[Script, Any]:
        plan = script.script(schedules.scheduled(graph, crossings, late))
        return plan, program(plan, Execution(), name="x")

    plan, right = made()
    assert simulate.faults(plan, right) == ()
    monkeypatch.setattr(_Lives, "harmless", lambda self, name, slot, up: True)
    plan, wrong = made()
    assert simulate.faults(plan, wrong) != ()


def test_an_arena_that_is_freed_with_its_first_reader_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last op that touches an arena is taken for the first."""
    from fusiond_transfer.codegen import emit

    right = emit.stays
    monkeypatch.setattr(emit, "stays", lambda *given, leaving: {
        stay: (first, first) for stay, (first, _) in right(*given, leaving=leaving).items()
    })  # fmt: skip
    graph = straight()[0]
    plan = script.script(Schedules(graph).grouping("interval_stabbing"))
    assert simulate.faults(plan, program(plan, Execution(allocation="group"), name="x")) != ()
