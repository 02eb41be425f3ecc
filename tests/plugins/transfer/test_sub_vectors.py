"""Parts of vectors: random graphs against NumPy on the cpu device, plans against brute force, other sizes."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.files import export
from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, Config
from fusiond.model.program import Copy, Memory, Prefetch, Program, problems
from fusiond_transfer.analysis import mapped_or_managed
from fusiond_transfer.analysis.intervals import crossings
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script, script
from fusiond_transfer.codegen import emit, simulate
from fusiond_transfer.codegen.emit import STREAMS, Execution
from fusiond_transfer.codegen.pipeline import ORDERS
from fusiond_transfer.frontend.graph import MANAGED, MAPPED, Graph
from fusiond_transfer.strategy import Transfer

from . import parts_machine
from .conftest import Analyse, Parse, Read

HALVES = """\
graph: halves
sizes: {n: 1024}
elements: n
dtype: float64
inputs: [x]
outputs: [y, z]
kernels:
  - {name: low, on: device, reads: ["x[0:n // 2]"], writes: ["y[:n // 2]"], body: 2 * x}
  - {name: high, on: host, reads: ["x[n // 2:]"], writes: ["y[n // 2:]"], body: x + 1}
  - {name: all, on: device, reads: [y], writes: [z], body: y * y}
