"""Transfer fusion as a strategy (Kessler, Global optimization of operand transfer fusion in heterogeneous computing).

job --parse--> Graph --analyse--> intervals, the fewest messages and their proof --space--> grouping, memory, issue ...
    --emit--> one Program: copies of neighbours, kernels on both sides
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.model.inputs import values
from fusiond.model.keys import content_key, text_key
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Value, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Memory, Program
from fusiond.strategy import NO_ANSWERS, Answers, Baseline, Inputs, Probe, StrategyBase, Target
from fusiond.strategy.space import Space
from fusiond_transfer import delegation, memory_estimates, space
from fusiond_transfer.analysis import chunks, cost, describe, eviction, heuristic, mapped_or_managed, memory_costs
from fusiond_transfer.analysis.cells import Script
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules, reordered
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit, simulate
from fusiond_transfer.codegen.buffers import Execution
from fusiond_transfer.codegen.probes import probes
from fusiond_transfer.frontend import parser, schema, sizes
from fusiond_transfer.frontend.graph import MANAGED, MAPPED, FusedBody, Graph
from fusiond_transfer.report import estimate, report
from fusiond_transfer.request import TransferAnalysis, TransferRequest

MOST_SIMULATED = 1500
"""Steps of a Program that is carried out in the simulator, in every order, before it is handed out."""


KnownGraph: TypeAlias = "Analysis[TransferRequest, TransferAnalysis]"


class Transfer(StrategyBase[TransferRequest, TransferAnalysis]):
    """Fewer and better messages between host and device."""

    name = "transfer"
    version = 2
    job_keys: tuple[str, ...] = ("graph", "allocations", "limits", "together")
    names: Mapping[str, str] = frozen({"graph": "graph"})
    documents: Mapping[str, Mapping[str, Any]] = frozen({"graph": schema.graph()})

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload[TransferRequest]:
        name = job.request.get("graph")
        where = job.where("graph")
        if not isinstance(name, str):
            raise RequestError("expected a graph: a name of the catalogue, or the path of a YAML file", where=where)
        path = inputs.resolve("graph", name, where=where)
        found = parser.read(inputs, path, job)
        graph = sizes.settled(found.graph)
        counted = values.job_key(job, "allocations", "ahead").choice("ahead", "counted") == "counted"
        limit = _limit(job)
        if limit is not None:
            if graph.loop:
                raise RequestError("a limit is for graphs without a loop", where=job.where("limits"))
            if graph.cut:
                raise RequestError("a limit is for graphs that name no parts of vectors", where=job.where("limits"))
            graph = dataclasses.replace(graph, limit_bytes=limit)
        if counted and graph.loop:
            raise RequestError("in a loop everything is allocated before it", where=job.where("allocations"))
        counted = counted or graph.limit_bytes is not None
        needed = eviction.too_large(graph)
        if needed is not None:  # nothing can be measured
            raise RequestError(needed, where=job.where("limits.device_bytes" if "limits" in job.request else "graph"))
        asks = values.job_key(job, "together", False).boolean()
        hashes = {path: text_key(inputs.text(path, where=where))}
        hashes |= {each: text_key(text) for each, text in found.sources.items()}
        hashes |= {each.fill.file: each.fill.digest for each in graph.vectors if each.fill.file and each.fill.digest}
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=graph.name,
            members=(graph.name,),
            sizes=frozen(found.sizes),
            content=[found.content, counted, graph.limit_bytes, heuristic.TRIES, *(["together"] if asks else [])],
            payload=TransferRequest(graph=graph, counted=counted, odd=found.odd, together=job if asks else None),
            source_hashes=frozen(hashes),
        )

    def odd_sizes(self, workload: Workload[TransferRequest]) -> Mapping[str, int] | None:
        asked = workload.payload
        # Awkward sizes might not fit under a limit, which would be no fault of the winner's.
        return asked.odd or None if asked.graph.limit_bytes is None else None

    # --- Workload -> Analysis ---

    def analyse(
        self, workload: Workload[TransferRequest], target: Target
    ) -> Analysis[TransferRequest, TransferAnalysis]:
        asked = workload.payload
        schedules = Schedules(asked.graph)
        other = reordered(schedules)
        known = TransferAnalysis(
            asked=asked,
            schedules=schedules,
            other=other,
            offer=_offer(asked, schedules, other),
            other_strategies=None
            if asked.together is None
            else delegation.found(asked.graph, asked.together, target.others),
        )
        return Analysis(workload=workload, report=frozen(report(known)), payload=known)

    def describe(self, analysis: KnownGraph, answers: Answers = NO_ANSWERS) -> str:
        said = describe.text(analysis.payload.schedules) + describe.chunks(analysis.report["chunks"])
        said += memory_estimates.text(analysis.payload, answers)
        asked = analysis.payload.other_strategies
        return said if asked is None else said + delegation.text(asked)

    def parts(self, analysis: KnownGraph) -> tuple[Job, ...]:
        """What other strategies are asked for."""
        asked = analysis.payload.other_strategies
        return () if asked is None else tuple({each.asked.key: each.asked.job for each in asked.offered}.values())

    def figures(self, analysis: KnownGraph, record: Record | None, answers: Answers) -> Mapping[str, float]:
        about = analysis.payload
        found = memory_estimates.figures(about, answers)
        asked = about.other_strategies
        return found if asked is None else {**found, **delegation.figures(asked, answers)}

    def probes(self, analysis: KnownGraph) -> tuple[Probe, ...]:
        return probes(analysis.payload.asked.graph)

    def space(self, analysis: KnownGraph, answers: Answers) -> Space:
        return space.fused(_offered(analysis.payload, answers))

    def seeds(self, analysis: KnownGraph, space_: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        about = analysis.payload
        best = estimate(about, self._costs(about, answers))
        count = 1 if best is None else best.count
        return space.seeds(_offered(about, answers), space_, count, memory_estimates.best(about, answers))

    def baselines(self, analysis: KnownGraph) -> tuple[Baseline, ...]:
        about = analysis.payload
        return tuple(
            Baseline(
                name=name,
                detail=f"every vector in a message of its own, {memory} memory"
                + ("" if allocation == "ahead" else f", allocated {allocation}, counted"),
                space=space.unfused(about.offer, memory),
                emit=functools.partial(_separate, about, memory, allocation),
            )
            for name, memory, allocation in space.baselines(about.offer)
        )

    # --- Config -> Program ---

    def emit(self, analysis: KnownGraph, config: Config, answers: Answers) -> Program | Rejection:
        problems = space.fused(_offered(analysis.payload, answers)).problems(config)
        if problems:
            name = analysis.payload.asked.graph.name
            return Rejection(rule="not_in_space", nodes=(name,), detail="; ".join(problems))
        about = _composed(analysis.payload, config, answers)
        if isinstance(about, Rejection):
            return about
        graph = about.asked.graph
        said: dict[str, Any] = {name: value for name, value in config.items() if name in Execution.__slots__}
        execution = Execution(**said)
        name = f"{graph.name}, {config['grouping']}"
        schedule = self._schedule(about, config, answers)
        plan = mapped_or_managed.placed(schedule, **_one_memory(config))
        program = _program(schedule, plan, execution, name)
        if len(program.steps) <= MOST_SIMULATED:
            broken = simulate.faults(plan, program)
            if broken:
                return Rejection(rule="invariant", nodes=(graph.name,), detail=broken[0])
        if graph.limit_bytes is not None:
            peak = simulate.run(plan, program).peak_bytes
            if peak > graph.limit_bytes:
                detail = f"{peak} bytes on the device at once; there may be {graph.limit_bytes}"
                return Rejection(rule="device_limit", nodes=(graph.name,), detail=detail)
        return program

    def _schedule(self, about: TransferAnalysis, config: Config, answers: Answers) -> Schedule:
        schedules = _schedules_of(about, config)
        grouping = config.text("grouping")
        if grouping == "separate":
            return schedules.separate(early=config["when"] == "early")
        if grouping != "local_search":
            return schedules.grouping(grouping)
        known = memory_costs.shared(about.asked.graph, self._costs(about, answers), answers, **_one_memory(config))
        return schedules.fast(known, memory=Memory(config.text("memory")), overlapped=config["issue"] != "one_stream")

    def _costs(self, about: TransferAnalysis, answers: Answers) -> cost.GraphCosts:
        """The costs by these answers."""
        answers = {key: value for key, value in answers.items() if isinstance(value, int | float)}
        name = content_key(answers)
        if name not in about.costs:
            about.costs[name] = dataclasses.replace(cost.costs(about.asked.graph, answers), name=name)
        return about.costs[name]

    def resolved(self, analysis: KnownGraph, config: Config, answers: Answers) -> Config:
        """With the grouping as the number of messages that it comes to: `interval_stabbing (4 messages)`."""
        if space.fused(_offered(analysis.payload, answers)).problems(config):
            return config
        about = _composed(analysis.payload, config, answers)
        if isinstance(about, Rejection):
            return config
        count = mapped_or_managed.messages(self._schedule(about, config, answers), **_one_memory(config))
        said: dict[str, Value] = {**config, "grouping": f"{config['grouping']} ({counted(count, 'message')})"}
        if config.get("together", delegation.APART) != delegation.APART:
            fused = [each.name for each in about.asked.graph.kernels if isinstance(each.body, FusedBody)]
            said["together"] = f"{config['together']} ({', '.join(fused) or 'nothing'})"
        return Config.of(said)


def _separate(about: TransferAnalysis, memory: str, allocation: str, config: Config) -> Program:
    execution = Execution(memory=memory, issue=config.text("issue"), allocation=allocation)
    schedule = _schedules_of(about, config).separate(early=config["when"] == "early")
    return _program(schedule, script(schedule), execution, f"{about.asked.graph.name}, separate")


def _program(schedule: Schedule, plan: Script, execution: Execution, name: str) -> Program:
    """The Program of a script. That of a large graph is kept, if it is the schedule's own: it is a baseline too."""
    if len(schedule.graph.kernels) <= sizes.MANY_KERNELS or plan is not script(schedule):
        return emit.program(plan, execution, name=name)
    made = schedule.kept(f"{execution}", lambda _: emit.program(plan, execution, name=name))
    return dataclasses.replace(made, name=name)


