"""From a job to everything that is known without running it: `plan`, and the first half of tuning."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusiond.build import nvcc
from fusiond.build.exporting.bundle import write_bundle
from fusiond.build.nvcc import NvccFacts
from fusiond.devices.base import DeviceProvider
from fusiond.devices.counting import child_process
from fusiond.model.english import counted
from fusiond.model.errors import DeviceError, PluginError, RequestError, UnknownName
from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import NAMED_ONLY, Analysis, Config, DeviceInfo, Job, Rejection, Value, Workload, frozen
from fusiond.model.outcomes import BuildFailed, Record
from fusiond.model.program import Program, problems
from fusiond.requests.jobs import JobInputs, check_keys, check_order
from fusiond.requests.launch_facts import KernelFacts, kernel_facts, without_facts
from fusiond.requests.other_strategies import on_disk, with_others
from fusiond.requests.registry import Registry
from fusiond.strategy import Answers, Baseline, Strategy, Target, description_of
from fusiond.strategy.space import Space, check_seeds

if TYPE_CHECKING:  # nothing of SQLite is imported to plan for an architecture
    from fusiond.store.database import Store

COUNT_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that was read and checked: its strategy, its workload, and itself with a snapshot of its files."""

    job: Job
    strategy: Strategy
    workload: Workload
    looked: Mapping[str, str] | None = None
    """Each path that was looked for -> the file that was found, or nothing; None where a compiler was asked, too."""


def prepare(registry: Registry, job: Job) -> Prepared:
    """Parse a job with its strategy. RequestError for whatever the user got wrong."""
    strategy = registry.strategy(job.strategy, where=job.where("strategy"))
    check_keys(job, strategy.job_keys)
    check_order(job, strategy.orders)
    inputs = JobInputs(registry, job, compiler=nvcc.compiled)
    workload = on_disk(strategy.parse(job, inputs))
    read = dataclasses.replace(job, files=inputs.snapshot())
    looked = None if inputs.asked_compiler else frozen(inputs.looked)
    return Prepared(job=read, strategy=strategy, workload=workload, looked=looked)


def choose_device(registry: Registry, request: str, *, where: str = "device") -> tuple[DeviceProvider, DeviceInfo]:
    """The device behind `auto`, `cpu`, `cuda`, `cuda:1`. `auto` takes one that measures, else the processor;
    what is counted or replayed has to be named.

    `where` is for messages. DeviceError says what is missing when there is none."""
    if request == "auto":
        found = [each for each in registry.devices() if each[1].evidence not in NAMED_ONLY]
        found.sort(key=lambda each: (each[1].evidence != "measured", each[0].kind != "cpu"))
        missing = [line for provider in registry.providers.values() for line in provider.missing()]
    else:
        provider = registry.provider(request, where=where)
        infos = provider.devices()
        found = [(provider, info) for info in infos if request in (info.name, provider.kind)]
        if infos and not found:
            raise UnknownName("device", request, [info.name for info in infos], where=where)
        missing = list(provider.missing())
    if not found:
        raise DeviceError(f"no device for {request!r}: {'; '.join(missing) or 'none is there'}")
    return found[0]


def devices_for(registry: Registry, request: str, *, where: str = "device") -> tuple[str, ...]:
    """The devices that a job is meant for: `all` is one of each model, those that emulate only where none measures.

    Every other request stands for itself; DeviceError, or UnknownName, when nothing here answers to it."""
    if request != "all":
        choose_device(registry, request, where=where)
        return (request,)
    infos = [info for _, info in registry.devices()]
    evidence = choose_device(registry, "auto")[1].evidence
    models = {info.key: info.name for info in reversed(infos) if info.evidence == evidence}
    return tuple(sorted(models.values()))


def target_of(provider: DeviceProvider, device: DeviceInfo, registry: Registry | None = None) -> Target:
    """What a strategy may know of a device, and of the others in a registry."""
    target = Target(arch=device.arch, limits=device.limits, facts=provider.facts(device.arch))
    return target if registry is None else with_others(registry, target)