"""
ONE = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message"}


def _emitted(strategy: Transfer, analysis: Analysis, **values: Any) -> Program:
    order = {"order": "given"} if analysis.payload.offer.reordered else {}
    config = {**ONE, **order, **values}
    if config["grouping"] == "separate":
        del config["send"]
    found = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(found, Program), found
    return found


def _carried(program: Program) -> int:
    size = {each.name: each.size_bytes for each in program.buffers}
    return sum(size[name] for step in program.steps for name in step.carried)


def test_parts_cross_and_not_wholes(analyse: Analyse, strategy: Transfer, device: Any) -> None:
    """Half of x goes up, then half of y beside what is there; all of z and half of y come down."""
    analysis = analyse(HALVES)
    found = {(each.vector, each.up) for each in crossings(analysis.payload.asked.graph)}
    assert found == {("x[0:512]", True), ("y[512:1024]", True), ("y[0:512]", False), ("z", False)}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for values in ({}, {"send": "batch"}, {"grouping": "separate", "when": "early"}):
        program = _emitted(strategy, analysis, **values)
        assert problems(program) == ()
        assert _carried(program) == 8 * (512 + 512 + 512 + 1024)
        for seed in range(3):
            out = device.run(program, seed=seed, inputs={"x": x})
            np.testing.assert_array_equal(out["y"], y)
            np.testing.assert_array_equal(out["z"], y * y)


@pytest.mark.parametrize("kind", ["mapped", "managed"])
def test_all_pieces_of_a_vector_are_in_one_memory(kind: str, analyse: Analyse, strategy: Transfer, device: Any) -> None:
    """y is made in two halves, one on each side, and read as a whole on the device; x is not mapped."""
    analysis = analyse(HALVES.replace("inputs:", f"vectors: {{y: {{memory: {kind}}}}}\ninputs:"))
    line = next(each for each in analysis.report["claims"] if each.startswith("may lie in"))
    assert line.endswith(": y")
    program = _emitted(strategy, analysis, **{kind: "all"})
    assert problems(program) == ()
    assert {each.name for each in program.buffers if each.memory is Memory.DEVICE and each.part_of is None} == {
        "x@device", "z@device"
    }  # fmt: skip
    carried = {name for step in program.steps for name in step.carried}
    assert carried == {"x[0:512]", "z@device", *(("y[0:512]", "y[512:1024]") if kind == "managed" else ())}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for seed in range(3):
        out = device.run(program, seed=seed, inputs={"x": x})
        np.testing.assert_array_equal(out["y"], y)
        np.testing.assert_array_equal(out["z"], y * y)


@pytest.mark.parametrize("allocation", ["each", "group", "one", "pooled"])
def test_allocations_are_of_the_pieces_that_are_used(
    allocation: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    """The device has half of x, and y as a whole, as a kernel there is passed all of it."""
    analysis = analyse(HALVES, "allocations: counted")
    values = {"allocation": allocation, "send": "batch" if allocation == "each" else "message"}
    program = _emitted(strategy, analysis, **values)
    assert problems(program) == ()
    tops = {each.name: each.elements for each in program.buffers
            if each.memory is Memory.DEVICE and each.part_of is None}  # fmt: skip
    assert tops == {"x[0:512]@device": 512, "y@device": 1024, "z@device": 1024}
    x = np.random.default_rng(3).uniform(-1, 1, 1024)
    y = np.concatenate([2 * x[:512], x[512:] + 1])
    for seed in range(3):
        np.testing.assert_array_equal(device.run(program, seed=seed, inputs={"x": x})["z"], y * y)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_are_numpys(seed: int, analyse: Analyse, strategy: Transfer, device: Any) -> None:
    drawn = parts_machine.drawn(seed)
    given = drawn.given(seed)
    grouping = ("interval_stabbing", "min_residency", "local_search")[seed % 3]
    program = _emitted(strategy, analyse(drawn.text), grouping=grouping, issue=("overlapped", "one_stream")[seed % 2])
    for order in range(4):
        out = device.run(program, seed=order, inputs=given)
        for name, values in drawn.computed(given).items():
            np.testing.assert_array_equal(out[name], values, err_msg=f"{name}\n{drawn.text}")


def _brute_force(graph: Graph) -> int:
    """The fewest messages of all slots and all layouts in which pieces stand in their order, nothing copied along."""
    there = crossings(graph)
    runs = {name: each.pieces for each in graph.cut for name in each.pieces}
    groups = list(dict.fromkeys(runs.get(each.vector, (each.vector,)) for each in there))
    best = len(there)
    for layout in itertools.permutations(groups):
        position = {name: at for at, name in enumerate(itertools.chain.from_iterable(layout))}
        for slots in itertools.product(*(range(each.earliest, each.latest + 1) for each in there)):
            together: dict[tuple[int, bool], list[int]] = {}
            for each, slot in zip(there, slots, strict=True):
                together.setdefault((slot, each.up), []).append(position[each.vector])
            best = min(best, sum(_runs(sorted(places)) for places in together.values()))
    return best


def _runs(places: Sequence[int]) -> int:
    return 1 + sum(b != a + 1 for a, b in itertools.pairwise(places))


def test_plans_are_no_worse_than_brute_force(graph: Read) -> None:
    """What lies between may be copied along where that is harmless, so they can be better."""
    compared = 0
    for seed in range(100):
        found = graph(parts_machine.drawn(seed, 3).text)
        spans = [each.latest - each.earliest + 1 for each in crossings(found)]
        if len(spans) <= 7 and np.prod(spans) < 2000:
            schedules = Schedules(found)
            assert schedules.bound.points <= schedules.least.schedule.startups <= _brute_force(found)
            compared += 1
    assert compared > 20


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(40))
def test_programs_are_right_in_every_order_and_broken_ones_are_not(seed: int, graph: Read) -> None:
    """In the simulator, where a value is what it is made of: without one of its copies no plan gives the outputs."""
    found = graph(parts_machine.drawn(seed).text)
    plan = script(Schedules(found).least.schedule)
    program = emit.program(plan, Execution(memory="pinned", issue="overlapped"), name="parts")
    assert problems(program) == ()
    assert simulate.faults(plan, program) == ()
    for step in program.steps:
        if isinstance(step, Copy):
            rest = tuple(
                dataclasses.replace(each, after=tuple(name for name in each.after if name != step.name))
                for each in program.steps
                if each is not step
            )
            assert simulate.faults(plan, dataclasses.replace(program, steps=rest)), step.name


def test_other_sizes_and_exports(analyse: Analyse, strategy: Transfer, device: Any) -> None:
    program = _emitted(strategy, analyse(HALVES))
    moved = program.at({"n": 37})
    x = np.arange(37.0)
    y = np.concatenate([2 * x[:18], x[18:] + 1])
    out = device.run(moved, seed=1, inputs={"x": x})
    np.testing.assert_array_equal(out["z"], y * y)
    assert any(name.endswith(".h") for name in export(program, about={}, binaries={}, arch=None))
    mixed = HALVES.replace("x[n // 2:]", "x[512:]")
    assert _emitted(strategy, analyse(mixed)).fixed == ("n",), "the bounds are equal at this size only"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("x[0:n // 2]", "x[0:n / 0]", "x"),
        ("x[0:n // 2]", "x[n:2 * n]", r"x\[1024:2048\] is not within the 1024 elements of x"),
        ("x[0:n // 2]", "x[5:5]", r"x\[5:5\] has no elements"),
        ("x[0:n // 2]", "w[0:5]", "there is no vector 'w'"),
        ("x[0:n // 2]", "x[0-5]", "is not a part of a vector; expected a name and bounds, such as x"),
        ("x[0:n // 2]", "x[0:7]", "and a vector it is made of 7"),
        ('reads: ["x[0:n // 2]"]', 'reads: ["x[0:n // 2]", "x[n // 2:]"]',
         "x would stand for two parts of it; a source"),
        ('["y[n // 2:]"]', '["y[n // 4:n // 2 + n // 4]"]', r"y\[256:512\] has two writers: low and high"),
        ('"y[n // 2:]"', '"y[n // 2 + 1:]"', "and a vector it is made of 512"),
        ("outputs: [y, z]\n", "outputs: [y, z]\nadjacent: [[z, v]]\n", "there is no vector 'v'"),
        ("outputs: [y, z]\n", "outputs: [y, z]\nloop: true\ncarried: {x: y}\n", "no part .* named in a loop, and x is"),
        ("outputs: [y, z]\n", "outputs: [y, z]\nlimits: {device_bytes: 9}\n", "no part .* under a limit, and x is"),
        ('["y[:n // 2]"]', '["y[:n // 2]"], in_place: {"y[:n // 2]": x}', "in place is all of a vector"),
        ("reads: [y], writes: [z]", "reads: [y], writes: [z], in_place: {z: y}", "y is named in parts"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_a_line(parse: Parse, old: str, new: str, why: str) -> None:
    assert old in HALVES
    with pytest.raises(RequestError, match=why) as caught:
        parse(HALVES.replace(old, new, 1))
    assert len(str(caught.value).splitlines()) == 1


def test_what_nobody_writes_is_refused(parse: Parse) -> None:
    text = HALVES.replace('reads: ["x[n // 2:]"], writes: ["y[n // 2:]"]', 'reads: ["x[:5]"], writes: ["y[n - 5:]"]')
    with pytest.raises(RequestError, match=r"all reads y\[512:1019\], which is neither an input nor written"):
        parse(text)


def test_the_whole_of_a_vector_is_no_part(graph: Read) -> None:
    text = HALVES.replace("x[0:n // 2]", "x[0:n]").replace("y[:n // 2]", "y").replace("y[n // 2:]", "w")
    found = graph(text.replace("x[n // 2:]", "x[0:]"))
    assert not found.cut
    assert {each.name for each in found.vectors} >= {"x", "y"}


# --- random graphs, in NumPy's memory -------------------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    schedule = Schedules(graph(drawn.text)).least.schedule
    plan = mapped_or_managed.placed(
        schedule, **{kind: draw.choice(list(mapped_or_managed.choices(schedule.graph, kind))) for kind in kinds}
    )
    execution = Execution(memory="pinned", issue=draw.choice(["one_stream", "overlapped"]),
                          send=draw.choice(["message", "batch"]))  # fmt: skip
    program = emit.program(plan, execution, name="parts")
    is_numpys(drawn, plan, program, seed)
    return sum(isinstance(each, Prefetch) for each in program.steps)


@pytest.mark.slow
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


@pytest.mark.slow
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
