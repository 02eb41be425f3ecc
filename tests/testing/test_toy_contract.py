"""The toy strategy keeps the contract, and the contract notices one that does not."""

import dataclasses
import itertools
from typing import Any

import pytest

from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload, frozen
from fusiond.model.program import Program, unsized
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.strategy import Answers, Inputs, Strategy
from fusiond.strategy.space import Parameter, Space
from fusiond.testing.strategies import StrategyContract
from tests.fakes import FakePlugin, ToyStrategy


class TestToy(StrategyContract):
    def strategy(self) -> Strategy:
        return ToyStrategy()

    def registry(self) -> Registry:
        registry = Registry()
        registry.add(FakePlugin(), "fakes")
        return registry

    def jobs(self) -> tuple[Job, ...]:
        texts = ["strategy: toy", "strategy: toy\nside: 3\nsizes: {n: 17}\nfaults: {'0,0': rejected, '1,1': wrong}\n"]
        return tuple(job for text in texts for job in jobs.read("job.yaml", text))


class Forgetful(ToyStrategy):
    counter = itertools.count()

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        workload = super().parse(job, inputs)
        workload.payload["serial"] = next(self.counter)
        return workload


class Moody(ToyStrategy):
    counter = itertools.count()

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
        return self._program(analysis, 1.0 + next(self.counter), "")


class Tuples(ToyStrategy):
    def space(self, analysis: Analysis, answers: Answers) -> Space:
        return Space(parameters=(Parameter(name="x", values=((1, 2),)),))  # type: ignore[arg-type]


class Elsewhere(ToyStrategy):
    def seeds(self, analysis: Analysis, space: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        return (("far", Config.of({"x": 99, "y": 99})),)


class Sets(ToyStrategy):
    def analyse(self, workload: Workload, target: Any) -> Analysis:
        return Analysis(workload=workload, report={"set": float("nan")}, payload=None)


class Stuck(ToyStrategy):
    """Its numbers are plain, and it does not say that they are fixed."""

    def _program(self, analysis: Analysis, cost_us: float, fault: str) -> Program:
        made = super()._program(analysis, cost_us, fault)
        return dataclasses.replace(unsized(made), sizes=made.sizes)


class Sizeless(ToyStrategy):
    def _program(self, analysis: Analysis, cost_us: float, fault: str) -> Program:
        return unsized(super()._program(analysis, cost_us, fault))


class Named(ToyStrategy):
    names = frozen({"graph": "side", "picture": "frame"})


class Ahead(ToyStrategy):
    wrong_versions = (1,)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Stuck, "test_a_program_at_other_sizes_is_what_is_emitted_there"),
        (Sizeless, "test_programs_are_over_the_sizes_of_their_workload"),
        (Named, "test_names_are_kinds_of_the_catalogue_and_keys_of_a_job"),
        (Ahead, "test_wrong_versions_are_earlier_ones"),
        (Forgetful, "test_parse_is_pure_and_repeatable"),
        (Moody, "test_what_is_emitted_is_sound_and_the_same_every_time"),
        (Tuples, "test_the_space_can_be_stored_and_searched"),
        (Elsewhere, "test_seeds_are_points_or_it_is_said_why_not"),
        (Sets, "test_the_report_is_json_and_the_same_every_time"),
    ],
)
def test_the_contract_notices(kind: type[ToyStrategy], test: str) -> None:
    contract = TestToy()
    contract.strategy = lambda: kind()  # type: ignore[method-assign]
    cases = tuple(contract._case(job, target) for job in contract.jobs() for target in contract.targets())
    method = getattr(contract, test)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        method(cases) if "cases" in method.__code__.co_varnames[: method.__code__.co_argcount] else method()
