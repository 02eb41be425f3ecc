"""Which partitions of a pipeline are worth measuring, and which blocks.

    name              partition
    algorithm1        Algorithm 1 with the job's model
    unfused           every kernel by itself
    composed, ...     the three cheapest sums of measured blocks (exact, over all blocks that were measured)
    exact             the best partition by that model, among blocks that are legal by the paper's rules
    measured_model    Algorithm 1 with the constants that were measured on the device
    general           the best partition by the model, among all blocks that the generated kernels can compute
    basic             the earlier pairwise method

Equal partitions keep the first name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fusiond_mincut.analysis import benefit, blocks, candidates, cost, exact, legality
from fusiond_mincut.analysis.benefit import BenefitModel
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.analysis.partition import PlannedPartition
from fusiond_mincut.frontend.graph import Pipeline

GENERAL_LIMIT = 2000  #: Blocks of the general level that are looked at
EXACT_KERNELS = 64  #: Pipelines of more kernels have no exact optimum here: Algorithm 1 alone plans them
EXACT_SETS = 50_000
COMPOSED = ("composed", "composed_second", "composed_third")

Costs = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best partition by a model."""

    partition: Partition
    benefit: float
    complete: bool  #: Whether all legal blocks were looked at; if not, it is the best of those that were


def optimum(pipeline: Pipeline, model: BenefitModel) -> Optimum | None:
    """The partition with the greatest benefit among all legal ones (the paper's rules); None where that is out of
    reach: too many kernels, or too many sets of them."""
    if len(pipeline.kernels) > EXACT_KERNELS:
        return None
    return _best(pipeline, candidates.paper(pipeline, model), model)


def survey(pipeline: Pipeline) -> candidates.CandidateBlocks:
    """The blocks of several kernels that the generated kernels can compute: up to GENERAL_LIMIT, none of a pipeline of
    more than EXACT_KERNELS kernels."""
    if len(pipeline.kernels) > EXACT_KERNELS:
        return candidates.CandidateBlocks(blocks=(), complete=False)
    return candidates.general(pipeline, GENERAL_LIMIT)


def general_optimum(pipeline: Pipeline, model: BenefitModel, found: candidates.CandidateBlocks) -> Optimum | None:
    """The best partition among the blocks of a survey; None where it is out of reach."""
    return _best(pipeline, found, model) if found.blocks else None


def _best(pipeline: Pipeline, found: candidates.CandidateBlocks, model: BenefitModel) -> Optimum | None:
    costs = {block: -legality.block_gain(pipeline, block, model) for block in found.blocks}
    costs = {block: cost for block, cost in costs.items() if cost < 0}  # others are in no best partition
    costs |= {(each.name,): 0.0 for each in pipeline.kernels}
    answers = exact.cheapest(pipeline, costs, limit=EXACT_SETS)
    if not answers:
        return None
    cost, groups = answers[0]
    return Optimum(partition=blocks.partition(pipeline, groups), benefit=-cost, complete=found.complete)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The blocks of several kernels that are measured one by one, and those that are not."""

    blocks: tuple[tuple[str, ...], ...]
    because: Mapping[tuple[str, ...], str]  #: Block -> why it is measured
    left: tuple[tuple[str, ...], ...]  #: The blocks of the survey that are not, those that save most by `cost` first


def worth_measuring(
    pipeline: Pipeline,
    model: BenefitModel,
    planned: PlannedPartition,
    best: Optimum | None,
    found: candidates.CandidateBlocks,
    most: int,
) -> Choice:
    """At most `most` blocks of several kernels: those of Algorithm 1 and of the exact optimum, the deepest block the
    second and a pair of local kernels the third; then by turns those that save most by `cost`, the deepest ones, and
    pairs of local kernels. No model refuses any."""
    ranks = {block: (-cost.saving(pipeline, block), len(block), block) for block in found.blocks}
    by_cost = sorted(found.blocks, key=ranks.__getitem__)
    deepest = sorted(found.blocks, key=lambda block: (-len(block), ranks[block]))
    stencils = [block for block in by_cost if _chains(pipeline, block)]
    modelled = [(each.kernels, "algorithm1") for each in planned.partition.blocks if len(each.kernels) > 1]
    modelled += [(each.kernels, "exact") for each in (best.partition.blocks if best else ()) if len(each.kernels) > 1]
    first = [*modelled[:1], *((each, "deep") for each in deepest[:1]), *((each, "stencils") for each in stencils[:1])]
    why: dict[tuple[str, ...], str] = {}
    for block, reason in (*first, *modelled):
        why.setdefault(block, reason)
    turns = [("cost", iter(by_cost)), ("deep", iter(deepest)), ("stencils", iter(stencils)), ("cost", iter(by_cost))]
    while turns:
        for turn in tuple(turns):
            found_next = next((each for each in turn[1] if each not in why), None)
            if found_next is None:
                turns.remove(turn)
            else:
                why[found_next] = turn[0]
    chosen = dict(list(why.items())[:most])
    return Choice(blocks=tuple(chosen), because=chosen, left=tuple(each for each in by_cost if each not in chosen))


def _chains(pipeline: Pipeline, block: tuple[str, ...]) -> bool:
    """Whether a local kernel of a block reads round its pixel what another local kernel of it makes."""
    return len(block) == 2 and any(
        benefit.scenario(pipeline, producer, name) == "local_to_local"
        for name in block
        for producer in pipeline.producers[name]
        if producer in block
    )


def named(found: Iterable[tuple[str, Partition | None]]) -> dict[str, Partition]:
    """Name -> partition in the order given: each partition once, under its first name; what is None is left out."""
    once: dict[str, tuple[str, Partition]] = {}
    for name, each in found:
        if each is not None:
            once.setdefault(str(each), (name, each))
    return dict(once.values())


def composed(pipeline: Pipeline, measured: Costs, count: int = len(COMPOSED)) -> tuple[Partition, ...]:
    """The cheapest partitions into measured blocks, the cheapest first; none unless every kernel was measured by
    itself."""
    if any((each.name,) not in measured for each in pipeline.kernels):
        return ()
    answers = exact.cheapest(pipeline, measured, count=count, limit=EXACT_SETS) or ()
    return tuple(blocks.partition(pipeline, groups) for _, groups in answers)
