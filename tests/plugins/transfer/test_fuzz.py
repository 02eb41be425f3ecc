"""Random graphs with everything in them: storage in place, placed inputs, neighbours, lengths, loops; every way to
transfer them, in the simulator and (fewer) on the cpu device."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.program import problems
from fusiond_transfer.analysis.cost import costs
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules, reordered
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from fusiond_transfer.python import KernelGraph

EXECUTIONS = tuple(
    Execution(issue=issue, send=send, allocation=allocation)
    for issue, send, allocation in itertools.product(
        ("one_stream", "overlapped"), ("message", "batch"), ("ahead", "each", "group", "one", "pooled")
    )
)


def rich(seed: int, kernels: int) -> Graph | None:
    """A random graph with everything that a graph without a loop may have; None where the draw came to nothing."""
    drawn = random.Random(seed)
    lengths = [16] if drawn.random() < 0.5 else [16, 5, 70]
    graph = KernelGraph("rich", elements=16)
    known: list[str] = []
    length: dict[str, int] = {}
    for number in range(drawn.randint(1, 5)):
        name, elements = f"i{number}", drawn.choice(lengths)
        graph.inputs(name, elements=elements, placed=drawn.random() < 0.25)
        known.append(name)
        length[name] = elements
    last_reader: dict[str, int] = {}
    dead: set[str] = set()
    made: list[str] = []
    for k in range(kernels):
        alive = [name for name in known if name not in dead]
        reads = drawn.sample(alive, min(len(alive), drawn.randint(1, 3)))
        elements = drawn.choice(lengths)
        writes = [f"v{k}_{j}" for j in range(drawn.randint(1, 2))]
        in_place = {}
        same = [name for name in reads if length[name] == elements]
        if same and drawn.random() < 0.4:
            old = drawn.choice(same)
            in_place[writes[0]] = old
            dead.add(old)
        side = drawn.choice((HOST, DEVICE))
        graph.kernel(f"k{k}", side, reads=reads, writes=writes, in_place=in_place, elements=elements)
        for name in writes:
            length[name] = elements
        known += writes
        made += writes
        last_reader |= dict.fromkeys(reads, k)
    outputs = [name for name in made if name not in dead and (name not in last_reader or drawn.random() < 0.3)]
    graph.outputs(*(outputs or made[-1:]))
    if drawn.random() < 0.4:
        candidates = [name for name in known if name not in dead]
        if len(candidates) >= 2:
            graph.adjacent(*drawn.sample(candidates, min(len(candidates), drawn.randint(2, 3))))
    try:
        built = graph.build()
    except RequestError:
        return None
    cells = [built.cell[name] for run in built.adjacent for name in run]
    return built if len(set(cells)) == len(cells) else None


def schedules(graph: Graph) -> list[tuple[str, Schedule]]:
    schedules = Schedules(graph)
    found = [(name, schedules.grouping(name)) for name in ("separate", "interval_stabbing", "min_residency")]
    if schedules.has_paper:
        found += [(name, schedules.grouping(name)) for name in ("paper_greedy", "paper_tight")]
    found.append(("separate early", schedules.separate(early=True)))
    from fusiond.model.program import Memory

    found.append(("local_search", schedules.fast(costs(graph, {}), "assumed", memory=Memory.PINNED, overlapped=True)))
    other = reordered(schedules)
    if other is not None:
        found.append(("reordered", other.least().schedule))
    return found


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), kernels=st.integers(1, 9))
@settings(max_examples=100)
def test_every_way_of_a_rich_graph_is_right_in_the_simulator(seed: int, kernels: int) -> None:
    graph = rich(seed, kernels)
    if graph is None:
        return
    generator = random.Random(seed)
    for name, schedule in schedules(graph):
        plan = script(schedule)
        for execution in generator.sample(EXECUTIONS, 3):
            if execution.allocation == "each" and execution.send == "message" and not name.startswith("separate"):
                continue
            made = program(plan, execution, name="x")
            assert problems(made) == (), (seed, name, execution)
            assert simulate.faults(plan, made) == (), (seed, name, execution)


@given(seed=st.integers(0, 10**9), kernels=st.integers(1, 7))
@settings(max_examples=40)
def test_what_is_called_the_fewest_is_not_beaten(seed: int, kernels: int) -> None:
    graph = rich(seed, kernels)
    if graph is None:
        return
    least = Schedules(graph).least()
    assert least.schedule.startups >= least.lower_bound
    for name, schedule in schedules(graph):
        if name != "reordered" and least.proven:
            assert schedule.startups >= least.schedule.startups, name


@pytest.mark.slow
def test_rich_graphs_on_the_cpu_device(device: Any) -> None:
    done = 0
    for seed in itertools.count():
        graph = rich(seed, 5)
        if graph is None or not (graph.shares_storage or graph.adjacent or graph.placed):
            continue
        schedules = Schedules(graph)
        plain = device.run(program(script(schedules.grouping("separate")), Execution(), name="x"))
        for grouping, execution in (
            ("interval_stabbing", Execution(issue="overlapped")), ("min_residency", Execution(send="batch")),
            ("interval_stabbing", Execution(allocation="group", issue="overlapped")),
        ):  # fmt: skip
            made = program(script(schedules.grouping(grouping)), execution, name="x")
            for order in range(3):
                found = device.run(made, seed=order, kind=order % 2)
                for name, values in plain.items():
                    np.testing.assert_array_equal(found[name], values, err_msg=f"{seed} {grouping} {name}")
        done += 1
        if done == 8:
            break
