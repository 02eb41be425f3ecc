"""Loops: intervals that wrap round, cells that take turns, and what is in its place before the steady state."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model.program import Copy, problems
from fusiond_transfer.analysis import intervals
from fusiond_transfer.analysis.schedules import Schedules, claims
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from fusiond_transfer.python import KernelGraph


def random_loop(seed: int) -> Graph:
    """A loop with two or three carried vectors and an input that stays."""
    drawn = random.Random(seed)
    graph = KernelGraph(f"loop{seed}", elements=4)
    heads = [f"x{number}" for number in range(drawn.randint(1, 3))]
    known = [*heads, *graph.inputs("stays")]
    graph.inputs(*heads)
    made: list[str] = []
    for k in range(drawn.randint(max(2, len(heads)), 6)):
        reads = drawn.sample(known, drawn.randint(1, min(3, len(known))))
        made += graph.kernel(f"k{k}", drawn.choice((HOST, DEVICE)), reads=reads, writes=(f"y{k}",))
        known += made[-1:]
    tails = drawn.sample(made, len(heads))
    graph.loop(dict(zip(heads, tails, strict=True)), iterations=drawn.choice((1, 2, 3, 5)))
    graph.outputs(*drawn.sample(made, 1))
    return graph.build()


@pytest.mark.slow
@pytest.mark.parametrize("send", ["message", "batch"])
def test_random_loops_compute_what_they_should(send: str) -> None:
    wrapped = 0
    for seed in range(30):
        graph = random_loop(seed)
        schedules = Schedules(graph)
        wrapped += sum(each.latest >= len(graph.kernels) for each in schedules.crossings)
        for grouping in ("separate", "interval_stabbing", "min_residency"):
            plan = script(schedules.grouping(grouping))
            for issue in ("one_stream", "overlapped"):
                made = program(plan, Execution(issue=issue, send=send), name="x")
                assert problems(made) == (), seed
                assert simulate.faults(plan, made) == (), (seed, grouping, issue)
    assert wrapped >= 5


def test_the_steady_state_has_as_many_messages_in_every_turn() -> None:
    for seed in range(60):
        graph = dataclasses.replace(random_loop(seed), iterations=5)
        schedules = Schedules(graph)
        found = schedules.least().schedule
        plan = script(found)
        made = program(plan, Execution(), name="x")
        counted = [step.name for step in made.steps if isinstance(step, Copy) and step.counted]
        for turn in range(5):
            assert sum(name.endswith(f"_i{turn}") for name in counted) == found.startups


def test_conjugate_gradient_sends_its_direction_down_and_the_product_up(graph: Callable[..., Graph]) -> None:
    schedules = Schedules(graph("cg"))
    found = schedules.least()
    assert [(each.up, each.vectors) for each in found.schedule.messages] == [(True, ("q",)), (False, ("p_next",))]
    assert found.proven
    assert any("a loop" in line for line in claims(schedules))
    (direction,) = (each for each in schedules.crossings if not each.up)
    # p_next is computed by the last kernel, the first of the next iteration reads it on the host.
    assert (direction.vector, direction.earliest, direction.latest) == ("p_next", 6, 6)


def test_an_interval_wraps_round() -> None:
    graph = KernelGraph("wraps", elements=4)
    graph.inputs("x", "y")
    graph.device("d0", reads=("x",), writes=("u",))
    graph.host("h0", reads=("u",), writes=("x2",))
    graph.host("h1", reads=("y",), writes=("v",))
    graph.device("d1", reads=("u", "v"), writes=("y2",))
    graph.outputs("x2", "y2")
    graph.loop({"x": "x2", "y": "y2"})
    found = {each.vector: (each.up, each.earliest, each.latest) for each in intervals.crossings(graph.build())}
    assert found["x2"] == (True, 2, 4)  # before kernel 2, 3, or 0 of the next iteration
    assert found["y2"] == (False, 3, 5)  # behind kernel 3, or 0 and 1 of the next
    assert found["v"] == (True, 3, 3)
    schedules = Schedules(graph.build())
    assert schedules.least().schedule.startups == 2  # x2 with v; y2 with u
    assert {frozenset(each.vectors) for each in schedules.least().schedule.messages} >= {frozenset({"u", "y2"})}


@pytest.mark.slow
def test_a_loop_of_hashes_on_the_device_is_the_plain_one(device: Any) -> None:
    """On the cpu device, with copies late and early: the outputs of every way are those of the separate one."""
    for seed in (3, 8, 21):
        graph = random_loop(seed)
        schedules = Schedules(graph)
        results = []
        for grouping in ("separate", "interval_stabbing", "min_residency"):
            made = program(script(schedules.grouping(grouping)), Execution(issue="overlapped"), name="x")
            results += [device.run(made, seed=order, kind=order % 2) for order in range(3)]
        for found in results[1:]:
            for name, values in results[0].items():
                np.testing.assert_array_equal(found[name], values, err_msg=f"{seed} {name}")
