"""Random kernels among what stands in files of repositories, fused, give what they give by themselves and plain."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fusiond.errors import RequestError
from fusiond.program import Bytes, Program
from fusiond.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse.codegen import host_variables
from fusiond_hfuse.frontend import declarations, kernel_parser, name_resolution, slicing
from fusiond_hfuse.frontend.fusion_group import FusionSlot, LaunchShape
from fusiond_hfuse.frontend.source_kernel import KernelArgument
from fusiond_hfuse.strategy import Hfuse

from .conftest import Runner
from .disguises import disguised
from .fuzzing import analysed, chosen, differences
from .generator import Generated, Seeded, kernel, pick

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHUNKS, AT_ONCE = 10, 10
Problem = Callable[[int], str]


def _counted_up(generated: Generated) -> Generated:
    """What its inputs hold depends on no buffer's name."""
    return dataclasses.replace(
        generated, yaml=re.sub(r"(role: input, fill: )(?:\{.*?\}|\w+)", r"\1iota", generated.yaml)
    )


@pytest.fixture
def problem(runner: Runner, registry: Registry, strategy: Hfuse, cpu_target: Target, tmp_path: Path) -> Problem:
    """What is wrong with a pair of a seed."""

    def problem(seed: int) -> str:
        choices = Seeded(seed)
        plain = [_counted_up(kernel(choices, name)) for name in "xy"]
        granularity = pick(choices, (32, 128))
        reference = analysed(tmp_path, registry, cpu_target, plain, granularity)
        assert reference.rejections == ()
        config = chosen(choices, reference, cpu_target)
        other = []
        for each in plain:
            found, headers = disguised(choices, each)
            for name, text in headers.items():
                (tmp_path / name).write_text(text)
            other.append(found)
        try:
            analysis = analysed(tmp_path, registry, cpu_target, other, granularity)
        except RequestError as refused:
            return f"refused: {refused}\n{[each.source for each in other]}"
        if analysis.rejections:
            return f"refused: {analysis.rejections[0]}\n{[each.source for each in other]}"
        program = strategy.emit(analysis, config, {})
        apart = strategy.unfused(reference, config)
        if not isinstance(program, Program):
            return str(program)
        assert isinstance(apart, Program)
        wanted = runner.run(apart)
        assert isinstance(wanted, dict)
        named = {each.name for each in program.buffers}
        found = differences(program, {k: v for k, v in wanted.items() if k in named}, runner.run(program))
        return f"{found}\n{[each.source for each in other]}" if found else ""

    return problem


@pytest.mark.parametrize("seed", range(3))
def test_a_few_disguised_pairs(problem: Problem, seed: int) -> None:
    assert problem(seed) == ""


@pytest.mark.campaign
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_disguised_pairs(problem: Problem, chunk: int) -> None:
    for seed in range(100 + chunk * AT_ONCE, 100 + (chunk + 1) * AT_ONCE):
        assert problem(seed) == "", seed


def _nowhere(slot: FusionSlot, argument: KernelArgument, shape: LaunchShape) -> Bytes:
    return dataclasses.replace(shape.records[argument.name], pointers=())


def _one_on(slot: FusionSlot, argument: KernelArgument, shape: LaunchShape) -> Bytes:
    found = addressed(slot, argument, shape)
    size = len(found.hex) // 2
    return dataclasses.replace(found, pointers=tuple(((at + 8) % size, name) for at, name in found.pointers))


def _braces(walk: declarations.DeclarationWalk, start: int, end: int) -> set[tuple[int, int]]:
    return {(start, walk.code.index("{", start) + 1), (end - 1, end)}


addressed = host_variables.addressed
MUTANTS = {
    "words are not resolved": (name_resolution.NameResolution, "words", lambda self, declaration: declaration.words),
    "what is resolved is everything": (name_resolution.NameResolution, "words", lambda self, declaration: set()),
    "macros bracket nothing": (declarations.DeclarationWalk, "_brackets", _braces),
    "a template ends at its head": (declarations, "_BEHIND", re.compile(r"\s*;")),
    "addresses are not written": (host_variables, "addressed", _nowhere),
    "addresses are written one place on": (host_variables, "addressed", _one_on),
    "variables are not set": (host_variables, "steps", lambda group, shapes, places: ()),
}  # fmt: skip
TRIED = range(100, 130)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(problem: Problem, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def forget() -> None:
        for kept in (slicing._found, slicing._walked, kernel_parser._parsed):
            kept.cache_clear()

    forget()
    monkeypatch.setattr(*MUTANTS[name])
    died = any(problem(seed) for seed in TRIED)
    forget()
    assert died
