"""Every plan gives what the graph gives, in the simulator; what is broken on purpose does not."""

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.program import Alloc, Copy, CopyBatch, Free, HostCall, Launch, Program, Step, problems
from fusiond_transfer.analysis import intervals
from fusiond_transfer.analysis.cost import costs
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules, claims, reordered
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph
from tests.plugins.transfer.kernel_graph import KernelGraph

from .conftest import Read

# --- mutants --------------------------------------------------------------------------------------------

Mutant = tuple[str, Program]


def moved(made: Program, at: int, to: int) -> Program:
    steps = list(made.steps)
    steps.insert(to, steps.pop(at))
    return dataclasses.replace(made, steps=tuple(steps))


def replaced(made: Program, at: int, step: Step) -> Program:
    return dataclasses.replace(made, steps=(*made.steps[:at], step, *made.steps[at + 1 :]))


def without(made: Program, at: int) -> Program:
    gone = made.steps[at].name
    steps = [
        dataclasses.replace(step, after=tuple(name for name in step.after if name != gone))
        for step in (*made.steps[:at], *made.steps[at + 1 :])
    ]
    return dataclasses.replace(made, steps=tuple(steps))


def slot_mutants(made: Program) -> Iterator[Mutant]:
    """An upload one kernel too early or too late, a download before its kernel or behind its reader."""
    calls = [index for index, step in enumerate(made.steps) if isinstance(step, Launch | HostCall)]
    for at, step in enumerate(made.steps):
        if not isinstance(step, Copy | CopyBatch) or not step.counted:
            continue
        before = [index for index in calls if index < at]
        behind = [index for index in calls if index > at]
        if before:
            yield f"{step.name} one kernel earlier", moved(made, at, before[-1])
        if behind:
            yield f"{step.name} one kernel later", moved(made, at, behind[0])


def test_slots_off_by_one_are_killed_unless_they_are_in_the_interval(graph: Read) -> None:
    """Fig. 2 with its greedy slots: all intervals that end at a point, so one step beyond breaks."""
    plan = script(Schedules(graph("fig2")).grouping("interval_stabbing"))
    made = program(plan, Execution(), name="x")
    # D and I..M may wait (D is no one's input on the host), A, B, C may not come later, E not leave earlier.
    killed = {name for name, mutant in slot_mutants(made) if simulate.faults(plan, mutant)}
    everything = {name for name, _ in slot_mutants(made)}
    assert everything - killed == set(), f"alive: {everything - killed}"
    assert len(everything) >= 6


def test_vectors_swapped_in_the_layout_are_killed(graph: Read) -> None:
    for send in ("message", "batch"):
        plan = script(Schedules(graph("fig2")).grouping("interval_stabbing"))
        made = program(plan, Execution(send=send), name="x")
        swapped = 0
        for at, step in enumerate(made.steps):
            if isinstance(step, Copy) and len(step.target) > 1:
                target = (step.target[1], step.target[0], *step.target[2:])
                mutant = replaced(made, at, dataclasses.replace(step, target=target))
                assert problems(mutant) or simulate.faults(plan, mutant), step.name
                swapped += 1
            if isinstance(step, CopyBatch):
                (a, b), (c, d), *rest = step.copies
                mutant = replaced(made, at, dataclasses.replace(step, copies=((a, d), (c, b), *rest)))
                assert problems(mutant) == ()
                assert simulate.faults(plan, mutant), step.name
                swapped += 1
        assert swapped == 3


def test_every_missing_copy_is_killed(graph: Read) -> None:
    for name in ("fig2", "cg", "cholesky"):
        plan = script(Schedules(graph(name)).grouping("interval_stabbing"))
        made = program(plan, Execution(issue="overlapped"), name="x")
        for at, step in enumerate(made.steps):
            if isinstance(step, Copy) and step.counted:
                last = name == "cg" and step.name.endswith("_i3")
                assert simulate.faults(plan, without(made, at)) or last, (name, step.name)


