"""Programs of a pipeline: one launch for each block of a partition, and the CUDA text of each block.

    block_kernel(pipeline, block, params) -> CudaKernel | Rejection
    program(pipeline, partition, params of each block) -> Program | Rejection

A block's text does not hold the image's size: one build serves every size.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.gpu.limits import MOST_GRID_Y, MOST_SHARED_BYTES, MOST_THREADS
from fusiond.model.language.extents import ceil_div, size
from fusiond.model.nouns import Rejection
from fusiond.model.program import EQUAL, Buffer, Launch, Pointer, Program, Role, Scalar, Source, default_compare, sized
from fusiond_mincut.analysis.blocks import KernelBlock, Partition
from fusiond_mincut.codegen import histograms, hysteresis, reductions, scans, source, strips, windows
from fusiond_mincut.codegen.boundary_stages import CudaLaunch
from fusiond_mincut.codegen.evaluation import tile_holds
from fusiond_mincut.codegen.lowering import StageFunctions, ThreadRectangle, evaluations
from fusiond_mincut.codegen.separation import separated
from fusiond_mincut.codegen.strips import Strip
from fusiond_mincut.codegen.tiles import LOCAL, TileLayout, layout, tiles_behind
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.graph import HISTOGRAM, Pipeline

MOST_KERNELS = 100  #: Of one block: all their values may live at once
MOST_RECOMPUTED = 10_000
"""Nodes of the bodies' trees that a thread evaluates more for one pixel when it recomputes: that would be slower than
any launch that it saves, and takes compilers minutes."""
MOST_BORDER_EVALUATIONS = 1000
"""Stages that one access at the border recomputes, where stages at different pixels share nothing."""
FLAGS = {"strict": ("-fmad=false",), "relaxed": ()}
"""By accuracy: each operation is rounded by itself, fused or not (expr.py); products and sums may be contracted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParams:
    """How a block is computed: a block of `block_x` x `block_y` threads with `pixels` each, one below the other;
    `local` says whether stages that others read round their pixel live in shared memory (`tile`), or are computed again
    at each access (`recompute`), or the local ones live there and the point ones are computed again (`mixed`), or rows
    roll through registers (`rows`: blocks of 32 x `block_y` threads, whose lanes have `across` pixels side by side and
    `pixels` rows of them)."""

    block_x: int = 32
    block_y: int = 8
    pixels: int = 1
    local: str = "tile"
    across: int = 1


DEFAULT = BlockParams()
LEAST_SEPARATED = 50
"""Pixels of a window from which on it is split into a row and a column also where each needs a tile of its own."""
ROWS = "rows"  #: Of `local`: strips.py
ACROSS = (1, 2, 4, 8, 16)
MOST_KEPT = 2000  #: Texts of blocks that a pipeline keeps for its next program


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel:
    """The CUDA text of a block and its launches: one, or two for a reduction (`scratch` is between them)."""

    name: str
    text: str
    launches: tuple[CudaLaunch, ...]
    rectangle: tuple[int, int] = (0, 0)
    """Width and height of the pixels that a block of threads computes; of no meaning for a reduction."""
    scratch: tuple[Buffer, ...] = ()
    flags: tuple[str, ...] = FLAGS["strict"]

    @property
    def source(self) -> Source:
        return Source(
            name=self.name, text=self.text, entries=tuple(each.entry for each in self.launches), flags=self.flags
        )


Kernels: TypeAlias = "dict[tuple[KernelBlock, BlockParams, int], CudaKernel | Rejection]"


def choices(pipeline: Pipeline, block: KernelBlock) -> tuple[str, ...]:
    """The ways of tiles.LOCAL that differ in which stages of the block have tiles; `tile` alone when none ever has."""
    if _is_boundary(pipeline, block):
        return ("tile",)
    found: dict[frozenset[str], str] = {}
    for local in LOCAL:
        found.setdefault(frozenset(_planned(pipeline, block, BlockParams(local=local))[2].tiles), local)
    return tuple(found.values())


def shared_bytes(pipeline: Pipeline, block: KernelBlock, params: BlockParams = DEFAULT) -> int:
    """The shared memory that a block of threads needs for its tiles; nothing is written for it."""
    if _is_boundary(pipeline, block):
        kernel = pipeline.kernel(block.kernels[0])
        if kernel.reduction == HISTOGRAM:
            return histograms.shared_bytes(kernel)
        return reductions.shared_bytes(kernel, params.block_x * params.block_y) if kernel.single else 0
    return _planned(pipeline, block, params)[2].shared_bytes


