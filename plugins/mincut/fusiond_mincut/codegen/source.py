"""The CUDA source of a block, part by part: header, types, index maps, stages, tiles, the two ways, the kernel.

A kernel of strips has a third way in place of the interior: warps run down the image (rolling.py), also at its edges,
and what they leave there, the frame of pixels whose stages read something outside, is computed in small rectangles on
the border's way.
"""

from collections.abc import Iterable

from fusiond.model.codegen.code import call
from fusiond.model.codegen.statements import Statements, function
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.codegen import rolling, stages
from fusiond_mincut.codegen.lowering import StageFunctions, ThreadRectangle
from fusiond_mincut.codegen.stages import TYPES
from fusiond_mincut.codegen.strips import Strip
from fusiond_mincut.codegen.tiles import TileLayout
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

Split = tuple[Pipeline, KernelBlock]


def text(pipeline: Pipeline, block: KernelBlock, planned: TileLayout, shape: ThreadRectangle, entry: str) -> str:
    """The CUDA text of a block of point and local kernels; `entry` is what its kernel is called."""
    functions = StageFunctions(pipeline=pipeline, block=block, layout=planned, shape=shape)
    ways = [functions.path("interior", border=False), functions.path("border", border=True)]
    if not planned.reach and not functions.steps_inside():  # nothing is read beside the own pixel
        ways = [functions.path("pixels", border=True)]
    far = [functions.passes()] if planned.passes else []
    parts = [*_stages(functions, block.kernels), *_functions(functions), *far, *ways]
    return "\n".join([*parts, _kernel(functions, entry)])


def _stages(functions: StageFunctions, written: Iterable[str]) -> list[str]:
    """Comment, types, index maps, constants and the stages of these kernels, once their callers are written."""
    pipeline, block = functions.pipeline, functions.block
    modes = functions.modes | stages.fetched_modes(map(pipeline.kernel, block.kernels))
    parts = [_header(pipeline, block, functions.layout), *stages.types(pipeline, block.kernels)]
    parts += [*stages.index_maps(modes), *functions.constants.values()]
    for name in written:
        parts.append(f"// {_described(pipeline.kernel(name))}\n{stages.stages(functions.stages[name][0])}")
    return parts


def _functions(functions: StageFunctions) -> list[str]:
    """The tiles, and what the ways call."""
    tiles = [_tiles(functions.layout)] if functions.layout.rounds else []
    return [*tiles, *functions.at.values(), *functions.near.values(), *functions.made.values()]


def strips(
    pipeline: Pipeline,
    block: KernelBlock,
    planned: TileLayout,
    shape: ThreadRectangle,
    made: Strip,
    split: Split,
    entry: str,
) -> str:
    """The CUDA text of a block whose warps run down the image. `planned` and `shape` are those of the rectangles of the
    frame; `split`: the pipeline and the block as the strips compute them (separation.py)."""
    functions = StageFunctions(pipeline=pipeline, block=block, layout=planned, shape=shape, frame=True)
    reach = planned.reach
    frame = [functions.path("frame", border=True)] if reach else []
    far = [functions.passes()] if planned.passes and reach else []
    written = block.kernels if reach else ()
    parts = _stages(functions, written)
    changed: set[str] = set()
    for name in split[1].kernels:
        kernel = split[0].kernel(name)
        if name not in written:
            parts.append(f"// {_described(kernel)}\n{stages.stages(kernel)}")
        elif kernel != functions.stages[name][0]:
            changed.add(name)
            parts.append(f"// {name}, in strips\n{stages.stages(kernel, '_strip')}")
    parts += [*_functions(functions), *far, *frame]
    parts.append(rolling.text(*split, made, functions, changed))
    parts.append(_strips_kernel(functions, entry, made))
    return "\n".join(parts)


