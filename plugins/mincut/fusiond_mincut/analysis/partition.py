"""Algorithm 1 of the paper: cut the pipeline along minimum cuts until every block is legal; and the earlier method.

    working = [all kernels]
    while working:
        block = the first of working
        legal, or one kernel     -> ready
        else                     -> the two sides of its minimum cut, the side with the first kernel first

A block is judged by `legality` (the paper's level), which also closes the two holes of the algorithm as published. The
result does not depend on the order of kernels in a file: vertices are kernels in topological order, `cuts` says which
of several minimum cuts is taken.
"""

from dataclasses import dataclass

from fusiond.model.nouns import Rejection
from fusiond_mincut.analysis import blocks, cuts, legality
from fusiond_mincut.analysis.benefit import BenefitModel, WeighedEdge
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.frontend.graph import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStep:
    """A block that was cut: why, along edges of which weight together, and into what."""

    reason: Rejection
    weight: float
    sides: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """What Algorithm 1 came to."""

    edges: tuple[WeighedEdge, ...]
    cuts: tuple[CutStep, ...]
    partition: Partition
    benefit: float  #: Equation 1: the gain of all blocks together, in the model's unit per pixel


def planned(pipeline: Pipeline, model: BenefitModel) -> PlannedPartition:
    """Run Algorithm 1."""
    edges = legality.weighed(pipeline, model)
    names = [each.name for each in pipeline.kernels]
    weights = {(pipeline.position[each.producer], pipeline.position[each.consumer]): each.weight for each in edges}
    around: cuts.Graph = cuts.graph(range(len(names)), weights)
    working = [tuple(range(len(names)))]
    ready: list[tuple[str, ...]] = []
    steps: list[CutStep] = []
    while working:
        block = working.pop(0)
        kernels = tuple(names[each] for each in block)
        reason = legality.refusal(pipeline, kernels, model) if len(block) > 1 else None
        if reason is None:
            ready.append(kernels)
            continue
        cut = cuts.minimum_cut(_inside(around, block))
        one = tuple(each for each in block if (each in cut.side) == (block[0] in cut.side))
        two = tuple(each for each in block if (each in cut.side) != (block[0] in cut.side))
        sides = tuple(names[each] for each in one), tuple(names[each] for each in two)
        steps.append(CutStep(reason=reason, weight=cut.weight, sides=sides))
        working += [one, two]
    return PlannedPartition(
        edges=edges,
        cuts=tuple(steps),
        partition=blocks.partition(pipeline, ready),
        benefit=sum(legality.block_gain(pipeline, each, model) for each in ready),
    )


def _inside(around: cuts.Graph, block: tuple[int, ...]) -> cuts.Graph:
    members = set(block)
    return {vertex: {other: weight for other, weight in around[vertex].items() if other in members} for vertex in block}


def basic(pipeline: Pipeline, model: BenefitModel) -> Partition:
    """The pairwise method of the authors' earlier work (SCOPES 2018), as far as the paper describes it.

    Two kernels are fused when the one is all that the other reads, is read by no other kernel and reads one image
    itself, and when not both are local. The heaviest edges go first; a kernel is in one pair at most."""
    pairs: list[tuple[str, str]] = []
    taken: set[str] = set()
    for edge in sorted(legality.weighed(pipeline, model), key=lambda each: -each.weight):  # a stable order
        source, target = pipeline.kernel(edge.producer), pipeline.kernel(edge.consumer)
        linear = len(source.reads) == len(target.reads) == 1
        if edge.gain is None or edge.gain <= 0 or not linear or taken & {source.name, target.name}:
            continue
        if source.pattern == target.pattern == "local":
            continue
        pairs.append((source.name, target.name))
        taken |= {source.name, target.name}
    rest = [(each.name,) for each in pipeline.kernels if each.name not in taken]
    return blocks.partition(pipeline, [*pairs, *rest])
