"""Image pipelines cut into fused blocks (Qiao et al., CGO 2019), as a strategy.

job --parse--> Pipeline --analyse--> weights, cuts, blocks --space--> partition, shapes --emit--> one launch a block

A block is a workload of its own (`parts`): the pipeline's YAML file and the names of the kernels. Its space is how the
block is computed. The pipeline's space is which partition; the best sums of measured blocks are among them, and the
partitions that win are measured whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.errors import RequestError, UnknownName
from fusiond.keys import text_key
from fusiond.model import Analysis, Config, Job, Record, Rejection, Value, Workload, frozen
from fusiond.program import Program
from fusiond.space import Parameter, Space
from fusiond.strategy import Baseline, Inputs, Known, Probe, StrategyBase, Target
from fusiond_mincut import (
    benefit,
    blocks,
    drawing,
    emit,
    export,
    graph,
    legality,
    partition,
    plan,
    probes,
    reading,
    shapes,
    streams,
)
from fusiond_mincut.benefit import Model
from fusiond_mincut.blocks import Block, Partition
from fusiond_mincut.emit import BlockParams
from fusiond_mincut.graph import Pipeline
from fusiond_mincut.partition import Planned
from fusiond_mincut.plan import Optimum

SIZES = ("width", "height")
ODD = {"width": 67, "height": 41}
MOST_BLOCKS = 24
MOST_SAID = 200
"""Rejections in an analysis."""
MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A Workload's payload: the pipeline (of a block: its own), and what is needed to ask for blocks of it."""

    job: Job = field(repr=False)
    pipeline: Pipeline
    block: tuple[str, ...] | None
    """The kernels of a job for one block."""
    model: Model
    most_blocks: int
    document: Mapping[str, Any] = field(repr=False)
    """The file, as plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    asked: Asked
    target: Target = field(repr=False)
    planned: Planned
    best: Optimum | None
    """By the job's model, among blocks that are legal by the paper's rules."""
    widest: Optimum | None
    """Among all that the generated kernels can compute."""
    several: tuple[tuple[str, ...], ...]
    """Blocks of several kernels to measure."""

    @property
    def pipeline(self) -> Pipeline:
        return self.asked.pipeline

    @property
    def whole(self) -> Block | None:
        """The block that a job for one block, or for a pipeline of one kernel, is about."""
        names = [each.name for each in self.pipeline.kernels]
        if self.asked.block is None and len(names) > 1:
            return None
        return blocks.block(self.pipeline, names)


class Mincut(StrategyBase):
    """Kernels of an image pipeline that become one, each pixel's intermediate values in registers or shared memory."""

    name = "mincut"
    version = 1
    job_keys: tuple[str, ...] = ("pipeline", "block", "model", "blocks")

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        where = job.where("pipeline")
        given = job.request.get("pipeline")
        if not isinstance(given, str) or not given:
            raise RequestError("the name of a pipeline, or the path of its YAML file, is wanted", where=where)
        path = inputs.resolve("pipeline", given, where=where)
        document = inputs.document(path, where=where)
        pipeline = reading.read(document, _sizes(job))
        block = _block(job, pipeline)
        asked = Asked(
            job=job,
            pipeline=pipeline,
            block=block,
            model=_model(job),
            most_blocks=_most_blocks(job),
            document=frozen(document.plain()),
        )
        if block is not None:
            asked = _of_block(asked, block)
        hashes = {path: text_key(inputs.text(path, where=where))}
        return self._workload(asked, hashes)

    def _workload(self, asked: Asked, hashes: Mapping[str, str] | None = None) -> Workload:
        pipeline = asked.pipeline
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=pipeline.name,
            members=tuple(each.name for each in pipeline.kernels),
            sizes=frozen({"width": pipeline.width, "height": pipeline.height}),
            content=_content(asked),
            payload=asked,
            source_hashes=frozen(hashes),
        )

    # --- Workload -> Analysis ---

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        asked = _payload(workload.payload)
        pipeline, model = asked.pipeline, asked.model
        planned = partition.planned(pipeline, model)
        best = plan.optimum(pipeline, model)
        known = Analysed(
            asked=asked,
            target=target,
            planned=planned,
            best=best,
            widest=None if asked.block is not None else plan.general_optimum(pipeline, model),
            several=_several(asked, planned, best, target.limits.shared_bytes_per_block),
        )
        report: dict[str, object] = {
            "model": model.name,
            "edges": [
                {"from": each.producer, "to": each.consumer, "scenario": each.scenario, "weight": each.weight}
                for each in planned.edges
            ],
            "blocks": [list(each.kernels) for each in planned.partition.blocks],
            "cuts": [
                {"weight": each.weight, "sides": [list(side) for side in each.sides], "because": each.reason.rule}
                for each in planned.cuts
            ],
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
            "operations": {
                each.name: {"alu": each.operations.alu, "sfu": each.operations.sfu} for each in pipeline.kernels
            },
            "dot": drawing.dot(pipeline, planned),
        }
        return Analysis(
            workload=workload, report=frozen(report), rejections=_refusals(pipeline, model, planned), payload=known
        )

    def describe(self, analysis: Analysis) -> str:
        about = _known(analysis)
        return drawing.text(about.pipeline, about.planned)

    def parts(self, analysis: Analysis) -> tuple[Job, ...]:
        """A job for each kernel by itself and for each block worth measuring, small blocks first."""
        return tuple(each.job for each in self._parts(_known(analysis)).values())

    def _parts(self, about: Analysed) -> dict[tuple[str, ...], Asked]:
        if about.whole is not None or about.asked.most_blocks == 0:
            return {}
        pipeline = about.pipeline
        wanted = [*((each.name,) for each in pipeline.kernels), *about.several]
        return {block: _of_block(about.asked, block) for block in wanted}

    def probes(self, analysis: Analysis) -> tuple[Probe, ...]:
        about = _known(analysis)
        return () if about.whole is not None else probes.probes(about.target.limits)

    def space(self, analysis: Analysis, known: Known) -> Space:
        about = _known(analysis)
        if about.whole is not None:
            return shapes.space(about.pipeline, about.whole)
        found = self._partitions(about, known)
        best = self._best(about, known)
        ways = (*shapes.UNIFORM, MEASURED) if best else shapes.UNIFORM
        parameters = [
            Parameter(name="partition", values=tuple(str(each) for each in found.values())),
            Parameter(name="shapes", values=ways),
        ]
        for block, way in best.items():
            within = [str(each) for each in found.values() if block in map(str, each.blocks)]
            if within:
                when = f"shapes == '{MEASURED}'" + _among(within, len(found))
                parameters.append(Parameter(name=f"at.{block}", values=(way,), when=when))
        return Space(parameters=tuple(parameters))

    def seeds(self, analysis: Analysis, space: Space, known: Known) -> tuple[tuple[str, Config], ...]:
        about = _known(analysis)
        if about.whole is not None:
            first = shapes.config(emit.DEFAULT, space)
            other = dataclasses.replace(emit.DEFAULT, local="recompute")
            configs = {"default": first, "recompute": shapes.config(other, space)}
            return tuple((name, each) for name, each in configs.items() if name == "default" or each != first)
        found = self._partitions(about, known)
        plain = [(name, _point(space, str(each), shapes.DEFAULT)) for name, each in found.items()]
        if len(space.parameters) == 2:
            return tuple(plain)
        ranks = {str(each): rank for rank, each in enumerate(self._composed(about, known))}
        measured = [(f"{name}_as_measured", _point(space, str(each), MEASURED)) for name, each in found.items()]
        measured.sort(key=lambda each: ranks.get(each[1].text("partition"), len(ranks)))  # the best sums come first
        wanted = ("algorithm1", "unfused")
        return (
            *(each for each in plain if each[0] in wanted),
            *measured,
            *(each for each in plain if each[0] not in wanted),
        )

    def _partitions(self, about: Analysed, known: Known) -> dict[str, Partition]:
        """Name -> partition, each once (see `plan`)."""
        pipeline, model = about.pipeline, about.asked.model
        calibrated = probes.calibrated(about.target.limits, known, pipeline.width * pipeline.height)
        return plan.named(
            [
                ("algorithm1", about.planned.partition),
                ("unfused", blocks.unfused(pipeline)),
                *zip(plan.COMPOSED, self._composed(about, known), strict=False),
                ("exact", about.best.partition if about.best else None),
                ("measured_model", partition.planned(pipeline, calibrated).partition if calibrated else None),
                ("general", about.widest.partition if about.widest else None),
                ("basic", partition.basic(pipeline, model)),
            ]
        )

    def _composed(self, about: Analysed, known: Known) -> tuple[Partition, ...]:
        costs = {block: cost for block, (cost, _) in self._measured(about, known).items()}
        return plan.composed(about.pipeline, costs)

    def _measured(self, about: Analysed, known: Known) -> dict[tuple[str, ...], tuple[float, BlockParams]]:
        """Blocks whose records are known: microseconds, and the way that takes them."""
        found: dict[tuple[str, ...], tuple[float, BlockParams]] = {}
        for block, asked in self._parts(about).items():
            record = known.get(self._workload(asked).key)
            if not isinstance(record, Record):
                continue
            if record.config is not None and record.time_us is not None:
                found[block] = record.time_us, shapes.of(record.config)
            if len(block) == 1 and (block not in found or record.baseline_us < found[block][0]):
                found[block] = record.baseline_us, emit.DEFAULT
        return found

    def _best(self, about: Analysed, known: Known) -> dict[str, str]:
        """Block -> the label of the way in which it was fastest."""
        return {"+".join(block): shapes.label(way) for block, (_, way) in self._measured(about, known).items()}

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        about = _known(analysis)
        pipeline = about.pipeline
        apart = blocks.unfused(pipeline)
        if len(pipeline.kernels) == 1:

            def given(config: Config) -> Program:
                return _program(emit.program(pipeline, apart))

            return (Baseline(name="given", detail=f"{pipeline.kernels[0].name} at {shapes.DEFAULT}", emit=given),)
        knobs = Space(
            parameters=(
                Parameter(name="threads", values=shapes.THREADS),
                Parameter(name="pixels", values=shapes.PIXELS),
            )
        )

        def baseline(name: str, detail: str, change: Callable[[Program], Program]) -> Baseline:
            def program(config: Config) -> Program:
                way = shapes.of(config)
                found = emit.program(pipeline, apart, {str(each): way for each in apart.blocks})
                return change(_program(found))

            like = None if name == "sequential" else "sequential"
            return Baseline(name=name, detail=detail, space=knobs, emit=program, like=like)

        count = len(pipeline.kernels)
        return (
            baseline("sequential", f"{count} kernels, one after the other", lambda each: each),
            baseline("streams", f"{count} kernels, independent ones on streams of their own", streams.concurrent),
            baseline(
                "graph",
                f"{count} kernels as one CUDA graph",
                lambda each: streams.concurrent(each, issue="graph"),
            ),
        )

    # --- Config -> Program ---

    def emit(self, analysis: Analysis, config: Config, known: Known) -> Program | Rejection:
        about = _known(analysis)
        pipeline = about.pipeline
        try:
            chosen, ways = _chosen(about, config)
            limit = about.target.limits.shared_bytes_per_block
            return emit.program(pipeline, chosen, ways, shared_limit_bytes=limit)
        except (KeyError, TypeError, ValueError) as problem:
            nodes = tuple(each.name for each in pipeline.kernels)
            return Rejection(rule="not_in_space", nodes=nodes, detail=f"{config}: {problem}")

    def unfused(self, analysis: Analysis, config: Config) -> Program | None:
        """Every kernel in the way of its block."""
        about = _known(analysis)
        chosen, ways = _chosen(about, config)
        own = {
            name: dataclasses.replace(ways.get(str(block), emit.DEFAULT), local="tile")
            for block in chosen.blocks
            for name in block.kernels
        }
        found = emit.program(about.pipeline, blocks.unfused(about.pipeline), own)
        return found if isinstance(found, Program) else None

    def odd_sizes(self, workload: Workload) -> Mapping[str, int] | None:
        return None if dict(workload.sizes) == ODD else ODD

    def export(self, analysis: Analysis, config: Config, program: Program) -> Mapping[str, str]:
        """The blocks' sources, and what launches them at any size: from C++, and from Python."""
        about = _known(analysis)
        chosen, ways = _chosen(about, config)
        limit = about.target.limits.shared_bytes_per_block
        kernels = tuple(
            emit.block_kernel(about.pipeline, each, ways[str(each)], shared_limit_bytes=limit) for each in chosen.blocks
        )
        assert all(isinstance(each, emit.CudaKernel) for each in kernels)  # `program` has been made of them
        return export.files(
            about.pipeline, chosen, tuple(each for each in kernels if isinstance(each, emit.CudaKernel))
        )


