"""The cost of a block per pixel as its kernel is emitted, and a lower bound of its time.

    bytes       DRAM: every image that is read once and every image that is stored (halos lie in the L2)
    operations  those of the bodies, each as often as the kernel computes it: a stage with a halo is computed on the
                halo too, (width + left + right) (height + up + down) / (width height) times a pixel

The paper's model (benefit.py) charges a stage once for every pixel of its reader's window, which no kernel here does:
a 3 x 3 stage behind a 3 x 3 stage is computed 1.13 times a pixel, not 9 times. So this is by what blocks are chosen
to be measured. It is an estimate, to sort with; it refuses nothing.
"""

from dataclasses import dataclass

from fusiond.model.language.dtypes import DTYPES
from fusiond_mincut.analysis.blocks import KernelBlock, block
from fusiond_mincut.analysis.halos import halos
from fusiond_mincut.frontend.graph import Halo, Pipeline

RECTANGLE = (32, 32)  #: Pixels that one block of threads computes: 32 x 8 threads with 4 pixels each
SFU = 8  #: Operations that a special function takes the place of: an SM has 16 lanes of these and 128 others
ACCESS = 4  #: The same for a load or a store: 32 lanes
BYTES_PER_OPERATION = 0.1
"""Bytes that a GPU moves to and from DRAM in the time of an operation: 3.35 TB/s and 33 T operations/s of an H100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one pixel."""

    bytes: float
    operations: float

    @property
    def time(self) -> float:
        """In the time of a byte of DRAM: the longer of the two."""
        return max(self.bytes, self.operations * BYTES_PER_OPERATION)


def cost(pipeline: Pipeline, kernels: KernelBlock) -> Cost:
    """What a block of point and local kernels, or one global kernel, takes for one pixel of the image."""
    stored = [pipeline.images[name] for name in (*kernels.inputs, *kernels.outputs)]
    moved = sum(
        each.channels * DTYPES[each.dtype].bytes * _share(pipeline, each.name) for each in stored if not each.single
    )
    operations = ACCESS * sum(each.channels * _share(pipeline, each.name) for each in stored)
    times = evaluated(pipeline, kernels)
    for name in kernels.kernels:
        kernel = pipeline.kernel(name)
        counted = kernel.operations
        often = kernel.channels / len(kernel.bodies)  # one body is counted once
        shared = ACCESS * any(kernel.windowed(image) for image in kernel.reads)
        operations += (counted.alu + SFU * counted.sfu + shared) * often * times[name]
    return Cost(bytes=float(moved), operations=operations)


def _share(pipeline: Pipeline, image: str) -> float:
    """Pixels of an image for each of the pipeline."""
    width, height = pipeline.sides(image)
    return width * height / (pipeline.width * pipeline.height)


def evaluated(pipeline: Pipeline, kernels: KernelBlock) -> dict[str, float]:
    """Kernel -> how often it is computed for each pixel of the pipeline. A stage that is needed by a step only is
    computed once for each place where it is read."""
    needed = halos(pipeline, kernels)
    whole = _share(pipeline, kernels.outputs[0])
    if pipeline.kernel(kernels.kernels[0]).boundary:
        width, height = pipeline.domain(pipeline.kernel(kernels.kernels[0]))
        return {kernels.kernels[0]: width * height / (pipeline.width * pipeline.height)}
    found: dict[str, float] = {}
    for name in reversed(kernels.kernels):
        found[name] = whole * overlap(needed[name]) if name in needed else 0.0
        for reader in pipeline.readers[name]:
            if reader in found and (name in pipeline.kernel(reader).steps or name not in needed):
                places = sum(each.image == name for each in pipeline.kernel(reader).accesses)
                found[name] += places * found[reader]
    return found


def overlap(halo: Halo) -> float:
    """How often a stage with this halo is computed for a pixel."""
    width, height = RECTANGLE
    return (width + halo.left + halo.right) * (height + halo.up + halo.down) / (width * height)


def saving(pipeline: Pipeline, kernels: tuple[str, ...]) -> float:
    """What a block saves per pixel against its kernels one by one, in the time of a byte."""
    apart = sum(cost(pipeline, block(pipeline, [name])).time for name in kernels)
    return apart - cost(pipeline, block(pipeline, kernels)).time
