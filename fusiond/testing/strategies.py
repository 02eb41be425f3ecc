"""Contract tests that any strategy must pass. Needs pytest.

    class TestSaxpy(StrategyContract):
        def strategy(self):
            return Saxpy()

        def registry(self):
            registry = Registry()
            registry.add(plugin, "saxpy")
            return registry

        def jobs(self):
            return jobs.read("job.yaml", "strategy: saxpy\\n")

Nothing here runs a Program: that is the device's contract (`fusiond.testing.devices`), and a strategy's own tests.
"""

import dataclasses
import functools
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.keys import canonical, plain
from fusiond.model.language import expressions
from fusiond.model.nouns import Config, Job, Rejection, Workload
from fusiond.model.program import Program, SizeError, decode, encode, problems, unsized
from fusiond.requests.jobs import JobInputs, check_keys
from fusiond.requests.planning import plan, prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import IMPLEMENTATION, Strategy, Target
from fusiond.strategy.space import check_seeds
from fusiond.testing.cases import GPU, PROCESSOR, Case, Made, some_points

_CHILD = """
import importlib, json, sys
from pathlib import Path
from fusiond.requests.jobs import JobInputs
from fusiond.model.nouns import Job
from fusiond.requests.registry import Registry
from fusiond.strategy import CatalogueEntry
given = json.loads(sys.stdin.read())
registry = Registry()
for each in given["strategies"]:
    module, _, name = each.partition(":")
    strategy = getattr(importlib.import_module(module), name)()
    registry.strategies[strategy.name] = strategy
strategy = registry.strategies[given["jobs"][0]["strategy"]]
for kind, name, path in given["catalogue"]:
    registry.catalogue[kind, name] = CatalogueEntry(kind=kind, name=name, path=Path(path))
for fields in given["jobs"]:
    job = Job(**fields)
    print(strategy.parse(job, JobInputs(registry, job)).key)
"""


