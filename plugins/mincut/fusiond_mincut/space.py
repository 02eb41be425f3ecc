"""The space of a whole pipeline, its seeds, and the meaning of a point.

partition     a text of `blocks`: dx|dy|sx+gx|...      (which ones: see `plan`)
shapes        one way for all blocks (`32x8*1 tile`), or `measured`: each block as it was fastest alone
launch        sequence | streams | graph               when that is several blocks
at.BLOCK      what `measured` means for a block        when shapes is measured, and the block is in the partition
"""

import dataclasses
from collections.abc import Mapping, Sequence

from fusiond.model.nouns import Config, Value
from fusiond.model.program import Launch, Pointer, Program, Role
from fusiond.strategy.space import Parameter, Space
from fusiond_mincut.analysis import blocks, legality
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend.graph import Pipeline

MEASURED = "measured"
LAUNCHES = ("sequence", "streams", "graph")
"""Blocks one after the other, on streams where they wait for nothing of each other, or that as a CUDA graph."""
MOST_IN_STRIPS = 64  #: Kernels of a pipeline that begins in strips, too: the texts of a thousand take seconds
MOST_TEXT = 900  #: Characters of a condition


def composed(pipeline: Pipeline, found: Mapping[str, Partition], best: Mapping[str, str]) -> Space:
    """All ways to launch a pipeline: `found` are its partitions by name, `best` the fastest way of each measured block.

    Kernels by themselves, each at its best, are a baseline. As a candidate they would win against a lesser form of
    themselves, so the unfused partition is not offered as measured."""
    apart = str(blocks.unfused(pipeline))
    texts = [str(each) for each in found.values()]
    restrictions = []
    if best and apart in texts:
        text = f"shapes != '{MEASURED}' or partition != '{apart}'"
        if len(text) <= MOST_TEXT:
            restrictions.append(text)
        elif len(texts) > 1:
            texts.remove(apart)
        else:
            best = {}
    alone = " and ".join(f"partition != '{each}'" for each in texts if "|" not in each)
    parameters = [
        Parameter(name="partition", values=tuple(texts)),
        Parameter(name="shapes", values=(*block_configs.UNIFORM, MEASURED) if best else block_configs.UNIFORM),
        Parameter(name="launch", values=LAUNCHES, when=alone if 0 < len(alone) <= MOST_TEXT else None),
    ]
    for block, way in best.items():
        within = [text for text in texts if block in text.split("|")]
        if within:
            when = f"shapes == '{MEASURED}'" + _among(within, len(texts))
            parameters.append(Parameter(name=f"at.{block}", values=(way,), when=when))
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def _among(partitions: list[str], all_: int) -> str:
    """A condition that the partition is one of these; nothing where it always is, or where it would be too long."""
    text = " or ".join(f"partition == '{each}'" for each in partitions)
    return "" if len(partitions) == all_ or len(text) > MOST_TEXT else f" and ({text})"


def seeds(
    pipeline: Pipeline, space: Space, found: Mapping[str, Partition], sums: Sequence[Partition]
) -> tuple[tuple[str, Config], ...]:
    """Algorithm 1's partition and the unfused pipeline at default shapes; then what was measured, the cheapest `sums`
    of blocks first and the very best in every way to launch it; then the other partitions at default shapes, and two in
    strips."""
    apart = str(blocks.unfused(pipeline))
    plain = [(name, _point(space, str(each), block_configs.DEFAULT)) for name, each in found.items()]
    ranks = {str(each): rank for rank, each in enumerate(sums)}
    measured = []
    if any(MEASURED in each.values for each in space.parameters):
        texts = {name: str(each) for name, each in found.items() if str(each) != apart}
        names = sorted(texts, key=lambda name: ranks.get(texts[name], len(ranks)))
        measured = [(f"{name}_as_measured", _point(space, texts[name], MEASURED)) for name in names]
    if measured and "launch" in measured[0][1]:
        name, best = measured[0]
        measured[1:1] = [(f"{name}_{way}", Config.of({**best, "launch": way})) for way in LAUNCHES[1:]]
    first = ("algorithm1", "unfused")
    return (
        *(each for each in plain if each[0] in first),
        *measured,
        *(each for each in plain if each[0] not in first),
        *(
            (f"{name}_in_strips", _point(space, str(found[name]), block_configs.UNIFORM[1]))
            for name in ("algorithm1", "general")
            if name in found and len(pipeline.kernels) <= MOST_IN_STRIPS
        ),
    )


def _point(space: Space, chosen: str, way: str) -> Config:
    """The point with this partition and these shapes, launched one block after the other."""
    values: dict[str, Value] = {"partition": chosen, "shapes": way}
    for each in space.parameters[2:]:
        if space.active(values, each):
            values[each.name] = each.values[0]
    return Config.of(values)


# --- what a point means ---------------------------------------------------------------------------------


def chosen(pipeline: Pipeline, config: Config) -> tuple[Partition, dict[str, BlockParams]]:
    """The partition of a config, and the way of each of its blocks. KeyError, TypeError, ValueError when it is
    not a config of this pipeline."""
    found = blocks.read(pipeline, config.text("partition"))
    for block in found.blocks:
        refused = next(legality.general(pipeline, block.kernels, connected=False), None)
        if refused is not None:
            raise ValueError(refused.detail)
    way = config.text("shapes")
    ways = {}
    for block in found.blocks:
        label = way if way != MEASURED else config.get(f"at.{block}", block_configs.DEFAULT)
        ways[str(block)] = block_configs.fitted(pipeline, block, block_configs.read(str(label)))
    return found, ways


def launched(program: Program, config: Config) -> Program:
    """The blocks' launches as the config has them. ValueError when that is not a way to launch them."""
    way = config.get("launch", LAUNCHES[0])
    if way not in LAUNCHES:
        raise ValueError(f"launch is {way!r}")
    if way == LAUNCHES[0]:
        return program
    return concurrent(program, issue="graph" if way == "graph" else "streams")


def concurrent(program: Program, *, issue: str = "streams") -> Program:
    """A program whose launches wait for the writers of what they read, and for no other launch.

    An image is written by the first launch that names it, and by those behind it that are of the same source. A launch
    goes on in the stream of the first launch that it waits for and that no other launch has followed yet; otherwise it
    takes a stream of its own."""
    given = {each.name for each in program.buffers if each.role is Role.INPUT}
    writer: dict[str, Launch] = {}
    tails: dict[int, str] = {}  #: Stream -> its last step
    steps = []
    for step in program.steps:
        assert isinstance(step, Launch)
        named = [each.buffer for each in step.arguments if isinstance(each, Pointer) and each.buffer not in given]
        waits = list(dict.fromkeys(writer[name].name for name in named if name in writer))
        by_name = {each.name: each for each in writer.values()}
        stream = next((by_name[name].stream for name in waits if tails[by_name[name].stream] == name), len(tails))
        placed = dataclasses.replace(
            step, stream=stream, after=tuple(name for name in waits if by_name[name].stream != stream)
        )
        tails[stream] = step.name
        for name in named:
            if name not in writer or writer[name].source == step.source:
                writer[name] = placed
        steps.append(placed)
    return dataclasses.replace(program, steps=tuple(steps), issue=issue)
