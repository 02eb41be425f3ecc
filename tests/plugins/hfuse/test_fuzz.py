"""Random kernels, fused in random ways, give bit for bit what they give by themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.program import Program
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse.strategy import Hfuse

from .fuzzing import JointRunner, analysed, chosen, differences, differences_in_ptx, generated
from .generator import Choices, Drawn, Seeded, pick

CHUNKS = 20
AT_ONCE = 25  #: Pairs and triples in each chunk


@dataclass(frozen=True)
class Seen:
    """Some kernels fused in some way, and what was wrong with that."""

    text: str
    problem: str

    def __str__(self) -> str:
        return f"{self.problem}\n\n{self.text}"


Compare = Callable[..., Seen]


@pytest.fixture(scope="session")
def joint(tmp_path_factory: pytest.TempPathFactory, scheduler_library: Path) -> JointRunner:
    return JointRunner(tmp_path_factory.mktemp("joint"), scheduler_library)


@pytest.fixture
def compare(joint: JointRunner, registry: Registry, strategy: Hfuse, cpu_target: Target, tmp_path: Path) -> Compare:
    """Generates two or three kernels and a config, and compares what comes out."""

    def problem(choices: Choices, text: list[str], ptx: bool) -> str:
        kernels = generated(choices, ["x", "y", "z"][: 3 if choices.number(0, 9) == 9 else 2])
        text += [f"{each.source}\n{each.yaml}" for each in kernels]
        analysis = analysed(tmp_path, registry, cpu_target, kernels, pick(choices, (32, 64, 128)))
        if analysis.rejections:
            return f"a kernel that is right is refused: {analysis.rejections[0]}"
        config = chosen(choices, analysis, cpu_target)
        text.append(str(dict(config)))
        program = strategy.emit(analysis, config, {})
        if not isinstance(program, Program):
            return str(program)
        reference = strategy.unfused(analysis, config)
        assert reference is not None
        order = choices.number(1, 1000)
        joint.joined(program, reference)
        wanted = joint.run(reference)
        if not isinstance(wanted, dict):
            return f"the kernels by themselves: {wanted}"
        if found := differences(reference, wanted, joint.run(reference, order=order)):
            return f"the kernels by themselves, by another schedule: {found}"
        for schedule in (0, order, order + 1):
            if found := differences(reference, wanted, joint.run(program, order=schedule)):
                return f"fused, by schedule {schedule}: {found}"
        for name, each in (("the kernels by themselves", reference), ("fused", program)) if ptx else ():
            if found := differences_in_ptx(each, wanted):
                return f"{name}, as PTX: {found}"
        return ""

    def compare(choices: Choices, *, ptx: bool = False) -> Seen:
        text: list[str] = []
        found = problem(choices, text, ptx)
        return Seen("\n".join(text), found)

    return compare


@pytest.mark.slow
def test_a_few_pairs_of_random_kernels(compare: Compare) -> None:
    """By Hypothesis, which begins with plain kernels and makes plainer what fails."""

    @settings(max_examples=12, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def some(data: st.DataObject) -> None:
        seen = compare(Drawn(data.draw))
        hypothesis.note(str(seen))
        assert seen.problem == ""

    some()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", [pytest.param(chunk, marks=pytest.mark.campaign) for chunk in range(CHUNKS)])
def test_many_pairs_of_random_kernels(compare: Compare, chunk: int) -> None:
    """By seeds, since no two of these are alike."""
    texts = set()
    for seed in range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE):
        seen = compare(Seeded(seed))
        texts.add(seen.text)
        assert seen.problem == "", f"seed {seed}: {seen}"
    assert len(texts) == AT_ONCE


@pytest.mark.needs_nvcc
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 40))])
def test_random_kernels_compute_as_ptx_what_they_are_emulated_to(compare: Compare, seed: int) -> None:
    seen = compare(Seeded(1000 + seed), ptx=True)
    assert seen.problem == "", str(seen)
