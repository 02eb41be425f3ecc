"""How blocks are computed, as labels that a config can hold: `32x8*2 tile` is 32 x 8 threads with 2 pixels each, stages
in shared memory; `recompute` computes them again at each access, `mixed` only those that are points. `32x4*16 rows2`
are 4 warps that run down 16 rows each, with 2 pixels of a row in each lane."""

import re

from fusiond.model.nouns import Config, Value
from fusiond.strategy.space import Parameter, Space
from fusiond_mincut.analysis import blocks
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.codegen import emit
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.codegen.tiles import LOCAL
from fusiond_mincut.frontend.graph import Pipeline

THREADS = ("32x8", "32x4", "32x16", "64x4", "128x2", "16x16")
PIXELS = (1, 2, 4)
_LABEL = re.compile(rf"(\d+)x(\d+)\*(\d+) (?:({'|'.join(LOCAL)})|rows(\d+))")


def label(params: BlockParams) -> str:
    way = f"rows{params.across}" if params.local == emit.ROWS else params.local
    return f"{params.block_x}x{params.block_y}*{params.pixels} {way}"


def read(text: str) -> BlockParams:
    """The way that a label names. ValueError when it does not name one."""
    found = _LABEL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a way to compute a block, such as {label(emit.DEFAULT)!r}")
    x, y, pixels = (int(each) for each in found.groups()[:3])
    local, across = found[4] or emit.ROWS, int(found[5] or emit.DEFAULT.across)
    return BlockParams(block_x=x, block_y=y, pixels=pixels, local=local, across=across)


STRIPS = (
    *("32x4*16 rows2", "32x4*8 rows2", "32x4*16 rows4", "32x4*8 rows4", "32x4*32 rows2", "32x8*8 rows2"),
    *("32x4*16 rows1", "32x8*4 rows4", "32x4*8 rows8", "32x4*4 rows16"),
)
"""Ways in which rows roll through registers."""
DEFAULT = label(emit.DEFAULT)
SINGLE = (
    DEFAULT,
    *(f"{each} tile" for each in ("32x8*2", "32x8*4", "32x4*1", "32x4*4", "32x16*1", "64x4*1", "64x4*2")),
    *(f"{each} tile" for each in ("128x2*1", "16x16*1")),
    *STRIPS,
)
"""Ways to launch a kernel by itself, fused or not: what the unfused kernels are tuned with."""
UNIFORM = (
    DEFAULT, "32x4*16 rows2", "32x4*8 rows4", "32x8*1 recompute", "32x4*1 tile", "32x4*4 tile", "64x4*2 tile",
    "64x4*1 recompute", "128x2*1 tile",
)  # fmt: skip
"""Ways that a whole pipeline is tried in, before anything is known of its blocks."""


def space(pipeline: Pipeline, block: KernelBlock) -> Space:
    """All ways to compute one block."""
    rolling = strips(pipeline, block)
    if len(block.kernels) == 1:
        ways = tuple(each for each in SINGLE if each in rolling or each not in STRIPS)
        return Space(parameters=(Parameter(name="shape", values=ways),))
    local = (*emit.choices(pipeline, block), *([emit.ROWS] if rolling else []))
    parameters = [Parameter(name="local", values=local)] if len(local) > 1 else []
    when = f"local != '{emit.ROWS}'" if rolling else None
    parameters += [
        Parameter(name=name, values=values, when=when) for name, values in (("threads", THREADS), ("pixels", PIXELS))
    ]
    if rolling:
        parameters.append(Parameter(name="strip", values=rolling, when=f"local == '{emit.ROWS}'"))
    return Space(parameters=tuple(parameters))


def strips(pipeline: Pipeline, block: KernelBlock) -> tuple[str, ...]:
    """Those of STRIPS in which a block can be computed: of a global kernel none. What 8 and 16 pixels across are for
    are images of bytes."""
    if any(pipeline.kernel(name).boundary for name in block.kernels):
        return ()
    wide = 16 if all(pipeline.images[name].dtype == "uint8" for name in (*block.inputs, *block.outputs)) else 4
    return tuple(
        each for each in STRIPS if read(each).across <= wide and emit.refused(pipeline, block, read(each)) is None
    )


def fitted(pipeline: Pipeline, block: KernelBlock, params: BlockParams) -> BlockParams:
    """A way that was chosen for many blocks, where this block can be computed in it; else strips give way to tiles."""
    if params.local == emit.ROWS and emit.refused(pipeline, block, params) is not None:
        return emit.DEFAULT
    return params


def of(config: Config) -> BlockParams:
    """The way that a point of `space` means. KeyError, TypeError or ValueError for what is not a point of it."""
    if "shape" in config:
        return read(config.text("shape"))
    local = config.text("local") if "local" in config else emit.DEFAULT.local
    if local == emit.ROWS:
        return read(config.text("strip"))
    return read(f"{config.text('threads')}*{config.integer('pixels')} {local}")


def config(params: BlockParams, space_: Space) -> Config:
    """The point of `space` that is this way."""
    threads = f"{params.block_x}x{params.block_y}"
    values: dict[str, Value] = {
        "shape": label(params),
        "threads": threads,
        "pixels": params.pixels,
        "local": params.local,
        "strip": label(params),
    }
    named = {each.name: values[each.name] for each in space_.parameters}
    return Config.of({each.name: values[each.name] for each in space_.parameters if space_.active(named, each)})


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
        way = read(config.text("shapes") if own == ALL else str(own))
        found[kernel.name] = fitted(pipeline, blocks.block(pipeline, [kernel.name]), way)
    return found
