"""Image pipelines cut into fused blocks (Qiao et al., CGO 2019), as a strategy.

job --parse--> Pipeline --analyse--> weights, cuts, blocks --space--> partition, shapes --emit--> one launch a block

A block is a workload of its own (`parts`): the pipeline's YAML file and the names of the kernels. Its space is how the
block is computed. The pipeline's space is which partition; the best sums of measured blocks are among them, and the
partitions that win are measured whole.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.gpu.occupancy import launch_problem
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Launch, Program
from fusiond.strategy import NO_ANSWERS, Answers, Baseline, Inputs, Probe, StrategyBase, Target
from fusiond.strategy.space import Space
from fusiond_mincut import request as asking
from fusiond_mincut import space as composing
from fusiond_mincut.analysis import blocks, candidates, cost, drawing, legality, partition, partitions_to_measure
from fusiond_mincut.analysis.benefit import BenefitModel
from fusiond_mincut.analysis.blocks import KernelBlock, Partition
from fusiond_mincut.analysis.partition import CutStep, PlannedPartition
from fusiond_mincut.analysis.partitions_to_measure import Optimum
from fusiond_mincut.codegen import block_configs, emit, probes
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.codegen.tiles import LOCAL
from fusiond_mincut.frontend import schema
from fusiond_mincut.frontend.graph import Pipeline
from fusiond_mincut.request import PipelineRequest

ODD = {"width": 67, "height": 41}
MOST_SAID = 200  #: Rejections, and blocks that are not tried, in an analysis
MOST_NAMED = 24  #: Kernels of a side of a cut, or of a block that is refused, that a report names
MOST_DRAWN = 200  #: Kernels of a picture: Graphviz takes minutes for more
MOST_SHOWN = 10
MOST_STRIPS = 2  #: Strips that a block begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """A block that could be fused and is not measured by itself."""

    kernels: tuple[str, ...]
    saves: float  #: By `cost`: what it would save per pixel, in the time of a byte of DRAM
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineAnalysis:
    asked: PipelineRequest
    target: Target = field(repr=False)
    planned: PlannedPartition
    best: Optimum | None  #: By the job's model, among blocks that are legal by the paper's rules
    widest: Optimum | None  #: Among all that the generated kernels can compute
    several: tuple[tuple[str, ...], ...]  #: Blocks of several kernels to measure
    untried: tuple[Untried, ...]

    @property
    def pipeline(self) -> Pipeline:
        return self.asked.pipeline

    @property
    def whole(self) -> KernelBlock | None:
        """The block that a job for one block, or for a pipeline of one kernel, is about."""
        names = [each.name for each in self.pipeline.kernels]
        return None if self.asked.block is None and len(names) > 1 else blocks.block(self.pipeline, names)


class Mincut(StrategyBase[PipelineRequest, PipelineAnalysis]):
    """Kernels of an image pipeline that become one, each pixel's intermediate values in registers or shared memory."""

    name = "mincut"
    version = 3
    job_keys: tuple[str, ...] = ("pipeline", "block", "model", "blocks", "accuracy")
    names: Mapping[str, str] = frozen({"pipeline": "pipeline"})
    documents: Mapping[str, Mapping[str, Any]] = frozen({"pipeline": schema.pipeline()})

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload[PipelineRequest]:
        found, hashes = asking.read(job, inputs)
        return self._workload(found, hashes)

    def _workload(self, asked: PipelineRequest, hashes: Mapping[str, str] | None = None) -> Workload[PipelineRequest]:
        pipeline = asked.pipeline
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=pipeline.name,
            members=tuple(each.name for each in pipeline.kernels),
            sizes=frozen({"width": pipeline.width, "height": pipeline.height}),
            content=asking.content(asked),
            payload=asked,
            source_hashes=frozen(hashes),
        )

    # --- Workload -> Analysis ---

    def analyse(
        self, workload: Workload[PipelineRequest], target: Target
    ) -> Analysis[PipelineRequest, PipelineAnalysis]:
        asked = workload.payload
        pipeline, model = asked.pipeline, asked.model
        planned = partition.planned(pipeline, model)
        best = partitions_to_measure.optimum(pipeline, model)
        found = candidates.CandidateBlocks(blocks=(), complete=True)
        if asked.block is None:
            found = partitions_to_measure.survey(pipeline)
        several, impossible, untried = _several(asked, planned, best, found, target.limits.shared_bytes_per_block)
        known = PipelineAnalysis(
            asked=asked,
            target=target,
            planned=planned,
            best=best,
            widest=partitions_to_measure.general_optimum(pipeline, model, found),
            several=several,
            untried=untried,
        )
        report: dict[str, object] = {
            "model": model.name,
            "edges": [
                {"from": each.producer, "to": each.consumer, "scenario": each.scenario, "weight": each.weight}
                for each in planned.edges
            ],
            "blocks": [list(each.kernels) for each in planned.partition.blocks],
            "cuts": [_cut(each) for each in planned.cuts],
            "benefit": planned.benefit,
            "partition": str(planned.partition),
            "optimum": None
            if best is None
            else {
                "partition": str(best.partition),
                "benefit": best.benefit,
                "gap": best.benefit - planned.benefit,
                "complete": best.complete,
            },
            "basic": str(partition.basic(pipeline, model)),
            "to_measure": {
                "single": len(pipeline.kernels) if known.whole is None and _measures(asked) else 0,
                "several": len(known.several),
                "of": len(found.blocks),
                "complete": found.complete,
            },
            "not_tried": [
                {"block": "+".join(each.kernels), "saves": round(each.saves, 2), "because": each.because}
                for each in untried
            ],
            "operations": {
                each.name: {"alu": each.operations.alu, "sfu": each.operations.sfu} for each in pipeline.kernels
            },
            "dot": drawing.dot(pipeline, planned) if len(pipeline.kernels) <= MOST_DRAWN else None,
        }
        return Analysis(
            workload=workload,
            report=frozen(report),
            rejections=(*_refusals(pipeline, model, planned), *impossible),
            alone=len(pipeline.kernels) == 1,
            payload=known,
        )

    def describe(self, analysis: Analysis[PipelineRequest, PipelineAnalysis], answers: Answers = NO_ANSWERS) -> str:
        about = analysis.payload
        return drawing.text(about.pipeline, about.planned) + _left_out(about)

    def parts(self, analysis: Analysis[PipelineRequest, PipelineAnalysis]) -> tuple[Job, ...]:
        """A job for each kernel by itself and for each block worth measuring, small blocks first."""
        return tuple(each.job for each in self._parts(analysis.payload).values())

    def _parts(self, about: PipelineAnalysis) -> dict[tuple[str, ...], PipelineRequest]:
        if about.whole is not None or not _measures(about.asked):
            return {}
        pipeline = about.pipeline
        wanted = [*((each.name,) for each in pipeline.kernels), *about.several]
        return {block: asking.of_block(about.asked, block) for block in wanted}

    def probes(self, analysis: Analysis[PipelineRequest, PipelineAnalysis]) -> tuple[Probe, ...]:
        about = analysis.payload
        return () if about.whole is not None else probes.probes(about.target.limits)

    def space(self, analysis: Analysis[PipelineRequest, PipelineAnalysis], answers: Answers) -> Space:
        about = analysis.payload
        if about.whole is not None:
            return block_configs.space(about.pipeline, about.whole)
        return composing.composed(about.pipeline, self._partitions(about, answers), self._best(about, answers))

    def seeds(
        self, analysis: Analysis[PipelineRequest, PipelineAnalysis], space: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        about = analysis.payload
        if about.whole is not None:
            strips = block_configs.strips(about.pipeline, about.whole)[:MOST_STRIPS]
            seeds = {each.replace(" ", "_"): block_configs.config(block_configs.read(each), space) for each in strips}
            seeds["default"] = block_configs.config(emit.DEFAULT, space)
            for local in emit.choices(about.pipeline, about.whole)[1:]:
                seeds[local] = block_configs.config(dataclasses.replace(emit.DEFAULT, local=local), space)
            return tuple(seeds.items())
        found = self._partitions(about, answers)
        return composing.seeds(about.pipeline, space, found, self._composed(about, answers))

    def _partitions(self, about: PipelineAnalysis, answers: Answers) -> dict[str, Partition]:
        """Name -> partition, each once (see `plan`)."""
        pipeline, model = about.pipeline, about.asked.model
        calibrated = probes.calibrated(about.target.limits, answers, pipeline.width * pipeline.height)
        return partitions_to_measure.named(
            [
                ("algorithm1", about.planned.partition),
                ("unfused", blocks.unfused(pipeline)),
                *zip(partitions_to_measure.COMPOSED, self._composed(about, answers), strict=False),
                ("exact", about.best.partition if about.best else None),
                ("measured_model", partition.planned(pipeline, calibrated).partition if calibrated else None),
                ("general", about.widest.partition if about.widest else None),
                ("basic", partition.basic(pipeline, model)),
            ]
        )

    def _composed(self, about: PipelineAnalysis, answers: Answers) -> tuple[Partition, ...]:
        return partitions_to_measure.composed(about.pipeline, self._costs(about, answers))

    def _costs(self, about: PipelineAnalysis, answers: Answers) -> partitions_to_measure.Costs:
        return {block: cost for block, (cost, _) in self._measured(about, answers).items()}

    def sums(
        self, analysis: Analysis[PipelineRequest, PipelineAnalysis], answers: Answers
    ) -> tuple[tuple[str, float], ...]:
        """(partition, microseconds of its blocks together) of the cheapest partitions into measured blocks, and of
        Algorithm 1's and the unfused one where all their blocks were measured; the cheapest first."""
        about = analysis.payload
        costs = self._costs(about, answers)
        wanted = [*self._composed(about, answers), about.planned.partition, blocks.unfused(about.pipeline)]
        found = {
            str(each): sum(costs[block.kernels] for block in each.blocks)
            for each in wanted
            if all(block.kernels in costs for block in each.blocks)
        }
        return tuple(sorted(found.items(), key=lambda each: each[1]))

    def _measured(self, about: PipelineAnalysis, answers: Answers) -> dict[tuple[str, ...], tuple[float, BlockParams]]:
        """Blocks whose records are known: microseconds, and the way that takes them."""
        found: dict[tuple[str, ...], tuple[float, BlockParams]] = {}
        for block, asked in self._parts(about).items():
            record = answers.get(self._workload(asked).key)
            if not isinstance(record, Record):
                continue
            if record.config is not None and record.time_us is not None:
                found[block] = record.time_us, block_configs.of(record.config)
            if len(block) == 1 and (block not in found or record.baseline_us < found[block][0]):
                found[block] = record.baseline_us, emit.DEFAULT
        return found

    def _best(self, about: PipelineAnalysis, answers: Answers) -> dict[str, str]:
        """Block -> the label of the way in which it was fastest."""
        return {"+".join(block): block_configs.label(way) for block, (_, way) in self._measured(about, answers).items()}

    def baselines(self, analysis: Analysis[PipelineRequest, PipelineAnalysis]) -> tuple[Baseline, ...]:
        about = analysis.payload
        pipeline = about.pipeline
        apart = blocks.unfused(pipeline)
        if len(pipeline.kernels) == 1:

            def given(config: Config) -> Program:
                return _program(emit.program(pipeline, apart, kept=_kept(pipeline)))

            detail = f"{pipeline.kernels[0].name} at {block_configs.DEFAULT}"
            return (Baseline(name="given", detail=detail, emit=given),)
        knobs = block_configs.unfused(pipeline, each_kernel=about.target.limits.registers_per_sm > 0)

        def baseline(name: str, detail: str, change: Callable[[Program], Program]) -> Baseline:
            def program(config: Config) -> Program:
                chosen = block_configs.of_each(config, pipeline)
                return change(_program(emit.program(pipeline, apart, chosen, kept=_kept(pipeline))))

            like = None if name == "sequential" else "sequential"
            return Baseline(name=name, detail=detail, space=knobs, emit=program, like=like)

        count = len(pipeline.kernels)
        as_graph = functools.partial(composing.concurrent, issue="graph")
        return (
            baseline("sequential", f"{count} kernels, one after the other", lambda each: each),
            baseline("streams", f"{count} kernels, independent ones on streams of their own", composing.concurrent),
            baseline("graph", f"{count} kernels as one CUDA graph", as_graph),
        )

    # --- Config -> Program ---

    def emit(
        self, analysis: Analysis[PipelineRequest, PipelineAnalysis], config: Config, answers: Answers
    ) -> Program | Rejection:
        about = analysis.payload
        pipeline = about.pipeline
        try:
            chosen, ways = _chosen(about, config)
            limit = about.target.limits.shared_bytes_per_block
            found = emit.program(pipeline, chosen, ways, shared_limit_bytes=limit, kept=_kept(pipeline))
            if isinstance(found, Rejection):
                return found
            refused = _does_not_fit(about.target, found, chosen)
            return composing.launched(found, config) if refused is None else refused
        except (KeyError, TypeError, ValueError) as problem:
            nodes = tuple(each.name for each in pipeline.kernels)
            return Rejection(rule="not_in_space", nodes=nodes, detail=f"{config}: {problem}")

    def unfused(self, analysis: Analysis[PipelineRequest, PipelineAnalysis], config: Config) -> Program | None:
        """Every kernel in the way of its block."""
        about = analysis.payload
        chosen, ways = _chosen(about, config)
        own = {name: _alone(ways.get(str(block), emit.DEFAULT)) for block in chosen.blocks for name in block.kernels}
        found = emit.program(about.pipeline, blocks.unfused(about.pipeline), own)
        return found if isinstance(found, Program) else None

    def odd_sizes(self, workload: Workload[PipelineRequest]) -> Mapping[str, int] | None:
        return None if dict(workload.sizes) == ODD else ODD


def _cut(step: CutStep) -> dict[str, object]:
    """A cut in a report; of the side with most kernels of a large block, only how many there are."""
    told = [list(side) if len(side) <= MOST_NAMED else len(side) for side in step.sides]
    return {"weight": step.weight, "sides": told, "because": step.reason.rule}


def _chosen(about: PipelineAnalysis, config: Config) -> tuple[Partition, dict[str, BlockParams]]:
    """The partition of a config, and the way of each of its blocks. KeyError, TypeError, ValueError when it is
    not a config of this pipeline."""
    if about.whole is not None:
        whole = about.whole
        return blocks.partition(about.pipeline, [whole.kernels]), {str(whole): block_configs.of(config)}
    return composing.chosen(about.pipeline, config)


def _does_not_fit(target: Target, program: Program, chosen: Partition) -> Rejection | None:
    """Why a block of several kernels cannot be launched, or is not worth measuring: ptxas spills. None without a
    compiler, and for kernels by themselves, which must be launched anyhow."""
    if target.limits.registers_per_sm == 0:
        return None
    blocks_of = {emit.entry(each): each for each in reversed(chosen.blocks) if len(each.kernels) > 1}
    for step in program.steps:
        block = blocks_of.get(step.name) if isinstance(step, Launch) else None
        if block is None:
            continue
        assert isinstance(step, Launch)
        entries = target.facts(program.source(step.source))
        if not isinstance(entries, Mapping) or step.entry not in entries:
            continue
        facts, threads = entries[step.entry], step.block[0] * step.block[1]
        spilled = facts.spill_store_bytes + facts.spill_load_bytes
        if spilled:
            detail = (
                f"ptxas spills {spilled} bytes of {facts.registers} registers a thread, {threads} threads in a block"
            )
            return Rejection(rule="spills", nodes=block.kernels, detail=detail)
        problem = launch_problem(target.limits, facts.registers, facts.shared_bytes + step.shared_bytes, threads)
        if problem is not None:
            return Rejection(rule="launch", nodes=block.kernels, detail=problem)
    return None


def _alone(way: BlockParams) -> BlockParams:
    """The way of a block for its kernels one by one, which can all be computed so."""
    return emit.DEFAULT if way.local == emit.ROWS else dataclasses.replace(way, local="tile")


def _kept(pipeline: Pipeline) -> emit.Kernels:
    """The kernels of the programs that were written of it."""
    return pipeline.once((_kept,), dict)


def _program(found: Program | Rejection) -> Program:
    """Kernels by themselves can always be launched in the ways that baselines offer."""
    assert isinstance(found, Program), found
    return found


def _several(
    asked: PipelineRequest,
    planned: PlannedPartition,
    best: Optimum | None,
    found: candidates.CandidateBlocks,
    limit: int,
) -> tuple[tuple[tuple[str, ...], ...], tuple[Rejection, ...], tuple[Untried, ...]]:
    """The blocks of several kernels that are worth measuring, small ones first; why others of them cannot be computed;
    and what is left out."""
    pipeline = asked.pipeline
    if not _measures(asked):
        return (), (), ()
    chosen = partitions_to_measure.worth_measuring(pipeline, asked.model, planned, best, found, asked.most_blocks)
    refused = {block: _impossible(pipeline, block, limit) for block in chosen.blocks}
    possible = [block for block in chosen.blocks if refused[block] is None]
    possible.sort(key=lambda block: (len(block), [pipeline.position[name] for name in block]))
    because = f"{asked.most_blocks} blocks are measured, others first; raise `blocks`"
    untried = tuple(
        Untried(kernels=block, saves=cost.saving(pipeline, block), because=because) for block in chosen.left[:MOST_SAID]
    )
    return tuple(possible), tuple(each for each in refused.values() if each is not None), untried


def _left_out(about: PipelineAnalysis) -> str:
    """What is measured block by block, and the best of what is not."""
    if not about.several:
        return ""
    lines = ["measured by themselves:", *(f"  {'+'.join(each)}" for each in about.several)]
    if about.untried:
        lines.append(
            f"not tried, with bytes of DRAM saved per pixel by what their kernels ask ({about.untried[0].because}):"
        )
        lines += [f"  {'+'.join(each.kernels)}  {each.saves:.1f}" for each in about.untried[:MOST_SHOWN]]
        if len(about.untried) > MOST_SHOWN:
            lines.append(f"  and {len(about.untried) - MOST_SHOWN} more: see not_tried of --json")
    return "\n".join(lines) + "\n"


def _measures(asked: PipelineRequest) -> bool:
    """Whether blocks are measured one by one: partitions of too many kernels are not made of measured blocks."""
    few = len(asked.pipeline.kernels) <= partitions_to_measure.EXACT_KERNELS
    return few and asked.block is None and asked.most_blocks > 0


def _impossible(pipeline: Pipeline, kernels: tuple[str, ...], limit: int) -> Rejection | None:
    """Why a block can be computed in no way; None when there is one."""
    block = blocks.block(pipeline, kernels)
    ways = (dataclasses.replace(emit.DEFAULT, local=local) for local in LOCAL)
    refused = [emit.refused(pipeline, block, way, shared_limit_bytes=limit) for way in ways]
    return None if None in refused else refused[0]


def _refusals(pipeline: Pipeline, model: BenefitModel, planned: PlannedPartition) -> tuple[Rejection, ...]:
    """Why edges are illegal and why blocks were cut."""
    found = []
    for edge in planned.edges:
        if edge.gain is None or edge.gain <= 0:
            refused = legality.refusal(pipeline, (edge.producer, edge.consumer), model)
            found += [refused] if refused is not None else []
    found += [each.reason for each in planned.cuts if len(each.reason.nodes) <= MOST_NAMED]
    return tuple(dict.fromkeys(found))[:MOST_SAID]