# --- what the methods share -----------------------------------------------------------------------------


def _offered(about: TransferAnalysis, answers: Answers) -> space.Offer:
    """What there is to choose, by what other strategies have answered."""
    if about.other_strategies is None:
        return about.offer
    return dataclasses.replace(about.offer, together=about.other_strategies.labels(answers))


def _composed(about: TransferAnalysis, config: Config, answers: Answers) -> TransferAnalysis | Rejection:
    """What is known of the graph in which other strategies' launches are, as far as a config wants them."""
    label = config.get("together", delegation.APART)
    if about.other_strategies is None or label == delegation.APART:
        return about
    records = {key: each.config for key, each in answers.items() if isinstance(each, Record)}
    key = str(label), content_key({name: each and dict(each) for name, each in records.items()})
    if key not in about.composed:
        graph = about.other_strategies.composed(str(label), answers)
        about.composed[key] = graph if isinstance(graph, Rejection) else _replanned(about, graph)
    return about.composed[key]


def _replanned(about: TransferAnalysis, graph: Graph) -> TransferAnalysis | Rejection:
    """What is known of a graph in the place of another one. A fused launch needs all of its vectors at once, which can
    be more than a limit allows."""
    needed = eviction.too_large(graph)
    if needed is not None:
        return Rejection(rule="device_limit", nodes=(graph.name,), detail=needed)
    asked, schedules = dataclasses.replace(about.asked, graph=graph), Schedules(graph)
    return dataclasses.replace(
        about, asked=asked, schedules=schedules, other=reordered(schedules), costs={}, composed={}
    )


