"""What the kernels of boundaries have in common: they compute a stage at pixel number i of an image."""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.codegen.code import Code, call
from fusiond.codegen.statements import Statements, function
from fusiond.program import Buffer
from fusiond_mincut.codegen import stages
from fusiond_mincut.codegen.launches import CudaLaunch
from fusiond_mincut.codegen.stages import STORED, image_of, stage_of
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline


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


def parameters(pipeline: Pipeline, kernel: ImageKernel) -> list[str]:
    """The images that are read."""
    images = (pipeline.images[name] for name in kernel.reads)
    return [f"const {STORED[each.dtype]}* __restrict__ {each.name}_image" for each in images]


def sizes(pipeline: Pipeline, kernel: ImageKernel) -> list[str]:
    """The last parameters: how many pixels there are, the sizes of what is read at computed coordinates, pitches."""
    fetched = [f"int {name}_{side}" for name in kernel.fetched for side in ("width", "height")]
    return ["int width", "int height", *fetched, *(f"int {name}_pitch" for name in pitched(pipeline, kernel))]


def pitched(pipeline: Pipeline, kernel: ImageKernel, output: bool = True) -> tuple[str, ...]:
    """The images of a boundary that have a pitch."""
    return tuple(name for name in (*kernel.reads, *([kernel.name] if output else [])) if name in pipeline.pitched)


def scalars(pipeline: Pipeline, kernel: ImageKernel) -> tuple[int, ...]:
    """The values of `sizes`."""
    return (*pipeline.domain(kernel), *(side for name in kernel.fetched for side in pipeline.sides(name)))


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
