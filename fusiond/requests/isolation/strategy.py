"""A strategy as seen from here: each method is a request to the child that keeps the workload."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Program
from fusiond.requests.isolation.messages import Described, Here
from fusiond.requests.isolation.planner import ChildObject, Planner
from fusiond.requests.isolation.processes import Crashed, Helper, TookTooLong, nobody
from fusiond.requests.jobs import JobInputs
from fusiond.strategy import NO_ANSWERS, Answers, Baseline, Inputs, Probe, Target
from fusiond.strategy.space import Space

CRASHED, TOO_SLOW, TOO_LARGE = "crashed", "too_slow", "too_large"
"""Rules of the Rejections that stand for a config that cannot be emitted at all."""
LOOK_SECS = 5.0  #: For how long the line that crashes a parser is looked for; after that the file alone is named
ONE_SECS = 2.0  #: For one attempt: a beginning that takes longer is not a crash


class IsolatedStrategy:
    """`fusiond.strategy.Strategy` with its work done elsewhere.

    Every method raises what the strategy's own raises. Where the strategy, or a library below it, ends its process or
    takes too long: RequestError with the job's file, and the line where one can be found; for one config it is a
    Rejection. MachineFault when its processes are killed from outside again and again."""

    def __init__(self, planner: Planner, described: Described) -> None:
        self._planner = planner
        self.name = described.name
        self.version = described.version
        self.job_keys = described.job_keys
        self.wrong_versions = described.wrong_versions
        self.names: Mapping[str, str] = frozen(described.names)
        self.drafts = described.drafts
        self.orders = described.orders
        self.documents: Mapping[str, Mapping[str, Any]] = described.documents

    def draft(self, path: str, name: str, inputs: Inputs, include: tuple[str, ...] = ()) -> str:
        job = Job(strategy=self.name, request={}, sizes={}, path=path)
        with _Blamed(self.name, "draft", job):
            found: str = self._planner.ask("draft", self.name, path, name, include, helper=_reading(inputs))
        return found

    # --- jobs ---

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        asked = (self.name, job)
        workload: Workload
        with _Blamed(self.name, "read", job, functools.partial(_culprit, self._planner, asked, inputs)):
            kept, workload = self._planner.make("parse", asked, _reading(inputs))
        # What went in is what it is asked about when its process has to be replaced.
        return dataclasses.replace(workload, payload=_Parsed(kept, job))

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        parsed: _Parsed = workload.payload
        here = Here(arch=target.arch, limits=target.limits)
        analysis: Analysis
        with _Blamed(self.name, "analyse", parsed.job):
            kept, analysis = self._planner.make("analyse", (here,), _compiling(target), parsed.kept)
        return dataclasses.replace(analysis, workload=workload, payload=kept)

    def odd_sizes(self, workload: Workload) -> Mapping[str, int] | None:
        parsed: _Parsed = workload.payload
        with _Blamed(self.name, "choose odd sizes for", parsed.job):
            found: Mapping[str, int] | None = self._planner.use(parsed.kept, "odd_sizes")
        return found

    # --- analyses ---

    def describe(self, analysis: Analysis, answers: Answers = NO_ANSWERS) -> str:
        found: str = self._ask(analysis, "describe", known=answers)
        return found

    def parts(self, analysis: Analysis) -> tuple[Job, ...]:
        found: tuple[Job, ...] = self._ask(analysis, "parts")
        return found

    def probes(self, analysis: Analysis) -> tuple[Probe, ...]:
        found: tuple[Probe, ...] = self._ask(analysis, "probes")
        return found

    def probe_limit(self, analysis: Analysis) -> int | None:
        found: int | None = self._ask(analysis, "probe_limit")
        return found

    def space(self, analysis: Analysis, answers: Answers) -> Space:
        found: Space = self._ask(analysis, "space", known=answers)
        return found

    def seeds(self, analysis: Analysis, space: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        found: tuple[tuple[str, Config], ...] = self._ask(analysis, "seeds", space, known=answers)
        return found

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        found: tuple[dict[str, Any], ...] = self._ask(analysis, "baselines")
        return tuple(
            Baseline(**each, emit=functools.partial(self._ask, analysis, "emit_baseline", index))
            for index, each in enumerate(found)
        )

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
        kept: ChildObject = analysis.payload
        try:
            found: Program | Rejection = self._planner.use(kept, "emit", config, known=answers)
        except Crashed as crash:
            return Rejection(rule=CRASHED, nodes=(self.name,), detail=f"the emitter {crash.how} on this config")
        except TookTooLong as slow:
            return Rejection(rule=TOO_SLOW, nodes=(self.name,), detail=f"the emitter took {slow} and was stopped")
        except MemoryError:
            return Rejection(rule=TOO_LARGE, nodes=(self.name,), detail="the emitter needs more memory than it may use")
        return found

    def resolved(self, analysis: Analysis, config: Config, answers: Answers) -> Config:
        found: Config = self._ask(analysis, "resolved", config, known=answers)
        return found

    def figures(self, analysis: Analysis, record: Record | None, answers: Answers) -> Mapping[str, float]:
        found: Mapping[str, float] = self._ask(analysis, "figures", record, known=answers)
        return found

    def unfused(self, analysis: Analysis, config: Config) -> Program | None:
        found: Program | None = self._ask(analysis, "unfused", config)
        return found

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        try:
            found: Rejection | None = self._planner.ask("inspect", self.name, program, ptx)
        except (Crashed, TookTooLong, MemoryError) as problem:
            what = str(problem) or "not enough memory"
            return Rejection(rule=CRASHED, nodes=(self.name,), detail=f"looking at what was compiled: {what}")
        return found

    def _ask(self, analysis: Analysis, method: str, *arguments: object, known: Answers | None = None) -> Any:
        with _Blamed(self.name, _DOING[method], analysis.workload.payload.job):
            return self._planner.use(analysis.payload, method, *arguments, known=known)


_DOING = {
    "describe": "describe", "parts": "find the parts of", "probes": "choose probes for",
    "probe_limit": "choose probes for", "space": "make the space of", "seeds": "choose seeds for",
    "baselines": "make the unfused ways of", "emit_baseline": "emit an unfused way of",
    "resolved": "put a config into words for", "figures": "count figures for",
    "unfused": "emit the unfused kernels of",
}  # fmt: skip


def _reading(inputs: Inputs) -> Helper:
    """Reads files and asks compilers for a child, through the inputs of a job."""

    def read(name: str, arguments: Sequence[Any]) -> object:
        if name in ("text", "beside", "resolve", "digest"):
            *given, where = arguments
            return getattr(inputs, name)(*given, where=where)
        return getattr(inputs, name)(*arguments) if name in ("compiled", "triton") else nobody(name, arguments)

    return read


def _compiling(target: Target) -> Helper:
    """Compiles for a child."""
    return lambda name, arguments: target.facts(*arguments) if name == "facts" else nobody(name, arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class _Parsed:
    """In place of a workload's payload."""

    kept: ChildObject
    job: Job