def _chosen(about: Analysed, config: Config) -> tuple[Partition, dict[str, BlockParams]]:
    """The partition of a config, and the way of each of its blocks. KeyError, TypeError, ValueError when it is no
    config of this pipeline."""
    if about.whole is not None:
        whole = about.whole
        return blocks.partition(about.pipeline, [whole.kernels]), {str(whole): shapes.of(config)}
    chosen = blocks.read(about.pipeline, config.text("partition"))
    for block in chosen.blocks:
        refused = next(legality.general(about.pipeline, block.kernels), None)
        if refused is not None:
            raise ValueError(refused.detail)
    way = config.text("shapes")
    ways = {}
    for block in chosen.blocks:
        label = way if way != MEASURED else config.get(f"at.{block}", shapes.DEFAULT)
        ways[str(block)] = shapes.read(str(label))
    return chosen, ways


def _among(partitions: list[str], all_: int) -> str:
    """A condition that the partition is one of these; nothing where it always is, or where it would be too long."""
    text = " or ".join(f"partition == '{each}'" for each in partitions)
    return "" if len(partitions) == all_ or len(text) > 900 else f" and ({text})"


def _point(space: Space, chosen: str, way: str) -> Config:
    """The point of a pipeline's space with this partition and these shapes."""
    values: dict[str, Value] = {"partition": chosen, "shapes": way}
    for each in space.parameters[2:]:
        if space.active(values, each):
            values[each.name] = each.values[0]
    return Config.of(values)


