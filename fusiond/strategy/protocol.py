"""The protocol of a strategy: an object that turns a job into Programs and never talks to a device.

    Job --parse--> Workload --analyse--> Analysis --space--> Space, Config --emit--> Program | Rejection

Every method is a pure function of its arguments: the same input gives the same output, in every process. The
contract tests in `fusiond.testing.strategies` run over any implementation; docs/plugins.md walks through one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, runtime_checkable

from fusiond.model.errors import RequestError
from fusiond.model.inputs.documents import Node
from fusiond.model.nouns import (
    SAMPLER,
    Analysed,
    Analysis,
    CompileFacts,
    Config,
    DeviceLimits,
    Job,
    NamedPtx,
    Rejection,
    Request,
    Workload,
    frozen,
)
from fusiond.model.outcomes import BuildFailed, Record
from fusiond.model.program import Program, Source
from fusiond.model.ptx.triton import TritonKernel, TritonSource
from fusiond.strategy.space import EMPTY, Space


class Inputs(Protocol):
    """The files and names that a job may refer to. Every text that is read becomes part of the job's snapshot."""

    def resolve(self, kind: str, name: str, *, where: str) -> str:
        """The path behind a catalogue name, or behind a path relative to the job file (it ends in .yaml, or holds a /).

        Raises UnknownName with the nearest name, RequestError for a file that is missing."""

    def beside(self, path: str, relative: str, *, where: str) -> str:
        """A path relative to the folder of another file that was read. RequestError when no such file is there."""

    def text(self, path: str, *, where: str) -> str:
        """The text of a file. RequestError when it cannot be read or is not UTF-8."""

    def document(self, path: str, *, where: str) -> Node:
        """A YAML file as a tree with positions."""

    def digest(self, path: str, *, where: str) -> str:
        """The content key of a file too large to be part of the snapshot (an .npy)."""

    def compiled(self, source: Source) -> NamedPtx | BuildFailed | None:
        """A source in CUDA C++ as PTX, for the GPU that its flags name (-arch=sm_90a), else for any from sm_80 on. It
        becomes part of the snapshot. None where no compiler is there."""

    def triton(self, source: TritonSource) -> tuple[TritonKernel | str, ...] | BuildFailed:
        """A kernel in Triton as PTX, one for each config, parameters by their places among its arguments. It becomes
        part of the snapshot. A text is why a config gives none; BuildFailed: why there is none at all."""

    def taking(self, kind: str) -> tuple[Strategy, str] | None:
        """The strategy that takes documents of a kind (`Strategy.names`) and under which key of a job; None where none
        is installed. What reads a document through these same inputs is asked as it would be for a job of its own."""


class Facts(Protocol):
    """Compile facts for the target's architecture: cached, and never a measurement."""

    def __call__(self, source: Source) -> Mapping[str, CompileFacts] | BuildFailed | None:
        """Entry -> facts; None where no compiler is there."""


class Asked(Protocol):
    """A question to another strategy, read and checked."""

    @property
    def job(self) -> Job:
        """What `parts` hands in, so that there is an answer."""

    @property
    def key(self) -> str:
        """Under which `answers` has the Record."""

    @property
    def strategy(self) -> str:
        """Its name, for people."""

    def record(self, answers: Answers) -> Record | None:
        """The answer, where there is one."""

    def program(self, answers: Answers) -> Program | Rejection:
        """What the answer's config comes to; without an answer, what the strategy would try first."""


