"""How blocks are computed, as labels that a config can hold: `32x8*2 tile` is 32 x 8 threads with 2 pixels each, stages
in shared memory; `recompute` computes them again at each access, `mixed` only those that are points."""

from __future__ import annotations

import re

from fusiond.model import Config, Value
from fusiond.search.space import Parameter, Space
from fusiond_mincut.analysis.blocks import Block
from fusiond_mincut.codegen import emit
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.codegen.tiles import LOCAL
from fusiond_mincut.frontend.graph import Pipeline

THREADS = ("32x8", "32x4", "32x16", "64x4", "128x2", "16x16")
PIXELS = (1, 2, 4)
_LABEL = re.compile(rf"(\d+)x(\d+)\*(\d+) ({'|'.join(LOCAL)})")


def label(params: BlockParams) -> str:
    return f"{params.block_x}x{params.block_y}*{params.pixels} {params.local}"


def read(text: str) -> BlockParams:
    """The way that a label names. ValueError when it is none."""
    found = _LABEL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no way to compute a block, such as {label(emit.DEFAULT)!r}")
    x, y, pixels = (int(each) for each in found.groups()[:3])
    return BlockParams(block_x=x, block_y=y, pixels=pixels, local=found.group(4))


DEFAULT = label(emit.DEFAULT)
SINGLE = (
    DEFAULT,
    *(f"{each} tile" for each in ("32x8*2", "32x8*4", "32x4*1", "32x4*4", "32x16*1", "64x4*1", "64x4*2")),
    *(f"{each} tile" for each in ("128x2*1", "16x16*1")),
)
"""Ways to launch a kernel by itself, fused or not: what the unfused kernels are tuned with."""
UNIFORM = (DEFAULT, "32x8*1 recompute", "32x4*1 tile", "32x4*4 tile", "64x4*2 tile", "64x4*1 recompute", "128x2*1 tile")
"""Ways that a whole pipeline is tried in, before anything is known of its blocks."""


def space(pipeline: Pipeline, block: Block) -> Space:
    """All ways to compute one block."""
    if len(block.kernels) == 1:
        return Space(parameters=(Parameter(name="shape", values=SINGLE),))
    parameters = [Parameter(name="threads", values=THREADS), Parameter(name="pixels", values=PIXELS)]
    local = emit.choices(pipeline, block)
    if len(local) > 1:
        parameters.append(Parameter(name="local", values=local))
    return Space(parameters=tuple(parameters))


def of(config: Config) -> BlockParams:
    """The way that a point of `space` is. KeyError, TypeError or ValueError when it is none."""
    if "shape" in config:
        return read(config.text("shape"))
    local = config.text("local") if "local" in config else emit.DEFAULT.local
    return read(f"{config.text('threads')}*{config.integer('pixels')} {local}")


def config(params: BlockParams, space_: Space) -> Config:
    """The point of `space` that is this way."""
    threads = f"{params.block_x}x{params.block_y}"
    values: dict[str, Value] = {
        "shape": label(params),
        "threads": threads,
        "pixels": params.pixels,
        "local": params.local,
    }
    names = {each.name for each in space_.parameters}
    return Config.of({name: value for name, value in values.items() if name in names})


# --- kernels by themselves ------------------------------------------------------------------------------


def unfused(pipeline: Pipeline, *, each_kernel: bool) -> Space:
    """The knobs of the unfused kernels: one way for all and, with `each_kernel`, another for each of them."""
    parameters = [Parameter(name="shapes", values=SINGLE)]
    if each_kernel:
        parameters += [Parameter(name=f"at.{kernel.name}", values=(ALL, *SINGLE)) for kernel in pipeline.kernels]
    return Space(parameters=tuple(parameters))


ALL = "all"


def of_each(config: Config, pipeline: Pipeline) -> dict[str, BlockParams]:
    """Kernel -> its way, in a point of `unfused`."""
    found = {}
    for kernel in pipeline.kernels:
        own = config.get(f"at.{kernel.name}", ALL)
        found[kernel.name] = read(config.text("shapes") if own == ALL else str(own))
    return found