class _Blamed:
    """Turns a crash, a time-out or a lack of memory into a line about the job; `place` knows better where, and is asked
    (crashed or not) when something happened."""

    def __init__(self, strategy: str, doing: str, job: Job, place: Callable[[bool], str] | None = None) -> None:
        self._what = f"{doing} this"
        self._strategy, self._place = strategy, place or (lambda crashed: job.path)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, Crashed):
            text = f"{self._strategy} {problem.how} as it had to {self._what}"
        elif isinstance(problem, TookTooLong):
            text = f"{self._strategy} took {problem} to {self._what}, and was stopped"
        elif isinstance(problem, MemoryError):
            text = f"{self._strategy} needs more memory than it may use to {self._what}"
        else:
            return
        raise RequestError(text, where=self._place(isinstance(problem, Crashed))) from None


def _culprit(planner: Planner, asked: tuple[str, Job], inputs: Inputs, crashed: bool) -> str:
    """The line that crashes a parser; the file that was read last where it is none."""
    _, job = asked
    if not isinstance(inputs, JobInputs):
        return job.path
    return (_crashing_line(planner, asked, inputs) if crashed else None) or inputs.last or job.path


def _crashing_line(planner: Planner, asked: tuple[object, ...], inputs: JobInputs) -> str | None:
    """`file:line` of what crashes the parser (`asked`: its request), or the file where no line can be found; None when
    none of the files does it. The files that were read last are looked at first."""
    until = time.monotonic() + LOOK_SECS

    def dies(path: str, text: str) -> bool:
        number = next(planner.numbers)
        helper = _reading(inputs.with_text(path, text))
        return planner.dies("parse", (number, *asked), helper, secs=ONE_SECS)

    for path, text in reversed(list(inputs.texts().items())):
        if time.monotonic() > until:
            return None
        if dies(path, ""):
            continue
        parts = text.splitlines(keepends=True)
        fine, crash = 0, len(parts)
        while crash - fine > 1:
            if time.monotonic() > until:
                return path
            middle = (fine + crash) // 2
            if dies(path, "".join(parts[:middle])):
                crash = middle
            else:
                fine = middle
        return f"{path}:{crash}"
    return None