def _program(found: Program | Rejection) -> Program:
    """Kernels by themselves can always be launched in the ways that baselines offer."""
    assert isinstance(found, Program), found
    return found


def _several(asked: Asked, planned: Planned, best: Optimum | None, limit: int) -> tuple[tuple[str, ...], ...]:
    """The blocks of several kernels that are worth measuring and can be computed, small ones first."""
    pipeline = asked.pipeline
    if asked.block is not None or asked.most_blocks == 0:
        return ()
    wanted = plan.worth_measuring(pipeline, asked.model, planned, best, asked.most_blocks)
    found = [block for block in wanted if _possible(pipeline, block, limit)]
    return tuple(sorted(found, key=lambda block: (len(block), [pipeline.position[name] for name in block])))


def _possible(pipeline: Pipeline, kernels: tuple[str, ...], limit: int) -> bool:
    """Whether a block can be computed in some way."""
    block = blocks.block(pipeline, kernels)
    ways = (dataclasses.replace(emit.DEFAULT, local=local) for local in shapes.LOCAL)
    return any(
        not isinstance(emit.block_kernel(pipeline, block, way, shared_limit_bytes=limit), Rejection) for way in ways
    )


def _refusals(pipeline: Pipeline, model: Model, planned: Planned) -> tuple[Rejection, ...]:
    """Why edges are illegal and why blocks were cut."""
    found = []
    for edge in planned.edges:
        if edge.gain is None or edge.gain <= 0:
            found += list(legality.paper(pipeline, (edge.producer, edge.consumer), model))[:1]
    found += [each.reason for each in planned.cuts]
    return tuple(dict.fromkeys(found))[:MOST_SAID]


