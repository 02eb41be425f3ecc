"""What children say is what the strategies say: plans, spaces, Programs and refusals, for every job of configs/."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusiond.model.errors import UnknownName
from fusiond.model.nouns import Rejection
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.isolation.planner import Planner
from fusiond.requests.isolation.registry import IsolatedRegistry
from fusiond.requests.planning import Prepared, plan, prepare, target_for_arch
from fusiond.requests.registry import Registry
from fusiond.strategy import Strategy

SAMPLE = ("hist-maxpool", "mincut-harris", "stitching-lr", "transfer-fig2", "four-kernels")
JOBS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in SAMPLE else pytest.mark.campaign)
    for path in sorted((Path(__file__).parents[2] / "configs" / "jobs").glob("*.yaml"))
]


@pytest.fixture(scope="module")
def isolated(real: Registry) -> Iterator[Registry]:
    with Planner() as planner:
        registry = IsolatedRegistry(planner)
        registry.providers = real.providers
        yield registry


def said(found: Program | Rejection | None) -> object:
    return found.key if isinstance(found, Program) else found


def everything(prepared: Prepared, registry: Registry) -> list[object]:
    """What a tuner would ask of a strategy."""
    strategy, target = prepared.strategy, target_for_arch("sm_90", registry)
    analysis = strategy.analyse(prepared.workload, target)
    space = strategy.space(analysis, {})
    seeds = strategy.seeds(analysis, space, {})
    found: list[object] = [prepared.workload.key, prepared.workload.content_key, dict(prepared.job.files)]
    found += [analysis.report, analysis.rejections, analysis.alone, space.hash, seeds, strategy.describe(analysis)]
    found += [strategy.parts(analysis), strategy.probe_limit(analysis), strategy.odd_sizes(prepared.workload)]
    found += [[(each.key, each.program.key) for each in strategy.probes(analysis)]]
    found += [dict(strategy.figures(analysis, None, {}))]
    for baseline in strategy.baselines(analysis):
        config = next(baseline.space.points())
        found += [baseline.name, baseline.detail, baseline.like, baseline.space.hash, baseline.emit(config).key]
    for _, config in (*seeds[:3], *seeds[-1:]):
        found += [said(strategy.emit(analysis, config, {})), strategy.resolved(analysis, config, {})]
        found += [said(strategy.unfused(analysis, config))]
    return found


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("path", JOBS)
def test_a_job_is_the_same_to_both(real: Registry, isolated: Registry, path: Path) -> None:
    (job, *_) = jobs.read(path, device="cpu")
    here, there = (everything(prepare(registry, job), registry) for registry in (real, isolated))
    assert here == there
    assert plan(real, job).as_json() == plan(isolated, job).as_json()


def test_a_mistake_is_the_same_to_both(real: Registry, isolated: Registry) -> None:
    (job,) = jobs.read("/job.yaml", "strategy: hfuse\npair: [hits, maxpool]\n")
    problems = []
    for registry in (real, isolated):
        with pytest.raises(UnknownName) as problem:
            prepare(registry, job)
        problems.append((str(problem.value), problem.value.where, problem.value.problem, problem.value.exit_status))
    assert problems[0] == problems[1]


def test_strategies_look_the_same(real: Registry, isolated: Registry) -> None:
    for name, strategy in real.strategies.items():
        other = isolated.strategies[name]
        assert isinstance(other, Strategy)
        for each in ("name", "version", "job_keys", "wrong_versions"):
            assert getattr(other, each) == getattr(strategy, each)
        assert dict(other.names) == dict(strategy.names)
    assert isolated.catalogue == real.catalogue
    assert [each.name for each in isolated.states] == [each.name for each in real.states]
