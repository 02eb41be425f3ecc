"""The request of a job: a pipeline or a block of one, and how to plan it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs.documents import Node
from fusiond.model.inputs.values import job_key, job_sizes
from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, frozen
from fusiond.strategy import Inputs
from fusiond_mincut.analysis import benefit, blocks, legality
from fusiond_mincut.analysis.benefit import BenefitModel
from fusiond_mincut.codegen import emit
from fusiond_mincut.frontend import graph, parser, printer
from fusiond_mincut.frontend.graph import Pipeline

SIZES = ("width", "height")
MOST_BLOCKS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRequest:
    """A Workload's payload: the pipeline (of a block: its own), and what is needed to ask for blocks of it."""

    job: Job = field(repr=False)
    pipeline: Pipeline
    block: tuple[str, ...] | None  #: The kernels of a job for one block
    model: BenefitModel
    most_blocks: int
    document: Mapping[str, Any] = field(repr=False)  #: The file, as plain values


def read(job: Job, inputs: Inputs) -> tuple[PipelineRequest, dict[str, str]]:
    """What a job asks for, and the text key of each file that was read. RequestError for what the user got wrong."""
    where = job.where("pipeline")
    given = job.request.get("pipeline")
    if not isinstance(given, str) or not given:
        raise RequestError("expected the name of a pipeline, or the path of its YAML file", where=where)
    path = inputs.resolve("pipeline", given, where=where)
    document = inputs.document(path, where=where)

    def file(node: Node) -> tuple[str, str]:
        found = inputs.beside(path, node.text(), where=node.where)
        return found, inputs.digest(found, where=node.where)

    accuracy = job_key(job, "accuracy", graph.ACCURACIES[0]).choice(*graph.ACCURACIES)
    sizes = job_sizes(job, SIZES, graph.WIDEST_IMAGE)
    pipeline = dataclasses.replace(parser.read(document, sizes, file), accuracy=accuracy)
    for kernel in pipeline.kernels:  # the unfused pipeline, with which all is compared, can always be computed
        refused = emit.refused(pipeline, blocks.block(pipeline, [kernel.name]))
        if refused is not None:
            raise RequestError(f"{kernel.name} {refused.detail} ({refused.rule})", where=path)
    block = _block(job, pipeline)
    asked = PipelineRequest(
        job=job,
        pipeline=pipeline,
        block=block,
        model=benefit.PRESETS[job_key(job, "model", benefit.PAPER.name).choice(*benefit.PRESETS)],
        most_blocks=job_key(job, "blocks", MOST_BLOCKS).integer(least=0, most=1000),
        document=frozen(document.plain()),
    )
    hashes = {path: text_key(inputs.text(path, where=where))}
    hashes |= {each.fill.file: each.fill.digest for each in pipeline.inputs if each.fill.file and each.fill.digest}
    return asked if block is None else of_block(asked, block), hashes


def _block(job: Job, pipeline: Pipeline) -> tuple[str, ...] | None:
    if "block" not in job.request:
        return None
    where = job.where("block")
    given = job.request["block"]
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, str) for each in given):
        raise RequestError("expected the names of the kernels of one block, as in block: [sx, gx]", where=where)
    for name in given:
        if not pipeline.is_kernel(name):
            raise UnknownName("kernel", name, pipeline.position, where=where)
    names = blocks.block(pipeline, given).kernels
    if len(names) < len(given):
        raise RequestError("a kernel stands twice", where=where)
    refused = next(legality.general(pipeline, names, connected=False), None)
    if refused is not None:
        raise RequestError(f"this block cannot be fused: {refused.detail}", where=where)
    return names


def of_block(asked: PipelineRequest, kernels: tuple[str, ...]) -> PipelineRequest:
    """A block of a pipeline as a job of its own: the same search, on the same device, at the same sizes."""
    pipeline = asked.pipeline
    inner = graph.part(pipeline, kernels, blocks.block(pipeline, kernels).outputs)
    request = {"pipeline": asked.job.request["pipeline"], "block": list(kernels)}
    request |= {"accuracy": pipeline.accuracy} if pipeline.accuracy != graph.ACCURACIES[0] else {}
    sizes = {"width": pipeline.width, "height": pipeline.height}
    job = dataclasses.replace(asked.job, request=frozen(request), sizes=frozen(sizes), lines=frozen())
    return dataclasses.replace(asked, job=job, pipeline=inner, block=kernels, model=benefit.PAPER, most_blocks=0)


def content(asked: PipelineRequest) -> dict[str, Any]:
    """What decides a measurement, without sizes: of a block only its own kernels."""
    document = asked.document
    image = {name: value for name, value in document["image"].items() if name not in SIZES}
    pipeline = asked.pipeline
    accuracy = {"accuracy": pipeline.accuracy} if pipeline.accuracy != graph.ACCURACIES[0] else {}
    return {
        **accuracy,
        "image": image,
        "inputs": [
            {"name": each.name, "dtype": each.dtype, "channels": each.channels, "single": each.single,
             "fill": each.fill.content, **({"size": printer.size(each.area, pipeline)} if each.area else {})}
            for each in pipeline.inputs
        ],
        "outputs": list(pipeline.outputs),
        "parameters": document.get("parameters"),
        "masks": document.get("masks"),
        **({"tables": document["tables"]} if "tables" in document else {}),
        "kernels": {each.name: document["kernels"][each.name] for each in pipeline.kernels},
    }  # fmt: skip