def test_every_missing_wait_that_matters_is_killed(graph: Read) -> None:
    """Overlapped: without one `after`, some legal order reads too early, or overwrites what is still read."""
    killed = alive = 0
    for name in ("fig2", "cholesky", "matmul"):
        plan = script(Schedules(graph(name)).grouping("interval_stabbing"))
        made = program(plan, Execution(issue="overlapped"), name="x")
        for at, step in enumerate(made.steps):
            for gone in step.after:
                mutant = replaced(
                    made, at, dataclasses.replace(step, after=tuple(each for each in step.after if each != gone))
                )
                if simulate.faults(plan, mutant):
                    killed += 1
                else:
                    alive += 1
    assert alive == 0
    assert killed >= 20


def test_what_is_freed_at_the_wrong_slot_is_killed(graph: Read) -> None:
    for allocation in ("each", "group", "pooled"):
        plan = script(Schedules(graph("fig2")).grouping("separate" if allocation == "each" else "min_residency"))
        made = program(plan, Execution(allocation=allocation), name="x")
        for at, step in enumerate(made.steps):
            touching = [
                index for index, each in enumerate(made.steps)
                if not isinstance(each, Alloc | Free) and _touches(each, _members(made, step))
            ] if isinstance(step, Alloc | Free) else []  # fmt: skip
            if isinstance(step, Free):
                assert simulate.faults(plan, moved(made, at, touching[-1])), f"{step.name} one step too early"
            if isinstance(step, Alloc):
                assert simulate.faults(plan, moved(made, at, touching[0])), f"{step.name} one step too late"


def _members(made: Program, step: Alloc | Free) -> set[str]:
    return {each.name for each in made.buffers if step.arena in (each.arena, each.name)}


def _touches(step: Step, names: set[str]) -> bool:
    if isinstance(step, Copy):
        return bool({*step.source, *step.target} & names)
    if isinstance(step, Launch | HostCall):
        return bool({each.buffer for each in step.arguments if hasattr(each, "buffer")} & names)
    return False


def test_the_peak_is_what_the_allocations_come_to(graph: Read) -> None:
    """By hand, for fig. 2 with vectors of 16 KiB: which are alive at each kernel."""
    size = 4096 * 4
    plan = script(Schedules(graph("fig2")).grouping("separate"))
    each = simulate.run(plan, program(plan, Execution(allocation="each"), name="x"))
    # k0: A B D E; k2: C F H I and E, which k4 reads; k3: F H J K E; k4: H E L M.
    assert each.peak_bytes == 5 * size
    one = simulate.run(plan, program(plan, Execution(allocation="one"), name="x"))
    assert one.peak_bytes == 12 * size  # all but G, which never leaves the host


# --- loops ----------------------------------------------------------------------------------------------


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
        found = schedules.least.schedule
        plan = script(found)
        made = program(plan, Execution(), name="x")
        counted = [step.name for step in made.steps if isinstance(step, Copy) and step.counted]
        for turn in range(5):
            assert sum(name.endswith(f"_i{turn}") for name in counted) == found.startups


def test_conjugate_gradient_sends_its_direction_down_and_the_product_up(graph: Read) -> None:
    schedules = Schedules(graph("cg"))
    found = schedules.least
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
    assert schedules.least.schedule.startups == 2  # x2 with v; y2 with u
    assert {frozenset(each.vectors) for each in schedules.least.schedule.messages} >= {frozenset({"u", "y2"})}


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


# --- random graphs with everything in them --------------------------------------------------------------


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

    found.append(("local_search", schedules.fast(costs(graph, {}), memory=Memory.PINNED, overlapped=True)))
    other = reordered(schedules)
    if other is not None:
        found.append(("reordered", other.least.schedule))
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
    found = Schedules(graph)
    assert found.least.schedule.startups >= found.bound.points
    for name, schedule in schedules(graph):
        if name != "reordered" and found.least.proven:
            assert schedule.startups >= found.least.schedule.startups, name


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
