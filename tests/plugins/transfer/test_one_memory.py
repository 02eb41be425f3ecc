"""Vectors in one memory for both sides, mapped or managed: fewer messages, the same results, exported and built."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import nvcc
from fusiond.build.exporting.files import export
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
    Prefetch,
    Program,
    Role,
    Scalar,
    Source,
    problems,
)
from fusiond_transfer.analysis import mapped_or_managed
from fusiond_transfer.codegen import simulate
from fusiond_transfer.frontend.graph import MANAGED, MAPPED
from fusiond_transfer.strategy import Transfer

from .conftest import Analyse, Read
from .one_memory_chain import chain, config_with, same_as_numpy

MAPPED_CHAIN = chain("mapped")


def test_what_each_choice_of_mapped_memory_has(graph: Read) -> None:
    """a and e are touched by one kernel of the device, row by row; b and d by two, total by a sum."""
    found = mapped_or_managed.choices(graph(MAPPED_CHAIN), MAPPED)
    assert {name: sorted(each) for name, each in found.items()} == {
        "none": [], "once": ["a", "e"], "all": ["a", "b", "d", "e", "total"],
    }  # fmt: skip
    assert list(mapped_or_managed.choices(graph(MAPPED_CHAIN.replace("memory: mapped\n", "")), MAPPED)) == ["none"]
    shared = MAPPED_CHAIN.replace("writes: [d], body: e - b", "writes: [d], in_place: {d: e}, body: e - b")
    assert list(mapped_or_managed.choices(graph(shared), MAPPED)) == ["none"]


@pytest.mark.parametrize("choice", ["none", "once", "all"])
@pytest.mark.parametrize("issue", ["one_stream", "overlapped"])
def test_results_are_numpys_and_messages_fewer(
    choice: str, issue: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    analysis = analyse(MAPPED_CHAIN)
    program = strategy.emit(analysis, config_with(issue=issue, mapped=choice), {})
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
def test_random_graphs_give_what_they_give_copied(seed: int, analyse: Analyse, strategy: Transfer, device: Any) -> None:
    text = f"graph: many\nsizes: {{elements: 33}}\nmemory: mapped\ngenerate: {{kernels: 9, inputs: 3, indegree: [1, 3], outdegree: [1, 2], seed: {seed}}}\n"  # noqa: E501
    line = "allocations: counted" if seed % 2 else "allocations: ahead"
    analysis = analyse(text, line)
    rest = {"allocation": ("group", "one", "pooled", "each")[seed // 2]} if seed % 2 else {}
    rest |= {"send": "batch"} if rest.get("allocation") == "each" else {}
    rest |= {"order": "given"} if analysis.payload.offer.reordered else {}
    outputs = []
    for choice in analysis.payload.offer.mapped:
        program = strategy.emit(analysis, config_with(mapped=choice, **rest), {})
        assert isinstance(program, Program), program
        outputs.append(device.run(program, seed=seed))
        if choice == "all":
            assert not any(isinstance(each, Copy) for each in program.steps)
    assert len(outputs) > 1
    for other in outputs[1:]:
        for name, values in outputs[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


def test_no_allocation_is_made_for_what_is_mapped(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse(MAPPED_CHAIN, "allocations: counted")
    program = strategy.emit(analysis, config_with(mapped="all", allocation="group"), {})
    assert isinstance(program, Program), program
    assert [each.arena for each in program.steps if isinstance(each, Alloc)] == ["c@device"]


def test_the_space_offers_mapped_memory_and_the_plan_says_which(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse(MAPPED_CHAIN)
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["mapped"] == ("none", "once", "all")
    assert not space.problems(config_with(mapped="once"))
    assert space.problems(config_with(memory="pageable", mapped="once"))
    seeds = dict(strategy.seeds(analysis, space, {}))
    assert seeds["mapped_once"]["mapped"] == "once"
    assert "may lie in mapped memory, with no message: a, b, d, e, total" in analysis.report["claims"]
    resolved = strategy.resolved(analysis, config_with(mapped="all"), {})
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


# --- vectors in managed memory --------------------------------------------------------------------------


MANAGED_CHAIN = chain("managed")


def _program(strategy: Transfer, analysis: Analysis, **values: Any) -> Program:
    program = strategy.emit(analysis, config_with(**values), {})
    assert isinstance(program, Program), program
    return program


def test_what_each_choice_of_managed_memory_has(graph: Read) -> None:
    """Kernels of the device read d, which they made; all others are left behind."""
    found = mapped_or_managed.choices(graph(MANAGED_CHAIN), MANAGED)
    assert {name: sorted(each) for name, each in found.items()} == {
        "none": [], "once": ["a", "b", "e", "total"], "all": ["a", "b", "d", "e", "total"],
    }  # fmt: skip
    both = MANAGED_CHAIN.replace("reads: [c], writes: [e]", "reads: [c, a], writes: [e]")
    assert "a" not in mapped_or_managed.choices(graph(both), MANAGED)["once"], "the host reads it, too"
    assert list(mapped_or_managed.choices(graph(MANAGED_CHAIN.replace("memory: managed\n", "")), MANAGED)) == ["none"]


@pytest.mark.parametrize("choice", ["none", "once", "all"])
@pytest.mark.parametrize("issue", ["one_stream", "overlapped"])
def test_results_are_numpys_and_prefetches_stand_for_messages(
    choice: str, issue: str, analyse: Analyse, strategy: Transfer, device: Any
) -> None:
    program = _program(strategy, analyse(MANAGED_CHAIN), issue=issue, managed=choice)
    counted = [each for each in program.steps if isinstance(each, Prefetch) and each.counted]
    crossing = {name for each in program.steps if isinstance(each, Copy) for name in each.source}
    assert [(each.to_device, *sorted(each.buffers)) for each in counted] == {
        "none": [],
        "once": [(True, "a", "b"), (True, "e"), (False, "total")],
        "all": [(True, "a", "b"), (True, "e"), (False, "d", "total")],
    }[choice]
    assert crossing == {"none": {"a", "b", "e", "c@device", "d@device", "total@device"},
                        "once": {"c@device", "d@device"}, "all": {"c@device"}}[choice]  # fmt: skip
    same_as_numpy(device, program)


def test_pages_are_where_they_are_used_first_before_anything_counts(analyse: Analyse, strategy: Transfer) -> None:
    """Else a second run would find the inputs on the device already, and uploads would cost nothing."""
    program = _program(strategy, analyse(MANAGED_CHAIN), managed="all")
    first = next(number for number, each in enumerate(program.steps) if each.counted)
    home = {
        name: each.to_device for each in program.steps[:first] if isinstance(each, Prefetch) for name in each.buffers
    }
    assert home == {"a": False, "b": False, "e": False, "d": True, "total": True}
    together = {each.name: each.arena for each in program.buffers if each.memory is Memory.MANAGED}
    assert together["a"] == together["b"] != together["d"] == together["total"]
    assert together["e"] is None


def test_a_kernel_whose_pages_are_on_the_other_side_is_a_fault(analyse: Analyse, strategy: Transfer) -> None:
    """Results would be right on every device, and slow: only the simulator can tell."""
    analysis = analyse(MANAGED_CHAIN)
    program = _program(strategy, analysis, managed="all")
    script = mapped_or_managed.placed(analysis.payload.schedules.grouping("interval_stabbing"), managed="all")
    assert simulate.faults(script, program) == ()
    for step in program.steps:
        if isinstance(step, Prefetch):
            other = tuple(
                dataclasses.replace(each, to_device=not step.to_device) if each is step else each
                for each in program.steps
            )
            broken = simulate.faults(script, dataclasses.replace(program, steps=other))
            assert any("pages" in line for line in broken), step.name


def test_the_space_offers_managed_memory_and_the_plan_says_which(analyse: Analyse, strategy: Transfer) -> None:
    analysis = analyse(MANAGED_CHAIN)
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["managed"] == ("none", "once", "all")
    assert not space.problems(config_with(managed="once"))
    assert space.problems(config_with(memory="pageable", managed="once"))
    seeds = dict(strategy.seeds(analysis, space, {}))
    assert seeds["managed_once"]["managed"] == "once"
    claims = analysis.report["claims"]
    assert "may lie in managed memory, prefetched in place of messages: a, b, d, e, total" in claims
    assert "not in `once`, as the side that they come from reads, too: d" in claims
    resolved = strategy.resolved(analysis, config_with(managed="all"), {})
    assert resolved["grouping"] == "interval_stabbing (4 messages)"
    counted = analyse(MANAGED_CHAIN, "allocations: counted")
    assert "managed" not in {each.name for each in strategy.space(counted, {}).parameters}
    on_device = analyse(MANAGED_CHAIN.replace("on: host", "on: device"))
    space = strategy.space(on_device, {})
    assert space.problems(config_with(issue="graph", managed="all")) == (
        "issue != 'graph' or managed == 'none' does not hold",
    )
    assert not space.problems(config_with(issue="graph", managed="none"))


def test_large_vectors_are_cut_where_they_are_copied(analyse: Analyse, strategy: Transfer) -> None:
    space = strategy.space(analyse(MANAGED_CHAIN.replace("elements: 300", "elements: 3000000")), {})
    cut = {"streams": "engines", "chunk_order": "depth_first"}
    assert not space.problems(config_with(managed="none", chunks=4, **cut))
    assert space.problems(config_with(managed="all", chunks=4, **cut)) == (
        "chunks == 1 or managed == 'none' does not hold",
    )
    assert not space.problems(config_with(grouping="min_residency", chunks=4, **cut))


@pytest.mark.needs_nvcc
def test_the_export_is_built_for_a_gpu(analyse: Analyse, strategy: Transfer, tmp_path: Path) -> None:
    program = _program(strategy, analyse(MANAGED_CHAIN), managed="all")
    for name, data in export(program, about={}, binaries={}, arch=None).items():
        (tmp_path / name).write_bytes(data)
    (text,) = tmp_path.glob("launch_*.cpp")
    assert text.read_text().count("TRY(prefetch(") == 6
    toolkit = nvcc.find()
    assert toolkit is not None
    command = [str(toolkit.nvcc), "-arch=sm_90", "-std=c++17", "-c", str(text), "-o", str(tmp_path / "out.o")]
    subprocess.run(command, check=True, capture_output=True)