def block_kernel(
    pipeline: Pipeline,
    block: KernelBlock,
    params: BlockParams = DEFAULT,
    *,
    shared_limit_bytes: int = MOST_SHARED_BYTES,
) -> CudaKernel | Rejection:
    """The kernel of a convex block of point and local kernels, or of one that is a boundary (global and its like).

    A Rejection is what `refused` says. ValueError for a global kernel among others, and for an unknown `local`."""
    found = refused(pipeline, block, params, shared_limit_bytes=shared_limit_bytes)
    if found is not None:
        return found
    shape = _shape(params)
    if _is_boundary(pipeline, block):
        return _boundary(pipeline, block, shape)
    whole, inner, planned = _planned(pipeline, block, params)
    if params.local == ROWS:
        split, made = _strip(pipeline, block, params)
        text = source.strips(whole, inner, planned, shape, made, split, entry(block))
        rectangle = made.width, made.height
    else:
        text = source.text(whole, inner, planned, shape, entry(block))
        rectangle = shape.width, shape.height
    width, height = pipeline.sides(block.outputs[0])
    functions = StageFunctions(pipeline=whole, block=inner, layout=planned, shape=shape)
    sizes = [side for name in functions.other_areas for side in whole.sides(name)]
    return CudaKernel(
        name=_name(block, "-"),
        text=text,
        flags=FLAGS[pipeline.accuracy],
        rectangle=rectangle,
        launches=(
            CudaLaunch(
                entry=entry(block),
                grid=(ceil_div(width, rectangle[0]), ceil_div(height, rectangle[1]), 1),
                block=(params.block_x, params.block_y, 1),
                shared_bytes=planned.shared_bytes,
                images=(*block.inputs, *block.outputs),
                scalars=(width, height, *sizes),
                pitched=functions.pitched,
            ),
        ),
    )


def program(
    pipeline: Pipeline,
    partition: Partition,
    params: Mapping[str, BlockParams] | None = None,
    *,
    shared_limit_bytes: int = MOST_SHARED_BYTES,
    kept: Kernels | None = None,
) -> Program | Rejection:
    """The blocks of a partition, one after the other; `params` by the blocks' texts, DEFAULT for those it lacks.
    `kept`: kernels of earlier programs of the same pipeline, to which this one's are added; most blocks of a long
    pipeline are the same in each of them."""
    sizes = {"width": pipeline.width, "height": pipeline.height}
    pipeline = dataclasses.replace(
        pipeline, width=size("width", pipeline.width), height=size("height", pipeline.height)
    )
    kept = {} if kept is None else kept
    kernels = []
    for block in partition.blocks:
        chosen = (params or {}).get(str(block), DEFAULT)
        question = (block, chosen, shared_limit_bytes)
        if question not in kept:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[question] = block_kernel(pipeline, block, chosen, shared_limit_bytes=shared_limit_bytes)
        kernel = kept[question]
        if isinstance(kernel, Rejection):
            return kernel
        kernels.append(kernel)
    found = Program(
        name=f"{pipeline.name}: {partition}",
        buffers=(*_image_buffers(pipeline, partition), *(each for kernel in kernels for each in kernel.scratch)),
        sources=tuple(each.source for each in kernels),
        steps=tuple(_step(pipeline, kernel, launch) for kernel in kernels for launch in kernel.launches),
    )
    return sized(found, sizes)


def _image_buffers(pipeline: Pipeline, partition: Partition) -> Iterator[Buffer]:
    """The pipeline's inputs, then the images that blocks store."""
    for image in pipeline.inputs:
        elements = image.elements(pipeline.width, pipeline.height)
        yield Buffer(name=image.name, dtype=image.dtype, elements=elements, role=Role.INPUT, fill=image.fill)
    for block in partition.blocks:
        for name in block.outputs:
            image, output = pipeline.images[name], name in pipeline.outputs
            yield Buffer(
                name=name,
                dtype=image.dtype,
                elements=image.elements(pipeline.width, pipeline.height),
                role=Role.OUTPUT if output else Role.SCRATCH,
                compare=default_compare(image.dtype) if output else EQUAL,
            )


