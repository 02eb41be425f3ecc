"""All blocks that could be fused, by size and then in topological order.

`paper`: the blocks that are legal by the paper's rules. Exactly one image leaves such a block, so each is found once by
growing it backwards from the kernel that makes that image.
`general`: convex connected blocks that the generated kernels can compute, grown kernel by kernel.

Both stop at a limit, smaller blocks first, and say whether they did.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fusiond_mincut.analysis import benefit, legality
from fusiond_mincut.analysis.benefit import BenefitModel
from fusiond_mincut.frontend.graph import Pipeline

LIMIT = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBlocks:
    """Blocks of two kernels and more, each in topological order."""

    blocks: tuple[tuple[str, ...], ...]
    complete: bool  #: Whether there are no others


def paper(pipeline: Pipeline, model: BenefitModel, limit: int = LIMIT) -> CandidateBlocks:
    """Every block of two kernels and more that `legality.paper` accepts."""
    harmful = {
        producer for producer, consumer in pipeline.edges if benefit.gain(pipeline, producer, consumer, model) <= 0
    }

    def feeding(block: frozenset[str]) -> list[str]:
        """Kernels whose images only this block reads."""
        names = {each for name in block for each in pipeline.producers[name]} - block - harmful
        return [
            name
            for name in names
            if name not in pipeline.outputs
            and not pipeline.kernel(name).boundary
            and all(reader in block for reader in pipeline.readers[name])
        ]

    grown = _grown(pipeline, feeding, lambda block: True, limit)
    found = tuple(each for each in grown.blocks if legality.refusal(pipeline, each, model) is None)
    return CandidateBlocks(blocks=found, complete=grown.complete)


def general(pipeline: Pipeline, limit: int = LIMIT) -> CandidateBlocks:
    """Blocks of two kernels and more that `legality.general` accepts, as far as they grow through such blocks."""
    around = _linked(pipeline)

    def beside(block: frozenset[str]) -> set[str]:
        return {each for name in block for each in around[name]} - block

    def legal(block: frozenset[str]) -> bool:
        return next(legality.general(pipeline, block), None) is None

    return _grown(pipeline, beside, legal, limit)


def _grown(
    pipeline: Pipeline,
    neighbours: Callable[[frozenset[str]], Iterable[str]],
    accepted: Callable[[frozenset[str]], bool],
    limit: int,
) -> CandidateBlocks:
    """The blocks that are accepted, each one kernel larger than another such block."""
    found: list[tuple[str, ...]] = []
    layer = [frozenset({each.name}) for each in pipeline.kernels if not each.boundary]
    complete = True
    while layer and complete:
        judged: set[frozenset[str]] = set()
        grown: list[frozenset[str]] = []
        for block in layer:
            for bigger in (block | {name} for name in pipeline.ordered(neighbours(block))):
                if bigger in judged:
                    continue
                judged.add(bigger)
                if not accepted(bigger):
                    continue
                if len(found) + len(grown) >= limit:
                    complete = False
                    break
                grown.append(bigger)
        ordered = map(pipeline.ordered, grown)
        found += sorted(ordered, key=lambda each: [pipeline.position[name] for name in each])
        layer = grown
    return CandidateBlocks(blocks=tuple(found), complete=complete)


def _linked(pipeline: Pipeline) -> dict[str, set[str]]:
    """Kernel -> kernels that an edge, or an image that both read, links it with."""
    around: dict[str, set[str]] = {each.name: set() for each in pipeline.kernels}
    for image, readers in pipeline.readers.items():
        together = {*readers, image} if pipeline.is_kernel(image) else set(readers)
        for name in together:
            around[name] |= together - {name}
    return around