def _strips_kernel(functions: StageFunctions, entry: str, made: Strip) -> str:
    body, pipeline, planned, shape = Statements(), functions.pipeline, functions.layout, functions.shape
    body.line(f"const int x0 = blockIdx.x * {made.width}, y0 = blockIdx.y * {made.height};")
    given = functions.arguments("x0", "y0", outputs=True)
    first, reach = made.first_lane * made.across, planned.reach
    ends = [each for each in (*functions.inputs, *functions.outputs) if not each.single]
    images = " | ".join(f"reinterpret_cast<size_t>({each.name}_image)" for each in ends)
    vectors = ((name, made.across * pipeline.images[name].channels) for name in functions.pitched)
    pitched = {f"{functions.row(name)} % {elements} == 0" for name, elements in vectors}
    whole = " && ".join([f"width % {made.across} == 0", *sorted(pitched)])
    body.lines(
        "// Whole vectors inside the image, on rows that begin at a multiple of 16 bytes or of what a lane has.",
        f"if (x0 >= {first} && x0 + {32 * made.across - first} <= width && y0 >= {reach.up}"
        f" && y0 + {made.height + reach.down} <= height",
        f"    && {whole} && ({images}) % 16 == 0) {{",
        f"    {call('strip<false>', *given)};",
        "    return;",
        "}",
        f"{call('strip<true>', *given)};",
    )
    if reach:
        _shared(body, planned)
        body.comment("The frame, in small rectangles: all threads go one way.")
        body.line(f"const int x_end = min(x0 + {made.width}, width), y_end = min(y0 + {made.height}, height);")
        rows = body.block(f"for (int y = y0; y < y_end; y += {shape.height})")
        columns = rows.block(f"for (int x = x0; x < x_end; x += {shape.width})")
        own = columns.block(f"if (x < {reach.left} || x + {shape.width + reach.right} > width || y < {reach.up}"
                            f" || y + {shape.height + reach.down} > height)")  # fmt: skip
        tiles = ["tiles"] if planned.rounds else []
        own.line(f"{call('frame', *functions.arguments('x', 'y', 'x_end', 'y_end', *tiles, outputs=True))};")
        if planned.rounds:
            own.line("__syncthreads();")
    return _entry(functions, entry, body)


def _header(pipeline: Pipeline, block: KernelBlock, planned: TileLayout) -> str:
    lines = [
        f"// {' + '.join(block.kernels)}: {'kernels fused from' if len(block.kernels) > 1 else 'a kernel of'}"
        f" the pipeline {pipeline.name}. Written by fusiond.",
        f"// Reads {', '.join(block.inputs)}; stores {', '.join(block.outputs)}.",
    ]
    if planned.rounds:
        held = ", ".join(planned.tiles)
        lines.append(f"// In shared memory, {planned.shared_bytes} bytes: {held}.")
    return "\n".join(lines) + "\n"


def _described(kernel: ImageKernel) -> str:
    window = f" {kernel.mask[0]} x {kernel.mask[1]}" if kernel.pattern == "local" else ""
    reads = [name + (f" ({kernel.border(name).mode})" if kernel.windowed(name) else "") for name in kernel.reads]
    return f"{kernel.name}: {kernel.pattern}{window}, reads {', '.join(reads)}"


def _tiles(planned: TileLayout) -> str:
    struct = Statements()
    members = struct.block("struct Tiles", end="};")
    for tile in sorted(planned.tiles.values(), key=lambda each: each.offset_bytes):
        last = f"[{tile.image.channels}]" if tile.image.channels > 1 else ""
        members.line(f"{TYPES[tile.image.dtype]} {tile.name}_tile[{tile.height}][{tile.width}]{last};")
    struct.line(f'static_assert(sizeof(Tiles) == {planned.shared_bytes}, "the launch gives so many bytes");')
    return struct.text()


def _kernel(functions: StageFunctions, entry: str) -> str:
    planned, shape = functions.layout, functions.shape
    given = functions.arguments("x0", "y0", *(["tiles"] if planned.rounds else []), outputs=True)
    body = Statements()
    _shared(body, planned)
    body.line(f"const int x0 = blockIdx.x * {shape.width}, y0 = blockIdx.y * {shape.height};")
    reach = planned.reach
    by_steps = "".join(f"\n    && {each}" for each in functions.steps_inside())
    if reach or by_steps:
        body.lines(
            "// All threads go one way. What the stages read round the block adds up.",
            f"if (x0 >= {reach.left} && x0 + {shape.width + reach.right} <= width"
            f" && y0 >= {reach.up} && y0 + {shape.height + reach.down} <= height{by_steps})",
            f"    {call('interior', *given)};",
            "else",
            f"    {call('border', *given)};",
        )
    else:
        body.line(f"{call('pixels', *given)};")
    return _entry(functions, entry, body)


def _shared(body: Statements, planned: TileLayout) -> None:
    if planned.rounds:
        body.line("extern __shared__ __align__(16) unsigned char shared_memory[];")
        body.line("Tiles& tiles = *reinterpret_cast<Tiles*>(shared_memory);")


def _entry(functions: StageFunctions, name: str, body: Statements) -> str:
    head = f'extern "C" __global__ void __launch_bounds__({functions.shape.threads}) {name}'
    return function(head, functions.parameters(outputs=True), body, below=True)
