"""What strategies generate, broken on purpose, as the second judge sees it: by its PTX alone, beside what the unfused
program computes on the cpu device. (The mutants of hfuse are with its own, in tests/plugins/hfuse.)"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.counting.judge import judge
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model import BuildFailed
from fusiond.program import Program
from fusiond.registry import Registry
from fusiond.requests import jobs, planning

pytestmark = [pytest.mark.slow, pytest.mark.needs_nvcc, pytest.mark.usefixtures("gxx_here")]

JOBS = {
    "mincut": "strategy: mincut\npipeline: unsharp\nsizes: {width: 83, height: 40}\n",
    "transfer": "strategy: transfer\ngraph: fig2\nsizes: {elements: 700}\n",
    "stitching": "strategy: stitching\nmodule: nmt_attn\n",
}
SEEDS = {"mincut": "seed:algorithm1", "transfer": "seed:interval_stabbing_pageable_one_stream", "stitching": None}
"""The first seed that is fused, where none is named."""


def replaced(old: str, new: str, count: int = 1) -> Callable[[Program], Program]:
    """The program with another text, at the first places; -1: everywhere."""

    def change(program: Program) -> Program:
        texts = [each.text for each in program.sources]
        assert any(old in text for text in texts)
        sources = tuple(dataclasses.replace(each, text=each.text.replace(old, new, count)) for each in program.sources)
        return dataclasses.replace(program, sources=sources)

    return change


def without(step: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        (gone,) = (each for each in program.steps if each.name == step)
        kept = [each for each in program.steps if each is not gone]
        after = {each.name: tuple(name for name in each.after if name != step) for each in kept}
        return dataclasses.replace(
            program, steps=tuple(dataclasses.replace(each, after=after[each.name]) for each in kept)
        )

    return change


MUTANTS: dict[tuple[str, str], Callable[[Program], Program]] = {
    ("mincut", "the last column is never read"): replaced("min(max(i, 0), n - 1)", "min(max(i, 0), n - 2)"),
    ("mincut", "the interior begins too early"): replaced("if (x0 >= 1 &&", "if (x0 >= 0 &&"),
    ("mincut", "the interior ends too late"): replaced("y0 + 9 <= height", "y0 + 8 <= height"),
    ("mincut", "a neighbour is read twice"): replaced("clamp_index(x + 1, width)", "clamp_index(x - 1, width)"),
    ("mincut", "a stage reads another stage"): replaced("sharp_0 / src_0", "src_0 / sharp_0"),
    ("transfer", "an upload is missing"): without("up_k2"),
    ("transfer", "the last element is not computed"): replaced("i < m0", "i + 1 < m0"),
    ("transfer", "two vectors are exchanged"): replaced("taken(h0, r0, n0, i, m0)", "taken(h0, r1, n1, i, m0)"),
    ("stitching", "barriers are missing"): replaced("__syncthreads();", "", count=-1),
    ("stitching", "an exponential is another one"): replaced("expf(", "exp2f("),
}


@functools.cache
def programs(strategy: str) -> tuple[Program, Program]:
    """(unfused, fused)."""
    (job,) = jobs.read("/job.yaml", JOBS[strategy] + "device: cpu\n")
    found = planning.plan(Registry.load(), job).programs
    name = SEEDS[strategy] or next(each for each in found if each != "reference")
    return found["reference"], found[name]


@functools.cache
def expected(strategy: str) -> dict[str, NDArray[np.generic]]:
    program, _ = programs(strategy)
    binaries: dict[str, Path] = {}
    for source in program.sources:
        built = CpuProvider().build(source, "cpu")
        assert not isinstance(built, BuildFailed)
        binaries[source.name] = built.path
    executor = CpuExecutor()
    loaded = executor.load(program, binaries)
    for buffer in program.buffers:
        executor.data.fill(loaded, buffer, 0)
    loaded.run(seed=0, checked=False)
    return {each.name: loaded.read(each.name).copy() for each in program.buffers if each.role.compared}


@pytest.mark.campaign
@pytest.mark.parametrize("strategy", JOBS)
def test_what_is_not_broken_agrees(strategy: str) -> None:
    assert judge(programs(strategy)[1], expected(strategy), fmad=False).agrees


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(*each, marks=[] if number == 1 else pytest.mark.campaign, id=": ".join(each))
        for number, each in enumerate(MUTANTS)
    ],
)
def test_what_is_broken_is_found_out(strategy: str, name: str) -> None:
    mutant = MUTANTS[strategy, name](programs(strategy)[1])
    said = judge(mutant, expected(strategy), fmad=False)
    assert said.agrees is False, str(said)
    assert re.match(r"\w+", said.detail)
