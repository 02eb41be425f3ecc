"""All blocks that could be fused, by size and then in topological order.

`paper`: the blocks that are legal by the paper's rules. Exactly one image leaves such a block, so each is found once by
growing it backwards from the kernel that makes that image.
`general`: convex connected blocks that the generated kernels can compute, grown kernel by kernel.

Both stop at a limit, smaller blocks first, and say whether they did.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        (producer, consumer)
        for producer, consumer in pipeline.edges
        if benefit.gain(pipeline, producer, consumer, model) <= 0
    }
    found: list[tuple[str, ...]] = []
    seen: set[frozenset[str]] = set()
    layer = [frozenset({each.name}) for each in pipeline.kernels if not each.boundary]
    complete = True
    while layer and complete:
        grown: dict[frozenset[str], None] = {}
        for block in layer:
            for name in _feeding(pipeline, block):
                if any((name, reader) in harmful for reader in pipeline.readers[name]):
                    continue
                bigger = block | {name}
                if bigger not in seen and bigger not in grown:
                    if len(seen) + len(grown) >= limit:
                        complete = False
                        break
                    grown[bigger] = None
        seen |= set(grown)
        found += [each for each in _ordered(pipeline, grown) if legality.refusal(pipeline, each, model) is None]
        layer = list(grown)
    return CandidateBlocks(blocks=tuple(found), complete=complete)


def _feeding(pipeline: Pipeline, block: frozenset[str]) -> list[str]:
    """Kernels whose images only this block reads."""
    names = sorted({each for name in block for each in pipeline.producers[name]} - block, key=pipeline.position.get)  # type: ignore[arg-type]
    return [
        name
        for name in names
        if name not in pipeline.outputs
        and not pipeline.kernel(name).boundary
        and all(reader in block for reader in pipeline.readers[name])
    ]


def general(pipeline: Pipeline, limit: int = LIMIT) -> CandidateBlocks:
    """Blocks of two kernels and more that `legality.general` accepts, as far as they grow through such blocks."""
    around = _linked(pipeline)
    found: list[tuple[str, ...]] = []
    layer = [frozenset({each.name}) for each in pipeline.kernels if not each.boundary]
    complete = True
    while layer and complete:
        grown: dict[frozenset[str], None] = {}
        refused: set[frozenset[str]] = set()
        for block in layer:
            neighbours = sorted({each for name in block for each in around[name]} - block, key=pipeline.position.get)  # type: ignore[arg-type]
            for name in neighbours:
                bigger = block | {name}
                if bigger in grown or bigger in refused:
                    continue
                if next(legality.general(pipeline, bigger), None) is not None:
                    refused.add(bigger)
                elif len(found) + len(grown) >= limit:
                    complete = False
                    break
                else:
                    grown[bigger] = None
        found += _ordered(pipeline, grown)
        layer = list(grown)
    return CandidateBlocks(blocks=tuple(found), complete=complete)


def _linked(pipeline: Pipeline) -> dict[str, set[str]]:
    """Kernel -> kernels that an edge, or an image that both read, links it with."""
    around: dict[str, set[str]] = {each.name: set() for each in pipeline.kernels}
    for image, readers in pipeline.readers.items():
        together = {*readers, image} if pipeline.is_kernel(image) else set(readers)
        for name in together:
            around[name] |= together - {name}
    return around


def _ordered(pipeline: Pipeline, found: Iterable[frozenset[str]]) -> list[tuple[str, ...]]:
    blocks = (tuple(sorted(each, key=pipeline.position.__getitem__)) for each in found)
    return sorted(blocks, key=lambda each: tuple(pipeline.position[name] for name in each))