class StrategyContract:
    """Subclass it, give `strategy`, `jobs` and `registry`; pytest finds the tests."""

    random_points = 8  #: Points of the space that are emitted beside the seeds

    def strategy(self) -> Strategy:
        raise NotImplementedError

    def jobs(self) -> tuple[Job, ...]:
        """A few jobs: the usual one, the smallest, an odd one. Each must be one that the strategy can tune."""
        raise NotImplementedError

    def registry(self) -> Registry:
        """With the strategy, and the catalogue that its jobs refer to."""
        raise NotImplementedError

    def targets(self) -> tuple[Target, ...]:
        """No compiler is asked: a strategy must work where there is none."""
        return (
            Target(arch="cpu", limits=PROCESSOR, facts=lambda source: None),
            Target(arch="sm_90", limits=GPU, facts=lambda source: None),
        )

    # --- what the tests share ---

    @pytest.fixture
    def cases(self) -> tuple[Case, ...]:
        return tuple(self._case(job, target) for job in self.jobs() for target in self.targets())

    def _parse(self, job: Job) -> Workload:
        return self.strategy().parse(job, JobInputs(self.registry(), job))

    def _case(self, job: Job, target: Target) -> Case:
        strategy = self.strategy()
        workload = self._parse(job)
        analysis = strategy.analyse(workload, target)
        space = strategy.space(analysis, {})
        seeds, _ = check_seeds(space, strategy.seeds(analysis, space, {}))
        return Case(job=job, target=target, workload=workload, analysis=analysis, space=space, seeds=seeds)

    def _configs(self, case: Case) -> list[Config]:
        """The seeds and some random points, the same in every run."""
        chosen = some_points(case.space, self.random_points)
        return list(dict.fromkeys([*(config for _, config in case.seeds), *chosen]))

    def _programs(self, case: Case) -> Iterator[tuple[Config, Program]]:
        for config in self._configs(case):
            emitted = self.strategy().emit(case.analysis, config, {})
            if isinstance(emitted, Program):
                yield config, emitted

    # --- the object ---

    def test_it_is_a_strategy_with_a_name_and_a_version(self) -> None:
        strategy = self.strategy()
        assert not isinstance(strategy, type), "give an instance"
        assert isinstance(strategy, Strategy)
        assert strategy.name
        assert strategy.name.isprintable()
        assert type(strategy.version) is int
        assert strategy.version >= 1
        assert isinstance(strategy.job_keys, tuple)
        assert all(isinstance(each, str) for each in strategy.job_keys)
        assert self.registry().strategy(strategy.name).version == strategy.version

    def test_wrong_versions_are_earlier_ones(self) -> None:
        strategy = self.strategy()
        assert isinstance(strategy.wrong_versions, tuple)
        assert all(type(each) is int and 1 <= each < strategy.version for each in strategy.wrong_versions)

    def test_names_are_kinds_of_the_catalogue_and_keys_of_a_job(self) -> None:
        registry = self.registry()
        kinds = {each.kind for each in registry.catalogue.values()}
        named = self.strategy().names
        assert set(named.values()) <= set(self.strategy().job_keys)
        assert not kinds or set(named) <= kinds | {IMPLEMENTATION}, "documents of this kind have no names"
        assert kinds <= {kind for each in registry.strategies.values() for kind in each.names}, (
            "no strategy takes this kind"
        )

    # --- Job -> Workload ---

    def test_parse_is_pure_and_repeatable(self) -> None:
        for job in self.jobs():
            check_keys(job, self.strategy().job_keys)
            before = canonical([job.request, job.sizes, job.files])
            first, second = self._parse(job), self._parse(job)
            assert canonical([job.request, job.sizes, job.files]) == before, "parse changed the job"
            assert first == second
            assert first.key == second.key
            assert (first.strategy, first.strategy_version) == (self.strategy().name, self.strategy().version)
            assert first.name
            assert len(first.name.splitlines()) == 1
            assert first.members
            assert json.loads(json.dumps(plain(first.content))) == plain(first.content)
            assert all(type(each) is int and each >= 1 for each in first.sizes.values())

    def test_parse_needs_no_more_than_the_snapshot(self) -> None:
        """A queued job goes on when its files are edited or gone."""
        for job in self.jobs():
            prepared = prepare(self.registry(), job)
            again = prepare(self.registry(), prepared.job)
            assert again.workload.key == prepared.workload.key
            assert dict(again.job.files) == dict(prepared.job.files)

    def test_the_workload_key_is_the_same_in_another_process(self) -> None:
        kind = type(self.strategy())
        if "<locals>" in kind.__qualname__ or kind.__module__ not in sys.modules:
            pytest.skip(f"{kind.__qualname__} cannot be imported by name")
        registry = self.registry()
        prepared = [prepare(registry, job) for job in self.jobs()]
        kinds = {kind, *map(type, registry.strategies.values())}
        given = {
            "strategies": [f"{kind.__module__}:{kind.__qualname__}" for kind in kinds],
            "catalogue": [(each.kind, each.name, str(each.path)) for each in registry.catalogue.values()],
            "jobs": [
                {"strategy": each.job.strategy, "request": plain(each.job.request), "sizes": dict(each.job.sizes),
                 "path": each.job.path, "files": dict(each.job.files)}
                for each in prepared
            ],
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], input=json.dumps(given), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [each.workload.key for each in prepared]

    def test_sizes_change_the_key_and_not_the_family(self) -> None:
        for job in self.jobs():
            workload = self._parse(job)
            for name, value in workload.sizes.items():
                other = self._with_another_size(job, name, value)
                if other is not None:
                    assert other.key != workload.key, name
                    assert other.family_key == workload.family_key, name

    def _with_another_size(self, job: Job, name: str, value: int) -> Workload | None:
        for wanted in (value + 1, 2 * value, max(1, value // 2)):
            try:
                found = self._parse(dataclasses.replace(job, sizes={**job.sizes, name: wanted}))
            except RequestError:
                continue
            if found.sizes[name] == wanted:
                return found
        return None

    def test_an_unknown_size_is_a_mistake_of_one_line(self) -> None:
        job = self.jobs()[0]
        with pytest.raises(RequestError) as problem:
            self._parse(dataclasses.replace(job, sizes={**job.sizes, "no-such-size": 3}))
        assert len(str(problem.value).splitlines()) == 1

    def test_an_empty_request_is_accepted_or_a_mistake_of_one_line(self) -> None:
        job = self.jobs()[0]
        for request in ({}, dict.fromkeys(self.strategy().job_keys)):
            message = "accepted"
            try:
                self._parse(dataclasses.replace(job, request=request))
            except RequestError as problem:
                message = str(problem)
            assert len(message.splitlines()) == 1

    def test_odd_sizes_are_another_workload_of_the_family(self) -> None:
        for job in self.jobs():
            workload = self._parse(job)
            sizes = self.strategy().odd_sizes(workload)
            if sizes is None:
                continue
            odd = self._parse(dataclasses.replace(job, sizes={**job.sizes, **sizes}))
            assert odd.family_key == workload.family_key
            assert {name: odd.sizes[name] for name in sizes} == dict(sizes)
            for target in self.targets():
                self.strategy().analyse(odd, target)

    # --- Workload -> Analysis, Space ---

    def test_the_report_is_json_and_the_same_every_time(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            text = json.dumps(plain(case.analysis.report), allow_nan=False)
            again = self.strategy().analyse(self._parse(case.job), case.target)
            assert json.dumps(plain(again.report), allow_nan=False) == text
            assert again.rejections == case.analysis.rejections
            for rejection in case.analysis.rejections:
                _explained(rejection)

    def test_the_description_is_text_and_the_same_every_time(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            text = self.strategy().describe(case.analysis)
            assert all(line.isprintable() for line in text.splitlines()), text
            assert self.strategy().describe(self.strategy().analyse(self._parse(case.job), case.target)) == text

    def test_the_space_can_be_stored_and_searched(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            names: list[str] = []
            for parameter in case.space.parameters:
                assert parameter.values, parameter.name
                assert parameter.name not in names, f"two parameters are called {parameter.name}"
                for value in parameter.values:
                    assert value is None or type(value) in (bool, int, float, str), f"{parameter.name}: {value!r}"
                    assert not isinstance(value, float) or math.isfinite(value)
                assert len(set(parameter.values)) == len(parameter.values), f"{parameter.name} has a value twice"
                if parameter.when is not None:
                    assert expressions.parse(parameter.when).names <= set(names), f"{parameter.name}: {parameter.when}"
                names.append(parameter.name)
            for restriction in case.space.restrictions:
                assert expressions.parse(restriction).names <= set(names), restriction
            again = self.strategy().space(self.strategy().analyse(self._parse(case.job), case.target), {})
            assert again.hash == case.space.hash
            assert case.space.count(1) == 1, "the space is empty"

    def test_seeds_are_points_or_it_is_said_why_not(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            seeds = self.strategy().seeds(case.analysis, case.space, {})
            sound, refused = check_seeds(case.space, seeds)
            names = [name for name, _ in seeds]
            assert len(set(names)) == len(names)
            assert all(refused.values())
            assert sound or case.analysis.rejections, f"no seed is a point of the space: {dict(refused)}"

    # --- Config -> Program ---

    def test_what_is_emitted_is_sound_and_the_same_every_time(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            again = self._case(case.job, case.target)
            found = 0
            for config in self._configs(case):
                emitted = self.strategy().emit(case.analysis, config, {})
                other = self.strategy().emit(again.analysis, config, {})
                if isinstance(emitted, Rejection):
                    _explained(emitted)
                    assert other == emitted
                    continue
                found += 1
                assert problems(emitted) == (), config
                assert isinstance(other, Program)
                assert other.key == emitted.key, f"{config}: another Program the second time"
            assert found or case.analysis.rejections, "nothing could be emitted"

    def test_candidates_answer_the_same_question_as_the_baselines(self, cases: tuple[Case, ...]) -> None:
        """Equal outputs by name, type, length and comparison; equal data in what both read."""
        for case in cases:
            reference = self._reference(case)
            for config, program in self._programs(case):
                assert _compared(program) == _compared(reference), config
                known = _read(reference)
                for name, data in _read(program).items():
                    assert name in known, f"{config}: the first baseline has no input {name!r}, so data would differ"
                    assert known[name] == data, f"{config}: {name} holds other data"

    def test_baselines_are_sound(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            reference = self._reference(case)
            names: list[str] = []
            for baseline in self.strategy().baselines(case.analysis):
                assert baseline.name not in names
                assert baseline.like is None or baseline.like in names, f"{baseline.name} is like nobody before it"
                assert baseline.detail
                names.append(baseline.name)
                for config in {next(iter(baseline.space.points())), *some_points(baseline.space, 3)}:
                    program = baseline.emit(config)
                    assert problems(program) == (), (baseline.name, config)
                    assert program.key == baseline.emit(config).key
                    assert _compared(program) == _compared(reference), (baseline.name, config)

    def test_the_unfused_program_of_a_config_is_sound(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            for config, _ in self._programs(case):
                unfused = self.strategy().unfused(case.analysis, config)
                if unfused is not None:
                    assert problems(unfused) == (), config
                    assert _compared(unfused) == _compared(self._reference(case)), config

    # --- other sizes ---

    def chosen_by_size(self, config: Config) -> bool:
        """Whether a config has a label whose meaning is chosen by the sizes (`fastest`): at other sizes it emits
        another Program, and the one that was moved there is as right, but not the same."""
        return False

    def test_programs_are_over_the_sizes_of_their_workload(self) -> None:
        for job in self.jobs():
            case = self._case(job, self.targets()[-1])
            for each in self._made(case):
                assert dict(each.program.sizes) == dict(case.workload.sizes), each.where
                assert set(each.program.fixed) <= set(case.workload.sizes), each.where
                assert unsized(each.program).work_key == each.program.work_key, "sizes change nothing of what is run"
                assert decode(encode(each.program)).key == each.program.key, each.where

    def test_a_program_at_other_sizes_is_what_is_emitted_there(self) -> None:
        """For the odd sizes, for larger ones, and for each size changed by itself. What is fixed cannot be moved, and
        says so."""
        for job in self.jobs():
            case = self._case(job, self.targets()[-1])
            made = list(self._made(case))
            for number, sizes in enumerate(self._other_sizes(case.job, case.workload)):
                there = self._elsewhere(case, sizes)
                if there is None:
                    continue
                some = made if number < 2 else random.Random(number).sample(made, min(2, len(made)))
                for each in some:
                    self._check_move(each, there)

    def _check_move(self, made: Made, there: Case) -> None:
        sizes, own = there.workload.sizes, dict(made.program.sizes)
        where = f"{made.where} at {dict(sizes)}"
        if any(sizes[name] != own[name] for name in made.program.fixed):
            with pytest.raises(SizeError) as caught:
                made.program.at(sizes)
            assert len(str(caught.value).splitlines()) == 1, where
            return
        emitted = made.again(there)
        if emitted is None:
            return
        moved = made.program.at(sizes)
        assert problems(moved) == (), where
        assert _compared(moved) == _compared(emitted), where
        if not made.chosen_by_size:
            assert moved.key == emitted.key, f"{where}: another Program than what is emitted there"

    def _other_sizes(self, job: Job, workload: Workload) -> Iterator[Mapping[str, int]]:
        odd = self.strategy().odd_sizes(workload)
        yield {} if odd is None else odd
        yield {name: 3 * value + 1 for name, value in workload.sizes.items()}
        for name, value in workload.sizes.items():
            yield {name: 3 * value + 1}
            yield {name: 997 * value}
            yield {name: max(2, value // 3)}  # of a single element, a strategy may write something simpler

    def _elsewhere(self, case: Case, sizes: Mapping[str, int]) -> Case | None:
        """The same job at other sizes; None where it is none there."""
        try:
            return self._case(dataclasses.replace(case.job, sizes={**case.job.sizes, **sizes}), case.target)
        except RequestError:
            return None

    def _made(self, case: Case) -> Iterator[Made]:
        """Candidates, their kernels unfused, and baselines."""
        strategy = self.strategy()

        def candidate(config: Config, there: Case) -> Program | None:
            found = strategy.emit(there.analysis, config, {})
            return found if isinstance(found, Program) else None

        def unfused(config: Config, there: Case) -> Program | None:
            return strategy.unfused(there.analysis, config) if candidate(config, there) is not None else None

        def baseline(name: str, config: Config, there: Case) -> Program | None:
            for each in strategy.baselines(there.analysis):
                if each.name == name and not each.space.problems(config):
                    return each.emit(config)
            return None

        for config, program in self._programs(case):
            chosen = self.chosen_by_size(config)
            yield Made(str(config), program, functools.partial(candidate, config), chosen)
            apart = strategy.unfused(case.analysis, config)
            if apart is not None:
                yield Made(f"{config}, unfused", apart, functools.partial(unfused, config), chosen)
        for each in strategy.baselines(case.analysis):
            for config in dict.fromkeys([next(iter(each.space.points())), *some_points(each.space, 2)]):
                again = functools.partial(baseline, each.name, config)
                yield Made(f"{each.name} {config}", each.emit(config), again, self.chosen_by_size(config))

    # --- labels ---

    def test_resolved_says_what_labels_come_to(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            for config, _ in self._programs(case):
                assert set(self.strategy().resolved(case.analysis, config, {})) == set(config)

    def _reference(self, case: Case) -> Program:
        baseline = self.strategy().baselines(case.analysis)[0]
        return baseline.emit(next(baseline.space.points()))

    # --- parts, probes, plan ---

    def test_parts_are_jobs_and_probes_are_programs(self, cases: tuple[Case, ...]) -> None:
        for case in cases:
            for part in self.strategy().parts(case.analysis):
                assert prepare(self.registry(), part).workload.key != case.workload.key
            probes = self.strategy().probes(case.analysis)
            assert len({each.key for each in probes}) == len(probes)
            for probe in probes:
                assert problems(probe.program) == (), probe.key

    def test_a_plan_can_be_shown(self) -> None:
        for job in self.jobs():
            document = plan(self.registry(), job, arch="sm_90").as_json()
            assert json.loads(json.dumps(document, allow_nan=False)) == document


def _explained(rejection: Rejection) -> None:
    assert rejection.rule
    assert rejection.detail
    assert len(rejection.detail.splitlines()) == 1


def _compared(program: Program) -> Mapping[str, object]:
    return {
        each.name: (each.dtype, each.elements, each.role, plain(each.compare))
        for each in program.buffers
        if each.role.compared
    }


def _read(program: Program) -> Mapping[str, object]:
    return {
        each.name: (each.dtype, each.elements, plain(each.fill))
        for each in program.buffers
        if each.role.value in ("input", "inout")
    }
