"""How a warp computes a strip of an image: rows roll through its registers, one step a row.

A lane has `across` pixels next to each other in every row, a warp 32 times as many; all images of a block are computed
(or read) on these columns. What a stage reads left and right of its pixel comes from the neighbouring lanes; the first
and the last lanes, whose neighbours are missing, compute what others need and store nothing. Downwards the last rows
of an image stay in registers, as many as its readers look back.

    step t     row y + t + down of every image, where `down` is how far below an output's row the image is needed
    t < 0      warming up: what lies above the strip's first row
    0..rows-1  one row of every output

So a row is read once, a stage is computed once for a pixel (and once more for the halo: (rows + up + down) / rows), and
there is neither shared memory nor a barrier.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.analysis.halos import halos
from fusiond_mincut.frontend.graph import Halo, ImageKernel, Pipeline

LANES = 32
MOST_HELD = 192  #: Values of images that a lane may keep between rows: with more, registers spill
LEAST_LANES = 16  #: Lanes of a warp that must store something


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The rows of one image that a lane keeps."""

    name: str
    dtype: str
    channels: int
    halo: Halo  #: Where the image is needed, round the pixels that the warp stores
    depth: int  #: Rows, the newest last
    left: int
    right: int  #: Pixels of the neighbouring lanes, kept beside the own

    @property
    def first_step(self) -> int:
        return -(self.halo.up + self.halo.down)

    def width(self, across: int) -> int:
        """Values of a row."""
        return (self.left + across + self.right) * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The pixels of a warp, and what each of its lanes keeps."""

    across: int
    rows: int
    warps: int  #: Of a block of threads, one below the other
    first_lane: int  #: The first lane that stores
    last_lane: int  #: The last lane that stores
    held: dict[str, Held]  #: Of every image that is read or made, by name; inputs first

    @property
    def width(self) -> int:
        """Columns that are stored."""
        return (self.last_lane - self.first_lane + 1) * self.across

    @property
    def height(self) -> int:
        """Rows of a block of threads."""
        return self.rows * self.warps

    @property
    def first_step(self) -> int:
        return min((each.first_step for each in self.held.values()), default=0)

    @property
    def values(self) -> int:
        """Kept by a lane from one row to the next."""
        return sum(each.depth * each.width(self.across) for each in self.held.values())


def strip(pipeline: Pipeline, block: KernelBlock, *, across: int, rows: int, warps: int) -> Strip:
    """How the warps of `block` run over the image. `pipeline` may hold stages that others were split into."""
    needed = {name: Halo() for name in block.kernels} | halos(pipeline, block)
    depth = dict.fromkeys(needed, 1)
    beside = dict.fromkeys(needed, Halo())
    for name in block.kernels:
        kernel = pipeline.kernel(name)
        for each in kernel.accesses:
            if each.image in needed:
                behind = needed[each.image].down - needed[name].down - each.dy
                depth[each.image] = max(depth[each.image], behind + 1)
                beside[each.image] = beside[each.image].union(kernel.window(each.image))
    read = [name for name in block.inputs if name in needed]
    reach = Halo.around(needed.values())
    return Strip(
        across=across,
        rows=rows,
        warps=warps,
        first_lane=-(-reach.left // across),
        last_lane=LANES - 1 - -(-reach.right // across),
        held={
            name: Held(
                name=name,
                dtype=pipeline.images[name].dtype,
                channels=pipeline.images[name].channels,
                halo=needed[name],
                depth=depth[name],
                left=beside[name].left,
                right=beside[name].right,
            )
            for name in (*read, *block.kernels)
        },
    )


def problem(made: Strip, kernels: Iterable[ImageKernel]) -> str | None:
    """Why a strip of these kernels is not worth writing down; None where it is."""
    for kernel in kernels:
        if kernel.steps:
            return f"{kernel.name} reads {min(kernel.steps)} by a step, and rows roll in step"
    lanes = made.last_lane - made.first_lane + 1
    if lanes < LEAST_LANES:
        return f"of {LANES} lanes {max(lanes, 0)} would store something; at least {LEAST_LANES}"
    if made.values > MOST_HELD:
        return f"a lane would keep {made.values} values of the rows before; at most {MOST_HELD}"
    return None


def chunk(elements: int, dtype: str) -> int:
    """Elements of one load or store, of `elements` that lie together at a multiple of their bytes: 16 bytes at most."""
    most = 16 // DTYPES[dtype].bytes
    return next(each for each in (16, 8, 4, 2, 1) if each <= most and elements % each == 0)