# --- reading the job ------------------------------------------------------------------------------------


def _sizes(job: Job) -> dict[str, int]:
    found = {}
    for name, value in job.sizes.items():
        where = job.where(f"sizes.{name}")
        if name not in SIZES:
            raise UnknownName("size", name, SIZES, where=where)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= reading.WIDEST_IMAGE:
            raise RequestError(f"is {value!r}; a whole number from 1 to {reading.WIDEST_IMAGE} is wanted", where=where)
        found[name] = value
    return found


def _block(job: Job, pipeline: Pipeline) -> tuple[str, ...] | None:
    if "block" not in job.request:
        return None
    where = job.where("block")
    given = job.request["block"]
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, str) for each in given):
        raise RequestError("the names of the kernels of one block are wanted: block: [sx, gx]", where=where)
    for name in given:
        if not pipeline.is_kernel(name):
            raise UnknownName("kernel", name, pipeline.position, where=where)
    names = blocks.block(pipeline, given).kernels
    if len(names) < len(given):
        raise RequestError("a kernel stands twice", where=where)
    refused = next(legality.general(pipeline, names), None)
    if refused is not None:
        raise RequestError(f"this is no block that can be fused: {refused.detail}", where=where)
    return names


def _model(job: Job) -> Model:
    given = job.request.get("model", benefit.PAPER.name)
    if not isinstance(given, str) or given not in benefit.PRESETS:
        offered = ", ".join(benefit.PRESETS)
        raise RequestError(f"is {str(given)[:80]!r}; it can be {offered}", where=job.where("model"))
    return benefit.PRESETS[given]


