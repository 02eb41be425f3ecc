"""The common part of boundary kernels: they compute a stage at pixel number i of an image."""

from dataclasses import dataclass

from fusiond.model.codegen.code import Code, call
from fusiond.model.codegen.statements import Statements, function
from fusiond.model.program import Buffer
from fusiond_mincut.codegen import stages
from fusiond_mincut.codegen.stages import STORED, image_of, stage_of
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLaunch:
    """A launch of an entry, before it is a step of a Program; its arguments are the images, then the scalars (width,
    height, the sizes of others), then the pitches of `pitched`."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    images: tuple[str, ...]
    scalars: tuple[int, ...]
    shared_bytes: int = 0
    pitched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A boundary's text, its launches, and what these leave to each other."""

    text: str
    launches: tuple[CudaLaunch, ...]
    scratch: tuple[Buffer, ...] = ()


def accumulated(kernel: ImageKernel) -> str:
    """The dtype in which values of a kernel are added up or compared: 32 bits (the low bits of a sum do not depend on
    the others)."""
    return "float32" if kernel.dtype.startswith("float") else "int32"


def head(pipeline: Pipeline, kernel: ImageKernel, what: str) -> list[str]:
    """Comment, types, index maps and stages."""
    return [
        f"// {kernel.name}: {what} over the pixels of {', '.join(kernel.reads)} in the pipeline {pipeline.name}."
        " Written by fusiond.\n",
        *stages.types(pipeline, [kernel.name]),
        *stages.index_maps(stages.fetched_modes([kernel])),
        stages.stages(kernel),
    ]


def parameters(pipeline: Pipeline, kernel: ImageKernel, *own: str) -> list[str]:
    """The images that are read, `own`, how many pixels there are, the sizes of what is read at computed coordinates,
    pitches."""
    images = (pipeline.images[name] for name in kernel.reads)
    read = [f"const {STORED[each.dtype]}* __restrict__ {each.name}_image" for each in images]
    fetched = [f"int {name}_{side}" for name in kernel.fetched for side in ("width", "height")]
    pitches = (f"int {name}_pitch" for name in pitched(pipeline, kernel))
    return [*read, *own, "int width", "int height", *fetched, *pitches]


def pitched(pipeline: Pipeline, kernel: ImageKernel) -> tuple[str, ...]:
    """The images of a boundary that have a pitch."""
    return tuple(name for name in (*kernel.reads, kernel.name) if name in pipeline.pitched)


def launch(
    pipeline: Pipeline,
    kernel: ImageKernel,
    entry: str,
    blocks: int,
    threads: int,
    *written: str,
    first: tuple[int, ...] = (),
    shared_bytes: int = 0,
) -> CudaLaunch:
    """The launch of an entry with `parameters`; `first` are scalars before the sizes."""
    return CudaLaunch(
        entry=entry,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        images=(*kernel.reads, *written),
        scalars=(*first, *pipeline.domain(kernel), *(side for name in kernel.fetched for side in pipeline.sides(name))),
        shared_bytes=shared_bytes,
        pitched=pitched(pipeline, kernel),
    )


def all_pixels(body: Statements, threads: int) -> Statements:
    """A loop over a thread's share of the pixels, `i`."""
    # Unsigned: one step beyond the last of almost 2^31 pixels must not be negative.
    body.line(f"const unsigned step = gridDim.x * {threads}, end = (unsigned)width * height;")
    loop = body.block(f"for (unsigned pixel = blockIdx.x * {threads} + threadIdx.x; pixel < end; pixel += step)")
    loop.line("const int i = pixel;")
    return loop


def value(pipeline: Pipeline, kernel: ImageKernel, channel: int, pixel: str = "i") -> Code:
    """The stage of a channel at pixel number `pixel`, an int."""
    given = []
    for each in stages.pixels(kernel, channel):
        at = channel if each.channel is None else each.channel
        whole = image_of(each)
        if whole is not None:
            channels = pipeline.images[whole].channels
            row = f"{whole}_pitch" if whole in pipeline.pitched else f"{whole}_width * {channels}"
            given.append(f"{whole}_image{f' + {at}' if at else ''}, {whole}_width, {whole}_height, {row}")
        elif each.image in tree.POSITIONS.values():
            given.append({tree.X: f"{pixel} % width", tree.Y: f"{pixel} / width"}.get(each.image, each.image[1:]))
        else:
            image = pipeline.images[each.image]
            given.append(f"{each.image}_image[{at if image.single else place(pipeline, each.image, pixel, at)}]")
    return call(stage_of(kernel, channel), *given)


def place(pipeline: Pipeline, image: str, pixel: str, channel: int) -> str:
    """The element of a pixel's channel in an image of the kernel's size."""
    channels = pipeline.images[image].channels
    if image in pipeline.pitched:
        column = f"{pixel} % width" if channels == 1 else f"{pixel} % width * {channels} + {channel}"
        return f"{pixel} / width * {image}_pitch + {column}"
    return pixel if channels == 1 else f"{pixel} * {channels} + {channel}"


def entry(name: str, threads: int, given: list[str], body: Statements) -> str:
    return function(f'extern "C" __global__ void __launch_bounds__({threads})\n{name}', given, body)