def target_for_arch(arch: str, registry: Registry | None = None) -> Target:
    """A GPU that is not there: limits from the architecture, facts from nvcc and ptxas where they are installed."""
    target = Target(arch=arch, limits=limits(arch), facts=NvccFacts(arch))
    return target if registry is None else with_others(registry, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `fusiond plan` shows."""

    prepared: Prepared
    target: Target
    device: str
    analysis: Analysis
    description: str  #: The analysis in the strategy's own words, for people; may be empty
    space: Space
    points: int
    seeds: tuple[tuple[str, Config], ...]
    rejections: tuple[Rejection, ...]
    parts: int
    parts_known: int  #: How many of the parts this device has a record of
    probes: int  #: How many entries the strategy would use
    probes_missing: int  #: How many of these this device has not answered yet
    probe_limit: int | None  #: How many missing ones the job would have measured; None for all
    figures: Mapping[str, float]
    """What the strategy says of what is known, and of the answer of today where there is one."""
    facts: tuple[KernelFacts, ...] | None
    """Of the reference, of every seed and of the config that was chosen; None where no compiler for the target is
    there."""
    notes: tuple[str, ...]  #: One line each, for people: what would have told more
    refused: str = ""  #: Why not one candidate of this job can be tried, so that it cannot be run; empty when it can
    chosen: Config | None = None  #: What `--set` made of the first seed
    counted: tuple[Mapping[str, Any], ...] | None = None
    """What its launches would pay on a GPU, as `fusiond.devices.counting` has it; None where nobody asked."""
    known: Answers = field(default_factory=frozen, repr=False)  #: What the device had answered for parts and probes
    programs: Mapping[str, Program] = field(default_factory=frozen, repr=False)
    """The reference as `reference`, and what the seeds and the chosen config came to, as `seed:NAME` and `set`."""

    @property
    def workload(self) -> Workload:
        return self.prepared.workload

    def as_json(self) -> dict[str, Any]:
        """The document of `plan --json`."""
        workload = self.workload
        return {
            "strategy": workload.strategy,
            "workload": {
                "name": workload.name,
                "key": workload.key,
                "members": list(workload.members),
                "sizes": dict(workload.sizes),
            },
            "target": {"arch": self.target.arch, "device": self.device},
            "analysis": dict(self.analysis.report),
            "parts": self.parts,
            "parts_known": self.parts_known,
            "probes": {
                "wanted": self.probes,
                "known": self.probes - self.probes_missing,
                "missing": self.probes_missing,
                "limit": self.probe_limit,
            },
            "probes_missing": self.probes_missing,
            "figures": dict(self.figures),
            "space": {
                "parameters": {each.name: list(each.values) for each in self.space.parameters},
                "conditions": {each.name: each.when for each in self.space.parameters if each.when},
                "restrictions": list(self.space.restrictions),
                "points": self.points,
            },
            "seeds": [{"name": name, **dict(config)} for name, config in self.seeds],
            "rejections": [
                {"rule": each.rule, "nodes": list(each.nodes), "detail": each.detail} for each in self.rejections
            ],
            "facts": None if self.facts is None else [each.as_json() for each in self.facts],
            "notes": list(self.notes),
            "refused": self.refused or None,
            **({} if self.chosen is None else {"set": dict(self.chosen)}),
            **({} if self.counted is None else {"counted": [dict(each) for each in self.counted]}),
        }


def answers(
    store: Store, registry: Registry, strategy: Strategy, analysis: Analysis, device_key: str
) -> dict[str, Record | float]:
    """What a device has answered for the parts and probes of a workload."""
    parts = [prepare(registry, job).workload.key for job in strategy.parts(analysis)]
    known: dict[str, Record | float] = {**store.known(device_key, parts)}
    for probe in strategy.probes(analysis):
        time_us = store.probe(probe.key, device_key, strategy.version)
        if time_us is not None:
            known[probe.key] = time_us
    return known


def plan(
    registry: Registry, job: Job, *, arch: str | None = None, known: Answers | None = None, store: Store | None = None
) -> Plan:
    """All that is known of a job without running it, for its device or for the architecture that is named. `store`:
    where to look up what the device has answered for parts and probes."""
    prepared = prepare(registry, job)
    strategy = prepared.strategy
    known = dict(known or {})
    record = None
    if arch is not None:
        target, device = target_for_arch(arch, registry), arch
        analysis = strategy.analyse(prepared.workload, target)
    else:
        provider, info = choose_device(registry, job.device, where=job.device_where)
        target, device = target_of(provider, info, registry), info.name
        analysis = strategy.analyse(prepared.workload, target)
        if store is not None:
            record = store.record(prepared.workload.key, info.key)
            known |= answers(store, registry, strategy, analysis, info.key)
    parts = [prepare(registry, each).workload.key for each in strategy.parts(analysis)]
    probes = [each.key for each in strategy.probes(analysis)]
    space = strategy.space(analysis, known)
    seeds, refused = check_seeds(space, strategy.seeds(analysis, space, known))
    rejections = [*analysis.rejections, *refused_seeds(refused)]
    programs = {}
    if strategy.baselines(analysis):
        programs["reference"] = sound(strategy.name, reference(strategy, analysis))
    for name, config in seeds:
        program = emitted(strategy, analysis, config, known)
        if isinstance(program, Rejection):
            rejections.append(dataclasses.replace(program, nodes=(f"seed:{name}", *program.nodes)))
        else:
            programs[f"seed:{name}"] = program
    refusal = () if len(programs) > 1 else hopeless(strategy, analysis, known)
    facts = kernel_facts(target, programs)
    return Plan(
        prepared=prepared,
        target=target,
        device=device,
        analysis=analysis,
        description=description_of(strategy, analysis, known),
        space=space,
        points=space.count(COUNT_LIMIT),
        seeds=seeds,
        rejections=tuple(rejections),
        parts=len(parts),
        parts_known=sum(each in known for each in parts),
        probes=len(probes),
        probes_missing=sum(each not in known for each in probes),
        probe_limit=strategy.probe_limit(analysis),
        known=frozen(known),
        programs=frozen(programs),
        figures=strategy.figures(analysis, record, known),
        facts=facts,
        refused=_said_no(refusal),
        notes=(*_answered(strategy, analysis, known, device), *without_facts(target, facts)),
    )


MOST_ASKED = 64  #: Candidates that are emitted to find out whether there is any that can be tried


def hopeless(strategy: Strategy, analysis: Analysis, answers: Answers) -> tuple[Rejection, ...]:
    """Why not one candidate can be tried, the gravest reason first; empty when one can, or when there are too many of
    them to say so before the search does."""
    space = strategy.space(analysis, answers)
    seeds, _ = check_seeds(space, strategy.seeds(analysis, space, answers))
    found: list[Rejection] = []
    points = list(itertools.islice(space.points(), MOST_ASKED + 1))
    for config in dict.fromkeys([*(config for _, config in seeds), *points[:MOST_ASKED]]):
        program = strategy.emit(analysis, config, answers)
        if isinstance(program, Program):
            return ()
        found.append(program)
    if len(points) > MOST_ASKED:
        return ()
    nothing = Rejection(rule="empty", nodes=(analysis.workload.name,), detail="no config keeps all restrictions")
    return tuple(dict.fromkeys([*analysis.rejections, *found])) or (nothing,)


def refuse_hopeless(registry: Registry, prepared: Prepared) -> None:
    """RequestError when not one candidate of a job can be tried on the device that it is for: it would be measured for
    minutes to say nothing. The parts of a job are not looked at."""
    provider, info = choose_device(registry, prepared.job.device, where=prepared.job.device_where)
    analysis = prepared.strategy.analyse(prepared.workload, target_of(provider, info, registry))
    refused = _said_no(hopeless(prepared.strategy, analysis, {}))
    if refused:
        raise RequestError(refused, where=prepared.workload.name)


def _said_no(rejections: tuple[Rejection, ...]) -> str:
    if not rejections:
        return ""
    first, *others = rejections
    more = f" (and {counted(len(others), 'more reason')}: `fusiond plan` shows them)" if others else ""
    return f"no candidate can be tried: {first.detail}{more}"


def _answered(strategy: Strategy, analysis: Analysis, answers: Answers, device: str) -> tuple[str, ...]:
    """How many of a workload's parts have a record, where any has one."""
    parts = len(strategy.parts(analysis))
    records = sum(isinstance(each, Record) for each in answers.values())
    return (f"{records} of {parts} parts have a record on {device}",) if records else ()


def reference(strategy: Strategy, analysis: Analysis) -> Program:
    """The first baseline as given: right by definition. RequestError where there is none, with the reason."""
    baseline = first_baseline(strategy, analysis)
    return baseline.emit(next(baseline.space.points()))


def first_baseline(strategy: Strategy, analysis: Analysis) -> Baseline:
    """The unfused way whose first point is right by definition. RequestError where there is none, with the reason."""
    baselines = strategy.baselines(analysis)
    if not baselines:
        why = analysis.rejections[0].detail if analysis.rejections else "the strategy names no unfused way"
        raise RequestError(f"it can be planned, and not run: {why}", where=analysis.workload.name)
    return baselines[0]


def refused_seeds(refused: Mapping[str, str]) -> tuple[Rejection, ...]:
    """Seeds that are not points of the space, as data."""
    return tuple(Rejection(rule="seed", nodes=(name,), detail=detail) for name, detail in refused.items())


def chosen_config(found: Plan, settings: Mapping[str, str]) -> Config:
    """The first seed, changed by `--set name=value`. RequestError when that is not a point of the space."""
    if not found.seeds and not settings:
        raise RequestError("there is no seed to emit; name a config with --set", where="--emit")
    values: dict[str, Value] = dict(found.seeds[0][1]) if found.seeds else {}
    parameters = {each.name: each for each in found.space.parameters}
    for name, text in settings.items():
        if name not in parameters:
            raise UnknownName("parameter", name, parameters, where="--set")
        matching = [each for each in parameters[name].values if str(each) == text]
        if not matching:
            offered = ", ".join(str(each) for each in parameters[name].values)
            raise RequestError(f"{name} cannot be {text!r}; it can be {offered}", where="--set")
        values[name] = matching[0]
    active: dict[str, Value] = {}
    for parameter in found.space.parameters:  # what no longer applies falls away, what now applies gets its first value
        if found.space.active(active, parameter):
            active[parameter.name] = values.get(parameter.name, parameter.values[0])
    trouble = found.space.problems(active)
    if trouble:
        raise RequestError("; ".join(trouble), where="--set")
    return Config.of(active)


def with_config(found: Plan, settings: Mapping[str, str], known: Answers | None = None) -> Plan:
    """The plan with what is known of the config that `--set` says: its launches' facts, or why it is refused.

    RequestError when that is not a point of the space."""
    config = chosen_config(found, settings)
    program = emitted(found.prepared.strategy, found.analysis, config, found.known if known is None else known)
    if isinstance(program, Rejection):
        refused = dataclasses.replace(program, nodes=("set", *program.nodes))
        return dataclasses.replace(found, chosen=config, rejections=(*found.rejections, refused))
    more = None if found.facts is None else kernel_facts(found.target, {"set": program})
    facts = None if found.facts is None or more is None else (*found.facts, *more)
    programs = frozen({**found.programs, "set": program})
    return dataclasses.replace(found, chosen=config, facts=facts, programs=programs)


def with_counts(found: Plan, model: str) -> Plan:
    """The plan with what its programs would pay on a GPU of a model: `native`, `seed 0`, `seed 1`, ..., `set`. Seeds
    that were refused keep their numbers, and have no rows. MachineFault where the machine does not let it run."""
    labels = {"reference": "native", "set": "set"}
    labels |= {f"seed:{name}": f"seed {number}" for number, (name, _) in enumerate(found.seeds)}
    programs = {labels[name]: program for name, program in found.programs.items()}
    return dataclasses.replace(found, counted=tuple(child_process.counted(programs, model=model)))


def emitted(strategy: Strategy, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
    """What a strategy emits, checked against the invariants of a plan: PluginError when it breaks one. A config for
    which the plugin's code fails is rejected; the others may do."""
    try:
        program = strategy.emit(analysis, config, answers)
    except PluginError as problem:
        return Rejection(rule="plugin_failed", nodes=(strategy.name,), detail=str(problem))
    if isinstance(program, Program):
        sound(strategy.name, program)
    return program


def sound(strategy: str, program: Program) -> Program:
    """The program itself; PluginError when it breaks an invariant."""
    broken = problems(program)
    if broken:
        raise PluginError(f"{strategy} emitted a broken plan for {program.name!r}: {'; '.join(broken)}")
    return program


def inspected(strategy: Strategy, provider: DeviceProvider, program: Program, arch: str) -> Rejection | None:
    """The strategy's last look at what the compiler made of a program that builds; None when it has nothing to say."""
    texts = {source.name: provider.ptx(source, arch) for source in program.sources}
    return strategy.inspect(program, {name: text for name, text in texts.items() if text is not None})


def emit_bundles(registry: Registry, found: Plan, settings: Mapping[str, str], folder: Path) -> tuple[Path, Path]:
    """Write FOLDER/native (the reference) and FOLDER/candidate (the first seed, or what `settings` say).

    Built for the plan's device where a compiler for it is there. RequestError when the folder is taken, or the
    config is refused."""
    config = chosen_config(found, settings)
    strategy = found.prepared.strategy
    native = reference(strategy, found.analysis)
    candidate = emitted(strategy, found.analysis, config, found.known)
    if isinstance(candidate, Rejection):
        raise RequestError(f"{config} is refused: {candidate.detail} ({candidate.rule})", where="--emit")
    paths = folder / "native", folder / "candidate"
    for path, program in zip(paths, (native, candidate), strict=True):
        if path.exists():
            raise RequestError(f"{path} exists already; name an empty folder", where="--emit")
        binaries = built(registry, found, sound(strategy.name, program))
        if isinstance(binaries, BuildFailed):
            raise DeviceError(f"{program.name} does not build for {found.device}: {binaries.reason}")
        if binaries and program is candidate:
            refusal = inspected(strategy, _compiling(registry, found), program, found.target.arch)
            if refusal is not None:
                raise RequestError(f"{config} is refused: {refusal.detail} ({refusal.rule})", where="--emit")
        try:
            write_bundle(path, program, binaries)
        except OSError as problem:
            raise RequestError(f"cannot write {path}: {problem.strerror}", where="--emit") from None
    return paths


def built(registry: Registry, found: Plan, program: Program) -> dict[str, Path] | BuildFailed:
    """The binaries of a program for the plan's target; none for a GPU where there is no compiler for it."""
    if found.target.arch.startswith("sm_") and nvcc.missing_for(program.sources):
        return {}
    provider = _compiling(registry, found)
    binaries = {}
    for source in program.sources:
        binary = provider.build(source, found.target.arch)
        if isinstance(binary, BuildFailed):
            return binary
        binaries[source.name] = binary.path
    return binaries


def _compiling(registry: Registry, found: Plan) -> DeviceProvider:
    """Who builds for the plan's target."""
    kind = "cuda" if found.target.arch.startswith("sm_") else found.device
    return registry.provider(kind, where="--arch")
