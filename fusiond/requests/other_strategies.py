"""The other installed strategies, as a strategy may ask them (`Others` of the protocol)."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from fusiond.build import nvcc
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import Analysis, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Program
from fusiond.requests.jobs import JobInputs, check_keys
from fusiond.requests.registry import Registry
from fusiond.strategy import Answers, Asked, Strategy, Target
from fusiond.strategy.composition import MADE


def on_disk(workload: Workload) -> Workload:
    """Without the files that a strategy has made for another one: nobody can change them."""
    hashes = {path: digest for path, digest in workload.source_hashes.items() if MADE not in Path(path).parts}
    return dataclasses.replace(workload, source_hashes=frozen(hashes))


@dataclass(slots=True)
class StrategyQuestion:
    """A job of another strategy (`fusiond.strategy.Asked`)."""

    job: Job
    key: str
    _strategy: Strategy = field(repr=False)
    _workload: Workload = field(repr=False)
    _target: Target = field(repr=False)
    _analysed: Analysis | None = field(default=None, repr=False)

    @property
    def strategy(self) -> str:
        return self._strategy.name

    def record(self, answers: Answers) -> Record | None:
        found = answers.get(self.key)
        return found if isinstance(found, Record) else None

    def program(self, answers: Answers) -> Program | Rejection:
        """What the answer's config comes to; without one, the first seed that comes to anything."""
        analysis = self._analysis()
        record = self.record(answers)
        if record is not None and record.config is not None:
            return self._strategy.emit(analysis, record.config, answers)
        found: Program | Rejection | None = None
        for _, config in self._strategy.seeds(analysis, self._strategy.space(analysis, answers), answers):
            found = self._strategy.emit(analysis, config, answers)
            if isinstance(found, Program):
                return found
        nothing = Rejection(rule="empty", nodes=(self._workload.name,), detail="there is nothing to fuse")
        return found or (analysis.rejections[0] if analysis.rejections else nothing)

    def _analysis(self) -> Analysis:
        if self._analysed is None:
            self._analysed = self._strategy.analyse(self._workload, self._target)
        return self._analysed


class RegistryStrategies:
    """The strategies of a registry, for one target."""

    def __init__(self, registry: Registry, target: Target) -> None:
        self._registry, self._target = registry, dataclasses.replace(target, others=None)

    def taking(self, kind: str) -> tuple[str, str] | None:
        found = self._registry.taking(kind)
        return None if found is None else (found[0].name, found[1])

    def ask(self, job: Job) -> Asked | str:
        self._registry.complete()
        strategy = self._registry.strategies.get(job.strategy)
        if strategy is None:
            return f"the strategy {job.strategy} is not installed"
        try:
            check_keys(job, strategy.job_keys)
            workload = strategy.parse(job, JobInputs(self._registry, job, compiler=nvcc.compiled))
        except FusiondError as problem:
            return " ".join(str(problem).split())[:300]
        return StrategyQuestion(job, workload.key, strategy, workload, self._target)


def with_others(registry: Registry, target: Target) -> Target:
    """A target by which strategies can ask the others."""
    return dataclasses.replace(target, others=RegistryStrategies(registry, target))
