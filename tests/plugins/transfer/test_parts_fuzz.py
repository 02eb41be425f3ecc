"""Random graphs with parts of vectors: their Programs in NumPy's memory give what NumPy gives, in every order."""

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest

from fusiond.model.program import Prefetch, Program, problems
from fusiond_transfer.analysis import mapped_or_managed
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script, script
from fusiond_transfer.codegen import emit, simulate
from fusiond_transfer.codegen.emit import STREAMS, Execution
from fusiond_transfer.codegen.pipeline import ORDERS
from fusiond_transfer.frontend.graph import MANAGED, MAPPED

from . import parts_machine
from .conftest import Read

pytestmark = pytest.mark.slow


def is_numpys(drawn: parts_machine.Drawn, plan: Script, program: Program, seed: int) -> None:
    assert problems(program) == (), seed
    assert simulate.faults(plan, program) == (), seed
    given = drawn.given(seed)
    wanted = drawn.computed(given)
    for order in (None, seed, seed + 1, seed + 2):
        found = parts_machine.run(program, drawn.steps, given, order)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"seed {seed}, {order}: {name}\n{drawn.text}")


def in_chunks(seed: int, graph: Read) -> int:
    """How many steps are for chunks."""
    draw = random.Random(seed)
    drawn = parts_machine.drawn(seed, 4, length=720)
    plan = script(Schedules(graph(drawn.text)).grouping(draw.choice(["interval_stabbing", "min_residency"])))
    execution = Execution(
        memory="pinned", issue="overlapped", chunks=draw.choice([2, 3, 5, 16]), least_chunk_bytes=1,
        streams=draw.choice(STREAMS), chunk_order=draw.choice(ORDERS), send=draw.choice(["message", "batch"]),
    )  # fmt: skip
    program = emit.program(plan, execution, name="parts")
    is_numpys(drawn, plan, program, seed)
    return sum("#" in each.name for each in program.steps)


def test_chunks_of_parts(graph: Read) -> None:
    assert sum(in_chunks(seed, graph) for seed in range(10)) > 160


# --- allocations that count -----------------------------------------------------------------------------


def allocated(seed: int, graph: Read) -> None:
    draw = random.Random(seed)
    drawn = parts_machine.drawn(seed, 5)
    schedules = Schedules(graph(drawn.text))
    for allocation in ("each", "group", "one", "pooled"):
        grouping = draw.choice(["separate", "interval_stabbing", "min_residency"])
        sends = ["batch"] if allocation == "each" and grouping != "separate" else ["message", "batch"]
        execution = Execution(allocation=allocation, issue=draw.choice(["one_stream", "overlapped"]),
                              send=draw.choice(sends))  # fmt: skip
        plan = script(schedules.grouping(grouping))
        is_numpys(drawn, plan, emit.program(plan, execution, name="parts"), seed)


def test_allocations_of_pieces(graph: Read) -> None:
    for seed in range(5):
        allocated(seed, graph)


# --- one memory for both sides --------------------------------------------------------------------------


def in_one_memory(seed: int, graph: Read) -> int:
    """How many prefetches there are."""
    draw = random.Random(seed)
    kinds = draw.choice([[MAPPED], [MANAGED], [MAPPED, MANAGED]])
    there = ", ".join(f"{name}: {{memory: {draw.choice(kinds)}}}" for name in ("a", "v0", "v2", "v3")
                      if draw.random() < 0.7)  # fmt: skip
    drawn = parts_machine.drawn(seed, 5, head=f"vectors: {{{there}}}\n")
    schedule = Schedules(graph(drawn.text)).least().schedule
    plan = mapped_or_managed.placed(
        schedule, **{kind: draw.choice(list(mapped_or_managed.choices(schedule.graph, kind))) for kind in kinds}
    )
    execution = Execution(memory="pinned", issue=draw.choice(["one_stream", "overlapped"]),
                          send=draw.choice(["message", "batch"]))  # fmt: skip
    program = emit.program(plan, execution, name="parts")
    is_numpys(drawn, plan, program, seed)
    return sum(isinstance(each, Prefetch) for each in program.steps)


def test_pieces_in_one_memory(graph: Read) -> None:
    assert sum(in_one_memory(seed, graph) for seed in range(10)) > 12


# --- storage --------------------------------------------------------------------------------------------


def placed(seed: int, graph: Read) -> int:
    """Inputs that lie on the device, and neighbours; how many inputs lie there."""
    draw = random.Random(seed)
    head = draw.choice(["", "placed: [a]\n", "placed: [a, b]\n", "placed: [b]\nadjacent: [[v0, v2]]\n"])
    drawn = parts_machine.drawn(seed, 4, head=head)
    schedules = Schedules(graph(drawn.text))
    for grouping in ("interval_stabbing", draw.choice(["separate", "min_residency", "paper_tight"])):
        plan = script(schedules.grouping(grouping))
        allocation = draw.choice(["ahead", "group", "one", "pooled"])
        execution = Execution(allocation=allocation, issue=draw.choice(["one_stream", "overlapped"]), memory="pinned",
                              send=draw.choice(["message", "batch"]))  # fmt: skip
        if draw.random() < 0.3:
            execution = dataclasses.replace(execution, issue="overlapped", chunks=3, least_chunk_bytes=1)
        is_numpys(drawn, plan, emit.program(plan, execution, name="parts"), seed)
    return len(schedules.graph.as_given(schedules.graph.placed))


def test_pieces_that_are_placed(graph: Read) -> None:
    assert sum(placed(seed, graph) for seed in range(10)) > 6


# --- many ---------------------------------------------------------------------------------------------


CHECKS = [in_chunks, allocated, in_one_memory, placed]


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_a_thousand_graphs(check: Callable[..., object], graph: Read) -> None:
    for seed in range(1000, 2000):
        check(seed, graph)
