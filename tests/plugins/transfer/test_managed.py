"""Vectors in managed memory: prefetches in place of messages, the same results, exported and built for a GPU."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.build.exporting.files import export
from fusiond.model.nouns import Analysis
from fusiond.model.program import Copy, Memory, Prefetch, Program
from fusiond_transfer.analysis import mapped_or_managed
from fusiond_transfer.codegen import simulate
from fusiond_transfer.frontend.graph import MANAGED, Graph
from fusiond_transfer.strategy import Transfer

from .one_memory_chain import chain, config, same_as_numpy

CHAIN = chain("managed")


def _program(strategy: Transfer, analysis: Analysis, **values: Any) -> Program:
    program = strategy.emit(analysis, config(**values), {})
    assert isinstance(program, Program), program
    return program


def test_what_each_choice_has(graph: Callable[..., Graph]) -> None:
    """Kernels of the device read d, which they made; all others are left behind."""
    found = mapped_or_managed.choices(graph(CHAIN), MANAGED)
    assert {name: sorted(each) for name, each in found.items()} == {
        "none": [], "once": ["a", "b", "e", "total"], "all": ["a", "b", "d", "e", "total"],
    }  # fmt: skip
    both = CHAIN.replace("reads: [c], writes: [e]", "reads: [c, a], writes: [e]")
    assert "a" not in mapped_or_managed.choices(graph(both), MANAGED)["once"], "the host reads it, too"
    assert list(mapped_or_managed.choices(graph(CHAIN.replace("memory: managed\n", "")), MANAGED)) == ["none"]


@pytest.mark.parametrize("choice", ["none", "once", "all"])
@pytest.mark.parametrize("issue", ["one_stream", "overlapped"])
def test_results_are_numpys_and_prefetches_stand_for_messages(
    choice: str, issue: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    program = _program(strategy, analyse(CHAIN), issue=issue, managed=choice)
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


def test_pages_are_where_they_are_used_first_before_anything_counts(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    """Else a second run would find the inputs on the device already, and uploads would cost nothing."""
    program = _program(strategy, analyse(CHAIN), managed="all")
    first = next(number for number, each in enumerate(program.steps) if each.counted)
    home = {
        name: each.to_device for each in program.steps[:first] if isinstance(each, Prefetch) for name in each.buffers
    }
    assert home == {"a": False, "b": False, "e": False, "d": True, "total": True}
    together = {each.name: each.arena for each in program.buffers if each.memory is Memory.MANAGED}
    assert together["a"] == together["b"] != together["d"] == together["total"]
    assert together["e"] is None


def test_a_kernel_whose_pages_are_on_the_other_side_is_a_fault(
    analyse: Callable[..., Analysis], strategy: Transfer
) -> None:
    """Results would be right on every device, and slow: only the simulator can tell."""
    analysis = analyse(CHAIN)
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


def test_the_space_offers_it_and_the_plan_says_which(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    analysis = analyse(CHAIN)
    space = strategy.space(analysis, {})
    assert {each.name: each.values for each in space.parameters}["managed"] == ("none", "once", "all")
    assert not space.problems(config(managed="once"))
    assert space.problems(config(memory="pageable", managed="once"))
    seeds = dict(strategy.seeds(analysis, space, {}))
    assert seeds["managed_once"]["managed"] == "once"
    claims = analysis.report["claims"]
    assert "may lie in managed memory, prefetched in place of messages: a, b, d, e, total" in claims
    assert "not in `once`, as the side that they come from reads, too: d" in claims
    resolved = strategy.resolved(analysis, config(managed="all"), {})
    assert resolved["grouping"] == "interval_stabbing (4 messages)"
    counted = analyse(CHAIN, "allocations: counted")
    assert "managed" not in {each.name for each in strategy.space(counted, {}).parameters}
    on_device = analyse(CHAIN.replace("on: host", "on: device"))
    space = strategy.space(on_device, {})
    assert space.problems(config(issue="graph", managed="all")) == (
        "issue != 'graph' or managed == 'none' does not hold",
    )
    assert not space.problems(config(issue="graph", managed="none"))


def test_large_vectors_are_cut_where_they_are_copied(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    space = strategy.space(analyse(CHAIN.replace("elements: 300", "elements: 3000000")), {})
    cut = {"streams": "engines", "chunk_order": "depth_first"}
    assert not space.problems(config(managed="none", chunks=4, **cut))
    assert space.problems(config(managed="all", chunks=4, **cut)) == ("chunks == 1 or managed == 'none' does not hold",)
    assert not space.problems(config(grouping="min_residency", chunks=4, **cut))


@pytest.mark.slow
@pytest.mark.needs_nvcc
def test_the_export_is_built_for_a_gpu(analyse: Callable[..., Analysis], strategy: Transfer, tmp_path: Path) -> None:
    program = _program(strategy, analyse(CHAIN), managed="all")
    for name, data in export(program, about={}, binaries={}, arch=None).items():
        (tmp_path / name).write_bytes(data)
    (text,) = tmp_path.glob("launch_*.cpp")
    assert text.read_text().count("TRY(prefetch(") == 6
    toolkit = nvcc.find()
    assert toolkit is not None
    command = [str(toolkit.nvcc), "-arch=sm_90", "-std=c++17", "-c", str(text), "-o", str(tmp_path / "out.o")]
    subprocess.run(command, check=True, capture_output=True)
