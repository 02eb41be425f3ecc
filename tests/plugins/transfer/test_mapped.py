"""Vectors in mapped memory: fewer messages, the same results, on the cpu device and in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Analysis
from fusiond.model.program import (
    Alloc,
    Buffer,
    Copy,
    Fill,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
    problems,
)
from fusiond_transfer.analysis import mapped_or_managed
from fusiond_transfer.frontend.graph import MAPPED, Graph
from fusiond_transfer.strategy import Transfer

from .one_memory_chain import chain, config, same_as_numpy

CHAIN = chain("mapped")


def test_what_each_choice_has(graph: Callable[..., Graph]) -> None:
    """a and e are touched by one kernel of the device, row by row; b and d by two, total by a sum."""
    found = mapped_or_managed.choices(graph(CHAIN), MAPPED)
    assert {name: sorted(each) for name, each in found.items()} == {
        "none": [], "once": ["a", "e"], "all": ["a", "b", "d", "e", "total"],
    }  # fmt: skip
    assert list(mapped_or_managed.choices(graph(CHAIN.replace("memory: mapped\n", "")), MAPPED)) == ["none"]
    shared = CHAIN.replace("writes: [d], body: e - b", "writes: [d], in_place: {d: e}, body: e - b")
    assert list(mapped_or_managed.choices(graph(shared), MAPPED)) == ["none"]


@pytest.mark.parametrize("choice", ["none", "once", "all"])
@pytest.mark.parametrize("issue", ["one_stream", "overlapped"])
def test_results_are_numpys_and_messages_fewer(
    choice: str, issue: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    analysis = analyse(CHAIN)
    program = strategy.emit(analysis, config(issue=issue, mapped=choice), {})
    assert isinstance(program, Program), program
    copies = [each for each in program.steps if isinstance(each, Copy)]
    crossing = {name for each in copies for name in each.source}
    assert not crossing & {"a", "b", "e"} if choice == "all" else "b" in crossing
    memory = {each.name: each.memory for each in program.buffers}
    launches = [step for step in program.steps if isinstance(step, Launch)]
    pointers = {each.buffer for step in launches for each in step.arguments if isinstance(each, Pointer)}
    there = mapped_or_managed.choices(analysis.payload.asked.graph, MAPPED)[choice]
    assert {name for name in pointers if memory[name] is Memory.PINNED} == there
    same_as_numpy(device, program)


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_give_what_they_give_copied(
    seed: int, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    text = f"graph: many\nsizes: {{elements: 33}}\nmemory: mapped\ngenerate: {{kernels: 9, inputs: 3, indegree: [1, 3], outdegree: [1, 2], seed: {seed}}}\n"  # noqa: E501
    line = "allocations: counted" if seed % 2 else "allocations: ahead"
    analysis = analyse(text, line)
    rest = {"allocation": ("group", "one", "pooled", "each")[seed // 2]} if seed % 2 else {}
    rest |= {"send": "batch"} if rest.get("allocation") == "each" else {}
    rest |= {"order": "given"} if analysis.payload.offer.reordered else {}
    outputs = []
    for choice in analysis.payload.offer.mapped:
        program = strategy.emit(analysis, config(mapped=choice, **rest), {})
        assert isinstance(program, Program), program
        outputs.append(device.run(program, seed=seed))
        if choice == "all":
            assert not any(isinstance(each, Copy) for each in program.steps)
    assert len(outputs) > 1
    for other in outputs[1:]:
        for name, values in outputs[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


def test_no_allocation_is_made_for_what_is_mapped(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse(CHAIN, "allocations: counted")
    program = strategy.emit(analysis, config(mapped="all", allocation="group"), {})
    assert isinstance(program, Program), program
    assert [each.arena for each in program.steps if isinstance(each, Alloc)] == ["c@device"]


def test_the_space_offers_it_and_the_plan_says_which(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse(CHAIN)
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["mapped"] == ("none", "once", "all")
    assert not space.problems(config(mapped="once"))
    assert space.problems(config(memory="pageable", mapped="once"))
    seeds = dict(strategy.seeds(analysis, space, {}))
    assert seeds["mapped_once"]["mapped"] == "once"
    assert "may lie in mapped memory, with no message: a, b, d, e, total" in analysis.report["claims"]
    resolved = strategy.resolved(analysis, config(mapped="all"), {})
    assert resolved["grouping"] == "interval_stabbing (1 message)"


@pytest.mark.slow
def test_the_cuda_device_hands_a_launch_the_address_of_pinned_memory(gpu: Any) -> None:
    """Over the stand-in driver, whose kernel `add` gives x += y: no copy, and the host reads what was written."""
    count = 50
    fill = Fill(kind="integers", low=0, high=100)
    made = Program(
        name="mapped",
        buffers=tuple(
            Buffer(name=name, dtype="float32", elements=count, role=role, fill=fill, memory=Memory.PINNED)
            for name, role in (("x", Role.INOUT), ("y", Role.INPUT))
        ),
        sources=(Source(name="s", text="// x += y\n", entries=("add",)),),
        steps=(
            Launch(name="k", source="s", entry="add", grid=(2, 1, 1), block=(32, 1, 1),
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y"), Scalar(dtype="int32", value=count))),
        ),
    )  # fmt: skip
    assert problems(made) == ()
    loaded = gpu.load(made)
    try:
        data = {each.name: initial(each, 0, kind=0) for each in made.buffers}
        for name, values in data.items():
            loaded.write(name, values)
        gpu.log()
        loaded.run(seed=0, checked=True)
        assert not {line.split()[0] for line in gpu.log()} & {"up", "down"}
        assert loaded.broken_guards() == ()
        np.testing.assert_array_equal(loaded.read("x"), data["x"] + data["y"])
        assert loaded.sample_us(2) > 0
    finally:
        loaded.close()