class Others(Protocol):
    """What a strategy may ask of the others (`fusiond.strategy.composition`). No plugin names another one."""

    def taking(self, kind: str) -> tuple[str, str] | None:
        """(strategy, the job key) that takes documents of a kind (`Strategy.names`); None where none is installed."""

    def ask(self, job: Job) -> Asked | str:
        """A job of another strategy, its files with it; or why it cannot be asked, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a strategy may know of the device: its limits, and compile facts where a compiler is there.

    `limits.registers_per_sm` is 0 where registers mean nothing (the cpu device): no register caps then."""

    arch: str
    limits: DeviceLimits
    facts: Facts = field(compare=False, repr=False)
    others: Others | None = field(default=None, compare=False, repr=False)
    """What can be asked of other strategies; None where nobody is to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A keyed micro-measurement that a strategy wants; measured once per device, kept for ever."""

    key: str
    program: Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A named unfused way. `emit` gives its Program for a point of its own small space; the first point of that space
    is the plain one, "as given". `like` names an earlier baseline from whose best config the tuning starts (and ends:
    only that config is measured), since the same kernels are best at the same shapes when only the schedule differs."""

    name: str
    detail: str
    space: Space = EMPTY
    emit: Callable[[Config], Program] = field(compare=False, repr=False)
    like: str | None = None


Answers = Mapping[str, Record | float]
"""What this device has answered: workload keys of parts -> Record, probe keys -> microseconds."""
NO_ANSWERS: Answers = frozen()

IMPLEMENTATION = "implementation"
"""In `Strategy.names`: several documents that compute the same, of which a job of that key chooses. No name of the
catalogue is of this kind."""


@runtime_checkable
class Strategy(Protocol[Request, Analysed]):
    """See the module's docstring. `StrategyBase` has the defaults. `Request` and `Analysed` are the strategy's own
    values: the payloads of its Workloads and Analyses."""

    name: str
    version: int  #: In every key: a mended emitter is not answered by an old record
    job_keys: tuple[str, ...]  #: The keys of a job file that belong to this strategy, beside those of the core
    wrong_versions: tuple[int, ...]
    """Versions of this strategy whose answers are known to be wrong: they are never served."""
    names: Mapping[str, str]
    """Kind of a document (as in `CatalogueEntry.kind`) -> the job key that takes one, or a list of them, by catalogue
    name or path. What a user names on a command line finds its strategy by this."""

    orders: tuple[str, ...]
    """What `search: {order: ...}` of a job may be; `sampler` always is. In another one's space are only the configs
    that it tries, and its seeds are these, in their order."""
    documents: Mapping[str, Mapping[str, Any]]
    """Kind of a document -> its JSON Schema, by which editors complete it (`fusiond schema KIND`)."""
    drafts: tuple[str, ...]
    """How the names of files end from which it can draft a document of the kind that `names` has first: `.cu`."""

    def draft(self, path: str, name: str, inputs: Inputs, include: tuple[str, ...] = ()) -> str:
        """A document for what is called `name` in such a file (empty: for the only thing there is): YAML, with `"?"`
        for what the file does not say. RequestError for a file that holds no such thing."""

    def parse(self, job: Job, inputs: Inputs) -> Workload[Request]:
        """Read what the job refers to and check it. RequestError with file, line and key for a user's mistake."""

    def analyse(self, workload: Workload[Request], target: Target) -> Analysis[Request, Analysed]:
        """What is known without running anything on the device."""

    def describe(self, analysis: Analysis[Request, Analysed], answers: Answers = NO_ANSWERS) -> str:
        """The analysis for people: a drawing, a time line, a table, as plain text that `plan` shows in place
        of the report (which --json has). Empty when the report is short enough to be read itself."""

    def parts(self, analysis: Analysis[Request, Analysed]) -> tuple[Job, ...]:
        """Smaller jobs whose records this one builds on: ordinary jobs, each with its own key and record."""

    def probes(self, analysis: Analysis[Request, Analysed]) -> tuple[Probe, ...]:
        """Micro-measurements that this one wants."""

    def probe_limit(self, analysis: Analysis[Request, Analysed]) -> int | None:
        """How many of the probes that nobody has answered yet a job may have measured; None for all of them."""

    def space(self, analysis: Analysis[Request, Analysed], answers: Answers) -> Space: ...

    def seeds(
        self, analysis: Analysis[Request, Analysed], space: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        """(name, config): what the paper itself would choose, and the plain one; tried first, in this order."""

    def baselines(self, analysis: Analysis[Request, Analysed]) -> tuple[Baseline, ...]:
        """The unfused ways. The first, at its first point, is the reference whose outputs are right by definition. None
        only where the analysis' rejections say that nothing of the workload can be run: then it can be planned."""

    def emit(self, analysis: Analysis[Request, Analysed], config: Config, answers: Answers) -> Program | Rejection: ...

    def resolved(self, analysis: Analysis[Request, Analysed], config: Config, answers: Answers) -> Config:
        """The config with its labels replaced by what they come to (`cap=paper` -> `cap=40`), for people."""

    def figures(
        self, analysis: Analysis[Request, Analysed], record: Record | None, answers: Answers
    ) -> Mapping[str, float]:
        """Numbers that follow from an answer and what is known, for people (units in the names): kept with the record.
        Without a record: what is known anyway."""

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        """A last look at what the compiler made of an emitted program: source name -> PTX, where the device has such a
        thing. A Rejection when it is not what was meant (the fused block's own barrier in a part of it, say)."""

    def unfused(self, analysis: Analysis[Request, Analysed], config: Config) -> Program | None:
        """The unfused kernels at the block shapes of this config: tells a wrong fusion from a kernel that is wrong
        at these shapes by itself. None when a config has no such thing."""

    def odd_sizes(self, workload: Workload[Request]) -> Mapping[str, int] | None:
        """Awkward sizes (not divisible by a block) at which a winner is checked too; None when none are known."""


@runtime_checkable
class ReadsModules(Protocol):
    """A strategy that computes modules of a program's, and is asked while the program is cut into them."""

    def boundaries(self, text: str) -> tuple[str, ...]:
        """Why parts of a module would be left to a library, a line each; empty where all of it is computed in launches
        of ours. RequestError for a text that is no module."""


def description_of(strategy: Strategy, analysis: Analysis, answers: Answers) -> str:
    """A strategy's words on an analysis, by these answers where it takes any."""
    method: Callable[..., str] = strategy.describe
    try:
        inspect.signature(method).bind(analysis, answers)
    except TypeError:
        return method(analysis)
    return method(analysis, answers)


class StrategyBase(Generic[Request, Analysed]):
    """Defaults for what most strategies do not need."""

    job_keys: tuple[str, ...] = ()
    wrong_versions: tuple[int, ...] = ()
    names: Mapping[str, str] = frozen()
    orders: tuple[str, ...] = (SAMPLER,)
    documents: Mapping[str, Mapping[str, Any]] = frozen()
    drafts: tuple[str, ...] = ()

    def draft(self, path: str, name: str, inputs: Inputs, include: tuple[str, ...] = ()) -> str:
        raise RequestError("this strategy drafts nothing", where=path)

    def describe(self, analysis: Analysis[Request, Analysed], answers: Answers = NO_ANSWERS) -> str:
        return ""

    def parts(self, analysis: Analysis[Request, Analysed]) -> tuple[Job, ...]:
        return ()

    def probes(self, analysis: Analysis[Request, Analysed]) -> tuple[Probe, ...]:
        return ()

    def probe_limit(self, analysis: Analysis[Request, Analysed]) -> int | None:
        return None

    def resolved(self, analysis: Analysis[Request, Analysed], config: Config, answers: Answers) -> Config:
        return config

    def figures(
        self, analysis: Analysis[Request, Analysed], record: Record | None, answers: Answers
    ) -> Mapping[str, float]:
        return {}

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        return None

    def unfused(self, analysis: Analysis[Request, Analysed], config: Config) -> Program | None:
        return None

    def odd_sizes(self, workload: Workload[Request]) -> Mapping[str, int] | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A name that job files may use, and the YAML file behind it. `kind` says what for: kernel, module, pipeline,
    graph."""

    kind: str
    name: str
    path: Path
    summary: str = ""