def _most_blocks(job: Job) -> int:
    given = job.request.get("blocks", MOST_BLOCKS)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= 1000:
        raise RequestError(
            f"is {str(given)[:80]!r}; how many blocks of several kernels to measure, 0 to 1000",
            where=job.where("blocks"),
        )
    return given


def _of_block(asked: Asked, kernels: tuple[str, ...]) -> Asked:
    """A block of a pipeline as a job of its own: the same search, on the same device, at the same sizes."""
    pipeline = asked.pipeline
    inner = graph.part(pipeline, kernels, blocks.block(pipeline, kernels).outputs)
    request = {"pipeline": asked.job.request["pipeline"], "block": list(kernels)}
    sizes = {"width": pipeline.width, "height": pipeline.height}
    job = dataclasses.replace(asked.job, request=frozen(request), sizes=frozen(sizes), lines=frozen())
    return dataclasses.replace(asked, job=job, pipeline=inner, block=kernels, model=benefit.PAPER, most_blocks=0)


def _content(asked: Asked) -> dict[str, Any]:
    """What decides a measurement, without sizes: of a block only its own kernels."""
    document = asked.document
    image = {name: value for name, value in document["image"].items() if name not in SIZES}
    pipeline = asked.pipeline
    return {
        "image": image,
        "inputs": [
            {"name": each.name, "dtype": each.dtype, "channels": each.channels, "single": each.single,
             "fill": [each.fill.kind, each.fill.low, each.fill.high]}
            for each in pipeline.inputs
        ],
        "outputs": list(pipeline.outputs),
        "parameters": document.get("parameters"),
        "masks": document.get("masks"),
        "kernels": {each.name: document["kernels"][each.name] for each in pipeline.kernels},
    }  # fmt: skip


def _payload(value: object) -> Asked:
    assert isinstance(value, Asked)
    return value


def _known(analysis: Analysis) -> Analysed:
    assert isinstance(analysis.payload, Analysed)
    return analysis.payload
