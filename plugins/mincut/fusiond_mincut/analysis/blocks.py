"""Blocks of kernels, and partitions of a pipeline into blocks.

    a partition as one text     dx|dy|sx+gx|sxy+gxy|sy+gy|hc

The kernels of a block stand in topological order. The blocks stand in an order in which they can be launched: each
after those that it waits for, and of several that could come next the one whose text is least. So equal partitions have
equal texts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fusiond_mincut.frontend.graph import Pipeline, topological


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBlock:
    """Kernels that one launch computes."""

    kernels: tuple[str, ...]  #: In the pipeline's topological order
    inputs: tuple[str, ...]  #: Images that are read and not made inside, in the order of their names
    outputs: tuple[str, ...]
    """Images that must be stored, because another block or the user reads them; in topological order."""

    def __str__(self) -> str:
        return "+".join(self.kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Every kernel in one block; blocks in the order in which they are launched."""

    blocks: tuple[KernelBlock, ...]

    def __str__(self) -> str:
        return "|".join(str(each) for each in self.blocks)


def block(pipeline: Pipeline, kernels: Iterable[str]) -> KernelBlock:
    """The block of these kernels (names, each once). KeyError for a name that is not a kernel."""
    members = pipeline.ordered(kernels)
    inside = set(members)
    return KernelBlock(
        kernels=members,
        inputs=tuple(sorted({image for name in members for image in pipeline.kernel(name).reads} - inside)),
        outputs=tuple(name for name in members if stored(pipeline, name, inside)),
    )


def stored(pipeline: Pipeline, name: str, inside: set[str]) -> bool:
    """Whether a kernel's image is needed outside a block."""
    return name in pipeline.outputs or any(reader not in inside for reader in pipeline.readers[name])


def partition(pipeline: Pipeline, groups: Iterable[Iterable[str]]) -> Partition:
    """The partition of these groups. ValueError when a kernel is missing or stands twice, or when the blocks wait for
    each other in a circle."""
    blocks = [block(pipeline, group) for group in groups]
    names = [name for each in blocks for name in each.kernels]
    if sorted(names) != sorted(pipeline.position):
        raise ValueError(f"these are not all the kernels of {pipeline.name}, each once: {', '.join(sorted(names))}")
    owner = {name: str(each) for each in blocks for name in each.kernels}
    reads = {str(each): sorted({owner[image] for image in each.inputs if image in owner}) for each in blocks}
    order = topological(reads)
    by_name = {str(each): each for each in blocks}
    return Partition(blocks=tuple(by_name[name] for name in order))


def read(pipeline: Pipeline, text: str) -> Partition:
    """The partition that `str` wrote. ValueError for a text that is not one, or is written otherwise."""
    groups = [each.split("+") for each in text.split("|")]
    unknown = sorted({name for group in groups for name in group} - set(pipeline.position))
    if unknown:
        raise ValueError(f"{pipeline.name} has no kernel {unknown[0]!r}")
    found = partition(pipeline, groups)
    if str(found) != text:
        raise ValueError(f"{text!r} is written {str(found)!r}")
    return found


def unfused(pipeline: Pipeline) -> Partition:
    """Every kernel by itself."""
    return partition(pipeline, [[each.name] for each in pipeline.kernels])