def _step(pipeline: Pipeline, kernel: CudaKernel, launch: CudaLaunch) -> Launch:
    def pitch(name: str) -> Scalar:
        elements = pipeline.sides(name)[0] * pipeline.images[name].channels
        return Scalar(dtype="int32", value=elements, pitch_of=name)

    return Launch(
        name=launch.entry,
        source=kernel.name,
        entry=launch.entry,
        grid=launch.grid,
        block=launch.block,
        shared_bytes=launch.shared_bytes,
        arguments=(
            *(Pointer(buffer=name) for name in launch.images),
            *(Scalar(dtype="int32", value=value) for value in launch.scalars),
            *(pitch(name) for name in launch.pitched),
        ),
    )


# --- rules ----------------------------------------------------------------------------------------------


def refused(
    pipeline: Pipeline,
    block: KernelBlock,
    params: BlockParams = DEFAULT,
    *,
    shared_limit_bytes: int = MOST_SHARED_BYTES,
) -> Rejection | None:
    """Why a block cannot be computed in this way, without writing its text; None when it can.

    Rules: shapes that no launch can have (`block_shape`), images too large for 32-bit indices (`image_size`), too many
    kernels (`block_size`), more shared memory than a block of threads may have (`shared_memory`), more recomputation
    than is worth writing down (`recompute`; never of a block of one kernel)."""

    def no(rule: str, detail: str) -> Rejection:
        return Rejection(rule=rule, nodes=block.kernels, detail=detail)

    shape = _shape(params)
    if params.local == ROWS and not _is_boundary(pipeline, block):
        if params.block_x != strips.LANES or params.across not in ACROSS or params.pixels < 1:
            return no("block_shape", f"{params}: strips have 32 lanes with {', '.join(map(str, ACROSS))} pixels across")
        unfit = strips.problem(_strip(pipeline, block, params)[1], map(pipeline.kernel, block.kernels))
        if unfit is not None:
            return no("strip", unfit)
    if min(shape.x, shape.y, shape.rows) < 1 or shape.threads > MOST_THREADS:
        return no("block_shape", f"{shape.x} x {shape.y} threads with {shape.rows} pixels each; at most {MOST_THREADS}")
    rows = pipeline.sides(block.outputs[0])[1]
    if -(-rows // shape.height) > MOST_GRID_Y:
        return no("block_shape", f"{rows} rows need more than {MOST_GRID_Y} blocks of {shape.height}")
    if any(pipeline.images[name].elements(pipeline.width, pipeline.height) >= 2**31
           for name in (*block.inputs, *block.outputs)):  # fmt: skip
        return no("image_size", "an image of 2^31 elements and more; indices are 32 bits wide")
    if len(block.kernels) > MOST_KERNELS:
        return no("block_size", f"{len(block.kernels)} kernels in a block; at most {MOST_KERNELS}")
    needed = shared_bytes(pipeline, block, params)
    if needed > shared_limit_bytes:
        return no("shared_memory", f"needs {needed} bytes of shared memory; a block may have {shared_limit_bytes}")
    if _is_boundary(pipeline, block):
        return None
    return _too_much(pipeline, block, params, no)


def _too_much(
    pipeline: Pipeline, block: KernelBlock, params: BlockParams, no: Callable[[str, str], Rejection]
) -> Rejection | None:
    pipeline, block, planned = _planned(pipeline, block, params)
    for name in block.kernels:
        for each in windows.extracted(pipeline.kernel(name), ())[1].values():
            if each.image in block.kernels and each.image not in planned.tiles:
                return no(
                    "recompute", f"{name} reads {each.width} x {each.height} pixels of {each.image}, which has no tile"
                )
    nodes = recomputed(pipeline, block, planned)
    if nodes > MOST_RECOMPUTED:
        return no("recompute", f"a pixel takes {nodes} more operations and operands when stages are computed again; "
                  f"at most {MOST_RECOMPUTED}")  # fmt: skip
    costs = evaluations(pipeline, block)
    most = max((costs[name] for name in _anywhere(pipeline, block, planned, _shape(params))), default=0)
    if most > MOST_BORDER_EVALUATIONS:
        return no("recompute", f"a pixel at the border takes {most} stages; at most {MOST_BORDER_EVALUATIONS}")
    return None


def recomputed(pipeline: Pipeline, block: KernelBlock, planned: TileLayout) -> int:
    """Operations and operands that one pixel of the interior takes beyond one evaluation of each stage, when those
    without a tile are computed at each place where they are read (once at each place). It stops counting beyond
    MOST_RECOMPUTED."""
    places = {name: {(0, 0)} for name in (*block.outputs, *planned.tiles)}
    nodes = 0
    costs = evaluations(pipeline, block)
    for name in reversed(block.kernels):
        kernel = pipeline.kernel(name)
        here = places.get(name, set())
        size = sum(1 for body in kernel.bodies for _ in tree.walk(body)) * kernel.channels // len(kernel.bodies)
        nodes += max(len(here) - 1, 0) * size
        if nodes > MOST_RECOMPUTED:
            break
        for each in kernel.accesses:
            if each.image in block.kernels and each.image in kernel.steps:
                nodes += costs[each.image] * size
            elif each.image in block.kernels and each.image not in planned.tiles:
                places.setdefault(each.image, set()).update((x + each.dx, y + each.dy) for x, y in here)
    return nodes


def _anywhere(pipeline: Pipeline, block: KernelBlock, planned: TileLayout, shape: ThreadRectangle) -> set[str]:
    """The stages that are computed at pixels which no tile holds (`NAME_at`)."""
    found: set[str] = set()
    for name in block.kernels:
        kernel = pipeline.kernel(name)
        for image in kernel.reads:
            if image in block.kernels and image in kernel.steps:
                found.add(image)
                continue
            if image not in block.kernels or not kernel.windowed(image):
                continue
            window, mode = kernel.window(image), kernel.border(image).mode
            read = {image} if image in planned.tiles else tiles_behind(pipeline, block, planned, image)
            found |= {image} if not read else {
                each for each in read
                if not (planned.tiles[each].repeats and mode == "repeat")
                and not tile_holds(planned.tiles[each], window, mode, shape)
            }  # fmt: skip
    return found


def _is_boundary(pipeline: Pipeline, block: KernelBlock) -> bool:
    boundary = [pipeline.kernel(name).pattern for name in block.kernels if pipeline.kernel(name).boundary]
    if boundary and len(block.kernels) > 1:
        raise ValueError(f"a {boundary[0]} kernel is a block of its own, not one of {block}")
    return bool(boundary)


def _shape(params: BlockParams) -> ThreadRectangle:
    """The rectangle of a block of threads; of strips, one of the frame's (as high as wide, or nearly: half of the frame
    is upright)."""
    if params.local == ROWS:
        return ThreadRectangle(x=params.block_x // 2, y=params.block_y * 2, rows=1)
    return ThreadRectangle(x=params.block_x, y=params.block_y, rows=params.pixels)


def _planned(pipeline: Pipeline, block: KernelBlock, params: BlockParams) -> tuple[Pipeline, KernelBlock, TileLayout]:
    """The pipeline and the block with large windows split and their inputs staged, and where its stages live."""
    shape = _shape(params)
    local = "tile" if params.local == ROWS else params.local
    whole, inner = (pipeline, block) if local == "recompute" else separated(pipeline, block, LEAST_SEPARATED)
    if local == "tile":
        whole, inner = windows.staged(whole, inner, shape.width, shape.height)
    return whole, inner, layout(whole, inner, shape.width, shape.height, local)


def _strip(pipeline: Pipeline, block: KernelBlock, params: BlockParams) -> tuple[tuple[Pipeline, KernelBlock], Strip]:
    split = separated(pipeline, block)
    return split, strips.strip(*split, across=params.across, rows=params.pixels, warps=params.block_y)


# --- one block ------------------------------------------------------------------------------------------


def _name(block: KernelBlock, between: str) -> str:
    """Of a source or an entry: the kernels' names, shortened when they are many."""
    name = between.join(block.kernels)
    if len(name) <= 80:
        return name
    return f"{name[:60]}{between}{hashlib.sha256(str(block).encode()).hexdigest()[:8]}"


def entry(block: KernelBlock) -> str:
    return f"{_name(block, '_')}_kernel"


def _boundary(pipeline: Pipeline, block: KernelBlock, shape: ThreadRectangle) -> CudaKernel:
    """Reductions, histograms, scans and hysteresis: their pixels are numbered in one row, i = y * width + x, and so are
    the threads."""
    kernel = pipeline.kernel(block.kernels[0])
    write = {"hysteresis": hysteresis.hysteresis, "scan": scans.scan}.get(kernel.pattern, reductions.reduction)
    written = (histograms.histogram if kernel.reduction == HISTOGRAM else write)(pipeline, kernel, shape.threads)
    return CudaKernel(name=kernel.name, text=written.text, launches=written.launches, scratch=written.scratch)