def _limit(job: Job) -> int | None:
    limits = job.request.get("limits")
    if limits is None:
        return None
    wanted = "expected {device_bytes: N}, N a whole number of at least 1"
    if not isinstance(limits, Mapping) or set(limits) != {"device_bytes"}:
        raise RequestError(wanted, where=job.where("limits"))
    value = limits["device_bytes"]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(wanted, where=job.where("limits.device_bytes"))
    return value


def _offer(asked: TransferRequest, schedules: Schedules, other: Schedules | None) -> space.Offer:
    graph = asked.graph
    offer = space.Offer(
        paper=schedules.has_paper,
        reordered=other is not None,
        counted=asked.counted,
        graph=not asked.counted and all(kernel.device for kernel in graph.kernels),
        large=len(graph.kernels) > sizes.MANY_KERNELS,
        chunks=chunks.counts(script(schedules.grouping("interval_stabbing"))),
        mapped=_choices(graph, MAPPED),
        managed=() if asked.counted else _choices(graph, MANAGED),
    )
    if graph.limit_bytes is None:
        return offer
    if offer.large:  # what fits is known without a Program: separate messages do, or were made to
        fitting = tuple(each for each in emit.ALLOCATIONS if each != "one")
        return dataclasses.replace(offer, allocations=fitting, moments=("late",))

    def fits(allocation: str, early: bool) -> bool:
        plan = script(schedules.separate(early=early))
        program = emit.program(plan, Execution(allocation=allocation), name=graph.name)
        return bool(simulate.run(plan, program).peak_bytes <= (graph.limit_bytes or 0))

    allocations = tuple(each for each in emit.ALLOCATIONS if fits(each, False))
    moments = ("late", "early") if all(fits(each, True) for each in allocations) else ("late",)
    return dataclasses.replace(offer, allocations=allocations, moments=moments)


def _choices(graph: Graph, kind: str) -> tuple[str, ...]:
    """What may lie in memory of a kind that is for both sides; empty where nothing may."""
    found = tuple(mapped_or_managed.choices(graph, kind))
    return found if len(found) > 1 else ()


def _one_memory(config: Config) -> dict[str, str]:
    return {kind: str(config.get(kind, mapped_or_managed.NONE)) for kind in (MAPPED, MANAGED)}


def _schedules_of(about: TransferAnalysis, config: Config) -> Schedules:
    return about.other if config.get("order") == "reordered" and about.other is not None else about.schedules
